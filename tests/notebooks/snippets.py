"""Runs the code that a report and the manuals print, and compares its results with the run's summary.

    python snippets.py REPORT.html MANUAL.md...      in the directory that contains the run's directory
"""

import contextlib
import io
import json
import re
import shutil
import sys

import duckdb
import pandas
import polars


def result(code):
    """Returns the value that the code calls `srtt_us`; the code also prints it."""
    names = {}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "snippet", "exec"), names)
    assert out.getvalue(), code
    return names["srtt_us"]


def rows(frame):
    """Returns the srtt by levels (or point), phase and group."""
    if isinstance(frame, pandas.Series):
        frame = frame.reset_index()
    lines = frame.rows() if isinstance(frame, polars.DataFrame) else frame.itertuples(index=False)
    return {tuple(map(str, line[:-1])): line[-1] for line in lines}


def wanted(directory, factors):
    """Returns the same from the summary: means over the counted trials, trial by trial."""
    trials = polars.read_parquet(f"{directory}/trials.parquet")
    counted = trials.filter(~polars.col("status").is_in(["failed", "aborted"])).rename({"trial": "nth"})
    points = {row["point_id"]: row for row in polars.read_parquet(f"{directory}/points.parquet").iter_rows(named=True)}
    srtt = polars.read_parquet(f"{directory}/summary_phase.parquet").filter(metric="srtt", stat="mean", scope="group")
    srtt = srtt.join(counted, left_on=["point_id", "trial"], right_on=["point_id", "nth"])
    means = {}
    for row in srtt.iter_rows(named=True):
        key = (*(str(points[row["point_id"]][factor]) for factor in factors), row["phase"], row["subject"])
        means.setdefault(key, []).append(row["value"])
    return {key: sum(values) / len(values) for key, values in means.items()}


def same(name, found, means):
    assert found.keys() == means.keys(), f"{name}: {sorted(found)} instead of {sorted(means)}"
    for key, mean in means.items():
        assert abs(found[key] - mean) < 1e-6 * mean, f"{name}: {key}: {found[key]} instead of {mean}"


page = open(sys.argv[1], encoding="utf-8").read()
run = json.loads(re.search(r'<script type="application/json" id="run">(.*?)</script>', page, re.S).group(1))
snippets = {snippet["name"]: snippet["code"] for snippet in run["snippets"]}
assert {"Python, polars", "Python, pandas", "DuckDB", "R"} <= snippets.keys(), snippets.keys()
assert not any("@" in code for code in snippets.values()), snippets


def check(directory):
    of = {name: code.replace(run["directory"], directory) for name, code in snippets.items()}
    means = wanted(directory, run["factors"])
    same("DuckDB", {line[:-1]: line[-1] for line in duckdb.sql(of["DuckDB"]).fetchall()}, means)
    for name in ["Python, polars", "Python, pandas"]:
        same(name, rows(result(of[name])), means)
    for manual in sys.argv[2:]:
        with open(manual, encoding="utf-8") as file:
            code = re.search(r"```python[^\n]*\n(.*?)```", file.read(), re.S).group(1)
        code = re.sub(r'"results/[^/"]*…', f'"{directory}', code)
        # A manual knows neither the run's factors nor what is measured.
        of_point = {(point_of(directory, key), *key[-2:]): mean for key, mean in means.items()}
        found = rows(result(code))
        same(manual, {key: found.get(key, 0.0) for key in of_point}, of_point)
    return means


def point_of(directory, key):
    points = polars.read_parquet(f"{directory}/points.parquet").iter_rows(named=True)
    return next(str(p["point_id"]) for p in points if all(str(p[f]) == level for f, level in zip(run["factors"], key)))


means = check(run["directory"])
assert len(means) >= 6 and len({key[:-2] for key in means}) >= 2, means
# A failed trial is in none of them.
other = run["directory"] + "-less"
shutil.copytree(run["directory"], other)
trials = polars.read_parquet(f"{other}/trials.parquet")
failed = (polars.col("point_id") == 0) & (polars.col("trial") == 1)
status = polars.when(failed).then(polars.lit("failed")).otherwise("status").alias("status")
trials.with_columns(status).write_parquet(f"{other}/trials.parquet")
summary = polars.read_parquet(f"{other}/summary_phase.parquet")
summary.filter(~failed).write_parquet(f"{other}/summary_phase.parquet")
assert check(other) != means

# Reads a whole table by its one directory, with its Hive key as a column and the trial's number as it was written.
table = f"{run['directory']}/tables/flow_samples"
by_polars, by_pandas = polars.read_parquet(table), pandas.read_parquet(table)
by_duckdb = duckdb.sql(f"SELECT count(*), min(trial), max(point) FROM '{table}/**/*.parquet'").fetchall()[0]
assert by_polars.height == len(by_pandas) == by_duckdb[0] > 0
assert by_polars["trial"].min() == by_pandas["trial"].min() == by_duckdb[1] == 1
assert by_polars.schema["trial"] == polars.UInt16 and "point" in by_pandas.columns
print(f"{len(snippets)} snippets, {by_polars.height} rows")
