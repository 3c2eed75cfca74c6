//! The agents of an experiment: connections, clock offsets, and calls that go to all agents at once.
//! Every call has a time limit; every error names the node and the step.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ccbench_proto::units::Micros;
use ccbench_proto::wire;
use ccbench_proto::wire::agent_client::AgentClient;
use futures_util::future::join_all;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};

use tracing::{debug, info, warn};

use crate::clock;
use crate::clock_offset::{ClockHistory, ClockOffset, ClockPrediction};
use crate::exit::ExitCode;
use crate::tls::{Tls, TlsError};

/// Longest wait for an agent's answer outside a trial.
pub const CALL_LIMIT: Duration = Duration::from_secs(15);
/// Between two attempts to reach a lost node.
const AWAIT_INTERVAL: Duration = Duration::from_millis(500);
/// Timestamp exchanges before and after a trial with a node that has another clock.
const CLOCK_EXCHANGES: usize = 64;

/// Why a call to an agent failed.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// It cannot be reached, or the call failed.
    #[error("node {node}: {step}: {reason}")]
    Call {
        /// Its name in the plan.
        node: String,
        /// The call.
        step: &'static str,
        /// Its answer, or why there is none.
        reason: String,
    },
    /// The node is reachable and refuses: it is busy, another controller has used it, it is not as it was found, or the
    /// certificate lacks a scope.
    #[error("node {node}: {step}: {reason}")]
    Refused {
        /// Its name in the plan.
        node: String,
        /// The call.
        step: &'static str,
        /// Why, and what to do.
        reason: String,
    },
    /// Another socket on the node has a port of the trial.
    #[error("node {node}: prepare: {reason}")]
    PortInUse {
        /// Its name in the plan.
        node: String,
        /// Which, and what has it.
        reason: String,
    },
    /// The node does not support what the plan asks for.
    #[error("node {node} cannot do what the plan asks for: {reason}")]
    Unsupported {
        /// Its name in the plan.
        node: String,
        /// What is missing, and the fix.
        reason: String,
    },
    /// A certificate cannot be read or used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl AgentError {
    /// The process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Call { .. } | Self::Refused { .. } | Self::PortInUse { .. } => {
                ExitCode::Unavailable
            }
            Self::Unsupported { .. } => ExitCode::Usage,
            Self::Tls(_) => ExitCode::Failure,
        }
    }
}

/// All agents of an experiment.
pub struct Agents {
    /// By the node's name in the plan.
    pub by_node: BTreeMap<String, Agent>,
}

/// One agent.
pub struct Agent {
    /// Its connection.
    pub client: AgentClient<Channel>,
    /// Its node, from Describe.
    pub info: wire::NodeInfo,
    /// The plan names the node's kernel, so that the node is rebooted if it runs another one.
    has_kernel_of_plan: bool,
    /// The node's generation, as its last reply had it.
    generation: AtomicU64,
    /// It listens on TCP, where messages are short.
    is_remote: bool,
    /// It reads this process's clock.
    shares_clock: bool,
    clock: ClockHistory,
}

/// Where an agent listens.
#[derive(Debug, Clone)]
pub enum Address {
    /// A Unix socket on this machine.
    Socket(PathBuf),
    /// `host:port`.
    Tcp(String),
}

impl Agents {
    /// Connects to every agent and describes its node.
    ///
    /// # Errors
    /// The first node that cannot be reached, with its address and a hint.
    pub async fn connect(
        addresses: BTreeMap<String, Address>,
        tls: Option<&Tls>,
    ) -> Result<Self, AgentError> {
        let connects = addresses.into_iter().map(|(node, address)| async move {
            info!(node, ?address, "connect");
            let channel = connect(&node, &address, tls).await?;
            let mut client =
                AgentClient::new(channel).max_decoding_message_size(wire::MESSAGE_LIMIT);
            let describe = client.describe(wire::DescribeRequest {});
            let info = call(&node, "describe", describe).await?;
            info!(node, kernel = info.kernel, agent = info.agent_version, "describe");
            let generation = info.generation.into();
            let is_remote = matches!(address, Address::Tcp(_));
            let shares_clock = clock::is_shared(&info);
            let clock = ClockHistory::default();
            let agent = Agent {
                client,
                info,
                has_kernel_of_plan: false,
                generation,
                is_remote,
                shares_clock,
                clock,
            };
            Ok::<_, AgentError>((node, agent))
        });
        let by_node = join_all(connects).await.into_iter().collect::<Result<_, _>>()?;
        Ok(Self { by_node })
    }

    /// Asks every agent whether this client may run trials: Reset needs the same scope as Prepare, and changes nothing if no trial
    /// is to be reset.
    ///
    /// # Errors
    /// The first node that refuses, because of the scope or because it is busy, or does not answer.
    pub async fn check_access(&self, run_id: &str) -> Result<(), AgentError> {
        info!(nodes = self.by_node.len(), "check access");
        let calls = self.by_node.iter().map(|(node, agent)| {
            let mut client = agent.client.clone();
            let request = wire::ResetRequest { run_id: run_id.to_owned(), epoch: 0 };
            async move { call(node, "check access", client.reset(request)).await.map(drop) }
        });
        join_all(calls).await.into_iter().collect()
    }

    /// Asks every node whether it would refuse to prepare a trial. An agent of an earlier version does not know it.
    ///
    /// # Errors
    /// The first node that would refuse, or does not answer.
    pub async fn check(
        &self,
        request: impl Fn(&str) -> wire::PrepareRequest,
    ) -> Result<(), AgentError> {
        info!(nodes = self.by_node.len(), "check");
        let calls = self.by_node.iter().map(|(node, agent)| {
            let (mut client, request) = (agent.client.clone(), request(node));
            async move {
                let checked = async {
                    match client.check(request).await {
                        Err(status) if status.code() == tonic::Code::Unimplemented => {
                            Ok(tonic::Response::new(wire::CheckReply {}))
                        }
                        checked => checked,
                    }
                };
                call(node, "check", checked).await.map(drop)
            }
        });
        join_all(calls).await.into_iter().collect()
    }

    /// Prepares every node; `request` lacks the generation.
    ///
    /// # Errors
    /// The first node that refuses or does not answer.
    pub async fn prepare(
        &self,
        request: impl Fn(&str) -> wire::PrepareRequest,
    ) -> Result<BTreeMap<String, wire::PrepareReply>, AgentError> {
        info!(nodes = self.by_node.len(), "prepare");
        let calls = self.by_node.iter().map(|(node, agent)| {
            let generation = Some(agent.generation.load(Ordering::Relaxed));
            let boot_id = Some(agent.info.boot_id.clone()).filter(|boot_id| !boot_id.is_empty());
            let mut request = wire::PrepareRequest { generation, boot_id, ..request(node) };
            let mut client = agent.client.clone();
            async move {
                if agent.is_remote {
                    for (name, content) in std::mem::take(&mut request.files) {
                        let sha256 = send_file(node, &mut client, content).await?;
                        request.file_digests.insert(name, sha256);
                    }
                }
                let reply = call(node, "prepare", client.prepare(request)).await?;
                agent.generation.store(reply.generation, Ordering::Relaxed);
                Ok((node.clone(), reply))
            }
        });
        join_all(calls).await.into_iter().collect()
    }

    /// Waits until every node answers again, and frees it of this run's trials up to `epoch`. `rebooted` gets the nodes that have been
    /// rebooted, each once and with a description, also if another node does not answer.
    ///
    /// # Errors
    /// A node does not answer within `limit`, another controller has used it meanwhile, or it has another kernel.
    pub async fn await_all(
        &mut self,
        run_id: &str,
        epoch: u64,
        limit: Micros,
        rebooted: &mut BTreeMap<String, String>,
    ) -> Result<(), AgentError> {
        let until = clock::now() + limit.duration();
        let calls = self.by_node.iter_mut().map(|(node, agent)| async move {
            loop {
                let error = match agent.recover(node, run_id, epoch).await {
                    Err(error @ AgentError::Call { .. }) => error,
                    recovered => return recovered.map(|what| (node, what)),
                };
                if clock::now() >= until {
                    return Err(error);
                }
                tokio::time::sleep(AWAIT_INTERVAL).await;
            }
        });
        let mut awaited = Ok(());
        for recovered in join_all(calls).await {
            match recovered {
                Ok((node, Some(what))) => note(rebooted, node, &what),
                Ok((_, None)) => {}
                Err(error) => awaited = awaited.and(Err(error)),
            }
        }
        awaited
    }

    /// Reboots every node that runs another kernel than the one of these releases, and waits at most `limit` until it is back.
    /// `rebooted` gets the nodes, each with a description, also if another node fails.
    ///
    /// # Errors
    /// The first node that refuses, is not back in time, or is back with another kernel; or it is the same machine as another node,
    /// or as this one.
    pub async fn boot(
        &mut self,
        run_id: &str,
        releases: &BTreeMap<String, String>,
        limit: Micros,
        rebooted: &mut BTreeMap<String, String>,
    ) -> Result<(), AgentError> {
        for node in releases.keys() {
            self.check_machine(node)?;
        }
        let calls =
            self.by_node.iter_mut().filter_map(|(node, agent)| {
                let release = releases.get(node)?;
                agent.has_kernel_of_plan = true;
                if agent.info.kernel == *release {
                    return None;
                }
                Some(async move {
                    agent.boot(node, run_id, release, limit).await.map(|what| (node, what))
                })
            });
        let mut all = Ok(());
        for booted in join_all(calls).await {
            match booted {
                Ok((node, what)) => note(rebooted, node, &what),
                Err(error) => all = all.and(Err(error)),
            }
        }
        all
    }

    /// Refuses a reboot of a machine that is more than this node.
    fn check_machine(&self, node: &str) -> Result<(), AgentError> {
        let Some(agent) = self.by_node.get(node) else { return Ok(()) };
        let refused = |reason: String| {
            let (node, step) = (node.to_owned(), "reboot");
            Err(AgentError::Refused { node, step, reason })
        };
        let boot_id = &agent.info.boot_id;
        if boot_id.is_empty() {
            return refused("its agent does not know the boot of its machine (no /proc), so a reboot cannot be verified".to_owned());
        }
        if agent.shares_clock {
            let why = "it is this machine, on which ccbench runs: leave out its `kernel_release`, or run ccbench on another one";
            return refused(why.to_owned());
        }
        let same = |(other, of): &(&String, &Agent)| *other != node && of.info.boot_id == *boot_id;
        match self.by_node.iter().find(same) {
            Some((other, _)) => refused(format!(
                "it is the same machine as node {other}: only a node with a machine of its own is rebooted"
            )),
            None => Ok(()),
        }
    }

    /// Measures the offset of every node's clock before a trial.
    pub async fn clock_offsets(&mut self) -> Result<BTreeMap<String, ClockPrediction>, AgentError> {
        let measured = self.by_node.iter_mut().map(|(node, agent)| async move {
            let measured = agent.measure_clock_offset(node).await?;
            Ok((node.clone(), agent.clock.add(measured)))
        });
        join_all(measured).await.into_iter().collect()
    }

    /// Measures the offset of the clocks of `nodes` after a trial. A node that does not answer is missing.
    pub async fn clock_offsets_after(
        &mut self,
        nodes: impl Fn(&str) -> bool,
    ) -> BTreeMap<String, ClockOffset> {
        let asked = self.by_node.iter_mut().filter(|(node, _)| nodes(node));
        let measured = asked.map(|(node, agent)| async move {
            let measured = agent.measure_clock_offset(node).await;
            let measured = measured.inspect_err(|error| warn!("{error}")).ok()?;
            agent.clock.add(measured);
            Some((node.clone(), measured))
        });
        join_all(measured).await.into_iter().flatten().collect()
    }

    /// Undoes every change of this run's trial `epoch` on every node; returns what could not be undone, by node.
    pub async fn reset(&self, run_id: &str, epoch: u64) -> BTreeMap<String, Vec<String>> {
        info!(nodes = self.by_node.len(), "reset");
        let calls = self.by_node.iter().map(|(node, agent)| {
            let mut client = agent.client.clone();
            let request = wire::ResetRequest { run_id: run_id.to_owned(), epoch };
            async move {
                let reply = call(node, "reset", client.reset(request)).await;
                (node.clone(), reply.map_or_else(|e| vec![e.to_string()], |reply| reply.failed))
            }
        });
        join_all(calls).await.into_iter().filter(|(_, failed)| !failed.is_empty()).collect()
    }
}

async fn connect(node: &str, address: &Address, tls: Option<&Tls>) -> Result<Channel, AgentError> {
    let fail = |reason| AgentError::Call { node: node.to_owned(), step: "connect", reason };
    match address {
        Address::Socket(path) => {
            let path = path.clone();
            let shown = path.display().to_string();
            let connector = tower::service_fn(move |_: tonic::codegen::http::Uri| {
                let path = path.clone();
                async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) }
            });
            let endpoint = Endpoint::from_static("http://agent.invalid");
            let connected = timeout(CALL_LIMIT, endpoint.connect_with_connector(connector)).await;
            connected
                .map_err(|_| fail(format!("{shown}: no answer")))?
                .map_err(|e| fail(format!("{shown}: {}", chain(&e))))
        }
        Address::Tcp(target) => {
            let scheme = if tls.is_some() { "https" } else { "http" };
            let mut endpoint = Endpoint::from_shared(format!("{scheme}://{target}"))
                .map_err(|e| fail(format!("{target}: {e}; write it as \"host:port\"")))?
                .connect_timeout(Duration::from_secs(5))
                .tcp_nodelay(true)
                .http2_keep_alive_interval(wire::KEEPALIVE_INTERVAL)
                .keep_alive_timeout(wire::KEEPALIVE_TIMEOUT)
                .keep_alive_while_idle(true);
            if let Some(tls) = tls {
                endpoint = tls.apply(endpoint).map_err(|e| fail(chain(&e)))?;
            } else if !loopback(target) {
                return Err(fail(format!(
                    "{target} is not a loopback address and needs certificates: add `--pki DIR` \
                     (`ccbench pki init DIR` makes them)"
                )));
            }
            endpoint.connect().await.map_err(|e| match tls.and_then(|tls| tls.refusal(&e)) {
                Some(why) => fail(format!("{target}: {why}")),
                None => fail(format!(
                    "{target}: {}; is `ccbench-agent serve --listen tcp:…` running there, with a \
                     certificate of the same authority?",
                    chain(&e)
                )),
            })
        }
    }
}

fn loopback(target: &str) -> bool {
    let host = target.rsplit_once(':').map_or(target, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

impl Agent {
    /// Exchanges timestamps many times and keeps the exchange with the smallest round-trip time, which has the smallest
    /// bound. A node that reads this machine's clock needs no exchange.
    async fn measure_clock_offset(&self, node: &str) -> Result<ClockOffset, AgentError> {
        if self.shares_clock {
            return Ok(ClockOffset::shared(clock::monotonic_ns()));
        }
        let mut best = self.exchange_timestamps(node).await?;
        for _ in 1..CLOCK_EXCHANGES {
            let measured = self.exchange_timestamps(node).await?;
            if measured.rtt_ns < best.rtt_ns {
                best = measured;
            }
        }
        let ClockOffset { offset_ns, error_bound_ns, .. } = best;
        info!(node, offset_ns, error_bound_ns, "clock");
        Ok(best)
    }

    async fn exchange_timestamps(&self, node: &str) -> Result<ClockOffset, AgentError> {
        let mut client = self.client.clone();
        let t1_ns = clock::monotonic_ns();
        let wire::ClockReply { received_ns, sent_ns, .. } =
            call(node, "clock", client.clock(wire::ClockRequest {})).await?;
        let t4_ns = clock::monotonic_ns();
        ClockOffset::from_timestamps(t1_ns, received_ns, sent_ns, t4_ns).ok_or_else(|| {
            let (node, step) = (node.to_owned(), "clock");
            let reason = format!(
                "received at {received_ns} ns and sent at {sent_ns} ns in {} ns is impossible",
                t4_ns - t1_ns
            );
            AgentError::Call { node, step, reason }
        })
    }

    /// Learns the node's generation after a call whose reply may have been lost, and frees the node of a trial of this run. Returns a
    /// description if it has been rebooted.
    async fn recover(
        &mut self,
        node: &str,
        run_id: &str,
        epoch: u64,
    ) -> Result<Option<String>, AgentError> {
        let info = call(node, "describe", self.client.describe(wire::DescribeRequest {})).await?;
        let known = self.generation.load(Ordering::Relaxed);
        check_ours(node, run_id, known, &info)?;
        let rebooted = match self.has_kernel_of_plan {
            // A kernel that was booted once: the next trial boots it again.
            true => boot_of(&self.info, &info),
            false => reboot(node, &self.info, &info)?,
        };
        self.generation.store(info.generation, Ordering::Relaxed);
        let request = wire::ResetRequest { run_id: run_id.to_owned(), epoch };
        call(node, "reset", self.client.reset(request)).await?;
        if rebooted.is_some() {
            self.info = info;
        }
        Ok(rebooted)
    }

    /// Reboots the node into this kernel, and waits until its agent is back. Returns a description.
    async fn boot(
        &mut self,
        node: &str,
        run_id: &str,
        release: &str,
        limit: Micros,
    ) -> Result<String, AgentError> {
        info!(node, release, "reboot");
        let request = wire::RebootRequest {
            run_id: run_id.to_owned(),
            kernel_release: release.to_owned(),
            generation: Some(self.generation.load(Ordering::Relaxed)),
            boot_id: Some(self.info.boot_id.clone()),
        };
        let asked = call(node, "reboot", self.client.reboot(request)).await;
        let unanswered = match asked {
            Ok(wire::RebootReply { boot_loader, entry }) => {
                info!(node, boot_loader, entry, "reboots");
                None
            }
            // The machine may be off before its reply is here.
            Err(AgentError::Call { reason, .. }) => Some(reason),
            Err(error) => return Err(error),
        };
        let until = clock::now() + limit.duration();
        let mut answer = unanswered.unwrap_or_else(|| "it was going to reboot".to_owned());
        while clock::now() < until {
            tokio::time::sleep(AWAIT_INTERVAL).await;
            let described = self.client.describe(wire::DescribeRequest {});
            match call(node, "describe", described).await {
                Ok(now) if now.boot_id == self.info.boot_id => {
                    answer = format!("it is still up with kernel {}", now.kernel);
                }
                Ok(now) => return self.booted(node, run_id, release, now),
                Err(AgentError::Call { reason, .. }) => answer = reason,
                Err(error) => return Err(error),
            }
        }
        let (node, step) = (node.to_owned(), "reboot");
        let reason = format!(
            "it is not back with kernel {release} within {limit} ({answer}): look at its console; if it only takes longer, use \
             `--await-reboot TIME`; a power cycle boots its usual kernel"
        );
        Err(AgentError::Refused { node, step, reason })
    }

    /// The node is back after a reboot, as `now` describes it.
    fn booted(
        &mut self,
        node: &str,
        run_id: &str,
        release: &str,
        now: wire::NodeInfo,
    ) -> Result<String, AgentError> {
        check_ours(node, run_id, self.generation.load(Ordering::Relaxed), &now)?;
        let before = std::mem::replace(&mut self.info, now);
        self.generation.store(self.info.generation, Ordering::Relaxed);
        // Its clock began anew.
        self.clock = ClockHistory::default();
        let wire::NodeInfo { kernel, boot_id, .. } = &self.info;
        if kernel != release {
            let (node, step) = (node.to_owned(), "reboot");
            let reason = format!(
                "it was rebooted, but runs kernel {kernel}, not {release}: the boot loader took another entry, or {release} did not \
                 start; look at its console and at the boot loader's environment (`grub-editenv list`, `bootctl status`)"
            );
            return Err(AgentError::Refused { node, step, reason });
        }
        Ok(format!(
            "rebooted into kernel {kernel}, which the plan names (boot {boot_id}, before {} with kernel {})",
            before.boot_id, before.kernel
        ))
    }
}

/// What a controller does with a node that answers again after a call whose reply may have been lost: `generation` is the one it
/// knows, `before` and `now` are descriptions of the node. Returns a description of the reboot, if there was one; then the
/// node may be used for `run_id` again.
///
/// # Errors
/// Another run has used the node meanwhile, or it has another kernel.
#[doc(hidden)]
pub fn after_loss(
    node: &str,
    run_id: &str,
    generation: u64,
    before: &wire::NodeInfo,
    now: &wire::NodeInfo,
) -> Result<Option<String>, AgentError> {
    check_ours(node, run_id, generation, now)?;
    reboot(node, before, now)
}

/// Refuses a node that another run has used since its agent had accepted `generation` Prepares.
fn check_ours(
    node: &str,
    run_id: &str,
    generation: u64,
    now: &wire::NodeInfo,
) -> Result<(), AgentError> {
    // An agent that lost its state directory, by a reboot for example, counts from 0.
    if now.generation <= generation || now.last_run_id == run_id {
        return Ok(());
    }
    let (node, step) = (node.to_owned(), "describe");
    let reason = format!("run {} has used this node meanwhile", now.last_run_id);
    Err(AgentError::Refused { node, step, reason })
}

/// A description of the reboot between two descriptions of a node, if there was one.
fn boot_of(before: &wire::NodeInfo, now: &wire::NodeInfo) -> Option<String> {
    let is_same = before.boot_id == now.boot_id;
    if is_same || before.boot_id.is_empty() || now.boot_id.is_empty() {
        return None;
    }
    Some(format!(
        "rebooted since the last attempt (boot {}, before {})",
        now.boot_id, before.boot_id
    ))
}

/// Adds a reboot of a node to those since the last attempt at a trial.
fn note(rebooted: &mut BTreeMap<String, String>, node: &str, what: &str) {
    let known = rebooted.entry(node.to_owned()).or_default();
    if !known.is_empty() {
        known.push_str("; then ");
    }
    known.push_str(what);
}

/// What has happened if a node has been rebooted between two descriptions.
///
/// # Errors
/// Into another kernel: the trials of a run are of one.
fn reboot(
    node: &str,
    before: &wire::NodeInfo,
    now: &wire::NodeInfo,
) -> Result<Option<String>, AgentError> {
    let Some(what) = boot_of(before, now) else { return Ok(None) };
    let [earlier, kernel] = [before, now].map(|info| (&info.kernel, &info.kernel_version));
    if earlier != kernel {
        let (node, step) = (node.to_owned(), "describe");
        let reason = format!(
            "it has been rebooted into another kernel ({} {}, before {} {}); boot the earlier one, and run `--resume`",
            kernel.0, kernel.1, earlier.0, earlier.1
        );
        return Err(AgentError::Refused { node, step, reason });
    }
    Ok(Some(what))
}

/// Measures the offset of an agent's clock by one exchange of timestamps, `count` times.
///
/// # Errors
/// The agent does not answer.
#[doc(hidden)]
pub async fn exchange_timestamps(
    socket: PathBuf,
    count: usize,
) -> Result<Vec<ClockOffset>, AgentError> {
    const NODE: &str = "node";
    let addresses = BTreeMap::from([(NODE.to_owned(), Address::Socket(socket))]);
    let agents = Agents::connect(addresses, None).await?;
    let mut offsets = Vec::with_capacity(count);
    for _ in 0..count {
        offsets.push(agents.by_node[NODE].exchange_timestamps(NODE).await?);
    }
    Ok(offsets)
}

/// Sends a file in parts; returns its SHA-256 as the node has it.
async fn send_file(
    node: &str,
    client: &mut AgentClient<Channel>,
    content: Vec<u8>,
) -> Result<String, AgentError> {
    let chunks: Vec<_> = content
        .chunks(wire::FILE_CHUNK)
        .map(|chunk| wire::FileChunk { data: chunk.to_vec() })
        .collect();
    let sent = call(node, "send a file", client.put_file(tokio_stream::iter(chunks))).await?;
    Ok(sent.sha256)
}

/// Waits for one answer, at most [`CALL_LIMIT`].
pub async fn call<T>(
    node: &str,
    step: &'static str,
    answer: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, AgentError> {
    let fail = |reason| AgentError::Call { node: node.to_owned(), step, reason };
    debug!(node, "{step} request");
    match timeout(CALL_LIMIT, answer).await {
        Ok(Ok(response)) => {
            debug!(node, "{step} reply");
            Ok(response.into_inner())
        }
        Ok(Err(status)) => Err(refused(node, step, &status)),
        Err(_) => Err(fail(format!("no answer within {} s", CALL_LIMIT.as_secs()))),
    }
}

fn refused(node: &str, step: &'static str, status: &tonic::Status) -> AgentError {
    use tonic::Code;
    let (node, reason) = (node.to_owned(), status.message().to_owned());
    match status.code() {
        Code::InvalidArgument | Code::Unimplemented => AgentError::Unsupported { node, reason },
        Code::FailedPrecondition | Code::PermissionDenied | Code::Unauthenticated => {
            AgentError::Refused { node, step, reason }
        }
        Code::Aborted => AgentError::PortInUse { node, reason },
        _ => AgentError::Call { node, step, reason },
    }
}

/// An error with its causes: tonic prints only the outermost.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_scope_is_a_refusal_and_no_lost_node() {
        for code in [tonic::Code::PermissionDenied, tonic::Code::Unauthenticated] {
            let status = tonic::Status::new(code, "needs the scope `bpf`");
            let error = refused("n1", "prepare", &status);
            assert!(matches!(error, AgentError::Refused { .. }), "{error}");
        }
    }

    #[test]
    fn a_reboot_is_described_unless_it_is_into_another_kernel() {
        let info = |boot_id: &str, kernel: &str| wire::NodeInfo {
            boot_id: boot_id.to_owned(),
            kernel: kernel.to_owned(),
            ..wire::NodeInfo::default()
        };
        let between = |before: (&str, &str), now: (&str, &str)| {
            reboot("n1", &info(before.0, before.1), &info(now.0, now.1)).map_err(|e| e.to_string())
        };
        assert_eq!(between(("b1", "6.1"), ("b1", "6.1")), Ok(None));
        assert_eq!(between(("", "6.1"), ("b1", "6.1")), Ok(None), "an agent that has no /proc");
        let rebooted = between(("b1", "6.1"), ("b2", "6.1")).unwrap();
        assert!(rebooted.is_some_and(|text| text.contains("boot b2, before b1")));
        let error = between(("b1", "6.1"), ("b2", "6.12")).unwrap_err();
        assert!(error.contains("node n1: ") && error.contains("another kernel (6.12 "), "{error}");
    }

    #[test]
    fn reboots_since_the_last_attempt_are_one_text() {
        let mut rebooted = BTreeMap::new();
        note(&mut rebooted, "n1", "after a crash");
        note(&mut rebooted, "n1", "into its kernel");
        assert_eq!(rebooted["n1"], "after a crash; then into its kernel");
    }

    #[test]
    fn another_run_on_the_node_ends_this_one_also_after_a_reboot() {
        let info = |generation, last_run_id: &str| wire::NodeInfo {
            generation,
            last_run_id: last_run_id.to_owned(),
            ..wire::NodeInfo::default()
        };
        assert!(check_ours("n1", "mine", 4, &info(0, "")).is_ok(), "its state is gone");
        assert!(check_ours("n1", "mine", 4, &info(5, "mine")).is_ok());
        let error = check_ours("n1", "mine", 4, &info(5, "other")).unwrap_err().to_string();
        assert!(error.contains("run other has used this node"), "{error}");
    }

    #[test]
    fn only_loopback_needs_no_certificates() {
        assert!(loopback("127.0.0.1:7700") && loopback("[::1]:7700") && loopback("localhost:7700"));
        assert!(!loopback("10.0.0.1:7700") && !loopback("node1.example:7700"));
    }
}
