//! Why there is no scorecard.

use std::path::PathBuf;

use crate::args::values::ValueError;

/// The command line does not name a congestion control or a run of the scorecard.
#[derive(Debug, thiserror::Error)]
pub enum ScorecardUsageError {
    /// Neither was given.
    #[error("give a congestion control, or --resume DIR")]
    NothingToRun,
    /// The results directory is of another plan.
    #[error(
        "{} is not a run of `ccbench scorecard`; continue it with `ccbench run --resume`",
        .0.display()
    )]
    OtherPlan(PathBuf),
    /// The name cannot be that of a congestion control.
    #[error(transparent)]
    Cc(#[from] ValueError),
}
