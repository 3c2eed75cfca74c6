//! What trials run on: the [`Backend`] trait and its errors. [`crate::testbed`] drives agents on nodes,
//! [`crate::lab`] boots a virtual machine for each trial.

use std::collections::{BTreeMap, BTreeSet};

use ccbench_proto::schedule::{Point, ScheduledTrial};
use ccbench_proto::units::Micros;
use ccbench_proto::wire::NodeInfo;
use ccbench_results::model::Verdict;
use ccbench_results::store::RunDir;

use crate::agents::AgentError;
use crate::exit::{ExitCode, from_results, of_results};
use crate::experiment::Experiment;
use crate::interrupt::Interrupt;
use crate::lab::error::LabError;
use crate::progress::Progress;
use crate::testbed::process::TestbedError;

/// What trials run on.
pub trait Backend {
    /// Whether trials run on a virtual clock.
    fn has_virtual_time(&self) -> bool {
        false
    }

    /// What is known before the first trial.
    fn info(&self, experiment: &Experiment) -> BackendInfo;

    /// The pause between two trials.
    fn gap(&self, experiment: &Experiment) -> Micros;

    /// Runs one trial and commits its results.
    ///
    /// # Errors
    /// The trial could not be run. The results directory has a record of that.
    async fn run_trial(
        &mut self,
        trial: Trial<'_>,
        progress: &mut Progress,
        interrupt: &mut Interrupt,
    ) -> Result<Verdict, BackendError>;

    /// Whether the backend must be rebuilt after a trial that failed or did not.
    fn needs_rebuild(&mut self, trial_failed: bool) -> bool;

    /// Builds it anew.
    ///
    /// # Errors
    /// The testbed or an agent is not available.
    async fn rebuild(&mut self, experiment: &Experiment) -> Result<(), BackendError>;

    /// Undoes every change and ends it.
    async fn close(self);
}

/// What is known of a backend before the first trial.
pub struct BackendInfo {
    /// Devices, addresses and routes, or where the agents are; for `run.json`.
    pub topology: String,
    /// By node.
    pub nodes: BTreeMap<String, NodeInfo>,
    /// Limitations and settings; kept with the results.
    pub notes: Vec<String>,
    /// Requirements of the plan that are not met yet; only printed.
    pub missing: BTreeSet<String>,
}

/// One trial to run.
#[derive(Clone, Copy)]
pub struct Trial<'a> {
    /// The experiment.
    pub experiment: &'a Experiment,
    /// The point of its matrix.
    pub point: &'a Point,
    /// Repetition and seed.
    pub scheduled: &'a ScheduledTrial,
    /// Where the results go.
    pub dir: &'a RunDir,
}

/// Why a trial could not be run.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// SIGINT or SIGTERM.
    #[error("interrupted")]
    Interrupted,
    /// An agent cannot be reached, or refused.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The testbed on this machine cannot be built.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// The lab's virtual machine.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// Results cannot be written.
    #[error(transparent)]
    Results(#[from] ccbench_results::Error),
}

from_results!(BackendError: StoreError, TrialError);

impl BackendError {
    /// The process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Interrupted => ExitCode::Interrupted,
            Self::Agent(error) => error.exit_code(),
            Self::Testbed(error) => error.exit_code(),
            Self::Lab(error) => error.exit_code(),
            Self::Results(error) => of_results(error),
        }
    }
}
