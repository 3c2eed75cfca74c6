#!/usr/bin/env bash
# Installs the packages of `make dist` in a Debian or Ubuntu without a compiler, and runs the quickstart: bare.sh DIST [SUITE [MIRROR]]
#   DIST    directory with the .deb and the wheel for this machine's architecture
#   SUITE   Debian's release [default: this machine's]; Ubuntu's if the mirror ends in ubuntu or ubuntu-ports
#   MIRROR  http://archive.ubuntu.com/ubuntu, for example [default: this machine's mirror of Debian]
# Needs root and mmdebstrap. Prints the seconds from the beginning of the installation to the first table, and fails above 90.
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
dist=$(realpath "${1:?usage: bare.sh DIST [SUITE [MIRROR]]}")
suite=${2:-$(. /etc/os-release && echo "$VERSION_CODENAME")}
limit_s=90

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$here/lab/apt.sh"
die() { echo "bare: $*" >&2; exit 1; }
[ "$(id -u)" -eq 0 ] || die "run it as root"
command -v mmdebstrap >/dev/null || die "mmdebstrap is missing: run \`apt-get install mmdebstrap\`"
deb=$(find "$dist" -name "ccbench_*_$(dpkg --print-architecture).deb" | sort -V | tail -n 1)
wheel=$(find "$dist" -name "ccbench-*_$(uname -m).whl" | sort -V | tail -n 1)
[ -n "$deb" ] && [ -n "$wheel" ] || die "$dist has not both packages: run \`make dist\`"

from=${3:-$(mirror "$suite")}
system=Debian components=main options=()
case ${from%/} in
*/ubuntu | */ubuntu-ports)
    # iperf3 is in universe.
    system=Ubuntu components="main universe"
    keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg
    [ -e "$keyring" ] || die "$keyring is missing: use a machine with Ubuntu, or install ubuntu-keyring"
    options=(--keyring="$keyring") ;;
esac
echo "bare: $system $suite"
source="deb $from $suite $components"
# This machine may reach the mirror through a proxy, and may have an old copy of it. mmdebstrap does not read the system's apt
# configuration. What it is given here also applies in the systems that it makes.
apt-config dump | grep -iE '^Acquire::(.*Proxy|Check-)' >"$work/apt.conf" || true
[ ! -s "$work/apt.conf" ] || options+=(--aptopt="$work/apt.conf")
# For a mirror with https.
mmdebstrap --quiet --variant=apt "${options[@]}" --include=ca-certificates "$suite" "$work/base.tar" "$source"

# Runs a command in a copy of the system, with file systems that end with the command.
in_root() { # ROOT COMMAND…
    unshare --mount --fork bash -c '
        set -e
        root=$1; shift
        mount --make-rprivate /
        mount -t proc proc "$root/proc"
        mount --rbind /sys "$root/sys"
        mount --rbind /dev "$root/dev"
        mount -t tmpfs tmpfs "$root/run"
        exec chroot "$root" /usr/bin/env -i HOME=/srv PATH=/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
            DEBIAN_FRONTEND=noninteractive "$@"' bash "$@"
}

root_of() { # NAME: a fresh copy
    local root=$work/$1
    mkdir "$root"
    tar -C "$root" -xf "$work/base.tar"
    cp --remove-destination /etc/resolv.conf /etc/hosts "$root/etc/"
    # This machine may trust its own certificate authority.
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/" 2>/dev/null || true
    cp "$here/plans/quickstart.toml" "$root/srv/"
    for tool in cc gcc clang cargo python3 iperf3; do
        ! in_root "$root" sh -c "command -v $tool" >/dev/null || die "the bare system has $tool"
    done
}

first_table() { # NAME INSTALL: prints the seconds up to the first table of simulated trials
    local root=$work/$1 begin_ns seconds
    begin_ns=$(date +%s%N)
    in_root "$root" sh -ec "$2" >"$work/$1.log" 2>&1 || { cat "$work/$1.log" >&2; die "$1: the installation failed"; }
    in_root "$root" ccbench run /srv/quickstart.toml --sim --out /srv/results >"$work/$1.out" ||
        die "$1: \`ccbench run --sim\` failed"
    seconds=$((($(date +%s%N) - begin_ns) / 1000000000))
    grep -q 'compete   second   bbr' "$work/$1.out" || { cat "$work/$1.out" >&2; die "$1: no table"; }
    echo "bare: $1: $seconds s from the beginning of the installation to the first table"
    [ "$seconds" -le "$limit_s" ] || die "$1: more than $limit_s s"
}

namespaces() { # NAME: real traffic; what matters is that trials run, not how well on this machine
    local root=$work/$1
    in_root "$root" sh -ec 'apt-get install -qq -y --no-install-recommends iperf3' >"$work/$1.log" 2>&1 ||
        { cat "$work/$1.log" >&2; die "$1: iperf3 cannot be installed"; }
    in_root "$root" ccbench run /srv/quickstart.toml --set repeat=1 --out /srv/kernel >"$work/$1.kernel" ||
        { cat "$work/$1.kernel" >&2; die "$1: \`ccbench run\` failed"; }
    echo "bare: $1: the quickstart ran in network namespaces"
}

root_of deb
cp "$deb" "$work/deb/srv/ccbench.deb"
first_table deb 'apt-get update -qq && apt-get install -qq -y --no-install-recommends /srv/ccbench.deb'
in_root "$work/deb" sh -ec 'ccbench --version; ccbench-agent --version
    for page in ccbench-run ccbench-agent ccbench-agent-serve; do test -s "/usr/share/man/man1/$page.1.gz"; done
    for unit in agent.service agent-front.service agent-worker.service agent-worker.socket agent-loader.service agent-loader.socket; do
        test -s "/usr/lib/systemd/system/ccbench-$unit"
    done
    test -s /usr/lib/sysusers.d/ccbench.conf; dpkg --verify ccbench
    for file in SECURITY.md plans/quickstart.toml; do test -s "/usr/share/doc/ccbench/$file"; done
    test -s /usr/share/ccbench/agent.conf.example; test -x /usr/share/ccbench/install-agent.sh'
namespaces deb
in_root "$work/deb" sh -ec 'apt-get purge -qq -y ccbench >/dev/null
    for path in /usr/bin/ccbench /usr/share/ccbench /usr/share/doc/ccbench; do test ! -e "$path"; done'

root_of wheel
cp "$wheel" "$work/wheel/srv/"
first_table wheel 'apt-get update -qq && apt-get install -qq -y --no-install-recommends python3-venv && python3 -m venv /venv &&
    /venv/bin/pip install --quiet --no-index /srv/*.whl'
in_root "$work/wheel" sh -ec 'ccbench-agent --version; ccbench cc list >/dev/null
    for file in SECURITY.md plans/quickstart.toml; do test -s "/venv/share/doc/ccbench/$file"; done
    /venv/bin/python -c "import ccbench; print(ccbench.program())"'
namespaces wheel
echo "bare: passed"
