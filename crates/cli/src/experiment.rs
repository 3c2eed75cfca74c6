//! An experiment: a checked plan, its trace files and its trials.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::resolve;
use ccbench_proto::schedule::{self, Point, ScheduledTrial};
use ccbench_proto::units::Micros;
use ccbench_results::store::RunDir;
use ccbench_results::trace::stored::stored_names;

use crate::args::TlsArgs;
use crate::clock;
use crate::plan_source::LoadedPlan;

/// Default time to wait for a lost node: enough for a restart of its agent or a short outage of the control network.
pub const AWAIT_NODES: Micros = Micros::new(30_000_000);

/// Default time to wait for a node that reboots into a kernel of the plan. The firmware of servers takes minutes.
pub const AWAIT_REBOOT: Micros = Micros::new(900_000_000);

/// How an experiment runs.
#[derive(Debug, Clone)]
pub struct ExperimentOptions {
    /// Whether to build the testbed in a user namespace even as root.
    pub rootless: bool,
    /// The certificates for agents that are not on loopback.
    pub tls: TlsArgs,
    /// Whether to continue with the other points when a trial cannot be prepared.
    pub keep_going: bool,
    /// How long to wait for a lost node.
    pub await_nodes: Micros,
    /// How long to wait for a node that reboots into another kernel.
    pub await_reboot: Micros,
}

impl Default for ExperimentOptions {
    fn default() -> Self {
        Self {
            rootless: false,
            tls: TlsArgs::default(),
            keep_going: false,
            await_nodes: AWAIT_NODES,
            await_reboot: AWAIT_REBOOT,
        }
    }
}

/// The plan and the options of an experiment.
pub struct Experiment {
    /// The checked plan, with its matrix.
    pub plan: CheckedPlan,
    /// The plan's canonical text.
    pub resolved: String,
    /// Contents of the plan's trace files, by the name in the plan.
    traces: BTreeMap<String, Vec<u8>>,
    /// Contents of the supplied congestion controls, by the name in the plan.
    ccs: BTreeMap<String, Vec<u8>>,
    /// Identifies the experiment for the agents, which two controllers on different machines may use.
    pub id: String,
    /// The name of its folder in the state directory. The ID is too long for the paths of sockets.
    pub folder: String,
    /// How it runs.
    pub options: ExperimentOptions,
}

impl Experiment {
    /// Makes an experiment that runs this plan.
    pub fn new(loaded: LoadedPlan, options: ExperimentOptions) -> Self {
        let LoadedPlan { plan, traces, ccs, .. } = loaded;
        let now = clock::utc().strftime("%Y%m%dT%H%M%SZ");
        // Sorts by time and is unique on this machine.
        let folder = format!("{now}-{}-{}", std::process::id(), plan.plan().name);
        // Controllers in containers often have the same process ID. Keys of a `RandomState` are from the kernel's random numbers.
        let id = format!("{folder}-{:016x}", RandomState::new().hash_one(&folder));
        let resolved = resolve::to_toml(&plan);
        Self { resolved, plan, traces, ccs, id, folder, options }
    }

    /// Returns the trace files by their names in the results directory.
    pub fn stored_traces(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        stored(&self.traces)
    }

    /// Returns the supplied congestion controls by their names in the results directory.
    pub fn stored_ccs(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        stored(&self.ccs)
    }

    /// Returns the files that a node needs at a point: the traces of its links, and the supplied congestion controls of its flows
    /// and probes.
    pub fn files_for(&self, point: &Point, node: &str) -> BTreeMap<String, Vec<u8>> {
        let plan = point.plan.plan();
        let links = plan.links.values().filter(|link| link.node == node);
        let traces = links.filter_map(|link| Some(&link.trace.as_ref()?.file));
        let trace = |file: &String| Some((file.clone(), self.traces.get(file)?.clone()));
        let flows = plan.flows.values().filter(|flow| flow.from == node || flow.to == node);
        // Either end of a probe may be the one that sends.
        let names = flows
            .filter_map(|flow| flow.cc.as_ref())
            .chain(plan.probes.values().filter_map(|p| p.cc.as_ref()));
        let ccs = names.filter_map(|name| Some(plan.cc.get(name)?.supplied()?.0));
        let cc = |file: &str| Some((file.to_owned(), self.ccs.get(file)?.clone()));
        traces.filter_map(trace).chain(ccs.filter_map(cc)).collect()
    }

    /// Returns the kernels that the nodes must run at a point, for the nodes whose kernel the plan names.
    pub fn kernel_releases(point: &Point) -> BTreeMap<String, String> {
        let nodes = point.plan.plan().nodes.iter();
        nodes
            .filter_map(|(name, node)| Some((name.clone(), node.kernel_release.clone()?)))
            .collect()
    }

    /// Returns in order the trials that `dir` does not hold yet, and those that a resumed run repeats. With `retry_failed`, also
    /// trials that took place and failed.
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

fn stored(files: &BTreeMap<String, Vec<u8>>) -> BTreeMap<PathBuf, Vec<u8>> {
    let names = stored_names(&files.keys().cloned().collect());
    let copy = |(file, name)| Some((name, files.get(&file)?.clone()));
    names.into_iter().filter_map(copy).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan_source::PlanSource;

    #[test]
    fn controllers_with_the_same_process_id_have_different_runs() {
        let plan = include_str!("../../../plans/quickstart.toml");
        let new = || {
            let loaded = PlanSource::embedded("quickstart.toml", plan, &[]).load_again(&[]);
            Experiment::new(loaded.unwrap(), ExperimentOptions::default())
        };
        let (one, other) = (new(), new());
        let random = |experiment: &Experiment| {
            let digits = experiment.id.strip_prefix(&format!("{}-", experiment.folder)).unwrap();
            assert!(digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
            digits.to_owned()
        };
        assert_ne!(random(&one), random(&other));
        let process = one.folder.split('-').nth(1).map(str::to_owned);
        assert_eq!(process, Some(std::process::id().to_string()));
    }
}
