#!/usr/bin/env bash
# Builds the documents as a book with search: docs.sh OUT. The first time it installs mdbook into the cache (a minute). If it cannot,
# it prints a note and builds nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:?usage: docs.sh OUT}")
version=0.5.2
root=${XDG_CACHE_HOME:-$HOME/.cache}/ccbench/mdbook-$version
# Link targets that are not pages. tests/docs/links.rs reads this line.
copied=(docs/images notebooks plans)

if [ ! -x "$root/bin/mdbook" ]; then
    echo "docs: installing mdbook $version into $root"
    # mdbook is built without this workspace's build directory and wrapper.
    env -u CARGO_TARGET_DIR -u CARGO_BUILD_BUILD_DIR -u RUSTC_WORKSPACE_WRAPPER cargo install --locked --quiet --root "$root" \
        --version "$version" --no-default-features --features search mdbook || {
        echo "docs: skipped: mdbook $version cannot be installed (cargo install --locked mdbook --version $version)" >&2
        exit 0
    }
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/src"
cp docs/book.toml "$work/"
# mdbook expects paths relative to the root of the pages.
sed 's|](|](docs/|; s|](docs/\.\./|](|' docs/SUMMARY.md >"$work/src/SUMMARY.md"
mapfile -t pages < <(sed -n 's/.*](\(.*\))$/\1/p' "$work/src/SUMMARY.md")
cp --parents -r "${pages[@]}" "${copied[@]}" "$work/src/"
"$root/bin/mdbook" build --dest-dir "$work/book" "$work"
rm -rf "$out"
mkdir -p "$(dirname "$out")"
mv "$work/book" "$out"
echo "docs: $out/index.html"
