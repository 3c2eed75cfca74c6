#!/usr/bin/env bash
# Compares both engines of the lab: runs the comparison of queues and elements, the coupling of DualPI2, published experiments and the plans
# at 3 Gbit/s on each, compares the two runs of each point by point with the tolerances of docs/lab.md, and writes the tables. These tolerances
# are for queues with five seeds. Elsewhere, a metric also agrees if the 95 % interval (t) of its difference includes 0.
# Usage: engines.sh CCBENCH DIRECTORY [EXPERIMENT ...]
#   CCBENCH     the program; builds a kernel that is missing
#   DIRECTORY   gets the results in EXPERIMENT-ENGINE, the output of `ccbench compare` in EXPERIMENT.txt, and its tables in EXPERIMENT.csv
#               and EXPERIMENT-claims.csv; engines.md has all of them. Complete runs are not repeated and others are resumed, so the same
#               command continues an interrupted one
#   EXPERIMENT  a name below; default: all
# ENGINES=uml runs only that engine. On two CPUs, all experiments take about a quarter of an hour with uml, and ten times as long with qemu.
# Exit codes: 0; 1 if a run failed or points do not agree; 2 for wrong arguments. Claims that do not hold are results, not failures.
set -euo pipefail
export LC_ALL=C.UTF-8
[ $# -ge 2 ] || {
    echo "engines: usage: engines.sh CCBENCH DIRECTORY [EXPERIMENT ...]" >&2
    exit 2
}
ccbench=$(realpath "$1")
mkdir -p "$2"
out=$(cd "$2" && pwd)
shift 2
plans=$(cd "$(dirname "$0")/../../plans" && pwd)
engines=${ENGINES:-uml qemu}
# Fast experiments run first.
all=(vegas_friendliness bufferbloat blockages_cheap blockages_faithful mmwave_3gbit coexistence_1v1 coexistence_5v5 coexistence_10v1
    judge judge_netem judge_fq elements coupling_prague coupling_dctcp)
experiments=("$@")
[ ${#experiments[@]} -gt 0 ] || experiments=("${all[@]}")

# Sets `arguments`; `dilation`, that of docs/benchmarks.md, or empty for a calibration; and the `tolerances` that differ from the usual
# ones, as in docs/lab.md.
define() { # EXPERIMENT
    local short=(--set repeat=3 --set gap=1s --set phases.0.length=8s --set phases.1.length=12s --set phases.2.length=13s)
    dilation= tolerances=throughput_sum=2,srtt=6,retransmission_share=25
    case $1 in
    judge) arguments=(run "$plans/lab/judge.toml" --set 'matrix.discipline=["bfifo", "codel", "fq_codel", "pie", "red", "dualpi2"]') dilation=2 ;;
    judge_netem)
        arguments=(run "$plans/lab/judge.toml" --set 'matrix.discipline=["netem"]')
        dilation=2 tolerances=throughput_sum=2,srtt=12,retransmission_share=25
        ;;
    judge_fq)
        arguments=(run "$plans/lab/judge.toml" --set 'matrix.discipline=["fq"]')
        dilation=2 tolerances=throughput_sum=8,srtt=10,retransmission_share=25
        ;;
    elements)
        arguments=(run "$plans/lab/elements.toml")
        dilation=2 tolerances=throughput_sum=4,srtt=6,retransmission_share=25
        ;;
    vegas_friendliness) arguments=(reproduce vegas_friendliness) ;;
    bufferbloat) arguments=(reproduce bufferbloat --quick) ;;
    coexistence_*) arguments=(reproduce coexistence "${short[@]}" --set "matrix.flows=${1#coexistence_}") ;;
    coupling_*) arguments=(run "$plans/lab/coupling.toml" --set repeat=3 --set "matrix.scheme=${1#coupling_}") dilation=4 ;;
    blockages_cheap) arguments=(run "$plans/lab/blockages.toml" --set matrix.mode=cheap) dilation=5 ;;
    blockages_faithful) arguments=(run "$plans/lab/blockages.toml" --set matrix.mode=faithful) dilation=20 ;;
    mmwave_3gbit) arguments=(reproduce mmwave_3gbit --quick --set phases.0.length=5s) dilation=20 ;;
    *)
        echo "engines: there is no experiment $1; the names are ${all[*]}" >&2
        exit 2
        ;;
    esac
}

# Prints the last results directory that is complete or incomplete. Fails if there is none.
results() { # complete|incomplete EXPERIMENT-ENGINE
    local record status found=
    for record in "$out/$2"/*/run.json; do
        [ -f "$record" ] || continue
        status=incomplete
        ! grep -q '^  "status": "complete"' "$record" || status=complete
        [ "$status" != "$1" ] || found=$(dirname "$record")
    done
    [ -n "$found" ] && echo "$found"
}

run() { # EXPERIMENT ENGINE
    local name=$1-$2 code=0 dir command start=$SECONDS
    results complete "$name" >/dev/null && return
    if dir=$(results incomplete "$name"); then
        command=(run --resume "$dir")
    else
        command=("${arguments[@]}" --lab --engine "$2" --out "$out/$name")
        [ "$2" != qemu ] || [ -z "$dilation" ] || command+=(--dilation "$dilation")
    fi
    echo "== $1, engine $2: ccbench ${command[*]}"
    "$ccbench" "${command[@]}" || code=$?
    echo $((SECONDS - start)) >>"$out/$name.seconds"
    # Exit code 4: a claim does not hold.
    case $code in
    0 | 4) echo "== $1, engine $2: $((SECONDS - start)) s, exit code $code" ;;
    130) exit 130 ;;
    *)
        echo "engines: $1 failed with engine $2 (exit code $code)" >&2
        failed=1
        ;;
    esac
}

for experiment in "${experiments[@]}"; do define "$experiment"; done
for engine in $engines; do "$ccbench" lab build --engine "$engine" >/dev/null; done
failed=
for experiment in "${experiments[@]}"; do
    define "$experiment"
    for engine in $engines; do run "$experiment" "$engine"; done
    qemu=$(results complete "$experiment-qemu") && uml=$(results complete "$experiment-uml") || continue
    files=(--csv "$out/$experiment.csv" --claims-csv "$out/$experiment-claims.csv")
    if ! "$ccbench" compare "$qemu" "$uml" --tolerance "$tolerances" "${files[@]}" >"$out/$experiment.txt"; then
        echo "engines: $experiment cannot be compared" >&2
        failed=1
    fi
done

python3 - "$out" "${experiments[@]}" <<'END_OF_TABLES' || failed=1
import csv, pathlib, re, sys

out, *names = sys.argv[1:]
out = pathlib.Path(out)


def rows(name):
    with open(out / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def seconds(name):
    file = out / f"{name}.seconds"
    return f"{sum(map(int, file.read_text().split()))} s" if file.exists() else ""


def cell(text):
    return str(text).replace("|", "\\|")


def line(*cells):
    return "| " + " | ".join(cell(one) for one in cells) + " |\n"


def head(*cells):
    return line(*cells) + "|" + "---|" * len(cells) + "\n"


# Units of the summary, with those of the tables.
SCALES = {"bit/s": (1e-6, "Mbit/s"), "us": (1e-3, "ms"), "1": (100.0, "%")}


def number(row, side):
    scale, _ = SCALES.get(row["unit"], (1.0, ""))
    mean = float(row[f"mean_{side}"]) * scale
    low, high = row[f"{side}95_low"], row[f"{side}95_high"]
    half = f" ± {(float(high) - float(low)) / 2 * scale:.3g}" if low and high else ""
    return f"{mean:.4g}{half}"


def is_chance(name, row):
    """Whether a difference of an experiment without tolerances of its own may be chance. A single trial has no interval."""
    low, high = row["t95_low"], row["t95_high"]
    return not name.startswith(("judge", "elements")) and low != "" and float(low) <= 0 <= float(high)


def agreement(name, printed, judged):
    """Returns how many points agree, and a line for each of the others."""
    found = re.search(r"^\d+ of (\d+) points? agrees?$", printed, re.MULTILINE)
    if not found:
        return "none judged", [f"{name}: no point was judged"]
    chance = {(row["point"], f"{row['metric']} of {row['subject']} in {row['phase']}") for row in judged if row["agrees"] != "true" and is_chance(name, row)}
    apart = []
    for point, exceeded in re.findall(r"^does not agree:(?: (.*?))?: (.*)$", printed, re.MULTILINE):
        rest = [one for one in exceeded.split("; ") if (point, one) not in chance]
        if rest:
            apart.append(f"{name}: does not agree:{point and ' ' + point}: {'; '.join(rest)}")
    return f"{int(found[1]) - len(apart)} of {found[1]}", apart


compared = [name for name in names if (out / f"{name}.csv").exists()]
text = "# The engines qemu and uml compared\n\nMeans over trials, ± 95 % confidence interval. *Chance*: the difference is larger than the tolerance, but its interval includes 0.\n\n"
text += head("experiment", "qemu", "uml", "points that agree", "claims with the same verdict")
details, apart = "", []
for name in compared:
    printed = (out / f"{name}.txt").read_text(encoding="utf-8")
    judged = [row for row in rows(f"{name}.csv") if row["agrees"]]
    points, lines = agreement(name, printed, judged)
    apart += lines
    claims = rows(f"{name}-claims.csv")
    same = sum(claim["verdict_a"] == claim["verdict_b"] for claim in claims)
    of_claims = f"{same} of {len(claims)}" if claims else ""
    text += line(f"`{name}`", seconds(f"{name}-qemu"), seconds(f"{name}-uml"), points, of_claims)
    details += f"\n## {name}\n\n" + head("point", "phase", "of", "metric", "qemu", "uml", "agrees")
    for row in judged:
        unit = SCALES.get(row["unit"], (1.0, row["unit"]))[1]
        of = f"{row['scope']} {row['subject']}"
        differs = "chance" if is_chance(name, row) else "**no**"
        agrees = "yes" if row["agrees"] == "true" else differs
        details += line(row["point"], row["phase"], of, f"{row['metric']}, {unit}", number(row, "a"), number(row, "b"), agrees)
missing = [name for name in names if name not in compared]
if missing:
    text += f"\nNot compared, because there are no two complete runs: {', '.join(missing)}.\n"
(out / "engines.md").write_text(text + details, encoding="utf-8")
print(text)
for one in apart:
    print(one)
print(f"engines: the tables are in {out / 'engines.md'}")
sys.exit(1 if apart else 0)
END_OF_TABLES
[ -z "$failed" ]
