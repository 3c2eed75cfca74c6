#!/usr/bin/env bash
# Prints the commands with which `cargo binstall` installs a release's programs: binstall.sh ADDRESS
#   ADDRESS  of the repository that has the release: https://HOST/OWNER/NAME
# Cargo.toml names no repository, because each copy has its own; so the commands name the URL of the archive.
set -euo pipefail
address=${1:?usage: binstall.sh ADDRESS}
address=${address%/}
cd "$(dirname "$0")/.."

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
for manifest in crates/cli/Cargo.toml crates/agent/Cargo.toml; do
    name=$(sed -n '/^\[package\]/,/^\[/s/^name = "\(.*\)"/\1/p' "$manifest")
    template=$(sed -n 's/^pkg-url = "\(.*\)"/\1/p' "$manifest")
    echo "cargo binstall --git $address --pkg-url '${template/'{ repo }'/"$address"}' $name@$version"
done
