#!/usr/bin/env bash
# Soak test of the path of `acks` rows from an agent to the tables. Generated rows, at a higher rate than a flow on this machine causes,
# pass the agent's batches and outbox, gRPC and Parquet. Prints the resident memory of agent and controller and the bytes per row on disk,
# and fails if memory grows. The verdict has the rows for which the controller was too slow (acks_lost).
# Usage: ack_soak.sh DIRECTORY-OF-BINARIES [SECONDS] [ROWS-PER-SECOND] [SOCKETS]     (root; iperf3; examples/ack_flood built)
set -euo pipefail
bin=$1
seconds=${2:-600}
rate=${3:-300000}
sockets=${4:-4}

if [ "${CCBENCH_SOAK:-}" != inside ]; then
    CCBENCH_SOAK=inside exec unshare -n "$0" "$bin" "$seconds" "$rate" "$sockets"
fi
. "$(dirname "$0")/children.sh"
export CCBENCH_STATE=$dir/state
ip link set lo up

"$bin/examples/ack_flood" 127.0.0.1:7701 "$rate" "$sockets" 2> "$dir/flood" &
agent=$!
children+=("$agent")
"$bin/ccbench-agent" serve --listen tcp:127.0.0.1:7702 --state-dir "$dir/agent" 2> "$dir/plain" &
children+=("$!")
cat > "$dir/plan.toml" <<PLAN
name = "soak"
[sample]
acks = "every-ack"
[nodes]
src = { agent = "127.0.0.1:7701", address = "127.0.0.1" }
dst = { agent = "127.0.0.1:7702", address = "127.0.0.2" }
[flows.trickle]
from = "src"
to = "dst"
count = $sockets
rate = "1mbit"
[[phases]]
name = "all"
length = "${seconds}s"
flows = ["trickle"]
PLAN
sleep 1
"$bin/ccbench" run "$dir/plan.toml" --out "$dir/results" > "$dir/out" 2>&1 &
controller=$!
children+=("$controller")

rss() { awk '/^VmRSS:/ { print $2 }' "/proc/$1/status" 2>/dev/null || echo 0; }
ticks() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | awk '{ print $12 + $13 }'; }
begin=$SECONDS
printf '%6s %12s %16s %10s %15s\n' s agent_kB controller_kB agent_cpu controller_cpu
hz=$(getconf CLK_TCK)
while kill -0 "$controller" 2>/dev/null; do
    now=$((SECONDS - begin))
    a=$(rss "$agent"); c=$(rss "$controller")
    # The last seconds are the end of the trial.
    [ "$now" -lt "$seconds" ] && echo "$now $a $c" >> "$dir/memory"
    case $now in 10 | 30 | 60 | 120 | 300 | $((seconds - 5)))
        printf '%6d %12d %16d %9.1f%% %14.1f%%\n' "$now" "$a" "$c" \
            "$(awk -v t="$(ticks "$agent")" -v hz="$hz" -v s="$now" 'BEGIN { print 100 * t / hz / s }')" \
            "$(awk -v t="$(ticks "$controller")" -v hz="$hz" -v s="$now" 'BEGIN { print 100 * t / hz / s }')" ;;
    esac
    sleep 1
done
wait "$controller" || { cat "$dir/out" "$dir/flood"; exit 1; }
grep -E 'acks|rows' "$dir/out" || true
bytes=$(cat "$dir"/results/*/tables/acks/*/*/part-*.parquet | wc -c)
awk -v bytes="$bytes" -v offered="$((rate * seconds))" 'BEGIN {
    printf "%.2f GB of acks; %.1f bytes per row if no row was lost (%d rows offered)\n", bytes / 1e9, bytes / offered, offered }'
awk '
{ seconds[NR] = $1; agent[NR] = $2; controller[NR] = $3 }
function most(of, from, to,   n, found) { for (n = from; n <= to; n++) if (of[n] > found) found = of[n]; return found }
function grew(what, of,   quarter, before, after) {
    quarter = int(NR / 4)
    before = most(of, quarter + 1, 2 * quarter); after = most(of, 3 * quarter + 1, NR)
    printf "memory of the %s: at most %d kB in the second quarter, %d kB in the last\n", what, before, after
    # A twentieth plus 8 MB, because resident memory varies with the allocator.
    return after > before * 1.05 + 8192
}
END { bad = grew("agent", agent); bad = grew("controller", controller) || bad; if (bad) print "FAILED: memory grows"; exit bad }
' "$dir/memory"
