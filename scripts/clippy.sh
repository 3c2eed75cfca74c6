#!/usr/bin/env bash
# RUSTC_WORKSPACE_WRAPPER of `make clippy`. That of `cargo clippy` is clippy-driver, whose path is the same for all clones, so that
# what clippy found in one would be taken for up to date in another.
exec "${0%clippy.sh}rustc.sh" clippy-driver "$@"
