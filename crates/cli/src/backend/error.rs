//! Why a backend could not run a trial.

use crate::agents::AgentError;
use crate::exit::{ExitCode, from_results, of_results};
use crate::lab::error::LabError;
use crate::shard::ShardRunError;
use crate::simulator::error::SimulatedTrialError;
use crate::testbed::process::TestbedError;

/// Why a trial could not be run.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// SIGINT or SIGTERM.
    #[error("interrupted")]
    Interrupted,
    /// An agent cannot be reached or refused.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The testbed on this machine cannot be built.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// The lab failed.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// The simulator failed.
    #[error(transparent)]
    Simulator(#[from] SimulatedTrialError),
    /// Results cannot be written.
    #[error(transparent)]
    Results(#[from] ccbench_results::Error),
    /// A trial of a shard cannot be stored.
    #[error(transparent)]
    Shard(#[from] ShardRunError),
}

from_results!(BackendError: StoreError, TrialError);

impl BackendError {
    /// Returns the process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Interrupted => ExitCode::Interrupted,
            Self::Agent(error) => error.exit_code(),
            Self::Testbed(error) => error.exit_code(),
            Self::Lab(error) => error.exit_code(),
            Self::Simulator(error) => error.exit_code(),
            Self::Results(error) => of_results(error),
            Self::Shard(error) => error.exit_code(),
        }
    }
}
