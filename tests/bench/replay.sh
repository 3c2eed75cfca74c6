#!/bin/bash
# Measures the scheduling error of a trace's steps with ccbench's kernel backend and with a shell script (read a line, tc, sleep), on an
# idle machine and with an iperf3 flow that keeps the CPUs busy. Prints one line of JSON per run.
#   tests/bench/replay.sh [SECONDS] [STEP_US] [RUNS]         needs root, iproute2, iperf3
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-10} step_us=${2:-10000} runs=${3:-3}
[ "$(id -u)" = 0 ] || { echo "replay.sh: this needs root" >&2; exit 2; }
cargo build --quiet -p ccbench-shaper --example replay
target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
tag=cbr$$
pids=()
cleanup() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for ns in "$tag-a" "$tag-b" "$tag-s"; do ip netns del "$ns" 2>/dev/null || true; done
}
trap cleanup EXIT
for ns in "$tag-a" "$tag-b" "$tag-s"; do ip netns add "$ns"; done
ip link add "${tag}a" netns "$tag-a" type veth peer name "${tag}b" netns "$tag-b"
ip -n "$tag-a" addr add 10.77.0.1/24 dev "${tag}a"; ip -n "$tag-a" link set "${tag}a" up
ip -n "$tag-b" addr add 10.77.0.2/24 dev "${tag}b"; ip -n "$tag-b" link set "${tag}b" up
ip -n "$tag-s" link add s0 type veth peer name s1
ip -n "$tag-s" link set s0 up; ip -n "$tag-s" link set s1 up
tc -n "$tag-s" qdisc add dev s0 root handle 1: htb default 1
tc -n "$tag-s" class add dev s0 parent 1: classid 1:1 htb rate 10mbit quantum 1514

load() {
  ip netns exec "$tag-b" iperf3 -s -1 -p 5399 >/dev/null 2>&1 & pids+=($!)
  sleep 0.5
  ip netns exec "$tag-a" iperf3 -c 10.77.0.2 -p 5399 -t 3600 -P 4 >/dev/null 2>&1 & pids+=($!)
  sleep 1
}

# As scripts do: read a line, run tc, sleep for a relative time. Their error relative to the ideal schedule grows.
shell_loop() {
  ip netns exec "$tag-s" bash -c '
    step_us=$1 count=$2; pause=$(printf "0.%06d" "$step_us"); t0=${EPOCHREALTIME/./}
    for ((i = 0; i < count; i++)); do
      tc class change dev s0 parent 1: classid 1:1 htb rate $((10 + i % 90))mbit quantum 1514
      echo $((${EPOCHREALTIME/./} - t0 - i * step_us))
      sleep "$pause"
    done' _ "$step_us" "$((seconds * 1000000 / step_us))" >"/tmp/$tag.late"
  sort -n "/tmp/$tag.late" | awk -v last="$(tail -1 "/tmp/$tag.late")" -v step="$step_us" '
    { late[NR] = $1 }
    function at(p) { i = int(1 + (NR - 1) * p); return late[i] }
    END { printf "{\"tool\":\"shell\",\"step_us\":%d,\"steps\":%d,\"late_us\":{\"p50\":%d,\"p90\":%d,\"p99\":%d,\"max\":%d},\"last_step_late_us\":%d", step, NR, at(.5), at(.9), at(.99), at(1), last }'
  # The error of each interval, without the drift.
  awk -v step="$step_us" 'NR > 1 { d = $1 - before; print d < 0 ? -d : d } { before = $1 }' "/tmp/$tag.late" | sort -n |
    awk '{ off[NR] = $1 } END { printf ",\"interval_error_us\":{\"p50\":%d,\"p99\":%d}}\n", off[int(1 + (NR - 1) * .5)], off[int(1 + (NR - 1) * .99)] }'
  rm -f "/tmp/$tag.late"
}

for condition in idle loaded; do
  [ "$condition" = idle ] || load
  for ((run = 1; run <= runs; run++)); do
    echo "$condition $("$target/debug/examples/replay" "$seconds" "$step_us")"
  done
  echo "$condition $(shell_loop)"
done
