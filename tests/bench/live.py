#!/usr/bin/env python3
"""Measures the cost and lag of the live page, in alternating runs with and without a page that follows them.

    live.py DIRECTORY-OF-BINARIES [FLOWS] [SECONDS] [PAIRS]

Prints, for FLOWS flows (100) that are sampled every 100 ms: the CPU time of the thread that serves views, in percent of a core (goal 1), the
controller's CPU time with and without a page, and the lag: the time from the measurement of a row until the page has it, for each flow's newest row
and for the oldest row that an update adds (goal 250 ms at the 95th percentile). Exits with 1 if a goal is missed. Needs root and iperf3.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

binaries = pathlib.Path(sys.argv[1]).resolve()
flows, seconds, pairs = (int(sys.argv[nth]) if len(sys.argv) > nth else other for nth, other in [(2, 100), (3, 20), (4, 3)])
SAMPLE_S = 0.1
CPU_GOAL_PCT, LAG_GOAL_MS = 1.0, 250.0
PLAN = f"""name = "live"
[nodes]
src = {{}}
router = {{}}
dst = {{}}
[wires]
path = ["src", "router", "dst"]
[links.bottleneck]
node = "router"
toward = "dst"
rate = "100mbit"
queue = {{ kind = "bfifo", limit = "187500B" }}
[flows.many]
from = "src"
to = "dst"
cc = "cubic"
count = {flows}
[[phases]]
name = "only"
length = "{seconds}s"
flows = ["many"]
"""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(stat):
    """Returns the user and system time in a stat file of /proc."""
    fields = pathlib.Path(stat).read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def view_thread(pid):
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == "live views":
            return task / "stat"
    sys.exit("the controller has no thread `live views`")


def follow(url, updates):
    """Reads the page's events. Appends each update with its arrival time (CLOCK_MONOTONIC)."""
    with urllib.request.urlopen(f"{url}events") as events:
        for line in events:
            if line.startswith(b"event: end"):
                break
            if line.startswith(b"data: {"):
                now = time.monotonic()
                updates.append((now, json.loads(line[6:])))


def run(plan, out, state, with_page):
    """Returns the CPU seconds of the controller and of its thread of views per second of the trial, and the page's updates."""
    command = [binaries / "ccbench", "run", plan, "--out", out] + (["--view"] if with_page else [])
    log = open(f"{out}.log", "w+", encoding="utf-8")
    controller = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "CCBENCH_STATE": str(state)})
    updates, page = [], None
    while controller.poll() is None:
        text = pathlib.Path(log.name).read_text(encoding="utf-8")
        if with_page and page is None and (url := re.search(r"http://127\.0\.0\.1:\d+/[0-9a-f]+/", text)):
            page = threading.Thread(target=follow, args=(url[0], updates), daemon=True)
            page.start()
        # In the middle of the trial: the start and the end have other costs.
        if any("trial_begin" in journal.read_text() for journal in pathlib.Path(out).glob("*/journal.ndjson")):
            break
        time.sleep(0.05)
    else:
        sys.exit(f"the run ended before its trial began:\n{pathlib.Path(log.name).read_text()}")
    time.sleep(4)
    stats = [f"/proc/{controller.pid}/stat", view_thread(controller.pid)]
    before, began = [cpu_s(stat) for stat in stats], time.monotonic()
    time.sleep(seconds / 2)
    after, ended = [cpu_s(stat) for stat in stats], time.monotonic()
    if controller.wait() != 0:
        sys.exit(pathlib.Path(log.name).read_text())
    if page:
        page.join(10)
    if with_page and not updates:
        sys.exit(f"the page had no updates:\n{pathlib.Path(log.name).read_text()}")
    return [(b - a) / (ended - began) for a, b in zip(before, after)], updates


def lags_ms(updates, t0_s):
    """Returns the lags of each flow's newest row in each update, and of the oldest row that the update adds."""
    newest, oldest, last = [], [], {}
    for arrived, update in updates:
        trial = update["trial"]
        if not trial or trial["has_ended"] or not 1 <= trial["elapsed_s"] <= seconds - 1:
            continue
        for name, flow in trial["flows"].items():
            row = t0_s + trial["elapsed_s"] - flow["idle_s"]
            if name in last and row > last[name]:
                newest.append(1e3 * (arrived - row))
                oldest.append(1e3 * (arrived - min(row, last[name] + SAMPLE_S)))
            last[name] = max(row, last.get(name, row))
    return newest, oldest


def shown(what, values, unit):
    values = sorted(values)
    at = lambda share: values[min(len(values) - 1, int(share * len(values)))]
    print(f"{what}: median {at(0.5):.2f} {unit}, 95 % {at(0.95):.2f} {unit}, largest {values[-1]:.2f} {unit} of {len(values)}")
    return at(0.5), at(0.95)


with tempfile.TemporaryDirectory() as directory:
    root = pathlib.Path(directory)
    plan = root / "plan.toml"
    plan.write_text(PLAN)
    views, ratios, newest, oldest = [], [], [], []
    for nth in range(pairs):
        (without, _), _ = run(plan, root / f"without-{nth}", root / "state", False)
        out = root / f"with-{nth}"
        (controller, view), updates = run(plan, out, root / "state", True)
        views.append(100 * view)
        ratios.append(controller / without)
        lines = [json.loads(line) for line in next(out.glob("*/journal.ndjson")).read_text().splitlines()]
        end = next(line for line in lines if line["event"] == "trial_end")
        for all_lags, own in zip((newest, oldest), lags_ms(updates, end["clocks"]["src"]["t0_ns"] / 1e9)):
            all_lags += own
    print(f"{flows} flows, {pairs} pairs of runs of {seconds} s")
    cpu_pct, _ = shown("thread of views", views, "% of a core")
    shown("controller with a page, without it = 1", ratios, "times")
    shown("lag of the newest rows", newest, "ms")
    _, lag_ms = shown("lag of the oldest rows", oldest, "ms")
    missed = [f"CPU {cpu_pct:.2f} % > {CPU_GOAL_PCT} %"] * (cpu_pct > CPU_GOAL_PCT) + [f"lag {lag_ms:.0f} ms > {LAG_GOAL_MS:.0f} ms"] * (lag_ms > LAG_GOAL_MS)
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")
