//! Failed file operations: every error names the operation and the file.

use std::io;
use std::path::{Path, PathBuf};

/// A failed file operation.
#[derive(Debug, thiserror::Error)]
#[error("cannot {op} {}: {source}", path.display())]
pub struct FileError {
    op: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl FileError {
    /// Wraps an I/O error: `read(path).map_err(FileError::of("read", path))`. `op` completes "cannot … PATH".
    pub fn of(op: &'static str, path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self { op, path: path.clone(), source }
    }
}
