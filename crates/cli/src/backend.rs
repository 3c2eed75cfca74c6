//! What trials run on: the [`Backend`] trait and its errors. [`crate::testbed`] drives agents on nodes,
//! [`crate::lab`] boots a virtual machine for each trial.

use std::collections::{BTreeMap, BTreeSet};

use ccbench_proto::schedule::{Point, ScheduledTrial};
use ccbench_proto::wire::NodeInfo;
use ccbench_results::store::RunDir;

use crate::agents::AgentError;
use crate::exit::{ExitCode, from_results, of_results};
use crate::experiment::Experiment;
use crate::interrupt::Interrupt;
use crate::lab::error::LabError;
use crate::runner::TrialQueue;
use crate::testbed::process::TestbedError;

/// What trials run on.
pub trait Backend {
    /// Whether trials run on a virtual clock.
    fn has_virtual_time(&self) -> bool {
        false
    }

    /// What is known before the first trial.
    fn info(&self, experiment: &Experiment) -> BackendInfo;

    /// Runs the trials of the queue and commits their results, until the last one, an error, or the user's request to stop.
    async fn run_trials(&mut self, queue: &TrialQueue<'_>, interrupt: Interrupt);

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
    /// Its epoch in the lab, which follows from its place in the order of all trials.
    pub epoch: u64,
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
