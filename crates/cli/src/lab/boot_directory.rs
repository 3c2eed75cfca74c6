//! The temporary directory of a boot. A killed controller leaves its directory behind; a later boot removes it.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use tempfile::TempDir;
use tracing::info;

use super::error::LabError;
use crate::clock;

const PREFIX: &str = "ccbench-lab-";
/// Younger directories are not stale, because they may not be locked yet.
const STALE_AGE: Duration = Duration::from_secs(60);

/// A directory in TMPDIR that is removed on drop. It is locked until then: an unlocked one is stale.
pub struct BootDirectory {
    dir: TempDir,
    _lock: OwnedFd,
}

impl BootDirectory {
    /// Creates a directory and removes stale ones.
    pub fn new() -> Result<Self, LabError> {
        Self::new_in(&std::env::temp_dir())
    }

    fn new_in(parent: &Path) -> Result<Self, LabError> {
        remove_stale(parent);
        let made = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent);
        let dir = made.map_err(LabError::io("make a directory in", parent))?;
        let own = lock(dir.path())?;
        Ok(Self { dir, _lock: own })
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

fn lock(directory: &Path) -> Result<OwnedFd, LabError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let file = open(directory, flags, Mode::empty());
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    let locked = file.and_then(|file| flock(&file, exclusive).map(|()| file));
    locked.map_err(|error| LabError::io("lock", directory)(error.into()))
}

fn remove_stale(parent: &Path) {
    let now_ns = clock::realtime_ns();
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let path = entry.path();
        // The metadata is that of the entry itself: symbolic links are not followed.
        let is_old_directory = entry.metadata().is_ok_and(|metadata| {
            let age_s = (now_ns / 1_000_000_000).saturating_sub(metadata.mtime());
            metadata.is_dir() && age_s >= STALE_AGE.as_secs() as i64
        });
        // Directories of other users cannot be opened.
        if is_old_directory && let Ok(_lock) = lock(&path) {
            let removed = std::fs::remove_dir_all(&path);
            info!(?path, ?removed, "remove a stale directory");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_stale_directories_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let [stale, young, other] = ["ccbench-lab-stale", "ccbench-lab-young", "other"]
            .map(|name| parent.path().join(name));
        let make_old = |directory: &Path| {
            let hour_ago = std::time::UNIX_EPOCH
                + Duration::from_nanos(clock::realtime_ns().unsigned_abs())
                - Duration::from_secs(3600);
            std::fs::File::open(directory).unwrap().set_modified(hour_ago).unwrap();
        };
        for directory in [&stale, &young, &other] {
            std::fs::create_dir(directory).unwrap();
            std::fs::write(directory.join("console"), "text").unwrap();
        }
        make_old(&stale);
        make_old(&other);
        std::os::unix::fs::symlink(&other, parent.path().join("ccbench-lab-link")).unwrap();
        let running = BootDirectory::new_in(parent.path()).unwrap();
        assert!(!stale.exists() && young.exists() && other.join("console").exists());
        make_old(running.path());
        let alias = parent.path().join("alias");
        std::os::unix::fs::symlink(parent.path(), &alias).unwrap();
        let second = BootDirectory::new_in(&alias).unwrap();
        assert!(running.path().exists() && second.path().exists());
        let path = running.path().to_owned();
        drop(running);
        assert!(!path.exists());
    }
}
