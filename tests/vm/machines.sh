#!/usr/bin/env bash
# Runs E1 over mTLS on three machines with their own kernels, boot loaders and clocks (QEMU): machines.sh DIRECTORY_OF_PROGRAMS [AGENT]
#
#   src -- router -- dst     the network of the experiment: UDP sockets of QEMU
#   br0                      the control network: this machine and the three
#
# 1. The machines join with tokens; agents run as services, front and worker.
# 2. src is rebooted into another kernel between two trials of a run.
# 3. dst is cut off from the control network for 2 s, which the trial survives, and for 20 s, which ends the trial: it is repeated.
# 4. src is reset during a trial: it is back in its usual kernel and is rebooted into the plan's kernel, and the trial is repeated.
# 5. The clock of dst is set by a day during a trial: it has the same length, and the verdict has `clock_step`. The offsets of all clocks are compared with
#    offsets that are measured through the machines' serial ports.
# 6. router renews its certificate through ccbench-agent-renew.service, and its front uses the new one.
# 7. On router, the service manager must clean up: the worker is stopped (WatchdogSec= ends it and starts another one); the front is killed;
#    the agent as one service without Restart= is killed (ExecStopPost=). Each time, the machine must be as it was within a minute or two,
#    which is long, because it is emulated.
#
# AGENT is the program that the machines run, a release build. In emulation, preparing a trial may block a debug build for longer than the 5
# s after which its front considers it lost.
#
# Needs root, mmdebstrap, QEMU, 3 GB of memory, and about 13 to 18 minutes on two CPUs without KVM (2 more the first time, for the disk image,
# which stays in the cache). Runs in its own namespaces: nothing of this machine changes. CCBENCH_MACHINES_KEEP=DIRECTORY keeps consoles,
# logs and results.
set -euo pipefail
bin=$(realpath "${1:?usage: machines.sh DIRECTORY_OF_PROGRAMS [AGENT]}")
agent=$(realpath "${2:-$bin/ccbench-agent}")
here=$(cd "$(dirname "$0")" && pwd)
files=$here/machines
source=$here/../..
PATH=$PATH:/usr/sbin:/sbin

if [ -z "${CCBENCH_MACHINES_DIR:-}" ]; then
    [ "$(id -u)" -eq 0 ] || { echo "skipped: needs root"; exit 0; }
    declare -A package=([qemu-system-x86_64]=qemu-system-x86 [mmdebstrap]=mmdebstrap [python3]=python3 [mke2fs]=e2fsprogs [strip]=binutils [bridge]=iproute2)
    for program in "${!package[@]}"; do
        command -v "$program" >/dev/null || { echo "skipped: $program is missing (apt-get install ${package[$program]})"; exit 0; }
    done
    # Before the namespaces are created, which have no network.
    IMAGE=$("$files/image.sh")
    CCBENCH_MACHINES_DIR=${CCBENCH_MACHINES_KEEP:-$(mktemp -d)}
    mkdir -p "$CCBENCH_MACHINES_DIR"
    export IMAGE CCBENCH_MACHINES_DIR
    [ -n "${CCBENCH_MACHINES_KEEP:-}" ] || trap 'rm -rf "$CCBENCH_MACHINES_DIR"' EXIT
    status=0
    unshare --net --mount --pid --fork --kill-child --mount-proc "$0" "$bin" "$agent" || status=$?
    exit "$status"
fi
read -r image usual other <<<"$IMAGE"
dir=$CCBENCH_MACHINES_DIR
cd "$dir"
controller=10.87.0.254
begin=$SECONDS

say() { echo "machines: $((SECONDS - begin)) s: $*"; }
fail() {
    say "FAIL: $*"
    # Consoles contain the journals, with the messages of agents.
    for file in *.log; do
        echo "--- $file"
        tail -n 60 "$file" | sed 's/\r//'
    done
    exit 1
}
until_true() { # SECONDS WHAT COMMAND…
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || fail "no $what"
        sleep 1
    done
}

ip link set lo up
ip link add br0 type bridge
ip addr add $controller/24 dev br0
ip link set br0 up

# What is specific to each machine, as the archive on its second disk.
mkdir -p agent/usr/local/bin agent/usr/local/lib/systemd/system agent/usr/local/lib/sysusers.d
strip -o agent/usr/local/bin/ccbench-agent "$agent"
cp "$source"/systemd/ccbench-agent*.{service,socket} agent/usr/local/lib/systemd/system/
cp "$source/systemd/ccbench.sysusers" agent/usr/local/lib/sysusers.d/ccbench.conf
cp "$files/setup.sh" "$files/join.sh" "$files/commands.sh" "$files/state.sh" "$source/scripts/install-agent.sh" agent/
"$bin/ccbench" pki init pki >/dev/null

start() { # NAME NUMBER REBOOTS EXPERIMENT ROUTES UDP…: UDP is OWN_PORT:PORT, one for each device of the experiment
    local name=$1 number=$2 udp own index=0
    local control=10.87.0.$number
    cat >agent/machine <<END
NAME=$name
CONTROL=$control
CONTROLLER=$controller:7701
REBOOTS=$3
EXPERIMENT="$4"
ROUTES="$5"
END
    shift 5
    "$bin/ccbench" pki token pki "$control" >agent/token
    tar -c -f "$name.tar" -C agent .
    ip tuntap add dev "tap$number" mode tap
    ip link set "tap$number" master br0 up
    local network=(-netdev "tap,id=control,ifname=tap$number,script=no,downscript=no"
        -device "virtio-net-pci,netdev=control,mac=52:54:00:87:0$number:00")
    for udp; do
        index=$((index + 1))
        own=${udp%%:*}
        network+=(-netdev "socket,id=path$index,udp=127.0.0.1:${udp##*:},localaddr=127.0.0.1:$own"
            -device "virtio-net-pci,netdev=path$index,mac=52:54:00:87:0$number:0$index")
    done
    # Writes to the disk last as long as the process, across reboots of the machine.
    qemu-system-x86_64 -name "$name" -accel tcg,thread=single -cpu max -m 768 -smp 1 -nodefaults -device VGA -display none -rtc base=utc \
        -serial "file:$name.console.log" -serial "unix:$name.commands,server=on,wait=off" -monitor "unix:$name.monitor,server=on,wait=off" \
        -drive "file=$image,if=virtio,format=raw,snapshot=on" -drive "file=$name.tar,if=virtio,format=raw,readonly=on" \
        "${network[@]}" >"$name.qemu.log" 2>&1 &
}
start src 1 yes "eth1=10.88.1.2" "10.88.2.0/24=10.88.1.1" 7001:7002
start router 2 no "eth1=10.88.1.1 eth2=10.88.2.1" "" 7002:7001 7003:7004
start dst 3 no "eth1=10.88.2.2" "10.88.1.0/24=10.88.2.1" 7004:7003
"$bin/ccbench" pki serve pki --listen $controller:7701 >serve.log 2>&1 &
authority=$!
# It ends when no token is left.
decided() { ! kill -0 $authority || grep -qaiE 'kernel panic|emergency mode|Failed to start .*ccbench-machine' ./*.console.log; }
until_true 1200 "certificate of every machine" decided
! kill -0 $authority 2>/dev/null || fail "a machine has not joined"
wait $authority || fail "the authority ended with $?"
say "the machines have joined"

# E1 one against one (plans/coexistence/1v1.toml) with threshold adaptation, at a tenth of its rate and a sixth of its time, because the
# machines are emulated.
plan() { # KERNEL…: of src, one point for each
    local kernels
    kernels=$(printf '"%s", ' "$@")
    cat <<END
name   = "e1-on-machines"
repeat = 1
order  = "as-written"
seed   = 1

[nodes]
src    = { agent = "10.87.0.1:7700", address = "10.88.1.2" }
router = { agent = "10.87.0.2:7700", address = "10.88.1.1" }
dst    = { agent = "10.87.0.3:7700", address = "10.88.2.2" }

[links.bottleneck]
node   = "router"
toward = "dst"
rate   = "10mbit"
queue  = { kind = "bfifo", limit = "18750B" }
backend = "kernel" # one in userspace would release packets late

[links.delay]
node   = "router"
toward = "src"
delay  = "10ms"
backend = "kernel"

[cc.scheme]
algorithm = "ta"

[flows.delay_based]
from = "src"
to   = "dst"
cc   = "scheme"

[flows.loss_based]
from = "src"
to   = "dst"
cc   = "cubic"

[[phases]]
name   = "alone"
length = "10s"
flows  = ["delay_based"]

[[phases]]
name   = "compete"
length = "10s"
flows  = ["delay_based", "loss_based"]

[[phases]]
name   = "resume"
length = "10s"
flows  = ["delay_based"]

[matrix]
"nodes.src.kernel_release" = [${kernels%, }]
END
}
plan "$usual" "$other" >kernels.toml
plan "$other" >other.toml
described() { timeout 60 "$bin/ccbench" describe kernels.toml --pki pki >describe.log 2>&1; }
until_true 300 "answer of every agent" described

run() { # NAME PLAN
    timeout 2400 "$bin/ccbench" run "$2" --pki pki --out "$1" --await-nodes 15min --await-reboot 15min >"$1.log" 2>&1
}
check() { # NAME ATTEMPTS KERNEL…
    local name=$1
    shift
    python3 "$files/check.py" "$(find "$name" -mindepth 1 -maxdepth 1 -type d | head -1)" "$@" || fail "$name"
    "$bin/ccbench" verify "$(find "$name" -mindepth 1 -maxdepth 1 -type d | head -1)" >>"$name.log" 2>&1 || fail "$name: its files"
    say "$name: passed"
}
begun() { grep -qs '"event":"trial_begin"' "$1"/*/journal.ndjson || ! kill -0 "$running"; }
# In the bridge, so that the machine's interface keeps its carrier, as when a switch fails: no machine sees a link go down.
cut_off() { # NUMBER SECONDS
    bridge link set dev "tap$1" state disabled
    sleep "$2"
    bridge link set dev "tap$1" state forwarding
}
in_trial() { # NAME: starts a run, and returns in the second phase of its trial
    run "$1" other.toml &
    running=$!
    until_true 600 "trial of $1" begun "$1"
    sleep 14
}

run reboot kernels.toml || fail "the run with a reboot ended with $?"
check reboot 2 "$usual" "$other"
boots() { grep -c "Linux version $1 " src.console.log || true; } # of src; the kernel's line, as long as nothing else writes to the console
[ "$(boots "$other")" -eq 1 ] || fail "src was rebooted $(boots "$other") times"

in_trial partition-2s
cut_off 3 2
wait $running || fail "the run with a partition of 2 s ended with $?"
check partition-2s 1 "$other"

in_trial partition-20s
cut_off 3 20
wait $running || fail "the run with a partition of 20 s ended with $?"
check partition-20s 2 "$other"

before=$(boots "$usual")
in_trial reset
python3 "$files/monitor.py" src.monitor system_reset
wait $running || fail "the run with a reset ended with $?"
check reset 2 "$other"
[ "$(boots "$usual")" -eq $((before + 1)) ] || fail "the kernel of the plan was selected for more than one boot"

in_machine() { python3 "$files/command.py" "$1.commands" "$2"; } # NAME COMMAND

clocks() { python3 "$files/clocks.py" "$@" || fail "clocks"; }
clocks measure clocks.json src router dst
run clock-step other.toml &
running=$!
until_true 600 "traffic of clock-step" in_machine dst 'pgrep -x iperf3'
sleep 5
in_machine dst "date -s '+1 day'" || fail "the clock of dst cannot be set"
wait $running || fail "the run with a clock that was set ended with $?"
in_machine dst "date -s '-1 day'" || fail "the clock of dst cannot be set back"
clocks measure clocks.json src router dst
check clock-step 1 "$other"
stepped=$(find clock-step -mindepth 1 -maxdepth 1 -type d | head -1)
"$bin/ccbench" export csv "$stepped" --table events --output - >events.csv || fail "the events of clock-step"
clocks check clocks.json "$stepped" events.csv dst

# Without --if-due, because the present certificate is not due.
"$bin/ccbench" pki serve pki --listen $controller:7701 --until-stopped >renew.log 2>&1 &
authority=$!
until_true 30 "authority that renews certificates" grep '^listening' renew.log
certificate() { in_machine router 'sha256sum </etc/ccbench/node.pem'; }
earlier=$(certificate) || fail "router has no certificate"
[ "$earlier" = "$(sha256sum <pki/10.87.0.2.pem)" ] || fail "the certificate of router is not that of the authority's file"
renewal=/run/systemd/system/ccbench-agent-renew.service.d
start_renewal="ExecStart=\\nExecStart=/usr/local/bin/ccbench-agent renew --dir /etc/ccbench"
in_machine router "mkdir -p $renewal && printf '[Service]\n$start_renewal\n' >$renewal/now.conf && systemctl daemon-reload" ||
    fail "the unit that renews router's certificate cannot be changed"
in_machine router 'systemctl start ccbench-agent-renew' || fail "the unit has not renewed the certificate of router"
later=$(certificate) || fail "router has no certificate after its renewal"
[ "$later" != "$earlier" ] || fail "the certificate of router is the earlier one"
[ "$later" = "$(sha256sum <pki/10.87.0.2.pem)" ] || fail "the renewed certificate of router is not that of the authority's file"
kill $authority
wait $authority || true
# The front presents the new certificate within a second.
presented() {
    python3 -c 'import ssl, sys
shown, kept = ssl.get_server_certificate(("10.87.0.2", 7700)), open("pki/10.87.0.2.pem").read()
sys.exit(ssl.PEM_cert_to_DER_cert(shown) != ssl.PEM_cert_to_DER_cert(kept))'
}
until_true 60 "new certificate of router's front" presented
until_true 60 "answer of every agent after a renewal" described
say "renewed-certificate: passed"

# What a trial may change on router, compared with what is in /run/state: 0 if nothing has changed, 1 if something has.
changes() { in_machine router 'sh /run/machine/state.sh | diff /run/state -'; }
is_clean() { changes >changes.log; }
is_changed() {
    local status=0
    changes >changes.log || status=$?
    [ $status -eq 1 ]
}
in_changed_trial() { # NAME: starts a run that does not wait for a lost node, and returns when router has been changed
    until_true 180 "answer of every agent" described
    in_machine router 'sh /run/machine/state.sh >/run/state' || fail "$1: no state of router"
    timeout 600 "$bin/ccbench" run other.toml --pki pki --out "$1" --await-nodes 1s >"$1.log" 2>&1 &
    running=$!
    until_true 300 "changes of router by $1" is_changed
    sleep 3
    # The fault follows.
    begun_at=$SECONDS
}
ended() { # NAME SECONDS: router is as it was within this time after the fault
    until_true $(($2 - (SECONDS - begun_at))) "clean router within $2 s of $1; changes.log has its changes" is_clean
    say "$1: passed, router was clean after $((SECONDS - begun_at)) s"
    kill $running 2>/dev/null || true
    wait $running || true
}
property() { in_machine router "systemctl show -P $2 $1"; } # UNIT PROPERTY
restarted() { # UNIT PID: another process runs
    local pid
    pid=$(property "$1" MainPID) && [ "$pid" -ne 0 ] && [ "$pid" -ne "$2" ]
}

main_pid() { property "$1" MainPID || fail "router does not answer" >&2; } # UNIT

in_changed_trial stopped-worker
worker=$(main_pid ccbench-agent-worker)
in_machine router "kill -STOP $worker" || fail "the worker cannot be stopped"
until_true 120 "another worker after one that was stopped" restarted ccbench-agent-worker "$worker"
until_true 30 "sign that the watchdog has ended the stopped worker" grep "ccbench-agent-worker.service: Watchdog timeout" router.console.log
ended stopped-worker 150

in_changed_trial killed-front
front=$(main_pid ccbench-agent-front)
worker=$(main_pid ccbench-agent-worker)
in_machine router "kill -KILL $front" || fail "the front cannot be killed"
ended killed-front 60
until_true 60 "another front after one that was killed" restarted ccbench-agent-front "$front"
[ "$(main_pid ccbench-agent-worker)" = "$worker" ] || fail "the end of the front has ended the worker"

# Conflicts= ends front and worker.
drop_in=/run/systemd/system/ccbench-agent.service.d
in_machine router "mkdir -p $drop_in && printf '[Service]\nRestart=no\n' >$drop_in/restart.conf && systemctl daemon-reload" ||
    fail "Restart= of router's agent cannot be changed"
in_machine router 'systemctl start ccbench-agent' || fail "router cannot run its agent as one service"
in_changed_trial killed-agent
agent=$(main_pid ccbench-agent)
in_machine router "kill -KILL $agent" || fail "the agent cannot be killed"
has_failed() { [ "$(property ccbench-agent ActiveState)" = failed ]; }
until_true 60 "end of a killed agent without Restart=" has_failed
in_machine router '! pgrep -x ccbench-agent' || fail "an agent runs on router, so ExecStopPost= may not have undone its changes"
ended killed-agent 60
say "all passed"
