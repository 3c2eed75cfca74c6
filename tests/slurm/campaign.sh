#!/usr/bin/env bash
# Runs 2000 simulated trials as a Slurm array of 50 shards on two nodes (cluster.sh), in which tasks, nodes, the network and the store fail
# at 100 random moments. Every trial must be committed once, and the tables must be those of a run on one machine, byte for byte.
#   tests/slurm/campaign.sh DIRECTORY_OF_PROGRAMS
# Environment: CCBENCH_STORE=s3 (moto behind a gateway, store.py; the default if scripts/setup.sh --test has installed moto) or directory;
# CCBENCH_SEED, the seed of the faults (random by default); CCBENCH_FAULTS=100; CCBENCH_REPEAT=100 (of 20 points); CCBENCH_TRIAL=30s.
# The seed determines the faults, their order and their lengths. Which trial a fault hits depends on the machine. With a directory, the
# store has no faults of its own.
# Needs root and Slurm (scripts/setup.sh --slurm); without them it is skipped, with the reason. Takes about ten minutes on two CPUs.
# shellcheck source=tests/slurm/cluster.sh
. "$(dirname "$0")/cluster.sh"
bin=$(realpath "$1")
store_py=$(realpath "$(dirname "$0")/store.py")
moto=${XDG_CACHE_HOME:-$HOME/.cache}/ccbench/python/bin/moto_server
store=${CCBENCH_STORE:-}
[ -n "$store" ] || { [ -x "$moto" ] && store=s3 || store=directory; }
case $store in
s3) [ -x "$moto" ] || skip "no S3 server: scripts/setup.sh --test installs moto" ;;
directory) ;;
*)
    echo "CCBENCH_STORE=$store: it is s3 or directory" >&2
    exit 2
    ;;
esac
export CCBENCH_STORE=$store CCBENCH_SEED=${CCBENCH_SEED:-$RANDOM} CCBENCH_FAULTS=${CCBENCH_FAULTS:-100}
export CCBENCH_REPEAT=${CCBENCH_REPEAT:-100} CCBENCH_TRIAL=${CCBENCH_TRIAL:-30s}
enter_namespaces "$bin"
seed=$CCBENCH_SEED faults=$CCBENCH_FAULTS repeat=$CCBENCH_REPEAT shards=50
trials=$((20 * repeat))
again="CCBENCH_STORE=$store CCBENCH_SEED=$seed CCBENCH_FAULTS=$faults CCBENCH_REPEAT=$repeat CCBENCH_TRIAL=$CCBENCH_TRIAL $0 $bin"
trap 'status=$?; [ "$status" -eq 0 ] || echo "to repeat: $again" >&2' EXIT
echo "to repeat: $again"

# One task per CPU: more would only share the CPUs.
cpus=$((($(nproc) + 1) / 2))
# While the network is cut, starts wait.
start_slurm "$cpus" 15
# If the store is a bucket, output files are in the current directory.
cd "$dir"

# plan NAME REPETITIONS LENGTH: 20 points.
plan() {
    cat >"$dir/$1.toml" <<PLAN
name = "$1"
seed = 1
repeat = $2
[nodes]
src = {}
router = {}
dst = {}
[wires]
path = ["src", "router", "dst"]
[links.bottleneck]
node = "router"
toward = "dst"
rate = "10mbit"
delay = "10ms"
queue = { kind = "bfifo", limit = "50kB" }
[flows.f]
from = "src"
to = "dst"
[[phases]]
name = "only"
length = "$3"
flows = ["f"]
[matrix]
"flows.f.cc" = ["cubic", "bbr"]
"links.bottleneck.delay" = ["5ms", "10ms", "20ms", "40ms", "80ms"]
"links.bottleneck.queue.limit" = ["50kB", "100kB"]
PLAN
}

# --- The cost of a shard in addition to its trials, without faults: an array of short shards. It is printed but not compared with the goal,
# because it depends on the load of the machine.
plan short 5 1s
"$bin/ccbench" submit short.toml --slurm --sim --shards $shards --out short --merged short-merged >short.out 2>&1 ||
    failed "the array without faults: $(tail -n 5 short.out)"
python3 - "$((2 * cpus))" "$shards" short/logs/*.log <<'PY'
import os, subprocess, sys

slots, shards, logs = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
# Slurm creates a log when it starts a task. 0 if the file system does not record when.
births = [float(subprocess.check_output(["stat", "-c", "%.3W", log])) for log in logs]
lasted = max(os.stat(log).st_mtime for log in logs) - min(births)
if min(births) > 0:
    print(f"a shard takes {lasted * slots / shards:.2f} s, with its start by Slurm and its two short trials (goal for its overhead: 2 s)")
else:
    print("the overhead of a shard is unknown: the file system has no time of birth")
PY

# --- The store.
if [ "$store" = s3 ]; then
    server=http://$address:9001 out=s3://ccbench/campaign
    export AWS_ENDPOINT_URL=http://$address:9000 AWS_REGION=us-east-1 AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=testsecret
    "$moto" -H $address -p 9001 >moto.log 2>&1 &
    server_pid=$!
    python3 "$store_py" bucket $server ccbench || failed "the S3 server: $(tail -n 5 moto.log)"
else
    out=$dir/campaign
    mkdir "$out"
fi

# Only the gateway is killed, because moto has everything in memory.
start_gateway() {
    python3 "$store_py" gateway $address 9000 9001 >>gateway.log 2>&1 &
    gateway_pid=$!
    disown $! || true
}
[ "$store" = directory ] || start_gateway

count=0
# Sets `count` to the number of commits. It keeps its value while the store does not answer.
look() {
    local found
    if [ "$store" = s3 ]; then
        found=$(python3 "$store_py" commits $server ccbench campaign 2>/dev/null) || return 0
    else
        found=$(find campaign/commits -name '*.json' 2>/dev/null | wc -l) || return 0
    fi
    count=$found
}

# --- Faults.
RANDOM=$seed
kinds=(task task task terminate requeue node slurmd pause network)
[ "$store" = directory ] || kinds+=(store store hang)
planned=()
for ((n = 0; n < faults; n++)); do
    planned+=("${kinds[RANDOM % ${#kinds[@]}]} n$((RANDOM % 2 + 1)) $((RANDOM % 40)) $RANDOM")
done

# Ends a random process of `ccbench run --shard` with a signal. Waits until there is one.
end_task() { # SIGNAL RANDOM
    local tasks
    for _ in $(seq 600); do
        mapfile -t tasks < <(pgrep -f -- ' --shard [0-9]+/[0-9]')
        if [ ${#tasks[@]} -gt 0 ] && kill "-$1" "${tasks[$2 % ${#tasks[@]}]}" 2>/dev/null; then
            return
        fi
        sleep 0.1
    done
    failed "no task runs for a minute"
}

# after SECONDS COMMAND NODE: brings a node back. Until then, `away-NODE` exists.
after() {
    touch "away-$3"
    (
        sleep "$1"
        "$2" "$3" || echo "$2 $3: exit code $?" >&2
        rm "away-$3"
    ) &
    disown $! || true
}
pause_slurmd() { for process in $(cat "/run/slurmd-$1.pid"); do kill -STOP "$process"; done; }
resume_slurmd() { for process in $(cat "/run/slurmd-$1.pid"); do kill -CONT "$process"; done; }

# Sets `node` to the node of a fault, or to the other one while this one is away.
available() {
    node=$1
    while [ -e "away-$node" ]; do
        [ "$node" = n1 ] && node=n2 || node=n1
        sleep 0.5
    done
}

inject() { # KIND NODE LENGTH RANDOM
    local jobs node
    case $1 in
    task) end_task KILL "$4" ;;
    terminate) end_task TERM "$4" ;;
    requeue)
        mapfile -t jobs < <(squeue --noheader --array --states=RUNNING --format=%i 2>/dev/null)
        # It may have ended in the meantime.
        [ ${#jobs[@]} -eq 0 ] || scontrol requeue "${jobs[$4 % ${#jobs[@]}]}" 2>/dev/null || true
        ;;
    # Slurm notices a missing node after half a minute: test before that, and after it has started the tasks elsewhere.
    node) available "$2"; kill_node "$node"; after "$3" start_node "$node" ;;
    # The node's tasks go on.
    slurmd) available "$2"; kill -KILL "$(cat "/run/slurmd-$node.pid")" || true; after $(($3 / 4)) start_node "$node" ;;
    # Cut off from Slurm: the node's tasks go on, and Slurm starts them elsewhere, too.
    pause) available "$2"; pause_slurmd "$node" || true; after "$3" resume_slurmd "$node" ;;
    # Between all processes, because their address is that of this machine.
    network) ip link set lo down; sleep $((1 + $3 / 10)); ip link set lo up ;;
    store) kill -KILL "$gateway_pid" || true; sleep $(($3 / 10)); start_gateway ;;
    hang) kill -STOP "$server_pid"; sleep $((1 + $3 / 8)); kill -CONT "$server_pid" ;;
    esac
}

# As an administrator does: returns nodes that Slurm has taken out of service, and releases tasks that it holds after a failed start.
administer() {
    local node state id reason
    while sleep 5; do
        sinfo --noheader --Node --format='%N %T' 2>/dev/null | while read -r node state; do
            case $state in
            down | drained | draining) scontrol update "nodename=$node" state=resume ;;
            esac
        done || true
        squeue --noheader --array --states=PENDING --format='%i %r' 2>/dev/null | while read -r id reason; do
            case $reason in
            *held* | JobHeld* | JobHold*) scontrol release "$id" ;;
            esac
        done || true
    done
}
administer >/dev/null 2>&1 &
disown $! || true

# --- The campaign. `submit` may fail together with the store or Slurm; it is meant to be repeated.
plan campaign "$repeat" "$CCBENCH_TRIAL"
(
    for _ in $(seq 30); do
        status=0
        "$bin/ccbench" submit campaign.toml --slurm --sim --shards $shards --resubmit 1000 --out "$out" --merged results \
            >>submit.out 2>>submit.log || status=$?
        echo "submit: exit code $status" >>submit.log
        [ "$status" -ne 0 ] || exit 0
        sleep 5
    done
    exit 1
) &
submit=$!

# The faults are spread over the first nine tenths of the trials, so that each meets running shards.
made=0
for fault in "${planned[@]}"; do
    read -r kind node length random <<<"$fault"
    left=$((trials * 9 / 10 - count))
    gap=$((left > 0 ? left / (faults - made) : 0))
    goal=$((count + gap / 2 + (gap > 0 ? random % (gap + 1) : 0)))
    while look; [ "$count" -lt "$goal" ]; do
        kill -0 "$submit" 2>/dev/null || failed "submit ended at $count of $trials trials: $(tail -n 20 submit.log)"
        sleep 0.5
    done
    [ "$count" -lt "$trials" ] || failed "all trials are committed after $made of $faults faults; a longer CCBENCH_TRIAL leaves more time"
    made=$((made + 1))
    echo "$count commits: $kind $node $length"
    inject "$kind" "$node" "$length" "$random"
done >faults.log
wait "$submit" || failed "submit: $(tail -n 20 submit.log)"

# --- Every trial exists once, and the tables are those of one machine.
look
[ "$count" -eq "$trials" ] || failed "$count of $trials trials are committed"
"$bin/ccbench" verify results/* || failed "the merged run is damaged"
"$bin/ccbench" run campaign.toml --sim --out whole >/dev/null 2>whole.log || failed "the run on one machine: $(tail -n 5 whole.log)"
diff -rq whole/*/tables results/*/tables || failed "the tables differ from those of one machine"
found=$(find results/*/tables/flow_samples -name '*.parquet' | wc -l)
[ "$found" -eq "$trials" ] || failed "$found of $trials trials have samples"
cut -d ' ' -f 3 faults.log | sort | uniq -c
echo "passed: $trials trials in $shards shards, each once, with the tables of one machine; $made faults, store $store," \
    "$(grep -c 'exit code' submit.log) commands, $(grep -c ': [0-9]* of [0-9]* shards;' submit.log) jobs," \
    "$(cat slurm-*.log campaign/logs/*.log 2>/dev/null | grep -c 'has committed this trial' || true) duplicates discarded"
