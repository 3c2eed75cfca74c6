//! Two nodes: network namespaces with a wire for the control network and one for data, and an agent on each.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ccbench_tests::namespace::{Namespace, children};
use ccbench_tests::node_state::{bpf_objects, mounts_naming, programs_in, read_state};
use ccbench_tests::{Bench, binary, wait_for};
use rustix::process::{Pid, Signal, kill_process};

use crate::failure::{AgentLog, Failure};
use crate::fault::STATE_FILES;
use crate::service_group::ServiceGroup;

const LISTEN_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// The control interface, and the data interface.
const DEVS: [&str; 2] = ["c", "v"];

/// A process of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The only one.
    Serve,
    /// Loads modules for the worker.
    Loader,
    /// Changes the node.
    Worker,
    /// Serves controllers.
    Front,
}

impl Role {
    const ALL: [Self; 4] = [Self::Serve, Self::Loader, Self::Worker, Self::Front];

    /// Returns the name of its subcommand.
    fn name(self) -> &'static str {
        match self {
            Self::Serve => "serve",
            Self::Loader => "loader",
            Self::Worker => "worker",
            Self::Front => "front",
        }
    }

    /// Returns whether controllers connect to it.
    fn serves_controllers(self) -> bool {
        matches!(self, Self::Serve | Self::Front)
    }
}

/// A node of the testbed.
pub struct Node {
    namespace: Namespace,
    /// The processes of its agent, in the order of their start.
    agent: Vec<(Role, Child)>,
    /// Its address in the control network.
    pub control: &'static str,
    dir: PathBuf,
    /// The control group of its agent; `None` where there is no hierarchy of version 2.
    group: Option<ServiceGroup>,
}

impl Node {
    fn new(bench: &Bench, name: &str, control: &'static str) -> Self {
        let dir = bench.path(name);
        std::fs::create_dir(&dir).unwrap();
        let (namespace, group) = (Namespace::new(), ServiceGroup::new());
        Self { namespace, agent: Vec::new(), control, dir, group }
    }

    /// Returns what a trial may change on this node, in its namespace and outside. Excludes the machine's congestion controls, which other
    /// lanes change.
    pub fn state(&self) -> String {
        let state = read_state(|command| self.namespace.shell(command), &DEVS);
        let is_own = |line: &&str| !line.contains("_congestion_control = ");
        let state: String = state.lines().filter(is_own).map(|line| format!("{line}\n")).collect();
        let groups = self.group.as_ref().map(ServiceGroup::groups).unwrap_or_default();
        let netns = format!("net:[{}]", self.netns_inode());
        let mounts = mounts_naming(&[&self.dir.display().to_string(), &netns]);
        let bpf = bpf_objects(self.namespace.pid());
        format!("{state}# control groups\n{groups}# mounts\n{mounts}# BPF objects\n{bpf}")
    }

    fn netns_inode(&self) -> u64 {
        let file = format!("/proc/{}/ns/net", self.namespace.pid());
        std::fs::metadata(file).unwrap().ino()
    }

    /// Returns whether its agent runs in a control group like that of a service.
    pub fn has_group(&self) -> bool {
        self.group.is_some()
    }

    /// Returns whether a traffic generator runs on it.
    pub fn has_traffic(&self) -> bool {
        programs_in(self.namespace.pid()).iter().any(|name| name == "iperf3")
    }

    /// Starts its agent as one process, with a command line that begins with these words. An agent with a fault may end before it listens.
    pub fn start(&mut self, bench: &Bench, wrapper: &[String]) -> Result<(), Failure> {
        self.start_as(bench, &[(Role::Serve, wrapper)])
    }

    /// Starts its agent as these processes in this order, each with a command line that begins with these words.
    pub fn start_as(
        &mut self,
        bench: &Bench,
        processes: &[(Role, &[String])],
    ) -> Result<(), Failure> {
        self.stop()?;
        for role in Role::ALL {
            // Of an earlier agent.
            let _ = std::fs::remove_file(self.log(role.name()));
        }
        for (role, wrapper) in processes {
            let mut command = self.command(bench, *role, wrapper);
            if *role == Role::Worker && processes.iter().any(|(role, _)| *role == Role::Loader) {
                command.env("CCBENCH_LOADER", self.socket(Role::Loader));
            }
            self.agent.push((*role, command.spawn().unwrap()));
            self.wait_until_listening(*role)?;
        }
        Ok(())
    }

    fn command(&self, bench: &Bench, role: Role, wrapper: &[String]) -> Command {
        let mut command = self.namespace.enter();
        command.args(self.group.iter().flat_map(ServiceGroup::wrapper));
        command.args(wrapper).arg(binary("ccbench-agent"));
        let listen = match role.serves_controllers() {
            true => format!("tcp:{}:7700", self.control),
            false => format!("unix:{}", self.socket(role).display()),
        };
        command.args([role.name(), "--listen", &listen, "--state-dir"]).arg(self.state_dir(role));
        if role.serves_controllers() {
            command.arg("--tls-ca").arg(bench.path("pki/ca.pem"));
            command.arg("--tls-cert").arg(bench.path(&format!("pki/{}.pem", self.control)));
            command.arg("--tls-key").arg(bench.path(&format!("pki/{}.key", self.control)));
        }
        match role {
            Role::Front => {
                command.arg("--worker").arg(self.socket(Role::Worker));
            }
            Role::Worker => {
                command.args(["--front-user", "root"]);
            }
            Role::Serve | Role::Loader => {}
        }
        // By this variable, `Bench::processes` finds its processes.
        command.env("CCBENCH_STATE", bench.path("state"));
        command.env_remove("LD_LIBRARY_PATH");
        command.stdout(Stdio::null()).stderr(File::create(self.log(role.name())).unwrap());
        command
    }

    fn wait_until_listening(&mut self, role: Role) -> Result<(), Failure> {
        let socket = match role.serves_controllers() {
            true => ":7700 ".to_owned(),
            false => format!("{} ", self.socket(role).display()),
        };
        // The fault may also affect its log.
        for _ in 0..LISTEN_TIMEOUT.as_millis() / 20 {
            if !self.is_alive() {
                return Err(self.failure(Failure::AgentEnded));
            }
            if self.namespace.shell("ss -ltxnH").contains(&socket) {
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

    fn log(&self, process: &str) -> PathBuf {
        self.dir.join(format!("{process}.log"))
    }

    /// Returns where a process of the agent listens for others on this machine.
    fn socket(&self, role: Role) -> PathBuf {
        self.dir.join(format!("{}.sock", role.name()))
    }

    /// Returns the state directory of a process. A worker has that of `serve`, which may then undo what the worker has left.
    fn state_dir(&self, role: Role) -> PathBuf {
        self.dir.join(match role {
            Role::Serve | Role::Worker => "state",
            Role::Loader => "loader",
            Role::Front => "front",
        })
    }

    /// Returns the state directory of `serve` or `worker` where `ccbench-agent clean` finds it.
    fn state_dir_for_clean(&self) -> PathBuf {
        self.dir.join(format!("agents/agent-{}", self.netns_inode()))
    }

    /// Returns the files in state directories to which the agent, `undo` and `clean` write.
    pub fn state_files(&self) -> Vec<PathBuf> {
        let dirs = Role::ALL.into_iter().map(|role| self.state_dir(role));
        let dirs = dirs.chain([self.state_dir_for_clean()]);
        dirs.flat_map(|dir| STATE_FILES.map(|name| dir.join(name))).collect()
    }

    /// Returns what the agent, `undo` and `clean` have printed.
    pub fn printed(&self) -> String {
        let logs = Role::ALL.map(Role::name).into_iter().chain(["undo"]);
        logs.map(|name| read(&self.log(name))).collect()
    }

    /// Returns `ccbench-agent undo` for the state directory of its agent, outside of its namespace, with a command line that begins with
    /// these words.
    pub fn undo(&self, wrapper: &[String]) -> Command {
        let mut command = Command::new("env");
        command.args(wrapper).arg(binary("ccbench-agent"));
        command.args(["undo", "--state-dir"]).arg(self.state_dir(Role::Serve));
        self.log_to_file(command, "undo")
    }

    /// Returns `ccbench-agent clean` for its namespace, with a command line that begins with these words. It moves the state directory;
    /// [`Self::take_state_back`] must follow.
    pub fn clean(&self, wrapper: &[String]) -> Command {
        let (from, to) = (self.state_dir(Role::Serve), self.state_dir_for_clean());
        let root = to.parent().unwrap();
        std::fs::create_dir_all(root).unwrap();
        std::fs::rename(from, &to).unwrap();
        let mut command = self.namespace.enter();
        command.args(wrapper).arg(binary("ccbench-agent")).args(["clean", "--root"]).arg(root);
        self.log_to_file(command, "undo")
    }

    /// Moves the state directory back after [`Self::clean`], which removes it if it is empty.
    pub fn take_state_back(&self) {
        let from = self.state_dir_for_clean();
        if from.exists() {
            std::fs::rename(from, self.state_dir(Role::Serve)).unwrap();
        }
    }

    fn log_to_file(&self, mut command: Command, process: &str) -> Command {
        let log = File::create(self.log(process)).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        command.env_remove("LD_LIBRARY_PATH");
        command
    }

    /// Drops all packets to this address from now on, or stops doing so.
    pub fn cut(&self, address: &str, is_cut: bool) {
        let op = if is_cut { "add" } else { "del" };
        self.namespace.shell(&format!("ip route {op} blackhole {address}/32"));
    }

    /// Returns whether all processes of its agent are running.
    pub fn is_alive(&mut self) -> bool {
        let is_running = |(_, process): &mut (Role, Child)| process.try_wait().unwrap().is_none();
        !self.agent.is_empty() && self.agent.iter_mut().all(is_running)
    }

    /// Sends a signal to its agent if it is running.
    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Returns the first process of its agent, or the process that started it.
    pub fn pid(&self) -> Option<u32> {
        self.agent.first().map(|(_, process)| process.id())
    }

    /// Ends its agent with SIGTERM. An agent that does not end is killed, which is an error.
    pub fn stop(&mut self) -> Result<(), Failure> {
        let mut stopped = Ok(());
        // The front ends before its worker.
        while let Some((_, process)) = self.agent.pop() {
            stopped = stopped.and(self.end(process));
        }
        stopped
    }

    fn end(&self, mut process: Child) -> Result<(), Failure> {
        let pids = traced_by(process.id());
        for signal in [Signal::TERM, Signal::KILL] {
            pids.iter().for_each(|pid| send(Some(*pid), signal));
            match (ends(&mut process), signal == Signal::TERM) {
                (true, true) => return Ok(()),
                (true, false) => return Err(self.failure(Failure::IgnoresSigterm)),
                (false, _) => {}
            }
        }
        let _ = process.kill();
        let _ = process.wait();
        Err(self.failure(Failure::NotKilled))
    }

    /// Ends its agent with SIGKILL.
    pub fn kill(&mut self) -> Result<(), Failure> {
        let mut killed = Ok(());
        while let Some((_, mut process)) = self.agent.pop() {
            traced_by(process.id()).into_iter().for_each(|pid| send(Some(pid), Signal::KILL));
            if !ends(&mut process) {
                let _ = process.kill();
                let _ = process.wait();
                killed = Err(self.failure(Failure::NotKilled));
            }
        }
        killed
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

/// Returns whether a process ends within [`STOP_TIMEOUT`].
fn ends(process: &mut Child) -> bool {
    for _ in 0..STOP_TIMEOUT.as_millis() / 20 {
        if process.try_wait().unwrap().is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
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
    // A veth has its carrier a moment after its peer is up, and then an IPv6 address, which is tentative for some seconds.
    wait_for("addresses", Duration::from_secs(20), || {
        nodes.iter().all(|node| {
            let shown = node.namespace.shell("ip address show up");
            let count = |part: &str| shown.matches(part).count();
            (count("state UP"), count("inet6 fe80:"), count("tentative")) == (2, 2, 0)
        })
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
