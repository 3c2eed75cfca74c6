#!/usr/bin/env bash
# Installs what ccbench needs beside a Rust toolchain: iperf3 (traffic), iproute2 and ethtool (used by the
# tests as independent witnesses), a C linker, and for the congestion controls in BPF clang, libelf and zlib. With --lab also
# what the lab needs (docs/lab.md): QEMU and what builds a kernel; with --test a browser, tcpdump, and Python's packages of
# tests/notebooks/requirements.txt in a folder of their own. Does nothing where all of it is there.
set -euo pipefail

if ! command -v cargo >/dev/null; then
    echo "setup: no cargo: install a Rust toolchain (1.95 or newer) from https://rustup.rs" >&2
    exit 1
fi

declare -A package=([iperf3]=iperf3 [ss]=iproute2 [ip]=iproute2 [ethtool]=ethtool [cc]=gcc [make]=make [pkg-config]=pkg-config)
if [ "${1:-}" = --lab ]; then
    package+=([qemu-system-x86_64]=qemu-system-x86 [flex]=flex [bison]=bison [bc]=bc [pahole]=dwarves [xz]=xz-utils
        [lz4]=lz4 [python3]=python3 [patch]=patch [depmod]=kmod [strip]=binutils)
fi
# What the tests look at reports and captures with.
[ "${1:-}" = --test ] && package+=([chromium]=chromium [chromedriver]=chromium-driver [tcpdump]=tcpdump)
missing=()
for program in "${!package[@]}"; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null || missing+=("${package[$program]}")
done
[ "${1:-}" = --test ] && { python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv); }
[ -e /usr/include/libelf.h ] || missing+=(libelf-dev)
[ -e /usr/include/zlib.h ] || missing+=(zlib1g-dev)

# What notebooks are tested with: nothing of it is installed for the whole system.
python_packages() {
    local wanted venv
    wanted=$(dirname "$0")/../tests/notebooks/requirements.txt
    venv=${XDG_CACHE_HOME:-$HOME/.cache}/ccbench/python
    cmp -s "$wanted" "$venv/installed.txt" && return
    echo "setup: installing Python packages into $venv"
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$wanted"
    cp "$wanted" "$venv/installed.txt"
}

# The same as in crates/agent/build.rs.
clang_wanted=16
has_clang() {
    local name version
    for name in ${CLANG:-clang clang-21 clang-20 clang-19 clang-18 clang-17 clang-16}; do
        version=$("$name" --version 2>/dev/null | sed -n 's/.*version \([0-9]*\)\..*/\1/p' | head -n 1)
        [ -n "$version" ] && [ "$version" -ge "$clang_wanted" ] && return 0
    done
    return 1
}
has_clang || missing+=(clang)
if [ ${#missing[@]} -eq 0 ]; then
    [ "${1:-}" = --test ] && python_packages
    exit 0
fi

if ! command -v apt-get >/dev/null; then
    echo "setup: please install: ${missing[*]}" >&2
    exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "setup: as root, please: apt-get install ${missing[*]}" >&2; exit 1; }
    as_root=(sudo)
fi
# iperf3's package asks whether to run it as a service: it must not.
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
# Where the default clang is too old, the newest that there is.
for index in "${!missing[@]}"; do
    [ "${missing[index]}" = clang ] || continue
    default=$(apt-cache policy clang | sed -n 's/.*Candidate: \(1:\)\?\([0-9]*\)\..*/\2/p')
    [ "${default:-0}" -ge "$clang_wanted" ] && continue
    for version in 21 20 19 18 17 16; do
        if apt-cache show "clang-$version" >/dev/null 2>&1; then
            missing[index]=clang-$version
            break
        fi
    done
done
echo "setup: installing ${missing[*]}"
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
[ "${1:-}" = --test ] && python_packages
exit 0
