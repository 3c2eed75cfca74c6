//! One trial on agents: prepares all nodes, starts them at the same instant, merges their streams, then resets, judges and
//! commits. The controller sends nothing between the start and the end of a trial.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ccbench_proto::event::{Kind, NoData};
use ccbench_proto::schedule;
use ccbench_proto::units::Micros;
use ccbench_proto::wire::agent_client::AgentClient;
use ccbench_proto::{resolve, wire};
use ccbench_results::journal::NodeBoot;
use ccbench_results::model::{TrialKey, Verdict};
use ccbench_results::trial::TrialWriter;
use ccbench_results::verdict::Judge;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::transport::Channel;
use tracing::{debug, info};

use super::{Testbed, refusals};
use crate::agents::{AgentError, Agents, CALL_TIMEOUT, SentFiles, status_text};
use crate::backend::error::BackendError;
use crate::backend::record_not_run;
use crate::clock;
use crate::clock_offset::ClockPrediction;
use crate::experiment::Experiment;
use crate::interrupt::Interrupt;
use crate::progress::TrialProgress;
use crate::recorder::TrialRecorder;
use crate::runner::Trial;
use crate::virtual_network;

/// Time from "all nodes are ready" to the first phase. In this time the start reaches every node, and the base RTT is measured on
/// the idle path.
const LEAD: Duration = Duration::from_millis(350);
/// A node that sends nothing for this long after the last phase counts as lost.
const REPORT_TIMEOUT: Duration = Duration::from_secs(12);
/// A prepared node that receives no request for this long resets itself.
const LEASE: Duration = Duration::from_secs(15);
/// Messages queued between the streams and the recorder, each of up to a thousand rows. If the table writer is slow, they wait;
/// this slows the streams down, and the agents count what they drop.
const MAX_QUEUED_MESSAGES: usize = 64;
const TICK: Duration = Duration::from_millis(500);

/// Runs a trial and commits it.
///
/// # Errors
/// The trial could not run. The results directory has a record of that.
pub(super) async fn run(
    trial: Trial<'_>,
    testbed: &mut Testbed,
    progress: &mut TrialProgress<'_>,
    interrupt: &mut Interrupt,
) -> Result<Verdict, BackendError> {
    let key = TrialKey {
        point_id: trial.scheduled.point_id,
        trial: trial.scheduled.trial,
        seed: trial.scheduled.seed,
        epoch: trial.dir.next_epoch(),
    };
    let not_run = |error: BackendError| match error {
        error @ BackendError::Agent(_) => record_not_run(trial.dir, key, error),
        other => other,
    };
    boot(trial, testbed, progress, interrupt).await.map_err(not_run)?;
    wait_for_drift(trial, testbed, progress, interrupt).await.map_err(not_run)?;
    let mut prepared =
        PreparedTrial::prepare(trial, testbed, key, interrupt).await.map_err(not_run)?;
    let left_before = testbed.agents.take_not_undone();
    let recorded = prepared.run(testbed, progress, interrupt).await;
    // The nodes are prepared, so reset them even after an error.
    let not_undone = testbed.agents.reset(&trial.experiment.id, key.epoch).await;
    // A node that was lost, or that has not answered Run, would keep its task beyond the trial.
    prepared.streams.shutdown().await;
    let (mut recorder, result) = recorded?;
    bound_clocks(testbed, &prepared.offsets, &mut recorder).await;
    if testbed.process.is_none() {
        for (node, failed) in left_before.iter().chain(&not_undone) {
            recorder.errors.push(format!("{node}: reset failed: {}", failed.join("; ")));
        }
    } else if !left_before.is_empty() || !not_undone.is_empty() {
        // Changes in a namespace of this machine disappear with the namespace.
        testbed.broken = true;
    }
    // The runtime keeps answering the nodes while the writer finishes. Simulated time does not wait for the writer's thread; the commit does.
    if virtual_network::now_ns().is_none() {
        recorder.writer.finished().await;
    }
    if let Err(error) = result {
        recorder.writer.abandon(&error.to_string())?;
        return Err(error);
    }
    let verdict = recorder.judge.finish(&recorder.done, &recorder.errors);
    info!("commit");
    recorder.writer.commit(&verdict)?;
    Ok(verdict)
}

/// Boots the nodes into the kernels that the plan names, if they run others.
async fn boot(
    trial: Trial<'_>,
    testbed: &mut Testbed,
    progress: &mut TrialProgress<'_>,
    interrupt: &mut Interrupt,
) -> Result<(), BackendError> {
    let releases = Experiment::kernel_releases(trial.point);
    let Testbed { agents, addresses, rebooted, .. } = testbed;
    let mut is_needed = false;
    for (node, release) in &releases {
        let runs = agents.by_node.get(node).map(|agent| &agent.info.kernel);
        if let Some(kernel) = runs.filter(|kernel| *kernel != release) {
            let text = format!("{node}: rebooting from kernel {kernel} into {release}");
            progress.message("reboot", &text);
            is_needed = true;
        }
    }
    let Experiment { id, options, .. } = trial.experiment;
    let booted = async {
        agents.boot(id, &releases, options.await_reboot, rebooted).await?;
        match is_needed {
            true => ready(trial, agents, addresses, options.await_nodes).await,
            false => Ok(()),
        }
    };
    tokio::select! {
        booted = booted => booted.map_err(BackendError::from),
        () = interrupt.requested() => Err(BackendError::Interrupted),
    }
}

/// Waits until the next measurement of the clocks will give their drift exactly enough for the trial.
async fn wait_for_drift(
    trial: Trial<'_>,
    testbed: &mut Testbed,
    progress: &TrialProgress<'_>,
    interrupt: &mut Interrupt,
) -> Result<(), BackendError> {
    let wait = testbed.agents.wait_for_drift(schedule::length(&trial.point.plan)).await?;
    if wait.is_zero() {
        return Ok(());
    }
    let seconds = wait.as_secs_f64();
    progress
        .message("clock", &format!("measuring the drift of the nodes' clocks for {seconds:.1} s"));
    tokio::select! {
        () = tokio::time::sleep(wait) => Ok(()),
        () = interrupt.requested() => Err(BackendError::Interrupted),
    }
}

/// Waits until every node would accept the trial, because a machine's interfaces may come up after its agent.
async fn ready(
    trial: Trial<'_>,
    agents: &Agents,
    addresses: &BTreeMap<String, String>,
    limit: Micros,
) -> Result<(), AgentError> {
    let until = clock::now() + limit.duration();
    let request = refusals::request(&trial.experiment.id, trial.point, addresses);
    loop {
        match agents.check(&request).await {
            Err(error) if clock::now() < until => debug!("not ready: {error}"),
            checked => return checked,
        }
        tokio::time::sleep(TICK).await;
    }
}

/// A trial whose nodes are prepared.
struct PreparedTrial<'a> {
    trial: Trial<'a>,
    key: TrialKey,
    /// The nodes' replies to Prepare.
    replies: BTreeMap<String, wire::PrepareReply>,
    /// The nodes' clocks before the trial.
    offsets: BTreeMap<String, ClockPrediction>,
    /// The tasks that read the nodes' streams.
    streams: JoinSet<()>,
}

impl<'a> PreparedTrial<'a> {
    /// Sends the nodes their files, measures the clocks and prepares the nodes.
    ///
    /// # Errors
    /// A node refuses or does not answer, or the user stops the run. No node stays prepared.
    async fn prepare(
        trial: Trial<'a>,
        testbed: &mut Testbed,
        key: TrialKey,
        interrupt: &mut Interrupt,
    ) -> Result<Self, BackendError> {
        // May take minutes, in which a clock measured before would drift.
        let sent = send_files(trial, testbed, interrupt).await?;
        let offsets = testbed.agents.clock_offsets().await?;
        let mut replies = match prepare(trial, testbed, key.epoch, &sent).await {
            Ok(replies) => replies,
            Err(error) => {
                let agents = &mut testbed.agents;
                let failed = agents.reset_unprepared(&trial.experiment.id, key.epoch).await;
                // Changes in a namespace of this machine disappear with the namespace.
                testbed.broken |= testbed.process.is_some() && !failed.is_empty();
                return Err(error.with_other_errors(failed.into_iter()).into());
            }
        };
        testbed.used = true;
        for (node, message) in std::mem::take(&mut testbed.rebooted) {
            let (Some(reply), Some(clock)) = (replies.get_mut(&node), offsets.get(&node)) else {
                continue;
            };
            let at_ns = clock.node_ns(clock::monotonic_ns());
            let kind = Some(Kind::NodeRebooted(NoData {}));
            reply.events.push(wire::Event { at_ns, subject: node, message, kind });
        }
        Ok(Self { trial, key, replies, offsets, streams: JoinSet::new() })
    }

    /// Starts all nodes at the same instant and records their streams until all end, one is lost, or the user stops the run.
    async fn run(
        &mut self,
        testbed: &Testbed,
        progress: &mut TrialProgress<'_>,
        interrupt: &mut Interrupt,
    ) -> Result<(TrialRecorder<'a>, Result<(), BackendError>), BackendError> {
        self.trial.dir.announce_trial(self.key)?;
        let t0_ns = clock::monotonic_ns() + LEAD.as_nanos() as u64;
        let mut recorder = self.begin(testbed, t0_ns, progress)?;
        let agents = &testbed.agents.by_node;
        let length = schedule::length(&self.trial.point.plan);
        info!(nodes = agents.len(), length_s = length.as_secs_f64(), "run");
        let Self { key, offsets, streams, .. } = self;
        let requests = agents.iter().map(|(node, agent)| {
            let start_at_ns = offsets.get(node).map_or(t0_ns, |offset| offset.node_ns(t0_ns));
            let request = wire::RunRequest { start_at_ns, epoch: key.epoch };
            (node.clone(), agent.client.clone(), request)
        });
        let receive = open_streams(streams, requests);
        let running = agents.keys().cloned().collect();
        let result =
            follow(&mut recorder, receive, running, progress, (t0_ns, length), interrupt).await;
        Ok((recorder, result))
    }

    /// Begins the record of the trial, which starts at `t0_ns` on the controller's clock.
    fn begin(
        &mut self,
        testbed: &Testbed,
        t0_ns: u64,
        progress: &TrialProgress<'_>,
    ) -> Result<TrialRecorder<'a>, BackendError> {
        let Trial { point, dir, .. } = self.trial;
        let utc_ns = clock::utc_minus_monotonic_ns();
        let clocks: BTreeMap<_, _> = self
            .offsets
            .iter()
            .map(|(node, offset)| (node.clone(), offset.node_clock(t0_ns, utc_ns)))
            .collect();
        progress.clocks(&clocks);
        let agents = &testbed.agents.by_node;
        let phases = schedule::phases(&point.plan);
        let infos = agents.iter().map(|(node, agent)| (node.clone(), agent.info.clone()));
        let judge = Judge::new(&point.plan, &infos.collect(), &clocks);
        let mut writer = dir.begin_announced(self.key, &phases, clocks)?;
        if testbed.process.is_none() {
            let boot = |info: &wire::NodeInfo| NodeBoot {
                boot_id: info.boot_id.clone(),
                kernel: info.kernel.clone(),
            };
            let boots = agents.iter().map(|(node, agent)| (node.clone(), boot(&agent.info)));
            writer.set_boots(boots.collect());
        }
        let mut recorder = TrialRecorder::new(writer, judge);
        recorder.record_prepared(std::mem::take(&mut self.replies))?;
        Ok(recorder)
    }
}

/// Measures the clocks again to bound their errors during the trial. Lost nodes are neither waited for nor judged.
async fn bound_clocks(
    testbed: &mut Testbed,
    offsets: &BTreeMap<String, ClockPrediction>,
    recorder: &mut TrialRecorder<'_>,
) {
    let done = &recorder.done;
    let end_ns = clock::monotonic_ns();
    let after = testbed.agents.clock_offsets_after(|node| done.contains_key(node)).await;
    for (node, clock) in recorder.writer.clocks_mut() {
        if let Some(before) = offsets.get(node) {
            before.bound(clock, after.get(node), end_ns);
        }
        if done.contains_key(node) {
            recorder.judge.clock(node, clock);
        }
    }
}

/// Sends the nodes their files. A prepared node resets itself after [`LEASE`], so this must be done before any is prepared.
async fn send_files(
    trial: Trial<'_>,
    testbed: &Testbed,
    interrupt: &mut Interrupt,
) -> Result<SentFiles, BackendError> {
    let files = |node: &str| trial.experiment.files_for(trial.point, node);
    tokio::select! {
        sent = testbed.agents.send_files(files) => Ok(sent?),
        () = interrupt.requested() => Err(BackendError::Interrupted),
    }
}

/// Prepares all nodes, which have these files. Tries again with the next port range while another socket occupies one of the ports.
async fn prepare(
    trial: Trial<'_>,
    testbed: &mut Testbed,
    epoch: u64,
    sent: &SentFiles,
) -> Result<BTreeMap<String, wire::PrepareReply>, AgentError> {
    for _ in 1..schedule::PORT_SLOTS {
        match prepare_once(trial, testbed, epoch, sent).await {
            Err(error @ AgentError::PortInUse { .. }) => info!("trying other ports: {error}"),
            result => return result,
        }
        let Experiment { id, options, .. } = trial.experiment;
        let rebooted = &mut testbed.rebooted;
        testbed.agents.await_all(id, epoch, options.await_nodes, rebooted).await?;
        testbed.port_slot += 1;
    }
    prepare_once(trial, testbed, epoch, sent).await
}

async fn prepare_once(
    trial: Trial<'_>,
    testbed: &Testbed,
    epoch: u64,
    sent: &SentFiles,
) -> Result<BTreeMap<String, wire::PrepareReply>, AgentError> {
    let plan_toml = resolve::to_toml(&trial.point.plan);
    let request = |node: &str| wire::PrepareRequest {
        run_id: trial.experiment.id.clone(),
        node: node.to_owned(),
        plan_toml: plan_toml.clone(),
        point_id: trial.scheduled.point_id,
        trial: u32::from(trial.scheduled.trial),
        seed: trial.scheduled.seed,
        epoch,
        generation: None,
        boot_id: None,
        file_digests: sent.get(node).cloned().unwrap_or_default(),
        addresses: testbed.addresses.clone().into_iter().collect(),
        port_slot: testbed.port_slot,
        lease_ms: LEASE.as_millis() as u32,
        files: match sent.contains_key(node) {
            true => BTreeMap::new(),
            false => trial.experiment.files_for(trial.point, node),
        },
    };
    testbed.agents.prepare(request).await
}

/// A message of a node's stream, or the stream's end.
enum StreamItem {
    Event(Box<wire::RunEvent>),
    /// The end of the stream, with its error if there was one.
    End(Option<String>),
}

/// Sends Run to the nodes and returns the messages of their streams, which the tasks in `streams` read.
fn open_streams(
    streams: &mut JoinSet<()>,
    requests: impl Iterator<Item = (String, AgentClient<Channel>, wire::RunRequest)>,
) -> mpsc::Receiver<(String, StreamItem)> {
    let (send, receive) = mpsc::channel(MAX_QUEUED_MESSAGES);
    for (node, client, request) in requests {
        debug!(node, "run request");
        streams.spawn(forward_stream(node, client, request, send.clone()));
    }
    receive
}

/// Forwards one node's stream and its end.
async fn forward_stream(
    node: String,
    mut client: AgentClient<Channel>,
    request: wire::RunRequest,
    send: mpsc::Sender<(String, StreamItem)>,
) {
    let error = match timeout(CALL_TIMEOUT, client.run(request)).await {
        Err(_) => Some(format!("did not start within {} s", CALL_TIMEOUT.as_secs())),
        Ok(Err(status)) => Some(status_text(&status)),
        Ok(Ok(response)) => {
            let mut stream = response.into_inner();
            loop {
                match stream.message().await {
                    Ok(Some(event)) => {
                        let item = StreamItem::Event(Box::new(event));
                        if send.send((node.clone(), item)).await.is_err() {
                            return;
                        }
                    }
                    Ok(None) => break None,
                    Err(status) => break Some(status_text(&status)),
                }
            }
        }
    };
    // Sending fails only after the trial has ended.
    let _ = send.send((node, StreamItem::End(error))).await;
}

/// Records messages until every node has ended its stream, one node is lost, or the user stops the run. `running` holds the nodes
/// whose stream has not ended.
async fn follow(
    recorder: &mut TrialRecorder<'_>,
    mut receive: mpsc::Receiver<(String, StreamItem)>,
    mut running: BTreeSet<String>,
    progress: &mut TrialProgress<'_>,
    (t0_ns, length): (u64, Micros),
    interrupt: &mut Interrupt,
) -> Result<(), BackendError> {
    let mut limit = clock::now() + LEAD + length.duration() + REPORT_TIMEOUT;
    // Aligns ticks with the trial's start, so that the end of a phase is noticed at once.
    let until_start = Duration::from_nanos(t0_ns.saturating_sub(clock::monotonic_ns()));
    let mut tick = tokio::time::interval_at(clock::now() + until_start, TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            biased;
            () = interrupt.requested() => return Err(BackendError::Interrupted),
            item = next(&recorder.writer, &mut receive) => match item {
                None => return Ok(()),
                Some((node, StreamItem::Event(event))) => {
                    limit = limit.max(clock::now() + REPORT_TIMEOUT);
                    progress.record(&node, &event);
                    recorder.record(&node, *event)?;
                }
                Some((node, StreamItem::End(None))) => {
                    debug!(node, "end of stream");
                    running.remove(&node);
                }
                Some((node, StreamItem::End(Some(error)))) => {
                    // The rest of the trial is useless without one of its nodes.
                    recorder.errors.push(format!("node {node}: stream failed: {error}"));
                    return Ok(());
                }
            },
            _ = tick.tick() => {
                let elapsed_ns = clock::monotonic_ns().saturating_sub(t0_ns);
                progress.tick(Micros::new(elapsed_ns / 1000));
                progress.judge(|| recorder.judge.so_far());
            }
            () = tokio::time::sleep_until(limit) => {
                if !recorder.writer.has_room() {
                    // The disk is slow, not the nodes.
                    limit = clock::now() + REPORT_TIMEOUT;
                    continue;
                }
                let nodes: Vec<String> = running.into_iter().collect();
                let limit_s = REPORT_TIMEOUT.as_secs();
                recorder.errors.push(format!(
                    "no report for {limit_s} s after the end of the trial from: {}", nodes.join(", ")
                ));
                return Ok(());
            }
        }
    }
}

/// Returns the next message once the writer has room for it.
async fn next<T>(writer: &TrialWriter<'_>, receive: &mut mpsc::Receiver<T>) -> Option<T> {
    writer.wait_for_room().await;
    receive.recv().await
}

#[cfg(test)]
mod tests {
    use hyper_util::rt::TokioIo;
    use tokio::net::UnixStream;
    use tonic::codegen::http::Uri;
    use tonic::transport::Endpoint;

    use super::*;

    #[test]
    fn no_stream_outlives_its_trial() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            // A node that does not answer.
            let connector = tower::service_fn(|_: Uri| {
                std::future::pending::<std::io::Result<TokioIo<UnixStream>>>()
            });
            let endpoint = Endpoint::from_static("http://agent.invalid");
            let client = AgentClient::new(endpoint.connect_with_connector_lazy(connector));
            let mut streams = JoinSet::new();
            let request = ("n1".to_owned(), client, wire::RunRequest::default());
            let mut messages = open_streams(&mut streams, [request].into_iter());
            tokio::task::yield_now().await;
            streams.shutdown().await;
            // The task held the only sender. Otherwise, it would report at its own time limit.
            assert!(messages.recv().await.is_none());
        });
    }
}
