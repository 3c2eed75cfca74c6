#!/usr/bin/env bash
# Runs `ccbench submit --slurm` with a real Slurm (cluster.sh): a controller and two nodes on this machine. One node is lost while it runs
# shards, and Slurm starts its tasks again. The merged run must have the tables of a run on one machine.
#   tests/slurm/run.sh DIRECTORY_OF_PROGRAMS
# Needs root and Slurm (scripts/setup.sh --slurm); without them it is skipped, with the reason.
# shellcheck source=tests/slurm/cluster.sh
. "$(dirname "$0")/cluster.sh"
bin=$(realpath "$1")
enter_namespaces "$bin"
start_slurm 2 5

trials=80
cat >"$dir/plan.toml" <<'PLAN'
name = "array"
seed = 1
repeat = 40
[nodes]
src = {}
router = {}
dst = {}
[wires]
path = ["src", "router", "dst"]
[links.bottleneck]
node = "router"
toward = "dst"
rate = "20mbit"
delay = "10ms"
queue = { kind = "bfifo", limit = "75000B" }
[flows.f]
from = "src"
to = "dst"
[[phases]]
name = "only"
length = "20s"
flows = ["f"]
[matrix]
"flows.f.cc" = ["cubic", "bbr"]
PLAN

commits() { find "$dir/shards/commits" -name '*.json' 2>/dev/null | wc -l; }

# Node n2 is lost while it runs shards, and returns after Slurm has noticed this (half a minute).
(
    while [ "$(commits)" -lt 5 ] || [ -z "$(tasks_of n2)" ]; do sleep 0.1; done
    [ "$(commits)" -lt "$trials" ] && touch "$dir/killed-early"
    kill_node n2
    sleep 45
    start_node n2
) &
killer=$!

"$bin/ccbench" submit "$dir/plan.toml" --slurm --sim --shards 10 --out "$dir/shards" --merged "$dir/results" >"$dir/summary" ||
    failed "ccbench submit: exit code $?"
[ -e "$dir/killed-early" ] || failed "the node was killed too late to matter"
wait "$killer" || failed "slurmd of n2 does not start again"
[ "$(commits)" -eq "$trials" ] || failed "$(commits) of $trials trials are committed"
"$bin/ccbench" verify "$dir"/results/* || failed "the merged run is damaged"
"$bin/ccbench" run "$dir/plan.toml" --sim --out "$dir/whole" >/dev/null 2>&1 || failed "the run on one machine"
diff -r "$dir"/whole/*/tables "$dir"/results/*/tables || failed "the tables differ from those of one machine"
grep -l '"scheduler":"slurm"' "$dir"/shards/sessions/*.json >/dev/null || failed "no session names its job"
grep -l '"epoch":1' "$dir"/shards/sessions/*.json >/dev/null || failed "no session is that of a task that Slurm has started again"
await_nodes
echo "passed: $trials trials, each once; $(find "$dir/shards/sessions" -name '*.json' | wc -l) attempts at 10 shards"
