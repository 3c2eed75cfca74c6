//! Starts real agents and talks to them.
#![allow(dead_code, reason = "every test target uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

pub mod pair;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ccbench_proto::wire;
use ccbench_proto::wire::agent_client::AgentClient;
#[allow(unused_imports, reason = "every test target uses its own part")]
pub use ccbench_tests::namespace::{Namespace, children};
use ccbench_tests::node_state;
#[allow(unused_imports, reason = "every test target uses its own part")]
pub use ccbench_tests::node_state::difference;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tonic::transport::{Channel, Endpoint};

pub const AGENT: &str = env!("CARGO_BIN_EXE_ccbench-agent");

/// Locked exclusively by tests that measure, and shared by tests that only use the machine.
static MACHINE: RwLock<()> = RwLock::const_new(());

/// The turn of a test of this binary. Load from the tests themselves is no excuse for a bad measurement, so tests that measure run alone.
pub enum Turn {
    Alone(RwLockWriteGuard<'static, ()>),
    Beside(RwLockReadGuard<'static, ()>),
}

impl Turn {
    /// Waits for a turn without any other test.
    pub async fn alone() -> Self {
        Self::Alone(MACHINE.write().await)
    }

    /// Waits for a turn beside tests that do not measure.
    pub async fn beside() -> Self {
        Self::Beside(MACHINE.read().await)
    }

    /// Like [`Self::beside`], for a test without a runtime.
    pub fn beside_blocking() -> Self {
        Self::Beside(MACHINE.blocking_read())
    }
}

/// An agent on a Unix socket in its own folder; killed on drop.
pub struct Agent {
    pub dir: tempfile::TempDir,
    pub child: Child,
}

impl Agent {
    /// Starts an agent in this network namespace.
    pub fn here() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let child = serve(&dir, Command::new(AGENT), &[]);
        Self { dir, child }
    }

    /// Starts an agent that enters that network namespace itself.
    pub fn entering(namespace: &Namespace) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let netns = format!("/proc/{}/ns/net", namespace.pid());
        let child = serve(&dir, Command::new(AGENT), &["--netns", &netns]);
        Self { dir, child }
    }

    /// Starts an agent in that network namespace.
    pub fn inside(namespace: &Namespace) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = namespace.enter();
        command.arg(AGENT);
        let child = serve(&dir, command, &[]);
        Self { dir, child }
    }

    /// Starts an agent behind another command line, whose folders exist by then.
    pub fn by(command: impl FnOnce(&Path) -> Command) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("state")).unwrap();
        let command = command(dir.path());
        let child = serve(&dir, command, &[]);
        Self { dir, child }
    }

    /// Kills the agent and waits for its end.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts another agent with the same folders, once this one is dead.
    pub fn again(&mut self, mut command: Command) {
        drop(std::fs::remove_file(self.socket()));
        command.arg(AGENT);
        self.child = serve(&self.dir, command, &[]);
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("agent.sock")
    }

    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub async fn connect(&self) -> AgentClient<Channel> {
        AgentClient::connect(self.endpoint().await).await.unwrap()
    }

    /// Connects with a small window, so that unread data stays in the agent.
    pub async fn connect_narrow(&self) -> AgentClient<Channel> {
        let endpoint = self.endpoint().await.initial_stream_window_size(65_535);
        AgentClient::connect(endpoint).await.unwrap()
    }

    async fn endpoint(&self) -> Endpoint {
        // The file exists a moment before the agent listens on it.
        let connects = || std::os::unix::net::UnixStream::connect(self.socket()).is_ok();
        wait_for_setup("the agent's socket", connects).await;
        Endpoint::from_shared(format!("unix:{}", self.socket().display())).unwrap()
    }

    /// Returns the processes below the agent.
    pub fn children(&self) -> Vec<u32> {
        children(self.child.id())
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().cast_signed());
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    /// Runs `ccbench-agent undo` on what this agent left. Returns its output.
    pub fn undo(&self, namespace: &Namespace) -> String {
        let state = self.state_dir().display().to_string();
        namespace.run(&[AGENT, "undo", "--state-dir", &state])
    }
}

/// Returns two namespaces with a wire between them: `v0` has 10.9.0.1/24 in the first, `v1` 10.9.0.2/24 in the second.
pub fn wired_namespaces() -> [Namespace; 2] {
    let [a, b] = [Namespace::new(), Namespace::new()];
    a.shell(&format!(
        "ip link add v0 address 02:00:00:00:00:10 type veth peer name v1 address 02:00:00:00:00:20 && \
         ip link set v1 netns {} && ip addr add 10.9.0.1/24 dev v0 && ip link set v0 up",
        b.pid()
    ));
    b.shell("ip addr add 10.9.0.2/24 dev v1 && ip link set v1 up");
    [a, b]
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn serve(dir: &tempfile::TempDir, mut command: Command, more: &[&str]) -> Child {
    let listen = format!("unix:{}", dir.path().join("agent.sock").display());
    command.args(["serve", "--listen", &listen, "--state-dir"]).arg(dir.path().join("state"));
    command.args(more).stdin(Stdio::null()).spawn().unwrap()
}

/// Lists of the whole machine.
const CONGESTION_CONTROLS: [&str; 2] =
    ["net.ipv4.tcp_allowed_congestion_control", "net.ipv4.tcp_available_congestion_control"];

/// Returns all state that a trial may change in a namespace with these interfaces. Instances of congestion controls (`prague.6cenb`) are
/// left out: other runs on the machine register theirs at any time.
pub fn read_state(namespace: &Namespace, devs: &[&str]) -> String {
    let state = node_state::read_state(|command| namespace.shell(command), devs);
    let without_instances = |line: &str| match line.split_once(" = ") {
        Some((name, list)) if CONGESTION_CONTROLS.contains(&name) => {
            let kept: Vec<&str> =
                list.split(' ').filter(|control| !control.contains('.')).collect();
            format!("{name} = {}\n", kept.join(" "))
        }
        _ => format!("{line}\n"),
    };
    state.lines().map(without_instances).collect()
}

/// Waits until a condition holds. Fails after 10 s, counted in naps, so that time without the CPU does not shorten it.
pub async fn wait_for(what: &str, fact: impl FnMut() -> bool) {
    wait_within(Duration::from_secs(10), what, fact).await;
}

/// Like [`wait_for`], for conditions that a test needs before it can continue.
pub async fn wait_for_setup(what: &str, fact: impl FnMut() -> bool) {
    wait_within(ccbench_tests::SETUP_TIMEOUT, what, fact).await;
}

async fn wait_within(limit: Duration, what: &str, mut fact: impl FnMut() -> bool) {
    const NAP: Duration = Duration::from_millis(10);
    for _ in 0..limit.as_millis() / NAP.as_millis() {
        if fact() {
            return;
        }
        tokio::time::sleep(NAP).await;
    }
    panic!("{what} did not come about within {} s", limit.as_secs());
}

/// A plan in which this node only watches. Preparing it changes nothing, so no root is needed.
pub const IDLE_PLAN: &str = r#"
name = "idle"
[nodes]
one = {}
two = {}
[wires]
w = ["one", "two"]
[probes.rtt]
kind = "ping"
from = "two"
to = "one"
[[phases]]
name = "only"
length = "200ms"
"#;

/// A plan with one node that talks to itself. It has no links, so only loopback is needed.
pub const LOOPBACK_PLAN: &str = r#"
name = "loopback"
[nodes.one]
sysctl = { "net.ipv4.tcp_slow_start_after_idle" = 0 }
[nodes.two]
[wires]
w = ["one", "two"]
[flows.bulk]
from = "one"
to = "two"
cc = "reno"
count = 2
rate = "50mbit"
[probes.rtt]
kind = "ping"
from = "one"
to = "two"
every = "100ms"
[[phases]]
name = "only"
length = "2s"
flows = ["bulk"]
"#;

/// Returns the request to prepare `node` of a plan, in which all nodes have the address 127.0.0.1.
pub fn prepare(plan: &str, node: &str, epoch: u64) -> wire::PrepareRequest {
    let address = |node: &str| (node.to_owned(), "127.0.0.1".to_owned());
    wire::PrepareRequest {
        run_id: "test".into(),
        node: node.into(),
        plan_toml: plan.into(),
        point_id: 0,
        trial: 1,
        seed: 1,
        epoch,
        generation: None,
        boot_id: None,
        file_digests: std::collections::BTreeMap::new(),
        addresses: [address("one"), address("two")].into(),
        port_slot: 3,
        // Longer than any test waits between Prepare and Run.
        lease_ms: 60_000,
        files: std::collections::BTreeMap::new(),
    }
}

/// Returns CLOCK_MONOTONIC in nanoseconds.
pub fn now_ns() -> u64 {
    ccbench_agent::clock::now_ns()
}

/// Whether a path does not exist.
pub fn gone(path: &Path) -> bool {
    !path.exists()
}
