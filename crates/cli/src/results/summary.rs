//! Means over committed trials.

use std::path::Path;

use super::Result;

/// The summary of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {}

/// Summarises a results directory.
pub fn summarize(run_dir: &Path) -> Result<Summary> {
    let _ = run_dir;
    Ok(Summary {})
}

/// The six columns of the coexistence study for one flow group, as CSV.
pub fn six_columns(run_dir: &Path, group: &str) -> Result<String> {
    let _ = (run_dir, group);
    Ok(String::new())
}
