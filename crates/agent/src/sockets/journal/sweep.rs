//! Rolls back the journals of dead processes, and those steps of living ones that could not be undone.

use std::fs::{File, OpenOptions, read_dir};
use std::io::{self, Read as _, Seek as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ccbench_io::replace::replace;
use ccbench_proto::wire::Privileges;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{EXTENSION, FOLDER, restrict, steps, undo_step, unload_unused, unlock};
use crate::privileges::privileges;
use crate::sockets::error::SocketError;
use crate::undo::Outcome;

/// How long to wait for another process that rolls back journals: longer than a few modules take to unload.
const ATTEMPTS: u32 = 500;
const PAUSE: Duration = Duration::from_millis(20);
/// How long to wait for a lock on the journal of a dead process: longer than another agent looks for uses of a module, or than a child
/// process takes to execute its program.
const JOURNAL_ATTEMPTS: u32 = 5;
const JOURNAL_PAUSE: Duration = Duration::from_millis(2);

/// Rolls back the journals of dead processes. A reboot clears both the changes and the folder. Journals that cannot be read are
/// failures, except those of users that this process may not act for.
pub fn sweep() -> Outcome {
    sweep_folder(Path::new(FOLDER))
}

/// As [`sweep`], in another folder.
pub fn sweep_folder(folder: &Path) -> Outcome {
    match lock(folder) {
        Ok(Some(locked)) => sweep_and_unlock(&locked, folder),
        Ok(None) => Outcome::default(),
        Err(error) => failed(error.to_string()),
    }
}

fn sweep_and_unlock(locked: &File, folder: &Path) -> Outcome {
    let outcome = sweep_locked(folder);
    unlock(locked);
    outcome
}

/// Locks the folder: a journal that stays locked meanwhile belongs to a living process, not to another one that rolls it back. Agents that
/// look for uses of a module lock journals without this lock, but only for a moment. Returns `None` if there is no folder, or one of
/// another user.
fn lock(folder: &Path) -> Result<Option<File>, SocketError> {
    let file = match File::open(folder) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if is_of_another_user(&error) => {
            tracing::debug!(folder = %folder.display(), "the journals belong to another user");
            return Ok(None);
        }
        Err(error) => return Err(SocketError::file("open", folder)(error)),
    };
    restrict(folder)?;
    let locked = retry(ATTEMPTS, PAUSE, || flock(&file, FlockOperation::NonBlockingLockExclusive));
    let why = |errno: Errno| match errno {
        Errno::WOULDBLOCK => io::Error::new(
            io::ErrorKind::WouldBlock,
            "another agent has been undoing changes to congestion controls for 10 s; find it with `fuser` or `lsof`",
        ),
        errno => errno.into(),
    };
    locked.map_err(|errno| SocketError::file("lock", folder)(why(errno)))?;
    Ok(Some(file))
}

/// Tries to lock until the lock is free, at most `attempts` times.
fn retry(
    attempts: u32,
    pause: Duration,
    mut lock: impl FnMut() -> Result<(), Errno>,
) -> Result<(), Errno> {
    for _ in 1..attempts {
        match lock() {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(pause),
            locked => return locked,
        }
    }
    lock()
}

/// Whether a file cannot be opened because it belongs to another user, whose changes this process could not undo either.
fn is_of_another_user(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied && privileges() != Privileges::Root
}

fn sweep_locked(folder: &Path) -> Outcome {
    let mut outcome = Outcome::default();
    let listed = read_dir(folder).and_then(|entries| {
        entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()
    });
    let paths = match listed {
        Ok(paths) => paths,
        Err(error) => return failed(SocketError::file("read", folder)(error).to_string()),
    };
    for path in paths.into_iter().filter(|path| path.extension().is_some_and(|e| e == EXTENSION)) {
        match OpenOptions::new().read(true).append(true).open(&path) {
            Ok(mut file) => outcome.merge(sweep_file(&mut file, &path, folder)),
            // Its process has ended meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if is_of_another_user(&error) => {}
            Err(error) => {
                outcome.failed.push(SocketError::file("open", &path)(error).to_string());
            }
        }
    }
    outcome
}

/// Rolls back an open journal in `folder`, unless its process is alive.
pub(super) fn sweep_file(file: &mut File, path: &Path, folder: &Path) -> Outcome {
    let try_lock = || flock(&*file, FlockOperation::NonBlockingLockExclusive);
    match retry(JOURNAL_ATTEMPTS, JOURNAL_PAUSE, try_lock) {
        Ok(()) => {}
        // A living process holds the lock of its own journal.
        Err(Errno::WOULDBLOCK) => return Outcome::default(),
        Err(errno) => return failed(SocketError::file("lock", path)(errno.into()).to_string()),
    }
    let outcome = roll_back(file, path, folder);
    unlock(file);
    outcome
}

fn roll_back(file: &mut File, path: &Path, folder: &Path) -> Outcome {
    // Another agent rolled it back between opening and locking: the path now leads to another file, or to none.
    if file.metadata().is_ok_and(|metadata| metadata.nlink() == 0) {
        return Outcome::default();
    }
    let mut bytes = Vec::new();
    match file.rewind().and_then(|()| file.read_to_end(&mut bytes)) {
        Ok(_) => undo_file(&bytes, path, folder),
        Err(error) => failed(SocketError::file("read", path)(error).to_string()),
    }
}

fn failed(message: String) -> Outcome {
    Outcome { failed: vec![message], ..Outcome::default() }
}

/// Undoes the steps of a dead process, last first. Only the lines of failed steps stay in the file: what one agent has
/// undone may be in use again when the next one starts.
fn undo_file(bytes: &[u8], path: &Path, folder: &Path) -> Outcome {
    let (mut outcome, mut kept, mut ended) = (Outcome::default(), Vec::new(), Vec::new());
    for (line, step) in steps(bytes).into_iter().rev() {
        let of_step = match step {
            Ok(step) => undo_step(&step, &mut ended),
            Err(why) => failed(format!(
                "{}: line {} {why}, so what it would undo is unknown: restore the congestion controls by hand or reboot, \
                 then remove the file",
                path.display(),
                line.number
            )),
        };
        if !of_step.failed.is_empty() {
            kept.insert(0, [line.bytes, b"\n"].concat());
        }
        outcome.merge(of_step);
    }
    let rewritten = match kept.is_empty() {
        true => std::fs::remove_file(path),
        false if outcome.undone.is_empty() => Ok(()),
        false => replace(path, &kept.concat()).map(drop),
    };
    if let Err(error) = rewritten {
        outcome.failed.push(SocketError::file("write", path)(error).to_string());
    }
    unload_unused(&ended, folder, &mut outcome);
    outcome
}

#[cfg(test)]
mod tests {
    use super::super::Journal;
    use super::super::tests::{abandon, gone, stuck};
    use super::*;

    #[test]
    fn sweep_skips_living_processes_and_undoes_dead_ones() {
        let dir = tempfile::tempdir().unwrap();
        let count = || std::fs::read_dir(dir.path()).unwrap().count();
        let mut journal = Journal::in_folder(dir.path());
        journal.push(gone()).unwrap();
        assert_eq!(sweep_folder(dir.path()), Outcome::default());
        assert_eq!(count(), 1);
        let path = abandon(&mut journal);
        assert!(path.exists());
        assert_eq!(sweep_folder(dir.path()).undone, ["parameter no_such.x = 1"]);
        assert_eq!(count(), 0);
    }

    #[test]
    fn a_journal_is_rolled_back_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::in_folder(dir.path());
        journal.push(gone()).unwrap();
        let path = abandon(&mut journal);
        // Models an agent that opens the file before another one rolls it back.
        let mut late = OpenOptions::new().read(true).append(true).open(&path).unwrap();
        assert_eq!(sweep_folder(dir.path()).undone.len(), 1);
        assert_eq!(sweep_file(&mut late, &path, dir.path()), Outcome::default());
    }

    #[test]
    fn a_child_process_that_holds_copies_of_the_locked_files_does_not_stop_the_next_sweep() {
        let dir = tempfile::tempdir().unwrap();
        let (step, _) = stuck(dir.path());
        let mut journal = Journal::in_folder(dir.path());
        journal.push(step).unwrap();
        let path = abandon(&mut journal);
        let mut file = OpenOptions::new().read(true).append(true).open(&path).unwrap();
        let _copy_of_journal = file.try_clone().unwrap();
        assert_eq!(sweep_file(&mut file, &path, dir.path()).failed.len(), 1);
        drop(file);
        let folder = lock(dir.path()).unwrap().unwrap();
        let _copy_of_folder = folder.try_clone().unwrap();
        assert_eq!(sweep_and_unlock(&folder, dir.path()).failed.len(), 1);
        drop(folder);
        let again = File::open(dir.path()).unwrap();
        flock(&again, FlockOperation::NonBlockingLockExclusive).unwrap();
    }

    #[test]
    fn a_lock_that_is_held_for_a_moment_is_tried_again() {
        let attempts = |held: u32| {
            let mut count = 0;
            let locked = retry(3, Duration::ZERO, || {
                count += 1;
                if count <= held { Err(Errno::WOULDBLOCK) } else { Ok(()) }
            });
            (locked, count)
        };
        assert_eq!(attempts(0), (Ok(()), 1));
        assert_eq!(attempts(2), (Ok(()), 3));
        assert_eq!(attempts(3), (Err(Errno::WOULDBLOCK), 3));
        let mut count = 0;
        let other = retry(3, Duration::ZERO, || {
            count += 1;
            Err(Errno::NOLCK)
        });
        assert_eq!((other, count), (Err(Errno::NOLCK), 1), "no lock to wait for");
    }

    #[test]
    fn sweep_keeps_a_journal_with_a_damaged_line() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::in_folder(dir.path());
        journal.push(gone()).unwrap();
        journal.push(gone()).unwrap();
        let path = abandon(&mut journal);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[20] = 0xff;
        std::fs::write(&path, bytes).unwrap();
        let outcome = sweep_folder(dir.path());
        assert_eq!(outcome.undone.len(), 1, "{outcome:?}");
        let [failed] = &outcome.failed[..] else { panic!("{outcome:?}") };
        assert!(failed.contains("line 1 is damaged") && path.exists(), "{failed}");
        let again = sweep_folder(dir.path());
        assert_eq!((again.undone.len(), again.failed.len()), (0, 1), "undone once: {again:?}");
    }

    #[test]
    fn journals_that_cannot_be_read_are_failures() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(sweep_folder(&dir.path().join("none")), Outcome::default(), "no journals");
        // Nobody can write to a folder, whatever its permissions.
        let journal = dir.path().join("1-0.ndjson");
        std::fs::create_dir(&journal).unwrap();
        let outcome = sweep_folder(dir.path());
        let [failed] = &outcome.failed[..] else { panic!("{outcome:?}") };
        assert!(failed.starts_with(&format!("open {}: ", journal.display())), "{failed}");
        let no_folder = dir.path().join("file");
        std::fs::write(&no_folder, "").unwrap();
        let outcome = sweep_folder(&no_folder);
        assert!(matches!(&outcome.failed[..], [why] if why.starts_with("read ")), "{outcome:?}");
    }

    #[test]
    fn a_step_that_failed_is_tried_again_by_the_living_process() {
        let dir = tempfile::tempdir().unwrap();
        let (step, obstacle) = stuck(dir.path());
        let mut journal = Journal::in_folder(dir.path());
        journal.push(step).unwrap();
        assert_eq!(journal.undo().failed.len(), 1);
        let again = sweep_folder(dir.path());
        assert_eq!((again.undone.len(), again.failed.len()), (0, 1), "{again:?}");
        std::fs::remove_dir(obstacle).unwrap();
        assert_eq!(sweep_folder(dir.path()).undone.len(), 1);
        assert_eq!(sweep_folder(dir.path()), Outcome::default());
    }
}
