//! The agents of an experiment: connections, clock offsets, and calls that go to all agents at once. Every call has a time limit,
//! and every error names the node and the step.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ccbench_proto::plan::node::is_loopback;
use ccbench_proto::wire;
use ccbench_proto::wire::agent_client::AgentClient;
use futures_util::future::join_all;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};

use tracing::{debug, info};

use crate::clock;
use crate::clock_offset::{ClockHistory, ClockOffset};
use crate::exit::ExitCode;
use crate::tls::{Tls, TlsError};
use crate::virtual_network;
use causes::{CertificateRefusal, chain, is_refused, refused_certificate};

mod causes;
mod clocks;
mod files;
mod free;
mod lost;

pub use causes::status_text;
#[doc(hidden)]
pub use clocks::exchange_timestamps;
pub use files::SentFiles;
pub use free::free;
#[doc(hidden)]
pub use lost::after_loss;

/// Time limit of a call to an agent outside a trial.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// Number of timestamp exchanges before and after a trial with a node that does not share the controller's clock.
const CLOCK_EXCHANGES: usize = 64;

/// Why a call to an agent failed.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The node cannot be reached, or the call failed.
    #[error("node {node}: {step}: {reason}")]
    Call {
        /// The node's name in the plan.
        node: String,
        /// The call.
        step: &'static str,
        /// The agent's answer, or why there is none.
        reason: String,
    },
    /// The node is reachable but refuses: it is busy, another controller has used it, it is not in the state in which it was
    /// found, or the certificate lacks a scope.
    #[error("node {node}: {step}: {reason}")]
    Refused {
        /// The node's name in the plan.
        node: String,
        /// The call.
        step: &'static str,
        /// Why, and what to do.
        reason: String,
    },
    /// Another socket on the node occupies a port of the trial.
    #[error("node {node}: prepare: {reason}")]
    PortInUse {
        /// The node's name in the plan.
        node: String,
        /// Which port, and what occupies it.
        reason: String,
    },
    /// The node does not support what the plan asks for.
    #[error("node {node} cannot do what the plan asks for: {reason}")]
    Unsupported {
        /// The node's name in the plan.
        node: String,
        /// What is missing, and the fix.
        reason: String,
    },
    /// Agents that are not on loopback, but no certificates.
    #[error(
        "{nodes}: a connection to an address that is not loopback needs certificates; add `--pki DIR` (`ccbench pki init DIR` makes \
         them)"
    )]
    NoCertificates {
        /// The nodes' names in the plan, each with its address.
        nodes: String,
    },
    /// A certificate cannot be read or used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl AgentError {
    /// Returns the process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Call { .. }
            | Self::Refused { .. }
            | Self::PortInUse { .. }
            | Self::NoCertificates { .. } => ExitCode::Unavailable,
            Self::Unsupported { .. } => ExitCode::Usage,
            Self::Tls(_) => ExitCode::Failure,
        }
    }

    /// Adds the agent's address if it did not answer.
    fn at(mut self, address: &Address) -> Self {
        if let (Self::Call { reason, .. }, Address::Tcp(target)) = (&mut self, address) {
            *reason = format!("{target}: {reason}");
        }
        self
    }

    /// Appends the errors of other nodes to the reason of this one. Nodes with the same refusal are named together.
    pub fn with_other_errors(mut self, others: impl Iterator<Item = Self>) -> Self {
        let mut apart: Vec<Self> = Vec::new();
        for other in others {
            if !self.takes(&other) && !apart.iter_mut().any(|one| one.takes(&other)) {
                apart.push(other);
            }
        }
        let reason = match &mut self {
            Self::Call { reason, .. }
            | Self::Refused { reason, .. }
            | Self::PortInUse { reason, .. }
            | Self::Unsupported { reason, .. } => reason,
            Self::NoCertificates { .. } | Self::Tls(_) => return self,
        };
        for other in apart {
            *reason += &format!("; {other}");
        }
        self
    }
}

/// Returns the results of all nodes, or one error that names every node that failed.
fn all_or_error<T>(results: Vec<Result<T, AgentError>>) -> Result<Vec<T>, AgentError> {
    let (mut found, mut errors) = (Vec::with_capacity(results.len()), Vec::new());
    for result in results {
        match result {
            Ok(one) => found.push(one),
            Err(error) => errors.push(error),
        }
    }
    let mut errors = errors.into_iter();
    match errors.next() {
        None => Ok(found),
        Some(first) => Err(first.with_other_errors(errors)),
    }
}

/// All agents of an experiment.
pub struct Agents {
    /// The agents by their node's name in the plan.
    pub by_node: BTreeMap<String, Agent>,
}

/// One agent.
pub struct Agent {
    /// The connection to it.
    pub client: AgentClient<Channel>,
    address: Address,
    /// The node's description, from Describe.
    pub info: wire::NodeInfo,
    /// Whether the plan names the node's kernel. If so, the controller reboots the node when it runs another kernel.
    has_kernel_of_plan: bool,
    /// A kernel that the node did not boot although it was rebooted into it.
    not_booted: Option<String>,
    /// What resets after losses of the node, and after a failed Prepare, could not undo, since the last trial.
    not_undone: BTreeSet<String>,
    /// The node's generation in its last reply.
    generation: AtomicU64,
    /// Whether it reads the same clock as this process.
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
    /// Names every node that cannot be reached, with its address and a hint.
    pub async fn connect(
        addresses: BTreeMap<String, Address>,
        tls: Option<&Tls>,
    ) -> Result<Self, AgentError> {
        if tls.is_none() {
            check_loopback(&addresses)?;
        }
        let connects = addresses.into_iter().map(|(node, address)| async move {
            let agent = Agent::connect(&node, address, tls).await?;
            Ok::<_, AgentError>((node, agent))
        });
        let by_node = all_or_error(join_all(connects).await)?.into_iter().collect();
        Ok(Self { by_node })
    }

    /// Asks every agent whether this client may run trials. Uses Reset, which needs the same scope as Prepare and changes nothing
    /// if there is no trial to reset.
    ///
    /// # Errors
    /// Names every node that refuses, because of the scope or because it is busy, and every node that does not answer.
    pub async fn check_access(&self, run_id: &str) -> Result<(), AgentError> {
        info!(nodes = self.by_node.len(), "check access");
        let calls = self.by_node.iter().map(|(node, agent)| {
            let mut client = agent.client.clone();
            let request = wire::ResetRequest { run_id: run_id.to_owned(), epoch: 0 };
            async move { call(node, "check access", client.reset(request)).await.map(drop) }
        });
        all_or_error(join_all(calls).await).map(drop)
    }

    /// Asks every node whether it would refuse to prepare a trial. Agents that do not know this call count as willing.
    ///
    /// # Errors
    /// Names every node that would refuse or does not answer.
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
        all_or_error(join_all(calls).await).map(drop)
    }

    /// Prepares every node. Adds generation and boot ID to `request`.
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
            let request = wire::PrepareRequest { generation, boot_id, ..request(node) };
            let mut client = agent.client.clone();
            async move {
                let reply = call(node, "prepare", client.prepare(request)).await?;
                agent.generation.store(reply.generation, Ordering::Relaxed);
                Ok((node.clone(), reply))
            }
        });
        join_all(calls).await.into_iter().collect()
    }

    /// Undoes every change of this run's trial `epoch` on every node. Returns by node what could not be undone.
    pub async fn reset(&self, run_id: &str, epoch: u64) -> BTreeMap<String, Vec<String>> {
        let replies = self.reset_each(run_id, epoch).await.into_iter();
        let failed = replies.map(|(node, reply)| {
            (node, reply.map_or_else(|e| vec![e.to_string()], |reply| reply.failed))
        });
        failed.filter(|(_, failed)| !failed.is_empty()).collect()
    }

    async fn reset_each(
        &self,
        run_id: &str,
        epoch: u64,
    ) -> Vec<(String, Result<wire::ResetReply, AgentError>)> {
        info!(nodes = self.by_node.len(), "reset");
        let calls = self.by_node.iter().map(|(node, agent)| {
            let mut client = agent.client.clone();
            let request = wire::ResetRequest { run_id: run_id.to_owned(), epoch };
            async move { (node.clone(), call(node, "reset", client.reset(request)).await) }
        });
        join_all(calls).await
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
            let connected = timeout(CALL_TIMEOUT, endpoint.connect_with_connector(connector)).await;
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
            }
            let refusal = |e: &tonic::transport::Error| {
                let by_node = || Some(refused_certificate(&chain(e))?.to_string());
                tls.and_then(|tls| tls.refusal(e)).or_else(by_node)
            };
            let connected = match virtual_network::connector() {
                None => endpoint.connect().await,
                Some(connect) => {
                    let target = target.clone();
                    let connector = tower::service_fn(move |_: tonic::codegen::http::Uri| {
                        let opened = connect(target.clone());
                        async move { opened.await.map(TokioIo::new) }
                    });
                    endpoint.connect_with_connector(connector).await
                }
            };
            connected.map_err(|e| match refusal(&e) {
                Some(why) => fail(format!("{target}: {why}")),
                None if is_refused(&e) => fail(format!(
                    "{target}: {}; is `ccbench-agent serve --listen tcp:…` running there?",
                    chain(&e)
                )),
                None => fail(format!("{target}: {}", chain(&e))),
            })
        }
    }
}

/// Checks before connections without certificates that every agent is on loopback.
///
/// # Errors
/// Names every node whose agent is not.
fn check_loopback(addresses: &BTreeMap<String, Address>) -> Result<(), AgentError> {
    let others = addresses.iter().filter_map(|(node, address)| match address {
        Address::Tcp(target) if !is_loopback(target) => Some(format!("node {node} ({target})")),
        Address::Tcp(_) | Address::Socket(_) => None,
    });
    let nodes: Vec<String> = others.collect();
    if nodes.is_empty() {
        return Ok(());
    }
    Err(AgentError::NoCertificates { nodes: nodes.join(", ") })
}

impl Agent {
    /// Connects to an agent and describes its node.
    async fn connect(node: &str, address: Address, tls: Option<&Tls>) -> Result<Self, AgentError> {
        info!(node, ?address, "connect");
        let channel = connect(node, &address, tls).await?;
        let mut client =
            AgentClient::new(channel).max_decoding_message_size(wire::MAX_MESSAGE_BYTES);
        let describe = client.describe(wire::DescribeRequest {});
        let info = call(node, "describe", describe).await.map_err(|e| e.at(&address))?;
        info!(node, kernel = info.kernel, agent = info.agent_version, "describe");
        Ok(Self {
            client,
            address,
            has_kernel_of_plan: false,
            not_booted: None,
            not_undone: BTreeSet::new(),
            generation: info.generation.into(),
            shares_clock: clock::is_shared(&info),
            clock: ClockHistory::default(),
            info,
        })
    }

    /// Exchanges timestamps several times and keeps the exchange with the smallest round-trip time, which has the smallest error
    /// bound. A node that shares this process's clock needs no exchange.
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
                "the agent's timestamps are impossible: received at {received_ns} ns and answered at {sent_ns} ns, within a round trip \
                 of {} ns",
                t4_ns - t1_ns
            );
            AgentError::Call { node, step, reason }
        })
    }
}

/// Waits at most [`CALL_TIMEOUT`] for an answer.
pub async fn call<T>(
    node: &str,
    step: &'static str,
    answer: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, AgentError> {
    call_until(node, step, answer, tokio::time::sleep(CALL_TIMEOUT)).await
}

/// Waits for an answer until `late` ends, [`CALL_TIMEOUT`] after the last progress.
async fn call_until<T>(
    node: &str,
    step: &'static str,
    answer: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    late: impl Future<Output = ()>,
) -> Result<T, AgentError> {
    let fail = |reason| AgentError::Call { node: node.to_owned(), step, reason };
    debug!(node, "{step} request");
    let answered = tokio::select! {
        biased;
        answered = answer => answered,
        () = late => return Err(fail(format!("no answer within {} s", CALL_TIMEOUT.as_secs()))),
    };
    match answered {
        Ok(response) => {
            debug!(node, "{step} reply");
            Ok(response.into_inner())
        }
        Err(status) => Err(refused(node, step, &status)),
    }
}

fn refused(node: &str, step: &'static str, status: &tonic::Status) -> AgentError {
    use tonic::Code;
    let (node, mut reason) = (node.to_owned(), status_text(status));
    if let Some(why) = refused_certificate(&reason) {
        let reason = why.to_string();
        return match why {
            // It is asked again, like a lost node.
            CertificateRefusal::Expired => AgentError::Call { node, step, reason },
            CertificateRefusal::Revoked
            | CertificateRefusal::UnknownAuthority
            | CertificateRefusal::BadSignature => AgentError::Refused { node, step, reason },
        };
    }
    if is_refused(status) {
        reason += "; does ccbench-agent run there?";
    }
    match status.code() {
        Code::InvalidArgument | Code::Unimplemented => AgentError::Unsupported { node, reason },
        Code::FailedPrecondition | Code::PermissionDenied | Code::Unauthenticated => {
            AgentError::Refused { node, step, reason }
        }
        Code::Aborted => AgentError::PortInUse { node, reason },
        _ => AgentError::Call { node, step, reason },
    }
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

    /// Its connection has ended while the files of other nodes were sent.
    #[test]
    fn a_node_without_its_files_is_a_lost_node() {
        let error = refused("n1", "prepare", &tonic::Status::not_found("the file was not sent"));
        assert!(matches!(error, AgentError::Call { .. }), "{error}");
    }

    #[test]
    fn every_node_with_an_error_is_named() {
        let error = |node: &str| AgentError::Call {
            node: node.to_owned(),
            step: "connect",
            reason: format!("{node}.example:7700: refused"),
        };
        let results = vec![Ok(1), Err(error("n2")), Err(error("n3")), Ok(4), Err(error("n5"))];
        let all = all_or_error(results).unwrap_err();
        let expected = "node n2: connect: n2.example:7700: refused; node n3: connect: n3.example:7700: refused; \
                        node n5: connect: n5.example:7700: refused";
        assert_eq!(all.to_string(), expected);
        assert!(matches!(all, AgentError::Call { .. }));
        assert_eq!(all_or_error(vec![Ok::<_, AgentError>(1), Ok(2)]).unwrap(), [1, 2]);
        let refusal = |node: &str, reason: &str| {
            refused(node, "check", &tonic::Status::permission_denied(reason))
        };
        let results = [("n1", "other"), ("n2", "scope"), ("n3", "scope")];
        let all = all_or_error(results.map(|(node, why)| Err::<(), _>(refusal(node, why))).into());
        let expected = "node n1: check: other; node n2, n3: check: scope";
        assert_eq!(all.unwrap_err().to_string(), expected);
    }

    #[test]
    fn only_loopback_needs_no_certificates() {
        assert!(
            is_loopback("127.0.0.1:7700")
                && is_loopback("[::1]:7700")
                && is_loopback("localhost:7700")
        );
        assert!(!is_loopback("10.0.0.1:7700") && !is_loopback("node1.example:7700"));
    }

    #[test]
    fn missing_certificates_are_one_hint_for_all_nodes() {
        let tcp = |target: &str| Address::Tcp(target.to_owned());
        let mut addresses = BTreeMap::from([
            ("n1".to_owned(), tcp("127.0.0.1:7700")),
            ("n2".to_owned(), Address::Socket(PathBuf::from("/run/n2"))),
        ]);
        assert!(check_loopback(&addresses).is_ok());
        addresses.insert("n3".to_owned(), tcp("10.0.0.3:7700"));
        addresses.insert("n4".to_owned(), tcp("n4.example:7700"));
        let error = check_loopback(&addresses).unwrap_err();
        assert_eq!(error.exit_code(), ExitCode::Unavailable);
        let error = error.to_string();
        assert!(
            error.starts_with("node n3 (10.0.0.3:7700), node n4 (n4.example:7700): "),
            "{error}"
        );
        assert_eq!(error.matches("--pki").count(), 1, "{error}");
    }
}
