//! Failed file operations: every error names the operation and the file.

use std::io::{self, ErrorKind};
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
    /// Wraps an I/O error: `read(path).map_err(FileError::io("read", path))`. `op` completes "cannot … PATH".
    pub fn io(op: &'static str, path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self { op, path: path.clone(), source }
    }
}

/// Returns whether a file exists. [`Path::exists`] returns `false` also after an error, for example of the disk; the file would then be
/// replaced or ignored.
///
/// # Errors
/// It is not known.
pub fn exists(path: &Path) -> Result<bool, FileError> {
    match std::fs::metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => {
            Ok(false)
        }
        Err(error) => Err(FileError::io("look for", path)(error)),
    }
}

/// Returns whether it is certain that a file does not exist. After an error, the file may exist; reading it then reports the error.
pub fn is_missing(path: &Path) -> bool {
    matches!(exists(path), Ok(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_seen_is_not_a_missing_one() {
        let dir = tempfile::tempdir().unwrap();
        let [file, circle] = ["file", "circle"].map(|name| dir.path().join(name));
        std::fs::write(&file, "").unwrap();
        // Opening it fails with ELOOP.
        std::os::unix::fs::symlink("circle", &circle).unwrap();
        assert!(exists(&file).unwrap());
        assert!(!exists(&dir.path().join("other")).unwrap());
        assert!(!exists(&file.join("below")).unwrap(), "a file has no files");
        let error = exists(&circle).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot look for {}: ", circle.display())), "{error}");
        assert!(is_missing(&dir.path().join("other")));
        assert!(!is_missing(&circle) && !is_missing(&file));
    }
}
