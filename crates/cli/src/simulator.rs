//! The simulator: each trial is a discrete-event simulation of the plan's network in this process. It takes the same plans as the
//! lab and produces the same tables, but from models of TCP and of links instead of a kernel.

use std::collections::{BTreeMap, BTreeSet};

use ccbench_proto::topology::Topology;
use ccbench_proto::wire::NodeInfo;
use ccbench_results::backend::RunBackend;
use ccbench_simulator::MODEL_VERSION;
use serde_json::json;

use crate::backend::error::BackendError;
use crate::backend::{Backend, BackendInfo};
use crate::experiment::Experiment;
use crate::interrupt::Interrupt;
use crate::jobs;
use crate::runner::{AfterError, RunningTrial, TrialQueue};

pub mod error;
mod trial;

/// The backend that simulates trials.
pub struct Simulator {
    /// Number of concurrent trials; `None` means the number of CPUs.
    jobs: Option<u32>,
    /// Descriptions of the nodes, which are the same for all points.
    nodes: BTreeMap<String, NodeInfo>,
}

impl Simulator {
    /// Describes the nodes of the first point.
    ///
    /// # Errors
    /// The point cannot be simulated.
    pub fn open(experiment: &Experiment, jobs: Option<u32>) -> Result<Self, BackendError> {
        let points = experiment.plan.points();
        let nodes = points.first().map(|point| trial::simulation(point, 0)).transpose()?;
        Ok(Self { jobs, nodes: nodes.map(|simulation| simulation.infos()).unwrap_or_default() })
    }
}

impl Backend for Simulator {
    fn info(&self, experiment: &Experiment) -> BackendInfo {
        BackendInfo {
            backend: RunBackend::Simulator { model_version: MODEL_VERSION },
            topology: json!(Topology::build(experiment.plan.plan())),
            nodes: self.nodes.clone(),
            notes: vec![],
            missing: BTreeSet::new(),
        }
    }

    /// Uses one blocking thread per running trial, because trials share no state.
    async fn run_trials(&mut self, queue: &TrialQueue<'_>, interrupt: Interrupt) {
        let places = vec![(); jobs::count(self.jobs, queue.count())];
        queue.use_jobs(places.len(), None);
        let run = async |_: &(), mut running: RunningTrial<'_>| {
            let RunningTrial { trial, progress, .. } = &mut running;
            let result = trial::run(*trial, progress, &mut interrupt.clone()).await;
            queue.end(running, result, AfterError::Stop).await;
        };
        jobs::run_in(&places, || queue.start(), run).await;
    }

    async fn close(self) {}
}
