#!/usr/bin/env bash
# RUSTC_WORKSPACE_WRAPPER of `make clippy`. `cargo clippy` uses clippy-driver, whose path is the same for all clones, so Cargo would
# take clippy's findings in one clone for up to date in another.
exec "${0%clippy.sh}rustc.sh" clippy-driver "$@"
