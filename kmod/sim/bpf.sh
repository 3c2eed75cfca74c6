#!/bin/sh
# Checks that every function of the cores compiles for BPF, without warnings and without signed division. Usage: bpf.sh [CLANG]
set -eu
if [ $# = 0 ]; then
	echo "bpf: skipped, no clang found (the adapters' build needs it, the host's tests do not)"
	exit 0
fi
"$1" -target bpf -mcpu=v3 -O2 -g -Wall -Wextra -Werror -Wno-unused-function -c -o /dev/null \
	"$(dirname "$0")/bpf_compile.c"
echo "bpf: every core compiles for BPF (cpu v3)"
