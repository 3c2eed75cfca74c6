#!/usr/bin/env python3
"""Measures the cost and lag of the live page, in rounds of three runs: without a page, with a program that reads its events, and in a browser.

    live.py DIRECTORY-OF-BINARIES [FLOWS] [SECONDS] [ROUNDS]

Prints, for FLOWS flows (100) that are sampled every 100 ms:
- the CPU time of live views in percent of a core (goal 1): of the thread that serves them, and of recording their state, which happens in runs
  without a page, too (`live_record` replays it); also the controller's CPU time with a page and without one
- the lag from the measurement of a row, for each flow's newest row and for the oldest row that an update or a frame adds (goal 250 ms at the 95th
  percentile of the oldest): until a program has read the event, and until the browser has drawn the page. The latter ends when the page's thread
  has painted the frame; the compositor needs some more milliseconds.
Exits with 1 if a goal is missed. Needs root, iperf3 and chromedriver.
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

from pages import Browser

binaries = pathlib.Path(sys.argv[1]).resolve()
flows, seconds, rounds = (int(sys.argv[nth]) if len(sys.argv) > nth else other for nth, other in [(2, 100), (3, 20), (4, 3)])
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
# Notes each frame in which the page shows a new state: when its task has ended, and the update that it shows. The page sets `data-updates` last.
NOTE_FRAMES = """
    const parse = JSON.parse;
    let newest = null;
    JSON.parse = (text) => {
        const value = parse(text);
        if (value?.run) newest = value;
        return value;
    };
    window.drawn = [];
    new MutationObserver(() => {
        const trial = newest?.trial;
        if (!trial) return;
        const { elapsed_s, has_ended } = trial;
        const flows = Object.fromEntries(Object.entries(trial.flows).map(([name, { idle_s }]) => [name, { idle_s }]));
        const painted = new MessageChannel();
        painted.port1.onmessage = () => drawn.push([performance.now(), { trial: { elapsed_s, has_ended, flows } }]);
        painted.port2.postMessage(null);
    }).observe(document.documentElement, { attributeFilter: ["data-updates"] });
"""
SHOW_CHARTS = "document.querySelector('#time-section').scrollIntoView()"
CHARTS_IN_VIEW = """return [...document.querySelectorAll('#panels canvas')].map((canvas) => canvas.getBoundingClientRect())
    .filter((box) => box.bottom > 0 && box.top < innerHeight).length"""


def cpu_s(stat):
    """Returns the user and system time in a stat file of /proc."""
    fields = pathlib.Path(stat).read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def view_thread(pid):
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == "live views":
            return task / "stat"
    sys.exit("the controller has no thread `live views`")


class NoPage:
    """No view of the run."""

    arguments = []

    def open(self, url):
        pass

    def begin(self):
        pass

    def updates(self):
        """Returns each shown update with the time of CLOCK_MONOTONIC from which it was shown."""
        return []


class Reader(NoPage):
    """A program that reads the page's events."""

    arguments = ["--view"]

    def __init__(self):
        self.read = []

    def open(self, url):
        threading.Thread(target=self.follow, args=(url,), daemon=True).start()

    def follow(self, url):
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{url}events") as events:
            for line in events:
                if line.startswith(b"event: end"):
                    break
                if line.startswith(b"data: {"):
                    now = time.monotonic()
                    self.read.append((now, json.loads(line[6:])))

    def updates(self):
        return list(self.read)


class Page(NoPage):
    """The page in a browser, whose window shows charts."""

    arguments = ["--view"]

    def __init__(self, browser):
        self.browser = browser

    def open(self, url):
        self.browser.open(url)
        self.browser.run(NOTE_FRAMES)

    def begin(self):
        self.browser.run(SHOW_CHARTS)

    def updates(self):
        if self.browser.run(CHARTS_IN_VIEW) == 0:
            sys.exit("no chart is in view, so that the page does not draw them")
        offset_s, bound_s = self.browser.clock_offset_s()
        if bound_s > 0.01:
            sys.exit(f"the clock of the page is known only to {1e3 * bound_s:.1f} ms: the machine is too busy")
        return [(now_ms / 1e3 + offset_s, update) for now_ms, update in self.browser.run("return drawn")]


def run(plan, out, state, page):
    """Returns the CPU seconds of the controller and of its thread of views per second of the trial, and the lags of rows until `page` shows them."""
    command = [binaries / "ccbench", "run", plan, "--out", out, *page.arguments]
    log = open(f"{out}.log", "w+", encoding="utf-8")
    controller = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "CCBENCH_STATE": str(state)})
    printed = lambda: pathlib.Path(log.name).read_text(encoding="utf-8")
    is_open = False
    while controller.poll() is None:
        if page.arguments and not is_open and (url := re.search(r"http://127\.0\.0\.1:\d+/[0-9a-f]+/", printed())):
            page.open(url[0])
            is_open = True
        # In the middle of the trial: the start and the end have other costs.
        if any("trial_begin" in journal.read_text() for journal in pathlib.Path(out).glob("*/journal.ndjson")):
            break
        time.sleep(0.05)
    else:
        sys.exit(f"the run ended before its trial began:\n{printed()}")
    time.sleep(4)
    page.begin()
    stats = [f"/proc/{controller.pid}/stat", view_thread(controller.pid)]
    before, began = [cpu_s(stat) for stat in stats], time.monotonic()
    time.sleep(seconds / 2)
    after, ended = [cpu_s(stat) for stat in stats], time.monotonic()
    # Before the run ends, because the page then becomes the report.
    updates = page.updates()
    if controller.wait() != 0:
        sys.exit(printed())
    lines = [json.loads(line) for line in next(out.glob("*/journal.ndjson")).read_text().splitlines()]
    end = next(line for line in lines if line["event"] == "trial_end")
    lags = lags_ms(updates, end["clocks"]["src"]["t0_ns"] / 1e9, began)
    if page.arguments and not lags[0]:
        sys.exit(f"the page had no updates:\n{printed()}")
    return [(b - a) / (ended - began) for a, b in zip(before, after)], lags


def lags_ms(updates, t0_s, began):
    """Returns the lags of each flow's newest row in each update, and of the oldest row that the update adds. Updates before `began` do not count."""
    newest, oldest, last = [], [], {}
    for arrived, update in updates:
        trial = update["trial"]
        if not trial or trial["has_ended"] or not 1 <= trial["elapsed_s"] <= seconds - 1:
            continue
        for name, flow in trial["flows"].items():
            row = t0_s + trial["elapsed_s"] - flow["idle_s"]
            if arrived >= began and name in last and row > last[name]:
                newest.append(1e3 * (arrived - row))
                oldest.append(1e3 * (arrived - min(row, last[name] + SAMPLE_S)))
            last[name] = max(row, last.get(name, row))
    return newest, oldest


def shown(what, values, unit):
    values = sorted(values)
    at = lambda share: values[min(len(values) - 1, int(share * len(values)))]
    print(f"{what}: median {at(0.5):.2f} {unit}, 95 % {at(0.95):.2f} {unit}, largest {values[-1]:.2f} {unit} of {len(values)}")
    return at(0.5), at(0.95)


def recording_pct():
    """Returns the CPU time of recording the state of such a trial, in percent of a core: the median of five replays."""
    command = [binaries / "examples/live_record", str(flows), "60"]
    return sorted(float(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout) for _ in range(5))[2]


with tempfile.TemporaryDirectory() as directory, Browser() as browser:
    root = pathlib.Path(directory)
    plan = root / "plan.toml"
    plan.write_text(PLAN)
    kinds = {"no page": NoPage, "reader": Reader, "browser": lambda: Page(browser)}
    views, controllers, newest, oldest = ({kind: [] for kind in kinds} for _ in range(4))
    for nth in range(rounds):
        for kind, page in kinds.items():
            (controller, view), (of_newest, of_oldest) = run(plan, root / f"{kind.replace(' ', '-')}-{nth}", root / "state", page())
            views[kind].append(100 * view)
            controllers[kind].append(100 * controller)
            newest[kind] += of_newest
            oldest[kind] += of_oldest
    print(f"{flows} flows, {rounds} rounds of three runs of {seconds} s")
    recording = recording_pct()
    print(f"recording the state of live views: {recording:.2f} % of a core")
    missed = []
    for kind in kinds:
        view_pct, _ = shown(f"{kind}: thread of views", views[kind], "% of a core")
        shown(f"{kind}: controller", controllers[kind], "% of a core")
        if kind == "no page":
            continue
        shown(f"{kind}: controller, without a page = 1", [a / b for a, b in zip(controllers[kind], controllers["no page"])], "times")
        shown(f"{kind}: lag of the newest rows", newest[kind], "ms")
        _, lag_ms = shown(f"{kind}: lag of the oldest rows", oldest[kind], "ms")
        cpu_pct = recording + view_pct
        print(f"{kind}: recording and thread of views: {cpu_pct:.2f} % of a core")
        missed += [f"{kind}: CPU {cpu_pct:.2f} % > {CPU_GOAL_PCT} %"] * (cpu_pct > CPU_GOAL_PCT)
        missed += [f"{kind}: lag {lag_ms:.0f} ms > {LAG_GOAL_MS:.0f} ms"] * (lag_ms > LAG_GOAL_MS)
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")
