#!/usr/bin/env bash
# Measures the cost of `sample.acks` in a whole run: the same flow over veth with "off" and with "auto", in pairs, of which every second
# begins with "auto". Prints for each the throughput and the CPU time of both agents in percent of a core, then the median, minimum and
# maximum of the ratios within pairs. Where the CPU is the limit, the CPU time of the BPF programs lowers throughput.
# Usage: acks_ab.sh DIRECTORY-OF-BINARIES [PAIRS] [SECONDS]     (root; iperf3)
set -euo pipefail
bin=$1
pairs=${2:-5}
seconds=${3:-6}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export CCBENCH_STATE=$dir/state
. "$(dirname "$0")/cpu.sh"

plan() {
    cat <<PLAN
name = "acks"
[nodes]
src = {}
dst = {}
[wires]
path = ["src", "dst"]
[flows.one]
from = "src"
to = "dst"
cc = "cubic"
$1
[[phases]]
name = "only"
length = "${seconds}s"
flows = ["one"]
PLAN
}

# one MODE: runs the plan. Mbit/s, and percent of a core of both agents between its second and its last second.
one() {
    local run before after t1 t2
    rm -rf "$dir/results"
    "$bin/ccbench" run "$dir/plan.toml" --set "sample.acks=$1" --json --out "$dir/results" > "$dir/out" 2> "$dir/err" &
    run=$!
    until grep -q trial_start "$dir/out"; do kill -0 "$run" || { cat "$dir/out" "$dir/err" >&2; exit 1; }; sleep 0.05; done
    sleep 1.5
    read -r before _ <<< "$(cpu_ns 'ccbench-agent serve')"; t1=$(date +%s%N)
    sleep $((seconds - 2))
    read -r after _ <<< "$(cpu_ns 'ccbench-agent serve')"; t2=$(date +%s%N)
    # A trial that is not ok (on a busy machine) is measured anyway.
    wait "$run" || [ $? -eq 1 ]
    awk -F, -v spent=$((after - before)) -v ns=$((t2 - t1)) '
    NR == 1 { for (n = 1; n <= NF; n++) at[$n] = n; next }
    $at["scope"] == "group" && $at["metric"] == "throughput_sum" { mbps = $at["value"] / 1e6 }
    END { printf "%.1f %.3f\n", mbps, 100 * spent / ns }' "$dir"/results/*/summary_phase.csv
}

for what in 'as fast as it can' '500 Mbit/s'; do
    rate=''
    [ "$what" = '500 Mbit/s' ] && rate='rate = "500mbit"'
    plan "$rate" > "$dir/plan.toml"
    : > "$dir/pairs"
    for pair in $(seq "$pairs"); do
        if [ $((pair % 2)) -eq 0 ]; then
            auto=$(one auto); off=$(one off)
        else
            off=$(one off); auto=$(one auto)
        fi
        echo "$off $auto" >> "$dir/pairs"
    done
    awk -v what="$what" '
    function middle(of,   n) { n = asort_(of); return of[int((n + 1) / 2)] }
    function asort_(of,   i, j, x, n) {
        n = 0; for (i in of) n++
        for (i = 2; i <= n; i++) { x = of[i]; for (j = i - 1; j > 0 && of[j] > x; j--) of[j + 1] = of[j]; of[j + 1] = x }
        return n
    }
    { off[NR] = $1; cpu_off[NR] = $2; auto[NR] = $3; cpu_auto[NR] = $4; ratio[NR] = $3 / $1; more[NR] = $4 - $2 }
    END {
        n = asort_(ratio); asort_(more)
        printf "%s, %d pairs: %.0f Mbit/s off, %.0f auto, ratio %.3f (%.3f to %.3f)\n", what, n, middle(off), middle(auto),
            ratio[int((n + 1) / 2)], ratio[1], ratio[n]
        printf "    both agents: %.2f %% of a core off, %.2f %% auto, ratio of the medians %.2f; differences %+.2f (%+.2f to %+.2f)\n",
            middle(cpu_off), middle(cpu_auto), middle(cpu_auto) / (middle(cpu_off) > 0 ? middle(cpu_off) : 0.01),
            more[int((n + 1) / 2)], more[1], more[n]
    }' "$dir/pairs"
done
