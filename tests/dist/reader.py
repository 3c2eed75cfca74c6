"""Compares what the Python reader returns for a run with its files: python reader.py RUN, with PYTHONPATH and CCBENCH."""

import sys
import warnings
from pathlib import Path

import pandas
import polars
import pyarrow

import ccbench

path = Path(sys.argv[1])
samples = sorted((path / "tables/flow_samples").glob("**/*.parquet"))
assert len(samples) > 1, samples
rows = sum(polars.read_parquet(file, hive_partitioning=False).height for file in samples)
kinds = {"polars": polars.DataFrame, "pandas": pandas.DataFrame, "pyarrow": pyarrow.Table}

for frames, kind in kinds.items():
    run = ccbench.load(path, frames=frames)
    assert {"flow_samples", "trials", "points", "summary_point"} <= set(run.tables()), run.tables()
    table = run["flow_samples"]
    assert isinstance(table, kind) and len(table) == rows, (frames, len(table), rows)
    units = run.units("flow_samples")
    assert (units["rtt_us"], units["t_s"], units["pmtu_bytes"]) == ("us", "s", "B"), units
    assert not {"trial", "phase", "cwnd"} & units.keys(), units
    # All trials are ok until one is not.
    assert len(run.table("flow_samples", counted=True)) == rows
    for table in run.tables():
        assert len(run[table]) >= 0, table
    assert run.info["plan_name"] == "read"

assert ccbench.load(path, frames="pandas")["flow_samples"].attrs["units"]["rtt_us"] == "us"
field = ccbench.load(path, frames="pyarrow")["flow_samples"].schema.field("rtt_us")
assert field.metadata[b"unit"] == b"us", field.metadata
columns = {frames: set(ccbench.load(path, frames=frames)["flow_samples"].columns) for frames in ("polars", "pandas")}
assert columns["polars"] == columns["pandas"], columns

# The newest run of a directory, and a pattern.
assert ccbench.load(path.parent).path == path
assert ccbench.load(path.parent / (path.name[:3] + "*")).path == path

written = ccbench.plot(run, "series", metric=["throughput", "srtt"], where={"trial": 2}, format=["svg"])
assert {file.suffix for file in written} == {".svg", ".csv"}, written
assert all(file.stat().st_size > 0 for file in written)

# A failed trial is in the table, but not among those that count.
trials = polars.read_parquet(path / "trials.parquet")
failed = (polars.col("point_id") == 0) & (polars.col("trial") == 1)
status = polars.when(failed).then(polars.lit("failed")).otherwise(polars.col("status").cast(polars.String))
trials.with_columns(status.alias("status")).write_parquet(path / "trials.parquet")
lost = polars.read_parquet(samples[0], hive_partitioning=False).height
for frames in kinds:
    run = ccbench.load(path, frames=frames)
    assert len(run["flow_samples"]) == rows, frames
    assert len(run.table("flow_samples", counted=True)) == rows - lost, frames

# The first file is of an earlier version, in which a column had another name.
changes = sorted((path / "tables/link_changes").glob("**/*.parquet"))
assert len(changes) > 1, changes
former = {"requested_t_ns": "asked_t_ns"}
current = polars.read_parquet(changes, hive_partitioning=False)
polars.read_parquet(changes[0], hive_partitioning=False).rename(former).write_parquet(changes[0])
for frames in kinds:
    run = ccbench.load(path, frames=frames)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tables = [run["link_changes"], run.table("link_changes", counted=True)]
        run["flow_samples"]
    found = [warning for warning in caught if "has a deprecated name" in str(warning.message)]
    assert [warning.category for warning in found] == [DeprecationWarning] * 2, caught
    assert all("`asked_t_ns` of link_changes" in str(warning.message) for warning in found), caught
    assert all(warning.filename == __file__ for warning in found), caught
    for table in tables:
        names = table.column_names if frames == "pyarrow" else list(table.columns)
        assert names == current.columns, (frames, names)
    assert len(tables[0]) == current.height, frames
    assert frames != "polars" or tables[0].equals(current), tables[0]
    assert run.units("link_changes")["requested_t_ns"] == "ns"

# Values of an earlier version: the kind of an event, and the code of a reason.
events = sorted((path / "tables/events").glob("**/*.parquet"))[0]
table = polars.read_parquet(events, hive_partitioning=False)
table.with_columns(polars.lit("cc_in_force").cast(table.schema["kind"]).alias("kind")).write_parquet(events)
trials = polars.read_parquet(path / "trials.parquet")
reasons = [["cc_not_in_force: the kernel used `reno`: see `cc_not_in_force: `"]] + [[]] * (trials.height - 1)
trials.with_columns(polars.Series("reasons", reasons, dtype=trials.schema["reasons"])).write_parquet(
    path / "trials.parquet"
)
for frames in kinds:
    run = ccbench.load(path, frames=frames)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tables = [run["events"], run["trials"], run.table("events", counted=True)]
    found = [str(warning.message) for warning in caught if "is a deprecated name" in str(warning.message)]
    assert len(found) == 3 and "`cc_not_in_force` in column `reasons` of trials" in found[1], caught
    assert all("`cc_in_force` in column `kind` of events" in found[index] for index in (0, 2)), caught
    assert all(warning.filename == __file__ for warning in caught), caught
    kind, reasons = [
        table[column].to_pylist() if frames == "pyarrow" else list(table[column])
        for table, column in zip(tables, ("kind", "reasons"))
    ]
    assert "initial_cc" in kind and "cc_in_force" not in kind, (frames, set(kind))
    assert list(reasons[0]) == ["wrong_cc: the kernel used `reno`: see `cc_not_in_force: `"], (frames, reasons)


def refused(error, call):
    try:
        call()
    except error as reason:
        return str(reason)
    raise AssertionError(f"no {error.__name__}")


assert "no table 'flow_sample'; it has " in refused(ccbench.RunError, lambda: run["flow_sample"])
assert "leave out counted=True" in refused(ccbench.RunError, lambda: run.table("points", counted=True))
assert "choose one of polars" in refused(ccbench.RunError, lambda: ccbench.load(path, frames="numpy"))
assert "neither a results directory" in refused(ccbench.RunError, lambda: ccbench.load(path / "tables"))
assert "error" in refused(ccbench.PlotError, lambda: ccbench.plot(run, "pie"))
assert [ccbench.unit_of(name) for name in ("throughput_mbit_s", "us", "cwnd")] == ["Mbit/s", None, None]

# Every documented column: a word of the name is the unit, and rates are not times.
words = {
    **{unit: unit for unit in ("ns", "us", "ms", "s", "ppm", "ppb")},
    **{"bytes": "B", "pkts": "packets", "packets": "packets", "bps": "bit/s", "pct": "%", "seconds": "s"},
}
manual = Path(__file__).parents[2] / "docs/results.md"
cells = [[cell.strip() for cell in line.split("|")] for line in manual.read_text(encoding="utf-8").splitlines()]
kinds = {"u8", "u16", "u32", "u64", "i32", "i64", "f64"}
columns = {row[1] for row in cells if len(row) > 3 and row[2].removesuffix("?") in kinds and row[1].isidentifier()}
assert {"delivery_rate_bytes_per_s", "bits_per_second", "bytes_acked", "drift_ppb"} <= columns, columns
for name in columns:
    found = {words[word] for word in name.split("_") if word in words}
    if "per" in name.split("_"):
        found = {"B/s" if "bytes" in name else "bit/s"}
    assert found == ({ccbench.unit_of(name)} - {None}), (name, found, ccbench.unit_of(name))
print(f"{rows} rows")
