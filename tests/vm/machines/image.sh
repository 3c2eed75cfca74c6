#!/usr/bin/env bash
# Builds a disk with Debian 12, GRUB and two kernels, for machines.sh. Usage: image.sh; prints the path of the image and the two kernel
# releases, first the one that GRUB boots by default. The image is kept in the cache; nothing is installed on this machine. Needs root and
# mmdebstrap, 3 GB, and a few minutes the first time.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${CCBENCH_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ccbench/vm}
PATH=$PATH:/usr/sbin:/sbin
size_mib=3072 # sparse

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$here/../../../lab/apt.sh"
die() { echo "machines: $*" >&2; exit 1; }

newest() { # PATTERN: the newest kernel of Debian's security updates, for clouds: small, with virtio
    apt bookworm-security apt-cache pkgnames linux-image- | sed -nE "s/^linux-image-($1-cloud-amd64)\$/\\1/p" | sort -V | tail -1
}
usual=$(newest '6\.12\.[0-9]+\+deb12')
other=$(newest '6\.1\.0-[0-9]+')
[ -n "$usual" ] && [ -n "$other" ] || die "bookworm-security has not both kernels 6.1 and 6.12"
image=$cache/machines-$(cat "$0" "$here"/*.service "$here/install_grub.py" <(echo "$usual $other") | sha256sum | cut -c1-16).img
if [ ! -e "$image" ]; then
    mkdir -p "$cache"
    rm -f "$cache"/machines-*.img
    root=$work/root
    # With dbus, as on installed systems: the agent asks logind for a reboot.
    packages=systemd-sysv,dbus,udev,kmod,procps,iproute2,iperf3,ethtool,libelf1,zlib1g,grub-common,grub-pc-bin
    packages+=,initramfs-tools,busybox,zstd
    for suite in bookworm bookworm-security; do
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(mirror $suite) $suite main"
    done >"$work/sources.list"
    # A mirror may be a snapshot, and newer than this machine's clock. mmdebstrap does not read this machine's apt configuration.
    mmdebstrap --quiet --mode=root --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='Acquire::Check-Date "false"' \
        --include="$packages,linux-image-$usual,linux-image-$other" bookworm "$root" "$work/sources.list" >&2

    # Messages of GRUB, kernel and services go to the console, a file. Emulated, a service or a disk may take longer than systemd's 90 s
    # to start, and the kernel's watchdog of clocks finds differences that come from the host's load.
    arguments="net.ifnames=0 console=ttyS0 mitigations=off tsc=reliable systemd.default_timeout_start_sec=600"
    # What grub-mkconfig reads on a machine, where setup.sh runs it; until then, grub.cfg boots. Without a timeout GRUB waits for a key.
    mkdir -p "$root/boot/grub"
    cat >"$root/etc/default/grub" <<END
GRUB_DEFAULT=0
GRUB_TIMEOUT=0
GRUB_DISABLE_OS_PROBER=true
GRUB_TERMINAL_OUTPUT=serial
GRUB_SERIAL_COMMAND="serial --unit=0 --speed=115200"
GRUB_CMDLINE_LINUX="$arguments"
END
    cat >"$root/boot/grub/grub.cfg" <<END
serial --unit=0 --speed=115200
terminal_output serial
set timeout=0
menuentry first {
	linux /boot/vmlinuz-$usual root=/dev/vda1 ro $arguments
	initrd /boot/initrd.img-$usual
}
END
    chroot "$root" grub-editenv /boot/grub/grubenv create
    cp -r "$root/usr/lib/grub/i386-pc" "$root/boot/grub/"
    # shellcheck disable=SC2016 # GRUB's parentheses
    chroot "$root" grub-mkimage -O i386-pc -o /boot/grub/core.img -p '(hd0,msdos1)/boot/grub' biosdisk part_msdos ext2 normal
    cp "$root/usr/lib/grub/i386-pc/boot.img" "$root/boot/grub/core.img" "$work/"

    # No fsck, which takes long. After a reset, the kernel replays the journal.
    echo '/dev/vda1 / ext4 defaults 0 0' >"$root/etc/fstab"
    echo localhost >"$root/etc/hostname"
    # Without one, the first boot asks questions and resets which units are enabled.
    tr -d - </proc/sys/kernel/random/uuid >"$root/etc/machine-id"
    mkdir -p "$root/etc/systemd/journald.conf.d" "$root/etc/systemd/system/multi-user.target.wants"
    printf '[Journal]\nStorage=volatile\nForwardToConsole=yes\nTTYPath=/dev/ttyS0\n' >"$root/etc/systemd/journald.conf.d/console.conf"
    # Consoles are files here, and nobody needs to log in.
    for unit in getty@tty1 serial-getty@ttyS0; do ln -sf /dev/null "$root/etc/systemd/system/$unit.service"; done
    for unit in systemd-timesyncd apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer man-db.timer; do
        rm -f "$root"/etc/systemd/system/*.wants/"$unit"*
    done
    for unit in ccbench-machine ccbench-machine-join; do
        install -m 644 "$here/$unit.service" "$root/etc/systemd/system/"
        ln -s "../$unit.service" "$root/etc/systemd/system/multi-user.target.wants/"
    done
    rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale}/*

    # One partition after the first MiB. GRUB's first stage is in the first sector, its core in the sectors after it.
    truncate -s "${size_mib}M" "$work/disk"
    mke2fs -q -t ext4 -O ^metadata_csum_seed,^orphan_file -E offset=1048576 -d "$root" "$work/disk" "$((size_mib - 1))M" >&2
    python3 "$here/install_grub.py" "$work/disk" "$work/boot.img" "$work/core.img"
    mv "$work/disk" "$image.new"
    mv "$image.new" "$image"
fi
echo "$image $usual $other"
