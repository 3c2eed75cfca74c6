#!/usr/bin/env bash
# Compares the lab and the simulator: runs published experiments, or plans, in both, and compares the two runs of each.
# Usage: simulator.sh CCBENCH DIRECTORY [EXPERIMENT | PLAN.toml ...]
#   CCBENCH     the program
#   DIRECTORY   gets the results in NAME-lab and NAME-sim, the output of `ccbench compare` in NAME.txt, and its tables in NAME.csv and
#               NAME-claims.csv. Complete runs are not repeated, so an interrupted script can be run again
#   EXPERIMENT  a name of `ccbench reproduce`; default: all. Prints a table of the claims that hold in the lab but not in the simulator,
#               one of those that hold only in the simulator, and how many hold in both
#   PLAN.toml   a plan; prints how many of its points agree, and those that do not
# QUICK= runs experiments in full length (l4s_sweep: 18 hours of guest time) instead of with --quick. ENGINE=qemu runs the lab with qemu.
# Exit codes: 0; 1 if a run failed; 2 for wrong arguments. Claims that do not hold are results, not failures.
set -euo pipefail
export LC_ALL=C.UTF-8
[ $# -ge 2 ] || {
    echo "simulator: usage: simulator.sh CCBENCH DIRECTORY [EXPERIMENT | PLAN.toml ...]" >&2
    exit 2
}
ccbench=$(realpath "$1")
mkdir -p "$2"
out=$(cd "$2" && pwd)
shift 2
engine=${ENGINE:-uml}
quick=()
[ -z "${QUICK-1}" ] || quick=(--quick)

wanted=("$@")
if [ ${#wanted[@]} -eq 0 ]; then
    # Those lines of the list that are experiments, not whole documents.
    list=$("$ccbench" reproduce)
    mapfile -t wanted < <(awk '/^  [a-z]/ && !/ all of them, in turn/ { print $1 }' <<<"$list")
    [ ${#wanted[@]} -gt 0 ] || {
        echo "simulator: found no experiments in the output of \`ccbench reproduce\`" >&2
        exit 1
    }
fi

# Prints the results directory of a complete run. Fails if there is none.
complete() { # NAME-BACKEND
    local record
    for record in "$out/$1"/*/run.json; do
        [ -f "$record" ] && grep -q '^  "status": "complete"' "$record" && dirname "$record" && return
    done
    return 1
}

run() { # NAME BACKEND ARGUMENT...
    local name=$1 backend=$2 start=$SECONDS code=0
    shift 2
    complete "$name-$backend" >/dev/null && return
    echo "== $name, $backend"
    "$ccbench" "$@" --out "$out/$name-$backend" || code=$?
    # Exit code 4: a claim does not hold.
    case $code in
    0 | 4) echo "== $name, $backend: $((SECONDS - start)) s, exit code $code" ;;
    *) echo "simulator: $name failed in the $backend run (exit code $code)" >&2 ;;
    esac
}

failed=
names=()
plans=()
for one in "${wanted[@]}"; do
    case $one in
    *.toml)
        name=$(basename "$one" .toml)
        arguments=(run "$one")
        ;;
    *)
        name=$one
        arguments=(reproduce "$one" "${quick[@]}")
        ;;
    esac
    run "$name" lab "${arguments[@]}" --lab --engine "$engine"
    run "$name" sim "${arguments[@]}" --sim
    if ! lab=$(complete "$name-lab") || ! sim=$(complete "$name-sim"); then
        echo "simulator: $name has no two complete runs, so it is not compared" >&2
        failed=1
        continue
    fi
    files=(--csv "$out/$name.csv" --claims-csv "$out/$name-claims.csv")
    if ! "$ccbench" compare "$lab" "$sim" "${files[@]}" >"$out/$name.txt"; then
        echo "simulator: $name cannot be compared" >&2
        failed=1
        continue
    fi
    case $one in
    *.toml) plans+=("$name") ;;
    *) names+=("$name") ;;
    esac
done

for name in "${plans[@]}"; do
    echo "== $name: A is the lab, B the simulator"
    grep -E '^(does not agree|not compared):| points? agrees?$' "$out/$name.txt" || tail -n 1 "$out/$name.txt"
done
[ ${#names[@]} -eq 0 ] || python3 - "$out" "${names[@]}" <<'END'
import csv, pathlib, sys

out, *names = sys.argv[1:]
rows = []
for name in names:
    with open(pathlib.Path(out) / f"{name}-claims.csv", newline="", encoding="utf-8") as file:
        rows += [{"experiment": name} | row for row in csv.DictReader(file)]


def show(title, holds_in_lab):
    def differs(row):
        in_lab, simulated = row["verdict_a"] == "holds", row["verdict_b"] == "holds"
        return in_lab == holds_in_lab and simulated != holds_in_lab

    found = [row for row in rows if differs(row)]
    print(f"\n{title}: {len(found)}\n")
    if not found:
        return
    print("| experiment | claim | expected | lab | simulator |\n|---|---|---|---|---|")
    for row in found:
        claim = row["claim"] + (f": {row['levels']}" if row["levels"] else "")
        cells = [f"`{row['experiment']}`", claim, row["expected"], row["measured_a"], row["measured_b"]]
        print("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")


show("Claims that hold in the lab but not in the simulator", True)
show("Claims that hold in the simulator but not in the lab", False)
both = sum(row["verdict_a"] == row["verdict_b"] == "holds" for row in rows)
print(f"\n{len(names)} experiments: {both} of {len(rows)} claims hold in both.")
END
[ -z "$failed" ]
