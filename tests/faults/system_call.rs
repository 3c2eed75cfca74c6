//! Injects faults into system calls, and checks what must hold after those of each process.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use ccbench_tests::{binary, text};

use crate::failure::Failure;
use crate::fault::{Fault, counting, is_impossible};
use crate::lane::{FaultResult, Lane, wait_until_empty};
use crate::nodes::read;
use crate::victim::Victim;

/// A run with trials of 300 ms, which may have any verdict. If the fault has ended an agent, the run does not wait long for another one.
const FAULTED: [&str; 8] =
    ["run", "plan.toml", "--set", "phases.0.length=300ms", "--await-nodes", "3s", "--pki", "pki"];
/// The same for a loader, which loads congestion controls that are modules. Where there is none, the trials are refused.
const LOADED: [&str; 10] = [
    "run",
    "plan.toml",
    "--set",
    "phases.0.length=300ms",
    "--set",
    "cc.ours.via=\"module\"",
    "--await-nodes",
    "3s",
    "--pki",
    "pki",
];
/// A run whose trials must be ok, at the latest after it was resumed.
const CONTROLLED: [&str; 6] = ["run", "plan.toml", "--await-nodes", "3s", "--pki", "pki"];
/// A testbed of two nodes.
const TESTBED: &str = r#"
name = "testbed"
[nodes]
a = {}
b = {}
[wires]
w = ["a", "b"]
[flows.f]
from = "a"
to = "b"
[[phases]]
name = "only"
length = "1s"
flows = ["f"]
---END---
"#;
/// Within this time, a testbed is ready or says why not.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the run that gets a fault of an agent's process.
fn arguments(victim: Victim) -> &'static [&'static str] {
    if victim == Victim::Loader { &LOADED } else { &FAULTED }
}

impl Lane {
    /// Returns all system calls of a process that gets no fault.
    pub fn count(&mut self, victim: Victim) -> Result<String, Failure> {
        let trace = self.bench.path("trace");
        let strace = counting(&trace);
        match victim {
            Victim::Controller => {
                self.start(&[])?;
                let status = self.run(&strace, &CONTROLLED)?;
                self.check_code(status, false)?;
                self.check_results(Some(2))?;
            }
            Victim::Undo | Victim::Clean => {
                self.interrupt_trial()?;
                let status = self.undo(victim, &strace)?;
                self.check_undone(status, false)?;
            }
            Victim::Testbed => {
                self.hold_testbed(&strace)?;
            }
            Victim::Agent | Victim::Worker | Victim::Front | Victim::Loader => {
                let status = self.run_with_agent(victim, &strace, arguments(victim))?;
                status.map_or(Ok(()), |status| self.check_code(status, false))?;
                self.nodes[0].stop()?;
                // On a kernel without modules, the run ends with its first trial, which is refused.
                self.check_results((victim != Victim::Loader).then_some(2))?;
            }
        }
        Ok(read(&trace))
    }

    /// Injects a fault, and checks what must hold afterwards.
    pub fn fault(&mut self, fault: &Fault) -> Result<FaultResult, Failure> {
        let survived = match fault.victim {
            Victim::Controller => self.fault_controller(fault),
            Victim::Undo | Victim::Clean => self.fault_undo(fault),
            Victim::Testbed => self.fault_testbed(fault),
            Victim::Agent | Victim::Worker | Victim::Front | Victim::Loader => {
                self.fault_agent(fault)
            }
        };
        let traced = read(&self.bench.path("calls"));
        // Such a fault may also make the process hang.
        if is_impossible(&traced) {
            return self.replace_nodes();
        }
        Ok(FaultResult { code: survived?, injected: fault.was_injected(&traced) })
    }

    /// Returns the beginning of a command line whose program gets the fault.
    fn strace(&self, fault: &Fault) -> Vec<String> {
        let calls = self.bench.path("calls");
        // Of an earlier fault, in case strace does not start.
        let _ = std::fs::remove_file(&calls);
        fault.strace(&calls, &self.nodes[0].state_files())
    }

    fn fault_agent(&mut self, fault: &Fault) -> Result<Option<i32>, Failure> {
        let strace = self.strace(fault);
        let status = self.run_with_agent(fault.victim, &strace, arguments(fault.victim))?;
        // A loader ends by itself when it has no requests, and systemd starts one for the next request.
        let mut may_end = fault.kills() || fault.victim == Victim::Loader;
        if fault.hides_signals() {
            if status.is_some() && !may_end && !self.nodes[0].is_alive() {
                return Err(self.nodes[0].failure(Failure::AgentEnded));
            }
            self.nodes[0].kill()?;
            may_end = true;
        }
        self.check_agent(status, may_end)
    }

    fn fault_controller(&mut self, fault: &Fault) -> Result<Option<i32>, Failure> {
        self.ensure_started()?;
        let status = self.run(&self.strace(fault), &CONTROLLED)?;
        self.check_controller(status, fault.kills())?;
        Ok(status.code())
    }

    /// Injects a fault into the undo of what a killed agent has left. Whatever it says must be true, and the next agent undoes the rest.
    fn fault_undo(&mut self, fault: &Fault) -> Result<Option<i32>, Failure> {
        self.interrupt_trial()?;
        let status = self.undo(fault.victim, &self.strace(fault))?;
        self.check_undone(status, fault.kills())?;
        self.start(&[])?;
        self.check_after()?;
        Ok(status.code())
    }

    fn undo(&self, victim: Victim, wrapper: &[String]) -> Result<ExitStatus, Failure> {
        let node = &self.nodes[0];
        let is_clean = victim == Victim::Clean;
        let mut command = if is_clean { node.clean(wrapper) } else { node.undo(wrapper) };
        command.env("CCBENCH_STATE", self.bench.path("state"));
        let ended = self.wait(command.spawn().unwrap());
        if is_clean {
            node.take_state_back();
        }
        ended
    }

    /// Checks that `undo` or `clean` ended with 0 only if node a is as it was.
    fn check_undone(&self, status: ExitStatus, may_be_killed: bool) -> Result<(), Failure> {
        let printed = self.nodes[0].printed();
        match status.code() {
            Some(0) => {
                let left = self.changes(&[0]);
                if left.is_empty() { Ok(()) } else { Err(Failure::LeftByUndo { left, printed }) }
            }
            Some(1) => Ok(()),
            None if may_be_killed => Ok(()),
            _ => Err(Failure::Undo { status, printed }),
        }
    }

    /// Injects a fault into a testbed, which may not become ready. Nothing is left of it, and the next one is ready.
    fn fault_testbed(&mut self, fault: &Fault) -> Result<Option<i32>, Failure> {
        let (status, printed) = self.hold_testbed(&self.strace(fault))?;
        let is_expected = match status.code() {
            Some(code) => code < 2,
            None => fault.kills(),
        };
        if !is_expected || printed.contains("panicked") {
            return Err(Failure::Testbed { status, printed });
        }
        let left = self.sweep_testbeds();
        // A testbed that cannot remove its own files reports an error.
        if !left.is_empty() && !fault.call.starts_with("unlink") {
            return Err(Failure::NotFree { left });
        }
        let _ = std::fs::remove_dir_all(self.bench.path("testbeds"));
        let (next, printed) = self.hold_testbed(&[])?;
        if !next.success() || !printed.contains("\"ready\":true") {
            return Err(Failure::Testbed { status: next, printed });
        }
        Ok(status.code())
    }

    /// Starts a testbed with a command line that begins with these words, waits until it is ready or has ended, and ends it. Waits until its
    /// processes, and so its namespaces, are gone. Returns what it has printed, too.
    fn hold_testbed(&self, wrapper: &[String]) -> Result<(ExitStatus, String), Failure> {
        let (dir, err) = (self.bench.path("testbeds/one"), self.bench.path("testbed.err"));
        std::fs::create_dir_all(&dir).unwrap();
        let mut command = Command::new("env");
        command.args(wrapper).arg(binary("ccbench-agent")).args(["testbed", "--dir"]).arg(&dir);
        command.env("CCBENCH_STATE", self.bench.path("state")).env_remove("LD_LIBRARY_PATH");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&err).unwrap());
        let mut child = command.spawn().unwrap();
        let (send, receive) = mpsc::channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).try_for_each(|line| send.send(line))
        });
        let mut input = child.stdin.take().unwrap();
        // A testbed that has ended reads nothing.
        let _ = input.write_all(TESTBED.as_bytes());
        let ready = receive.recv_timeout(READY_TIMEOUT).unwrap_or_default();
        drop(input);
        let status = self.wait(child)?;
        wait_until_empty(|| {
            let left = self.bench.processes();
            left.iter().map(|(pid, line)| format!("+ process {pid}: {line}\n")).collect()
        })?;
        Ok((status, ready + "\n" + &read(&err)))
    }

    /// Removes what dead testbeds have left, like the next testbed. Returns what stays.
    fn sweep_testbeds(&self) -> String {
        let root = self.bench.path("testbeds");
        let mut command = Command::new(binary("ccbench-agent"));
        let output = command.args(["clean", "--root"]).arg(&root).output().unwrap();
        let left = std::fs::read_dir(&root).into_iter().flatten().flatten();
        let left: String = left.map(|entry| format!("+ {}\n", entry.path().display())).collect();
        if left.is_empty() { left } else { left + &text(&output) }
    }
}
