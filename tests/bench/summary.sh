#!/usr/bin/env bash
# Measures time and memory of `ccbench summarize` for a number of samples, then time and size of the report. Needs release builds. Memory is
# bounded by the larger of 4 million samples and one trial.
# Usage: summary.sh DIRECTORY-OF-BINARIES [SAMPLES] [TRIALS]; DIRECTORY also holds examples/many_samples. Needs about 5 GB per 100 million.
set -euo pipefail
bin=$1 samples=${2:-100000000} trials=${3:-20}
dir=$(mktemp -d -p "${TMPDIR:-/var/tmp}")
trap 'rm -rf "$dir"' EXIT
begin=$(date +%s)
run=$("$bin/examples/many_samples" "$dir" "$samples" "$trials")
echo "$samples samples in $trials trials: made in $(($(date +%s) - begin)) s, $(du -sh "$run" | cut -f1)"
measured() {
    local what=$1; shift
    python3 - "$what" "$@" << 'PY'
import resource, subprocess, sys, time
begin = time.monotonic()
subprocess.run(sys.argv[2:], stdout=subprocess.DEVNULL, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(f"{sys.argv[1]}: {time.monotonic() - begin:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of CPU, {used.ru_maxrss / 2**20:.2f} GiB")
PY
}
measured summarize "$bin/ccbench" summarize "$run"
measured report "$bin/ccbench" report "$run" -o "$dir/report.html"
echo "report: $(du -h "$dir/report.html" | cut -f1)"
# Also how smooth the report is, if there is a browser.
if command -v chromedriver > /dev/null; then
    python3 "$(dirname "$0")/report_zoom.py" "$dir/report.html" 10 "${REPORT_LIMIT_MS:-inf}"
else
    echo "report: not opened: chromedriver is missing (scripts/setup.sh --test installs it)"
fi
