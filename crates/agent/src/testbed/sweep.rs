//! Removes what a killed testbed leaves: a directory with sockets and logs. Files that another program may have put
//! there stay.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ccbench_io::owner::check_state_root;
use rustix::fs::{FlockOperation, flock};

use super::record::{FILE, FILE_NEW, Record, remove_files};

/// How long a killed testbed may take to end its agents; on an idle machine, a few milliseconds.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Outcome of a sweep over the run directories.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Removed directories of dead testbeds.
    pub removed: Vec<PathBuf>,
    /// Directories of dead testbeds in which only the testbed's own files were removed.
    pub emptied: Vec<PathBuf>,
    /// Directories of running testbeds.
    pub live: Vec<PathBuf>,
    /// What could not be read or removed, each with its reason.
    pub failed: Vec<String>,
}

/// Removes the run directories under `root` whose testbed is dead. Their `testbed.json` is of an earlier boot or of an
/// ended process, or they have no record and no controller has locked them: the controller was killed before its
/// testbed had written one. Leaves every other directory alone and touches no process: agents of a dead testbed cannot
/// exist.
///
/// # Errors
/// `root` cannot be listed, or another user has made it or can change it. It is no error if `root` does not exist.
pub fn sweep(root: &Path) -> io::Result<Swept> {
    sweep_with(root, remove)
}

fn sweep_with(root: &Path, remove: impl Fn(&Path) -> io::Result<bool>) -> io::Result<Swept> {
    let mut swept = Swept::default();
    let entries = match check_state_root(root).and_then(|()| std::fs::read_dir(root)) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(swept),
        Err(e) => return Err(e),
    };
    let mut dirs = Vec::new();
    for entry in entries {
        let listed = entry.and_then(|entry| Ok((entry.file_type()?, entry)));
        let (kind, entry) = match listed {
            Ok(listed) => listed,
            Err(error) => {
                swept.failed.push(format!("list {}: {error}", root.display()));
                continue;
            }
        };
        if !kind.is_dir() || entry.file_name().as_encoded_bytes().starts_with(b"agent-") {
            continue;
        }
        let path = entry.path();
        if path.join(FILE).is_file() {
            dirs.push(path);
        } else if remove_without_record(&path) {
            swept.removed.push(path);
        }
    }
    dirs.sort();
    for dir in dirs {
        match Record::load(&dir) {
            Ok(record) if record.is_live() || !record.process.wait_exit(EXIT_TIMEOUT) => {
                swept.live.push(dir);
            }
            Ok(_) => match remove(&dir) {
                Ok(true) => swept.removed.push(dir),
                Ok(false) => swept.emptied.push(dir),
                // It may belong to another user; the others are still removed.
                Err(error) => {
                    swept.failed.push(format!("remove {}: {error}", dir.display()));
                }
            },
            // The record is unreadable, so it may not be a testbed's.
            Err(_) => {}
        }
    }
    swept.removed.sort();
    Ok(swept)
}

/// Removes the run directory of a testbed that was killed before it had written its record.
fn remove_without_record(dir: &Path) -> bool {
    let removed = unless_locked(dir, || {
        // Exists if the testbed was killed between writing the file and renaming it.
        let _ = std::fs::remove_file(dir.join(FILE_NEW));
        std::fs::remove_dir(dir).is_ok()
    });
    removed.unwrap_or(false)
}

/// Calls `remove`, unless a controller has locked the directory, which it does for its lifetime. The lock is held during the
/// call. A controller that has just created the directory waits for the lock, finds the directory gone and creates it again.
fn unless_locked<T>(dir: &Path, remove: impl FnOnce() -> T) -> Option<T> {
    let file = std::fs::File::open(dir).ok()?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    let removed = remove();
    // A child process of another thread may hold a copy of the descriptor until its exec, so closing it is not enough.
    let _ = flock(&file, FlockOperation::Unlock);
    Some(removed)
}

/// Removes a testbed's files. Returns whether the directory itself is gone. A testbed killed while it was being built
/// has no nodes in its record yet, so sockets and logs are recognised by name.
fn remove(dir: &Path) -> io::Result<bool> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        // Another controller has removed it in the meantime.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(e) => return Err(e),
    };
    let mut nodes = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let Some(name) = name.to_str() else { continue };
        if let Some(node) = name.strip_suffix(".sock").or_else(|| name.strip_suffix(".log")) {
            nodes.push(node.to_owned());
        }
    }
    remove_files(dir, &mut nodes.iter().map(String::as_str));
    match std::fs::remove_dir(dir) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(false),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::super::identity::ProcessIdentity;
    use super::*;

    fn dead() -> Record {
        let own = Record::own().unwrap();
        Record {
            process: ProcessIdentity { starttime: own.process.starttime + 1, ..own.process },
            ..own
        }
    }

    #[test]
    fn only_what_a_dead_testbed_left_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let dir = root.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            dir
        };
        let (gone, kept, live, other) = (make("gone"), make("kept"), make("live"), make("other"));
        let (early, starting, writing) = (make("early"), make("starting"), make("writing"));
        std::fs::write(writing.join(FILE_NEW), "{").unwrap();
        let lock = std::fs::File::open(&starting).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        dead().store(&gone).unwrap();
        std::fs::write(gone.join("src.sock"), "").unwrap();
        std::fs::write(gone.join("src.log"), "").unwrap();
        dead().store(&kept).unwrap();
        std::fs::write(kept.join("results.parquet"), "data").unwrap();
        Record::own().unwrap().store(&live).unwrap();
        std::fs::write(other.join("src.sock"), "").unwrap();

        let swept = sweep(root.path()).unwrap();

        assert!(starting.exists() && !make("agent-1").as_os_str().is_empty());
        let expected = Swept {
            removed: vec![early, gone, writing],
            emptied: vec![kept],
            live: vec![live],
            failed: vec![],
        };
        assert_eq!(swept, expected);
        assert!(root.path().join("kept/results.parquet").exists());
        assert!(root.path().join("other/src.sock").exists());
        assert_eq!(sweep(root.path()).unwrap().removed, Vec::<PathBuf>::new());
    }

    #[test]
    fn a_root_that_others_can_change_is_left_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("gone");
        std::fs::create_dir(&dir).unwrap();
        dead().store(&dir).unwrap();
        let open_to = |mode| {
            std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        open_to(0o777);
        let error = sweep(root.path()).unwrap_err().to_string();
        assert!(error.contains("set CCBENCH_STATE") && dir.exists(), "{error}");
        open_to(0o700);
        assert_eq!(sweep(root.path()).unwrap().removed, [dir]);
    }

    #[test]
    fn a_directory_is_locked_while_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let controller = std::fs::File::open(dir.path()).unwrap();
        let lock = || flock(&controller, FlockOperation::NonBlockingLockExclusive);
        let refused = unless_locked(dir.path(), lock).unwrap();
        assert_eq!(refused, Err(rustix::io::Errno::WOULDBLOCK));
        lock().unwrap();
        assert_eq!(unless_locked(dir.path(), || ()), None);
    }

    #[test]
    fn directories_after_one_that_cannot_be_removed_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let [first, last] = ["1", "2"].map(|name| root.path().join(name));
        for dir in [&first, &last] {
            std::fs::create_dir(dir).unwrap();
            dead().store(dir).unwrap();
        }
        let swept = sweep_with(root.path(), |dir| match dir == first {
            true => Err(io::ErrorKind::PermissionDenied.into()),
            false => remove(dir),
        })
        .unwrap();
        assert_eq!(swept.removed, [last]);
        assert_eq!(swept.failed, [format!("remove {}: permission denied", first.display())]);
    }

    #[test]
    fn a_missing_folder_is_no_error() {
        assert_eq!(sweep(Path::new("/nowhere/at/all")).unwrap(), Swept::default());
    }

    #[test]
    fn a_folder_that_another_controller_removed_is_no_error() {
        assert!(remove(Path::new("/nowhere/at/all")).unwrap());
    }
}
