#!/usr/bin/env bash
# Measures the overhead of ccbench: time from command to first data packet, time per trial in addition to its length, and CPU time of
# controller and agents with 10 flows sampled every 100 ms. Usage: overhead.sh DIRECTORY-OF-BINARIES
set -euo pipefail
bin=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export CCBENCH_STATE=$dir/state

cat > "$dir/plan.toml" <<'PLAN'
name = "overhead"
repeat = 3
[nodes]
src = {}
router = {}
emulator = {}
dst = {}
[wires]
path = ["src", "router", "emulator", "dst"]
[links.bottleneck]
node = "router"
toward = "dst"
rate = "100mbit"
queue = { kind = "bfifo", limit = "187500B" }
[links.delay]
node = "emulator"
toward = "dst"
delay = "10ms"
[flows.ten]
from = "src"
to = "dst"
cc = "cubic"
count = 10
[[phases]]
name = "only"
length = "20s"
flows = ["ten"]
PLAN

. "$(dirname "$0")/cpu.sh"

began_ns=$(date +%s%N)
"$bin/ccbench" run "$dir/plan.toml" --json --out "$dir/results" > "$dir/out" 2> "$dir/err" &
run=$!
sleep 8
read -r control1 path1 <<< "$(cpu_ns 'ccbench run|ccbench-agent (serve|testbed)')"; t1=$(date +%s%N)
sleep 10
read -r control2 path2 <<< "$(cpu_ns 'ccbench run|ccbench-agent (serve|testbed)')"; t2=$(date +%s%N)
wait "$run" || { cat "$dir/out" "$dir/err"; exit 1; }
ended_ns=$(date +%s%N)

awk -v c=$((control2 - control1)) -v p=$((path2 - path1)) -v ns=$((t2 - t1)) 'BEGIN {
    printf "controller and four agents, 10 flows at 100 ms: %.1f %% of one core (goal 10); packet path of the userspace delay: %.1f %%\n", 100 * c / ns, 100 * p / ns
}'
awk -v ns=$((ended_ns - began_ns)) 'BEGIN { s = ns / 1e9; printf "3 trials of 20 s took %.2f s: %.2f s per trial beyond its length (goal 2)\n", s, (s - 60) / 3 }'
# t0_ns of the first trial: the only 19-digit number that is UTC nanoseconds, last but one column.
t0=$(grep -oE '[0-9]{19}' <<< "$(head -2 "$dir"/results/*/trials.csv | tail -1)" | tail -1)
awk -v a="$began_ns" -v b="$t0" 'BEGIN { printf "from the command to the first flow'"'"'s start: %.2f s (goal 2)\n", (b - a) / 1e9 }'
grep '"trial_end"' "$dir/out"
