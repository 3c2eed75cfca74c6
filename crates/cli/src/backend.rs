//! Backends, which run trials: the [`Backend`] trait and its errors. [`crate::testbed`] drives agents on nodes,
//! [`crate::lab`] boots a virtual machine for each trial, [`crate::simulator`] simulates it.

use std::collections::{BTreeMap, BTreeSet};

use ccbench_proto::wire::NodeInfo;
use ccbench_results::backend::RunBackend;
use serde_json::Value;

use crate::experiment::Experiment;
use crate::interrupt::Interrupt;
use crate::runner::TrialQueue;

pub mod choice;
pub mod error;

/// Runs trials.
pub trait Backend {
    /// What is known before the first trial.
    fn info(&self, experiment: &Experiment) -> BackendInfo;

    /// Runs the trials of the queue and commits their results, until the last one, an error, or the user's request to stop.
    async fn run_trials(&mut self, queue: &TrialQueue<'_>, interrupt: Interrupt);

    /// Undoes every change and ends it.
    async fn close(self);
}

/// What is known of a backend before the first trial.
pub struct BackendInfo {
    /// For `run.json`.
    pub backend: RunBackend,
    /// Devices, addresses and routes, or where the agents are; for `run.json`.
    pub topology: Value,
    /// By node.
    pub nodes: BTreeMap<String, NodeInfo>,
    /// Limitations of the nodes; kept with the results.
    pub notes: Vec<String>,
    /// Requirements of the plan that are not met yet; only printed.
    pub missing: BTreeSet<String>,
}
