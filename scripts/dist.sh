#!/usr/bin/env bash
# Builds the packages of a release: dist.sh OUT [PACKAGE…]
#   OUT      directory of the packages; other files in it stay
#   PACKAGE  tarball, deb, wheel, image, sif, sbom (all of these by default), lab (the lab's kernels, after `make lab`)
# The image has the kernels in the file LAB_KERNELS, by default those of the package lab in OUT if it exists. BASE_IMAGE is the image
# that it is based on, by default Debian's.
# At the end, writes SHA256SUMS of all files in OUT. docs/packages.md describes the packages. A package that cannot be built here is an
# error if it was named, and otherwise skipped with a note.
set -euo pipefail
# dpkg-deb refuses a DEBIAN directory with other modes.
umask 022
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:?usage: dist.sh OUT [PACKAGE…]}")
shift
named=$#
[ $named -gt 0 ] || set -- tarball deb wheel image sif sbom

cache=${XDG_CACHE_HOME:-$HOME/.cache}/ccbench
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
target=$(rustc -vV | sed -n 's/^host: //p')
arch=${target%%-*}
: "${CARGO_TARGET_DIR:=target}"
case $CARGO_TARGET_DIR in /*) ;; *) CARGO_TARGET_DIR=$PWD/$CARGO_TARGET_DIR ;; esac
export CARGO_TARGET_DIR
programs=$CARGO_TARGET_DIR/dist
# Of the controller, in 10^6 bytes, as in `make size`.
limit_mb=45
# With the same tools, the same commit gives the same bytes.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
# Without a constant for the build scripts, Cargo compiles the C code of dependencies again for each commit, and all crates that use it.
constant=(--config 'env.SOURCE_DATE_EPOCH.value="0"' --config env.SOURCE_DATE_EPOCH.force=true)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"

die() { echo "dist: $*" >&2; exit 1; }
skip() { # PACKAGE WHY
    [ "$named" -eq 0 ] || die "$1: $2"
    echo "dist: $1: skipped: $2" >&2
}
pack() { # FILE DIRECTORY…: a tar archive of directories below $work
    local file=$1
    shift
    tar -C "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -c "$@" | gzip -9n >"$file"
}

build() {
    # Not together: their dependencies would have other features than in maturin's build, which builds the controller alone.
    local cargo=(cargo)
    # cargo-auditable writes the list of dependencies into the programs, where `cargo audit bin` finds it.
    command -v cargo-auditable >/dev/null && cargo=(cargo auditable)
    "${cargo[@]}" build --locked "${constant[@]}" --profile dist -p ccbench
    "${cargo[@]}" build --locked "${constant[@]}" --profile dist -p ccbench-agent
    du --apparent-size -BM "$programs/ccbench" "$programs/ccbench-agent"
    local program bytes symbols
    bytes=$(stat -c %s "$programs/ccbench")
    [ "$bytes" -le $((limit_mb * 1000000)) ] ||
        die "the controller has $bytes bytes, more than $limit_mb MB; \`make size\` prints what it is made of"
    for program in "$programs/ccbench" "$programs/ccbench-agent"; do
        symbols=$(nm "$program" 2>/dev/null) || die "nm cannot read $program; install binutils"
        [ -z "$symbols" ] || die "$program has symbols; see profile.dist in Cargo.toml"
    done
}

tarball() {
    local name=ccbench-$version-$target
    scripts/stage.sh "$programs" "$work/$name" ""
    pack "$out/$name.tar.gz" "$name"
}

deb() {
    command -v dpkg-shlibdeps >/dev/null || { skip deb "install dpkg-dev"; return; }
    local root=$work/deb/root architecture depends
    architecture=$(dpkg --print-architecture)
    scripts/stage.sh "$programs" "$root" /usr
    gzip -9n "$root"/usr/share/man/man1/*.1
    mv "$root/usr/share/doc/ccbench/LICENSE" "$root/usr/share/doc/ccbench/copyright"
    gzip -9nc CHANGELOG.md >"$root/usr/share/doc/ccbench/changelog.gz"
    # dpkg-shlibdeps needs debian/control.
    mkdir -p "$work/deb/debian" "$root/DEBIAN"
    printf 'Source: ccbench\n\nPackage: ccbench\nArchitecture: any\n' >"$work/deb/debian/control"
    depends=$(cd "$work/deb" && dpkg-shlibdeps -O root/usr/bin/ccbench root/usr/bin/ccbench-agent | sed -n 's/^shlibs:Depends=//p')
    [ -n "$depends" ] || die "deb: dpkg-shlibdeps found no libraries"
    cat >"$root/DEBIAN/control" <<EOF
Package: ccbench
Version: $version
Architecture: $architecture
Maintainer: the ccbench project <ccbench@localhost>
Installed-Size: $(du -sk "$root/usr" | cut -f 1)
Depends: $depends
Recommends: iperf3, iproute2
Suggests: kmod, qemu-system-x86
Section: net
Priority: optional
Description: congestion-control experiments from one plan file
 ccbench builds the network that a plan describes, runs repeated trials with the
 kernel's TCP, in a virtual machine or in a simulator, and writes tables,
 verdicts and figures. This package has the controller, and the agent that runs
 the part of one node.
EOF
    cat >"$root/DEBIAN/postinst" <<'EOF'
#!/bin/sh
set -e
# The user of ccbench-agent-front.service.
if command -v systemd-sysusers >/dev/null; then systemd-sysusers ccbench.conf || true; fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
    # A newly installed node has neither service enabled.
    if systemctl is-enabled -q ccbench-agent.service 2>/dev/null && ! systemctl is-enabled -q ccbench-agent-front.service 2>/dev/null; then
        cat <<'END'
ccbench: this node keeps its agent in one process, ccbench-agent.service, which reads controllers' connections with all of the agent's
privileges. To run an unprivileged front and a worker instead:
  systemctl disable --now ccbench-agent && systemctl enable --now ccbench-agent-front
They do not use CCBENCH_ARGUMENTS and the drop-ins of ccbench-agent.service: see "Front and worker" in docs/guide.md.
END
    fi
fi
EOF
    # The agent and its worker undo their changes when they stop. The worker needs the loader for that, so the loader stops last.
    cat >"$root/DEBIAN/prerm" <<'EOF'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl stop ccbench-agent.service ccbench-agent-front.service ccbench-agent-worker.socket ccbench-agent-worker.service || true
    systemctl stop ccbench-agent-loader.socket ccbench-agent-loader.service || true
    systemctl stop ccbench-agent-renew.timer || true
fi
EOF
    chmod 755 "$root/DEBIAN/postinst" "$root/DEBIAN/prerm"
    (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
    dpkg-deb --root-owner-group -Zxz --build "$root" "$out/ccbench_${version}_$architecture.deb"
}

# The wheel contains the agent's libraries that bare systems lack, in PREFIX/lib/ccbench.
wheel() {
    local venv=$cache/maturin-1.16.0 data=target/wheel.data library name package source
    local doc=$data/data/share/doc/ccbench
    command -v patchelf >/dev/null || { skip wheel "install patchelf"; return; }
    if [ ! -x "$venv/bin/maturin" ]; then
        rm -rf "$venv"
        { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check maturin==1.16.0; } ||
            { rm -rf "$venv"; skip wheel "maturin cannot be installed"; return; }
    fi
    trap 'rm -rf "$work" target/wheel.data' EXIT
    rm -rf "$data" "$work/wheel"
    mkdir -p "$data/scripts" "$data/data/lib/ccbench"
    install -m 755 "$programs/ccbench-agent" "$data/scripts/ccbench-agent"
    scripts/documents.sh "$data/data/share/doc/ccbench"
    while read -r name library; do
        install -m 755 "$library" "$data/data/lib/ccbench/$name"
        patchelf --set-rpath '$ORIGIN' "$data/data/lib/ccbench/$name"
        package=$(package_of "$library")
        cat "/usr/share/doc/${package%:*}/copyright" >"$doc/$name.copyright" 2>/dev/null || true
        source=$(origin "$package")
        printf '%s\t%s\n' "$name" "$source" >>"$doc/libraries.tsv"
    done < <(ldd "$programs/ccbench-agent" | sed -n 's/^\s*\(\(libelf\|libz\|libzstd\|liblzma\|libbz2\)\.so[^ ]*\) => \(\/[^ ]*\).*/\1 \3/p')
    patchelf --set-rpath '$ORIGIN/../lib/ccbench' "$data/scripts/ccbench-agent"
    "$venv/bin/maturin" build --locked "${constant[@]}" --out "$work/wheel"
    local made=("$work"/wheel/*.whl)
    python3 -m zipfile -l "${made[0]}" >"$work/wheel/list"
    for name in scripts/ccbench scripts/ccbench-agent ccbench/__init__.py lib/ccbench/libelf.so.1 share/doc/ccbench/libraries.tsv \
        share/doc/ccbench/docs/plan.md share/doc/ccbench/SECURITY.md share/doc/ccbench/plans/quickstart.toml; do
        grep -q "$name " "$work/wheel/list" || die "wheel: ${made[0]##*/} has no $name"
    done
    # The wheel of an earlier build may have another platform tag in its name.
    rm -f "$out/ccbench-$version-"*"_$arch.whl"
    cp "${made[0]}" "$out/"
}

package_of() { # LIBRARY: its Debian package, with the architecture (libelf1:amd64); nothing on other systems
    local found
    found=$(dpkg -S "$(realpath "$1")" 2>/dev/null || dpkg -S "${1#/usr}" 2>/dev/null) || return 0
    echo "${found%%: *}"
}

origin() { # PACKAGE: distribution, name, version and architecture, separated by tabs; all empty without a package
    local distribution
    [ -n "$1" ] || { printf '\t\t\t'; return; }
    distribution=$(. /etc/os-release && echo "$ID")
    dpkg-query -W -f "$distribution\t\${Package}\t\${Version}\t\${Architecture}" "$1"
}

image() {
    local tool file=$out/ccbench-$version-$arch.oci.tar debs base=()
    # The program of docker may be there without its daemon.
    tool=$(command -v podman) || tool=$(docker info >/dev/null 2>&1 && command -v docker) ||
        { skip image "install podman, or install and start docker"; return; }
    [ -z "${BASE_IMAGE:-}" ] || base=(--build-arg "BASE=$BASE_IMAGE")
    debs=("$out/ccbench_${version}_"*.deb)
    [ -e "${debs[0]}" ] || { skip image "build the package deb first"; return; }
    mkdir -p "$work/image/kernels"
    cp "${debs[0]}" "$work/image/ccbench.deb"
    local kernels=${LAB_KERNELS:-$out/ccbench-lab-kernels-$version-$arch.tar.gz}
    if [ -e "$kernels" ]; then
        cp "$kernels" "$work/image/kernels/"
    else
        echo "dist: image: it has no lab kernels; to include them, build the package lab first" >&2
    fi
    "$tool" build -q "${base[@]}" -t "ccbench:$version" -t ccbench:latest -f scripts/Containerfile "$work/image" ||
        { skip image "$tool cannot build it"; return; }
    rm -f "$file"
    case $tool in
    *podman)
        # An OCI archive has one name. Podman and docker find this one as `ccbench`, docker with its containerd image store.
        "$tool" tag ccbench:latest docker.io/library/ccbench:latest
        "$tool" save -q --format oci-archive -o "$file" docker.io/library/ccbench:latest
        ;;
    *) "$tool" save -o "$file" "ccbench:$version" ccbench:latest ;;
    esac
}

# For clusters without a container daemon and without root: a single file with the image's entry point.
sif() {
    local tool image=$out/ccbench-$version-$arch.oci.tar format=docker-archive
    tool=$(command -v apptainer || command -v singularity) || { skip sif "install apptainer"; return; }
    [ -e "$image" ] || { skip sif "build the package image first"; return; }
    # podman writes an OCI layout, docker its own format.
    tar -tf "$image" >"$work/image.list"
    if grep -qx oci-layout "$work/image.list" && ! grep -qx manifest.json "$work/image.list"; then format=oci-archive; fi
    "$tool" build --force "$out/ccbench-$version-$arch.sif" "$format:$image" || skip sif "$tool cannot build it"
}

# Describes the wheel and the container in OUT, if they exist: both have parts of a distribution.
sbom() {
    local package packages=()
    for package in "$out/ccbench-$version-"*"_$arch.whl" "$out/ccbench-$version-$arch.oci.tar"; do
        [ ! -e "$package" ] || packages+=("$package")
    done
    cargo metadata --locked --format-version 1 --filter-platform "$target" |
        python3 -B scripts/sbom.py Cargo.lock "$version" "$target" "${packages[@]}" >"$out/ccbench-$version-$target.spdx.json"
}

lab() { "$programs/ccbench" lab pack -o "$out/ccbench-lab-kernels-$version-$arch.tar.gz"; }

build
for package in "$@"; do
    case $package in
    tarball | deb | wheel | image | sif | sbom | lab) "$package" ;;
    *) die "there is no package $package; choose tarball, deb, wheel, image, sif, sbom or lab" ;;
    esac
done
(cd "$out" && find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%f\0' | sort -z | xargs -0 sha256sum >SHA256SUMS)
echo "dist: $out:"
(cd "$out" && du --apparent-size -BM -- *)
