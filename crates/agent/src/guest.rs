//! `ccbench-agent guest`: process 1 of the lab's virtual machine. It mounts file systems and loads modules, runs the
//! trial that it finds in its initramfs, writes events and rows to a one-way port, and powers the machine off. Nothing
//! reaches it from outside while it runs: that would disturb a clock that counts instructions.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use ccbench_io::console::message;
use ccbench_proto::event::Kind;
use ccbench_proto::testbed::Ready;
use ccbench_proto::wire::agent_client::AgentClient;
use ccbench_proto::wire::lab_message::Payload;
use ccbench_proto::wire::{self, LabStep};
use hyper_util::rt::TokioIo;
use prost::Message as _;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};

use crate::clock;

mod machine;

/// Where the controller puts the task.
pub const TASK: &str = "/lab/task.pb";
/// The path of this program in the guest.
pub const AGENT: &str = "/bin/ccbench-agent";
/// Time limit of a call to a node, in guest time.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Limit of events that wait between the nodes' streams and the port.
const EVENTS_WAITING: usize = 4096;

/// Runs the trial. Never returns: powers the machine off, or executes a shell if the initramfs has no task.
pub fn main() -> ! {
    if let Err(error) = machine::mount_all().and_then(|()| machine::load_modules()) {
        message(format_args!("ccbench guest: {error}"));
        machine::power_off();
    }
    if !Path::new(TASK).exists() {
        machine::shell();
    }
    if let Err(error) = run() {
        message(format_args!("ccbench guest: {error}"));
    }
    machine::power_off()
}

fn run() -> std::io::Result<()> {
    let mut port = SerialPort { to: machine::port()?, buffer: Vec::new() };
    let task = wire::LabTask::decode(std::fs::read(TASK)?.as_slice())
        .map_err(|e| std::io::Error::other(format!("{TASK}: {e}")))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(trial(&task, &mut port))
}

/// Why a trial could not run.
struct Failure {
    node: String,
    step: LabStep,
    reason: String,
    impossible: bool,
}

/// The one-way port.
struct SerialPort {
    to: File,
    buffer: Vec<u8>,
}

impl SerialPort {
    fn emit(&mut self, payload: Payload) -> std::io::Result<()> {
        self.buffer.clear();
        wire::LabMessage { payload: Some(payload) }
            .encode_length_delimited(&mut self.buffer)
            .map_err(std::io::Error::other)?;
        self.to.write_all(&self.buffer)
    }
}

async fn trial(task: &wire::LabTask, port: &mut SerialPort) -> std::io::Result<()> {
    let mut nodes = Nodes::default();
    let failed = run_trial(task, &mut nodes, port).await?;
    if let Some(Failure { node, step, reason, impossible }) = failed {
        let step = step.into();
        port.emit(Payload::Failed(wire::LabFailed { node, step, reason, impossible }))?;
    }
    for (node, client) in &mut nodes.clients {
        let reply = call(node, LabStep::Reset, client.reset(wire::ResetRequest::default())).await;
        let failed = reply.map_or_else(|e| vec![e.reason], |reply| reply.failed);
        port.emit(Payload::Undone(wire::LabUndone { node: node.clone(), failed }))?;
    }
    port.emit(Payload::Done(wire::LabDone { busy_pct: nodes.busy_pct }))?;
    port.to.flush()
}

/// The testbed and its agents.
#[derive(Default)]
struct Nodes {
    testbed: Option<Child>,
    clients: BTreeMap<String, AgentClient<Channel>>,
    busy_pct: f64,
}

/// Runs the trial. `Ok(Some(..))`: the trial failed but the port works. `Err`: the port failed.
async fn run_trial(
    task: &wire::LabTask,
    nodes: &mut Nodes,
    port: &mut SerialPort,
) -> std::io::Result<Option<Failure>> {
    match prepare(task, nodes, port).await? {
        Some(failure) => return Ok(Some(failure)),
        None => port.to.flush()?,
    }
    let t0_ns = clock::now_ns() + task.lead_ns;
    let realtime_minus_monotonic_ns = clock::realtime_minus_monotonic_ns();
    port.emit(Payload::Start(wire::LabStart { t0_ns, realtime_minus_monotonic_ns }))?;
    let (send, mut receive) = mpsc::channel(EVENTS_WAITING);
    for request in &task.prepare {
        let Some(client) = nodes.clients.get(&request.node) else { continue };
        let run = wire::RunRequest { start_at_ns: t0_ns, epoch: request.epoch };
        tokio::spawn(listen(request.node.clone(), client.clone(), run, send.clone()));
    }
    drop(send);
    let (before, mut after) = (machine::Busy::now(), None);
    let limit_ns = t0_ns + task.limit_ns;
    loop {
        match timeout(clock::until(limit_ns), receive.recv()).await {
            Ok(Some(message)) => {
                // Idle time after the trial does not count as load.
                if ends_trial(&message) {
                    after.get_or_insert_with(machine::Busy::now);
                }
                port.emit(message)?;
            }
            Ok(None) => break,
            Err(_) => {
                let reason =
                    "the nodes' streams are still open long after the trial's end".to_owned();
                let node = String::new();
                return Ok(Some(Failure { node, step: LabStep::Run, reason, impossible: false }));
            }
        }
    }
    nodes.busy_pct = before.share_until(&after.unwrap_or_else(machine::Busy::now));
    Ok(None)
}

/// Whether this is the event of the trial's end.
fn ends_trial(message: &Payload) -> bool {
    let Payload::Row(wire::LabRow { event: Some(row), .. }) = message else { return false };
    matches!(&row.payload, Some(wire::run_event::Payload::Event(event)) if matches!(event.kind, Some(Kind::TrialEnd(_))))
}

async fn prepare(
    task: &wire::LabTask,
    nodes: &mut Nodes,
    port: &mut SerialPort,
) -> std::io::Result<Option<Failure>> {
    let sockets = match testbed(&task.resolved_toml, nodes).await {
        Ok(sockets) => sockets,
        Err(error) => {
            let (node, reason) = (String::new(), error.to_string());
            return Ok(Some(Failure { node, step: LabStep::Build, reason, impossible: false }));
        }
    };
    for (node, socket) in sockets {
        match connect(&node, socket).await {
            Ok((client, info)) => {
                port.emit(Payload::Node(wire::LabNode { node: node.clone(), info: Some(info) }))?;
                nodes.clients.insert(node, client);
            }
            Err(failure) => return Ok(Some(failure)),
        }
    }
    // One after the other: another order would make a different trial.
    for request in &task.prepare {
        let node = &request.node;
        let Some(client) = nodes.clients.get_mut(node) else {
            let reason = "the testbed has no such node".to_owned();
            let node = node.clone();
            return Ok(Some(Failure { node, step: LabStep::Prepare, reason, impossible: false }));
        };
        match call(node, LabStep::Prepare, client.prepare(request.clone())).await {
            Ok(reply) => {
                let prepared = wire::LabPrepared { node: node.clone(), reply: Some(reply) };
                port.emit(Payload::Prepared(prepared))?;
            }
            Err(failure) => return Ok(Some(failure)),
        }
    }
    Ok(None)
}

/// Why the guest has no testbed.
#[derive(Debug, thiserror::Error)]
enum BuildError {
    /// A system call failed.
    #[error("{op}: {source}")]
    System {
        /// The operation and its object.
        op: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// It took too long.
    #[error("the testbed was not ready within {} s", CALL_TIMEOUT.as_secs())]
    Timeout,
    /// The testbed's process ended first.
    #[error("the testbed ended before it was ready")]
    Ended,
    /// Its first line cannot be parsed.
    #[error("the testbed's answer {line:?} cannot be parsed: {source}")]
    Answer {
        /// The line.
        line: String,
        /// Why.
        source: serde_json::Error,
    },
    /// The error that the testbed reported.
    #[error("{0}")]
    Testbed(String),
}

impl BuildError {
    fn system(op: String) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::System { op, source }
    }
}

/// Starts the testbed. Returns the sockets by node.
#[expect(clippy::disallowed_methods, reason = "starts the testbed")]
async fn testbed(plan: &str, nodes: &mut Nodes) -> Result<BTreeMap<String, PathBuf>, BuildError> {
    let dir = "/run/ccbench/lab";
    std::fs::create_dir_all(dir).map_err(BuildError::system(format!("make {dir}")))?;
    let mut child = Command::new(AGENT)
        .args(["testbed", "--dir", dir])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(BuildError::system(format!("start {AGENT}")))?;
    let (Some(mut life_line), Some(out)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(BuildError::Ended);
    };
    // If the testbed is gone, its first line is missing, which is reported below.
    let _ = life_line.write_all(ccbench_proto::testbed::request(plan).as_bytes()).await;
    child.stdin = Some(life_line);
    nodes.testbed = Some(child);
    let line = timeout(CALL_TIMEOUT, BufReader::new(out).lines().next_line()).await;
    let line = line.map_err(|_| BuildError::Timeout)?;
    let line = line.map_err(BuildError::system("read the testbed's answer".to_owned()))?;
    let line = line.ok_or(BuildError::Ended)?;
    let ready: Ready =
        serde_json::from_str(&line).map_err(|source| BuildError::Answer { line, source })?;
    if !ready.ready {
        return Err(BuildError::Testbed(ready.error));
    }
    Ok(ready.nodes.into_iter().map(|(name, node)| (name, node.socket)).collect())
}

async fn connect(
    node: &str,
    socket: PathBuf,
) -> Result<(AgentClient<Channel>, wire::NodeInfo), Failure> {
    let shown = socket.display().to_string();
    let connector = tower::service_fn(move |_: tonic::codegen::http::Uri| {
        let socket = socket.clone();
        async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://agent.invalid");
    let channel = endpoint.connect_with_connector(connector).await.map_err(|e| Failure {
        node: node.to_owned(),
        step: LabStep::Connect,
        reason: format!("{shown}: {e}"),
        impossible: false,
    })?;
    let mut client = AgentClient::new(channel)
        .max_decoding_message_size(wire::MAX_MESSAGE_BYTES)
        .max_encoding_message_size(wire::MAX_MESSAGE_BYTES);
    let info = call(node, LabStep::Describe, client.describe(wire::DescribeRequest {})).await?;
    Ok((client, info))
}

async fn call<T>(
    node: &str,
    step: LabStep,
    answer: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, Failure> {
    let failed =
        |reason: String, impossible| Failure { node: node.to_owned(), step, reason, impossible };
    match timeout(CALL_TIMEOUT, answer).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => {
            use tonic::Code::{InvalidArgument, Unimplemented};
            let impossible = matches!(status.code(), InvalidArgument | Unimplemented);
            Err(failed(status.message().to_owned(), impossible))
        }
        Err(_) => Err(failed(format!("no answer within {} s", CALL_TIMEOUT.as_secs()), false)),
    }
}

/// Forwards one node's stream and reports its end.
async fn listen(
    node: String,
    mut client: AgentClient<Channel>,
    request: wire::RunRequest,
    send: mpsc::Sender<Payload>,
) {
    let reason = match call(&node, LabStep::Run, client.run(request)).await {
        Err(failure) => failure.reason,
        Ok(mut stream) => loop {
            match stream.message().await {
                Ok(Some(event)) => {
                    let row = wire::LabRow { node: node.clone(), event: Some(event) };
                    if send.send(Payload::Row(row)).await.is_err() {
                        return;
                    }
                }
                Ok(None) => break String::new(),
                Err(status) => break status.message().to_owned(),
            }
        },
    };
    // The receiver is gone only if the trial was abandoned.
    let _ = send.send(Payload::End(wire::LabEnd { node, reason })).await;
}
