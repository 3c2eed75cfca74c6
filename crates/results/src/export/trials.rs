//! Functions shared by the formats of other tools: one file for each trial with rows.

use std::path::{Path, PathBuf};

use super::error::{ExportError, Result};
use crate::journal::TrialEnd;
use crate::store::RunDir;

/// Returns the written files, or an error if there are none.
pub(super) fn not_empty(
    written: Vec<PathBuf>,
    run_dir: &Path,
    reason: &'static str,
) -> Result<Vec<PathBuf>> {
    if written.is_empty() {
        return Err(ExportError::NoData { path: run_dir.to_path_buf(), reason });
    }
    Ok(written)
}

/// Returns the part of a file name that identifies a trial.
pub(super) fn trial_name(end: &TrialEnd) -> String {
    format!("point-{}-trial-{:02}", end.point_id, end.trial)
}

/// Returns trials with rows, and the part of a file name that identifies each.
pub(super) fn named_trials(run: &RunDir) -> Vec<(TrialEnd, String)> {
    let name = |end: TrialEnd| {
        let name = trial_name(&end);
        (end, name)
    };
    run.trials().into_iter().filter(|end| !end.rows.is_empty()).map(name).collect()
}
