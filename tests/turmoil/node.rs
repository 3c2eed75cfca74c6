//! A node: the agent's executor, service, access checks and server, as `crates/agent/src/serve.rs` combines them. Undo journal and
//! generation are files. Kernel and traffic are models.

use std::error::Error;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use ccbench_agent::accept;
use ccbench_agent::access::Authorized;
use ccbench_agent::audit::Audit;
use ccbench_agent::error::{AgentError, ListenError};
use ccbench_agent::executor::{self, Dependencies, GenerationFile, Handle, NodeStatus};
use ccbench_agent::flow::output::Output;
use ccbench_agent::flow::process::Generators;
use ccbench_agent::flow::{
    BoxFuture, FlowEndpoint, FlowOutput, FlowSource, Progress, Stop, Traffic,
};
use ccbench_agent::serve::network_server;
use ccbench_agent::service::AgentService;
use ccbench_agent::sockets::allowed::AllowedModules;
use ccbench_agent::sockets::supplied::AllowedDigests;
use ccbench_agent::undo::{self, Outcome, Undo};
use ccbench_collector::{Drained, FlowPorts, SampleError, Sampler};
use ccbench_proto::plan::Tool;
use ccbench_proto::schedule::FlowTask;
use ccbench_proto::wire;
use ccbench_proto::wire::agent_server::AgentServer;
use tokio::sync::watch;
use turmoil::net::TcpListener;

use crate::Flaw;
use crate::faults::PEERS;
use crate::kernel::Kernel;
use crate::violation::NodeViolation;

/// The port on which agents listen.
const PORT: u16 = 7700;
/// The undo journal's name in the state directory.
const JOURNAL: &str = "undo.ndjson";

pub const NODES: [&str; PEERS] = ["n1", "n2"];

/// Returns the address of a node's agent in plans. The controller permits agents without TLS only on loopback, so the port says which node it is.
pub fn plan_address(node: usize) -> String {
    format!("127.0.0.1:{}", usize::from(PORT) + 1 + node)
}

/// Returns the address of an agent in the simulated network.
pub fn network_address(plan_address: &str) -> Option<(&'static str, u16)> {
    let node = (0..PEERS).find(|node| self::plan_address(*node) == plan_address)?;
    Some((NODES[node], PORT))
}

/// A source of traffic whose report says that data arrived.
struct Reports;

const REPORT: &str = r#"{"start":{},"intervals":[{"streams":[{"start":0,"end":0.1,"seconds":0.1,
    "bytes":1000}]}],"end":{}}"#;

impl FlowSource for Reports {
    fn find(&self, _: Tool) -> BoxFuture<'_, Result<(), AgentError>> {
        Box::pin(async { Ok(()) })
    }
    fn version(&self, _: Tool) -> String {
        "model 1".to_owned()
    }
    fn start(&self, _: &FlowTask, _: FlowEndpoint) -> Result<Box<dyn Traffic>, AgentError> {
        Ok(Box::new(RunsUntilStopped(watch::channel(false).0)))
    }
}

struct RunsUntilStopped(watch::Sender<bool>);

impl Traffic for RunsUntilStopped {
    fn listening(&mut self) -> BoxFuture<'_, Result<(), ListenError>> {
        Box::pin(async { Ok(()) })
    }
    fn next(&mut self) -> BoxFuture<'_, Progress> {
        let mut is_stopped = self.0.subscribe();
        Box::pin(async move {
            drop(is_stopped.wait_for(|is_stopped| *is_stopped).await);
            let mut output = Output::default();
            output.keep(REPORT.as_bytes());
            Progress::Ended(FlowOutput { output, ..FlowOutput::default() })
        })
    }
    fn stop(&mut self, _: Stop) {
        self.0.send_replace(true);
    }
}

/// Finds no sockets.
struct NoSockets;

impl Sampler for NoSockets {
    fn start(&mut self, _: &[FlowPorts], _: u64) -> Result<(), SampleError> {
        Ok(())
    }
    fn drain(&mut self, _: u64, _: &mut Vec<wire::FlowSample>) -> Result<Drained, SampleError> {
        Ok(Drained::default())
    }
    fn stop(&mut self) {}
}

/// What outlives the agent of a node.
pub struct Node {
    state_dir: PathBuf,
    pub kernel: Kernel,
    generators: Arc<Generators>,
    /// That of the last agent.
    executor: Mutex<Option<Handle>>,
    /// The largest generation so far.
    generation: Mutex<u64>,
}

impl Node {
    /// Creates the agent's state directory.
    pub fn new(state_dir: PathBuf, flaw: Flaw, generators: Arc<Generators>) -> Self {
        std::fs::create_dir(&state_dir).unwrap();
        let kernel = Kernel::new(state_dir.join(JOURNAL), flaw);
        let (executor, generation) = (Mutex::default(), Mutex::default());
        Self { state_dir, kernel, generators, executor, generation }
    }

    fn status(&self) -> Option<NodeStatus> {
        self.executor.lock().unwrap().as_ref().map(Handle::status)
    }

    /// Records that the agent was killed.
    pub fn crashed(&self, at_ns: u64) {
        *self.executor.lock().unwrap() = None;
        self.kernel.agent_died(at_ns);
    }

    /// # Errors
    /// A trial has found changes of another one, a change has no record, or the generation has decreased.
    pub fn check(&self) -> Result<(), NodeViolation> {
        self.kernel.check()?;
        let Some(NodeStatus { generation, .. }) = self.status() else { return Ok(()) };
        let before = std::mem::replace(&mut *self.generation.lock().unwrap(), generation);
        if generation < before {
            return Err(NodeViolation::Generation { generation, before });
        }
        Ok(())
    }

    /// # Errors
    /// The kernel is not as it was found, or the agent says so.
    pub fn check_undone(&self) -> Result<(), NodeViolation> {
        self.kernel.check_untouched()?;
        let not_undone = self.status().map(|status| status.not_undone).unwrap_or_default();
        match not_undone.is_empty() {
            true => Ok(()),
            false => Err(NodeViolation::NotUndone(format!("{not_undone:?}"))),
        }
    }
}

/// Opens the undo journal, and undoes what a dead agent left.
fn open_undo(node: &Node, flaw: Flaw) -> Result<Undo, Box<dyn Error>> {
    let dir = &node.state_dir;
    match flaw {
        Flaw::ChangesBeforeRecord => return Ok(Undo::in_memory()),
        Flaw::ForgetsChanges => std::fs::write(dir.join(JOURNAL), "")?,
        _ => {}
    }
    let before = node.kernel.failed_undos();
    let (undo, Outcome { failed, dropped, .. }) = Undo::open_in(dir, None, &node.kernel)?;
    // After a fault, the executor tries again.
    let by_faults = node.kernel.failed_undos() - before;
    if dropped.is_empty() && failed.len() == by_faults {
        Ok(undo)
    } else {
        Err(format!("not undone at the start: {failed:?}, {dropped:?}").into())
    }
}

/// Runs the agent of a node.
pub async fn serve(node: Arc<Node>, flaw: Flaw) -> turmoil::Result {
    let dir = &node.state_dir;
    let ran_before = undo::has_journal(dir);
    let undo = open_undo(&node, flaw)?;
    if flaw == Flaw::Panics {
        tokio::spawn(async { panic!("as the test wants") });
    }
    let generation_file = GenerationFile { path: dir.join("generation"), ran_before };
    let executor = executor::spawn(Dependencies {
        interfaces: Arc::new(node.kernel.clone()),
        source: Arc::new(Reports),
        sampler: || Box::new(NoSockets),
        acks: ccbench_collector::acks::open,
        undo,
        generation_file: (flaw != Flaw::ForgetsGeneration).then_some(generation_file),
        cc_journals: dir.join("cc"),
        traffic_group: None,
        cc_digests: AllowedDigests::Any,
        modules: AllowedModules::default(),
        boot: None,
    });
    *node.executor.lock().unwrap() = Some(executor.clone());
    let service = AgentService::new(executor, Arc::clone(&node.generators), Vec::new());
    let service =
        AgentServer::new(service).max_decoding_message_size(wire::MAX_REMOTE_MESSAGE_BYTES);
    let service = Authorized::new(service, None, Audit::default());
    let listener = Arc::new(TcpListener::bind(("0.0.0.0", PORT)).await?);
    let next = move || {
        let listener = Arc::clone(&listener);
        async move { listener.accept().await.map(|(stream, _)| stream) }
    };
    let server = match flaw {
        Flaw::IgnoresSilence => network_server().http2_keepalive_interval(None),
        _ => network_server(),
    };
    server.serve_with_incoming(service, accept::unauthenticated(next, Audit::default())).await?;
    Ok(())
}
