#!/usr/bin/env bash
# Installs the packages that ccbench needs besides a Rust toolchain, after printing each package with its purpose.
#   --lab   also installs what the lab needs (docs/lab.md): QEMU, and the tools that build its kernel
#   --test  also installs what the tests need: a browser, tcpdump, cpio, node, the Python packages of
#           tests/notebooks/requirements.txt in a directory of their own, and axe-core if there is npm
#   --faults also installs strace, which injects faults
#   --machines also installs what the test of several machines needs: QEMU, and tools that make the machines' disk
#   --slurm also installs Slurm, on which tests run job arrays
#   --dist  also installs the tools that build packages (scripts/dist.sh)
#   --test-dist also installs the tools that make the bare systems for testing packages (tests/dist/bare.sh)
#   --arm64 also installs what runs tests for 64-bit Arm: QEMU's user mode, and a linker and a libc for Arm
# Does nothing if everything is installed.
set -euo pipefail

if ! command -v cargo >/dev/null; then
    echo "setup: cargo is missing; install a Rust toolchain (1.95 or newer) from https://rustup.rs" >&2
    exit 1
fi

declare -A package=([iperf3]=iperf3 [ss]=iproute2 [ip]=iproute2 [ethtool]=ethtool [cc]=gcc [make]=make [pkg-config]=pkg-config)
if [ "${1:-}" = --lab ]; then
    package+=([qemu-system-x86_64]=qemu-system-x86 [flex]=flex [bison]=bison [bc]=bc [pahole]=dwarves [xz]=xz-utils
        [lz4]=lz4 [python3]=python3 [patch]=patch [depmod]=kmod [strip]=binutils)
fi
[ "${1:-}" = --dist ] && package+=([dpkg-shlibdeps]=dpkg-dev [patchelf]=patchelf [git]=git)
[ "${1:-}" = --test-dist ] && package+=([mmdebstrap]=mmdebstrap)
[ "${1:-}" = --faults ] && package+=([strace]=strace)
if [ "${1:-}" = --machines ]; then
    package+=([qemu-system-x86_64]=qemu-system-x86 [mmdebstrap]=mmdebstrap [mke2fs]=e2fsprogs [python3]=python3 [strip]=binutils)
fi
[ "${1:-}" = --slurm ] && package+=([slurmctld]=slurmctld [slurmd]=slurmd [sbatch]=slurm-client [munged]=munge)
[ "${1:-}" = --arm64 ] && package+=([qemu-aarch64]=qemu-user [aarch64-linux-gnu-gcc]=gcc-aarch64-linux-gnu)
[ "${1:-}" = --test ] && package+=([chromium]=chromium [chromedriver]=chromium-driver [tcpdump]=tcpdump [cpio]=cpio [node]=nodejs)
# Why each package is needed.
declare -A purpose=([iperf3]="generates the traffic" [iproute2]="ip, tc and ss: the tests compare results with them"
    [ethtool]="shows and sets offloads" [gcc]="links the Rust programs" [make]="builds the kernel modules"
    [pkg-config]="finds libelf and zlib" [libelf-dev]="loads BPF objects" [zlib1g-dev]="loads BPF objects"
    [clang]="compiles the congestion controls in BPF" [qemu-system-x86]="runs the lab, and machines of tests" [flex]="builds the lab's kernel"
    [bison]="builds the lab's kernel" [bc]="builds the lab's kernel" [dwarves]="writes the BTF of the lab's kernel"
    [xz-utils]="unpacks kernels and modules" [lz4]="builds the lab's kernel" [python3]="builds the lab's kernel, and a disk of tests"
    [patch]="patches the lab's kernel" [kmod]="prepares modules for the lab" [binutils]="strips the lab's kernel, and the agent of tests"
    [chromium]="renders reports in the tests" [chromium-driver]="drives the browser in the tests"
    [tcpdump]="captures packets in the tests" [cpio]="unpacks an archive in the tests" [nodejs]="runs Perfetto's trace processor in the tests"
    [python3-venv]="runs the notebooks in the tests, builds the wheel"
    [dpkg-dev]="finds what packages depend on" [patchelf]="puts libraries into the wheel" [git]="dates the packages"
    [slurmctld]="Slurm's controller, for tests" [slurmd]="Slurm's nodes, for tests" [slurm-client]="Slurm's commands, for tests"
    [munge]="authenticates Slurm's messages"
    [mmdebstrap]="makes bare systems and disks of machines for tests" [e2fsprogs]="makes the disk of machines of tests"
    [strace]="injects faults into system calls" [qemu-user]="runs the tests for Arm"
    [gcc-aarch64-linux-gnu]="compiles the congestion controls for Arm, and links" [libc6-dev-arm64-cross]="the libc for Arm")

missing=()
for program in "${!package[@]}"; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null || missing+=("${package[$program]}")
done
[[ "${1:-}" = --test || "${1:-}" = --dist ]] && { python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv); }
[ "${1:-}" = --arm64 ] && [ ! -e /usr/aarch64-linux-gnu/include/stdio.h ] && missing+=(libc6-dev-arm64-cross)
[ -e /usr/include/libelf.h ] || missing+=(libelf-dev)
[ -e /usr/include/zlib.h ] || missing+=(zlib1g-dev)

# Installs the Python packages of the tests (for example for notebooks and object stores) in a virtual environment in the cache.
python_packages() {
    local requirements venv
    requirements=$(dirname "$0")/../tests/notebooks/requirements.txt
    venv=${XDG_CACHE_HOME:-$HOME/.cache}/ccbench/python
    cmp -s "$requirements" "$venv/installed.txt" && return
    echo "setup: installing Python packages into $venv"
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$requirements"
    cp "$requirements" "$venv/installed.txt"
}

# Installs axe-core, the accessibility rules for the tests of pages, into the cache and not into the repository: it is third-party code
# (MPL-2.0) that only tests use. Without it, those tests fail in `make test`, and are skipped in `make test-fast`.
axe_version=4.14.1
axe_core() {
    local axe work
    axe=${XDG_CACHE_HOME:-$HOME/.cache}/ccbench/axe
    [ "$(cat "$axe/version" 2>/dev/null)" = "$axe_version" ] && return
    work=$(mktemp -d)
    if ! command -v npm >/dev/null; then
        echo "setup: there is no npm, so axe-core is not installed and accessibility tests fail; install npm"
    elif (cd "$work" && npm pack --silent "axe-core@$axe_version" && tar -xzf "axe-core-$axe_version.tgz") >/dev/null; then
        echo "setup: installing axe-core $axe_version into $axe"
        mkdir -p "$axe"
        cp "$work/package/axe.min.js" "$axe/axe.min.js"
        echo "$axe_version" >"$axe/version"
    else
        echo "setup: npm cannot fetch axe-core, so accessibility tests fail"
    fi
    rm -rf "$work"
}

# The oldest clang that compiles the BPF objects, as in crates/agent/build.rs.
clang_minimum=16
has_clang() {
    local name version
    for name in ${CLANG:-clang clang-21 clang-20 clang-19 clang-18 clang-17 clang-16}; do
        version=$("$name" --version 2>/dev/null | sed -n 's/.*version \([0-9]*\)\..*/\1/p' | head -n 1)
        [ -n "$version" ] && [ "$version" -ge "$clang_minimum" ] && return 0
    done
    return 1
}
has_clang || missing+=(clang)
if [ ${#missing[@]} -eq 0 ]; then
    [ "${1:-}" = --test ] && { python_packages; axe_core; }
    exit 0
fi

if ! command -v apt-get >/dev/null; then
    echo "setup: there is no apt-get; install the equivalents of these packages: ${missing[*]}" >&2
    exit 1
fi
as_root=()
how="as root"
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
        echo "setup: run as root: apt-get install ${missing[*]}" >&2
        exit 1
    }
    as_root=(sudo)
    how="with sudo"
fi
mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
echo "setup: these packages are missing; installing them with apt-get, $how (press Ctrl-C to stop):"
for name in "${missing[@]}"; do printf '  %-18s %s\n' "$name" "${purpose[$name]:-}"; done
# Keeps the package iperf3 from asking whether to start a service.
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
# If the default clang is too old, install the newest one available.
for index in "${!missing[@]}"; do
    [ "${missing[index]}" = clang ] || continue
    default=$(apt-cache policy clang | sed -n 's/.*Candidate: \(1:\)\?\([0-9]*\)\..*/\2/p')
    [ "${default:-0}" -ge "$clang_minimum" ] && continue
    for version in 21 20 19 18 17 16; do
        if apt-cache show "clang-$version" >/dev/null 2>&1; then
            missing[index]=clang-$version
            echo "setup: clang is too old here; installing clang-$version"
            break
        fi
    done
done
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
[ "${1:-}" = --test ] && { python_packages; axe_core; }
exit 0
