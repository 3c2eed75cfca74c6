#!/usr/bin/env bash
# Runs fuzz targets with libFuzzer and AddressSanitizer (make fuzz): `fuzz.sh SECONDS [TARGET...]`, without targets all of
# tests/fuzz/corpus. Inputs that libFuzzer adds to the corpora stay in the build directory. Failing inputs are kept in
# tests/fuzz/cargo-fuzz/artifacts, and the names of their targets are printed. Exits with 1 if any failed.
set -uo pipefail
cd "$(dirname "$0")/../tests/fuzz"

seconds=$1
shift
skip() {
    echo "fuzz: skipped: $1"
    exit 0
}
command -v cargo-fuzz >/dev/null || skip "cargo-fuzz is not installed: cargo install --locked cargo-fuzz"
cargo +nightly --version >/dev/null 2>&1 || skip "there is no nightly compiler: rustup toolchain install nightly"

# One program for all targets: a program per target would contain all of ccbench and Polars each time.
dir=$(cd ../.. && realpath -m "${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/ccbench/target}")
export CARGO_TARGET_DIR=$dir-fuzz
[ -z "${CARGO_BUILD_BUILD_DIR:-}" ] || export CARGO_BUILD_BUILD_DIR+=-fuzz
export RUST_BACKTRACE=1
cargo +nightly fuzz build --fuzz-dir cargo-fuzz any || exit 1
program=$CARGO_TARGET_DIR/$(rustc +nightly -vV | sed -n 's/^host: //p')/release/any

[ $# -gt 0 ] || set -- $(ls corpus)
failed=
for target in "$@"; do
    found=${CARGO_BUILD_BUILD_DIR:-$CARGO_TARGET_DIR}/found/$target artifacts=cargo-fuzz/artifacts/$target
    mkdir -p "$found" "$artifacts"
    log=$found.log

    if CCBENCH_FUZZ_TARGET=$target "$program" "$found" "corpus/$target" -artifact_prefix="$artifacts/" \
        -max_total_time="$seconds" -timeout=30 -rss_limit_mb=2048 -malloc_limit_mb=1024 -max_len=65536 \
        -print_final_stats=1 >"$log" 2>&1; then
        echo "fuzz: $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") executions"
    else
        tail -n 60 "$log"
        echo "fuzz: $target failed; its input is in tests/fuzz/$artifacts"
        failed="$failed $target"
    fi
done
[ -z "$failed" ] || { echo "fuzz: failed:$failed"; exit 1; }
