#!/usr/bin/env bash
# Both engines of the lab: runs published experiments, the coupling of DualPI2 and the plans at 3 Gbit/s on each, prints the claims,
# and compares the two runs of each experiment point by point. `make test-lab` compares the queues.
# Usage: engines.sh CCBENCH DIRECTORY [EXPERIMENT ...]
#   CCBENCH     the program
#   DIRECTORY   gets the results, in EXPERIMENT-ENGINE; complete runs there are not repeated
#   EXPERIMENT  a name below; default: all
# ENGINES=uml runs only that engine. On two CPUs all take about 10 minutes with uml and 2 hours with qemu.
set -euo pipefail
ccbench=$(realpath "$1")
mkdir -p "$2"
out=$(cd "$2" && pwd)
shift 2
plans=$(cd "$(dirname "$0")/../../plans" && pwd)
engines=${ENGINES:-uml qemu}
all=(vegas_friendliness bufferbloat coexistence_1v1 coexistence_5v5 coexistence_10v1 coupling_prague coupling_dctcp
    blockages_cheap blockages_faithful mmwave_3gbit)
experiments=("$@")
[ ${#experiments[@]} -gt 0 ] || experiments=("${all[@]}")

# Sets `arguments`; `dilation` is that of docs/benchmarks.md, or empty for a calibration.
define() { # EXPERIMENT
    local short=(--set repeat=3 --set gap=1s --set phases.0.length=8s --set phases.1.length=12s --set phases.2.length=13s)
    dilation=
    case $1 in
    vegas_friendliness) arguments=(reproduce vegas_friendliness) ;;
    bufferbloat) arguments=(reproduce bufferbloat --quick) ;;
    coexistence_*) arguments=(reproduce coexistence "${short[@]}" --set "matrix.flows=${1#coexistence_}") ;;
    coupling_*)
        arguments=(run "$plans/lab/coupling.toml" --set repeat=3 --set "matrix.scheme=${1#coupling_}")
        dilation=4
        ;;
    blockages_cheap)
        arguments=(run "$plans/lab/blockages.toml" --set matrix.mode=cheap)
        dilation=5
        ;;
    blockages_faithful)
        arguments=(run "$plans/lab/blockages.toml" --set matrix.mode=faithful)
        dilation=20
        ;;
    mmwave_3gbit)
        arguments=(reproduce mmwave_3gbit --quick --set phases.0.length=5s)
        dilation=20
        ;;
    *)
        echo "engines: there is no experiment $1; the names are ${all[*]}" >&2
        exit 2
        ;;
    esac
}

# The results directory of a complete run; fails if there is none.
complete() { # EXPERIMENT ENGINE
    local record
    for record in "$out/$1-$2"/*/run.json; do
        [ -f "$record" ] && grep -q '^  "status": "complete"' "$record" && dirname "$record" && return
    done
    return 1
}

run() { # EXPERIMENT ENGINE
    complete "$1" "$2" >/dev/null && return
    define "$1"
    local start=$SECONDS code=0 speed=()
    [ "$2" != qemu ] || [ -z "$dilation" ] || speed=(--dilation "$dilation")
    echo "== $1, engine $2"
    "$ccbench" "${arguments[@]}" --lab --engine "$2" "${speed[@]}" --out "$out/$1-$2" || code=$?
    # 4: a claim does not hold.
    case $code in
    0 | 4) echo "== $1, engine $2: $((SECONDS - start)) s, exit code $code" ;;
    *)
        echo "engines: $1 failed with engine $2 (exit code $code)" >&2
        failed=1
        ;;
    esac
}

failed=
for experiment in "${experiments[@]}"; do
    define "$experiment"
    for engine in $engines; do run "$experiment" "$engine"; done
done
for experiment in "${experiments[@]}"; do
    if qemu=$(complete "$experiment" qemu) && uml=$(complete "$experiment" uml); then
        echo "== $experiment: qemu and uml"
        "$ccbench" compare "$qemu" "$uml" || failed=1
    fi
done
[ -z "$failed" ]
