//! The temporary directory of a boot. A controller that was killed leaves its directory behind; the next boot removes it.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use tempfile::TempDir;
use tracing::info;

use super::error::LabError;

const PREFIX: &str = "ccbench-lab-";

/// A directory in TMPDIR that is removed when this is dropped. It is locked until then: an unlocked one belongs to nobody.
pub struct BootDirectory {
    dir: TempDir,
    _lock: OwnedFd,
}

impl BootDirectory {
    /// Makes a directory, and removes those that killed controllers have left.
    pub fn new() -> Result<Self, LabError> {
        Self::new_in(&std::env::temp_dir())
    }

    fn new_in(parent: &Path) -> Result<Self, LabError> {
        let failed = |error: rustix::io::Errno| LabError::io("lock", parent)(error.into());
        // Locked until the new directory is, so that nobody takes that for a left one.
        let lock = open_directory(parent).map_err(failed)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(failed)?;
        remove_left(parent);
        let made = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent);
        let dir = made.map_err(LabError::io("make a directory in", parent))?;
        let own = open_directory(dir.path()).map_err(failed)?;
        flock(&own, FlockOperation::NonBlockingLockExclusive).map_err(failed)?;
        Ok(Self { dir, _lock: own })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

fn open_directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open(path, flags, Mode::empty())
}

fn remove_left(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let path = entry.path();
        // Those of other users cannot be opened.
        let Ok(dir) = open_directory(&path) else { continue };
        if flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let removed = std::fs::remove_dir_all(&path);
            info!(?path, ?removed, "remove what a killed controller has left");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_what_a_killed_controller_has_left_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let left = parent.path().join("ccbench-lab-left");
        let other = parent.path().join("other");
        for dir in [&left, &other] {
            std::fs::create_dir(dir).unwrap();
            std::fs::write(dir.join("console"), "text").unwrap();
        }
        std::os::unix::fs::symlink(&other, parent.path().join("ccbench-lab-link")).unwrap();
        let running = BootDirectory::new_in(parent.path()).unwrap();
        assert!(!left.exists() && other.join("console").exists());
        let second = BootDirectory::new_in(parent.path()).unwrap();
        assert!(running.path().exists() && second.path().exists());
        let path = running.path().to_owned();
        drop(running);
        assert!(!path.exists());
    }
}
