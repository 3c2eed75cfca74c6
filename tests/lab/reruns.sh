#!/usr/bin/env bash
# Tests that the engine uml gives the same bytes each time (make test-lab-reruns): repeats a run idle and loaded, with one, two and four
# concurrent trials, as root and as another user, and compares the digests of all tables and summaries.
# Usage: reruns.sh PROGRAMS DIRECTORY [COUNT]
#   PROGRAMS   has the programs ccbench and ccbench-agent
#   DIRECTORY  gets the results and the digests of each run. Complete results are not repeated, so an interrupted script can be run again.
#              Every user must be able to enter the directory
#   COUNT      number of runs; default: 20. Twelve cover all combinations
# Without root, the other user is root of a user namespace. A run has four trials, with netem's losses and jitter, BPF and userspace links.
set -euo pipefail
export LC_ALL=C
die() {
    echo "reruns: $*" >&2
    exit 1
}
[ $# -ge 2 ] || die "usage: reruns.sh PROGRAMS DIRECTORY [COUNT]"
programs=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
count=${3:-20}
plans=$(cd "$(dirname "$0")/../../plans" && pwd)

if [ "$(id -u)" = 0 ]; then
    first=root second=nobody
    as_second=(setpriv --reuid=65534 --regid=65534 --clear-groups --)
else
    first=user second=root
    as_second=(unshare --user --map-root-user --)
fi
command -v "${as_second[0]}" >/dev/null || die "${as_second[0]} is missing: install util-linux"
"${as_second[@]}" test -x "$out" || die "another user cannot enter $out: choose a directory below /var/tmp"

# Copies programs, plan and kernel to where each user can read them. Each user has a home.
kernel=$("$programs/ccbench" lab build --engine uml | tail -n 1)
[ -x "$kernel" ] || die "the kernel $kernel is not there"
mkdir -p "$out/bin"
install -m 755 "$programs/ccbench" "$programs/ccbench-agent" "$out/bin"
install -m 644 "$plans/lab/judge.toml" "$out/plan.toml"
for user in "$first" "$second"; do
    home=$out/home-$user
    [ ! -d "$home" ] || continue
    rm -rf "$home.new"
    cache=$home.new/.cache/ccbench/lab/$(basename "$(dirname "$kernel")")
    mkdir -p "$cache"
    # The files that `ccbench` looks for. An interrupted build may have left more.
    for file in release version vmlinux; do cp "$(dirname "$kernel")/$file" "$cache/"; done
    [ "$user" != nobody ] || chown -R 65534:65534 "$home.new"
    mv "$home.new" "$home"
done

busy=()
idle() {
    local pid
    for pid in "${busy[@]}"; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    busy=()
}
trap idle EXIT
trap 'exit 130' INT TERM
# One busy loop per CPU, each with the lab's priority.
loaded() {
    local cpu
    for ((cpu = 0; cpu < $(nproc); cpu++)); do
        (while :; do :; done) &
        busy+=($!)
    done
}

# Prints digests of all files that depend only on the plan and the seed.
digests() { # RUN
    (
        cd "$1"
        find tables -type f
        ls trials.csv points.csv summary_phase.csv summary_point.csv trials.parquet points.parquet summary_phase.parquet summary_point.parquet
    ) | sort | (cd "$1" && xargs -d '\n' sha256sum)
}

run() { # NAME JOBS LOAD USER
    local name=$1 start=$SECONDS as=() home=$out/home-$4 results
    [ -s "$out/$name.sha256" ] && return
    [ "$4" = "$first" ] || as=("${as_second[@]}")
    rm -rf "$home/results"
    "$3"
    (
        cd "$home"
        env -i PATH="$PATH" HOME="$home" "${as[@]}" "$out/bin/ccbench" run "$out/plan.toml" --lab --engine uml --jobs "$2" --out results \
            --set repeat=1 --set 'matrix.discipline=["netem", "dualpi2"]'
    ) >"$out/$name.log" 2>&1 || {
        tail -n 20 "$out/$name.log" >&2
        die "$name failed"
    }
    idle
    results=("$home"/results/*/)
    [ ${#results[@]} = 1 ] || die "$name has ${#results[@]} results directories in $home/results"
    digests "${results[0]}" >"$out/$name.new"
    mv "$out/$name.new" "$out/$name.sha256"
    echo "reruns: $name: $((SECONDS - start)) s, $(wc -l <"$out/$name.sha256") files, $(sha256sum <"$out/$name.sha256" | cut -c 1-16)"
}

jobs=(1 2 4)
loads=(idle loaded)
users=("$first" "$second")
names=()
for ((number = 0; number < count; number++)); do
    job=${jobs[number % 3]} load=${loads[number / 3 % 2]} user=${users[number / 6 % 2]}
    name=$(printf '%02d-jobs%d-%s-%s' $((number + 1)) "$job" "$load" "$user")
    run "$name" "$job" "$load" "$user"
    names+=("$name")
done
failed=
for name in "${names[@]:1}"; do
    if ! diff "$out/${names[0]}.sha256" "$out/$name.sha256" >&2; then
        echo "reruns: these files differ between ${names[0]} and $name" >&2
        failed=1
    fi
done
[ -z "$failed" ] || exit 1
echo "reruns: all $(wc -l <"$out/${names[0]}.sha256") files of ${#names[@]} runs are equal"
