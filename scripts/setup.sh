#!/usr/bin/env bash
# Installs what ccbench needs beside a Rust toolchain: iperf3 (traffic), iproute2 and ethtool (used by the
# tests as independent witnesses) and a C linker. With --lab also what the lab needs (docs/lab.md): QEMU and what builds
# a kernel. Does nothing where all of it is there.
set -euo pipefail

if ! command -v cargo >/dev/null; then
    echo "setup: no cargo: install a Rust toolchain (1.90 or newer) from https://rustup.rs" >&2
    exit 1
fi

declare -A package=([iperf3]=iperf3 [ss]=iproute2 [ip]=iproute2 [ethtool]=ethtool [cc]=gcc)
if [ "${1:-}" = --lab ]; then
    package+=([qemu-system-x86_64]=qemu-system-x86 [make]=make [flex]=flex [bison]=bison [bc]=bc [pahole]=dwarves [xz]=xz-utils
        [lz4]=lz4 [python3]=python3 [patch]=patch [depmod]=kmod [strip]=binutils)
fi
missing=()
for program in "${!package[@]}"; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null || missing+=("${package[$program]}")
done
if [ "${1:-}" = --lab ]; then
    for header in gelf.h:libelf-dev zlib.h:zlib1g-dev; do
        echo "#include <${header%%:*}>" | cc -E - >/dev/null 2>&1 || missing+=("${header##*:}")
    done
fi
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
    echo "setup: please install: ${missing[*]}" >&2
    exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "setup: as root, please: apt-get install ${missing[*]}" >&2; exit 1; }
    as_root=(sudo)
fi
echo "setup: installing ${missing[*]}"
# iperf3's package asks whether to run it as a service: it must not.
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
