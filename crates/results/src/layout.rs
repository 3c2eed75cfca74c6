//! Where a trial's files lie in the results directory.

use std::path::{Path, PathBuf};

use super::journal::TrialEnd;
use super::part;
use crate::error::{Result, io_error};

/// A trial's directory under its table's.
pub(crate) fn trial_dir(parent: &Path, point_id: u32, trial: u16) -> PathBuf {
    parent.join(format!("point={point_id}")).join(format!("trial-{trial:02}"))
}

/// Files of one table of one trial, at most: each has millions of rows. A journal with more is not ccbench's.
const MAX_FILES: usize = 1 << 16;

/// All files of one table of a committed trial.
pub(crate) fn table_files(run: &Path, end: &TrialEnd, table: &str) -> Vec<PathBuf> {
    let dir = trial_dir(&run.join("tables").join(table), end.point_id, end.trial);
    let counted = end.files.get(table).copied().unwrap_or(1).min(MAX_FILES);
    // Journals of old versions do not record the number of files.
    let later =
        (counted..).map(|number| part::file(&dir, number)).take_while(|path| path.is_file());
    (0..counted).map(|number| part::file(&dir, number)).chain(later).collect()
}

/// Prefix of a trial's directory while it is written.
pub(crate) const STAGING: &str = ".tmp-";

/// Removes a directory with everything in it.
pub(crate) fn remove(path: &Path) -> Result<()> {
    std::fs::remove_dir_all(path).map_err(io_error("remove", path))
}

/// The sorted entries of a directory; empty if it does not exist.
pub(crate) fn list(dir: &Path) -> Result<Vec<PathBuf>> {
    let refused = || io_error("list", dir);
    let entries = match std::fs::read_dir(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries.map_err(refused())?,
    };
    let paths = entries.map(|e| e.map(|e| e.path())).collect::<std::io::Result<Vec<_>>>();
    let mut paths = paths.map_err(refused())?;
    paths.sort();
    Ok(paths)
}
