//! Where the files of a run and of its trials lie in the results directory.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::journal::{RunState, TrialEnd};
use super::part;
use crate::error::{Result, io_error};

/// The plan with all defaults and overrides.
pub(crate) const RESOLVED_PLAN: &str = "plan.resolved.toml";
/// Files of every run that never change; each run may also have traces.
pub(crate) const RUN_FILES: [&str; 3] = ["plan.toml", RESOLVED_PLAN, "points.parquet"];
/// The digests of the summary's files, in the format of `sha256sum`.
pub(crate) const DIGESTS_FILE: &str = "summary.sha256";

/// Returns whether a path consists only of names: it is relative, and has no `.`, `..` or control characters.
pub(crate) fn is_inside(path: &str) -> bool {
    path.split('/').all(|part| !["", ".", ".."].contains(&part)) && !path.contains(char::is_control)
}

/// Returns a trial's directory under that of its table.
pub(crate) fn trial_dir(parent: &Path, point_id: u32, trial: u16) -> PathBuf {
    parent.join(format!("point={point_id}")).join(format!("trial-{trial:02}"))
}

/// Maximum number of files of one table of one trial. Each has millions of rows, so ccbench does not write a journal with more.
const MAX_FILES: usize = 1 << 16;

/// Returns all files of one table of a committed trial that has files of its own.
pub(crate) fn table_files(run: &Path, end: &TrialEnd, table: &str) -> Vec<PathBuf> {
    let dir = trial_dir(&run.join("tables").join(table), end.point_id, end.trial);
    let counted = end.files.get(table).copied().unwrap_or(1).min(MAX_FILES);
    // Journals of old versions do not record the number of files.
    let later =
        (counted..).map(|number| part::file(&dir, number)).take_while(|path| path.is_file());
    (0..counted).map(|number| part::file(&dir, number)).chain(later).collect()
}

/// Rows of one table of a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableRows {
    /// The file.
    pub(crate) path: PathBuf,
    /// The first row and the number of rows; `None` if all rows of the file belong to the trial.
    pub(crate) range: Option<(usize, usize)>,
}

/// Returns where the rows of one table of a committed trial are, in the order in which they were written.
pub(crate) fn table_rows(run: &Path, end: &TrialEnd, table: &str) -> Vec<TableRows> {
    let Some(shared) = end.shared.get(table) else {
        let files = table_files(run, end, table).into_iter();
        return files.map(|path| TableRows { path, range: None }).collect();
    };
    let count = end.rows.get(table).copied().unwrap_or(0);
    let whole = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let range = Some((whole(shared.first_row), whole(count)));
    vec![TableRows { path: run.join(&shared.file), range }]
}

/// Prefix of a trial's directory while the trial is written.
pub(crate) const STAGING: &str = ".tmp-";

/// Removes a directory with everything in it.
pub(crate) fn remove(path: &Path) -> Result<()> {
    std::fs::remove_dir_all(path).map_err(io_error("remove", path))
}

/// Renames a file or directory to a path that must not exist. If it exists, the error is [`ErrorKind::AlreadyExists`].
pub(crate) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The file system does not support the flag. Another process could create the path between these two calls.
        Err(Errno::INVAL | Errno::NOSYS) if to.symlink_metadata().is_err() => {
            std::fs::rename(from, to)
        }
        Err(Errno::INVAL | Errno::NOSYS) => Err(ErrorKind::AlreadyExists.into()),
        renamed => Ok(renamed?),
    }
}

/// Returns the sorted entries of a directory; empty if it does not exist or is not a directory.
pub(crate) fn list(dir: &Path) -> Result<Vec<PathBuf>> {
    let refused = || io_error("list", dir);
    let entries = match std::fs::read_dir(dir) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(vec![]);
        }
        entries => entries.map_err(refused())?,
    };
    let paths = entries.map(|e| e.map(|e| e.path())).collect::<std::io::Result<Vec<_>>>();
    let mut paths = paths.map_err(refused())?;
    paths.sort();
    Ok(paths)
}

fn number<T: std::str::FromStr>(path: &Path, prefix: &str) -> Option<T> {
    path.file_name()?.to_str()?.strip_prefix(prefix)?.parse().ok()
}

/// Returns the sorted folders in a directory; empty if it does not exist. Programs such as file managers put files of their own beside
/// them.
pub(crate) fn folders(dir: &Path) -> Result<Vec<PathBuf>> {
    Ok(list(dir)?.into_iter().filter(|path| path.is_dir()).collect())
}

/// Returns the directories that no committed trial owns.
pub(crate) fn leftovers(path: &Path, journal: &RunState) -> Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = folders(path)?
        .into_iter()
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(STAGING)))
        .collect();
    let mut parents = folders(&path.join("tables"))?;
    parents.push(path.join("raw"));
    for parent in parents {
        for point in folders(&parent)? {
            let Some(point_id) = number::<u32>(&point, "point=") else { continue };
            for dir in folders(&point)? {
                let Some(trial) = number::<u16>(&dir, "trial-") else { continue };
                if !journal.committed.contains_key(&(point_id, trial)) {
                    found.push(dir);
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stray_files_are_no_folders_of_trials() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for folder in ["raw", "tables/acks/point=1/trial-02"] {
            std::fs::create_dir_all(at(folder)).unwrap();
        }
        for file in [".tmp-1", "tables/.DS_Store", "raw/point=0", "tables/acks/point=1/trial-03"] {
            std::fs::write(at(file), "").unwrap();
        }
        assert!(list(&trial_dir(&at("raw"), 0, 1)).unwrap().is_empty());
        let found = leftovers(dir.path(), &RunState::default()).unwrap();
        assert_eq!(found, [at("tables/acks/point=1/trial-02")]);
    }

    #[test]
    fn rename_replaces_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let [new, old, free] = ["new", "old", "free"].map(|name| dir.path().join(name));
        for path in [&new, &old] {
            std::fs::create_dir(path).unwrap();
        }
        // rename(2) replaces an empty directory.
        let refused = rename_new(&new, &old).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
        assert!(new.is_dir());
        rename_new(&new, &free).unwrap();
        assert!(free.is_dir() && !new.exists());
    }
}
