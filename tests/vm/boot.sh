#!/bin/bash
# Boots one kernel under software emulation on a virtual clock (instructions are time, idle time is skipped), with a throw-away initramfs:
# busybox, the host's network tools, and the kernel modules that a test names. Needs neither root nor network.
# Usage: boot.sh RELEASE ROOT TEST FILES LIMIT_S
#   ROOT as fetch.sh prints it; TEST a script for dash; FILES a directory that is copied to / of the guest: programs with their libraries.
set -eu
k=$1 root=$2 test=$3 files=$4 limit=$5
modules="veth ifb sch_htb sch_netem sch_fifo sch_fq_codel tcp_vegas tcp_bbr tcp_dctcp tcp_diag inet_diag"
md=$root/lib/modules/$k
[ -d "$md" ] || md=$root/usr/lib/modules/$k
image=$root/boot/vmlinuz-$k
[ -f "$image" ] || image=$md/vmlinuz
d=$(mktemp -d "${TMPDIR:-/tmp}/ccb-vm.XXXXXX")
trap 'rm -rf "$d" "$d.img"' EXIT
mkdir -p "$d"/{bin,proc,sys,dev,run,tmp,lib/modules}
cp /bin/busybox "$d/bin/"
add() {
	mkdir -p "$d$(dirname "$2")"
	cp -L "$1" "$d$2"
	{ ldd "$1" 2>/dev/null || true; } | grep -oE '/[^ ]+\.so[^ ]*' | while read -r library; do
		[ -e "$d$library" ] || { mkdir -p "$d$(dirname "$library")"; cp -L "$library" "$d$library"; }
	done
}
for program in /bin/dash /usr/sbin/ip /usr/sbin/tc /usr/bin/ss /usr/bin/iperf3 /usr/bin/nstat /usr/sbin/ethtool; do
	add "$program" "$program"
done
(cd "$files" && find . -type f | cut -c2-) | while read -r file; do add "$files$file" "$file"; done
# Prints a module and what it depends on, in the order of insmod.
module() {
	[ -e "$d/lib/modules/$1.ko" ] && return 0
	file=$(find "$md" -name "$1.ko*" | head -1)
	[ -n "$file" ] || return 0
	case $file in
	*.xz) xz -dc "$file" >"$d/lib/modules/$1.ko" ;;
	*) cp "$file" "$d/lib/modules/$1.ko" ;;
	esac
	for needed in $(tr '\0' '\n' <"$d/lib/modules/$1.ko" | sed -n 's/^depends=//p' | head -1 | tr ',-' ' _'); do
		module "$needed"
	done
	strip -g "$d/lib/modules/$1.ko" 2>/dev/null || true
	echo "$1" >>"$d/modules"
}
for name in $modules; do module "$name"; done
cp "$test" "$d/test.sh"
cat >"$d/init" <<'END'
#!/bin/dash
/bin/busybox mkdir -p /bb /usr/sbin && /bin/busybox --install -s /bb
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:/bb HOME=/
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev 2>/dev/null
mount -t tmpfs run /run; mkdir -p /run/netns; mount -t bpf bpf /sys/fs/bpf 2>/dev/null
for m in $(cat /modules); do insmod /lib/modules/$m.ko 2>/tmp/e || grep -q exists /tmp/e || echo "no module $m: $(cat /tmp/e)"; done
echo "@@ kernel $(uname -r)"
dash /test.sh
echo "@@ end $?"
poweroff -f
END
chmod +x "$d/init"
(cd "$d" && find . -mindepth 1 | cpio -o -H newc --quiet) | gzip -1 >"$d.img"
timeout "$limit" qemu-system-x86_64 -accel tcg,thread=single -icount shift=0,sleep=off -cpu max -m 768 -nographic \
	-no-reboot -nic none -kernel "$image" -initrd "$d.img" \
	-append "console=ttyS0 panic=-1 quiet mitigations=off nokaslr tsc=reliable" </dev/null 2>&1 |
	sed -u 's/\r//' | sed -un '/@@ kernel/,$p'
