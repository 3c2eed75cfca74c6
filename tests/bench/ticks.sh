# To be sourced.
# ticks PATTERN: of all threads of this experiment's (CCBENCH_STATE) processes whose command line is like this, user + system
# ticks, in two sums: everything but the packet path, and the packet path (one thread per userspace link).
ticks() {
    local pid stat control=0 path=0 spent
    for pid in $(pgrep -f "$1" || true); do
        grep -zqx "CCBENCH_STATE=$CCBENCH_STATE" "/proc/$pid/environ" 2>/dev/null || continue
        for stat in /proc/"$pid"/task/*/stat; do
            spent=$(sed 's/.*) //' "$stat" 2>/dev/null | awk '{ print $12 + $13 }')
            if grep -q '(ccbench-link)' "$stat" 2>/dev/null; then
                path=$((path + ${spent:-0}))
            else
                control=$((control + ${spent:-0}))
            fi
        done
    done
    echo "$control $path"
}
