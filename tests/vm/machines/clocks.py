"""Checks what a run says about clocks against another measurement.

clocks.py measure FILE NAME...          measures the clocks of machines through their serial ports, and adds the offsets to FILE
clocks.py check FILE RUN EVENTS NAME    checks a run of one trial between two measurements, in which the clock of NAME was set by a day.
                                        EVENTS: its table `events`, as CSV

An offset is UTC of this machine minus CLOCK_MONOTONIC of the other one, in nanoseconds. /proc/uptime, which does not run apart from
CLOCK_MONOTONIC on a machine that was not suspended, has a resolution of 10 ms. A measurement is a range that must contain the offset; its
width is the time of the command and this resolution.
"""

import csv
import json
import pathlib
import sys
import time

import command

SECOND_NS = 1_000_000_000
RESOLUTION_NS = 10_000_000
# A command that was fast narrows the range.
SAMPLES = 8
# The planned length of the trial, and how late a node may note its end.
LENGTH_S, LATE_S = 30, 5


def measure(name):
    """Returns the narrowest range of the offset of a machine."""
    ranges = []
    for _ in range(SAMPLES):
        before_ns = time.time_ns()
        status, text = command.run(f"{name}.commands", "cat /proc/uptime")
        after_ns = time.time_ns()
        if status != 0:
            sys.exit(f"FAIL {name}: cat /proc/uptime: {text}")
        uptime_ns = round(float(text.split()[0]) * SECOND_NS)
        ranges.append((before_ns - uptime_ns - RESOLUTION_NS, after_ns - uptime_ns))
    return min(ranges, key=lambda found: found[1] - found[0])


def add(file, names):
    file = pathlib.Path(file)
    measured = json.loads(file.read_text()) if file.exists() else {name: [] for name in names}
    for name in names:
        measured[name].append(measure(name))
    file.write_text(json.dumps(measured))


def check(file, run, events, stepped):
    measured = json.loads(pathlib.Path(file).read_text())
    record = json.loads((pathlib.Path(run) / "run.json").read_text())
    [trial] = record["trials"]
    wrong = []
    for name, ranges in measured.items():
        clock = trial["clocks"][name]
        offset_ns, bound_ns = clock["realtime_offset_ns"], clock["error_bound_ns"]
        low_ns, high_ns = min(low for low, _ in ranges), max(high for _, high in ranges)
        print(f"{name}: its bound is {bound_ns / 1e6:.3f} ms, the other measurement has {(high_ns - low_ns) / 1e6:.0f} ms")
        if not low_ns - bound_ns <= offset_ns <= high_ns + bound_ns:
            wrong.append(f"{name}: the offset {offset_ns} ± {bound_ns} ns is outside of {low_ns} to {high_ns}")
    if not any(reason["code"] == "clock_step" for reason in trial["reasons"]):
        wrong.append(f"no reason says that a clock was set: {trial['reasons']}")
    with open(events, newline="") as rows:
        rows = list(csv.DictReader(rows))
    if not any(row["kind"] == "clock_step" and row["node"] == stepped for row in rows):
        wrong.append(f"no event of {stepped} says that its clock was set")
    ends = {row["node"]: float(row["t_s"]) for row in rows if row["kind"] == "trial_end"}
    print(f"the trial ended after {ends} s")
    if set(ends) != set(measured):
        wrong.append(f"the trial has not ended everywhere: {ends}")
    if any(not LENGTH_S <= end_s <= LENGTH_S + LATE_S for end_s in ends.values()):
        wrong.append(f"the trial had {LENGTH_S} s and ended after {ends}")
    if wrong:
        sys.exit(f"FAIL {run}: " + "; ".join(wrong))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["measure", file, *names]:
            add(file, names)
        case ["check", file, run, events, stepped]:
            check(file, run, events, stepped)
        case _:
            sys.exit(__doc__)
