//! Exit codes of `ccbench` (documented in `ccbench --help`). [`crate::commands::run::conclude`] chooses the code of a run from
//! its trials and claims (in `summarize_run`), `run` in `commands/run/shard.rs` the code of a shard, and [`crate::error`] the
//! code of every error.

use ccbench_results::ErrorClass;
use ccbench_store::{Cause, ObjectError};

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitCode {
    /// Every trial is ok or degraded, and every measured claim holds.
    Success,
    /// A trial failed, or a file could not be read or written.
    Failure,
    /// The command line or the plan is wrong.
    Usage,
    /// The testbed, the lab, an agent or a scheduler is not available.
    Unavailable,
    /// A measured claim does not hold, or an artifact was not reproduced.
    ClaimRefuted,
    /// SIGINT or SIGTERM.
    Interrupted,
    /// SIGTERM ended a shard; its scheduler starts it again.
    Terminated,
}

impl ExitCode {
    /// Returns the process's exit status.
    pub const fn number(self) -> i32 {
        match self {
            Self::Success => 0,
            Self::Failure => 1,
            Self::Usage => 2,
            Self::Unavailable => 3,
            Self::ClaimRefuted => 4,
            Self::Interrupted => 128 + 2,
            Self::Terminated => 128 + 15,
        }
    }
}

/// Returns the exit code for an error of the results crate.
pub fn of_results(error: &ccbench_results::Error) -> ExitCode {
    match error.class() {
        ErrorClass::Usage => ExitCode::Usage,
        ErrorClass::Run => ExitCode::Failure,
    }
}

/// Returns the exit code for an error of a store: 2 if the same command would fail again.
pub const fn of_store(error: &ObjectError) -> ExitCode {
    match error.cause() {
        Cause::Command => ExitCode::Usage,
        Cause::Environment => ExitCode::Failure,
    }
}

/// Implements `From` for error types of the results crate, so that `?` wraps them in the variant `Results`.
macro_rules! from_results {
    ($target:ty: $($error:ident),* $(,)?) => {
        $(impl From<ccbench_results::$error> for $target {
            fn from(error: ccbench_results::$error) -> Self {
                Self::Results(error.into())
            }
        })*
    };
}
pub(crate) use from_results;
