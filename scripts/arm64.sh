#!/usr/bin/env bash
# Runs the tests of the simulator's rows (crates/simulator/tests/digests.rs) for 64-bit Arm, in QEMU's user mode (make test-arm64).
# The digests must be those in the repository, which `make test` also compares on this machine.
#
# The compiler is $RUSTC or the default one. If it has no standard library for the target, rustup installs one. If rustup cannot, the
# script unpacks Debian's compiler and its libraries for both architectures into the build directory, without installing them.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-gnu
dir=$(realpath -m "${CARGO_BUILD_BUILD_DIR:-${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/ccbench/target}}")-arm64

fail() {
    echo "arm64: $1" >&2
    exit 1
}

has_target() {
    local sysroot
    sysroot=$("${RUSTC:-rustc}" --print sysroot) && compgen -G "$sysroot/lib/rustlib/$target/lib/libstd-*.rlib" >/dev/null
}

# Prints the dependency of a package whose name matches a pattern.
dependency() {
    apt-cache depends "$1" | sed -n "s/^ *Depends: \($2\)$/\1/p" | head -n 1
}

# Unpacks Debian's newest compiler, for which Debian has libraries for every architecture. Uses separate apt lists and configuration,
# so that the system does not get packages of another architecture.
debian_rustc() {
    local apt=$dir/apt root=$dir/debian library llvm solver package
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$root"
    cat >"$apt/apt.conf" <<EOF
APT::Architectures { "amd64"; "arm64"; };
APT::Sandbox::User "$(id -un)";
Dir::State::lists "$apt/lists";
Dir::Cache "$apt/cache";
EOF
    export APT_CONFIG=$apt/apt.conf
    apt-get update -qq
    library=$(dependency libstd-rust-web-dev 'libstd-rust-web-[0-9.]*')
    llvm=$(dependency "$library" 'libllvm[0-9]*')
    solver=$(dependency "$llvm" 'libz3-[0-9]*')
    rm -f "$apt"/*.deb
    # shellcheck disable=SC2086 # An empty $llvm or $solver must not become an argument.
    (cd "$apt" && apt-get download -qq rustc-web "$library" $llvm $solver libstd-rust-web-dev libstd-rust-web-dev:arm64) || return 1
    for package in "$apt"/*.deb; do dpkg -x "$package" "$root" || return 1; done
    unset APT_CONFIG
    cat >"$dir/rustc" <<EOF
#!/bin/sh
export LD_LIBRARY_PATH="$root/usr/lib/x86_64-linux-gnu"
exec "$root/usr/bin/rustc" --sysroot "$root/usr" "\$@"
EOF
    chmod +x "$dir/rustc"
    export RUSTC=$dir/rustc
}

[ "$(uname -m)" = x86_64 ] || fail "this compares x86-64 with 64-bit Arm, and runs on x86-64 only; on Arm \`make test\` compares"
mkdir -p "$dir"
if ! has_target; then
    [ -x "$dir/rustc" ] && export RUSTC=$dir/rustc
fi
if ! has_target; then
    unset RUSTC
    rustup target add "$target" >"$dir/rustup.log" 2>&1 || debian_rustc || true
    has_target || fail "there is no standard library for $target: \`rustup target add $target\` failed ($dir/rustup.log), and so did \
Debian's rustc-web; set RUSTC to a compiler that has one"
fi
echo "arm64: $("${RUSTC:-rustc}" --version), $(qemu-aarch64 --version | head -n 1)"

unset UPDATE_GOLDEN
unset CARGO_BUILD_BUILD_DIR
export CARGO_TARGET_DIR=$dir
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
cargo test --locked --target "$target" -p ccbench-simulator --lib --test digests
