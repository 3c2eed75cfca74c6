//! An experiment: a checked plan, its trace files and its trials.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::resolve;
use ccbench_proto::schedule::{self, Point, ScheduledTrial};
use ccbench_results::store::RunDir;
use ccbench_results::trace::stored;

use crate::clock;
use crate::plan_source::LoadedPlan;

/// Plan and options of an experiment.
pub struct Experiment {
    /// The checked plan, with its matrix.
    pub plan: CheckedPlan,
    /// Its canonical text.
    pub resolved: String,
    /// Contents of its trace files, by the name that the plan gives them.
    traces: BTreeMap<String, Vec<u8>>,
    /// Names the experiment: the folder of its sockets and the agents' log lines.
    pub id: String,
    /// Build the testbed in a user namespace even as root.
    pub rootless: bool,
    /// Folder with the certificates for agents that are not on loopback.
    pub pki: Option<PathBuf>,
    /// Continue with the other points when a trial cannot be prepared.
    pub keep_going: bool,
}

impl Experiment {
    /// An experiment that runs this plan.
    pub fn new(loaded: LoadedPlan, rootless: bool, pki: Option<PathBuf>, keep_going: bool) -> Self {
        let LoadedPlan { plan, traces, .. } = loaded;
        let now = clock::utc().strftime("%Y%m%dT%H%M%SZ");
        // Sorts by time, unique on this machine.
        let id = format!("{now}-{}-{}", std::process::id(), plan.plan().name);
        Self { resolved: resolve::to_toml(&plan), plan, traces, id, rootless, pki, keep_going }
    }

    /// The trace files, by their path in the results directory.
    pub fn stored_traces(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let names = stored::stored_names(&self.traces.keys().cloned().collect());
        let copy = |(file, name)| Some((name, self.traces.get(&file)?.clone()));
        names.into_iter().filter_map(copy).collect()
    }

    /// The trace files of a node's links at a point.
    pub fn trace_files_for(&self, point: &Point, node: &str) -> BTreeMap<String, Vec<u8>> {
        let links = point.plan.plan().links.values().filter(|link| link.node == node);
        let files = links.filter_map(|link| Some(&link.trace.as_ref()?.file));
        let content = |file: &String| Some((file.clone(), self.traces.get(file)?.clone()));
        files.filter_map(content).collect()
    }

    /// The trials that `dir` does not hold yet, or that a resumed run repeats, in order; with `retry_failed` also those that
    /// failed by their plan.
    pub fn remaining(&self, dir: &RunDir, retry_failed: bool) -> Vec<ScheduledTrial> {
        let mut finished = dir.finished();
        if retry_failed {
            for trial in dir.failed() {
                finished.remove(&trial);
            }
        }
        let trials = schedule::trials(&self.plan).into_iter();
        trials.filter(|trial| !finished.contains(&(trial.point_id, trial.trial))).collect()
    }
}
