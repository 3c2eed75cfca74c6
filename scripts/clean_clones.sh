#!/usr/bin/env bash
# Removes the artefacts and programs of clones whose directory no longer exists (make clean-clones). rustc.sh records the artefacts;
# those of versions without records stay.
set -euo pipefail

target=${CARGO_BUILD_BUILD_DIR:-${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/ccbench/target}}
removed=0
for dir in "$target" "$target-fuzz" "$target-arm64"; do
    for clone in "$dir"/clones/*/clone; do
        if [ ! -L "$clone" ] || [ -e "$clone" ]; then
            continue
        fi
        record=${clone%/clone} path=$(readlink "$clone")
        # Every file and directory with one of the hashes in its name: DIR/PROFILE/deps/NAME-HASH.d, or DIR/TARGET/PROFILE/… with a target.
        mapfile -t found < <(find "$dir" -mindepth 3 -maxdepth 4 | awk '
            NR == FNR { own[$0]; next }
            {
                count = split($0, parts, /[-.\/]/)
                for (i = 1; i <= count; i++) if (parts[i] in own) { print; next }
            }' <(find "$record" -type f -printf '%f\n') -)
        if [ "${#found[@]}" -gt 0 ]; then
            printf '%s\0' "${found[@]}" | xargs -0 rm -rf --
        fi
        id=${record##*/}
        rm -rf "$dir"/*/incremental/"$id" "$dir"/*/*/incremental/"$id" "$record"
        # The programs, where make puts them.
        [[ -z ${CARGO_BUILD_BUILD_DIR:-} || ${CARGO_TARGET_DIR:-} != */programs/* ]] || rm -rf "${CARGO_TARGET_DIR%/*}/$id"{,-fuzz}
        echo "clean-clones: removed the artefacts of $path"
        removed=$((removed + 1))
    done
done
if [ "$removed" -eq 0 ]; then
    echo "clean-clones: every clone with artefacts in $target exists"
fi
