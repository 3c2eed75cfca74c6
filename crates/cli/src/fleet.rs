//! The agents of an experiment: connecting, describing, clocks, and the calls that go to all of them at
//! once. Every call has a limit, and every error names the node and the step.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ccbench_proto::wire;
use ccbench_proto::wire::agent_client::AgentClient;
use futures_util::future::join_all;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::error::CliError;
use ccbench_results::clock;
use ccbench_results::store::NodeClock;

/// Longest wait for an agent's answer outside a trial.
pub const CALL_LIMIT: Duration = Duration::from_secs(15);
/// Time stamp exchanges before a trial with agents on other machines.
const CLOCK_EXCHANGES: usize = 64;

/// All agents of an experiment.
pub struct Fleet {
    /// By the node's name in the plan.
    pub agents: BTreeMap<String, Agent>,
}

/// One agent.
pub struct Agent {
    /// Its connection.
    pub client: AgentClient<Channel>,
    /// What it said about itself.
    pub info: wire::NodeInfo,
}

/// Where an agent listens.
#[derive(Debug, Clone)]
pub enum Address {
    /// A Unix socket of this machine.
    Socket(PathBuf),
    /// `host:port`.
    Tcp(String),
}

/// A difference of two monotonic clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockOffset {
    /// The node's CLOCK_MONOTONIC minus the controller's.
    pub offset_ns: i64,
    /// The error is not larger than this.
    pub error_bound_ns: u64,
    /// Smallest round trip seen.
    pub rtt_ns: u64,
}

impl Fleet {
    /// Connects to every agent and asks what it is.
    ///
    /// # Errors
    /// The first node that cannot be reached, with the address and the way out.
    pub async fn connect(
        addresses: BTreeMap<String, Address>,
        pki: Option<&Path>,
    ) -> Result<Self, CliError> {
        let tls = pki.map(tls_config).transpose()?;
        let connects = addresses.into_iter().map(|(node, address)| {
            let tls = tls.clone();
            async move {
                let channel = connect(&node, &address, tls).await?;
                let mut client =
                    AgentClient::new(channel).max_decoding_message_size(wire::MESSAGE_LIMIT);
                let info =
                    call(&node, "describe", client.describe(wire::DescribeRequest {})).await?;
                Ok::<_, CliError>((node, Agent { client, info }))
            }
        });
        let agents = join_all(connects).await.into_iter().collect::<Result<_, _>>()?;
        Ok(Self { agents })
    }

    /// One call to every agent at once; answers by node, or the first error.
    pub async fn all<T, F>(
        &self,
        step: &'static str,
        mut request: impl FnMut(&str, AgentClient<Channel>) -> F,
    ) -> Result<BTreeMap<String, T>, CliError>
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let calls = self.agents.iter().map(|(node, agent)| {
            let answer = request(node, agent.client.clone());
            async move { Ok((node.clone(), call(node, step, answer).await?)) }
        });
        join_all(calls).await.into_iter().collect()
    }

    /// Measures every node's clock against this machine's. Agents on this machine share it: no error at all.
    pub async fn clocks(&self) -> Result<BTreeMap<String, ClockOffset>, CliError> {
        let here = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let here = here.trim();
        let measured = self.agents.iter().map(|(node, agent)| async move {
            let shared = !here.is_empty() && agent.info.boot_id.trim() == here;
            let offset = if shared {
                ClockOffset { offset_ns: 0, error_bound_ns: 0, rtt_ns: 0 }
            } else {
                exchange(node, agent.client.clone()).await?
            };
            Ok((node.clone(), offset))
        });
        join_all(measured).await.into_iter().collect()
    }

    /// Leaves every node that this run's trial `epoch` holds as it was found; returns what could not be undone,
    /// by node.
    pub async fn reset(&self, run_id: &str, epoch: u64) -> BTreeMap<String, Vec<String>> {
        let calls = self.agents.iter().map(|(node, agent)| {
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

impl ClockOffset {
    /// For the results: how this node's clock maps to UTC. `utc_minus_monotonic_ns` is this machine's, read once
    /// for all nodes.
    pub fn node_clock(&self, t0_controller_ns: u64, utc_minus_monotonic_ns: i64) -> NodeClock {
        NodeClock {
            t0_ns: t0_controller_ns.saturating_add_signed(self.offset_ns),
            realtime_offset_ns: utc_minus_monotonic_ns - self.offset_ns,
            error_bound_ns: self.error_bound_ns,
            source: if self.rtt_ns == 0 { "shared" } else { "exchange" }.to_owned(),
            rtt_ns: self.rtt_ns,
        }
    }
}

async fn connect(
    node: &str,
    address: &Address,
    tls: Option<ClientTlsConfig>,
) -> Result<Channel, CliError> {
    let fail = |why: String| CliError::Node { node: node.to_owned(), step: "connect", why };
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
                .tcp_nodelay(true);
            if let Some(tls) = tls {
                endpoint = endpoint.tls_config(tls).map_err(|e| fail(chain(&e)))?;
            } else if !loopback(target) {
                return Err(fail(format!(
                    "{target} is beyond loopback: name the folder with the certificates, \
                     `--pki DIR` (made by `ccbench pki init DIR`)"
                )));
            }
            endpoint.connect().await.map_err(|e| {
                fail(format!(
                    "{target}: {}; is `ccbench-agent serve --listen tcp:…` running there, with a \
                     certificate of the same authority?",
                    chain(&e)
                ))
            })
        }
    }
}

fn loopback(target: &str) -> bool {
    let host = target.rsplit_once(':').map_or(target, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn tls_config(dir: &Path) -> Result<ClientTlsConfig, CliError> {
    let read = |name: &str| {
        let path = dir.join(name);
        std::fs::read(&path).map_err(|source| CliError::File {
            op: "read the certificate",
            path,
            source,
        })
    };
    let identity = Identity::from_pem(read("controller.pem")?, read("controller.key")?);
    Ok(ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(read("ca.pem")?))
        .identity(identity))
}

/// Waits for one answer, within the limit.
pub async fn call<T>(
    node: &str,
    step: &'static str,
    answer: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, CliError> {
    let fail = |why: String| CliError::Node { node: node.to_owned(), step, why };
    match timeout(CALL_LIMIT, answer).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status))
            if matches!(
                status.code(),
                tonic::Code::InvalidArgument | tonic::Code::Unimplemented
            ) =>
        {
            let (node, why) = (node.to_owned(), status.message().to_owned());
            Err(CliError::Impossible { node, why })
        }
        Ok(Err(status)) => Err(fail(status.message().to_owned())),
        Err(_) => Err(fail(format!("no answer within {} s", CALL_LIMIT.as_secs()))),
    }
}

/// Four time stamps, many times; the exchange with the smallest round trip bounds the error by half of it.
async fn exchange(node: &str, mut client: AgentClient<Channel>) -> Result<ClockOffset, CliError> {
    let mut best: Option<ClockOffset> = None;
    for _ in 0..CLOCK_EXCHANGES {
        let asked_ns = clock::monotonic_ns();
        let reply = call(node, "clock", client.clock(wire::ClockRequest {})).await?;
        let estimate = offset(asked_ns, reply.received_ns, reply.sent_ns, clock::monotonic_ns());
        if best.is_none_or(|b| estimate.rtt_ns < b.rtt_ns) {
            best = Some(estimate);
        }
    }
    best.ok_or_else(|| CliError::Node {
        node: node.to_owned(),
        step: "clock",
        why: "no exchange".into(),
    })
}

/// Offset of the other clock from four time stamps, as in RFC 5905.
fn offset(asked_ns: u64, received_ns: u64, sent_ns: u64, answered_ns: u64) -> ClockOffset {
    let there = i128::from(received_ns) - i128::from(asked_ns);
    let back = i128::from(sent_ns) - i128::from(answered_ns);
    let rtt_ns =
        (answered_ns - asked_ns).saturating_sub(sent_ns.saturating_sub(received_ns)).max(1);
    ClockOffset {
        offset_ns: ((there + back) / 2) as i64,
        error_bound_ns: rtt_ns.div_ceil(2),
        rtt_ns,
    }
}

/// An error with its causes; tonic's own text names only the outermost.
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
    fn four_time_stamps_give_offset_and_bound() {
        // The other clock is 1000 ahead; 10 there, 20 back, 5 in the handler.
        let estimate = offset(100, 1110, 1115, 135);
        assert_eq!(estimate, ClockOffset { offset_ns: 995, error_bound_ns: 15, rtt_ns: 30 });
        assert!((estimate.offset_ns - 1000).unsigned_abs() <= estimate.error_bound_ns);
    }

    #[test]
    fn only_loopback_goes_without_certificates() {
        assert!(loopback("127.0.0.1:7700") && loopback("[::1]:7700") && loopback("localhost:7700"));
        assert!(!loopback("10.0.0.1:7700") && !loopback("node1.example:7700"));
    }
}
