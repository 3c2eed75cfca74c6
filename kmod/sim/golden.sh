#!/bin/sh
# Compares the result of every script with its golden file, and replays the inputs of every golden file. UPDATE_GOLDEN=1 rewrites the golden
# files. Usage: golden.sh CCSIM
set -eu
ccsim=$1
here=$(dirname "$0")
bad=0
count=0

# Calls recorded from a simulation: the name, then the arguments of "ccsim run".
recorded() {
	sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$here/scripts/recorded"
}

compare() { # NAME COMMAND...
	name=$1
	shift
	golden=$here/golden/$name.csv
	count=$((count + 1))
	if [ "${UPDATE_GOLDEN:-0}" = 1 ]; then
		"$@" >"$golden"
	elif ! "$@" | cmp -s - "$golden"; then
		echo "golden: $name differs; see: $* | diff $golden - (make golden rewrites it)" >&2
		bad=1
	fi
	"$ccsim" recheck "$golden" || bad=1
}

for script in "$here"/scripts/*.acks; do
	compare "$(basename "$script" .acks)" "$ccsim" replay "$script"
done
while read -r name arguments; do
	# shellcheck disable=SC2086 # the arguments are words
	compare "$name" "$ccsim" run $arguments
done <<END
$(recorded)
END
[ $bad = 0 ] && echo "golden: $count files agree, and replay from their own inputs"
exit $bad
