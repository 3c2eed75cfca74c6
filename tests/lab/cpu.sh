#!/usr/bin/env bash
# Tests the engine uml on other CPUs (make test-lab-cpu): runs the same trials here and in emulated machines, and compares the digests of
# all tables. Then each emulated machine reruns an artifact of plans/quickstart.toml that this machine has packed, which must be reproduced.
# Usage: cpu.sh DIRECTORY [MODEL ...]
#   DIRECTORY  has the programs ccbench and ccbench-agent
#   MODEL      as in `qemu-system-x86_64 -cpu help`; default: Nehalem (x86-64-v2, no XSAVE) and Haswell-noTSX (AVX2, FMA)
# An emulated machine boots a stock Debian kernel on another date. Its root file system, in memory, is a chroot here, so both have the same
# programs. CCBENCH_CPU_LIMIT_S (5400) is the time that a machine may take, and CCBENCH_CPU_RERUN_LIMIT_S (900) that of the rerun. Needs no
# network once both kernels are built, no root where unprivileged user namespaces are allowed, and 5 GB of memory. With that much and a CPU
# for each model, the machines run at the same time.
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
programs=$(cd "$1" && pwd)
shift
models=("$@")
[ ${#models[@]} -gt 0 ] || models=(Nehalem Haswell-noTSX)
limit=${CCBENCH_CPU_LIMIT_S:-5400}
rerun_limit=${CCBENCH_CPU_RERUN_LIMIT_S:-900}
PATH=$PATH:/usr/sbin:/sbin

die() {
    echo "test-lab-cpu: $*" >&2
    exit 1
}
for tool in qemu-system-x86_64 python3 strip unshare chroot ldd; do
    command -v "$tool" >/dev/null || die "$tool is missing: run \`scripts/setup.sh --lab\`"
done

# Builds or fetches a kernel if it is missing. The last line of output is its path.
kernel() { "$programs/ccbench" lab build "$@" | tail -n 1; }
uml=$(kernel --engine uml)
stock=$(kernel --kernel 6.12)
[ -x "$uml" ] && [ -f "$stock" ] || die "the kernels $uml and $stock are not there"

work=$(mktemp -d "${TMPDIR:-/tmp}/ccbench-cpu.XXXXXX")
running=()
cleanup() {
    local pid
    # Each is the leader of a process group.
    for pid in "${running[@]}"; do kill -- "-$pid" 2>/dev/null || true; done
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
root=$work/root
mkdir -p "$root"/{dev,etc,lab,proc,run,sys,tmp,home}

# Adds a program of this machine with its libraries, under the same name or the given one.
add() { # PROGRAM [NAME]
    local file to library
    file=$(command -v "$1")
    to=$root${2:-$file}
    mkdir -p "$(dirname "$to")"
    cp -L "$file" "$to"
    { ldd "$file" 2>/dev/null || true; } | { grep -oE '/[^ ]+\.so[^ ]*' || true; } | while read -r library; do
        [ -e "$root$library" ] && continue
        mkdir -p "$(dirname "$root$library")"
        cp -L "$library" "$root$library"
    done
}
for program in ldd mount mkdir cat sha256sum sleep env; do add "$program"; done
add bash /bin/bash
add sh /bin/sh
for program in ccbench ccbench-agent; do
    add "$programs/$program" "/usr/bin/$program"
    strip -s "$root/usr/bin/$program"
done
cache=/cache/ccbench/lab/$(basename "$(dirname "$uml")")
mkdir -p "$root$cache"
# The files that `ccbench` looks for. An interrupted build may have left more.
for file in release version vmlinux; do cp "$(dirname "$uml")/$file" "$root$cache/"; done
cp "$here/../../plans/lab/judge.toml" "$root/home/plan.toml"
cp "$here/../../plans/quickstart.toml" "$root/home/"
echo 'root:x:0:0::/home:/bin/bash' >"$root/etc/passwd"

# Runs ccbench with the same environment everywhere. An emulated machine is slow, so its guests may be silent for longer.
cat >"$root/lab/ccbench" <<'END'
#!/bin/bash
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/home XDG_CACHE_HOME=/cache TMPDIR=/tmp CCBENCH_LAB_SILENCE_S=1200 ccbench "$@"
END
# Runs the trials and prints a line for each table.
cat >"$root/lab/trials" <<'END'
#!/bin/bash
cd /home || exit 1
while read -r line; do
    case $line in "model name"*) echo "CPU: ${line#*: }"; break ;; esac
done </proc/cpuinfo
/lab/ccbench run plan.toml --lab --engine uml --jobs 1 --set repeat=1 --set 'matrix.discipline=["netem", "dualpi2"]' \
    --set phases.0.length=1s --set phases.1.length=2s || exit 1
cd results/*/tables || exit 1
shopt -s globstar
for table in **/*.parquet; do echo "table $(sha256sum "$table")"; done
echo "all tables are printed"
END
# Runs the quickstart and packs it.
cat >"$root/lab/pack" <<'END'
#!/bin/bash
cd /home || exit 1
/lab/ccbench run quickstart.toml --lab --engine uml --out /home/packed || exit 1
/lab/ccbench artifact pack /home/packed/quickstart-* --output /home/quickstart.tar.gz
END
# Reruns the artifact, and prints the result in the last line.
cat >"$root/lab/rerun" <<'END'
#!/bin/bash
SECONDS=0
/lab/ccbench artifact rerun /quickstart.tar.gz --directory /home/evaluation >/tmp/rerun.log 2>&1
code=$? seconds=$SECONDS
cat /tmp/rerun.log
echo "rerun: $code $seconds"
END
# Process 1 of an emulated machine. If it ended at once, output on its way to the serial line would be lost.
cat >"$root/init" <<'END'
#!/bin/bash
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm
mount -t tmpfs -o size=1500m tmpfs /dev/shm
/lab/trials && /lab/rerun
sleep 3
echo b >/proc/sysrq-trigger
END
chmod +x "$root"/lab/* "$root/init"

# Appends the files in a directory to the initramfs. An initramfs may consist of several cpio archives.
add_to_initramfs() { # DIRECTORY
    python3 - "$1" "$work/initramfs" <<'END'
import os, stat, sys

root, out = sys.argv[1:]
with open(out, "ab") as archive:
    def entry(name, mode, data=b"", device=(0, 0)):
        name = name.encode() + b"\0"
        fields = [0, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name), 0]
        head = b"070701" + "".join(f"{field:08x}" for field in fields).encode() + name
        archive.write(head + b"\0" * (-len(head) % 4))
        archive.write(data + b"\0" * (-len(data) % 4))

    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(folders + files):
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            data = b""
            if stat.S_ISREG(mode):
                with open(path, "rb") as file:
                    data = file.read()
            entry(os.path.relpath(path, root), mode, data)
    if os.path.isdir(os.path.join(root, "dev")):
        entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
        entry("dev/null", stat.S_IFCHR | 0o666, device=(1, 3))
    entry("TRAILER!!!", 0)
END
}
# Precedes the runs here, which write to the directory.
add_to_initramfs "$root"

here_run() { # SCRIPT
    local namespaces=(--mount --pid --fork --kill-child)
    [ "$(id -u)" = 0 ] || namespaces+=(--map-root-user)
    # shellcheck disable=SC2016 # The inner shell expands it.
    timeout --foreground "$limit" unshare "${namespaces[@]}" bash -c \
        'mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && exec chroot "$1" "$2"' - "$root" "$1"
}
emulated_run() { # MODEL
    timeout --foreground "$limit" qemu-system-x86_64 -accel tcg -cpu "$1" -m 4096 -nographic -no-reboot -nic none \
        -rtc base=2031-02-03T04:05:06 -kernel "$stock" \
        -initrd "$work/initramfs" -append "console=ttyS0 panic=-1 quiet loglevel=1 mitigations=off"
}
# Runs a command with its output in NAME.console, and writes the lines about tables to NAME.tables.
tables() { # NAME COMMAND...
    local name=$1 start=$SECONDS
    shift
    "$@" </dev/null >"$work/$name.console" 2>&1 || true
    lines "$name" 's/^table //p' >"$work/$name.tables"
    if ! grep -q '^all tables are printed' "$work/$name.console"; then
        tail -n 40 "$work/$name.console" >&2
        die "$name: the trials failed, or took longer than $limit s"
    fi
    echo "test-lab-cpu: $name: $(lines "$name" 's/^CPU: //p'), $((SECONDS - start)) s," \
        "$(wc -l <"$work/$name.tables") tables, $(sha256sum <"$work/$name.tables" | cut -c 1-16)"
}
lines() { # NAME EXPRESSION: what sed prints of NAME.console
    tr -d '\r' <"$work/$1.console" | sed -n "$2"
}
# Checks the rerun of the artifact in an emulated machine.
reproduced() { # NAME
    local code seconds result
    read -r code seconds < <(lines "$1" 's/^rerun: //p') || {
        tail -n 40 "$work/$1.console" >&2
        die "$1: the rerun of the quickstart's artifact did not end, or took longer than $limit s"
    }
    result=$(lines "$1" '/^\(not \)\?\(reproduced\|compared\): /p')
    echo "test-lab-cpu: $1: $(lines "$1" 's/^CPU: //p'), rerun of the quickstart's artifact, $seconds s: ${result:-no result}"
    if [ "$code" != 0 ] || [[ $result != "reproduced: "* ]]; then
        lines "$1" '/^DIFFERS /p' >&2
        tail -n 40 "$work/$1.console" >&2
        die "$1: the quickstart's artifact is not reproduced (exit code $code)"
    fi
    [ "$seconds" -le "$rerun_limit" ] || die "$1: the rerun took $seconds s, more than $rerun_limit s"
}
emulate() { # MODEL
    tables "$1" emulated_run "$1"
    reproduced "$1"
}

if ! here_run /lab/pack </dev/null >"$work/pack.console" 2>&1; then
    tail -n 40 "$work/pack.console" >&2
    die "the quickstart cannot be run and packed here"
fi
mkdir "$work/added"
mv "$root/home/quickstart.tar.gz" "$work/added/"
add_to_initramfs "$work/added"
tables here here_run /lab/trials
[ -s "$work/here.tables" ] || die "the run on this machine has no tables"
available_mib=$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo)
failed=
set -m # a process group for each, so that none survives this script
for model in "${models[@]}"; do
    emulate "$model" &
    running+=($!)
    if [ "$available_mib" -lt $((5000 * ${#models[@]})) ] || [ "$(nproc)" -lt ${#models[@]} ]; then
        wait "${running[0]}" || failed=1
        running=()
    fi
done
for pid in "${running[@]}"; do wait "$pid" || failed=1; done
running=()
set +m
[ -z "$failed" ] || exit 1
for model in "${models[@]}"; do
    if ! diff "$work/here.tables" "$work/$model.tables" >&2; then
        echo "test-lab-cpu: these tables differ between this machine and $model" >&2
        failed=1
    fi
done
[ -z "$failed" ] || exit 1
echo "test-lab-cpu: all tables are equal, and the artifact is reproduced"
