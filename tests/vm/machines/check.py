"""Checks what a run has recorded: check.py RUN ATTEMPTS KERNEL...

RUN: its results directory. Every trial must include all three machines and be ok or degraded: emulated machines share CPUs, so their
timing is not judged here. KERNEL...: the kernels of `src`, trial by trial. ATTEMPTS: how often a trial was begun.
"""

import json
import pathlib
import sys


def main(run, attempts, *kernels):
    run = pathlib.Path(run)
    record = json.loads((run / "run.json").read_text())
    lines = [json.loads(line) for line in (run / "journal.ndjson").read_text().splitlines()]
    begun = sum(line["event"] == "trial_begin" for line in lines)
    trials = sorted(record["trials"], key=lambda trial: trial["epoch"])
    for trial in trials:
        reasons = "; ".join(f"{reason['code']}: {reason['message']}" for reason in trial["reasons"])
        print(f"point {trial['point_id']}: {trial['status']} {reasons}")
    wrong = []
    if record["status"] != "complete":
        wrong.append(f"the run is {record['status']}")
    if begun != int(attempts):
        wrong.append(f"{begun} attempts, not {attempts}")
    if any(trial["status"] not in ("ok", "degraded") for trial in trials):
        wrong.append("a trial is neither ok nor degraded")
    found = [trial["boots"]["src"]["kernel"] for trial in trials]
    if found != list(kernels):
        wrong.append(f"src ran {found}, not {list(kernels)}")
    boots = {node: [trial["boots"][node]["boot_id"] for trial in trials] for node in ("src", "router", "dst")}
    changed = [node for node, ids in boots.items() if len(set(ids)) != (len(set(kernels)) if node == "src" else 1)]
    if changed:
        wrong.append(f"boots: {boots}")
    if len({ids[0] for ids in boots.values()}) != 3:
        wrong.append(f"the machines are not three: {boots}")
    if wrong:
        sys.exit(f"FAIL {run}: " + "; ".join(wrong))


if __name__ == "__main__":
    main(*sys.argv[1:])
