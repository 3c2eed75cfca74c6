#!/bin/sh
# Makes a machine a node of a testbed (docs/testbeds.md). Runs as root; every command may be repeated.
#
#   install-agent.sh install PACKAGE            install ccbench: the .deb or the tarball of `make dist`; a file or a URL
#   install-agent.sh network [--offloads] ADDRESS... [SUBNET=GATEWAY...]
#                                               make the interfaces with these addresses those of a plan's node: forwarding, no
#                                               filter of reverse paths, no offloads (unless --offloads), routes
#   install-agent.sh join [--one-process] CONTROLLER ADDRESS
#                                               get a certificate from `ccbench pki serve` at CONTROLLER (HOST:PORT), with the token
#                                               on standard input, unless the node has one, and start the agent at ADDRESS (HOST:PORT)
#                                               of the control network: an unprivileged front and a worker, or with --one-process one
#                                               process with all privileges. A node on which the one process is enabled keeps it
#   install-agent.sh serve DEVICE PORT          in a container without systemd: run the agent in the foreground, in one process, at the
#                                               device's address, as soon as the node has a certificate
set -eu

etc=/etc/ccbench
# systemd makes this directory.
systemd=/run/systemd/system

die() {
    echo "install-agent: $1" >&2
    exit 1
}

# Whether the service that runs the agent is the one process. Both services are enabled only by mistake: they conflict.
has_one_process() {
    systemctl is-enabled -q ccbench-agent.service 2>/dev/null && ! systemctl is-enabled -q ccbench-agent-front.service 2>/dev/null
}

keeps_one_process() {
    echo "install-agent: this node keeps its agent in one process, ccbench-agent.service, which reads controllers' connections with all of \
the agent's privileges. To run an unprivileged front and a worker instead: \`systemctl disable --now ccbench-agent && systemctl enable \
--now ccbench-agent-front\`. They do not use CCBENCH_ARGUMENTS and the drop-ins of ccbench-agent.service: see \"Front and worker\" in \
docs/guide.md" >&2
}

# Installs what the agent needs: its libraries, a traffic generator, and tools for routes and offloads.
dependencies() {
    command -v iperf3 >/dev/null && command -v ip >/dev/null && command -v ethtool >/dev/null && return
    command -v apt-get >/dev/null || die "there is no apt-get; install iperf3, iproute2 and ethtool, then repeat the command"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends iperf3 iproute2 ethtool libelf1 zlib1g
}

install_package() {
    mkdir -p "$etc"
    # A URL always means the same package, but a file may be replaced.
    package=$1
    [ -f "$1" ] && package=$(sha256sum "$1")
    if [ "$(cat "$etc/package" 2>/dev/null)" = "$package" ] && command -v ccbench-agent >/dev/null; then
        return
    fi
    dependencies
    file=$1
    case $1 in
    http://*) die "$1: give an https URL; this program runs as root" ;;
    https://*)
        # The query may contain anything, such as a signature.
        file=${1%%[?#]*}
        file=$(mktemp -d)/${file##*/}
        if command -v curl >/dev/null; then curl -fsSL -o "$file" "$1"; else wget -q -O "$file" "$1"; fi
        ;;
    esac
    [ -f "$file" ] || die "$file: there is no such file"
    case $file in
    # apt-get treats an argument with a slash as a file.
    *.deb) apt-get install -y -qq --no-install-recommends "$(realpath "$file")" ;;
    *)
        mkdir -p /usr/local
        tar -C /usr/local --strip-components=1 --no-same-owner --no-overwrite-dir -xzf "$file"
        # The .deb prints this, too.
        if [ -d "$systemd" ] && has_one_process; then keeps_one_process; fi
        ;;
    esac
    if [ -d "$systemd" ]; then
        # The user of ccbench-agent-front.service, which packages of 0.1 do not have.
        systemd-sysusers ccbench.conf 2>/dev/null || true
        systemctl daemon-reload
        # The running agent may be an older program. The loader comes last, because a worker that ends may need it to undo its changes.
        # Patterns, because packages of 0.1 have only ccbench-agent.service.
        systemctl try-restart ccbench-agent.service 'ccbench-agent-worker*.service' 'ccbench-agent-front*.service'
        systemctl try-restart 'ccbench-agent-loader*.service'
    fi
    echo "$package" >"$etc/package"
}

# Prints the device with an address. Waits for it, because the address may be configured a moment later.
device() {
    for _ in $(seq 60); do
        found=$(ip -4 -o addr show to "$1/32" | awk '{ print $2; exit }')
        [ -n "$found" ] && echo "$found" && return
        sleep 1
    done
    die "no interface has the address $1"
}

network() {
    offloads=off
    sysctl -q -w net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
    for word; do
        case $word in
        --offloads) offloads=on ;;
        *=*) ip route replace "${word%%=*}" via "${word#*=}" ;;
        *)
            dev=$(device "$word")
            sysctl -q -w "net.ipv4.conf.$(echo "$dev" | tr . /).rp_filter=0"
            # Some drivers do not allow changes to some offloads.
            [ $offloads = on ] || for offload in tso gso gro lro; do
                ethtool -K "$dev" $offload off 2>/dev/null || echo "install-agent: $dev: $offload cannot be changed" >&2
            done
            ;;
        esac
    done
}

# Sets `unit`, the service that runs the agent, and `other`, the one that does not.
choose_unit() { # OPTION: of `join`
    unit=ccbench-agent-front other=ccbench-agent
    if [ "$1" = --one-process ]; then
        unit=ccbench-agent other=ccbench-agent-front
    elif [ -z "$1" ] && has_one_process; then
        keeps_one_process
        unit=ccbench-agent other=ccbench-agent-front
    fi
    [ $unit = ccbench-agent-front ] || return 0
    systemctl cat $unit.service >/dev/null 2>&1 || die "the installed ccbench has no $unit.service, which packages of 0.1 lack; install a \
newer package, or write join --one-process CONTROLLER ADDRESS"
    id -u ccbench-front >/dev/null 2>&1 || systemd-sysusers ccbench.conf ||
        die "there is no user ccbench-front; create it (\`useradd --system --user-group ccbench-front\`), then repeat the command"
    if grep -q '^CCBENCH_ARGUMENTS=.' "$etc/agent.conf" 2>/dev/null; then
        echo "install-agent: $etc/agent.conf: front and worker do not use CCBENCH_ARGUMENTS; CCBENCH_WORKER_ARGUMENTS is for the worker" >&2
    fi
}

join() { # OPTION CONTROLLER ADDRESS; the option may be empty
    [ "$1" != --front ] || echo "install-agent: \`--front\` is deprecated: front and worker are the default" >&2
    has_joined=no
    CCBENCH_JOIN_TOKEN=$(cat)
    if [ -e "$etc/node.pem" ]; then
        echo "install-agent: this node keeps its certificate, $etc/node.pem" >&2
    elif [ -z "$CCBENCH_JOIN_TOKEN" ]; then
        die "there is no token on standard input, and $etc/node.pem does not exist. If the authority has already issued a certificate to \
this node, revoke it there (\`ccbench pki revoke pki pki/NAME.pem\`) and remove pki/NAME.pem; then make a token"
    else
        export CCBENCH_JOIN_TOKEN
        ccbench-agent join --controller "$2" --dir "$etc"
        has_joined=yes
    fi
    [ -d "$systemd" ] || return 0
    systemctl daemon-reload
    choose_unit "$1"
    # Keep other lines of the file, such as CCBENCH_WORKER_ARGUMENTS: they are the administrator's. So is the address of the authority, unless
    # the node has just got its certificate from another one.
    authority=
    [ $has_joined = yes ] || authority=$(grep '^CCBENCH_AUTHORITY=' "$etc/agent.conf" 2>/dev/null || true)
    { grep -v -e '^CCBENCH_LISTEN=' -e '^CCBENCH_AUTHORITY=' "$etc/agent.conf" 2>/dev/null || true; } >"$etc/agent.conf.new"
    printf '%s\n' "CCBENCH_LISTEN=tcp:$3" "${authority:-CCBENCH_AUTHORITY=$2}" >>"$etc/agent.conf.new"
    mv "$etc/agent.conf.new" "$etc/agent.conf"
    # Packages of 0.1 have only one unit.
    systemctl disable -q --now $other 2>/dev/null || true
    systemctl enable -q $unit
    systemctl restart $unit
    # Packages of 0.1 have no timer.
    if systemctl cat ccbench-agent-renew.timer >/dev/null 2>&1; then systemctl enable -q --now ccbench-agent-renew.timer; fi
}

serve() {
    for file in ca.pem crl.pem node.key node.pem; do
        while [ ! -e "$etc/$file" ]; do sleep 1; done
    done
    address=$(ip -4 -o addr show dev "$1" | awk '{ sub("/.*", "", $4); print $4; exit }')
    [ -n "$address" ] || die "$1 has no IPv4 address"
    exec ccbench-agent serve --listen "tcp:$address:$2" --tls-ca "$etc/ca.pem" --tls-cert "$etc/node.pem" \
        --tls-key "$etc/node.key" --tls-crl "$etc/crl.pem"
}

command=${1:-}
[ $# -gt 0 ] && shift
case $command/$# in
install/1) install_package "$1" ;;
network/*) network "$@" ;;
join/2)
    # An option without CONTROLLER would be taken for it.
    case $1 in -*) die "join: write join [--one-process] CONTROLLER ADDRESS" ;; esac
    join "" "$@"
    ;;
join/3)
    case $1 in
    --one-process | --front) join "$@" ;;
    *) die "join: $1 is not an option; write join [--one-process] CONTROLLER ADDRESS" ;;
    esac
    ;;
serve/2) serve "$1" "$2" ;;
*)
    sed -n 's/^#   //p' "$0" >&2
    exit 2
    ;;
esac
