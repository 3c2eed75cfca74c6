//! A pair of nodes on which faults happen one after another, and the checks after each.

use std::process::{Child, ExitStatus};
use std::time::Duration;

use ccbench_tests::cpu::{CpuReport, CpuWatch};
use ccbench_tests::node_state::difference;
use ccbench_tests::{Bench, text};
use rustix::process::Signal;

use crate::failure::{AgentLog, Failure};
use crate::nodes::{Node, Role, certificates, controller, pair, plan, read, send, traced_by};
use crate::victim::Victim;

/// A run whose trials must be ok, at the latest after it was resumed.
pub const RUN: [&str; 4] = ["run", "plan.toml", "--pki", "pki"];
/// A run with trials of 300 ms, which may have any verdict. It takes about 3 s, and waits for a lost node longer than any partition lasts.
pub const SHORT: [&str; 8] =
    ["run", "plan.toml", "--set", "phases.0.length=300ms", "--await-nodes", "10s", "--pki", "pki"];
/// A run whose only trial must be ok, after a fault or with a damaged file. It takes about as long.
pub const CLEAN: [&str; 6] = ["run", "plan.toml", "--set", "repeat=1", "--pki", "pki"];
/// Exit code of a run with a failed trial.
const TRIAL_FAILED: i32 = 1;
/// With a lost node, a run waits for that node.
const RUN_TIMEOUT: Duration = Duration::from_secs(120);
/// Within this time, a node whose controller is gone is free again.
const FREE_TIMEOUT: Duration = Duration::from_secs(20);

/// Result of a run with a fault.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FaultResult {
    /// The controller's exit code; `None` if it was killed or had no agent.
    pub code: Option<i32>,
    /// Whether the fault has happened. For a system call: whether it was reached and could get the fault.
    pub injected: bool,
}

pub struct Lane {
    pub bench: Bench,
    pub nodes: [Node; 2],
    before: [String; 2],
    /// Memory that an agent and a controller take without a fault, in bytes, once measured.
    pub peaks: [Option<u64>; 2],
    /// Why a run that had to be ok was not judged: it had no CPU.
    pub unjudged: Option<String>,
}

impl Lane {
    pub fn new() -> Self {
        let bench = Bench::new();
        certificates(&bench);
        plan(&bench);
        let nodes = pair(&bench);
        let before = [nodes[0].state(), nodes[1].state()];
        Self { bench, nodes, before, peaks: [None; 2], unjudged: None }
    }

    /// Starts both agents, that of node a with a command line that begins with these words.
    pub fn start(&mut self, wrapper: &[String]) -> Result<(), Failure> {
        self.start_victim(Victim::Agent, wrapper)
    }

    /// Starts both agents. That of node a has the victim as a process, whose command line begins with these words.
    pub fn start_victim(&mut self, victim: Victim, wrapper: &[String]) -> Result<(), Failure> {
        let [a, b] = &mut self.nodes;
        b.ensure_started(&self.bench)?;
        let of = |role: Victim| if role == victim { wrapper } else { &[] };
        match victim {
            Victim::Front | Victim::Worker | Victim::Loader => {
                let processes = [
                    (Role::Loader, of(Victim::Loader)),
                    (Role::Worker, of(Victim::Worker)),
                    (Role::Front, of(Victim::Front)),
                ];
                a.start_as(&self.bench, &processes)
            }
            _ => a.start(&self.bench, wrapper),
        }
    }

    /// Runs `ccbench ARGS` to its end.
    pub fn run(&self, wrapper: &[String], arguments: &[&str]) -> Result<ExitStatus, Failure> {
        self.wait(controller(&self.bench, &self.nodes[0], wrapper, arguments).spawn().unwrap())
    }

    /// Waits for the controller, at most [`RUN_TIMEOUT`], in sleeps of 20 ms.
    pub fn wait(&self, mut controller: Child) -> Result<ExitStatus, Failure> {
        for _ in 0..RUN_TIMEOUT.as_millis() / 20 {
            if let Some(status) = controller.try_wait().unwrap() {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // strace leaves its process behind when it is killed.
        traced_by(controller.id()).into_iter().for_each(|pid| send(Some(pid), Signal::KILL));
        let _ = controller.kill();
        let _ = controller.wait();
        Err(Failure::Hangs { printed: self.bench.printed() })
    }

    /// Checks that the controller may have this exit code after a fault. `kills`: it may have none.
    pub fn check_code(&self, status: ExitStatus, kills: bool) -> Result<(), Failure> {
        match status.code() {
            Some(0..=3) => Ok(()),
            None if kills => Ok(()),
            _ => Err(Failure::Controller { status, printed: self.bench.printed() }),
        }
    }

    /// Runs with exit code 0: every trial must be ok or degraded, unless it [lacked CPU time](Self::lacked_cpu).
    pub fn expect_ok(&mut self, arguments: &[&str]) -> Result<(), Failure> {
        let watch = CpuWatch::start();
        let ran = self.run(&[], arguments);
        let cpu = watch.report();
        let status = ran?;
        match status.success() || self.lacked_cpu(status.code(), &cpu) {
            true => Ok(()),
            false => Err(Failure::Controller { status, printed: self.bench.printed() }),
        }
    }

    /// Returns whether a trial of the run with this exit code failed only because it lacked CPU time, and others had used the CPU. Its
    /// verdict then says nothing about the fault: the run is not judged.
    pub fn lacked_cpu(&mut self, code: Option<i32>, cpu: &CpuReport) -> bool {
        let lacked = code == Some(TRIAL_FAILED) && cpu.explains_runs(&self.bench.all_results());
        if lacked {
            self.unjudged = Some(format!("{cpu}; {}", self.bench.printed()));
        }
        lacked
    }

    /// Runs `ccbench ARGS` with an agent on node a that has the victim as a process, whose command line begins with these words. Returns
    /// `None` if the agent ended before it listened.
    pub fn run_with_agent(
        &mut self,
        victim: Victim,
        wrapper: &[String],
        arguments: &[&str],
    ) -> Result<Option<ExitStatus>, Failure> {
        match self.start_victim(victim, wrapper) {
            Err(Failure::AgentEnded(AgentLog { node, .. })) if node == self.nodes[0].control => {
                Ok(None)
            }
            started => {
                started?;
                self.run(&[], arguments).map(Some)
            }
        }
    }

    /// Checks what must hold after a fault of node a's agent, which may have ended it: the next agent undoes what is left.
    pub fn check_agent(
        &mut self,
        status: Option<ExitStatus>,
        may_end: bool,
    ) -> Result<Option<i32>, Failure> {
        if let Some(status) = status {
            self.check_code(status, false)?;
            if !may_end && !self.nodes[0].is_alive() {
                return Err(self.nodes[0].failure(Failure::AgentEnded));
            }
        }
        let code = status.and_then(|status| status.code());
        self.nodes[0].stop()?;
        self.check_logs()?;
        self.check_results((code == Some(0)).then_some(2))?;
        self.start(&[])?;
        self.check_after()?;
        Ok(code)
    }

    /// Checks what must hold after a fault of the controller: its run is resumed, or another run is ok.
    pub fn check_controller(&mut self, status: ExitStatus, may_end: bool) -> Result<(), Failure> {
        self.check_code(status, may_end)?;
        self.check_logs()?;
        self.check_results(status.success().then_some(2))?;
        let begun = self.bench.all_results().into_iter().find(|dir| dir.join("run.json").exists());
        match begun {
            Some(dir) => {
                let dir = dir.display().to_string();
                self.wait_until_free(&[0, 1])?;
                // Trials that the fault made fail are repeated, too.
                self.check_run(&["run", "--resume", &dir, "--retry-failed", "--pki", "pki"], 2)
            }
            None => self.check_after(),
        }
    }

    pub fn ensure_started(&mut self) -> Result<(), Failure> {
        self.nodes.iter_mut().try_for_each(|node| node.ensure_started(&self.bench))
    }

    /// Makes new nodes after a fault that cannot happen.
    pub fn replace_nodes(&mut self) -> Result<FaultResult, Failure> {
        *self = Self::new();
        Ok(FaultResult { code: None, injected: false })
    }

    /// Checks that neither the controller nor an agent has panicked.
    pub fn check_logs(&self) -> Result<(), Failure> {
        let agents = self.nodes.iter().map(Node::printed);
        let panicked = |printed: &String| printed.contains("panicked");
        match agents.chain([self.bench.printed()]).find(panicked) {
            Some(printed) => Err(Failure::Panicked { printed }),
            None => Ok(()),
        }
    }

    /// Waits until these nodes are in their original state and only agents are left as processes.
    pub fn wait_until_free(&self, nodes: &[usize]) -> Result<(), Failure> {
        wait_until_empty(|| self.changes(nodes) + &self.left_processes())
    }

    /// Waits until these nodes are in their original state.
    pub fn wait_until_unchanged(&self, nodes: &[usize]) -> Result<(), Failure> {
        wait_until_empty(|| self.changes(nodes))
    }

    /// Returns how these nodes differ from their original state.
    pub fn changes(&self, nodes: &[usize]) -> String {
        let of = |node: &usize| difference(&self.before[*node], &self.nodes[*node].state());
        nodes.iter().map(of).collect()
    }

    fn left_processes(&self) -> String {
        let mut left = self.bench.processes();
        left.retain(|(_, line)| !line.contains("ccbench-agent serve"));
        left.iter().map(|(pid, line)| format!("+ process {pid}: {line}\n")).collect()
    }

    /// Checks that the nodes are in their original state and that a run without a fault is ok.
    pub fn check_after(&mut self) -> Result<(), Failure> {
        // The other node must notice the loss by itself.
        self.wait_until_free(&[0, 1])?;
        self.remove_results();
        self.check_run(&CLEAN, 1)
    }

    /// Checks that a run of this many trials is ok.
    fn check_run(&mut self, arguments: &[&str], trials: usize) -> Result<(), Failure> {
        self.expect_ok(arguments)?;
        self.check_logs()?;
        self.check_results(Some(trials))?;
        self.remove_results();
        Ok(())
    }

    /// Runs two short trials to their end, whatever their verdict is.
    pub fn run_short(&self) -> Result<(), Failure> {
        self.wait_until_free(&[0, 1])?;
        self.remove_results();
        let status = self.run(&[], &SHORT)?;
        self.check_code(status, false)?;
        self.check_logs()?;
        self.check_results(Some(2))?;
        self.remove_results();
        Ok(())
    }

    /// Checks that nothing in the results is torn, and that they have this number of trials, of any verdict; `None`: any number.
    pub fn check_results(&self, trials: Option<usize>) -> Result<(), Failure> {
        for dir in self.bench.all_results().iter().filter(|dir| dir.join("run.json").exists()) {
            let output = self.bench.run(&["verify", &dir.display().to_string()]);
            if output.status.code() != Some(0) {
                let (verify, printed) = (text(&output), self.bench.printed());
                return Err(Failure::Torn { verify, printed });
            }
            let lines = read(&dir.join("trials.csv")).lines().count();
            if let Some(trials) = trials.filter(|trials| lines != trials + 1) {
                let printed = self.bench.printed();
                return Err(Failure::Incomplete { lines, trials, printed });
            }
        }
        Ok(())
    }

    /// Returns whether a trial of the runs failed because a node did not answer, even if the trial was repeated. A request that reaches a
    /// node too late to start on time is a different reason.
    pub fn lost_a_node(&self) -> bool {
        let journals = self.bench.all_results().into_iter().map(|dir| dir.join("journal.ndjson"));
        let is_lost = |line: &str| line.contains("node_lost") && !line.contains("start_at_ns");
        journals.map(|path| read(&path)).any(|journal| journal.lines().any(is_lost))
    }

    pub fn remove_results(&self) {
        let _ = std::fs::remove_dir_all(self.bench.path("results"));
    }
}

/// Waits until nothing is left, at most [`FREE_TIMEOUT`], in sleeps of 200 ms.
pub fn wait_until_empty(left: impl Fn() -> String) -> Result<(), Failure> {
    for _ in 0..FREE_TIMEOUT.as_millis() / 200 {
        if left().is_empty() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Err(Failure::NotFree { left: left() })
}
