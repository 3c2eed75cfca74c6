# To be sourced. Makes a temporary directory, $dir, and ends the processes in $children when the script ends.
dir=$(mktemp -d)
children=()
finish() {
    for pid in "${children[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$dir"
}
trap finish EXIT
