//! The volumes that GRUB 2 reads but cannot write to: LVM, RAID, Btrfs and ZFS. Source: `grub_diskfilter_write` in
//! `grub-core/disk/diskfilter.c`, `grub-core/commands/loadenv.c` (a file is written to its blocks on the disk, without its file system), and
//! the same checks for `recordfail` in Ubuntu's `/etc/grub.d/00_header`.

use std::path::Path;

use crate::mountinfo::mounts;

/// Returns the kind of volume that holds a file if GRUB cannot write to it. `file` has no symbolic links, and `sys` is where sysfs is mounted.
pub(super) fn not_writable(file: &Path, mountinfo: &str, sys: &Path) -> Option<&'static str> {
    let mounts = mounts(mountinfo).filter(|mount| file.starts_with(&mount.point));
    // The last of several mounts at one place hides the others.
    let mount = mounts.max_by_key(|mount| mount.point.components().count())?;
    match mount.file_system {
        "btrfs" => Some("Btrfs"),
        "zfs" => Some("ZFS"),
        _ => not_writable_device(&sys.join("dev/block").join(mount.device)),
    }
}

/// As [`not_writable`], for a block device's directory in sysfs, and for the devices below it.
fn not_writable_device(device: &Path) -> Option<&'static str> {
    // A file system without a block device, such as overlayfs, has no such directory.
    let device = device.canonicalize().ok()?;
    let uuid = std::fs::read_to_string(device.join("dm/uuid")).unwrap_or_default();
    if uuid.starts_with("LVM-") {
        return Some("LVM");
    }
    if device.join("md").is_dir() {
        return Some("RAID");
    }
    // The directory of a partition is in that of its disk.
    if device.join("partition").exists() {
        return not_writable_device(device.parent()?);
    }
    // An encrypted volume may be on LVM, for example.
    let below = std::fs::read_dir(device.join("slaves")).into_iter().flatten().flatten();
    below.map(|entry| entry.path()).find_map(|device| not_writable_device(&device))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn volumes_that_grub_only_reads_are_found_below_a_file() {
        let sys = tempfile::tempdir().unwrap();
        let file = |path: &str, content: &str| {
            let path = sys.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        };
        let link = |target: &str, path: &str| {
            let path = sys.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(sys.path().join(target), path).unwrap();
        };
        for (device, number) in
            [("sda/sda1", "8:1"), ("dm-0", "253:0"), ("dm-1", "253:1"), ("dm-2", "253:2")]
        {
            link(&format!("devices/{device}"), &format!("dev/block/{number}"));
        }
        link("devices/md0/md0p1", "dev/block/259:0");
        file("devices/sda/sda1/partition", "1\n");
        file("devices/dm-0/dm/uuid", "LVM-x7kq\n");
        // An encrypted partition, and an encrypted logical volume.
        file("devices/dm-1/dm/uuid", "CRYPT-LUKS2-1f\n");
        link("devices/sda/sda1", "devices/dm-1/slaves/sda1");
        file("devices/dm-2/dm/uuid", "CRYPT-LUKS2-2e\n");
        link("devices/dm-0", "devices/dm-2/slaves/dm-0");
        file("devices/md0/md/level", "raid1\n");
        file("devices/md0/md0p1/partition", "1\n");
        let found = |mounts: &[(&str, &str, &str)]| {
            let line = |(device, point, kind): &(&str, &str, &str)| {
                format!("36 35 {device} / {point} rw,noatime shared:1 - {kind} /dev/x rw\n")
            };
            let mountinfo: String = mounts.iter().map(line).collect();
            not_writable(Path::new("/boot/grub/grubenv"), &mountinfo, sys.path())
        };
        for (device, kind, expected) in [
            ("8:1", "ext4", None),
            ("253:0", "ext4", Some("LVM")),
            ("253:1", "ext4", None),
            ("253:2", "xfs", Some("LVM")),
            ("259:0", "ext4", Some("RAID")),
            ("0:25", "btrfs", Some("Btrfs")),
            ("0:26", "zfs", Some("ZFS")),
            ("0:27", "overlay", None),
        ] {
            assert_eq!(found(&[(device, "/", kind)]), expected, "{device} {kind}");
        }
        let root = ("253:0", "/", "ext4");
        assert_eq!(found(&[("8:1", "/boot", "ext4"), root]), None, "a partition of its own");
        assert_eq!(found(&[root, ("8:1", "/boo", "ext4")]), Some("LVM"), "another folder");
        let hidden = ("8:1", "/boot", "ext4");
        assert_eq!(found(&[root, hidden, ("0:25", "/boot", "btrfs")]), Some("Btrfs"));
        assert_eq!(not_writable(Path::new("/boot"), "", sys.path()), None);
    }
}
