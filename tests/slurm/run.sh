#!/usr/bin/env bash
# `ccbench submit --slurm` with a real Slurm: a controller and two nodes on this machine, in namespaces of their own, so that nothing of
# the machine changes. One node is killed while it runs shards. The merged run must have the tables of a run on one machine.
#   tests/slurm/run.sh DIRECTORY_OF_PROGRAMS
# Needs root and Slurm (scripts/setup.sh --slurm); skipped with the reason without them.
set -euo pipefail
bin=$(realpath "$1")
PATH=$PATH:/usr/sbin:/sbin

if [ "$(id -u)" -ne 0 ]; then
    echo "skipped: needs root"
    exit 0
fi
for program in slurmctld slurmd sbatch squeue munged mungekey; do
    command -v "$program" >/dev/null || {
        echo "skipped: $program is not installed (scripts/setup.sh --slurm)"
        exit 0
    }
done

if [ -z "${CCBENCH_SLURM_DIR:-}" ]; then
    CCBENCH_SLURM_DIR=$(mktemp -d)
    export CCBENCH_SLURM_DIR
    trap 'rm -rf "$CCBENCH_SLURM_DIR"' EXIT
    status=0
    unshare --mount --pid --fork --kill-child --mount-proc --uts --net --ipc "$0" "$bin" || status=$?
    exit "$status"
fi
dir=$CCBENCH_SLURM_DIR
# The munge and slurm users look into it.
chmod 755 "$dir"

hostname cchead
ip link set lo up
# With loopback alone, getaddrinfo finds no address (AI_ADDRCONFIG).
ip link add cc0 type veth peer name cc1
ip addr add 10.99.0.1/24 dev cc0
ip link set cc0 up
ip link set cc1 up
printf '127.0.0.1 localhost\n10.99.0.1 cchead n1 n2\n' >"$dir/hosts"
mount --bind "$dir/hosts" /etc/hosts
for place in /run /var/log /var/spool /var/lib/munge /etc/munge; do
    mount -t tmpfs -o mode=755 tmpfs "$place"
done
mkdir /run/munge /var/log/munge /var/log/slurm /var/spool/slurmctld /var/spool/slurmd-n1 /var/spool/slurmd-n2
chown munge: /run/munge /var/log/munge /var/lib/munge /etc/munge
chown slurm: /var/log/slurm /var/spool/slurmctld
chmod 700 /etc/munge /var/lib/munge /var/log/munge

export SLURM_CONF=$dir/slurm.conf
# cred_expire: otherwise a task that is started again waits two minutes for the credentials of its first start to expire.
cat >"$SLURM_CONF" <<'CONF'
ClusterName=cc
SlurmctldHost=cchead(10.99.0.1)
SlurmUser=slurm
AuthType=auth/munge
AuthInfo=cred_expire=5
CryptoType=crypto/munge
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd-%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd-%n.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdTimeout=10
MpiDefault=none
SwitchType=switch/none
MaxArraySize=10001
SchedulerParameters=sched_interval=1
SlurmdParameters=config_overrides
NodeName=n[1-2] NodeHostname=cchead NodeAddr=10.99.0.1 Port=[17001-17002] CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=cc Nodes=n[1-2] Default=YES MaxTime=INFINITE OverSubscribe=NO State=UP
CONF
chmod 644 "$SLURM_CONF"
su -s /bin/sh munge -c 'mungekey -c -f && munged'
slurmd -N n1
slurmd -N n2
slurmctld

failed() {
    echo "failed: $1" >&2
    tail -n 30 /var/log/slurm/*.log "$dir"/shards/logs/*.log 2>/dev/null >&2 || true
    exit 1
}

idle=0
for _ in $(seq 60); do
    idle=$(sinfo --noheader --Node --format=%T 2>/dev/null | grep -cx idle || true)
    [ "$idle" -eq 2 ] && break
    sleep 1
done
[ "$idle" -eq 2 ] || failed "two nodes are not idle after a minute"

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
length = "5s"
flows = ["f"]
[matrix]
"flows.f.cc" = ["cubic", "bbr"]
PLAN

commits() { find "$dir/shards/commits" -name '*.json' 2>/dev/null | wc -l; }

# Kills the daemon of node n2 and its jobs when some trials are committed, and starts the daemon again after it was missed.
(
    while [ "$(commits)" -lt 5 ]; do sleep 0.1; done
    [ "$(commits)" -lt "$trials" ] && touch "$dir/killed-early"
    kill -KILL "$(cat /run/slurmd-n2.pid)"
    for environment in /proc/[0-9]*/environ; do
        if tr '\0' '\n' <"$environment" 2>/dev/null | grep -qx 'SLURMD_NODENAME=n2'; then
            process=${environment#/proc/}
            kill -KILL "${process%/environ}" 2>/dev/null || true
        fi
    done
    sleep 20
    slurmd -N n2
) &

"$bin/ccbench" submit "$dir/plan.toml" --slurm --sim --shards 10 --out "$dir/shards" --merged "$dir/results" >"$dir/summary" ||
    failed "ccbench submit: exit code $?"
wait
[ -e "$dir/killed-early" ] || failed "the node was killed too late to matter"
[ "$(commits)" -eq "$trials" ] || failed "$(commits) of $trials trials are committed"
"$bin/ccbench" verify "$dir"/results/* || failed "the merged run is damaged"
"$bin/ccbench" run "$dir/plan.toml" --sim --out "$dir/whole" >/dev/null 2>&1 || failed "the run on one machine"
diff -r "$dir"/whole/*/tables "$dir"/results/*/tables || failed "the tables differ from those of one machine"
grep -l '"scheduler":"slurm"' "$dir"/shards/sessions/*.json >/dev/null || failed "no session names its job"
echo "passed: $trials trials, each once; $(find "$dir/shards/sessions" -name '*.json' | wc -l) attempts at 10 shards"
