#!/bin/sh
# Checks that cores contain no division other than cc_div64, no loops without a constant bound, no floats and no #if
# outside platform.h, and that files have a licence line and at most 600 lines.
set -eu
cd "$(dirname "$0")/.."
bad=0
complain() {
	echo "tidy: $1" >&2
	bad=1
}
# forbid FILE PATTERN REASON: searches code without comments, strings, includes and the include guard.
forbid() {
	found=$(sed -e 's|/\*.*\*/||' -e '/\/\*/,/\*\//d' -e 's/"[^"]*"/""/g' "$1" |
		grep -v '^#include' | grep -vE '^#(ifndef|define) CC_[A-Z0-9_]+_H$' | grep -E -- "$2" | grep -vE -- "${4:-^$}") || return 0
	complain "$1: $3: $found"
}
for file in core/*.h; do
	head -1 "$file" | grep -q 'SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause' ||
		complain "$file: no licence line"
	if [ "$file" != core/platform.h ]; then
		forbid "$file" '^#[[:space:]]*(if|elif|else|ifdef)' '#if belongs to platform.h'
		forbid "$file" '/|%' 'divide by cc_div64' 'sizeof\(struct cc_param\)|sizeof\(u32\)'
	fi
	forbid "$file" '\<(float|double|while|goto|malloc)\>' 'not in a core'
	forbid "$file" '\<for \(' 'the bound of a loop must be a constant' '< (CC_[A-Z0-9_]+|[0-9]+);'
done
for file in core/*.h sim/*.[ch]; do
	[ "$(wc -l <"$file")" -le 600 ] || complain "$file: more than 600 lines"
done
[ $bad = 0 ] && echo "tidy: core/ follows its rules"
exit $bad
