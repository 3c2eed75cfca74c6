//! The lock of a state directory. Only the process that holds it undoes the changes in its journal.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::error::{JournalError, failed};
use super::journal::FILE as JOURNAL;

/// The name of the lock file in the state directory.
const FILE: &str = "lock";
/// Limit of attempts to lock a file that still exists. Each retry means that another process has removed the directory.
const MAX_ATTEMPTS: u32 = 100;
/// Pause between two attempts to take a lock that another process holds.
const PAUSE: Duration = Duration::from_millis(20);

/// Locks a state directory for the lifetime of the returned file: two agents must not share one.
///
/// # Errors
/// Another agent holds it ([`io::ErrorKind::WouldBlock`]), or the folder cannot be created.
pub fn lock(state_dir: &Path) -> Result<File, JournalError> {
    let path = state_dir.join(FILE);
    for _ in 0..MAX_ATTEMPTS {
        std::fs::create_dir_all(state_dir).map_err(failed("open", &path))?;
        let opened = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened.map_err(failed("open", &path))?,
        };
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| {
            let error = io::Error::from(errno);
            if error.kind() != io::ErrorKind::WouldBlock {
                return failed("lock", &path)(error);
            }
            let why = format!(
                "another agent holds it ({errno}): end that one first; only an agent in another network namespace may run beside it, with \
                 another --state-dir"
            );
            failed("lock", &path)(io::Error::new(error.kind(), why))
        })?;
        if is_at(&file, &path) {
            return Ok(file);
        }
    }
    let why = "other processes keep removing it";
    Err(failed("lock", &path)(io::Error::new(io::ErrorKind::NotFound, why)))
}

/// Like [`lock`], but makes up to `retries` further attempts, 20 ms apart, while another process holds it.
///
/// # Errors
/// As [`lock`].
pub fn lock_soon(state_dir: &Path, retries: u32) -> Result<File, JournalError> {
    for _ in 0..retries {
        match lock(state_dir) {
            Err(error) if error.source.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(PAUSE);
            }
            taken => return taken,
        }
    }
    lock(state_dir)
}

/// Removes a state directory whose lock this process holds. The lock file is removed last: until then no other process
/// uses the directory, and afterwards each creates its own file, which keeps the directory.
///
/// # Errors
/// A file cannot be removed.
pub fn remove_locked(state_dir: &Path, lock: File) -> io::Result<()> {
    for entry in std::fs::read_dir(state_dir)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name != FILE) {
            std::fs::remove_file(path)?;
        }
    }
    std::fs::remove_file(state_dir.join(FILE))?;
    let removed = std::fs::remove_dir(state_dir);
    drop(lock);
    match removed {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        removed => removed,
    }
}

/// Removes a state directory whose lock this process holds, if it contains only the lock and an empty journal.
/// Otherwise returns the names of the other files, sorted.
///
/// # Errors
/// The directory cannot be listed, or a file cannot be removed.
pub fn remove_if_empty(state_dir: &Path, lock: File) -> io::Result<Vec<String>> {
    let mut others = Vec::new();
    for entry in std::fs::read_dir(state_dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_empty_journal = name == JOURNAL && entry.metadata()?.len() == 0;
        if name != FILE && !is_empty_journal {
            others.push(name.to_string_lossy().into_owned());
        }
    }
    others.sort();
    if others.is_empty() {
        remove_locked(state_dir, lock)?;
    }
    Ok(others)
}

/// Locks the network namespace of the calling thread for the lifetime of the returned file; returns `None` if another process holds
/// it. The lock is on the namespace's own file, so nothing is left behind. Any user can take it, so it only justifies a warning,
/// not a refusal.
///
/// # Errors
/// The file cannot be opened or locked.
pub fn lock_namespace() -> io::Result<Option<File>> {
    let file = File::open("/proc/thread-self/ns/net")?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether a path leads to this open file. It does not if the file was removed after it was opened and before it was locked.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(held), Ok(there)) = (file.metadata(), std::fs::metadata(path)) else { return false };
    (held.dev(), held.ino()) == (there.dev(), there.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_directory_has_one_owner() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(dir.path()).unwrap();
        assert!(lock(dir.path()).unwrap_err().to_string().contains("another agent"));
        assert!(lock_soon(dir.path(), 1).unwrap_err().to_string().contains("another agent"));
        // A child process of another test may hold a copy of the descriptor until its exec, so closing it is not enough.
        flock(&held, FlockOperation::Unlock).unwrap();
        drop(held);
        assert!(lock(dir.path()).is_ok());
    }

    #[test]
    fn the_lock_of_a_removed_file_is_not_taken() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("state");
        let held = lock(&dir).unwrap();
        let path = dir.join(FILE);
        // Models a process that opens the file before its owner removes it, and locks it afterwards.
        let late = File::open(&path).unwrap();
        flock(&held, FlockOperation::Unlock).unwrap();
        remove_locked(&dir, held).unwrap();
        assert!(!dir.exists());
        flock(&late, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(!is_at(&late, &path));
        let next = lock(&dir).unwrap();
        assert!(is_at(&next, &path) && !is_at(&late, &path));
    }

    #[test]
    fn only_an_empty_state_directory_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("state");
        let files_left = |files: &[(&str, &str)]| {
            let held = lock(&dir).unwrap();
            files.iter().for_each(|(name, text)| std::fs::write(dir.join(name), text).unwrap());
            // A child process of another test may hold a copy of the descriptor.
            flock(&held, FlockOperation::Unlock).unwrap();
            remove_if_empty(&dir, held).unwrap()
        };
        assert_eq!(files_left(&[(JOURNAL, "a line")]), [JOURNAL]);
        assert_eq!(files_left(&[(JOURNAL, ""), ("audit.ndjson", "")]), ["audit.ndjson"]);
        assert!(dir.exists());
        std::fs::remove_file(dir.join("audit.ndjson")).unwrap();
        assert_eq!(files_left(&[]), Vec::<String>::new());
        assert!(!dir.exists());
    }

    #[test]
    fn the_advice_is_no_second_agent_in_one_namespace() {
        let dir = tempfile::tempdir().unwrap();
        let _held = lock(dir.path()).unwrap();
        let refused = lock(dir.path()).unwrap_err().to_string();
        for part in ["end that one first", "in another network namespace"] {
            assert!(refused.contains(part), "no `{part}`: {refused}");
        }
    }

    #[test]
    fn a_lock_is_awaited() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("state");
        let held = lock(&dir).unwrap();
        let next = std::thread::spawn({
            let dir = dir.clone();
            move || lock_soon(&dir, u32::MAX).map(|file| is_at(&file, &dir.join(FILE)))
        });
        flock(&held, FlockOperation::Unlock).unwrap();
        assert!(next.join().unwrap().unwrap());
    }
}
