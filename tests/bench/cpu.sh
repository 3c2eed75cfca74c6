# To be sourced.
# cpu_ns PATTERN: prints the CPU time in nanoseconds of the threads of those processes of this experiment (CCBENCH_STATE) whose command line
# matches, as two sums: all other threads, then the packet path (one thread per userspace link).
cpu_ns() {
    local pid task control=0 path=0 spent
    for pid in $(pgrep -f "$1" || true); do
        grep -zqx "CCBENCH_STATE=$CCBENCH_STATE" "/proc/$pid/environ" 2>/dev/null || continue
        for task in /proc/"$pid"/task/*; do
            read -r spent _ 2>/dev/null < "$task/schedstat" || spent=0
            if grep -q '(ccbench-link)' "$task/stat" 2>/dev/null; then
                path=$((path + spent))
            else
                control=$((control + spent))
            fi
        done
    done
    echo "$control $path"
}
