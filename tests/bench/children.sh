# To be sourced: a temporary directory in $dir, and processes in $children, which are ended when the script ends.
dir=$(mktemp -d)
children=()
finish() {
    for pid in "${children[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$dir"
}
trap finish EXIT
