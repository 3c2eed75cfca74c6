#!/usr/bin/env bash
# Prints what a program is made of: size.sh PROGRAM [LIMIT_MB]. Prints the sections, the crates with the largest symbols, and the size
# without symbols, which may be at most LIMIT_MB (10^6 bytes). The program must have its symbols (`make size`). Generic code counts towards
# the crate that defines it, not the one that uses it.
set -euo pipefail
program=${1:?usage: size.sh PROGRAM [LIMIT_MB]}
limit=${2:-}
command -v nm >/dev/null || { echo "size: nm is missing: install binutils" >&2; exit 1; }
stripped=$(mktemp)
trap 'rm -f "$stripped"' EXIT

# The filters below read all lines: with one that ends early (head), sort could die of SIGPIPE, and this script with it.
mb() { awk '{ printf "%8.2f MB  %s\n", $1 / 1e6, $2 }'; }
echo "sections of $program:"
size -A -d "$program" | awk '$2 > 0 && $1 ~ /^\./ { print $2, $1 }' | sort -rn | sed -n 1,12p | mb
echo "crates:"
# A symbol such as `<a::B as c::D>::e` or `core::ptr::drop_in_place<a::B>` counts towards its first crate outside the standard library.
nm --print-size --radix=d --demangle "$program" | awk '
    NF >= 4 && $3 ~ /^[tTrRdD]$/ {
        name = $0
        sub(/^[^ ]+ [^ ]+ [^ ]+ /, "", name)
        crate = ""
        while (match(name, /[a-z_][a-z0-9_]*::/)) {
            word = substr(name, RSTART, RLENGTH - 2)
            name = substr(name, RSTART + RLENGTH)
            if (crate == "") crate = word
            if (word !~ /^(core|alloc|std)$/) { if (crate ~ /^(core|alloc|std)$/) crate = word; break }
        }
        bytes[crate == "" ? "others" : crate] += $2
    }
    END { for (crate in bytes) print bytes[crate], crate }' | sort -rn | sed -n 1,40p | mb

strip -s -o "$stripped" "$program"
bytes=$(stat -c %s "$stripped")
echo "$bytes stripped" | mb
if [ -n "$limit" ] && [ "$bytes" -gt $((limit * 1000000)) ]; then
    echo "size: $program is larger than $limit MB without symbols" >&2
    exit 1
fi
