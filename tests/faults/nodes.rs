//! Two nodes: network namespaces with a wire for the control network and one for data, and an agent on each.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ccbench_tests::namespace::{Namespace, children};
use ccbench_tests::node_state::read_state;
use ccbench_tests::{Bench, binary, wait_for};
use rustix::process::{Pid, Signal, kill_process};

use crate::failure::{AgentLog, Failure};

const LISTEN_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// The control interface, and the data interface.
const DEVS: [&str; 2] = ["c", "v"];

/// A node of the testbed.
pub struct Node {
    namespace: Namespace,
    agent: Option<Child>,
    /// Its address in the control network.
    pub control: &'static str,
    dir: PathBuf,
}

impl Node {
    fn new(bench: &Bench, name: &str, control: &'static str) -> Self {
        let node =
            Self { namespace: Namespace::new(), agent: None, control, dir: bench.path(name) };
        std::fs::create_dir(&node.dir).unwrap();
        node
    }

    /// Returns what a trial may change in this namespace. Excludes the machine's congestion controls, which other lanes change.
    pub fn state(&self) -> String {
        let state = read_state(|command| self.namespace.shell(command), &DEVS);
        let is_own = |line: &&str| !line.contains("_congestion_control = ");
        state.lines().filter(is_own).map(|line| format!("{line}\n")).collect()
    }

    /// Starts its agent with a command line that begins with these words. An agent with a fault may end before it listens.
    pub fn start(&mut self, bench: &Bench, wrapper: &[String]) -> Result<(), Failure> {
        self.stop()?;
        let mut command = self.namespace.enter();
        command.args(wrapper).arg(binary("ccbench-agent"));
        command.args(["serve", "--listen", &format!("tcp:{}:7700", self.control), "--state-dir"]);
        command.arg(self.dir.join("state")).arg("--tls-ca").arg(bench.path("pki/ca.pem"));
        command.arg("--tls-cert").arg(bench.path(&format!("pki/{}.pem", self.control)));
        command.arg("--tls-key").arg(bench.path(&format!("pki/{}.key", self.control)));
        // By this variable, `Bench::processes` finds its processes.
        command.env("CCBENCH_STATE", bench.path("state"));
        command.env_remove("LD_LIBRARY_PATH");
        command.stdout(Stdio::null()).stderr(File::create(self.log()).unwrap());
        self.agent = Some(command.spawn().unwrap());
        // The fault may also affect its log.
        for _ in 0..LISTEN_TIMEOUT.as_millis() / 20 {
            if !self.is_alive() {
                return Err(self.failure(Failure::AgentEnded));
            }
            if self.namespace.shell("ss -ltnH").contains(":7700 ") {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(self.failure(Failure::NotListening))
    }

    /// Starts its agent unless it is running.
    pub fn ensure_started(&mut self, bench: &Bench) -> Result<(), Failure> {
        if self.is_alive() { Ok(()) } else { self.start(bench, &[]) }
    }

    /// Returns a failure of its agent, which may be running or have ended.
    pub fn failure(&self, of: fn(AgentLog) -> Failure) -> Failure {
        of(AgentLog { node: self.control, printed: self.printed() })
    }

    fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Returns what the agent has printed.
    pub fn printed(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Drops all packets to this address from now on, or stops doing so.
    pub fn cut(&self, address: &str, is_cut: bool) {
        let op = if is_cut { "add" } else { "del" };
        self.namespace.shell(&format!("ip route {op} blackhole {address}/32"));
    }

    /// Returns whether its agent is running.
    pub fn is_alive(&mut self) -> bool {
        self.agent.as_mut().is_some_and(|agent| agent.try_wait().unwrap().is_none())
    }

    /// Sends a signal to its agent if it is running.
    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Returns the process of its agent, or the process that started it.
    pub fn pid(&self) -> Option<u32> {
        self.agent.as_ref().map(Child::id)
    }

    /// Ends its agent with SIGTERM. An agent that does not end is killed, which is an error.
    pub fn stop(&mut self) -> Result<(), Failure> {
        let Some(mut agent) = self.agent.take() else { return Ok(()) };
        let pids = traced_by(agent.id());
        for signal in [Signal::TERM, Signal::KILL] {
            pids.iter().for_each(|pid| send(Some(*pid), signal));
            for _ in 0..STOP_TIMEOUT.as_millis() / 20 {
                if agent.try_wait().unwrap().is_none() {
                    std::thread::sleep(Duration::from_millis(20));
                } else if signal == Signal::TERM {
                    return Ok(());
                } else {
                    return Err(self.failure(Failure::IgnoresSigterm));
                }
            }
        }
        let _ = agent.kill();
        let _ = agent.wait();
        Err(self.failure(Failure::NotKilled))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

/// Sends a signal to a process, which may have ended.
pub fn send(pid: Option<u32>, signal: Signal) {
    if let Some(pid) = pid.and_then(|pid| Pid::from_raw(pid as i32)) {
        let _ = kill_process(pid, signal);
    }
}

/// Returns this process or, if it is strace, its children.
pub fn traced_by(pid: u32) -> Vec<u32> {
    let name = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if name(pid).trim() != "strace" {
        return vec![pid];
    }
    children(pid)
}

/// Returns node a, which shapes and sends, and node b.
pub fn pair(bench: &Bench) -> [Node; 2] {
    let nodes = [Node::new(bench, "a", "10.8.0.1"), Node::new(bench, "b", "10.8.0.2")];
    let [a, b] = &nodes;
    for (dev, net) in [("c", "10.8.0"), ("v", "10.9.0")] {
        let there = b.namespace.pid();
        a.namespace.shell(&format!("ip link add {dev} type veth peer name {dev} netns {there}"));
        a.namespace.shell(&format!("ip addr add {net}.1/24 dev {dev} && ip link set {dev} up"));
        b.namespace.shell(&format!("ip addr add {net}.2/24 dev {dev} && ip link set {dev} up"));
    }
    // IPv6 addresses are tentative for some seconds.
    wait_for("addresses", Duration::from_secs(20), || {
        nodes.iter().all(|node| !node.namespace.shell("ip address").contains("tentative"))
    });
    nodes
}

/// Creates the certificates of both nodes and of the controller.
pub fn certificates(bench: &Bench) {
    for arguments in
        [&["init", "pki"][..], &["node", "pki", "10.8.0.1"], &["node", "pki", "10.8.0.2"]]
    {
        let output = bench.run(&[&["pki"], arguments].concat());
        assert!(output.status.success(), "{output:?}");
    }
}

/// Returns `ccbench ARGS` on node a, with a command line that begins with these words. It prints to the files of [`Bench::printed`].
pub fn controller(bench: &Bench, node: &Node, wrapper: &[String], arguments: &[&str]) -> Command {
    controller_into(bench, node, wrapper, arguments, ["out", "err"])
}

/// Returns the same, with other files.
pub fn controller_into(
    bench: &Bench,
    node: &Node,
    wrapper: &[String],
    arguments: &[&str],
    [out, err]: [&str; 2],
) -> Command {
    let mut command = node.namespace.enter();
    command.args(wrapper).arg(binary("ccbench")).args(arguments).current_dir(bench.path(""));
    command.env("CCBENCH_STATE", bench.path("state"));
    // Cargo's directories: each adds calls of openat() before the libraries are found, into which no fault is injected.
    command.env_remove("LD_LIBRARY_PATH");
    let file = |name: &str| Stdio::from(File::create(bench.path(name)).unwrap());
    command.stdout(file(out)).stderr(file(err));
    command
}

/// Writes a plan with two trials that change all that a trial can change: a kernel link and a userspace link, a sysctl, offloads, one of
/// ccbench's congestion controls. A flow runs for twice the time within which it must start (1 s, `flow_late`), so that the CPU time that a
/// busy machine takes from iperf3 does not decide whether data arrives.
pub fn plan(bench: &Bench) -> PathBuf {
    bench.write(
        "plan.toml",
        r#"
name = "faults"
repeat = 2
[nodes.a]
agent = "10.8.0.1:7700"
address = "10.9.0.1"
sysctl = { "net.ipv4.tcp_no_metrics_save" = 1, "net.ipv4.tcp_wmem" = "4096 16384 8388608" }
[nodes.b]
agent = "10.8.0.2:7700"
address = "10.9.0.2"
[links.there]
node = "a"
dev = "v"
rate = "5mbit"
backend = "kernel"
queue = { kind = "bfifo", limit = "50000B" }
[links.back]
node = "b"
dev = "v"
delay = "2ms"
backend = "userspace"
[flows.f]
from = "a"
to = "b"
cc = "ours"
[cc.ours]
algorithm = "vegas"
[probes.rtt]
kind = "ping"
from = "a"
to = "b"
every = "100ms"
[[phases]]
name = "only"
length = "2s"
flows = ["f"]
"#,
    )
}

/// Returns a file as text; empty if it cannot be read.
pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
