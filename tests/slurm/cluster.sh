#!/usr/bin/env bash
# A Slurm with a controller and the nodes n1 and n2 on this machine, in its own namespaces, so that nothing of the machine changes.
# Functions for the scripts in this directory. Written for Slurm 22.05 of Debian 12. Needs root, but neither systemd nor control groups.
set -euo pipefail
umask 022
export PATH=$PATH:/usr/sbin:/sbin
# Address of both nodes and the controller.
address=10.99.0.1

skip() {
    echo "skipped: $1"
    exit 0
}

# Starts the script again with its arguments in new namespaces, or returns if it is already there. `dir` is a directory that is removed at
# the end.
enter_namespaces() {
    local program status=0
    [ "$(id -u)" -eq 0 ] || skip "needs root"
    for program in slurmctld slurmd sbatch squeue scontrol munged mungekey; do
        command -v "$program" >/dev/null || skip "$program is not installed (scripts/setup.sh --slurm)"
    done
    if [ -z "${CCBENCH_SLURM_DIR:-}" ]; then
        # Not in TMPDIR, which may be covered by a mount below.
        CCBENCH_SLURM_DIR=$(mktemp -d -p /var/tmp)
        export CCBENCH_SLURM_DIR
        trap 'rm -rf "$CCBENCH_SLURM_DIR"' EXIT
        unshare --mount --pid --fork --kill-child --mount-proc --uts --net --ipc "$0" "$@" || status=$?
        exit "$status"
    fi
    dir=$CCBENCH_SLURM_DIR
    # Killed tasks leave their scratch directories behind.
    export TMPDIR=$dir/tmp
    mkdir "$TMPDIR"
    unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
}

failed() {
    local log
    echo "failed: $1" >&2
    # Logs of the tasks that wrote last.
    for log in /var/log/munge/*.log /var/log/slurm/*.log $(ls -t "$dir"/slurm-*.log "$dir"/*/logs/*.log 2>/dev/null | head -n 5); do
        [ -e "$log" ] && tail -v -n 30 "$log" >&2
    done
    exit 1
}

# start_slurm CPUS CRED_EXPIRE: starts nodes with this many CPUs. A task that is started again waits for CRED_EXPIRE seconds (two minutes by
# default), until the credentials of its first start have expired. A start that takes longer than this fails.
start_slurm() {
    local place node
    hostname cchead
    ip link set lo up
    # With only loopback, getaddrinfo finds no address (AI_ADDRCONFIG).
    ip link add cc0 type veth peer name cc1
    ip addr add "$address/24" dev cc0
    ip link set cc0 up
    ip link set cc1 up
    printf '127.0.0.1 localhost\n%s cchead n1 n2\n' "$address" >"$dir/hosts"
    mount --bind "$dir/hosts" /etc/hosts
    for place in /run /var/log /var/spool /var/lib/munge /etc/munge; do
        mount -t tmpfs -o mode=755 tmpfs "$place"
    done
    mkdir /run/munge /var/log/munge /var/log/slurm /var/spool/slurmctld /var/spool/slurmd-n1 /var/spool/slurmd-n2
    chown munge: /run/munge /var/log/munge /var/lib/munge /etc/munge
    chown slurm: /var/log/slurm /var/spool/slurmctld
    chmod 700 /etc/munge /var/lib/munge /var/log/munge

    # Where the user slurm can read it, whatever the permissions above the directory of this script.
    export SLURM_CONF=/run/slurm.conf
    cat >"$SLURM_CONF" <<CONF
ClusterName=cc
SlurmctldHost=cchead($address)
SlurmUser=slurm
AuthType=auth/munge
AuthInfo=cred_expire=$2
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
NodeName=n[1-2] NodeHostname=cchead NodeAddr=$address Port=[17001-17002] CPUs=$1 RealMemory=1000 State=UNKNOWN
PartitionName=cc Nodes=n[1-2] Default=YES MaxTime=INFINITE OverSubscribe=NO State=UP
CONF
    setpriv --reuid=munge --regid=munge --clear-groups sh -c 'mungekey -c -f && munged' || failed "munge"
    for node in n1 n2; do
        start_node "$node" || failed "slurmd of $node"
    done
    slurmctld || failed "slurmctld"
    await_nodes
}

start_node() { slurmd -N "$1"; }

# Waits until both nodes can take tasks.
await_nodes() {
    local idle=0
    for _ in $(seq 60); do
        idle=$(sinfo --noheader --Node --format=%T 2>/dev/null | grep -cx idle || true)
        [ "$idle" -eq 2 ] && return
        sleep 1
    done
    failed "two nodes are not idle after a minute"
}

# Prints the slurmstepd of a node's tasks and its slurmd, which have its log open.
daemons_of() { find /proc/[0-9]*/fd -lname "/var/log/slurm/slurmd-$1.log" 2>/dev/null | cut -d / -f 3 | sort -un || true; }

# Prints the processes of its tasks.
tasks_of() { grep -lzx "SLURMD_NODENAME=$1" /proc/[0-9]*/environ 2>/dev/null | cut -d / -f 3 || true; }

# Ends everything on a node at once, like a power failure: nothing reports the end of its tasks.
kill_node() {
    local process
    for process in $(daemons_of "$1") $(tasks_of "$1"); do
        kill -KILL "$process" 2>/dev/null || true
    done
}
