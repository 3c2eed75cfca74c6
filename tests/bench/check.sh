#!/usr/bin/env bash
# Measures wall time and memory of `ccbench check` for the 10 000 points of plans/sweeps/who-wins.toml: the minimum of RUNS, because other
# load only adds. Needs a release build. Usage: check.sh DIRECTORY-OF-BINARIES [RUNS]
set -euo pipefail
plan=$(dirname "$0")/../../plans/sweeps/who-wins.toml
python3 - "$1/ccbench" "$plan" "${2:-5}" << 'PY'
import resource, subprocess, sys, time

program, plan, runs = sys.argv[1], sys.argv[2], int(sys.argv[3])
for arguments in (["check", plan, "--sim"], ["check", plan]):
    times = []
    for _ in range(runs):
        begin = time.monotonic()
        subprocess.run([program, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        times.append(time.monotonic() - begin)
    print(f"{' '.join(arguments)}: {min(times):.2f} to {max(times):.2f} s")
print(f"at most {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:.0f} MiB")
PY
