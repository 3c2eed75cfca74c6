//! Trace files.

use std::path::Path;

use ccbench_proto::plan::digest;
use ccbench_proto::trace::{self, Trace};

/// Reads a trace file: its sha256 in hexadecimal, and what it holds.
///
/// # Errors
/// Why not, with the line.
pub(crate) fn read(path: &Path) -> Result<(String, Trace), String> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|e| format!("read {name}: {e}"))?;
    let trace = trace::parse(&name, &bytes).map_err(|e| e.to_string())?;
    // Only compared with what the same run has read.
    Ok((digest(&String::from_utf8_lossy(&bytes)), trace))
}
