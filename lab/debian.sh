#!/usr/bin/env bash
# Fetches a stock Debian kernel for the lab: debian.sh HERE OUT SERIES
#   HERE    directory of apt.sh
#   OUT     output directory: `vmlinuz`, `modules/` (unpacked, only those that experiments use), `release` and `version`
#   SERIES  6.1, 6.12 or 7.2
# Needs no root.
set -euo pipefail
here=$(cd "$1" && pwd)
out=$2
series=$3
. "$here/apt.sh"

declare -A package_of=([xz]=xz-utils [depmod]=kmod [modprobe]=kmod [dpkg-deb]=dpkg [apt-get]=apt)
missing=()
for tool in "${!package_of[@]}"; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "$tool" >/dev/null || missing+=("${package_of[$tool]}")
done
[ ${#missing[@]} -eq 0 ] || die "missing: run \`apt-get install ${missing[*]}\` as root"
PATH="$PATH:/usr/sbin:/sbin"

case $series in
6.1) suite=bookworm-security pattern='linux-image-6\.1\.0-[0-9]+-amd64' ;;
6.12) suite=bookworm-backports pattern='linux-image-6\.12\.[0-9]+\+deb12-amd64' ;;
7.2) suite=trixie-backports pattern='linux-(binary|modules|base)-7\.2\.[0-9]+\+deb13-amd64' ;;
*) die "unknown kernel series $series; use 6.1, 6.12 or 7.2" ;;
esac
mkdir -p "$out"
work=$(mktemp -d "$out/build.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/deb" "$work/root"
names=$(apt "$suite" apt-cache pkgnames linux- | grep -xE "$pattern" | sort -V) || die "$suite has no kernel $series"
newest=$(sed -E 's/^linux-(image|binary|modules|base)-//' <<<"$names" | sort -V | tail -1)
packages=$(grep -F -- "-$newest" <<<"$names")
# shellcheck disable=SC2086
(cd "$work/deb" && apt "$suite" apt-get download $packages >"$work/log" 2>&1) || die "cannot download $packages: $(tail -1 "$work/log")"
for deb in "$work"/deb/*.deb; do dpkg-deb -x "$deb" "$work/root"; done
release=$newest
image=$(find "$work/root" -name "vmlinuz-$release" -o -path "*/lib/modules/$release/vmlinuz" | head -1)
modules=$(find "$work/root" -type d -path "*/lib/modules/$release" | head -1)
[ -n "$image" ] && [ -n "$modules" ] || die "the packages $packages do not contain kernel $release"

wanted='veth ifb dummy tun nlmon 8021q bridge virtio_pci virtio_console af_packet_diag tcp_diag inet_diag udp_diag sch_.* cls_.* act_.* em_.* tcp_.*'
depmod -b "${modules%/lib/modules/*}" "$release" 2>/dev/null || true
mkdir -p "$work/keep/lib/modules/$release"
copy() { # path below the modules directory
    local to=$work/keep/lib/modules/$release/${1%.xz}
    [ -e "$to" ] && return
    mkdir -p "$(dirname "$to")"
    case $1 in *.xz) xz -dc "$modules/$1" >"$to" ;; *) cp "$modules/$1" "$to" ;; esac
}
while IFS=': ' read -r path needs; do
    name=$(basename "$path"); name=${name%%.ko*}; name=${name//-/_}
    for want in $wanted; do
        if [[ $name =~ ^$want$ ]]; then
            for file in $path $needs; do copy "$file"; done
        fi
    done
done <"$modules/modules.dep"
for list in builtin order; do # the packages of 7.2 do not contain these files
    [ -e "$modules/modules.$list" ] || touch "$modules/modules.$list"
    cp "$modules/modules.$list" "$work/keep/lib/modules/$release/"
done
depmod -b "$work/keep" "$release"
cp "$image" "$work/vmlinuz"
echo "$release" >"$work/release"
echo "$packages" | tr '\n' ' ' >"$work/version"
rm -rf "$out/modules"
mv "$work/keep/lib/modules/$release" "$out/modules"
for file in release version vmlinuz; do mv "$work/$file" "$out/$file"; done
