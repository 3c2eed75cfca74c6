#!/usr/bin/env bash
# Simulates generated plans for SECONDS on all CPUs, with the stable compiler (make fuzz-plans): `fuzz_plans.sh SECONDS [FIRST-SEED]`.
# Each seed gives a plan. A failure prints the seed, the failed assertion and the plan. Prints totals at the end; exits with 1 on failures.
set -uo pipefail
cd "$(dirname "$0")/.."

seconds=$1 seed=${2:-0}
batch=50 jobs=$(nproc)
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/ccbench/target}
cargo build --locked --workspace --features netns,browser --example simulations || exit 1
program=$CARGO_TARGET_DIR/debug/examples/simulations

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
first=$seed plans=0 failed=0
SECONDS=0
while [ "$SECONDS" -lt "$seconds" ]; do
    for job in $(seq "$jobs"); do
        timeout 1800 "$program" "$seed" "$batch" >"$dir/$job" 2>&1 &
        seed=$((seed + batch))
    done
    wait
    for job in $(seq "$jobs"); do
        total=$(tail -n 1 "$dir/$job")
        case $total in
        "$batch plans, 0 failed") ;;
        "$batch plans, "*" failed")
            cat "$dir/$job"
            total=${total#*, }
            failed=$((failed + ${total% failed}))
            ;;
        *) # It was killed, aborted, or did not end.
            echo "fuzz-plans: $batch seeds from $((seed - (jobs - job + 1) * batch)) did not end"
            cat "$dir/$job"
            failed=$((failed + 1))
            ;;
        esac
        plans=$((plans + batch))
    done
done
echo "fuzz-plans: $plans plans from seed $first, $failed failed"
[ "$failed" -eq 0 ] || {
    echo "fuzz-plans: to repeat a seed: $program SEED 1"
    exit 1
}
