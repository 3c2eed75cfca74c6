//! Control groups version 2: their mount point, this process's own group, and groups for the traffic of a trial.

use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::clock;
use crate::mountinfo::mounts;

/// The prefix of traffic groups; nothing without it is ever removed.
pub(crate) const PREFIX: &str = "ccbench-traffic-";
/// How long killed processes may take to leave their group.
const EMPTY_TIMEOUT_NS: u64 = 1_000_000_000;
/// A mount of control groups version 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    /// The part of the hierarchy that is mounted.
    root: String,
    /// The mount point.
    pub(crate) point: PathBuf,
}

/// Returns the first mount of control groups version 2 in a mountinfo. In hybrid mode it is not the only hierarchy.
pub(crate) fn mount(mountinfo: &str) -> Option<Mount> {
    let mount = mounts(mountinfo).find(|mount| mount.file_system == "cgroup2")?;
    Some(Mount { root: mount.root, point: mount.point })
}

/// Returns this process's group from `/proc/self/cgroup`.
pub(crate) fn own_path(cgroup: &str) -> Option<&str> {
    cgroup.lines().find_map(|line| line.strip_prefix("0::"))
}

impl Mount {
    /// Returns the folder of a group; `None` if it is outside the mount.
    pub(crate) fn folder(&self, path: &str) -> Option<PathBuf> {
        let inside = Path::new(path).strip_prefix(&self.root).ok()?;
        let plain = inside.components().all(|part| matches!(part, Component::Normal(_)));
        plain.then(|| self.point.join(inside))
    }
}

/// Returns the folder of this process's own group, if a mount of control groups version 2 shows it.
pub fn own_folder() -> Option<PathBuf> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let (cgroup, mountinfo) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
    mount(&mountinfo)?.folder(own_path(&cgroup)?)
}

/// Creates a traffic group, unless it exists.
///
/// # Errors
/// The kernel refused.
pub fn make(group: &Path) -> io::Result<()> {
    match std::fs::create_dir(group) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Moves the calling process into a group.
///
/// # Errors
/// The kernel refused.
pub fn join(group: &Path) -> io::Result<()> {
    std::fs::write(group.join("cgroup.procs"), "0")
}

/// Kills the processes in a traffic group and removes it. It is no error if the group does not exist.
///
/// # Errors
/// The group is not a traffic group, or it is not empty within a second.
pub fn remove(group: &Path) -> io::Result<()> {
    let name = group.file_name().unwrap_or_default().to_string_lossy();
    if !name.starts_with(PREFIX) {
        let why = format!("its name does not begin with {PREFIX}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let deadline_ns = clock::now_ns() + EMPTY_TIMEOUT_NS;
    loop {
        match std::fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            // A read-only file system fails before it checks whether the group exists.
            Err(_) if !group.exists() => return Ok(()),
            Err(error)
                if error.raw_os_error() == Some(libc::EBUSY) && clock::now_ns() < deadline_ns =>
            {
                kill_all(group);
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

fn kill_all(group: &Path) {
    if std::fs::write(group.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    // Kernels before Linux 5.14 have no `cgroup.kill`.
    let pids = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    for pid in pids.lines().filter_map(|pid| pid.parse::<i32>().ok()).filter(|&pid| pid > 0) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
        40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 master:1 - cgroup2 cgroup2 rw\n";

    #[test]
    fn finds_the_mount_of_version_2() {
        let hybrid = mount(HYBRID).unwrap();
        assert_eq!(hybrid.point, Path::new("/sys/fs/cgroup/unified"));
        let plain = "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        assert_eq!(mount(plain).unwrap().point, Path::new("/sys/fs/cgroup"));
        let bound = mount("9 1 0:2 /a\\040b /mnt/c\\040d rw - cgroup2 none rw").unwrap();
        assert_eq!((bound.root.as_str(), bound.point), ("/a b", "/mnt/c d".into()));
        assert_eq!(mount("40 31 0:37 / /sys/fs/cgroup rw - cgroup cgroup rw,memory"), None);
        assert_eq!(mount("nonsense - \n\n"), None);
    }

    #[test]
    fn finds_the_own_group() {
        let text = "9:name=systemd:/x\n4:memory:/y\n0::/system.slice/a.service\n";
        assert_eq!(own_path(text), Some("/system.slice/a.service"));
        assert_eq!(own_path("4:memory:/y\n"), None);
    }

    #[test]
    fn a_group_is_a_folder_below_its_mount() {
        let mount = |root: &str| Mount { root: root.into(), point: "/m".into() };
        assert_eq!(mount("/").folder("/a/b"), Some("/m/a/b".into()));
        assert_eq!(mount("/").folder("/"), Some("/m".into()));
        assert_eq!(mount("/a").folder("/a/b"), Some("/m/b".into()));
        assert_eq!(mount("/a").folder("/c"), None);
        assert_eq!(mount("/").folder("/../c"), None, "outside of the cgroup namespace");
    }

    #[test]
    fn removes_only_traffic_groups() {
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("other");
        make(&other).unwrap();
        assert!(remove(&other).is_err() && other.exists());
        let ours = dir.path().join("ccbench-traffic-1-2");
        make(&ours).unwrap();
        make(&ours).unwrap();
        remove(&ours).unwrap();
        remove(&ours).unwrap();
        assert!(!ours.exists());
    }
}
