//! Errors of file operations, which the error of every module includes, and the class that decides the exit code.

use std::path::{Path, PathBuf};

use polars::error::PolarsError;

/// Who has to act on an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// The command names something that does not exist or does not fit. The user has to correct the command.
    Usage,
    /// The command is correct, but reading, writing or computing failed.
    Run,
}

/// A file of a results directory could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The operating system returned an error.
    #[error("cannot {op} {}: {source}{}", path.display(), hint(source))]
    Io {
        /// The operation.
        op: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Polars returned an error.
    #[error("cannot {op} {}: {}{}", path.display(), polars_text(source), polars_hint(source))]
    Polars {
        /// The operation.
        op: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Polars' error.
        source: PolarsError,
    },
    /// The file differs from the one that was committed.
    #[error(
        "{} is damaged ({what}); restore it from a copy, or remove it to go on without it; `ccbench verify` lists all damaged files",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The flows of a trial, divided into instants, do not fit into memory.
    #[error(
        "{}: trial {trial} of point {point_id} has too many flows: their instants of 0.1 s do not fit into memory (limit: 11 flows \
         in a week, 1864 in an hour); shorten its phases, or divide its flows among several runs",
        path.display()
    )]
    TooManyFlows {
        /// The results directory.
        path: PathBuf,
        /// The point.
        point_id: u32,
        /// The repetition.
        trial: u16,
    },
    /// A JSON file or line could not be written or parsed.
    #[error("cannot {op} {}: {source}", path.display())]
    Json {
        /// The operation.
        op: &'static str,
        /// The file.
        path: PathBuf,
        /// The parser's error.
        source: serde_json::Error,
    },
}

impl FileError {
    /// Returns the class; a file error is never [`ErrorClass::Usage`].
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::Io { .. }
            | Self::Polars { .. }
            | Self::Damaged { .. }
            | Self::TooManyFlows { .. }
            | Self::Json { .. } => ErrorClass::Run,
        }
    }
}

/// Returns a hint for errors whose system message does not suggest a fix.
fn hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            "; free space there and repeat the command (`ccbench run --resume DIR` continues a run)"
        }
        _ => "",
    }
}

/// How Polars' writer of Parquet prints an I/O error, of which it keeps only the text.
const IO_CAUSE: &str = "underlying IO error: ";

/// Returns the cause if the operating system returned an error, and otherwise Polars' message.
fn polars_text(error: &PolarsError) -> String {
    let text = error.to_string();
    text.rsplit_once(IO_CAUSE).map_or_else(|| text.clone(), |(_, cause)| cause.to_owned())
}

fn polars_hint(error: &PolarsError) -> &'static str {
    match error {
        PolarsError::IO { error, .. } => hint(error),
        // The writer of Parquet has lost the kind of the error, but the text of the C library ends in its number.
        PolarsError::ComputeError(_) => {
            let text = error.to_string();
            let number = text.strip_suffix(')').and_then(|text| text.rsplit_once("(os error "));
            let number = number.and_then(|(_, number)| number.parse().ok());
            number.map_or("", |number| hint(&std::io::Error::from_raw_os_error(number)))
        }
        _ => "",
    }
}

/// The result of reading or writing a file.
pub(crate) type Result<T, E = FileError> = std::result::Result<T, E>;

/// Adds the operation and the path to an I/O error.
pub(crate) fn io_error(op: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> FileError {
    let path = path.to_path_buf();
    move |source| FileError::Io { op, path, source }
}

/// Adds the operation and the path to a Polars error.
pub(crate) fn polars_error(op: &'static str, path: &Path) -> impl FnOnce(PolarsError) -> FileError {
    let path = path.to_path_buf();
    move |source| FileError::Polars { op, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_named_once_with_a_hint() {
        let cause = std::io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
        let text = format!("parquet: File out of specification: {IO_CAUSE}{cause}");
        let error = polars_error("write", Path::new("part.parquet"));
        let printed = error(PolarsError::ComputeError(text.into())).to_string();
        assert!(printed.starts_with("cannot write part.parquet: No space left"), "{printed}");
        assert!(printed.contains("; free space there"), "{printed}");
        let other = polars_error("read", Path::new("part.parquet"));
        let printed = other(PolarsError::ComputeError("a column is missing".into())).to_string();
        assert_eq!(printed, "cannot read part.parquet: a column is missing");
    }
}
