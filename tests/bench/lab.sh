#!/usr/bin/env bash
# Measures the lab's engine uml against its goals: wall time, and the context switches of the host, also per second of the guest's time, as
# the difference between a long and a short trial. Usage: lab.sh PROGRAMS DIRECTORY [CASE ...]
#   PROGRAMS   has the programs ccbench and ccbench-agent, with a built kernel. A release build is faster
#   DIRECTORY  gets the results, and one line for each case in lab.ndjson. Cases that are already there are not measured again
#   CASE       one | three | cheap | sweep | kernel | userspace (default: these), tenth, build
# `tenth` runs one of the ten trials of each point of l4s_sweep, two hours of guest time, and estimates the whole. `build` builds both
# kernels from scratch. Results are for a machine that is otherwise idle. Exits with 1 if a goal is missed.
set -euo pipefail
export LC_ALL=C
[ $# -ge 2 ] || {
    echo "usage: lab.sh PROGRAMS DIRECTORY [CASE ...]" >&2
    exit 2
}
programs=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
shift 2
cases=("$@")
[ ${#cases[@]} -gt 0 ] || cases=(one three cheap sweep kernel userspace)
plans=$(cd "$(dirname "$0")/../../plans" && pwd)
ccbench=$programs/ccbench
lab=(--lab --engine uml --out "$out/results")

# Runs a command. Appends a line with its wall time, and the CPU time and context switches of all its processes.
measure() { # NAME COMMAND...
    python3 - "$out/lab.ndjson" "$@" <<'END_OF_MEASURE'
import json, pathlib, resource, subprocess, sys, time

file, name, *command = sys.argv[1:]
file = pathlib.Path(file)
if file.exists() and any(json.loads(line)["case"] == name for line in file.read_text().splitlines()):
    sys.exit()
begin = time.monotonic()
done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
wall = time.monotonic() - begin
# 4: a claim does not hold.
if done.returncode not in (0, 4):
    sys.exit(f"{name}: exit code {done.returncode}\n{done.stderr[-2000:]}")
used = resource.getrusage(resource.RUSAGE_CHILDREN)
line = {"case": name, "wall_s": wall, "cpu_s": used.ru_utime + used.ru_stime, "switches": used.ru_nvcsw + used.ru_nivcsw}
with open(file, "a") as lines:
    print(json.dumps(line), file=lines)
print(f"{name}: {wall:.1f} s", flush=True)
END_OF_MEASURE
}

# Two flows over 100 Mbit/s for this many seconds, on links of this backend.
two_flows() { # BACKEND SECONDS
    sed -e 's/^length = "6s"/length = "'"$2"'s"/' "$plans/quickstart.toml" >"$out/plan-$1-$2.toml"
    measure "$1-$2" taskset -c "$cpu" "$ccbench" run "$out/plan-$1-$2.toml" "${lab[@]}" --jobs 1 --set repeat=1 \
        --set 'phases.0.flows=["first", "second"]' --set 'phases.2.flows=["first", "second"]' \
        --set "links.bottleneck.backend=\"$1\"" --set "links.delay.backend=\"$1\""
}

# The first of the CPUs that this process may use.
mapfile -t cpus < <(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0)), sep="\n")')
cpu=${cpus[0]}
for case in "${cases[@]}"; do
    case $case in
    one) measure one taskset -c "$cpu" "$ccbench" run "$plans/quickstart.toml" "${lab[@]}" --jobs 1 --set repeat=1 ;;
    three) measure three taskset -c "$cpu,${cpus[1]-$cpu}" "$ccbench" run "$plans/quickstart.toml" "${lab[@]}" --jobs 2 ;;
    cheap) measure cheap "$ccbench" run "$plans/lab/blockages.toml" "${lab[@]}" --set matrix.mode=cheap ;;
    sweep) measure sweep "$ccbench" reproduce l4s_sweep --quick "${lab[@]}" ;;
    tenth) measure tenth "$ccbench" reproduce l4s_sweep --set repeat=1 "${lab[@]}" ;;
    kernel | userspace)
        two_flows "$case" 4
        two_flows "$case" 14
        ;;
    build)
        rm -rf "$out/cache"
        measure build env XDG_CACHE_HOME="$out/cache" "$ccbench" lab build
        rm -rf "$out/cache"
        ;;
    *)
        echo "lab: there is no case $case" >&2
        exit 2
        ;;
    esac
done

python3 - "$out/lab.ndjson" <<'END_OF_TABLE'
import json, sys

with open(sys.argv[1]) as lines:
    measured = {one["case"]: one for one in map(json.loads, lines)}
missed = False
print("\n| case | wall time | goal | CPU time | context switches |\n|---|---|---|---|---|")


def row(name, wall, goal, cpu, switches):
    global missed
    missed |= goal is not None and wall > goal
    print(f"| {name} | {wall:.3g} s | {'' if goal is None else f'{goal} s'} | {cpu:.3g} s | {switches:,.0f} |")


wholes = {
    "one": ("quickstart, one trial (18 s) on one core", 5),
    "three": ("its three trials on two cores", 8),
    "cheap": ("20 s at 3 Gbit/s, `cheap`", 5),
    "sweep": ("`l4s_sweep --quick`", 60),
    "tenth": ("one trial of each point of `l4s_sweep`", None),
    "build": ("both kernels, from nothing", 1200),
}
for case, (name, goal) in wholes.items():
    if one := measured.get(case):
        row(name, one["wall_s"], goal, one["cpu_s"], one["switches"])
for backend in ("kernel", "userspace"):
    short, long = measured.get(f"{backend}-4"), measured.get(f"{backend}-14")
    if short and long:
        # Three phases, each ten seconds longer.
        wall, cpu, switches = ((long[key] - short[key]) / 30 for key in ("wall_s", "cpu_s", "switches"))
        goal = 0.15 if backend == "kernel" else None
        row(f"a guest second of two flows over 100 Mbit/s, {backend} links", wall, goal, cpu, switches)
if one := measured.get("tenth"):
    print(f"\nThe whole l4s_sweep takes about {one['wall_s'] * 10 / 3600:.1f} hours: ten times its measured tenth ({one['wall_s'] / 60:.0f} minutes).")
sys.exit(1 if missed else 0)
END_OF_TABLE
