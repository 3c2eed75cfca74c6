//! A node: the agent's executor, service, access checks and server, as `crates/agent/src/serve.rs` combines them. Undo journal and
//! generation are files. Kernel and traffic are models.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use ccbench_agent::access::Authorized;
use ccbench_agent::audit::Audit;
use ccbench_agent::control_interface::Peer;
use ccbench_agent::error::{AgentError, ListenError};
use ccbench_agent::executor::{self, Dependencies, GenerationFile, Handle, NodeStatus};
use ccbench_agent::flow::output::Output;
use ccbench_agent::flow::process::Generators;
use ccbench_agent::flow::{
    BoxFuture, FlowEndpoint, FlowOutput, FlowSource, Progress, Stop, Traffic,
};
use ccbench_agent::interfaces::Interfaces;
use ccbench_agent::serve::network_server;
use ccbench_agent::service::AgentService;
use ccbench_agent::sockets::allowed::AllowedModules;
use ccbench_agent::sockets::supplied::AllowedDigests;
use ccbench_agent::undo::{self, Undo};
use ccbench_agent::{accept, clock};
use ccbench_collector::{Drained, FlowPorts, SampleError, Sampler};
use ccbench_proto::plan::Tool;
use ccbench_proto::resolve::{Egress, LinkConfig};
use ccbench_proto::schedule::FlowTask;
use ccbench_proto::units::Rate;
use ccbench_proto::wire;
use ccbench_proto::wire::agent_server::AgentServer;
use ccbench_shaper::settings::DeviceSettings;
use ccbench_shaper::{Link, ShaperError};
use serde_json::Value;
use tokio::sync::watch;
use tonic::transport::Server;
use turmoil::net::TcpListener;

use crate::Flaw;

/// The port on which agents listen.
pub const PORT: u16 = 7700;
/// The interface of every node. No machine has one of this name.
const DEV: &str = "ccb-turmoil0";

/// A link that the kernel has, or had.
#[derive(Debug, Clone)]
pub struct KernelLink {
    pub name: String,
    pub opened_ns: u64,
    /// When its trial began.
    pub begun_ns: Option<u64>,
    pub removed_ns: Option<u64>,
    /// When the agent died while it was there.
    died_ns: Option<u64>,
}

impl KernelLink {
    /// Returns whether it was there for `length_ns` from the beginning of its trial on, with its agent.
    pub fn is_whole(&self, length_ns: u64) -> bool {
        // An agent that dies after the trial has reported it.
        let span = self.begun_ns.zip(self.died_ns.or(self.removed_ns));
        span.is_some_and(|(begun, end)| end >= begun + length_ns)
    }
}

#[derive(Debug, Default)]
struct State {
    has_no_offloads: bool,
    /// The last one may still be there.
    links: Vec<KernelLink>,
    violations: Vec<String>,
}

impl State {
    fn current(&mut self) -> Option<&mut KernelLink> {
        self.links.last_mut().filter(|link| link.removed_ns.is_none())
    }

    fn close(&mut self) {
        if let Some(link) = self.current() {
            link.removed_ns = Some(clock::now_ns());
        }
    }
}

/// The kernel's state, which outlives agents.
#[derive(Debug, Clone, Default)]
pub struct Kernel(Arc<Mutex<State>>);

impl Kernel {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Returns the link that is there.
    pub fn link(&self) -> Option<KernelLink> {
        self.state().current().cloned()
    }

    /// Returns all links that were there.
    pub fn links(&self) -> Vec<KernelLink> {
        self.state().links.clone()
    }

    /// Records that the agent died.
    fn agent_died(&self, at_ns: u64) {
        if let Some(link) = self.state().current() {
            link.died_ns = Some(at_ns);
        }
    }

    /// # Errors
    /// A trial has found changes of another one.
    fn check(&self) -> Result<(), String> {
        self.state().violations.first().map_or(Ok(()), |why| Err(why.clone()))
    }

    /// # Errors
    /// The kernel is not as it was found.
    fn check_untouched(&self) -> Result<(), String> {
        let mut state = self.state();
        match (state.current().cloned(), state.has_no_offloads) {
            (None, false) => Ok(()),
            left => Err(format!("not undone: {left:?}")),
        }
    }
}

impl Interfaces for Kernel {
    fn device(&self, _: &Egress) -> Result<String, ShaperError> {
        Ok(DEV.to_owned())
    }
    fn control_devices(&self, _: &Peer) -> Result<BTreeSet<String>, ShaperError> {
        Ok(BTreeSet::new())
    }
    fn is_host_namespace(&self) -> bool {
        false
    }
    fn is_host_interface(&self, _: &str) -> Result<bool, ShaperError> {
        Ok(false)
    }
    fn has_assigned_ipv6(&self, _: &str) -> Result<bool, ShaperError> {
        Ok(false)
    }
    fn settings(&self, _: &str) -> Result<Option<DeviceSettings>, ShaperError> {
        Ok(Some(DeviceSettings::default()))
    }
    fn save_offloads(&self, _: &str) -> Result<Option<Value>, ShaperError> {
        let mut state = self.state();
        if state.has_no_offloads {
            state.violations.push("a trial begins without the interface's offloads".to_owned());
        }
        Ok(Some(Value::from("on")))
    }
    fn offloads_off(&self, _: &str) -> Result<(), ShaperError> {
        self.state().has_no_offloads = true;
        Ok(())
    }
    fn restore_offloads(&self, _: &str, _: &Value) -> Result<(), ShaperError> {
        self.state().has_no_offloads = false;
        Ok(())
    }
    fn save_root(&self, _: &str) -> Result<Value, ShaperError> {
        let mut state = self.state();
        if let Some(link) = state.current().cloned() {
            state.violations.push(format!("a trial begins with a link of another one: {link:?}"));
        }
        Ok(Value::from("fq_codel"))
    }
    fn restore_root(&self, _: &str, _: &Value) -> Result<(), ShaperError> {
        self.state().close();
        Ok(())
    }
    fn open(&self, config: &LinkConfig, _: &str) -> Result<Box<dyn Link>, ShaperError> {
        let (name, opened_ns) = (config.name.clone(), clock::now_ns());
        self.state().links.push(KernelLink {
            name: name.clone(),
            opened_ns,
            begun_ns: None,
            removed_ns: None,
            died_ns: None,
        });
        Ok(Box::new(OpenLink { name, kernel: self.clone() }))
    }
    fn keep_awake(&self) -> Result<Box<dyn Send>, ShaperError> {
        Ok(Box::new(()))
    }
}

/// The agent's handle of a link. Dropping it changes nothing, as with qdiscs.
struct OpenLink {
    name: String,
    kernel: Kernel,
}

impl Link for OpenLink {
    fn state(&self) -> wire::LinkState {
        let (link, dev) = (self.name.clone(), DEV.to_owned());
        wire::LinkState { link, dev, ..wire::LinkState::default() }
    }
    fn set_rate(&mut self, _: Rate) -> Result<(), ShaperError> {
        Ok(())
    }
    fn counters(&mut self, _: u64, _: &mut Vec<wire::QdiscSample>) -> Result<(), ShaperError> {
        Ok(())
    }
    fn begin(&mut self, at_ns: u64) -> Result<(), ShaperError> {
        if let Some(link) = self.kernel.state().current() {
            link.begun_ns = Some(at_ns);
        }
        Ok(())
    }
    fn remove(&mut self) -> Result<(), ShaperError> {
        self.kernel.state().close();
        Ok(())
    }
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
    pub fn new(state_dir: PathBuf, generators: Arc<Generators>) -> Self {
        std::fs::create_dir(&state_dir).unwrap();
        let (executor, generation) = (Mutex::default(), Mutex::default());
        Self { state_dir, kernel: Kernel::default(), generators, executor, generation }
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
    /// A trial has found changes of another one, or the generation has decreased.
    pub fn check(&self) -> Result<(), String> {
        self.kernel.check()?;
        let Some(NodeStatus { generation, .. }) = self.status() else { return Ok(()) };
        let before = std::mem::replace(&mut *self.generation.lock().unwrap(), generation);
        if generation < before {
            return Err(format!("the generation is {generation} after {before}"));
        }
        Ok(())
    }

    /// # Errors
    /// The kernel is not as it was found, or the agent says so.
    pub fn check_undone(&self) -> Result<(), String> {
        self.kernel.check_untouched()?;
        let not_undone = self.status().map(|status| status.not_undone).unwrap_or_default();
        if not_undone.is_empty() { Ok(()) } else { Err(format!("not undone: {not_undone:?}")) }
    }
}

/// Runs the agent of a node.
pub async fn serve(node: Arc<Node>, flaw: Flaw) -> turmoil::Result {
    let dir = &node.state_dir;
    let ran_before = undo::has_journal(dir);
    let undo = match flaw {
        Flaw::ForgetsChanges => Undo::in_memory(),
        _ => Undo::open(dir)?.0,
    };
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
        Flaw::IgnoresSilence => Server::builder(),
        _ => network_server(),
    };
    server.serve_with_incoming(service, accept::other(next, Audit::default())).await?;
    Ok(())
}
