"""Reads results directories of ccbench as data frames with units, and draws figures.

    import ccbench
    run = ccbench.load("results")                 # the newest run in a directory, or the path of one
    samples = run["flow_samples"]                 # polars, pandas or pyarrow, whichever is installed
    run.units("flow_samples")["rtt_us"]           # "us"
    ccbench.plot(run, "phases")

docs/results.md describes every table and column.
"""

from ._plot import PlotError, plot, program
from ._run import Run, RunError, load
from ._units import unit_of

__all__ = ["PlotError", "Run", "RunError", "load", "plot", "program", "unit_of"]
