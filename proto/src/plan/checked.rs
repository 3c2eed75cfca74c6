//! A plan that passed every check, and the points of its matrix.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::timeline::flow_span;
use super::{Plan, Tool};
use crate::cc::supplied::CcFiles;
use crate::trace::Trace;
use crate::units::Micros;

/// Default of `start_jitter` in the lab: the base RTT of a typical path.
const LAB_START_JITTER: Micros = Micros::from_millis(10);

/// Why a trace file cannot be read. The caller that reads files writes the text, because this crate does no I/O.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct UnreadableTrace {
    /// The text of the error.
    pub reason: String,
}

/// A trace file that has been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceFacts {
    /// Of the file, hexadecimal.
    pub sha256: String,
    /// Its contents.
    pub trace: Arc<Trace>,
}

/// The plan's trace files by their name in the plan: their contents, or why they cannot be read. A file that is absent has
/// not been read.
pub type TraceFiles = BTreeMap<String, Result<TraceFacts, UnreadableTrace>>;

/// The files that a plan names.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlanFiles {
    /// Traces of links.
    pub traces: TraceFiles,
    /// Supplied congestion controls.
    pub ccs: CcFiles,
}

impl From<TraceFiles> for PlanFiles {
    fn from(traces: TraceFiles) -> Self {
        Self { traces, ccs: CcFiles::new() }
    }
}

/// A plan that passed every check. Only [`check`](super::check) makes one, and only such a plan can be scheduled.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedPlan {
    plan: Plan,
    /// The files that its points may name.
    files: Arc<PlanFiles>,
}

/// One combination of the matrix's levels.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Position in the matrix, from 0; the last factor (by name) changes fastest.
    pub id: u32,
    /// Factor (its name is a result column) and level.
    pub factors: Vec<(String, String)>,
    /// The plan of this point: no matrix, presets merged, queues written out.
    pub plan: CheckedPlan,
}

impl CheckedPlan {
    pub(super) fn new(plan: Plan, files: Arc<PlanFiles>) -> Self {
        Self { plan, files }
    }

    /// The plan's contents.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The plan with the lab's defaults for flow groups: ccbench's generator, because system calls are expensive in a guest, and a
    /// start jitter, because without randomness in the network and the hosts all seeds would give the same trial.
    #[must_use]
    pub fn with_lab_defaults(&self) -> Self {
        let mut with = self.clone();
        for (name, flow) in &mut with.plan.flows {
            flow.tool.get_or_insert(Tool::Ccbench);
            let length =
                flow_span(&self.plan, name, flow).map_or(0, |(from, to)| (to - from).get());
            flow.start_jitter.get_or_insert(LAB_START_JITTER.min(Micros::new(length / 10)));
        }
        with
    }

    pub(super) fn files(&self) -> &Arc<PlanFiles> {
        &self.files
    }

    /// The contents of a trace file, by its name in the plan; `None` if it has not been read.
    pub fn trace(&self, file: &str) -> Option<&Arc<Trace>> {
        self.files.traces.get(file)?.as_ref().ok().map(|facts| &facts.trace)
    }

    /// The SHA-256 of each supplied congestion control that its points may name, by its path in the plan, as far as the files have
    /// been read.
    pub fn cc_digests(&self) -> BTreeMap<String, String> {
        let read =
            self.files.ccs.iter().filter_map(|(file, facts)| {
                Some((file.clone(), facts.as_ref().ok()?.sha256.clone()))
            });
        read.collect()
    }
}
