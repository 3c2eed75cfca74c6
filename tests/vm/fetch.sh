#!/bin/bash
# Unpacks Debian kernels with their headers into a cache directory. Installs nothing, and does not change the system's package sources.
# Usage: fetch.sh 6.1|6.12|7.2 ... ; prints one line per kernel: RELEASE ROOT.
#
# The build tools of 7.x need a newer C library than Debian 12's. It is unpacked beside them, and each tool is started with it.
set -eu
cache=${CCBENCH_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ccbench/vm}
mkdir -p "$cache/apt/lists/partial" "$cache/apt/archives/partial"

# The system's own mirror, whatever it is.
mirror() { # FALLBACK PATTERN
	grep -hoE 'https?://[^ ]+' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
		grep -E -- "$2" | head -1 || true
}
debian=$(mirror '' '/debian/?$')
security=$(mirror '' 'debian-security/?$')
[ -n "$debian" ] || { echo "fetch: no Debian mirror in the system's apt sources; the VM tests need one" >&2; exit 1; }
security=${security:-${debian%/}-security}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
cat >"$cache/apt/sources.list" <<END
deb [signed-by=$keyring] $security bookworm-security main
deb [signed-by=$keyring] $debian bookworm main
deb [signed-by=$keyring] $debian bookworm-backports main
deb [signed-by=$keyring] $debian trixie main
deb [signed-by=$keyring] $debian trixie-backports main
END

apt_private() {
	apt-get -qq -o Dir::Etc::sourcelist="$cache/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
		-o Dir::State::lists="$cache/apt/lists" -o Dir::Cache="$cache/apt" -o APT::Sandbox::User=root \
		-o Acquire::Check-Valid-Until=false -o Debug::NoLocking=1 "$@"
}
policy() { # newest version of PACKAGE-PATTERN
	apt-cache -o Dir::Etc::sourcelist="$cache/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
		-o Dir::State::lists="$cache/apt/lists" -o Dir::Cache="$cache/apt" "$@"
}
[ -n "$(find "$cache/apt/lists" -name '*_Packages*' -mtime -7 2>/dev/null | head -1)" ] || apt_private update >&2

# The newest kernel of a series that still has headers: its release, as uname -r prints it.
release() {
	policy pkgnames linux-headers- | sed -n "s/^linux-headers-\($1[.0-9-]*\(+deb1[23]\)\{0,1\}-amd64\)$/\1/p" |
		sort -V | tail -1
}

unpack() { # ROOT PACKAGE...
	local root=$1
	shift
	mkdir -p "$cache/debs" "$root"
	(cd "$cache/debs" && apt_private download "$@") >&2
	for package in "$@"; do
		dpkg -x "$(ls -t "$cache/debs/${package%%=*}"_*.deb | head -1)" "$root"
	done
}

# Replaces every build tool below ROOT by a wrapper that starts it with the libraries for which it was built.
with_own_libc() { # ROOT
	local root=$1
	unpack "$root/host" libc6 libelf1t64 libzstd1 zlib1g libssl3t64
	libs=$root/host/usr/lib/x86_64-linux-gnu
	find "$root"/usr/lib/linux-kbuild-* -type f -perm -u+x | while read -r tool; do
		[ "$(head -c 4 "$tool" | tr -d '\0')" = $'\x7fELF' ] || continue
		mv "$tool" "$tool.elf"
		real=$tool.elf
		case $tool in # these two only choose one of their neighbours
		*/objtool) real=$tool.real-x86.elf ;;
		*/modpost) real=$tool.real-lsb-64.elf ;;
		esac
		printf '#!/bin/sh\nexec %s --library-path %s %s "$@"\n' \
			"$libs/ld-linux-x86-64.so.2" "$libs" "$real" >"$tool"
		chmod +x "$tool"
	done
}

for series in "$@"; do
	k=$(release "${series//./\\.}\\.")
	[ -n "$k" ] || { echo "fetch: no kernel $series with headers on this mirror" >&2; exit 1; }
	root=$cache/$k
	if [ ! -e "$root/complete" ]; then
		rm -rf "$root"
		common=linux-headers-${k%-amd64}-common
		case $series in
		6.1) unpack "$root" "linux-image-$k" "linux-headers-$k" "$common" linux-kbuild-6.1 linux-compiler-gcc-12-x86 ;;
		6.12) unpack "$root" "linux-image-$k" "linux-headers-$k" "$common" "linux-kbuild-${k%-amd64}" ;;
		*) unpack "$root" "linux-binary-$k" "linux-modules-$k" "linux-base-$k" "linux-headers-$k" "$common" \
			"linux-kbuild-${k%-amd64}"
			with_own_libc "$root" ;;
		esac
		# The headers refer to each other by absolute paths.
		sed -i "s#\([ =]\)/usr/src/#\1$root/usr/src/#g" "$root/usr/src/linux-headers-$k/Makefile"
		rm -f "$cache"/debs/*.deb
		touch "$root/complete"
	fi
	echo "$k $root"
done
