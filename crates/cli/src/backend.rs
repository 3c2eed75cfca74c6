//! Backends run trials: the [`Backend`] trait and its errors. [`crate::testbed`] drives agents on nodes, [`crate::lab`] boots a
//! virtual machine for each trial, and [`crate::simulator`] simulates it.

use std::collections::{BTreeMap, BTreeSet};

use ccbench_proto::wire::NodeInfo;
use ccbench_results::backend::RunBackend;
use ccbench_results::model::{Reason, TrialKey};
use ccbench_results::reason::ReasonCode;
use ccbench_results::store::RunDir;
use serde_json::Value;

use crate::backend::error::BackendError;
use crate::experiment::Experiment;
use crate::interrupt::Interrupt;
use crate::runner::TrialQueue;

pub mod choice;
pub mod error;

/// Runs trials.
pub trait Backend {
    /// Returns what is known before the first trial.
    fn info(&self, experiment: &Experiment) -> BackendInfo;

    /// Runs the trials of the queue and commits their results. Stops after the last one, at an error, or at the user's request.
    async fn run_trials(&mut self, queue: &TrialQueue<'_>, interrupt: Interrupt);

    /// Undoes every change and shuts the backend down.
    async fn close(self);
}

/// What is known about a backend before the first trial.
pub struct BackendInfo {
    /// The backend as `run.json` records it.
    pub backend: RunBackend,
    /// Devices, addresses and routes, or where the agents are; for `run.json`.
    pub topology: Value,
    /// Descriptions of the nodes, by name.
    pub nodes: BTreeMap<String, NodeInfo>,
    /// Limitations of the nodes. They are kept with the results.
    pub notes: Vec<String>,
    /// Requirements of the plan that are not met yet. They are only printed.
    pub missing: BTreeSet<String>,
}

/// Records that a trial could not run because of this error. Returns the error, or the one that prevented the record.
pub fn record_not_run(dir: &RunDir, key: TrialKey, error: impl Into<BackendError>) -> BackendError {
    let error = error.into();
    match dir.record_not_run(key, &Reason::new(ReasonCode::NotRun, error.to_string())) {
        Ok(()) => error,
        Err(unwritten) => unwritten.into(),
    }
}
