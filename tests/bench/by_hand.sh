#!/usr/bin/env bash
# Runs the coexistence study as its authors did (two iperf3 servers, `ss | ts` in a loop, iperf3's text cut by line counts, awk) and as
# ccbench does, on the same topology. Prints the study's six columns from both.
# Usage: by_hand.sh DIRECTORY-OF-BINARIES [PHASE-SECONDS] [TRIALS] [CONGESTION-CONTROL]. Needs root and moreutils.
set -euo pipefail
bin=$1 phase=${2:-20} trials=${3:-3} cc=${4:-bbr}
command -v ts > /dev/null || { echo "by_hand: install moreutils (for ts)" >&2; exit 1; }
here=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(mktemp -d)
export CCBENCH_STATE=$dir/state
cd "$dir"
plan=$here/plans/coexistence/1v1.toml
sets=(--set matrix.scheme="$cc" --set repeat="$trials" --set gap=2s)
for i in 0 1 2; do sets+=(--set "phases.$i.length=${phase}s"); done

in_node() { "$bin/ccbench" exec "$1" -- "${@:2}"; }

# A trial without flows holds the topology.
total=$((3 * phase))
{
    sed -n '/^\[nodes\]/,/^\[flows/p' "$plan" | sed '$d'
    printf '[probes.rtt]\nkind = "ping"\nfrom = "src"\nto = "dst"\n'
    printf '[[phases]]\nname = "held"\nlength = "%ss"\n' $((trials * (total + 15) + 60))
} > body.toml
{ printf 'name = "held"\n'; cat body.toml; } > held.toml
"$bin/ccbench" run held.toml > held.out 2>&1 &
held=$!
servers=()
trap 'kill -INT $held "${servers[@]}" 2> /dev/null || true; wait; rm -rf "$dir"' EXIT
for _ in $(seq 100); do
    in_node router tc qdisc show 2> /dev/null | grep -q bfifo && break
    kill -0 $held 2> /dev/null || { cat held.out; exit 1; }
    sleep 0.1
done
to=$(in_node dst ip -4 -o addr show | awk '$2 != "lo" { sub("/.*", "", $4); print $4; exit }')
for port in 5201 5202; do
    "$bin/ccbench" exec dst -- iperf3 -s -i 0.1 -p $port > /dev/null 2>&1 &
    servers+=($!)
done
sleep 1

lines=$((phase * 10 - 1))
for j in $(seq "$trials"); do
    end=$(($(date -u +%s) + total))
    (while [ "$(date -u +%s)" -le $end ]; do
        in_node src ss --no-header -eipn dst "$to" 2> /dev/null | ts '%.s' >> ss-$j.txt
        sleep 0.1
    done) &
    sampler=$!
    (in_node src iperf3 -f m -c "$to" -C "$cc" -P 1 -i 0.1 -t $total | ts '%.s' > iperf-$j.txt) &
    long=$!
    sleep "$phase"
    in_node src iperf3 -f m -c "$to" -C cubic -P 1 -i 0.1 -t "$phase" -p 5202 > /dev/null
    wait $long $sampler

    row=$j
    grep '\[ ' iperf-$j.txt | grep sec | grep -v '0.00-1' | awk '{ print $3","$4","$8","$10 }' \
        | tr -d ']' | sed 's/-/,/g; s/,/ /g' > cut.txt
    for k in 0 1 2; do
        row+=,$(sed "1,$((k * lines))d" cut.txt | head -$lines | awk '{ s += $4; n++ } END { printf "%.2f", s / n }')
    done
    # Data sockets of the first server, not the second's. The study drops the control connection by its descriptor, 3. With iperf3 3.12 it
    # is 4, so as written the script includes the idle control connection in the average.
    for control in 3 4; do
        sed -e "/fd=$control)/d" -e "/$to:5202/d" ss-$j.txt | sed -e ':a; /<->$/ { N; s/<->\n//; ba; }' | grep iperf3 > one.txt
        paste -d, <(awk '{ print $1 }' one.txt) \
            <(grep -oP '\brtt:.*?(\s|$)' one.txt | awk -F '[:,]' '{ print $2 }' | tr -d ' ' | cut -d/ -f1) > srtt.csv
        first=$(head -1 srtt.csv | cut -d, -f1)
        columns=$(for k in 0 1 2; do
            awk -F, -v a="$first" -v p="$phase" -v k=$k '$1 >= a + k * p && (k == 2 || $1 < a + (k + 1) * p) { s += $2; n++ }
                END { printf ",%.2f", s / n }' srtt.csv
        done)
        echo "by hand (control connection is fd=$control),$row$columns"
    done
    sleep 2
done
kill -INT $held "${servers[@]}" 2> /dev/null || true
wait $held || true
unset CCBENCH_STATE
"$bin/ccbench" run "$plan" "${sets[@]}" > ccbench.out 2>&1 || { cat ccbench.out; exit 1; }
grep -E 'trial .*: (ok|degraded|failed)' ccbench.out | sed 's/^/ccbench, /'
cat results/*/six_columns-delay_based.csv
