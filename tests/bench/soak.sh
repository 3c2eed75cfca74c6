#!/usr/bin/env bash
# Soak test of `ccbench link`: four TCP flows pass through it between two namespaces. Samples the link's memory and counters every second,
# prints a table, and fails if memory grows or if the link's virtual clock drifts from the real one. The drift compares bytes sent with rate
# × time, in the median second that ended with a queue, and over the longest run of full seconds (to 0.05 %; in other seconds, the senders
# lacked CPU time or were recovering from losses, and left the queue empty). Also fails if the scheduling error was too large to judge the
# clock.
# Usage: soak.sh DIRECTORY-OF-BINARIES [SECONDS] [RATE in Mbit/s]      (root; iperf3, iproute2)
set -euo pipefail
bin=$1
seconds=${2:-120}
rate=${3:-500}

if [ "${CCBENCH_SOAK:-}" != inside ]; then
    CCBENCH_SOAK=inside exec unshare -n "$0" "$bin" "$seconds" "$rate"
fi

. "$(dirname "$0")/children.sh"

ip link set lo up
for side in left right; do
    unshare -n sleep infinity &
    children+=($!)
    declare "$side=$!"
done
own=$(readlink /proc/self/ns/net)
for pid in "$left" "$right"; do
    until [ "$(readlink "/proc/$pid/ns/net")" != "$own" ]; do sleep 0.05; done
done
host=0
for pid in "$left" "$right"; do
    host=$((host + 1))
    ip link add "soak$host" type veth peer name end netns "$pid"
    ip link set "soak$host" up
    nsenter -t "$pid" -n ip addr add "10.9.0.$host/24" dev end
    nsenter -t "$pid" -n ip link set end up
    nsenter -t "$pid" -n ip link set lo up
done

agent=$bin/ccbench-agent
: > "$dir/link"
"$agent" link --left soak1 --right soak2 --rate "${rate}mbit" --delay 5ms --queue 20ms --up-rate none \
    --stats-json "$dir/stats" --for "$((seconds + 5))s" ${SOAK_FLAGS:-} 2> "$dir/link" &
link=$!
children+=("$link")
until grep -q '^up (' "$dir/link"; do
    kill -0 "$link" || { cat "$dir/link"; exit 1; }
    sleep 0.05
done
nsenter -t "$right" -n iperf3 -s -1 > "$dir/server" 2>&1 &
children+=($!)
sleep 0.5
nsenter -t "$left" -n iperf3 -c 10.9.0.2 -P 4 -C cubic -t "$seconds" \
    > "$dir/client" 2>&1 &
children+=($!)

while kill -0 "$link" 2>/dev/null; do
    awk '/^VmRSS:/ { rss = $2 } /^VmData:/ { data = $2 } END { if (data) print rss, data }' \
        "/proc/$link/status" >> "$dir/memory" 2>/dev/null || true
    sleep 1
done
wait "$link" || { cat "$dir/link"; exit 1; }
sed -n '/scheduling error/p;/^down (.*dropped/p;/^up (.*dropped/p' "$dir/link"

# One line per second: time, bytes, drops, queue, p50, p99, max, late; then the sums and the verdict.
grep '"direction":"down"' "$dir/stats" | grep -v '"final"' | awk -v rate="$rate" -v file="$dir/memory" -v seconds="$seconds" '
function get(key,   at, rest) {
    at = index($0, "\"" key "\":")
    if (!at) return ""
    rest = substr($0, at + length(key) + 3)
    sub(/[,}].*/, "", rest)
    return rest
}
function most(of, from, to,   n, found) {
    for (n = from; n <= to; n++) if (of[n] > found) found = of[n]
    return found + 0
}
function median(of, count,   n, at, value) {
    for (n = 2; n <= count; n++) {
        value = of[n]
        for (at = n - 1; at >= 1 && of[at] > value; at--) of[at + 1] = of[at]
        of[at + 1] = value
    }
    return of[int((count + 1) / 2)] + 0
}
function grew(what, of,   quarter, before, after) {
    quarter = int(samples / 4)
    before = most(of, quarter + 1, 2 * quarter); after = most(of, 3 * quarter + 1, samples)
    printf "memory %s: at most %d kB in the second quarter, %d kB in the last\n", what, before, after
    return after > before + 256
}
BEGIN {
    while ((getline line < file) > 0) { split(line, two, " "); resident[++samples] = two[1]; reserved[samples] = two[2] }
    every = int(seconds / 12); if (every < 1) every = 1
    printf "%7s %11s %8s %9s %8s %8s %8s %7s %10s\n", "s", "Mbit/s", "drops", "queue us", "p50 us", "p99 us", "max us", "late", "RSS kB"
}
{
    t = get("t_s"); long = get("seconds"); bytes = get("bytes"); drops = get("drops_pkts")
    late += get("late_pkts")
    if (NR % every == 0)
        printf "%7.0f %11.2f %8d %9s %8s %8s %8s %7d %10d\n", t, bytes * 8 / long / 1e6, drops, get("queue_delay_us"),
            get("scheduling_error_p50_us"), get("scheduling_error_p99_us"), get("scheduling_error_max_us"), late, resident[NR < samples ? NR : samples]
    ahead_now = bytes * 8 / rate / 1e6 - long
    if (get("queue_bytes") > 0) off[++queued] = ahead_now / long
    if (ahead_now > -0.0005 * long) { busy += long; ahead += ahead_now; full++ } else { busy = 0; ahead = 0 }
    if (busy > longest) { longest = busy; drift = ahead }
    # A window of one second may begin or end in the middle of a packet, or with a late one.
    latest = get("scheduling_error_max_us") / 1e6; late_p99 = get("scheduling_error_p99_us") + 0
    if (ahead_now > 1e-3 + latest) over++
}
END {
    bad = 0
    if (grew("reserved", reserved)) { print "FAILED: memory grows"; bad = 1 }
    # Memory reserved at the start is touched bit by bit. After ten minutes, all of it has been touched.
    if (grew("resident", resident) && seconds >= 600) { print "FAILED: memory grows"; bad = 1 }
    printf "clock: the median of %d s with a queue is %+.1f ppm off; over the longest stretch with a full link, %.0f s, it is %+.3f ms (%+.1f ppm) off\n",
        queued, median(off, queued) * 1e6, longest, drift * 1e3, longest ? drift / longest * 1e6 : 0
    if (queued < 5) { print "FAILED: the senders could not fill the link, so its clock cannot be judged"; bad = 1 }
    if (late_p99 > 2000) {
        printf "FAILED: the CPUs were busy with other processes (scheduling error p99 %.1f ms), so the clock cannot be judged\n", late_p99 / 1e3
        exit 1
    }
    if (median(off, queued) > 200e-6 || median(off, queued) < -200e-6) { print "FAILED: the clock drifts"; bad = 1 }
    if (over) { printf "FAILED: the link passed more than its rate in %d s\n", over; bad = 1 }
    limit = 2e-3 + latest + 20e-6 * longest
    if (drift > limit || (longest >= 60 && drift < -limit - 100e-6 * longest)) { print "FAILED: the clock drifts"; bad = 1 }
    exit bad
}'
echo "soak: ${seconds} s at ${rate} Mbit/s: no growth, no drift"
