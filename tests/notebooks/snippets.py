"""Runs the code that a report prints, taken from the report itself, and the parts of it that other readers share.

    python snippets.py REPORT.html      in the folder that the run's directory lies in
"""

import contextlib
import io
import json
import re
import sys

import duckdb


def printed(code):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "snippet", "exec"), {})
    return out.getvalue()


page = open(sys.argv[1], encoding="utf-8").read()
run = json.loads(re.search(r'<script type="application/json" id="run">(.*?)</script>', page, re.S).group(1))
snippets = {snippet["name"]: snippet["code"] for snippet in run["snippets"]}
assert {"Python, polars", "Python, pandas", "DuckDB", "R"} <= snippets.keys(), snippets.keys()

rows = duckdb.sql(snippets["DuckDB"]).fetchall()
means = {(phase, group): rtt for phase, group, rtt in rows if phase}
assert len(means) >= 3, rows
for name in ["Python, polars", "Python, pandas"]:
    text = printed(snippets[name])
    for phase, group in means:
        assert phase in text and group in text, f"{name}: no {phase}, {group} in\n{text}"
    # Every reader has the same means.
    for rtt in means.values():
        assert f"{rtt:.2f}"[:-3] in text, f"{name}: no {rtt} in\n{text}"

# A whole table by its one directory, with its Hive key as a column and the trial's number as it was written.
import pandas  # noqa: E402
import polars  # noqa: E402

table = f"{run['directory']}/tables/flow_samples"
by_polars, by_pandas = polars.read_parquet(table), pandas.read_parquet(table)
by_duckdb = duckdb.sql(f"SELECT count(*), min(trial), max(point) FROM '{table}/**/*.parquet'").fetchall()[0]
assert by_polars.height == len(by_pandas) == by_duckdb[0] > 0
assert by_polars["trial"].min() == by_pandas["trial"].min() == by_duckdb[1] == 1
assert by_polars.schema["trial"] == polars.UInt16 and "point" in by_pandas.columns
print(f"{len(snippets)} snippets, {by_polars.height} rows")
