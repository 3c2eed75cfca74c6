#!/usr/bin/env bash
# Measures wall time per trial of a simulated sweep: CUBIC beside Reno over 100 Mbit/s, SIDE delays times SIDE queue limits, with tables and
# summary; then time and memory of summary, report and heatmap. Needs a release build. 10 000 trials (SIDE 100) take about half an hour on
# two CPUs. Usage: sweep.sh DIRECTORY-OF-BINARIES [SIDE] [SECONDS-OF-A-TRIAL]
set -euo pipefail
bin=$1 side=${2:-10} seconds=${3:-60}
dir=$(mktemp -d -p "${TMPDIR:-/var/tmp}")
trap 'rm -rf "$dir"' EXIT
trials=$((side * side))

cat > "$dir/plan.toml" << PLAN
name = "sweep"
[nodes]
src = {}
router = {}
dst = {}
[wires]
path = ["src", "router", "dst"]
[links.bottleneck]
node = "router"
toward = "dst"
rate = "100mbit"
queue = { kind = "pfifo", limit = "100p" }
backend = "userspace"
[links.back]
node = "router"
toward = "src"
delay = "20ms"
backend = "userspace"
[flows.first]
from = "src"
to = "dst"
cc = "cubic"
[flows.second]
from = "src"
to = "dst"
cc = "reno"
[[phases]]
name = "only"
length = "${seconds}s"
flows = ["first", "second"]
[matrix]
"links.back.delay" = [$(seq -f '"%gms"' -s ', ' 10 $((side + 9)))]
"links.bottleneck.queue.limit" = [$(seq -f '"%gp"' -s ', ' 100 10 $((90 + side * 10)))]
PLAN

measured() {
    local what=$1; shift
    python3 - "$what" "$trials" "$@" << 'PY'
import resource, subprocess, sys, time
begin = time.monotonic()
subprocess.run(sys.argv[3:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
wall = time.monotonic() - begin
used = resource.getrusage(resource.RUSAGE_CHILDREN)
cpu = used.ru_utime + used.ru_stime
print(f"{sys.argv[1]}: {wall:.1f} s, {wall / int(sys.argv[2]):.4f} s per trial, {cpu:.1f} s of CPU, {used.ru_maxrss / 2**20:.2f} GiB")
PY
}
echo "$trials trials of $seconds s"
measured run "$bin/ccbench" run "$dir/plan.toml" --sim --out "$dir/results"
run=$(echo "$dir"/results/*)
measured summarize "$bin/ccbench" summarize "$run"
measured report "$bin/ccbench" report "$run" -o "$dir/report.html"
measured heatmap "$bin/ccbench" plot "$run" --kind heatmap --output "$dir/figures"
echo "results: $(du -sh "$run" | cut -f1), report: $(du -h "$dir/report.html" | cut -f1)"
