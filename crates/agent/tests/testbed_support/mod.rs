//! Starts testbeds and proves that they are gone.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

pub const AGENT: &str = env!("CARGO_BIN_EXE_ccbench-agent");
/// A user without any rights, on every distribution.
pub const NOBODY: u32 = 65534;
pub const PLAN: &str = r#"
name = "testbed"

[nodes]
src      = {}
router   = {}
emulator = {}
dst      = {}

[wires]
path = ["src", "router", "emulator", "dst"]

[flows.first]
from = "src"
to   = "dst"

[[phases]]
name   = "only"
length = "5s"
flows  = ["first"]
"#;

/// Runs one test at a time, because they inspect all processes of the machine, and only as root.
pub fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    assert!(nix::unistd::geteuid().is_root(), "these tests make namespaces: run them as root");
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a directory that every user may enter.
pub fn scratch() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// How to start a testbed.
pub struct Start {
    pub plan: String,
    pub dir: Option<PathBuf>,
    pub make_dir: bool,
    pub agent_bin: Option<String>,
    pub user: Option<u32>,
    /// The program to run.
    pub program: PathBuf,
}

impl Default for Start {
    fn default() -> Self {
        Self {
            plan: PLAN.into(),
            dir: None,
            make_dir: true,
            agent_bin: None,
            user: None,
            program: AGENT.into(),
        }
    }
}

impl Start {
    /// Starts it in `self.dir` and sends the plan.
    pub fn spawn(&self) -> Child {
        let dir = self.dir.as_deref().unwrap();
        if self.make_dir {
            fs::create_dir_all(dir).unwrap();
        }
        if let Some(user) = self.user {
            std::os::unix::fs::chown(dir, Some(user), Some(user)).unwrap();
        }
        let mut command = Command::new(&self.program);
        command.args(["testbed", "--dir"]).arg(dir);
        if let Some(bin) = &self.agent_bin {
            command.args(["--agent-bin", bin]);
        }
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        send_plan(&mut child, &self.plan);
        child
    }
}

/// Writes the plan. A testbed that has already given up closes its end of the pipe.
pub fn send_plan(child: &mut Child, plan: &str) {
    let _ = child.stdin.as_mut().unwrap().write_all(format!("{plan}\n---END---\n").as_bytes());
}

/// Returns the first line of a testbed's standard output.
pub fn first_line(child: &mut Child) -> Value {
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"))
}

/// A testbed that has become ready.
pub struct Bed {
    pub child: Child,
    pub dir: PathBuf,
    pub ready: Value,
    /// What must be gone after its end.
    pub traces: Traces,
    program: PathBuf,
    life_line: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    _scratch: TempDir,
}

impl Bed {
    /// Starts the testbed and waits until it is ready. Another user runs a copy of the program, because only root may
    /// be able to read the original.
    pub fn start(start: Start) -> Self {
        let scratch = scratch();
        let mut program = start.program.clone();
        if start.user.is_some() {
            program = scratch.path().join("ccbench-agent");
            // Copied by another process: if a thread of this one forked meanwhile, its child would keep the copy open for writing
            // (ETXTBSY).
            assert!(Command::new("cp").arg(AGENT).arg(&program).status().unwrap().success());
        }
        let dir = start.dir.clone().unwrap_or_else(|| scratch.path().join("bed"));
        let start = Start { dir: Some(dir.clone()), program, ..start };
        let mut child = start.spawn();
        let life_line = child.stdin.take();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(ready["ready"], true, "{ready}");
        let traces = Traces::new(&ready, &dir);
        let program = start.program;
        Self { child, dir, ready, traces, program, life_line, stdout, _scratch: scratch }
    }

    /// Returns a command that runs inside a node, as `user`.
    pub fn enter(&self, node: &str, command: &[&str], user: Option<u32>) -> Command {
        let mut enter = Command::new(&self.program);
        enter.arg("enter").arg("--dir").arg(&self.dir).args([node, "--"]).args(command);
        if let Some(user) = user {
            enter.uid(user).gid(user);
        }
        enter
    }

    pub fn next_line(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().try_into().unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    pub fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.dir).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Ends the testbed in order, and checks that nothing is left.
    pub fn end_by_closing_stdin(mut self) {
        drop(self.life_line.take());
        assert!(self.child.wait().unwrap().success());
        // No need to wait: the testbed has waited.
        assert_eq!(processes_naming(&self.traces.dir), Vec::<u32>::new());
        self.traces.must_vanish();
        assert_eq!(self.files(), Vec::<String>::new());
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processes and namespaces of a testbed.
pub struct Traces {
    agents: Vec<(u32, u64)>,
    namespaces: Vec<u64>,
    dir: String,
    /// When these were recorded, in clock ticks since boot.
    now: u64,
}

impl Traces {
    fn new(ready: &Value, dir: &Path) -> Self {
        let nodes = ready["nodes"].as_object().unwrap();
        let number = |node: &Value, key: &str| node[key].as_u64().unwrap();
        let agents: Vec<(u32, u64)> = nodes
            .values()
            .map(|node| (number(node, "pid").try_into().unwrap(), number(node, "starttime")))
            .collect();
        assert_eq!(agents.len(), 4);
        for &(pid, born) in &agents {
            assert_eq!(starttime(pid), Some(born));
        }
        let namespaces = nodes.values().map(|node| number(node, "netns_inode")).collect();
        let dir = dir.to_str().unwrap().to_owned();
        let traces = Self { agents, namespaces, dir, now: uptime() };
        assert_eq!(traces.holders().len(), 5, "the testbed, and each agent in its own namespace");
        traces
    }

    pub fn must_vanish(&self) {
        wait_for("the end of every agent", || {
            self.agents.iter().all(|&(pid, born)| starttime(pid) != Some(born))
                && processes_naming(&self.dir).is_empty()
        });
        wait_for("the end of every namespace", || self.holders().is_empty());
    }

    /// Returns the processes inside one of the namespaces or with a descriptor of one. The kernel reuses inode numbers,
    /// so only processes that existed before count.
    fn holders(&self) -> Vec<u32> {
        let ours = |path: PathBuf| {
            let target = fs::read_link(path).unwrap_or_default();
            self.namespaces.iter().any(|inode| target.as_os_str() == &*format!("net:[{inode}]"))
        };
        let holds = |pid: &u32| {
            let opened = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            ours(format!("/proc/{pid}/ns/net").into()) || opened.map(|e| e.path()).any(ours)
        };
        let before = |pid: &u32| starttime(*pid).is_some_and(|born| born <= self.now);
        pids().filter(before).filter(holds).collect()
    }
}

/// Returns when a process started, in clock ticks since boot; `None` if it has ended.
pub fn starttime(pid: u32) -> Option<u64> {
    ccbench_agent::testbed::identity::ProcessIdentity::of(pid)
        .ok()
        .map(|identity| identity.starttime)
}

fn uptime() -> u64 {
    let text = fs::read_to_string("/proc/uptime").unwrap();
    let (seconds, _) = text.split_once(' ').unwrap();
    let ticks_per_second = 100.0;
    (seconds.parse::<f64>().unwrap() * ticks_per_second).ceil() as u64
}

/// Returns every process except this one with `text` in its command line.
pub fn processes_naming(text: &str) -> Vec<u32> {
    let naming = |pid: u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(text.len()).any(|part| part == text.as_bytes())
    };
    pids().filter(|&pid| pid != std::process::id() && naming(pid)).collect()
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Waits until a condition holds.
pub fn wait_for(what: &str, fact: impl Fn() -> bool) {
    ccbench_tests::wait_for(what, Duration::from_secs(10), fact);
}
