#!/usr/bin/env bash
# Runs the tests and prints one line of totals at the end: "N passed, N failed, N skipped". Arguments go to `cargo test`.
# Every test runs once; a failure does not end the run. Exits with 1 if anything failed.
#
# A skipped test appends its name and the reason to the file $CCBENCH_TEST_SKIPS (tests/src/skip.rs). Tests are skipped if they could not
# measure time because of missing CPU time (tests/src/cpu.rs), or if something that they need is missing, such as the lab.
# kmod's checks (make -C kmod check) count as one test. Tests marked `#[ignore]` are not counted.
set -uo pipefail
cd "$(dirname "$0")/.."

dir=$(mktemp -d)
kmod=
trap '[ -z "$kmod" ] || kill "$kmod" 2>/dev/null; rm -rf "$dir"' EXIT
export CCBENCH_TEST_SKIPS=$dir/skips
: >"$CCBENCH_TEST_SKIPS"
# Connections to servers that tests start on this machine must not go through a proxy.
export NO_PROXY=127.0.0.1,localhost,${NO_PROXY:-${no_proxy:-}}
export no_proxy=$NO_PROXY
# Golden files are compared, not written again.
unset UPDATE_GOLDEN
# With the same seed, property tests draw the same cases in every run.
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-1}
passed=0 failed=0

totals() {
    local skipped
    skipped=$(cut -f 1 "$CCBENCH_TEST_SKIPS" | sort -u | grep -cvxFf "$dir/failed" -)
    if [ -s "$CCBENCH_TEST_SKIPS" ]; then
        echo
        echo "Skipped:"
        sed 's/^/  /; s/\t/: /' "$CCBENCH_TEST_SKIPS"
    fi
    if [ -s "$dir/failed" ]; then
        echo
        echo "Failed:"
        sed 's/^/  /' "$dir/failed"
    fi
    echo
    echo "$((passed - skipped)) passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
}

: >"$dir/failed"
# Runs beside cargo, which compiles or runs unit tests meanwhile. Its output is printed at the end.
make --no-print-directory -C kmod check >"$dir/kmod" 2>&1 &
kmod=$!

cargo test --no-fail-fast --color never "$@" 2>&1 | tee "$dir/log"
status=${PIPESTATUS[0]}
if wait "$kmod"; then
    passed=1
else
    failed=1
    echo "make -C kmod check" >>"$dir/failed"
fi
kmod=
cat "$dir/kmod"
# The format of libtest: "test result: ok. 12 passed; 0 failed; 1 ignored; ...", "test NAME ... FAILED".
read -r of_cargo_passed of_cargo_failed < <(awk '
    /^test result: / { passed += $4; failed += $6; open = "" }
    /^ *(Running|Doc-tests) / { if (open != "") print open; open = $0 }
    END { if (open != "") print open; print passed + 0, failed + 0 }' "$dir/log" | tee "$dir/counts" | tail -n 1)
passed=$((passed + of_cargo_passed)) failed=$((failed + of_cargo_failed))
sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$dir/log" >>"$dir/failed"
# Test binaries that ended without a result, for example by a signal.
sed '$d; s/^ */no result: /' "$dir/counts" >"$dir/unfinished"
cat "$dir/unfinished" >>"$dir/failed"
failed=$((failed + $(wc -l <"$dir/unfinished")))
if [ "$status" -ne 0 ] && [ ! -s "$dir/failed" ]; then
    failed=$((failed + 1))
    echo "cargo test: exit code $status" >>"$dir/failed"
    # Cargo's and the compiler's errors are above the output of kmod's checks.
    grep -m 5 '^error' "$dir/log" >>"$dir/failed"
fi
totals
