#!/usr/bin/env bash
# Installs what ccbench needs beside a Rust toolchain: iperf3 (traffic), iproute2 and ethtool (used by the
# tests as independent witnesses) and a C linker. Does nothing where all of it is there.
set -euo pipefail

if ! command -v cargo >/dev/null; then
    echo "setup: no cargo: install a Rust toolchain (1.90 or newer) from https://rustup.rs" >&2
    exit 1
fi

declare -A package=([iperf3]=iperf3 [ss]=iproute2 [ip]=iproute2 [ethtool]=ethtool [cc]=gcc)
missing=()
for program in "${!package[@]}"; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null || missing+=("${package[$program]}")
done
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
