#!/usr/bin/env bash
# RUSTC_WORKSPACE_WRAPPER of the Makefile. Cargo includes this path in the names of the artefacts of the workspace's crates. So every
# clone has its own artefacts in the shared build directory, and all clones share their dependencies. Without the wrapper, Cargo identifies
# a crate by its path within the workspace, and considers another clone's artefact up to date if it is newer than the sources.
# Uses bash, because dash removes variables such as CARGO_BIN_EXE_ccbench-agent.
#
# For clean_clones.sh, clones/ID in the build directory has a link to the clone, and an empty file for each hash in the names of its
# artefacts. Incremental state, which has other hashes, is in directories named ID.
clone=${0%/scripts/*}
id=$(cksum <<<"$clone")
id=${id%% *}
hashes=() arguments=()
for argument; do
    case $argument in
    extra-filename=-*) hashes+=("${argument#extra-filename=-}") ;;
    incremental=*) argument+=/$id ;;
    esac
    arguments+=("$argument")
done
# The output of the crate's build script.
case ${OUT_DIR:-} in
*/build/*-*/out)
    out=${OUT_DIR%/out}
    hashes+=("${out##*-}")
    ;;
esac
build_dir=${CARGO_BUILD_BUILD_DIR:-${CARGO_TARGET_DIR:-}}
if [ -n "$build_dir" ] && [ "${#hashes[@]}" -gt 0 ]; then
    record=$build_dir/clones/$id
    # Errors are ignored: an artefact without a record is only kept longer.
    {
        mkdir -p "$record"
        [ -L "$record/clone" ] || ln -sT "$clone" "$record/clone"
        for hash in "${hashes[@]}"; do : >"$record/$hash"; done
    } 2>/dev/null
fi
exec "${arguments[@]}"
