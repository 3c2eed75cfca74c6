#!/usr/bin/env bash
# Installs the packages of `make dist` in a Debian or Ubuntu without a compiler, and runs the quickstart: bare.sh DIST [SUITE [MIRROR]]
#   DIST    directory with the .deb, the wheel and the tarball for this machine's architecture
#   SUITE   Debian's release [default: this machine's]; Ubuntu's if the mirror ends in ubuntu or ubuntu-ports
#   MIRROR  http://archive.ubuntu.com/ubuntu, for example [default: this machine's mirror of Debian]
# Also unpacks the container, which has a system of its own, and runs its entry point; installs the lab's kernels in the file LAB_KERNELS,
# by default those in DIST. What is not there is skipped with a note, and so are uvx and the Python reader if pip cannot install uv and
# polars. Needs root, mmdebstrap and python3. Prints the seconds from the beginning of the installation to the first table, and fails above
# 90.
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
dist=$(realpath "${1:?usage: bare.sh DIST [SUITE [MIRROR]]}")
suite=${2:-$(. /etc/os-release && echo "$VERSION_CODENAME")}
limit_s=90

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$here/lab/apt.sh"
die() { echo "bare: $*" >&2; exit 1; }
skipped=()
skip() { # CASE WHY
    skipped+=("$1")
    echo "bare: $1: skipped: $2" >&2
}
[ "$(id -u)" -eq 0 ] || die "run it as root"
command -v mmdebstrap >/dev/null || die "mmdebstrap is missing: run \`apt-get install mmdebstrap\`"
command -v python3 >/dev/null || die "python3 is missing: run \`apt-get install python3\`"
newest() { find "$dist" -name "$1" | sort -V | tail -n 1; } # PATTERN
arch=$(uname -m)
deb=$(newest "ccbench_*_$(dpkg --print-architecture).deb")
wheel=$(newest "ccbench-*_$arch.whl")
tarball=$(newest "ccbench-*-$arch-unknown-linux-gnu.tar.gz")
image=$(newest "ccbench-*-$arch.oci.tar")
kernels=${LAB_KERNELS:-$(newest "ccbench-lab-kernels-*-$arch.tar.gz")}
for package in "$deb" "$wheel" "$tarball"; do
    [ -n "$package" ] || die "$dist has not all of .deb, wheel and tarball: run \`make dist\`"
done

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

# This machine may reach the index of Python packages through a proxy, or use another one.
index=()
for name in http_proxy https_proxy no_proxy PIP_INDEX_URL; do [ -z "${!name:-}" ] || index+=("$name=${!name}"); done

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
        exec chroot "$root" /usr/bin/env -i HOME=/srv PATH=/venv/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
            DEBIAN_FRONTEND=noninteractive PIP_CERT=/etc/ssl/certs/ca-certificates.crt "$@"' bash "$1" "${index[@]}" "${@:2}"
}

has() { in_root "$work/$1" sh -c "command -v $2" >/dev/null; } # NAME TOOL
has_no_compiler() { # NAME
    for tool in cc gcc clang cargo; do ! has "$1" $tool || die "$1: the system has the compiler $tool"; done
}

root_of() { # NAME: a fresh copy
    local root=$work/$1
    mkdir "$root"
    tar -C "$root" -xf "$work/base.tar"
    cp --remove-destination /etc/resolv.conf /etc/hosts "$root/etc/"
    # This machine may trust its own certificate authority.
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/" 2>/dev/null || true
    cp "$here/plans/quickstart.toml" "$root/srv/"
    has_no_compiler "$1"
    for tool in python3 iperf3; do ! has "$1" $tool || die "$1: the system has $tool"; done
}

has_table() { # NAME OUTPUT: the quickstart's table is in a file
    grep -q 'compete   second   bbr' "$2" || { cat "$2" >&2; die "$1: no table"; }
}

simulate() { # NAME RESULTS COMMAND…: the quickstart in the simulator
    in_root "$work/$1" "${@:3}" run /srv/quickstart.toml --sim --out "$2" >"$work/$1.out" || die "$1: \`ccbench run --sim\` failed"
    has_table "$1" "$work/$1.out"
}

first_table() { # NAME INSTALL: prints the seconds up to the first table of simulated trials
    local root=$work/$1 begin_ns seconds
    begin_ns=$(date +%s%N)
    in_root "$root" sh -ec "$2" >"$work/$1.log" 2>&1 || { cat "$work/$1.log" >&2; die "$1: the installation failed"; }
    simulate "$1" /srv/results ccbench
    seconds=$((($(date +%s%N) - begin_ns) / 1000000000))
    echo "bare: $1: $seconds s from the beginning of the installation to the first table"
    [ "$seconds" -le "$limit_s" ] || die "$1: more than $limit_s s"
}

lab() { # NAME: a trial on an installed kernel of the lab
    in_root "$work/$1" ccbench run /srv/quickstart.toml --lab --engine uml --set repeat=1 --out /srv/lab >"$work/$1.lab" ||
        { cat "$work/$1.lab" >&2; die "$1: \`ccbench run --lab\` failed"; }
    has_table "$1" "$work/$1.lab"
    echo "bare: $1: the quickstart ran in the lab"
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
    for unit in agent.service agent-front.service agent-worker.service agent-worker.socket agent-loader.service agent-loader.socket \
        agent-renew.service agent-renew.timer; do
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
file=/srv/${wheel##*/}
if in_root "$work/wheel" sh -ec 'python3 -m venv /uv && /uv/bin/pip install --quiet uv' >"$work/wheel.log" 2>&1; then
    # Offline: the wheel needs no other package.
    simulate wheel /srv/uvx env UV_PYTHON_DOWNLOADS=never /uv/bin/uvx --offline --from "$file" ccbench
    echo "bare: wheel: uvx ran the quickstart"
else
    skip uvx "pip cannot install uv: $(tail -n 1 "$work/wheel.log")"
fi
if in_root "$work/wheel" /venv/bin/pip install --quiet "${file}[polars]" >"$work/wheel.log" 2>&1; then
    cp "$here/tests/dist/installed.py" "$work/wheel/srv/"
    in_root "$work/wheel" /venv/bin/python /srv/installed.py /srv/results /srv/figures || die "wheel: the Python reader failed"
    echo "bare: wheel: the Python reader read the run and drew a figure"
else
    skip reader "pip cannot install polars: $(tail -n 1 "$work/wheel.log")"
fi

root_of tarball
cp "$tarball" "$work/tarball/srv/ccbench.tar.gz"
first_table tarball 'apt-get update -qq && apt-get install -qq -y --no-install-recommends libelf1 zlib1g &&
    tar -C /usr/local --strip-components=1 -xf /srv/ccbench.tar.gz'
in_root "$work/tarball" sh -ec 'ccbench-agent --version; test -s /usr/local/lib/systemd/system/ccbench-agent-front.service
    test -x /usr/local/share/ccbench/install-agent.sh'
# Where cargo binstall looks for the programs (bin-dir in Cargo.toml).
inside=${tarball##*/}
inside=${inside%.tar.gz}
tar -tzf "$tarball" "$inside/bin/ccbench" "$inside/bin/ccbench-agent" >/dev/null || die "tarball: the programs are not in $inside/bin"

if [ -n "$kernels" ]; then
    cp "$kernels" "$work/tarball/srv/kernels.tar.gz"
    in_root "$work/tarball" ccbench lab install /srv/kernels.tar.gz
    lab tarball
else
    skip lab "no package of the lab's kernels (only for x86-64) in $dist: run \`make dist-lab\`"
fi

if [ -n "$image" ]; then
    mkdir "$work/image"
    python3 -B "$here/scripts/oci.py" "$image" "$work/image" >"$work/image.words" || die "image: $image cannot be unpacked"
    # The working directory, and the entry point.
    mapfile -t words <"$work/image.words"
    cp "$here/plans/quickstart.toml" "$work/image/srv/"
    has_no_compiler image
    simulate image /srv/results sh -c 'cd "$0" && exec "$@"' "${words[@]}"
    in_root "$work/image" sh -ec 'ccbench-agent --version; command -v iperf3 >/dev/null'
    echo "bare: image: its entry point ran the quickstart"
    if [ -d "$work/image/usr/share/ccbench/lab" ]; then lab image; else skip "lab of the image" "the image has no kernels"; fi
else
    skip image "no container in $dist: run \`make dist\` with podman or docker"
fi

[ ${#skipped[@]} -eq 0 ] || printf 'bare: skipped: %s\n' "${skipped[@]}"
echo "bare: passed"
