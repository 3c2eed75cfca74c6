//! Fault campaign (root, strace): a fault at every system call of an agent and of the controller that changes something, and
//! partitions of the control network. After each, the node is as it was, what was written is complete, nothing panics or hangs,
//! and the next run is ok.
//!
//! `CCBENCH_FAULT_POINTS` is the number of faults of each process, evenly from all; 0 means all. `CCBENCH_FAULT=agent:sendto:KILL:17`
//! runs only that one. A failure prints the command that repeats it.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod failure;
mod fault;
mod nodes;

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter};
use std::process::{Child, ExitStatus};
use std::sync::Mutex;
use std::time::Duration;

use ccbench_tests::node_state::difference;
use ccbench_tests::{Bench, alone, text};
use failure::{AgentLog, Failure};
use fault::{Fault, Victim, counting, faults, is_impossible, sample};
use nodes::{Node, certificates, controller, pair, plan, read};

const RUN: [&str; 4] = ["run", "plan.toml", "--pki", "pki"];
/// Faults of each process that `make test-faults` runs.
const POINTS: usize = 60;
/// When a partition begins, after the start of the controller: while it connects, prepares, runs each trial, and at the end.
const PARTITION_AT_MS: [u64; 6] = [100, 400, 800, 1_200, 1_800, 2_600];
/// Shorter than the silence that is tolerated, and longer.
const PARTITION_MS: [u64; 2] = [2_000, 8_000];
/// Pairs of nodes at the same time. Nothing here depends on their speed.
const LANES: usize = 4;
/// A run of two short trials takes about 3 s; that of a lost node waits for it.
const RUN_LIMIT: Duration = Duration::from_secs(120);
/// A node whose controller is gone is free again.
const FREE_LIMIT: Duration = Duration::from_secs(20);

struct Lane {
    bench: Bench,
    nodes: [Node; 2],
    before: [String; 2],
}

#[test]
fn every_fault_of_an_agent_is_survived() {
    campaign(Victim::Agent, |lane| {
        let trace = lane.bench.path("trace");
        lane.start(&counting(Victim::Agent, &trace))?;
        lane.expect_ok(&RUN)?;
        lane.nodes[0].stop()?;
        Ok(read(&trace))
    });
}

#[test]
fn every_fault_of_the_controller_is_survived() {
    campaign(Victim::Controller, |lane| {
        lane.start(&[])?;
        let trace = lane.bench.path("trace");
        let strace = counting(Victim::Controller, &trace);
        lane.run(&strace, &RUN)?;
        Ok(read(&trace))
    });
}

/// Counts a process's system calls in a run without a fault, and injects faults into some of them.
fn campaign(victim: Victim, count: impl FnOnce(&mut Lane) -> Result<String, Failure>) {
    let _alone = alone();
    let controls = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let before = std::fs::read_to_string(controls).unwrap();
    let chosen = match std::env::var("CCBENCH_FAULT") {
        Ok(text) => vec![text.parse::<Fault>().unwrap()],
        Err(_) => {
            let counted = count(&mut Lane::new()).unwrap();
            let points =
                std::env::var("CCBENCH_FAULT_POINTS").map_or(POINTS, |n| n.parse().unwrap());
            let all = faults(victim, &counted);
            assert!(all.len() > 100, "strace has counted next to nothing: {counted}");
            let points = if points == 0 { all.len() } else { points };
            println!("{} faults, of which {points}", all.len());
            sample(all, points)
        }
    };
    let chosen = chosen.into_iter().filter(|fault| fault.victim == victim).collect();
    run_all(chosen, |lane, fault: &Fault| match victim {
        Victim::Agent => lane.fault_agent(fault),
        Victim::Controller => lane.fault_controller(fault),
    });
    assert_eq!(std::fs::read_to_string(controls).unwrap(), before, "congestion controls are left");
}

/// What a campaign runs.
trait Repeated: Display {
    /// The command that repeats it, in a line of its own.
    fn repeated_by(&self) -> String;
}

impl Repeated for Fault {
    fn repeated_by(&self) -> String {
        format!("repeat: CCBENCH_FAULT={self} make test-faults\n")
    }
}

impl Repeated for Partition {
    fn repeated_by(&self) -> String {
        "repeat: make test-faults\n".to_owned()
    }
}

/// Node b is cut off from the controller on node a.
#[derive(Debug)]
struct Partition {
    /// Drop what goes to node b, and what comes from it.
    drops: [bool; 2],
    at_ms: u64,
    length_ms: u64,
}

impl Display for Partition {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

#[test]
fn every_partition_is_survived() {
    let _alone = alone();
    if std::env::var_os("CCBENCH_FAULT").is_some() {
        return ccbench_tests::skip::skip("CCBENCH_FAULT selects another fault");
    }
    let mut partitions = Vec::new();
    for length_ms in PARTITION_MS {
        for at_ms in PARTITION_AT_MS {
            for drops in [[true, false], [false, true], [true, true]] {
                partitions.push(Partition { drops, at_ms, length_ms });
            }
        }
    }
    run_all(partitions, Lane::partition);
}

/// How a run with a fault ended.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Survived {
    /// The controller's exit code; none if it was killed or had no agent.
    code: Option<i32>,
    /// The system call with the fault was reached, and could have had it.
    injected: bool,
}

/// Runs faults in several lanes and reports all that are not survived.
fn run_all<F: Repeated + Send>(
    faults: Vec<F>,
    run: impl Fn(&mut Lane, &F) -> Result<Survived, Failure> + Sync,
) {
    let waiting = Mutex::new(faults.into_iter());
    let (failures, codes) = (Mutex::new(Vec::new()), Mutex::new(BTreeMap::new()));
    let work = || {
        let mut lane: Option<Lane> = None;
        loop {
            let Some(fault) = waiting.lock().unwrap().next() else { break };
            match run(lane.get_or_insert_with(Lane::new), &fault) {
                Ok(survived) => *codes.lock().unwrap().entry(survived).or_insert(0) += 1,
                Err(why) => {
                    let why = format!("{fault}: {why}\n{}", fault.repeated_by());
                    eprintln!("{why}");
                    failures.lock().unwrap().push(why);
                    // The next fault has nodes without history.
                    lane = None;
                }
            }
        }
    };
    std::thread::scope(|scope| (0..LANES).for_each(|_| drop(scope.spawn(work))));
    let codes = codes.into_inner().unwrap();
    println!("runs: {codes:?}");
    let count = |injected: bool| {
        codes.iter().filter(move |(of, _)| of.injected == injected).map(|(_, n)| *n)
    };
    let (missed, hit) = (count(false).sum::<u32>(), count(true).sum::<u32>());
    assert!(missed <= hit, "{missed} faults were not injected, {hit} were");
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.concat());
}

impl Lane {
    fn new() -> Self {
        let bench = Bench::new();
        certificates(&bench);
        plan(&bench);
        let nodes = pair(&bench);
        let before = [nodes[0].state(), nodes[1].state()];
        Self { bench, nodes, before }
    }

    /// Starts both agents, that of node a below strace if that has arguments.
    fn start(&mut self, strace: &[String]) -> Result<(), Failure> {
        let [a, b] = &mut self.nodes;
        b.ensure_started(&self.bench)?;
        a.start(&self.bench, strace)
    }

    /// `ccbench ARGS` to its end.
    fn run(&self, strace: &[String], arguments: &[&str]) -> Result<ExitStatus, Failure> {
        self.wait(controller(&self.bench, &self.nodes[0], strace, arguments).spawn().unwrap())
    }

    /// Waits for the controller, at most [`RUN_LIMIT`] in naps of 20 ms.
    fn wait(&self, mut controller: Child) -> Result<ExitStatus, Failure> {
        for _ in 0..RUN_LIMIT.as_millis() / 20 {
            if let Some(status) = controller.try_wait().unwrap() {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = controller.kill();
        let _ = controller.wait();
        Err(Failure::Hangs { printed: self.bench.printed() })
    }

    /// Exit codes that a controller may have after a fault; `kills`: none, too.
    fn check_code(&self, status: ExitStatus, kills: bool) -> Result<(), Failure> {
        match status.code() {
            Some(0..=3) => Ok(()),
            None if kills => Ok(()),
            _ => Err(Failure::Controller { status, printed: self.bench.printed() }),
        }
    }

    /// The same, with exit code 0: every trial is ok or degraded.
    fn expect_ok(&self, arguments: &[&str]) -> Result<(), Failure> {
        let status = self.run(&[], arguments)?;
        match status.success() {
            true => Ok(()),
            false => Err(Failure::Controller { status, printed: self.bench.printed() }),
        }
    }

    fn fault_agent(&mut self, fault: &Fault) -> Result<Survived, Failure> {
        let calls = self.bench.path("calls");
        let mut code = None;
        match self.start(&fault.strace(&calls)) {
            // The fault has ended it.
            Err(Failure::AgentEnded(AgentLog { node, .. })) if node == self.nodes[0].control => {}
            started => {
                started?;
                let status = self.run(&[], &RUN)?;
                code = status.code();
                if is_impossible(&read(&calls)) {
                    return self.again();
                }
                self.check_code(status, false)?;
                if !fault.kills() && !self.nodes[0].is_alive() {
                    return Err(self.nodes[0].failure(Failure::AgentEnded));
                }
            }
        }
        self.nodes[0].stop()?;
        self.check_logs()?;
        self.check_results(code == Some(0))?;
        // The next agent undoes what is left.
        self.start(&[])?;
        self.check_after(&RUN)?;
        Ok(Survived { code, injected: fault.was_injected(&read(&calls)) })
    }

    fn fault_controller(&mut self, fault: &Fault) -> Result<Survived, Failure> {
        self.ensure_started()?;
        let calls = self.bench.path("calls");
        let status = self.run(&fault.strace(&calls), &RUN)?;
        if is_impossible(&read(&calls)) {
            return self.again();
        }
        self.check_code(status, fault.kills())?;
        self.check_logs()?;
        self.check_results(status.success())?;
        let begun = self.bench.all_results().into_iter().find(|dir| dir.join("run.json").exists());
        match begun {
            Some(dir) => {
                let dir = dir.display().to_string();
                self.check_after(&["run", "--resume", &dir, "--pki", "pki"])?;
            }
            None => self.check_after(&RUN)?,
        }
        Ok(Survived { code: status.code(), injected: fault.was_injected(&read(&calls)) })
    }

    fn ensure_started(&mut self) -> Result<(), Failure> {
        self.nodes.iter_mut().try_for_each(|node| node.ensure_started(&self.bench))
    }

    /// New nodes, after a fault that cannot happen.
    fn again(&mut self) -> Result<Survived, Failure> {
        *self = Self::new();
        Ok(Survived { code: None, injected: false })
    }

    fn partition(&mut self, partition: &Partition) -> Result<Survived, Failure> {
        self.ensure_started()?;
        let child = controller(&self.bench, &self.nodes[0], &[], &RUN).spawn().unwrap();
        let [a, b] = &self.nodes;
        let ends = [(a, b.control), (b, a.control)];
        for (is_cut, after_ms) in [(true, partition.at_ms), (false, partition.length_ms)] {
            std::thread::sleep(Duration::from_millis(after_ms));
            let dropped = ends.iter().zip(partition.drops).filter(|(_, drops)| *drops);
            dropped.for_each(|((node, address), _)| node.cut(address, is_cut));
        }
        let status = self.wait(child)?;
        self.check_code(status, false)?;
        self.check_logs()?;
        self.check_results(status.success())?;
        self.check_after(&RUN)?;
        Ok(Survived { code: status.code(), injected: true })
    }

    /// Neither the controller nor an agent has panicked.
    fn check_logs(&self) -> Result<(), Failure> {
        let agents = self.nodes.iter().map(Node::printed);
        let panicked = |printed: &String| printed.contains("panicked");
        match agents.chain([self.bench.printed()]).find(panicked) {
            Some(printed) => Err(Failure::Panicked { printed }),
            None => Ok(()),
        }
    }

    /// Waits until both nodes are as they were.
    fn wait_until_free(&self) -> Result<(), Failure> {
        let mut left = String::new();
        for _ in 0..FREE_LIMIT.as_millis() / 200 {
            left = self.difference();
            if left.is_empty() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Err(Failure::NotFree { left })
    }

    /// How the nodes differ from what they were, and processes that are left.
    fn difference(&self) -> String {
        let states = self.nodes.iter().zip(&self.before);
        let mut left: String =
            states.map(|(node, before)| difference(before, &node.state())).collect();
        let is_traffic = |line: &str| !line.contains("ccbench-agent serve");
        for (pid, line) in self.bench.processes().iter().filter(|(_, line)| is_traffic(line)) {
            left += &format!("+ process {pid}: {line}\n");
        }
        left
    }

    /// The nodes are as they were, and a run without a fault is ok.
    fn check_after(&mut self, arguments: &[&str]) -> Result<(), Failure> {
        // The other node notices the loss by itself.
        self.wait_until_free()?;
        if !arguments.contains(&"--resume") {
            self.remove_results();
        }
        self.expect_ok(arguments)?;
        self.check_logs()?;
        self.check_results(true)?;
        self.remove_results();
        Ok(())
    }

    /// Nothing in the results is torn, and after exit code 0 both trials are there.
    fn check_results(&self, is_complete: bool) -> Result<(), Failure> {
        for dir in self.bench.all_results().iter().filter(|dir| dir.join("run.json").exists()) {
            let output = self.bench.run(&["verify", &dir.display().to_string()]);
            if output.status.code() != Some(0) {
                let (verify, printed) = (text(&output), self.bench.printed());
                return Err(Failure::Torn { verify, printed });
            }
            let lines = read(&dir.join("trials.csv")).lines().count();
            if is_complete && lines != 3 {
                return Err(Failure::Incomplete { lines, printed: self.bench.printed() });
            }
        }
        Ok(())
    }

    fn remove_results(&self) {
        let _ = std::fs::remove_dir_all(self.bench.path("results"));
    }
}
