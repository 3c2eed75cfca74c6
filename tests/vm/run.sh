#!/bin/bash
# Tests every congestion control as a module and as a BPF object in real Debian kernels: make test-vm. Usage: run.sh [SERIES ...]
# CCBENCH_VM_ONLY="ta prague" runs only these; CCBENCH_VM_LIMIT_S (900) is the time that one kernel may take.
# Needs about 2 GB in the cache directory, and installs missing Debian packages (as root).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
kmod=$here/../../kmod
limit=${CCBENCH_VM_LIMIT_S:-900}
series=${*:-6.1 6.12 7.2}
declare -A package=([qemu-system-x86_64]=qemu-system-x86 [busybox]=busybox-static [cpio]=cpio [xz]=xz-utils [gcc-12]=gcc-12
	[iperf3]=iperf3 [ethtool]=ethtool [clang-19]=clang-19 [python3]=python3)
missing=
for program in "${!package[@]}"; do command -v "$program" >/dev/null || missing="$missing ${package[$program]}"; done
[ -e /usr/include/libelf.h ] || missing="$missing libelf-dev"
[ -e /usr/include/zlib.h ] || missing="$missing zlib1g-dev"
if [ -n "$missing" ]; then
	[ "$(id -u)" = 0 ] || { echo "test-vm: install$missing" >&2; exit 1; }
	# shellcheck disable=SC2086 # words
	apt-get install -y -qq --no-install-recommends $missing >&2
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/ccb-vm-run.XXXXXX")
trap 'rm -rf "$work"' EXIT
make -s -C "$kmod" bpf build/ccsim
mkdir -p "$work/files/bpf" "$work/files/mods"
"$here/loader.sh" "$work/files/load"
(cd "$here/../.." && cargo build --locked --quiet -p ccbench-agent)
target=$(cd "$here/../.." && cargo metadata --locked --no-deps --format-version 1 |
	python3 -c 'import json,sys; print(json.load(sys.stdin)["target_directory"])')
strip -o "$work/files/agent" "$target/debug/ccbench-agent"
echo "${CCBENCH_VM_ONLY:-vegas ta cx dctcp prague bbr2 bbr3}" >"$work/files/only"
cp "$kmod"/build/bpf/ccb_*.bpf.o "$work/files/bpf/"
"$kmod/sim/bpf_agree.py" "$kmod/build/ccsim" --rows "$work/files/rows.bin"

failed=
for one in $series; do
	read -r k root <<<"$("$here/fetch.sh" "$one")"
	kdir=$root/usr/src/linux-headers-$k
	# Debian's compiler of that kernel or the nearest one that is here, and what that compiler cannot do.
	arguments="CC=gcc-12 HOSTCC=gcc-12 CONFIG_DEBUG_INFO_BTF_MODULES="
	case $one in 7.*) arguments="$arguments CONFIG_CC_HAS_MIN_FUNCTION_ALIGNMENT=" ;; esac
	make -s -C "$kmod" module KDIR="$kdir" MODULE_OUT="$work/$k" KBUILD_ARGS="$arguments W=1" >"$work/$k.log" 2>&1 ||
		{ cat "$work/$k.log"; exit 1; }
	cp -r "$here/agree" "$work/$k/"
	# shellcheck disable=SC2086 # words
	make -s -C "$kdir" M="$work/$k/agree" $arguments modules >>"$work/$k.log" 2>&1 || { cat "$work/$k.log"; exit 1; }
	if grep -i 'warning:' "$work/$k.log" | grep -v 'pahole version\|compiler differs'; then
		echo "test-vm: $k: the build warns" >&2
		failed="$failed $k"
	fi
	cp "$work/$k"/module/*.ko "$work/$k"/agree/*.ko "$work/files/mods/"
	strip -g "$work"/files/mods/*.ko
	# The same module as another kernel's. A string in it tells for what it was built; a kernel with CONFIG_MODVERSIONS (Debian's)
	# compares only what follows the release.
	mkdir -p "$work/files/other"
	LC_ALL=C sed 's/\(vermagic=[^ ]*\) SMP /\1 UP_ /' "$work/files/mods/ccb_ta.ko" >"$work/files/other/ccb_ta.ko"
	start=$(date +%s)
	"$here/boot.sh" "$k" "$root" "$here/guest.sh" "$work/files" "$limit" | tee "$work/$k.out"
	grep -q '^@@ end 0' "$work/$k.out" && ! grep -q '^FAIL' "$work/$k.out" || failed="$failed $k"
	echo "test-vm: $k: $(grep -c '^ok' "$work/$k.out" || true) checks passed, $(grep -c '^FAIL' "$work/$k.out" || true) failed, $(($(date +%s) - start)) s"
done
[ -z "$failed" ] || { echo "test-vm: failed:$failed" >&2; exit 1; }
