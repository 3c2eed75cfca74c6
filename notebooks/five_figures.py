"""One figure for each of the five documents, from the results of their plans (`ccbench reproduce`).

Cells begin with `# %%`: editors and Jupyter (jupytext) run them one by one. As a program:

    python notebooks/five_figures.py [RESULTS] [e1=RUN …] [--only e1,e5] [-o DIR]

RESULTS is the directory with results directories (default: `results`, or CCBENCH_RESULTS); the newest run of each document is
used. `e1=RUN` selects a run. RESULTS can also be a single run: then every figure is drawn from it.
Needs polars and matplotlib.
"""

# %% Load a run: one call per table.
import json
import os
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import polars as pl

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"]
plt.rcParams.update({
    "axes.prop_cycle": plt.cycler(color=COLOURS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "font.size": 8,
    "legend.frameon": False,
})
COLUMN, TWO_COLUMNS = 85 / 25.4, 175 / 25.4


class Run:
    """A results directory."""

    def __init__(self, path):
        self.path = Path(path)
        if not (self.path / "run.json").exists():
            raise FileNotFoundError(f"{path} is not a results directory of ccbench: run.json is missing")

    def table(self, name):
        """All rows of a table from counted trials."""
        if not (self.path / "tables" / name).exists():
            raise LookupError(f"{self.path} has no table {name}")
        rows = pl.read_parquet(self.path / "tables" / name)
        trials = pl.read_parquet(self.path / "trials.parquet")
        counted = trials.filter(pl.col("status").is_in(["ok", "degraded"])).select("point_id", "trial")
        return rows.join(counted, on=["point_id", "trial"])

    def summary(self, name="summary_point"):
        return pl.read_parquet(self.path / f"{name}.parquet")

    def senders(self):
        """Samples of data sockets on the sending side."""
        samples = self.table("flow_samples")
        # Before the first measurement, the kernel has an RTT of 0.
        measured = pl.when(pl.col("rtt_us") > 0).then(pl.col("rtt_us")).alias("rtt_us")
        return samples.filter((pl.col("role") == "data") & (pl.col("side") == "snd")).with_columns(measured)

    def received(self):
        """Intervals at the receivers."""
        rows = self.table("intervals").filter((pl.col("side") == "rcv") & ~pl.col("omitted"))
        # iperf3's last interval is too short for a meaningful rate. Imported flows may have intervals of different lengths.
        usual = pl.col("seconds").median().over("point_id", "trial", "flow_id")
        return rows.filter(pl.col("seconds") >= usual / 2)

    def together(self, rows):
        """The phase in which most flows run; packets that drain after a phase do not count."""
        flows = rows.group_by("phase", "flow_id").len().filter(pl.col("len") > pl.col("len").max() / 10)
        return flows.group_by("phase").len().sort("len")["phase"][-1]

    def first(self, rows):
        """Rows of the first trial of the first point in time order."""
        return rows.filter(pl.col("point_id") == pl.col("point_id").min()).filter(
            pl.col("trial") == pl.col("trial").min()
        ).sort("t_s")


def with_legend(figure):
    """Adds a legend above the axes."""
    figure.legend(loc="outside upper left", ncols=5 if figure.get_figwidth() > COLUMN else 2)
    return figure


# %% E1, coexistence: throughput and RTT of the flow groups in each phase, with intervals over trials.
def e1(run):
    rows = run.summary().filter((pl.col("scope") == "group") & (pl.col("point_id") == pl.col("point_id").min()))
    figure, axes = plt.subplots(1, 2, figsize=(TWO_COLUMNS, 2.4))
    for axis, metric, scale, label in [
        (axes[0], "throughput_sum", 1e6, "Throughput (Mbit/s)"),
        (axes[1], "srtt", 1e3, "Mean sRTT (ms)"),
    ]:
        chosen = rows.filter((pl.col("metric") == metric) & (pl.col("stat") == "mean"))
        phases = chosen["phase"].unique(maintain_order=True).to_list()
        groups = chosen["subject"].unique(maintain_order=True).to_list()
        for nth, group in enumerate(groups):
            of = chosen.filter(pl.col("subject") == group)
            at = [phases.index(phase) + (nth - (len(groups) - 1) / 2) * 0.8 / len(groups) for phase in of["phase"]]
            value = of["value"] / scale
            half = ((of["ci_high"] - of["ci_low"]) / 2 / scale).fill_null(0)
            shown = group if axis is axes[0] else None
            axis.bar(at, value, 0.75 / len(groups), yerr=half, label=shown, error_kw={"linewidth": 0.7}, capsize=2)
        axis.set_xticks(range(len(phases)), phases)
        axis.set_ylabel(label)
    return with_legend(figure)


# %% E2, mmWave: throughput, cwnd and smoothed RTT of every flow over time.
def e2(run):
    received, senders = run.first(run.received()), run.first(run.senders())
    figure, axes = plt.subplots(3, 1, figsize=(TWO_COLUMNS, 4), sharex=True)
    for (flow,), rows in received.group_by("flow_id", maintain_order=True):
        axes[0].plot(rows["t_s"], rows["bits_per_second"] / 1e6, linewidth=0.8, label=flow)
    for (_,), rows in senders.group_by("flow_id", maintain_order=True):
        axes[1].plot(rows["t_s"], rows["snd_cwnd_pkts"], linewidth=0.8)
        axes[2].plot(rows["t_s"], rows["rtt_us"] / 1e3, linewidth=0.8)
    for axis, label in zip(axes, ["Throughput (Mbit/s)", "cwnd (packets)", "sRTT (ms)"]):
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
    axes[2].set_xlabel("Time (s)")
    return with_legend(figure)


# %% E3, bufferbloat: RTT of a probe while the queue fills.
def e3(run):
    probes, links = run.first(run.table("probes")), run.first(run.table("qdisc_samples"))
    figure, axes = plt.subplots(2, 1, figsize=(COLUMN, 3.2), sharex=True)
    # Fetches have no RTT.
    for (probe,), rows in probes.drop_nulls("rtt_us").group_by("probe_id", maintain_order=True):
        axes[0].plot(rows["t_s"], rows["rtt_us"] / 1e3, ".", markersize=2, label=probe)
    # The root qdisc includes the backlog of its child queues.
    whole = links.group_by("link", "t_s").agg(pl.col("backlog_bytes").max()).sort("t_s")
    for (link,), rows in whole.group_by("link", maintain_order=True):
        if rows["backlog_bytes"].max() > 0:
            axes[1].plot(rows["t_s"], rows["backlog_bytes"] / 1e3, linewidth=0.8, label=link)
    axes[0].set_ylabel("Probe RTT (ms)")
    axes[1].set_ylabel("Queue (kB)")
    axes[1].set_xlabel("Time (s)")
    for axis in axes:
        axis.set_ylim(bottom=0)
    return with_legend(figure)


# %% E4, L4S: throughput and RTT of each group in the phase in which all run, over the points of the matrix.
def e4(run):
    rows = run.summary().filter((pl.col("scope") == "group") & (pl.col("stat") == "mean"))
    last = rows.group_by("phase").agg(pl.col("subject").n_unique()).sort("subject")["phase"][-1]
    rows = rows.filter(pl.col("phase") == last)
    points = pl.read_parquet(run.path / "points.parquet")
    factors = [name for name in points.columns if name != "point_id"]
    figure, axes = plt.subplots(2, 1, figsize=(COLUMN, 3.4), sharex=True)
    names = [", ".join(str(point[factor]) for factor in factors) or "all" for point in points.iter_rows(named=True)]
    for axis, metric, scale, label in [
        (axes[0], "throughput_sum", 1e6, "Throughput (Mbit/s)"),
        (axes[1], "srtt", 1e3, "Mean sRTT (ms)"),
    ]:
        for (group,), of in rows.filter(pl.col("metric") == metric).group_by("subject", maintain_order=True):
            half = ((of["ci_high"] - of["ci_low"]) / 2 / scale).fill_null(0)
            shown = group if axis is axes[0] else None
            axis.errorbar(of["point_id"], of["value"] / scale, yerr=half, fmt="o", markersize=4, capsize=2, label=shown)
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
    axes[1].margins(x=0.1)
    turned = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if len(names) > 3 else {}
    axes[1].set_xticks(points["point_id"].to_list(), names, **turned)
    return with_legend(figure)


# %% E5, friendliness: the mean operating point of each flow, and the two distributions.
def e5(run):
    senders = run.first(run.senders())
    together = run.together(senders)
    senders = senders.filter(pl.col("phase") == together)
    received = run.first(run.received()).filter(pl.col("phase") == together)
    figure, axes = plt.subplots(1, 3, figsize=(TWO_COLUMNS, 2.4))
    for (flow,), rows in received.group_by("flow_id", maintain_order=True):
        rates = (rows["bits_per_second"] / 1e6).sort()
        srtts = (senders.filter(pl.col("flow_id") == flow)["rtt_us"].drop_nulls() / 1e3).sort()
        axes[0].plot(srtts.mean(), rates.mean(), "o", label=flow)
        for axis, values in zip(axes[1:], [rates, srtts]):
            axis.step(values, [(nth + 1) / len(values) for nth in range(len(values))], where="post")
    # Start at zero and keep markers off the edges.
    axes[0].set(xlabel="Mean sRTT (ms)", ylabel="Throughput (Mbit/s)")
    axes[0].set(xlim=(0, 1.1 * axes[0].dataLim.x1), ylim=(0, 1.1 * axes[0].dataLim.y1))
    axes[1].set(xlabel="Throughput (Mbit/s)", ylabel="Share of samples")
    axes[2].set(xlabel="sRTT (ms)")
    return with_legend(figure)


# %% Select runs: set `RUNS = {"e1": "results/coexistence-…"}`, or use the newest of each document.
FIGURES = {"e1": e1, "e2": e2, "e3": e3, "e4": e4, "e5": e5}
# Plan names of each document; the first with a run is used.
PLANS = {
    "e1": ["coexistence", "coexistence-5v5", "coexistence-10v1", "coexistence-1v1"],
    "e2": ["mmwave", "mmwave-3gbit"],
    "e3": ["bufferbloat"],
    "e4": ["l4s-receivers", "slices", "l4s-sweep", "l4s-dualpi2", "l4s-step"],
    "e5": ["vegas-friendliness", "friendliness", "steady-state"],
}


def newest(results):
    """The newest run of each document in a directory of results directories; a single run is used for all."""
    results = Path(results)
    if (results / "run.json").exists():
        return dict.fromkeys(FIGURES, results)
    runs = {}
    for path in sorted(results.glob("*/run.json"), key=lambda path: path.stat().st_mtime):
        runs[json.loads(path.read_text())["plan_name"]] = path.parent
    named = {figure: [runs[plan] for plan in plans if plan in runs] for figure, plans in PLANS.items()}
    return {figure: found[0] for figure, found in named.items() if found}


RUNS = newest(os.environ.get("CCBENCH_RESULTS", "results"))


# %% Draw all figures: shown in Jupyter, written as PNG otherwise.
def program():
    import argparse

    global RUNS
    plt.switch_backend("Agg")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", metavar="RESULTS|FIGURE=RUN", help="a directory of runs, or the run of a figure")
    parser.add_argument("--only", default=",".join(FIGURES), help="which figures [%(default)s]")
    parser.add_argument("-o", "--output", default=".", help="directory for the pictures")
    args = parser.parse_args()
    for given in args.runs:
        figure, _, run = given.partition("=")
        RUNS = {**RUNS, figure: run} if run and figure in FIGURES else newest(given)
    wanted = args.only.split(",")
    if unknown := set(wanted) - FIGURES.keys():
        parser.error(f"unknown figure {', '.join(sorted(unknown))}; known: {', '.join(FIGURES)}")
    if missing := [name for name in wanted if name not in RUNS]:
        names = [f"{name} ({' or '.join(PLANS[name])})" for name in missing]
        print(f"no run of {', '.join(names)}: left out", file=sys.stderr)
    drawn = 0
    for name in wanted:
        if name in RUNS:
            path = Path(args.output) / f"{name}.png"
            try:
                FIGURES[name](Run(RUNS[name])).savefig(path, dpi=200)
            except LookupError as why:
                print(f"{name}: {why}: left out", file=sys.stderr)
                continue
            print(path, RUNS[name])
            drawn += 1
    return 0 if drawn else 1


if "get_ipython" in globals():
    for name, run in RUNS.items():
        FIGURES[name](Run(run))
    plt.show()
elif __name__ == "__main__":
    sys.exit(program())
