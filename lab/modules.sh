#!/usr/bin/env bash
# Builds ccbench's kernel modules for the lab's kernel `own`: modules.sh HERE OUT ENGINE KERNEL
#   HERE    directory of apt.sh and kernel.sh, with the sources of the modules in HERE/kmod
#   OUT     output directory: `modules/` is what the guest has as /lib/modules/RELEASE, moved there when it is complete
#   ENGINE  qemu or uml
#   KERNEL  directory that kernel.sh has filled
# The kernel is not compiled again: its headers and configuration decide on the layout of its structures, and as it has no
# symbol versions, it resolves names when it loads a module. The first half repeats what kernel.sh does with the source:
# a file that both read would be a part of the kernel's key. Needs no root.
set -euo pipefail
here=$(cd "$1" && pwd)
out=$2
engine=$3
kernel=$(cd "$4" && pwd)
suite=trixie-backports

. "$here/apt.sh"
case $engine in
qemu) from=$here arch=() ;;
uml) from=$here/uml arch=(ARCH=um SUBARCH=x86_64) ;;
*) die "unknown engine $engine; use qemu or uml" ;;
esac

declare -A package_of=([gcc]=gcc [make]=make [flex]=flex [bison]=bison [bc]=bc [pahole]=dwarves [xz]=xz-utils
    [python3]=python3 [patch]=patch [dpkg]=dpkg [apt-get]=apt [strip]=binutils [depmod]=kmod)
missing=()
for tool in "${!package_of[@]}"; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "$tool" >/dev/null || missing+=("${package_of[$tool]}")
done
for header in gelf.h:libelf-dev zlib.h:zlib1g-dev; do
    echo "#include <${header%%:*}>" | gcc -E - >/dev/null 2>&1 || missing+=("${header##*:}")
done
[ ${#missing[@]} -eq 0 ] || die "missing: run \`apt-get install ${missing[*]}\` as root"
PATH="$PATH:/usr/sbin:/sbin"
mkdir -p "$out"
free_mb=$(df -Pm "$out" | awk 'NR == 2 {print $4}')
[ "$free_mb" -ge 2500 ] || die "$out has $free_mb MB free; the build needs 2500 MB and keeps 1 MB: free some space"

again="remove $kernel and run \`ccbench lab build --engine $engine --modules\` again"
read -r package version <"$kernel/version"
release=$(<"$kernel/release")
work=$(mktemp -d "$out/build.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/deb" "$work/src" "$work/b"
(cd "$work/deb" && apt "$suite" apt-get download "$package=$version" >"$work/log" 2>&1) ||
    die "cannot download $package $version, of which the kernel was built: $(tail -1 "$work/log"); if the mirror has a newer one only, $again"
dpkg-deb -x "$work"/deb/*.deb "$work/deb"
tar -C "$work/src" --strip-components=1 -xf "$work/deb/usr/src/$package.tar.xz"
rm -rf "$work/deb"
for patch in "$from"/patches/*.patch; do
    patch -s -d "$work/src" -p1 <"$patch" || die "$(basename "$patch") does not apply to $package $version"
done

make=(make -s -C "$work/src" O="$work/b" "${arch[@]}")
cp "$kernel/config" "$work/b/.config"
"${make[@]}" olddefconfig
# What the tools are and can do may differ; what the kernel's configuration makes of it must not.
settings() { grep -E '^(# )?CONFIG_' "$1" | grep -vE '^(# )?CONFIG_(AS|CC|CLANG|GCC|LD|LLD|PAHOLE|RUSTC?|TOOLS)_' | sort; }
differs=$(diff <(settings "$kernel/config") <(settings "$work/b/.config") | grep -m1 '^[<>]' || true)
[ -z "$differs" ] || die "the tools of this machine configure the kernel in another way than those that built it ($differs): $again"
[ "$("${make[@]}" kernelrelease)" = "$release" ] || die "the source is not that of kernel $release: $again"
"${make[@]}" -j"$(nproc)" modules_prepare

# Modules have no BTF, which needs the kernel's image with its symbols. KBUILD_MODPOST_WARN: there is no list of the
# kernel's symbols. What differs between two builds of the same sources is removed.
cp -r "$here/kmod" "$work/kmod"
make -s -C "$work/b" "${arch[@]}" M="$work/kmod/module" CONFIG_DEBUG_INFO_BTF_MODULES= KBUILD_MODPOST_WARN=1 \
    -j"$(nproc)" modules >"$work/log" 2>&1 || { cat "$work/log" >&2; die "the modules do not compile for kernel $release"; }
keep=$work/keep/lib/modules/$release
mkdir -p "$keep/updates"
for module in "$work"/kmod/module/*.ko; do
    strip -g -R .note.gnu.build-id -o "$keep/updates/$(basename "$module")" "$module"
done
touch "$keep/modules.builtin" "$keep/modules.order"
depmod -b "$work/keep" "$release"
rm -rf "$out/modules"
mv "$keep" "$out/modules"
