//! Judges a trial while its rows go by.

use std::collections::BTreeMap;

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::wire::{Done, NodeInfo, RunEvent};
use serde::{Deserialize, Serialize};

use super::TrialStatus;
use super::trial::NodeClock;

/// What a complete trial is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// Nothing speaks against it.
    Ok,
    /// Something disturbed it: counted, and marked.
    Degraded,
    /// Not what the plan asked for.
    Failed,
}

impl From<Status> for TrialStatus {
    fn from(status: Status) -> Self {
        match status {
            Status::Ok => Self::Ok,
            Status::Degraded => Self::Degraded,
            Status::Failed => Self::Failed,
        }
    }
}

/// Why a trial is not ok.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// Stable name of the check: `cpu_bound`, `rows_dropped`, ...
    pub code: String,
    /// For people: where, how much, against which limit.
    pub message: String,
}

impl Reason {
    /// A reason.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into() }
    }
}

/// What a trial is worth, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The worst of the reasons.
    pub status: Status,
    /// Everything that speaks against it.
    pub reasons: Vec<Reason>,
}

/// Judges one trial.
#[derive(Debug)]
pub struct Judge {
    nodes: BTreeMap<String, NodeInfo>,
}

impl Judge {
    /// For one trial of a point, with what each node said of itself and where its clock stood.
    pub fn new(
        plan: &CheckedPlan,
        nodes: BTreeMap<String, NodeInfo>,
        clocks: &BTreeMap<String, NodeClock>,
    ) -> Self {
        let _ = (plan, clocks);
        Self { nodes }
    }

    /// Takes one message of a node's stream.
    pub fn see(&mut self, node: &str, event: &RunEvent) {
        let _ = (node, event);
    }

    /// The verdict. `done` holds the last message of every node whose stream ended as it should.
    pub fn finish(self, done: &BTreeMap<String, Done>, errors: &[String]) -> Verdict {
        let _ = (done, errors, self.nodes);
        Verdict { status: Status::Ok, reasons: vec![] }
    }
}
