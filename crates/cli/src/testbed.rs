//! Trials on nodes with agents. The agents run in network namespaces of this machine (`ccbench-agent testbed`), or the plan names
//! agents on other machines.

use std::collections::{BTreeMap, BTreeSet};

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::topology::Topology;
use ccbench_proto::units::Micros;
use ccbench_results::backend::RunBackend;
use ccbench_results::model::{Status, Verdict};
use ccbench_results::reason::ReasonCode;
use serde_json::{Value, json};
use tokio::sync::mpsc::error::TryRecvError;
use tracing::info;

use crate::agents::{Address, AgentError, Agents};
use crate::backend::error::BackendError;
use crate::backend::{Backend, BackendInfo};
use crate::clock;
use crate::experiment::Experiment;
use crate::interrupt::Interrupt;
use crate::lab::engine;
use crate::runner::{AfterError, RunningTrial, TrialQueue};
use crate::tls::Tls;
use process::TestbedProcess;

pub mod process;
mod refusals;
mod suggest;
mod trial;

/// Nodes with agents.
pub struct Testbed {
    /// Holds the namespaces; `None` if the plan names agents.
    process: Option<TestbedProcess>,
    /// The nodes' agents.
    pub agents: Agents,
    /// Addresses that peers use, by node name.
    addresses: BTreeMap<String, String>,
    /// Limitations of this machine, each with its reason.
    notes: Vec<String>,
    /// Devices, addresses and routes, or where the agents are; for `run.json`.
    topology: Value,
    /// A node in a namespace of this machine does not answer or could not be reset, or the testbed could not be rebuilt.
    broken: bool,
    /// Whether a trial has been prepared on the nodes.
    used: bool,
    /// The last trial's port range.
    port_slot: u32,
    /// Nodes that were rebooted since the last attempt at a trial, each with a description.
    rebooted: BTreeMap<String, String>,
}

impl Testbed {
    /// Builds the testbed, or connects to the agents that the plan names.
    ///
    /// # Errors
    /// The testbed cannot be built, or an agent cannot be reached.
    pub async fn open(experiment: &Experiment) -> Result<Self, BackendError> {
        let plan = experiment.plan.plan();
        if plan.nodes.values().any(|node| node.agent.is_some()) {
            Self::connect(experiment).await
        } else {
            Self::build(experiment).await
        }
    }

    /// Asks the agents that the plan names whether they let this client run trials, and the plan's trials. Agents of this machine are
    /// asked if the plan has a congestion control that is not available yet. Called before the results directory is made, so that a
    /// refused run leaves none.
    ///
    /// # Errors
    /// An agent refuses or does not answer.
    pub async fn check_access(&self, experiment: &Experiment) -> Result<(), BackendError> {
        if self.process.is_none() {
            self.agents.check_access(&experiment.id).await?;
        } else if self.missing(&experiment.plan).is_empty() {
            return Ok(());
        }
        Ok(refusals::check(experiment, &self.agents, &self.addresses).await?)
    }

    /// Connects to the agents that the plan names.
    async fn connect(experiment: &Experiment) -> Result<Self, BackendError> {
        let nodes = &experiment.plan.plan().nodes;
        let targets = nodes
            .iter()
            .filter_map(|(name, node)| Some((name.clone(), Address::Tcp(node.agent.clone()?))));
        let tls = Tls::open(&experiment.options.tls).map_err(AgentError::from)?;
        let agents = Agents::connect(targets.collect(), tls.as_ref()).await?;
        let address = |(name, node): (&String, &ccbench_proto::plan::Node)| {
            Some((name.clone(), node.address?.to_string()))
        };
        let addresses: BTreeMap<_, _> = nodes.iter().filter_map(address).collect();
        let topology = json!(addresses);
        Ok(Self::new(None, agents, addresses, Vec::new(), topology))
    }

    /// Builds the topology in network namespaces of this machine.
    async fn build(experiment: &Experiment) -> Result<Self, BackendError> {
        let plan = experiment.plan.plan();
        let Experiment { resolved, folder, options, .. } = experiment;
        let process = TestbedProcess::start(resolved, folder, options.rootless).await?;
        let sockets = process.ready.nodes.iter();
        let sockets =
            sockets.map(|(name, node)| (name.clone(), Address::Socket(node.socket.clone())));
        let agents = Agents::connect(sockets.collect(), None).await?;
        let topology = Topology::build(plan);
        let address = |name: &String| Some((name.clone(), topology.address(name)?.to_string()));
        let addresses = plan.nodes.keys().filter_map(address).collect();
        let mut notes = process.ready.notes.clone();
        if let Some(agent) = agents.by_node.values().next() {
            let host = suggest::Host::new(&agent.info);
            notes.extend(suggest::suggestion(&experiment.plan, &host, &engine::usable()));
        }
        Ok(Self::new(Some(process), agents, addresses, notes, json!(topology)))
    }

    fn new(
        process: Option<TestbedProcess>,
        agents: Agents,
        addresses: BTreeMap<String, String>,
        notes: Vec<String>,
        topology: Value,
    ) -> Self {
        let (broken, used, port_slot, rebooted) = (false, false, 0, BTreeMap::new());
        Self { process, agents, addresses, notes, topology, broken, used, port_slot, rebooted }
    }

    /// Returns whether an agent in a namespace of this machine has died or does not answer, or the testbed's process has ended.
    fn is_dead(&mut self) -> bool {
        let has_report =
            |process: &mut TestbedProcess| process.deaths.try_recv() != Err(TryRecvError::Empty);
        self.broken || self.process.as_mut().is_some_and(has_report)
    }

    /// Returns what follows a trial that could not run. A testbed that has died is built again. If that has just failed, only a user who asks
    /// to keep going wants another attempt.
    fn after_error(&self, needs_rebuild: bool) -> AfterError {
        let could_not_be_built = self.broken && self.process.is_none();
        if needs_rebuild && !could_not_be_built { AfterError::GoOn } else { AfterError::Stop }
    }

    /// Returns a note for every agent of another version. The version alone does not degrade a trial; messages that this
    /// controller cannot read do (`event_unreadable`).
    fn other_versions(&self) -> impl Iterator<Item = String> {
        const OWN: &str = env!("CARGO_PKG_VERSION");
        let agents =
            self.agents.by_node.iter().filter(|(_, agent)| agent.info.agent_version != OWN);
        agents.map(|(node, agent)| {
            let version = &agent.info.agent_version;
            format!(
                "{node}: its agent is ccbench-agent {version}, this is ccbench {OWN}; install the same build on both"
            )
        })
    }

    /// Returns congestion controls that a point needs and its sender lacks. They are printed before the first trial. A module may
    /// still be loaded when the agents are asked; otherwise they refuse the run.
    fn missing(&self, plan: &CheckedPlan) -> BTreeSet<String> {
        let mut missing = BTreeSet::new();
        for point in plan.points() {
            for flow in point.plan.plan().flows.values() {
                let sender = if flow.reverse { &flow.to } else { &flow.from };
                let (Some(cc), Some(agent)) = (&flow.cc, self.agents.by_node.get(sender)) else {
                    continue;
                };
                // The plan's own instances are loaded when their point is prepared.
                let loaded_by_plan = point.plan.plan().cc.contains_key(cc);
                if !loaded_by_plan && !agent.info.congestion_controls.contains(cc) {
                    let available = agent.info.congestion_controls.join(" ");
                    missing.insert(format!(
                        "{sender} does not have congestion control {cc} yet (available: {available})"
                    ));
                }
            }
        }
        missing
    }
}

impl Backend for Testbed {
    fn info(&self, experiment: &Experiment) -> BackendInfo {
        let agents = self.agents.by_node.iter();
        BackendInfo {
            backend: RunBackend::Testbed,
            topology: self.topology.clone(),
            nodes: agents.map(|(node, agent)| (node.clone(), agent.info.clone())).collect(),
            notes: self.notes.iter().cloned().chain(self.other_versions()).collect(),
            missing: self.missing(&experiment.plan),
        }
    }

    /// Runs one trial at a time, because trials share the machine.
    async fn run_trials(&mut self, queue: &TrialQueue<'_>, mut interrupt: Interrupt) {
        let experiment = queue.experiment();
        let mut first = true;
        while !queue.is_over() {
            if !std::mem::take(&mut first)
                && let Err(error) = pause(experiment.plan.plan().gap, &mut interrupt).await
            {
                return queue.stop(error);
            }
            let Some(mut running) = queue.start().await else { continue };
            let result = self.run_trial(&mut running, &mut interrupt).await;
            let failed = matches!(&result, Ok(verdict) if verdict.status == Status::Failed);
            // The testbed itself may have caused the failure, and rebuilding it takes a second.
            let needs_rebuild = self.is_dead() || (failed && self.process.is_some());
            queue.end(running, result, self.after_error(needs_rebuild)).await;
            if needs_rebuild && !queue.is_stopped() {
                info!("rebuilding the testbed");
                if let Err(error) = self.rebuild(experiment).await {
                    return queue.stop(error);
                }
            }
        }
    }

    async fn close(self) {
        drop(self.agents);
        if let Some(process) = self.process {
            process.stop().await;
        }
    }
}

impl Testbed {
    /// Runs a trial. Runs it again on a new testbed if an earlier trial may have damaged this one, or after the loss of a node as
    /// soon as all nodes answer again.
    async fn run_trial(
        &mut self,
        running: &mut RunningTrial<'_>,
        interrupt: &mut Interrupt,
    ) -> Result<Verdict, BackendError> {
        let RunningTrial { trial, progress, .. } = running;
        self.port_slot = next_port_slot(self.port_slot, clock::realtime_ns());
        let result = trial::run(*trial, self, progress, interrupt).await;
        if self.process.is_none()
            && let Some(loss) = lost_node(&result)
        {
            progress.message("node", &format!("{loss}; trying again when every node answers"));
            progress.suspend();
            let Experiment { id, options, .. } = trial.experiment;
            let (epoch, rebooted) = (trial.dir.next_epoch(), &mut self.rebooted);
            let nodes = self.agents.await_all(id, epoch, options.await_nodes, rebooted);
            let awaited = tokio::select! {
                awaited = nodes => awaited,
                () = interrupt.requested() => return Err(BackendError::Interrupted),
            };
            if let Err(error) = awaited {
                progress.message("node", &format!("{error}; no longer waiting for the nodes"));
                return result;
            }
            progress.repeat_after_loss();
            self.port_slot = next_port_slot(self.port_slot, clock::realtime_ns());
            return trial::run(*trial, self, progress, interrupt).await;
        }
        let error = match &result {
            Ok(_) | Err(BackendError::Interrupted | BackendError::Results(_)) => return result,
            Err(
                BackendError::Agent(_)
                | BackendError::Testbed(_)
                | BackendError::Lab(_)
                | BackendError::Simulator(_),
            ) if self.process.is_none() || !self.used => {
                return result;
            }
            Err(error) => error,
        };
        progress.message("testbed", &format!("{error}; trying again on a new testbed"));
        self.rebuild(trial.experiment).await?;
        progress.repeat("the new testbed is ready");
        trial::run(*trial, self, progress, interrupt).await
    }

    async fn rebuild(&mut self, experiment: &Experiment) -> Result<(), BackendError> {
        if let Some(process) = self.process.take() {
            process.stop().await;
        }
        // If building it fails, the old agents must not be taken for those of other machines.
        self.broken = true;
        *self = Self { port_slot: self.port_slot, ..Self::open(experiment).await? };
        Ok(())
    }
}

/// Returns why a trial measured nothing, if a node was lost.
fn lost_node(result: &Result<Verdict, BackendError>) -> Option<String> {
    match result {
        Err(BackendError::Agent(error @ AgentError::Call { .. })) => Some(error.to_string()),
        Ok(verdict) => {
            let of = |code: ReasonCode| verdict.reasons.iter().find(|reason| reason.code == code);
            // The other nodes are then stopped, so their streams end early too. The first error is that of the lost node.
            let lost = of(ReasonCode::NodeLost)?;
            Some(of(ReasonCode::Error).unwrap_or(lost).message.clone())
        }
        Err(_) => None,
    }
}

/// Sleeps for `gap`. Ends early on the user's request to stop.
async fn pause(gap: Micros, interrupt: &mut Interrupt) -> Result<(), BackendError> {
    tokio::select! {
        () = tokio::time::sleep(gap.duration()) => Ok(()),
        () = interrupt.requested() => Err(BackendError::Interrupted),
    }
}

/// Returns the number of the next trial's port range, to be taken modulo [`ccbench_proto::schedule::PORT_SLOTS`]. It advances
/// with time in steps of two seconds and never decreases. Few trials therefore meet TIME_WAIT connections of earlier trials, even
/// those of another experiment on the same nodes. An agent refuses ports that are in use; the controller then tries the next
/// range.
fn next_port_slot(last: u32, utc_ns: i64) -> u32 {
    let now = (utc_ns / 2_000_000_000) as u32;
    now.max(last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_testbed_that_could_not_be_rebuilt_is_dead() {
        let agents = Agents { by_node: BTreeMap::new() };
        let mut testbed = Testbed::new(None, agents, BTreeMap::new(), vec![], Value::Null);
        assert!(!testbed.is_dead(), "agents on other machines");
        assert_eq!(testbed.after_error(true), AfterError::GoOn);
        testbed.broken = true;
        assert!(testbed.is_dead());
        assert_eq!(testbed.after_error(true), AfterError::Stop, "without --keep-going");
    }

    #[test]
    fn port_slots_follow_the_time_and_never_decrease() {
        let second = 1_000_000_000;
        assert_eq!(next_port_slot(0, 100 * second), 50);
        assert_eq!(next_port_slot(50, 101 * second), 51, "short trials run ahead of the time");
        assert_eq!(next_port_slot(51, 102 * second), 52, "and do not fall back");
        assert_eq!(next_port_slot(52, 180 * second), 90);
    }
}
