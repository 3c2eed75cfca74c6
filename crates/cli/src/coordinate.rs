//! One experiment from plan to results: for each trial prepare all nodes, start all at the same instant,
//! merge their streams, judge, commit, reset. During a trial the controller sends nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use ccbench_proto::event::{Kind, NodeCongestionControl};
use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::schedule::{self, Point, Run};
use ccbench_proto::topology::Topology;
use ccbench_proto::units::Micros;
use ccbench_proto::{resolve, wire};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use crate::error::CliError;
use crate::fleet::{Address, CALL_LIMIT, ClockOffset, Fleet};
use crate::live::Live;
use crate::local::Testbed;
use crate::source::Loaded;
use crate::trials::{About, Ground, Trial, interrupted};
use ccbench_results::clock;
use ccbench_results::store::{RunDir, TrialKey, TrialWriter};
use ccbench_results::trace::stored;
use ccbench_results::verdict::{Judge, Reason, Verdict};

/// From "all nodes are ready" to the first phase: time for the start to reach every node and for the base
/// RTT to be measured on the idle path.
const LEAD: Duration = Duration::from_millis(350);
/// After the last phase, nodes that report count as lost when none has said anything for so long.
const REPORT_LIMIT: Duration = Duration::from_secs(12);
/// A node that has not heard of a prepared trial for this long undoes everything.
const LEASE: Duration = Duration::from_secs(15);
/// Messages on their way from the streams to the book, each of up to a thousand rows. When the files' writer has no room
/// they wait, which slows the streams down, and the agents count what they drop.
const EVENTS_WAITING: usize = 64;
const TICK: Duration = Duration::from_millis(500);

/// What an experiment needs to run.
pub struct Experiment {
    /// The checked plan, with its matrix.
    pub plan: CheckedPlan,
    /// Its canonical text.
    pub resolved: String,
    /// Contents of its trace files, by the name that the plan gives them.
    traces: BTreeMap<String, Vec<u8>>,
    /// Names the experiment: its sockets' folder and the agents' log lines.
    pub id: String,
    /// In a user namespace even as root.
    pub rootless: bool,
    /// Certificates for agents beyond loopback.
    pub pki: Option<PathBuf>,
    /// Go on with other points when a trial cannot be prepared.
    pub keep_going: bool,
}

/// Testbed (if ours) and agents.
pub struct Nodes {
    testbed: Option<Testbed>,
    /// The agents.
    pub fleet: Fleet,
    /// Node name to the address its peers use.
    addresses: BTreeMap<String, String>,
    /// What the testbed cannot do, each with its reason.
    pub notes: Vec<String>,
    /// What was built, for the record: devices, addresses and routes, or where the agents are.
    pub topology: String,
    /// A node of our own testbed did not answer.
    broken: bool,
    /// A trial has been prepared on them.
    used: bool,
    /// The last trial's range of ports.
    port_slot: u32,
}

impl Experiment {
    /// For a checked plan.
    pub fn new(loaded: Loaded, rootless: bool, pki: Option<PathBuf>, keep_going: bool) -> Self {
        let Loaded { plan, traces, .. } = loaded;
        let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
        // Sorts by time, unique on this machine.
        let id = format!("{now}-{}-{}", std::process::id(), plan.plan().name);
        Self { resolved: resolve::to_toml(&plan), plan, traces, id, rootless, pki, keep_going }
    }

    /// The trace files under the names that they have in the results directory.
    pub fn stored_traces(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let names = stored::stored_names(&self.traces.keys().cloned().collect());
        let copy = |(file, name)| Some((name, self.traces.get(&file)?.clone()));
        names.into_iter().filter_map(copy).collect()
    }

    /// The trace files of a node's links at a point.
    pub(crate) fn files_for(&self, point: &Point, node: &str) -> BTreeMap<String, Vec<u8>> {
        let links = point.plan.plan().links.values().filter(|link| link.node == node);
        let files = links.filter_map(|link| Some(&link.trace.as_ref()?.file));
        let content = |file: &String| Some((file.clone(), self.traces.get(file)?.clone()));
        files.filter_map(content).collect()
    }

    /// The trials that `dir` does not hold yet, in order.
    pub fn left(&self, dir: &RunDir, retry_failed: bool) -> Vec<Run> {
        let mut finished = dir.finished();
        if retry_failed {
            for trial in dir.failed() {
                finished.remove(&trial);
            }
        }
        let runs = schedule::runs(&self.plan).into_iter();
        runs.filter(|run| !finished.contains(&(run.point_id, run.trial))).collect()
    }

    /// Builds the testbed, or connects to the agents that the plan names.
    ///
    /// # Errors
    /// What could not be had, with the node and the step.
    pub async fn open(&self) -> Result<Nodes, CliError> {
        let plan = self.plan.plan();
        let named = plan.nodes.values().any(|node| node.agent.is_some());
        if named {
            let targets = plan
                .nodes
                .iter()
                .filter_map(|(name, node)| Some((name.clone(), Address::Tcp(node.agent.clone()?))));
            let fleet = Fleet::connect(targets.collect(), self.pki.as_deref()).await?;
            let address = |(name, node): (&String, &ccbench_proto::plan::Node)| {
                Some((name.clone(), node.address?.to_string()))
            };
            let addresses: BTreeMap<_, _> = plan.nodes.iter().filter_map(address).collect();
            let topology = format!("{addresses:#?}");
            return Ok(Nodes {
                testbed: None,
                fleet,
                addresses,
                notes: Vec::new(),
                topology,
                broken: false,
                used: false,
                port_slot: 0,
            });
        }
        let testbed = Testbed::start(&self.resolved, &self.id, self.rootless).await?;
        let sockets = testbed.ready.nodes.iter();
        let sockets =
            sockets.map(|(name, node)| (name.clone(), Address::Socket(node.socket.clone())));
        let fleet = Fleet::connect(sockets.collect(), None).await?;
        let topology = Topology::build(plan);
        let address = |name: &String| Some((name.clone(), topology.address(name)?.to_string()));
        let addresses = plan.nodes.keys().filter_map(address).collect();
        let notes = testbed.ready.notes.clone();
        let topology = format!("{topology:#?}");
        Ok(Nodes {
            testbed: Some(testbed),
            fleet,
            addresses,
            notes,
            topology,
            broken: false,
            used: false,
            port_slot: 0,
        })
    }
}

impl Ground for Nodes {
    fn about(&self, experiment: &Experiment) -> About {
        let agents = self.fleet.agents.iter();
        About {
            topology: self.topology.clone(),
            nodes: agents.map(|(node, agent)| (node.clone(), agent.info.clone())).collect(),
            notes: self.notes.iter().cloned().chain(self.other_versions()).collect(),
            missing: self.missing(&experiment.plan),
        }
    }

    fn gap(&self, experiment: &Experiment) -> Micros {
        experiment.plan.plan().gap
    }

    async fn trial(
        &mut self,
        trial: Trial<'_>,
        live: &mut Live,
        interrupt: &mut watch::Receiver<bool>,
    ) -> Result<Verdict, CliError> {
        self.port_slot = next_port_slot(self.port_slot, clock::realtime_ns());
        trial.attempt(self, live, interrupt).await
    }

    fn lost(&mut self, failed: bool) -> bool {
        // What failed one trial of a testbed may be the testbed, and it is built in a second.
        self.dead() || (failed && self.testbed.is_some())
    }

    /// Our own testbed is damaged (an agent died, and its namespace with it; or somebody changed something in it):
    /// makes everything anew.
    async fn rebuild(&mut self, experiment: &Experiment) -> Result<(), CliError> {
        if let Some(testbed) = self.testbed.take() {
            testbed.stop().await;
        }
        *self = Self { port_slot: self.port_slot, ..experiment.open().await? };
        Ok(())
    }

    /// Leaves every node as it was found.
    async fn close(self) {
        drop(self.fleet);
        if let Some(testbed) = self.testbed {
            testbed.stop().await;
        }
    }
}

impl Nodes {
    /// An agent of our own testbed has died or does not answer, or all of it has ended.
    fn dead(&mut self) -> bool {
        use mpsc::error::TryRecvError;
        let broken = self.broken;
        self.testbed
            .as_mut()
            .is_some_and(|testbed| broken || testbed.deaths.try_recv() != Err(TryRecvError::Empty))
    }

    /// A note for every agent of another version. That alone degrades no trial: what this controller cannot read does
    /// (`event_unreadable`).
    fn other_versions(&self) -> impl Iterator<Item = String> {
        const OWN: &str = env!("CARGO_PKG_VERSION");
        let other = |info: &wire::NodeInfo| info.agent_version != OWN;
        let agents = self.fleet.agents.iter().filter(move |(_, agent)| other(&agent.info));
        agents.map(|(node, agent)| {
            let version = &agent.info.agent_version;
            format!(
                "{node}: its agent is ccbench-agent {version}, this is ccbench {OWN}; install the same build on both"
            )
        })
    }

    /// Congestion controls that some point asks for and its sender does not have now. A module may still be loaded
    /// when that point is prepared; where there are no modules it will fail, so say it before the first trial.
    fn missing(&self, plan: &CheckedPlan) -> BTreeSet<String> {
        let mut missing = BTreeSet::new();
        for point in plan.points() {
            for flow in point.plan.plan().flows.values() {
                let sender = if flow.reverse { &flow.to } else { &flow.from };
                let (Some(cc), Some(agent)) = (&flow.cc, self.fleet.agents.get(sender)) else {
                    continue;
                };
                // An instance is loaded when its point is prepared.
                let loaded = point.plan.plan().cc.contains_key(cc);
                if !loaded && !agent.info.congestion_controls.contains(cc) {
                    let there = agent.info.congestion_controls.join(" ");
                    missing.insert(format!(
                        "{sender} has no congestion control {cc} now (it has {there})"
                    ));
                }
            }
        }
        missing
    }
}

/// Number of the range of ports for the next trial, taken modulo [`schedule::PORT_SLOTS`]: one that no trial of the
/// last minute (TIME_WAIT) has used, not even another experiment's on the same nodes. Ranges go by time, one
/// every other second, and never back.
fn next_port_slot(last: u32, utc_ns: i64) -> u32 {
    let now = (utc_ns / 2_000_000_000) as u32;
    now.max(last + 1)
}

/// One message of one node's stream, or its end.
enum Heard {
    Event(Box<wire::RunEvent>),
    End(Option<String>),
}

impl Trial<'_> {
    /// Runs it; once more on a new testbed, if it cannot be run on the one that there is.
    async fn attempt(
        &self,
        nodes: &mut Nodes,
        live: &mut Live,
        interrupt: &mut watch::Receiver<bool>,
    ) -> Result<Verdict, CliError> {
        let ended = self.run(nodes, live, interrupt).await;
        let error = match &ended {
            Ok(_) | Err(CliError::Interrupted | CliError::Results(_)) => return ended,
            Err(error) => error,
        };
        if nodes.testbed.is_none() || !nodes.used {
            return ended;
        }
        let text = format!("{error}; trying once more, on a testbed that is built anew");
        live.say("testbed", &text);
        nodes.rebuild(self.experiment).await?;
        self.run(nodes, live, interrupt).await
    }

    async fn run(
        &self,
        nodes: &mut Nodes,
        live: &mut Live,
        interrupt: &mut watch::Receiver<bool>,
    ) -> Result<Verdict, CliError> {
        let offsets = nodes.fleet.clocks().await?;
        let key = TrialKey {
            point_id: self.run.point_id,
            trial: self.run.trial,
            seed: self.run.seed,
            epoch: clock::realtime_ns().unsigned_abs() / 1000,
        };
        let run_id = &self.experiment.id;
        let replies = match self.prepare(nodes, key.epoch).await {
            Ok(replies) => replies,
            Err(error) => {
                nodes.fleet.reset(run_id, key.epoch).await;
                self.dir.record_not_run(key, &Reason::new("not_run", error.to_string()))?;
                return Err(error);
            }
        };
        nodes.used = true;
        let conducted = self.conduct(nodes, key, replies, &offsets, live, interrupt).await;
        // However that went, the nodes are prepared.
        let failed_undo = nodes.fleet.reset(run_id, key.epoch).await;
        let (mut book, stopped) = conducted?;
        // What an agent of our own testbed had changed is gone with its namespace.
        if nodes.testbed.is_none() {
            for (node, failed) in &failed_undo {
                book.errors
                    .push(format!("{node}: could not be left as found: {}", failed.join("; ")));
            }
        } else if !failed_undo.is_empty() {
            nodes.broken = true;
        }
        // While rows are on their way to the disk the nodes' questions are still answered.
        book.writer.finished().await;
        if let Err(error) = stopped {
            book.writer.abandon(&error.to_string())?;
            return Err(error);
        }
        let verdict = book.judge.finish(&book.done, &book.errors);
        book.writer.commit(&verdict)?;
        Ok(verdict)
    }

    /// Starts all prepared nodes at the same instant and keeps what they send, until they end, one is lost, or the
    /// user stops.
    async fn conduct(
        &self,
        nodes: &Nodes,
        key: TrialKey,
        replies: BTreeMap<String, wire::PrepareReply>,
        offsets: &BTreeMap<String, ClockOffset>,
        live: &mut Live,
        interrupt: &mut watch::Receiver<bool>,
    ) -> Result<(Book<'_>, Result<(), CliError>), CliError> {
        self.dir.announce_trial(key)?;
        let t0_ns = clock::monotonic_ns() + LEAD.as_nanos() as u64;
        let utc_ns = clock::utc_minus_monotonic_ns();
        let clocks: BTreeMap<_, _> = offsets
            .iter()
            .map(|(node, offset)| (node.clone(), offset.node_clock(t0_ns, utc_ns)))
            .collect();
        let phases = schedule::phases(&self.point.plan);
        let infos =
            nodes.fleet.agents.iter().map(|(node, agent)| (node.clone(), agent.info.clone()));
        let judge = Judge::new(&self.point.plan, &infos.collect(), &clocks);
        let writer = self.dir.begin_announced(key, &phases, clocks)?;
        let mut book = Book::new(writer, judge);
        book.links(replies)?;
        let (send, receive) = mpsc::channel(EVENTS_WAITING);
        for (node, agent) in &nodes.fleet.agents {
            let offset_ns = offsets.get(node).map_or(0, |offset| offset.offset_ns);
            let start_at_ns = t0_ns.saturating_add_signed(offset_ns);
            let request = wire::RunRequest { start_at_ns, epoch: key.epoch };
            tokio::spawn(listen(node.clone(), agent.client.clone(), request, send.clone()));
        }
        drop(send);
        let length = schedule::length(&self.point.plan);
        let silent = nodes.fleet.agents.keys().cloned().collect();
        let stopped = book.follow(receive, silent, live, (t0_ns, length), interrupt).await;
        Ok((book, stopped))
    }

    async fn prepare(
        &self,
        nodes: &Nodes,
        epoch: u64,
    ) -> Result<BTreeMap<String, wire::PrepareReply>, CliError> {
        let plan_toml = resolve::to_toml(&self.point.plan);
        let request = |node: &str, mut client: wire::agent_client::AgentClient<_>| {
            let request = wire::PrepareRequest {
                run_id: self.experiment.id.clone(),
                node: node.to_owned(),
                plan_toml: plan_toml.clone(),
                point_id: self.run.point_id,
                trial: u32::from(self.run.trial),
                seed: self.run.seed,
                epoch,
                addresses: nodes.addresses.clone().into_iter().collect(),
                port_slot: nodes.port_slot,
                lease_ms: LEASE.as_millis() as u32,
                files: self.experiment.files_for(self.point, node),
            };
            async move { client.prepare(request).await }
        };
        nodes.fleet.all("prepare", request).await
    }
}

/// Passes one node's stream on; the end of the stream is a message too.
async fn listen(
    node: String,
    mut client: wire::agent_client::AgentClient<tonic::transport::Channel>,
    request: wire::RunRequest,
    send: mpsc::Sender<(String, Heard)>,
) {
    let why = match timeout(CALL_LIMIT, client.run(request)).await {
        Err(_) => Some(format!("did not start within {} s", CALL_LIMIT.as_secs())),
        Ok(Err(status)) => Some(status.message().to_owned()),
        Ok(Ok(response)) => {
            let mut stream = response.into_inner();
            loop {
                match stream.message().await {
                    Ok(Some(event)) => {
                        if send.send((node.clone(), Heard::Event(Box::new(event)))).await.is_err() {
                            return;
                        }
                    }
                    Ok(None) => break None,
                    Err(status) => break Some(status.message().to_owned()),
                }
            }
        }
    };
    // The receiver is gone only when nobody wants to know any more.
    let _ = send.send((node, Heard::End(why))).await;
}

/// Everything that is kept of a trial while it runs.
pub(crate) struct Book<'a> {
    pub(crate) writer: TrialWriter<'a>,
    pub(crate) judge: Judge,
    pub(crate) done: BTreeMap<String, wire::Done>,
    pub(crate) errors: Vec<String>,
}

impl<'a> Book<'a> {
    /// An empty one.
    pub(crate) fn new(writer: TrialWriter<'a>, judge: Judge) -> Self {
        Self { writer, judge, done: BTreeMap::new(), errors: Vec::new() }
    }

    pub(crate) fn links(
        &mut self,
        replies: BTreeMap<String, wire::PrepareReply>,
    ) -> Result<(), CliError> {
        for (node, reply) in replies {
            for event in reply.events {
                self.keep(&node, wire::RunEvent { of: Some(wire::run_event::Of::Event(event)) })?;
            }
            for link in reply.links {
                let backend = link.backend().as_text();
                let message = format!("{backend} on {} ({})", link.dev, link.why());
                let name = link.link.clone();
                let kind = Kind::Link(link);
                self.judge.reply(&node, &name, &kind);
                self.writer.note(kind, &name, &message)?;
            }
            for cc in reply.congestion_controls {
                let data = NodeCongestionControl { node: node.clone(), cc: Some(cc.clone()) };
                self.judge.reply(&node, &cc.name, &Kind::CongestionControl(data));
                self.writer.congestion_control(&node, cc)?;
            }
        }
        Ok(())
    }

    pub(crate) fn keep(&mut self, node: &str, event: wire::RunEvent) -> Result<(), CliError> {
        if let Some(wire::run_event::Of::Done(done)) = &event.of {
            self.done.insert(node.to_owned(), *done);
        } else {
            self.judge.see(node, &event);
        }
        self.writer.push(node, event)?;
        Ok(())
    }

    /// Until every node has ended its stream, one of them is lost, or the user stops.
    async fn follow(
        &mut self,
        mut receive: mpsc::Receiver<(String, Heard)>,
        mut silent: BTreeSet<String>,
        live: &mut Live,
        (t0_ns, length): (u64, Micros),
        interrupt: &mut watch::Receiver<bool>,
    ) -> Result<(), CliError> {
        let mut limit = Instant::now() + LEAD + length.duration() + REPORT_LIMIT;
        // From the trial's beginning on, so that a phase's end is seen when it comes.
        let until = Duration::from_nanos(t0_ns.saturating_sub(clock::monotonic_ns()));
        let mut tick = tokio::time::interval_at(Instant::now() + until, TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                biased;
                () = interrupted(interrupt) => return Err(CliError::Interrupted),
                heard = next(&self.writer, &mut receive) => match heard {
                    None => return Ok(()),
                    Some((node, Heard::Event(event))) => {
                        limit = limit.max(Instant::now() + REPORT_LIMIT);
                        live.row(&node, &event);
                        self.keep(&node, *event)?;
                    }
                    Some((node, Heard::End(None))) => {
                        silent.remove(&node);
                    }
                    Some((node, Heard::End(Some(why)))) => {
                        // Without one of its nodes the rest of the trial is worth nothing.
                        self.errors.push(format!("node {node}: its stream broke: {why}"));
                        return Ok(());
                    }
                },
                _ = tick.tick() => {
                    let elapsed_ns = clock::monotonic_ns().saturating_sub(t0_ns);
                    live.tick(Micros::new(elapsed_ns / 1000));
                }
                () = tokio::time::sleep_until(limit) => {
                    if !self.writer.has_room() {
                        // It is the disk that keeps them waiting.
                        limit = Instant::now() + REPORT_LIMIT;
                        continue;
                    }
                    let nodes: Vec<String> = silent.into_iter().collect();
                    let limit_s = REPORT_LIMIT.as_secs();
                    self.errors.push(format!("still silent {limit_s} s after the end: {}", nodes.join(", ")));
                    return Ok(());
                }
            }
        }
    }
}

/// The next message, once there is room for what it holds.
async fn next<T>(writer: &TrialWriter<'_>, receive: &mut mpsc::Receiver<T>) -> Option<T> {
    writer.room().await;
    receive.recv().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_go_by_time_and_never_back() {
        let second = 1_000_000_000;
        assert_eq!(next_port_slot(0, 100 * second), 50);
        assert_eq!(next_port_slot(50, 101 * second), 51, "quick trials go ahead of time");
        assert_eq!(next_port_slot(51, 102 * second), 52, "and are not caught up with");
        assert_eq!(next_port_slot(52, 180 * second), 90);
    }
}
