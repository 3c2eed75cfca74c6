//! Reads trace files.

use std::path::Path;

use ccbench_io::input;
use ccbench_proto::plan::digest;
use ccbench_proto::trace::{self, Trace, TraceError};

/// Why a trace file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceFileError {
    /// The file cannot be read.
    #[error("read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Its contents are not a trace; the error names the line.
    #[error(transparent)]
    Parse(#[from] TraceError),
}

/// Reads a trace file. Returns its SHA-256 in hexadecimal and its contents.
///
/// # Errors
/// The file cannot be read or parsed.
pub(crate) fn read(path: &Path) -> Result<(String, Trace), TraceFileError> {
    let name = path.display().to_string();
    let bytes = match input::read(path, &input::TRACE) {
        Ok(bytes) => bytes,
        Err(source) => return Err(TraceFileError::Read { path: name, source }),
    };
    let trace = trace::parse(&name, &bytes)?;
    // The digest is only compared within this run.
    Ok((digest(&String::from_utf8_lossy(&bytes)), trace))
}
