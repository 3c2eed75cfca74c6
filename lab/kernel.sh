#!/usr/bin/env bash
# Builds the lab's kernel from Debian's source package: kernel.sh HERE OUT [ENGINE]
#   HERE    directory of apt.sh; kernel.config and patches/ are in it for qemu, in HERE/uml for uml
#   OUT     output directory: `vmlinux` (stripped), `config`, `release` and `version`, moved there when all are complete
#   ENGINE  qemu (default): an ELF image with a PVH entry; uml: a User-Mode Linux, which is a static program
# Needs no root. Downloads with apt-get from the system's mirror (see apt.sh).
set -euo pipefail
here=$(cd "$1" && pwd)
out=$2
engine=${3:-qemu}
package=linux-source-7.3
suite=trixie-backports

. "$here/apt.sh"
case $engine in
qemu) from=$here target=vmlinux arch=() ;;
uml) from=$here/uml target=linux arch=(ARCH=um SUBARCH=x86_64) ;;
*) die "unknown engine $engine; use qemu or uml" ;;
esac

declare -A package_of=([gcc]=gcc [make]=make [flex]=flex [bison]=bison [bc]=bc [pahole]=dwarves [xz]=xz-utils [lz4]=lz4
    [python3]=python3 [patch]=patch [dpkg]=dpkg [apt-get]=apt)
missing=()
for tool in "${!package_of[@]}"; do command -v "$tool" >/dev/null || missing+=("${package_of[$tool]}"); done
for header in gelf.h:libelf-dev zlib.h:zlib1g-dev; do
    echo "#include <${header%%:*}>" | gcc -E - >/dev/null 2>&1 || missing+=("${header##*:}")
done
[ ${#missing[@]} -eq 0 ] || die "missing: run \`apt-get install ${missing[*]}\` as root"
have=$(pahole --version | tr -dc '0-9.')
[ "$(printf '%s\n1.22\n' "$have" | sort -V | head -1)" = 1.22 ] ||
    die "pahole $have cannot write the kernel's BTF (1.22 or newer can): run \`apt-get install dwarves\` as root; on an older system add -t NAME-backports"
mkdir -p "$out"
free_mb=$(df -Pm "$out" | awk 'NR == 2 {print $4}')
[ "$free_mb" -ge 4500 ] || die "$out has $free_mb MB free; the build needs 4500 MB and keeps 30 MB: free some space, or run \`XDG_CACHE_HOME=DIRECTORY ccbench lab build\` with a directory on a larger disk"

work=$(mktemp -d "$out/build.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/deb"
(cd "$work/deb" && apt "$suite" apt-get download "$package" >"$work/log" 2>&1) ||
    die "cannot download $package: $(tail -1 "$work/log")"
deb=("$work"/deb/*.deb)
version=$(dpkg-deb -f "${deb[0]}" Version)
echo "lab: $package $version"
dpkg-deb -x "${deb[0]}" "$work/deb"
mkdir "$work/src"
tar -C "$work/src" --strip-components=1 -xf "$work/deb/usr/src/$package.tar.xz"
rm -rf "$work/deb"
for patch in "$from"/patches/*.patch; do
    patch -s -d "$work/src" -p1 <"$patch" || die "$(basename "$patch") does not apply to $package $version"
done
make=(make -s -C "$work/src" O="$work/b" KBUILD_BUILD_USER=ccbench KBUILD_BUILD_HOST=lab "KBUILD_BUILD_TIMESTAMP=2026-01-01" KBUILD_BUILD_VERSION=1 "${arch[@]}")
"${make[@]}" KCONFIG_ALLCONFIG="$from/kernel.config" allnoconfig
while read -r line; do
    case $line in CONFIG_*=*) grep -qxF "$line" "$work/b/.config" || die "the kernel's configuration does not accept $line" ;; esac
done <"$from/kernel.config"
"${make[@]}" -j"$(nproc)" "$target"
strip -s -o "$work/vmlinux" "$work/b/$target"
cp "$work/b/.config" "$work/config"
"${make[@]}" kernelrelease >"$work/release"
echo "$package $version" >"$work/version"
for file in config release version vmlinux; do mv "$work/$file" "$out/$file"; done
