#!/bin/sh
# Makes a machine a node of a testbed (docs/testbeds.md). Runs as root; every command may be repeated.
#
#   install-agent.sh install PACKAGE            install ccbench: the .deb or the tarball of `make dist`; a file or a URL
#   install-agent.sh network [--offloads] ADDRESS... [SUBNET=GATEWAY...]
#                                               make the interfaces with these addresses those of a plan's node: forwarding, no
#                                               filter of reverse paths, no offloads (unless --offloads), routes
#   install-agent.sh join [--front] CONTROLLER ADDRESS
#                                               get a certificate from `ccbench pki serve` at CONTROLLER (HOST:PORT), with the token
#                                               on standard input, unless the node has one, and start the agent at ADDRESS (HOST:PORT)
#                                               of the control network; with --front in two processes
#   install-agent.sh serve DEVICE PORT          in a container without systemd: run the agent in the foreground, at the device's
#                                               address, as soon as the node has a certificate
set -eu

etc=/etc/ccbench

die() {
    echo "install-agent: $1" >&2
    exit 1
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
        ;;
    esac
    if [ -d /run/systemd/system ]; then
        # The user of ccbench-agent-front.service, which packages of 0.1 do not have.
        systemd-sysusers ccbench.conf 2>/dev/null || true
        systemctl daemon-reload
        # The running agent may be an older program.
        systemctl try-restart 'ccbench-agent*.service'
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

join() {
    unit=ccbench-agent other=ccbench-agent-front
    if [ "$1" = --front ]; then
        unit=ccbench-agent-front other=ccbench-agent
        shift
    fi
    CCBENCH_JOIN_TOKEN=$(cat)
    if [ -e "$etc/node.pem" ]; then
        echo "install-agent: this node keeps its certificate, $etc/node.pem" >&2
    elif [ -z "$CCBENCH_JOIN_TOKEN" ]; then
        die "there is no token on standard input, and $etc/node.pem does not exist. If the authority has already issued a certificate to \
this node, revoke it there (\`ccbench pki revoke pki pki/NAME.pem\`) and remove pki/NAME.pem; then make a token"
    else
        export CCBENCH_JOIN_TOKEN
        ccbench-agent join --controller "$1" --dir "$etc"
    fi
    [ -d /run/systemd/system ] || return 0
    # Keep other lines of the file, such as CCBENCH_ARGUMENTS: they are the administrator's.
    { grep -v '^CCBENCH_LISTEN=' "$etc/agent.conf" 2>/dev/null || true; } >"$etc/agent.conf.new"
    echo "CCBENCH_LISTEN=tcp:$2" >>"$etc/agent.conf.new"
    mv "$etc/agent.conf.new" "$etc/agent.conf"
    systemctl daemon-reload
    # Packages of 0.1 have only one unit.
    systemctl disable -q --now $other 2>/dev/null || true
    systemctl enable -q $unit
    systemctl restart $unit
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
join/2) join "$1" "$2" ;;
join/3) [ "$1" = --front ] || die "join: $1 is not an option; write join --front CONTROLLER ADDRESS" && join "$@" ;;
serve/2) serve "$1" "$2" ;;
*)
    sed -n 's/^#   //p' "$0" >&2
    exit 2
    ;;
esac
