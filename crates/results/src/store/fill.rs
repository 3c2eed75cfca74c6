//! Creates a results directory and fills it, all or nothing.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, TryLockError};
use std::path::{Path, PathBuf};

use super::{Result, RunDir, StoreError};
use crate::error::io_error;
use crate::journal::{self, JournalError};
use crate::layout::{list, remove, rename_new};
use crate::model::RunInfo;
use crate::part::sync;
use crate::record;

/// Suffix of the hidden directory's name while it is filled.
const FILLING: &str = ".ccbench-filling";

impl RunDir {
    /// Creates exactly this directory, which must not exist or be empty, and fills it.
    ///
    /// After an error the directory is as it was, including files that others have added meanwhile; new parents stay. If the process is
    /// killed, it leaves a hidden directory, which the next call for this path removes. If it is killed while it moves the entries into an
    /// existing directory, they are in two places, and the next call is refused.
    ///
    /// A new directory is filled beside its path and renamed at the end. An existing directory keeps its permissions, and may be a mount
    /// point or a working directory. It is filled in a directory within it, whose entries are moved at the end.
    ///
    /// # Errors
    /// As [`RunDir::create_at`]; another process fills the directory; or `fill` fails.
    pub fn fill_at<E: From<StoreError>>(
        path: &Path,
        info: &RunInfo,
        fill: impl FnOnce(&Self) -> Result<(), E>,
    ) -> Result<(), E> {
        let is_new = path.symlink_metadata().is_err();
        let filling = Filling::begin(path, is_new)?;
        let run = Self::set_up(filling.path.clone(), info).map_err(E::from);
        // Close the journal before the directory gets its name.
        let filled = run.and_then(|run| fill(&run));
        filled.and_then(|()| filling.publish(path, is_new).map_err(E::from)).inspect_err(|_| {
            // Report the first error.
            let _ = remove(&filling.path);
        })
    }
}

/// A directory that is being filled, with its lock.
struct Filling {
    path: PathBuf,
    _lock: File,
}

impl Filling {
    /// Creates the hidden directory beside or in the final one, and removes what a killed process left of it.
    fn begin(to: &Path, is_new: bool) -> Result<Self> {
        let path = hidden(to, is_new);
        if is_new {
            let parent = folder_of(to);
            std::fs::create_dir_all(parent).map_err(io_error("create", parent))?;
        } else if !to.is_dir() || list(to)?.iter().any(|entry| *entry != path) {
            // A process that was killed while it moved entries left the rest in the hidden directory.
            return Err(StoreError::NotEmpty { path: to.to_path_buf() });
        }
        if path.symlink_metadata().is_ok() {
            let _lock = lock(&path, to)?;
            remove(&path)?;
        }
        DirBuilder::new().create(&path).map_err(io_error("create", &path))?;
        Ok(Self { _lock: lock(&path, to)?, path })
    }

    /// Moves the content to its place. The journal and `run.json` come last, so a run that has them is complete.
    fn publish(&self, to: &Path, is_new: bool) -> Result<()> {
        if is_new {
            rename_new(&self.path, to).map_err(io_error("rename to", to))?;
            return Ok(sync(folder_of(to))?);
        }
        let last = [journal::FILE_NAME, record::FILE_NAME];
        let is_last = |entry: &PathBuf| last.iter().position(|name| entry.ends_with(name));
        let mut entries = list(&self.path)?;
        entries.sort_by_key(|entry| is_last(entry).map_or(0, |nth| nth + 1));
        let place = |entry: &Path| to.join(entry.file_name().unwrap_or_default());
        for (nth, entry) in entries.iter().enumerate() {
            if let Err(error) = rename_new(entry, &place(entry)) {
                // Keep what others have put there.
                for moved in &entries[..nth] {
                    let _ = rename_new(&place(moved), moved);
                }
                return Err(io_error("rename to", &place(entry))(error).into());
            }
        }
        std::fs::remove_dir(&self.path).map_err(io_error("remove", &self.path))?;
        Ok(sync(to)?)
    }
}

/// Returns the path of the hidden directory: beside `to`, or in it.
fn hidden(to: &Path, is_new: bool) -> PathBuf {
    if !is_new {
        return to.join(FILLING);
    }
    let mut name = OsString::from(".");
    name.push(to.file_name().unwrap_or_default());
    name.push(FILLING);
    to.with_file_name(name)
}

/// Returns the directory that contains this path.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Locks a directory that becomes `to`, for the lifetime of the result.
fn lock(dir: &Path, to: &Path) -> Result<File> {
    let file = File::open(dir).map_err(io_error("open", dir))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(JournalError::Locked { path: to.to_path_buf() }.into())
        }
        Err(TryLockError::Error(error)) => Err(io_error("lock", dir)(error).into()),
    }
}

/// Creates a directory, which must be empty if it exists.
pub(super) fn make_empty(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(io_error("create", path))?;
    match list(path)?.is_empty() {
        true => Ok(()),
        false => Err(StoreError::NotEmpty { path: path.to_path_buf() }),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::model::RunStatus;
    use crate::trial::tests::{filled, good, info};
    use crate::verify::verify;

    fn fill(path: &Path) -> Result<()> {
        RunDir::fill_at(path, &info(), |run| {
            filled(run, 1).commit(&good()).unwrap();
            run.finish(RunStatus::Complete)
        })
    }

    fn entries(dir: &Path) -> Vec<PathBuf> {
        list(dir).unwrap()
    }

    #[test]
    fn a_new_directory_has_its_name_when_it_is_full() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("runs/old");
        // Left by a process that was killed.
        let left = root.path().join("runs").join(format!(".old{FILLING}"));
        std::fs::create_dir_all(left.join("tables/half")).unwrap();
        RunDir::fill_at(&path, &info(), |run| {
            assert!(!path.exists() && !left.join("tables/half").exists());
            filled(run, 1).commit(&good()).unwrap();
            run.finish(RunStatus::Complete)
        })
        .unwrap();
        assert_eq!(entries(&root.path().join("runs")), std::slice::from_ref(&path));
        let found = verify(&path).unwrap();
        assert_eq!((found.trials, found.damaged), (1, vec![]));
        let error = fill(&path).unwrap_err();
        assert!(matches!(error, StoreError::NotEmpty { .. }), "{error}");
        assert_eq!(entries(&root.path().join("runs")), [path]);
    }

    #[test]
    fn an_empty_directory_stays_the_same_one() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("mounted");
        std::fs::create_dir_all(path.join(FILLING).join("raw")).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o750)).unwrap();
        fill(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o750);
        assert!(!path.join(FILLING).exists());
        assert_eq!(verify(&path).unwrap().damaged, vec![]);
        assert_eq!(RunDir::open(&path).unwrap().status(), RunStatus::Complete);
        assert_eq!(entries(root.path()), [path]);
    }

    #[test]
    fn an_error_leaves_what_was_there() {
        let root = tempfile::tempdir().unwrap();
        for path in [root.path().join("new"), root.path().to_path_buf()] {
            let refused = RunDir::fill_at(&path, &info(), |run| {
                filled(run, 1).commit(&good()).unwrap();
                Err(StoreError::NotEmpty { path: run.path().to_path_buf() })
            });
            refused.unwrap_err();
            assert_eq!(entries(root.path()), Vec::<PathBuf>::new(), "{}", path.display());
        }
    }

    #[test]
    fn entries_that_were_not_moved_yet_stay() {
        let root = tempfile::tempdir().unwrap();
        let (path, left) = (root.path(), root.path().join(FILLING));
        for dir in [path.join("tables"), left.clone()] {
            std::fs::create_dir(dir).unwrap();
        }
        std::fs::write(left.join(journal::FILE_NAME), "of trials").unwrap();
        let error = fill(path).unwrap_err();
        assert!(matches!(error, StoreError::NotEmpty { .. }), "{error}");
        assert!(left.join(journal::FILE_NAME).exists());
    }

    #[test]
    fn an_error_leaves_what_others_have_put_there() {
        let root = tempfile::tempdir().unwrap();
        let (path, journal) = (root.path(), root.path().join(journal::FILE_NAME));
        let others = [path.join("notes.txt"), journal.clone()];
        let fill_beside = |other: &Path, result: fn(&RunDir) -> Result<()>| {
            RunDir::fill_at(path, &info(), |run| {
                filled(run, 1).commit(&good()).unwrap();
                std::fs::write(other, "of another").unwrap();
                result(run)
            })
        };
        fill_beside(&others[0], |run| Err(StoreError::NotEmpty { path: run.path().to_path_buf() }))
            .unwrap_err();
        assert_eq!(entries(path), [others[0].clone()]);
        std::fs::remove_file(&others[0]).unwrap();
        // Blocks a file that is moved after others.
        let error = fill_beside(&others[1], |run| run.finish(RunStatus::Complete)).unwrap_err();
        assert!(error.to_string().contains(journal::FILE_NAME), "{error}");
        assert_eq!(entries(path), std::slice::from_ref(&journal));
        assert_eq!(std::fs::read_to_string(journal).unwrap(), "of another");
    }

    #[test]
    fn two_processes_do_not_fill_one_directory() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("run");
        RunDir::fill_at(&path, &info(), |run| {
            let other = fill(&path).unwrap_err();
            let locked = matches!(other, StoreError::Journal(JournalError::Locked { .. }));
            assert!(locked, "{other}");
            filled(run, 1).commit(&good()).unwrap();
            run.finish(RunStatus::Complete)
        })
        .unwrap();
        assert_eq!(verify(&path).unwrap().damaged, vec![]);
    }
}
