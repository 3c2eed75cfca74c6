#!/usr/bin/env bash
# Runs a published sweep to its end as a job array on two nodes (cluster.sh): the 108 points of plans/l4s/sweep.toml with ten trials each,
# in the simulator. The merged run is in OUT. Prints its claims, for docs/reproductions.md.
#   tests/slurm/sweep.sh DIRECTORY_OF_PROGRAMS OUT [PLAN [OPTIONS OF SUBMIT…]]
# Without options: --sim. Needs root and Slurm (scripts/setup.sh --slurm). The exit code is that of `ccbench submit`: 4 if a claim does not
# hold.
# shellcheck source=tests/slurm/cluster.sh
. "$(dirname "$0")/cluster.sh"
bin=$(realpath "$1")
out=$(realpath -m "$2")
plan=$(realpath "${3:-$(dirname "$0")/../../plans/l4s/sweep.toml}")
shift $(($# < 3 ? $# : 3))
[ $# -gt 0 ] || set -- --sim
enter_namespaces "$bin" "$out" "$plan" "$@"
start_slurm $((($(nproc) + 1) / 2)) 5
cd "$dir"
status=0
begin=$SECONDS
"$bin/ccbench" submit "$plan" --slurm "$@" --shards 24 --out "$dir/shards" --merged "$out" || status=$?
echo "$((SECONDS - begin)) s, exit code $status; the run is in $out" >&2
exit "$status"
