//! Makes a results directory and fills it at once, or leaves nothing of it.

use std::path::Path;

use super::{Result, RunDir, StoreError};
use crate::error::{FileError, io_error};
use crate::layout::{list, remove};
use crate::model::RunInfo;

impl RunDir {
    /// Makes exactly this directory, which must not exist or be empty, and fills it. After an error it is as it was.
    ///
    /// # Errors
    /// As [`RunDir::create_at`], or `fill` fails.
    pub fn fill_at<E: From<StoreError>>(
        path: &Path,
        info: &RunInfo,
        fill: impl FnOnce(&Self) -> Result<(), E>,
    ) -> Result<(), E> {
        let is_new = !path.exists();
        make_empty(path)?;
        let run = Self::set_up(path.to_path_buf(), info).map_err(E::from);
        run.and_then(|run| fill(&run)).inspect_err(|_| {
            // The first error is the one to report.
            let _ = clear(path);
            if is_new {
                let _ = std::fs::remove_dir(path);
            }
        })
    }
}

/// Makes a directory, which must not have files.
pub(super) fn make_empty(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(io_error("create", path))?;
    match list(path)?.is_empty() {
        true => Ok(()),
        false => Err(StoreError::NotEmpty { path: path.to_path_buf() }),
    }
}

/// Removes everything in a directory.
fn clear(path: &Path) -> Result<(), FileError> {
    for entry in list(path)? {
        match entry.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            true => remove(&entry)?,
            false => std::fs::remove_file(&entry).map_err(io_error("remove", &entry))?,
        }
    }
    Ok(())
}
