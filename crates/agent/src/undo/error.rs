//! The error of the undo journal and of the files beside it.

use std::io;
use std::path::{Path, PathBuf};

/// The error if the undo journal, or the lock or generation file beside it, cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{op} the undo journal's {}: {source}{}", .path.display(), hint(.source))]
pub struct JournalError {
    /// "write", "read" ...
    pub op: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull
        | io::ErrorKind::QuotaExceeded
        | io::ErrorKind::ReadOnlyFilesystem => {
            "; nothing was changed that cannot be undone: free some space there, or start the agent with another \
             --state-dir"
        }
        _ => "",
    }
}

/// Returns a closure for `map_err` on an operation with one of these files.
pub(super) fn failed(op: &'static str, path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_owned();
    move |source| JournalError { op, path, source }
}
