//! Three nodes in a row in unnamed network namespaces, and links started in the middle one.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::Read;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ccbench_tests::retry_on_intr;
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub const AGENT: &str = env!("CARGO_BIN_EXE_ccbench-agent");
const LIMIT: Duration = Duration::from_secs(30);

/// `la1 10.9.0.1 ─ lb0` (middle) `lc0 ─ lc1 10.9.0.2`.
pub struct Lab {
    holders: Vec<Child>,
    dir: tempfile::TempDir,
}

impl Lab {
    pub fn new() -> Self {
        let holder = || {
            let mut command = Command::new("unshare");
            command.args(["-n", "sleep", "1000"]).spawn().unwrap()
        };
        let holders = (0..3).map(|_| holder()).collect();
        let lab = Self { holders, dir: tempfile::tempdir().unwrap() };
        for node in lab.nodes() {
            let own = std::fs::read_link("/proc/self/ns/net").unwrap();
            wait_for("a namespace", || {
                std::fs::read_link(format!("/proc/{node}/ns/net")).is_ok_and(|it| it != own)
            });
            lab.ip(node, "link set lo up");
        }
        let (left, right) = (lab.left(), lab.right());
        lab.ip(lab.middle(), &format!("link add lb0 type veth peer name la1 netns {left}"));
        lab.ip(lab.middle(), &format!("link add lc0 type veth peer name lc1 netns {right}"));
        for dev in ["lb0", "lc0"] {
            let knob = format!("net/ipv6/conf/{dev}/disable_ipv6");
            inside(lab.middle(), move || std::fs::write(format!("/proc/sys/{knob}"), "1").unwrap());
            lab.ip(lab.middle(), &format!("link set {dev} up"));
        }
        for (node, dev, host) in [(left, "la1", 1), (right, "lc1", 2)] {
            lab.ip(node, &format!("addr add 10.9.0.{host}/24 dev {dev}"));
            lab.ip(node, &format!("addr add fd09::{host}/64 dev {dev} nodad"));
            lab.ip(node, &format!("link set {dev} up"));
        }
        // The kernel reports a new carrier late. Until then, a state would differ from a later one.
        let (middle, right) = (lab.middle(), lab.right());
        for (node, dev) in [(left, "la1"), (middle, "lb0"), (middle, "lc0"), (right, "lc1")] {
            wait_for("a carrier", || {
                lab.ip(node, &format!("link show {dev}")).contains("state UP")
            });
        }
        lab
    }

    fn nodes(&self) -> [u32; 3] {
        [0, 1, 2].map(|node| self.holders[node].id())
    }

    /// Returns a process in the left node.
    pub fn left(&self) -> u32 {
        self.nodes()[0]
    }

    pub fn middle(&self) -> u32 {
        self.nodes()[1]
    }

    pub fn right(&self) -> u32 {
        self.nodes()[2]
    }

    /// Keeps the left node's kernel from sending multicasts of IPv6 by itself.
    pub fn send_no_ipv6(&self) {
        let knob = "/proc/sys/net/ipv6/conf/la1/disable_ipv6";
        inside(self.left(), move || std::fs::write(knob, "1").unwrap());
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns a command line that runs its program inside a node.
    pub fn enter(&self, node: u32) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &node.to_string(), "-n"]);
        command.env("CCBENCH_STATE", self.dir.path().join("state"));
        command.env_remove("MAHIMAHI_BASE").env_remove("CCBENCH_LINK_BLOCK");
        command
    }

    pub fn ip(&self, node: u32, arguments: &str) -> String {
        let ended = run(self.enter(node).arg("ip").args(arguments.split(' ')));
        assert_eq!(ended.code, Some(0), "ip {arguments}: {}", ended.stderr);
        ended.stdout
    }

    /// Starts a link in the middle, and waits until it works.
    pub fn link(&self, flags: &str) -> Running {
        let mut command = self.enter(self.middle());
        command.args([AGENT, "link"]).args(flags.split_whitespace());
        let mut running = Running::start(&mut command);
        let last = if flags.contains("--dev") { "down (" } else { "up (" };
        wait_for("the link", || {
            assert!(!running.has_ended(), "{flags}: {}", running.stderr());
            running.stderr().contains(last)
        });
        running
    }

    /// Runs a link in the middle that is refused.
    pub fn refused(&self, flags: &str) -> Ended {
        run(self.enter(self.middle()).args([AGENT, "link"]).args(flags.split_whitespace()))
    }

    /// Runs a command behind a link of the middle.
    pub fn command(&self, flags: &str, words: &[&str]) -> Ended {
        let mut command = self.enter(self.middle());
        command.args([AGENT, "link"]).args(flags.split_whitespace()).arg("--").args(words);
        run(&mut command)
    }

    /// Returns all state of the middle that a link could change.
    pub fn state_of_middle(&self) -> String {
        let tc = |what: &str| {
            run(self.enter(self.middle()).args(["tc", what, "show", "dev", "lb0"])).stdout
        };
        let filters =
            run(self.enter(self.middle()).args(["tc", "filter", "show", "dev", "lb0", "egress"]));
        let links = self.ip(self.middle(), "-d link show");
        // Excludes counters.
        let offloads = run(self.enter(self.middle()).args(["ethtool", "-k", "lb0"])).stdout;
        format!("{links}\n{}\n{}\n{offloads}", tc("qdisc"), filters.stdout)
    }

    pub fn promiscuity(&self) -> u32 {
        let text = self.ip(self.middle(), "-d link show");
        let counts = text.split("promiscuity ").skip(1);
        counts.map(|rest| rest.split_whitespace().next().unwrap().parse::<u32>().unwrap()).sum()
    }

    /// Returns the number of packets that an interface has received.
    pub fn received(&self, node: u32, dev: &str) -> u64 {
        let text = self.ip(node, &format!("-j -s link show {dev}"));
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        json[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for holder in &mut self.holders {
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

/// How a command ended.
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

pub fn run(command: &mut Command) -> Ended {
    Running::start(command).wait()
}

/// A process whose output is collected.
pub struct Running {
    child: KilledOnDrop,
    outputs: [Output; 2],
}

/// Kills a process on drop, so that a failing test leaves none behind.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Output {
    text: Arc<std::sync::Mutex<String>>,
    reader: std::thread::JoinHandle<()>,
}

impl Output {
    fn new(mut from: impl Read + Send + 'static) -> Self {
        let text = Arc::new(std::sync::Mutex::new(String::new()));
        let shared = Arc::clone(&text);
        let reader = std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut chunk) {
                shared.lock().unwrap().push_str(&String::from_utf8_lossy(&chunk[..count]));
            }
        });
        Self { text, reader }
    }
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let outputs =
            [Output::new(child.stdout.take().unwrap()), Output::new(child.stderr.take().unwrap())];
        Self { child: KilledOnDrop(child), outputs }
    }

    pub fn stdout(&self) -> String {
        self.outputs[0].text.lock().unwrap().clone()
    }

    pub fn stderr(&self) -> String {
        self.outputs[1].text.lock().unwrap().clone()
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.0.try_wait().unwrap().is_some()
    }

    pub fn kill(&mut self) {
        self.child.0.kill().unwrap();
        self.child.0.wait().unwrap();
    }

    /// Sends a signal and waits for the end.
    pub fn end(self, signal: Signal) -> Ended {
        kill(Pid::from_raw(self.child.0.id() as i32), signal).unwrap();
        self.wait()
    }

    pub fn wait(mut self) -> Ended {
        let mut code = None;
        wait_for("the end of a process", || match self.child.0.try_wait().unwrap() {
            Some(status) => {
                code = status.code();
                true
            }
            None => false,
        });
        let [stdout, stderr] = self.outputs.map(|output| {
            output.reader.join().unwrap();
            output.text.lock().unwrap().clone()
        });
        Ended { code, stdout, stderr }
    }

    /// Whether a process of this name runs below it.
    pub fn runs(&self, name: &str) -> bool {
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", self.youngest_child()));
        comm.is_ok_and(|comm| comm.trim() == name)
    }

    /// Returns the first child's first child, and so on.
    pub fn youngest_child(&self) -> u32 {
        let mut pid = self.child.0.id();
        loop {
            let path = format!("/proc/{pid}/task/{pid}/children");
            let children = std::fs::read_to_string(path).unwrap_or_default();
            match children.split_whitespace().next() {
                Some(child) => pid = child.parse().unwrap(),
                None => return pid,
            }
        }
    }
}

/// Runs a closure on a thread in the network namespace of a process.
pub fn inside<T: Send + 'static>(node: u32, run: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        let namespace = std::fs::File::open(format!("/proc/{node}/ns/net")).unwrap();
        setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
        run()
    });
    thread.join().unwrap()
}

/// Echoes what arrives at port 7007 of an address, until dropped.
pub struct Echo {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

pub fn udp_echo(node: u32, address: &'static str) -> Echo {
    let stop = Arc::new(AtomicBool::new(false));
    let socket = inside(node, move || UdpSocket::bind((address, 7007)).unwrap());
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let stopped = Arc::clone(&stop);
    let thread = std::thread::spawn(move || {
        let mut bytes = [0; 2000];
        while !stopped.load(Ordering::Relaxed) {
            if let Ok((count, from)) = socket.recv_from(&mut bytes) {
                let _ = socket.send_to(&bytes[..count], from);
            }
        }
    });
    Echo { stop, thread: Some(thread) }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Returns the shortest of several round trips to the echo at an address of either family. Messages are numbered, so a
/// late answer to an earlier message does not count for the last one.
pub fn exchange(address: &str, text: &'static [u8]) -> Duration {
    let any = if address.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let mut times = Vec::new();
    for number in 0..40_u8 {
        let message = [text, &[number]].concat();
        let sent = Instant::now();
        if socket.send_to(&message, (address, 7007)).is_err() {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        }
        let mut bytes = [0; 2000];
        while let Ok(count) = retry_on_intr(|| socket.recv(&mut bytes)) {
            assert_eq!(&bytes[..count - 1], text);
            if bytes[count - 1] == number {
                times.push(sent.elapsed());
                break;
            }
        }
        if times.len() == 5 {
            break;
        }
    }
    times.into_iter().min().unwrap_or_else(|| panic!("no answer from {address}"))
}

/// Sends packets as fast as possible.
pub fn blast(to: &str, count: usize, bytes: usize) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    for _ in 0..count {
        socket.send_to(&vec![0; bytes], to).unwrap();
    }
}

/// Waits until a condition holds.
pub fn wait_for(what: &str, fact: impl FnMut() -> bool) {
    ccbench_tests::wait_for(what, LIMIT, fact);
}
