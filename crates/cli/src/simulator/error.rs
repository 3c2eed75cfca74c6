//! Why the simulator cannot run a trial.

use ccbench_simulator::SimulatorError;

use crate::exit::ExitCode;

/// Why the simulator cannot run a trial.
#[derive(Debug, thiserror::Error)]
pub enum SimulatedTrialError {
    /// The simulator has no model of what the plan asks for.
    #[error("the simulator cannot run this plan: {0}; change the plan, or leave out --sim")]
    Unsupported(#[from] SimulatorError),
    /// A running simulation failed.
    #[error("the simulation failed: {0}")]
    Failed(SimulatorError),
    /// A simulation panicked.
    #[error("the simulation panicked (a bug in ccbench; standard error has its message)")]
    Panicked,
}

impl SimulatedTrialError {
    /// Returns the process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Unsupported(_) => ExitCode::Usage,
            Self::Failed(_) | Self::Panicked => ExitCode::Failure,
        }
    }
}
