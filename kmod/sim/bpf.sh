#!/bin/sh
# The cores compiled for BPF, where a clang is found: every function at once, small stack, no signed division.
set -eu
cd "$(dirname "$0")/.."
for clang in "${CLANG:-}" clang clang-20 clang-19 clang-18 clang-17 clang-16; do
	[ -n "$clang" ] && command -v "$clang" >/dev/null 2>&1 && break
	clang=
done
if [ -z "$clang" ]; then
	echo "bpf: skipped, no clang found (the adapters' build needs it, the host's tests do not)"
	exit 0
fi
"$clang" -target bpf -mcpu=v3 -O2 -g -Wall -Wextra -Werror -Wno-unused-function -c -o /dev/null sim/bpf_compile.c
echo "bpf: every core compiles for BPF ($clang, cpu v3)"
