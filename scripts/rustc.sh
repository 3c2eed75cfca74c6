#!/usr/bin/env bash
# RUSTC_WORKSPACE_WRAPPER of the Makefile. Cargo names the artefacts of the workspace's crates after this path, so that every
# clone has its own of them in the shared build directory, and all share their dependencies. Without it Cargo identifies a
# crate by its path within the workspace, and considers what another clone built to be up to date if it is newer than the sources.
# bash keeps variables such as CARGO_BIN_EXE_ccbench-agent, which dash removes.
exec "$@"
