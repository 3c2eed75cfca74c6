#!/bin/bash
# Builds load.c with a libbpf that supports struct_ops links: the one with which the agent is built. Usage: loader.sh TARGET
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
source=$(cd "$here/../.." && cargo metadata --locked --format-version 1 |
	python3 -c 'import json,os,sys; print(next(os.path.dirname(p["manifest_path"]) for p in json.load(sys.stdin)["packages"] if p["name"] == "libbpf-sys"))')
make -s -C "$source/libbpf/src" BUILD_STATIC_ONLY=1 OBJDIR="$work/libbpf" DESTDIR="$work/dev" install >"$work/log" 2>&1 ||
	{ cat "$work/log"; exit 1; }
gcc -O1 -Wall -Wextra -Werror -I"$work/dev/usr/include" -o "$1" "$here/load.c" "$work/libbpf/libbpf.a" -lelf -lz
