"""Reads a run with the installed wheel, and draws a figure of it: python installed.py RESULTS FIGURES"""

import sys
from pathlib import Path

import polars

import ccbench

run = ccbench.load(sys.argv[1])
samples = run["flow_samples"]
assert isinstance(samples, polars.DataFrame) and samples.height > 0, samples
assert run.units("flow_samples")["rtt_us"] == "us", run.units("flow_samples")
summary = run["summary_point"]
groups = set(summary.filter(polars.col("scope") == "group")["subject"])
assert {"first", "second"} <= groups, groups

written = ccbench.plot(run, "phases", output=Path(sys.argv[2]), format=["svg"])
assert any(file.suffix == ".svg" and file.stat().st_size > 0 for file in written), written
print(f"{samples.height} rows of {run.path.name}; {', '.join(file.name for file in written)}")
