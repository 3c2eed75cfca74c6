//! The agents as child processes: starts, watches and stops them.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};

use super::control_input::{ControlInput, Wake};
use super::error::TestbedError;
use super::record::{log_path, socket_path};
use crate::clock;

/// How long an agent may take to listen.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two checks whether it listens.
const READY_STEP: Duration = Duration::from_millis(2);
/// How long an agent may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// How much of a dead agent's log its error message includes.
const LOG_TAIL_BYTES: usize = 600;

/// Starts, reaps and stops the agents of a testbed.
#[derive(Debug)]
pub struct ChildReaper {
    dir: PathBuf,
    running: BTreeMap<i32, String>,
}

impl ChildReaper {
    /// Starts without children. Makes this process the reaper of orphaned descendants, so that it can wait for all of them.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn new(dir: &Path) -> Result<Self, TestbedError> {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(TestbedError::system("become the reaper of orphans"))?;
        Ok(Self { dir: dir.to_owned(), running: BTreeMap::new() })
    }

    /// Starts a node's agent in the namespace at `netns`. Returns its pid.
    ///
    /// # Errors
    /// The program or its log could not be opened.
    #[expect(clippy::disallowed_methods, reason = "starts agents")]
    pub fn start(&mut self, node: &str, bin: &Path, netns: &Path) -> Result<u32, TestbedError> {
        let fail =
            |source| TestbedError::Spawn { node: node.to_owned(), bin: bin.to_owned(), source };
        let log = File::create(log_path(&self.dir, node)).map_err(fail)?;
        let listen = format!("unix:{}", socket_path(&self.dir, node).display());
        let child = Command::new(bin)
            .args(["serve", "--listen", &listen, "--node", node])
            .args(["--die-with-parent", "--ephemeral", "--netns"])
            .arg(netns)
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(fail)?)
            .stderr(log)
            .spawn()
            .map_err(fail)?;
        self.running.insert(child.id().cast_signed(), node.to_owned());
        Ok(child.id())
    }

    /// Waits until every agent accepts connections.
    ///
    /// # Errors
    /// An agent ended or takes too long, or the testbed is asked to stop.
    pub fn wait_ready(&mut self, input: &ControlInput) -> Result<(), TestbedError> {
        let deadline_ns = clock::now_ns() + READY_TIMEOUT.as_nanos() as u64;
        let mut waiting: Vec<String> = self.running.values().cloned().collect();
        loop {
            waiting.retain(|node| UnixStream::connect(socket_path(&self.dir, node)).is_err());
            let Some(node) = waiting.first().cloned() else { return Ok(()) };
            if clock::now_ns() > deadline_ns {
                return Err(TestbedError::AgentSilent {
                    socket: socket_path(&self.dir, &node),
                    seconds: READY_TIMEOUT.as_secs(),
                    log: log_path(&self.dir, &node),
                    node,
                });
            }
            match input.wait(Some(READY_STEP))? {
                Wake::Stop => return Err(TestbedError::Stopped),
                Wake::Timeout | Wake::Child => {}
            }
            if let Some((node, status)) = self.reap().into_iter().next() {
                return Err(TestbedError::AgentDied { node, status });
            }
        }
    }

    /// Returns the agents that have ended since the last call, and how.
    pub fn reap(&mut self) -> Vec<(String, String)> {
        let mut ended = Vec::new();
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if let Some(node) = self.running.remove(&pid.as_raw_nonzero().get()) {
                let log = log_tail(&log_path(&self.dir, &node));
                ended.push((node, format!("{}{log}", describe(status))));
            }
        }
        ended
    }

    /// Stops all agents and orphans: SIGTERM first, then SIGKILL.
    pub fn stop(&mut self, input: &ControlInput) {
        for signal in [Signal::TERM, Signal::KILL] {
            let deadline_ns = clock::now_ns() + STOP_TIMEOUT.as_nanos() as u64;
            for pid in self.living() {
                let _ = kill_process(pid, signal);
            }
            while !self.all_gone() {
                let left = clock::until(deadline_ns);
                if left.is_zero() {
                    break;
                }
                if self.running.is_empty() {
                    // The remaining orphans were started by an agent that has ended.
                    for pid in self.living() {
                        let _ = kill_process(pid, Signal::KILL);
                    }
                }
                input.wait_child(left);
            }
        }
    }

    /// Returns all living children, own and adopted. They have not been waited for, so their pids cannot have been reused.
    fn living(&self) -> Vec<Pid> {
        let own = std::process::id();
        let listed = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children"));
        let adopted = listed.unwrap_or_default();
        let adopted = adopted.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
        let mut pids: Vec<i32> = self.running.keys().copied().chain(adopted).collect();
        pids.sort_unstable();
        pids.dedup();
        pids.into_iter().filter_map(Pid::from_raw).collect()
    }

    /// Reaps ended children. Returns true when none is left.
    fn all_gone(&mut self) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, _))) => {
                    self.running.remove(&pid.as_raw_nonzero().get());
                }
                Ok(None) => return false,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return true,
            }
        }
    }
}

fn describe(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (_, Some(signal)) => format!("signal {signal}"),
        _ => "unknown".to_owned(),
    }
}

/// Returns `": "` and the end of a log on one line; empty without a log.
fn log_tail(log: &Path) -> String {
    let bytes = std::fs::read(log).unwrap_or_default();
    let tail = &bytes[bytes.len().saturating_sub(LOG_TAIL_BYTES)..];
    let text = String::from_utf8_lossy(tail);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() { String::new() } else { format!(": {}", lines.join(" | ")) }
}
