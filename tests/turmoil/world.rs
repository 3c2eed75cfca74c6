//! Two controllers and two nodes in a simulated network, and what must hold after every step.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ccbench::virtual_network::{Connecting, Stream, VirtualNetwork};
use ccbench_agent::clock;
use ccbench_agent::flow::process::Generators;
use tempfile::TempDir;
use turmoil::Sim;
use turmoil::net::TcpStream;

use crate::Flaw;
use crate::controller::{Controller, TRIAL_S, control};
use crate::effects::Effects;
use crate::faults::{self, Fault, PEERS, Planned};
use crate::kernel::KernelLink;
use crate::node::{NODES, Node, network_address, serve};
use crate::panics;
use crate::violation::{NodeViolation, RunViolation, Violation};

const CONTROLLERS: [&str; PEERS] = ["a", "b"];
/// CLOCK_MONOTONIC at the beginning of a simulation.
const START_NS: u64 = 1_000_000_000_000;
const TICK: Duration = Duration::from_millis(10);
const USUAL_LATENCY: Duration = Duration::from_millis(20);
const SLOW_LATENCY: Duration = Duration::from_millis(400);
/// P2: a node notices within 5 s that its controller is gone. 2 s more are for messages on their way and for undoing.
const FREE_MS: u64 = 7_000;
/// If its trial ends before that, the lease after the trial follows, of 5 s.
const FREE_AFTER_TRIAL_MS: u64 = 12_000;
const TRIAL_NS: u64 = TRIAL_S * 1_000_000_000;
/// All runs are complete by then.
const LIMIT_MS: u64 = 600_000;

/// Returns the simulation's clock, which all hosts share; `None` on a thread that runs none.
fn now_ns() -> Option<u64> {
    turmoil::sim_elapsed().map(|elapsed| START_NS + elapsed.as_nanos() as u64)
}

/// Connects to an agent of the plan.
fn connect(target: String) -> Connecting {
    Box::pin(async move {
        let stream = TcpStream::connect(network_address(&target).unwrap()).await?;
        let stream: Box<dyn Stream> = Box::new(stream);
        Ok(stream)
    })
}

/// Returns a directory in memory, where writing durably takes no time, if there is one.
fn directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Returns the index of the controller whose trial a link is of.
fn holder(link: &KernelLink) -> usize {
    CONTROLLERS.iter().position(|one| link.name.starts_with(one)).unwrap()
}

fn since_start_ms(at_ns: u64) -> u64 {
    (at_ns - START_NS) / 1_000_000
}

pub struct World {
    /// Dropped before the files that its hosts use.
    sim: Sim<'static>,
    nodes: Vec<Arc<Node>>,
    controllers: Vec<Arc<Controller>>,
    pub faults: Vec<Planned>,
    pub effects: Effects,
    flaw: Flaw,
    /// Number of panics before.
    panics: u64,
    /// Whether each fault is in effect.
    is_active: Vec<bool>,
    /// Since when each agent runs; `None` while it does not.
    node_up_since_ms: [Option<u64>; PEERS],
    /// Since when a controller (first index) and a node do not reach each other.
    gone_since_ms: [[Option<u64>; PEERS]; PEERS],
    _files: TempDir,
}

impl World {
    pub fn new(seed: u64, flaw: Flaw, generators: &Arc<Generators>) -> Self {
        panics::count_from_now();
        clock::simulate(now_ns);
        VirtualNetwork { now_ns, connect }.install();
        let files = directory();
        let mut sim = turmoil::Builder::new()
            .rng_seed(seed)
            .tick_duration(TICK)
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(USUAL_LATENCY)
            .tcp_capacity(4096)
            .enable_random_order()
            .build();
        let nodes = NODES.map(|name| {
            let node = Node::new(files.path().join(name), flaw, Arc::clone(generators));
            let node = Arc::new(node);
            let of_host = Arc::clone(&node);
            sim.host(name, move || serve(Arc::clone(&of_host), flaw));
            node
        });
        // The tests of this program run at the same time.
        let network = if flaw == Flaw::None { 1 } else { 2 };
        let controllers = CONTROLLERS.map(|name| {
            let controller = Controller::new(name, files.path().join(name), network);
            let controller = Arc::new(controller);
            let of_host = Arc::clone(&controller);
            sim.host(name, move || control(Arc::clone(&of_host)));
            controller
        });
        let faults = faults::draw(seed);
        Self {
            sim,
            nodes: nodes.into(),
            controllers: controllers.into(),
            is_active: vec![false; faults.len()],
            faults,
            effects: Effects::default(),
            flaw,
            panics: panics::count(),
            node_up_since_ms: [Some(0); PEERS],
            gone_since_ms: [[None; PEERS]; PEERS],
            _files: files,
        }
    }

    pub fn now_ms(&self) -> u64 {
        self.sim.elapsed().as_millis() as u64
    }

    fn now_ns(&self) -> u64 {
        START_NS + self.sim.elapsed().as_nanos() as u64
    }

    /// Runs until all runs are complete and all nodes are free.
    ///
    /// # Errors
    /// A promise was broken.
    pub fn simulate(&mut self) -> Result<(), Violation> {
        let faults_end_ms = self.faults.iter().map(|planned| planned.end_ms).max().unwrap_or(0);
        let mut complete_at_ms = None;
        loop {
            let now_ms = self.now_ms();
            self.begin_and_end_faults(now_ms);
            self.step()?;
            if now_ms > faults_end_ms && self.controllers.iter().all(|one| one.is_done()) {
                let since_ms = *complete_at_ms.get_or_insert(now_ms);
                if now_ms > since_ms + FREE_AFTER_TRIAL_MS {
                    self.restart_after_failed_undo()?;
                    self.count_effects();
                    return self.check_end();
                }
            }
            if now_ms > LIMIT_MS {
                let of = |one: &Arc<Controller>| {
                    format!("{}: {}: {:?}", one.name, one.is_done(), one.errors().last())
                };
                let controllers = self.controllers.iter().map(of).collect();
                return Err(Violation::NoEnd { limit_ms: LIMIT_MS, controllers });
            }
        }
    }

    /// # Errors
    /// A program failed, or a promise was broken.
    fn step(&mut self) -> Result<(), Violation> {
        self.sim.step()?;
        for node in 0..PEERS {
            if self.node_up_since_ms[node].is_some() && self.nodes[node].kernel.is_agent_dead() {
                self.crash_node(node);
                let active = self.faults.iter().zip(&self.is_active).filter(|(_, is)| **is);
                let mut active = active.map(|(planned, _)| planned.fault);
                let is_cause = |fault: &Fault| matches!(fault, Fault::CrashNodeInCall { node: of, .. } if *of == node);
                if let Some(fault) = active.find(is_cause) {
                    self.effects.add(fault, 1);
                }
            }
            if self.flaw == Flaw::LosesLink {
                self.lose_link(node);
            }
        }
        if panics::count() > self.panics {
            return Err(Violation::Panicked);
        }
        self.check(self.now_ms())
    }

    /// Removes the link of a trial that has begun.
    fn lose_link(&self, node: usize) {
        let kernel = &self.nodes[node].kernel;
        let (now_ns, begun_ns) = (self.now_ns(), kernel.link().and_then(|link| link.begun_ns));
        if begun_ns.is_some_and(|begun_ns| now_ns > begun_ns + TRIAL_NS / 2) {
            kernel.remove_link(now_ns);
        }
    }

    /// Restarts agents that have failed to undo a change: they try again at each request, which may not come after the last trial, and when they
    /// start.
    fn restart_after_failed_undo(&mut self) -> Result<(), Violation> {
        for node in 0..PEERS {
            if self.nodes[node].kernel.failed_undos() > 0 {
                self.crash_node(node);
                self.start_node(node);
            }
        }
        (0..10).try_for_each(|_| self.step())
    }

    fn crash_node(&mut self, node: usize) {
        self.sim.crash(NODES[node]);
        self.nodes[node].crashed(self.now_ns());
        self.node_up_since_ms[node] = None;
    }

    fn start_node(&mut self, node: usize) {
        self.nodes[node].kernel.agent_starts();
        self.sim.bounce(NODES[node]);
        self.node_up_since_ms[node] = Some(self.now_ms());
    }

    fn begin_and_end_faults(&mut self, now_ms: u64) {
        for index in 0..self.faults.len() {
            let Planned { fault, begin_ms, end_ms } = self.faults[index];
            let is_now = (begin_ms..end_ms).contains(&now_ms);
            if is_now != self.is_active[index] {
                self.is_active[index] = is_now;
                if is_now { self.begin(fault) } else { self.end(fault) }
            }
        }
        for (controller, of_nodes) in self.gone_since_ms.iter_mut().enumerate() {
            for (node, since_ms) in of_nodes.iter_mut().enumerate() {
                let mut active = self.faults.iter().zip(&self.is_active).filter(|(_, is)| **is);
                let is_gone = active.any(|(one, _)| one.fault.separates(controller, node));
                *since_ms = is_gone.then_some(since_ms.unwrap_or(now_ms));
            }
        }
    }

    fn begin(&mut self, fault: Fault) {
        match fault {
            Fault::Partition { controller, node } => {
                self.sim.partition(CONTROLLERS[controller], NODES[node]);
            }
            Fault::PartitionToNode { controller, node } => {
                self.sim.partition_oneway(CONTROLLERS[controller], NODES[node]);
            }
            Fault::PartitionFromNode { controller, node } => {
                self.sim.partition_oneway(NODES[node], CONTROLLERS[controller]);
            }
            Fault::Hold { controller, node } => {
                self.sim.hold(CONTROLLERS[controller], NODES[node]);
            }
            Fault::CrashNode { node } => self.crash_node(node),
            Fault::CrashNodeInCall { node, call } => self.nodes[node].kernel.die_in_call(call),
            Fault::FailUndo { node, call } => self.nodes[node].kernel.fail_undo(call),
            Fault::CrashController { controller } => self.sim.crash(CONTROLLERS[controller]),
            Fault::Slow => self.sim.set_max_message_latency(SLOW_LATENCY),
        }
    }

    fn end(&mut self, fault: Fault) {
        match fault {
            Fault::Partition { controller, node } => {
                self.sim.repair(CONTROLLERS[controller], NODES[node]);
            }
            Fault::PartitionToNode { controller, node } => {
                self.sim.repair_oneway(CONTROLLERS[controller], NODES[node]);
            }
            Fault::PartitionFromNode { controller, node } => {
                self.sim.repair_oneway(NODES[node], CONTROLLERS[controller]);
            }
            Fault::Hold { controller, node } => {
                let held = self.held(CONTROLLERS[controller], NODES[node]);
                self.effects.add(fault, held);
                self.sim.release(CONTROLLERS[controller], NODES[node]);
            }
            Fault::CrashNode { node } => self.start_node(node),
            Fault::CrashNodeInCall { node, .. } => match self.node_up_since_ms[node] {
                Some(_) => self.nodes[node].kernel.agent_starts(),
                None => self.start_node(node),
            },
            Fault::FailUndo { node, .. } => {
                let has_failed = self.nodes[node].kernel.end_failing_undo();
                self.effects.add(fault, usize::from(has_failed));
            }
            Fault::CrashController { controller } => self.sim.bounce(CONTROLLERS[controller]),
            Fault::Slow => self.sim.set_max_message_latency(USUAL_LATENCY),
        }
    }

    /// # Errors
    /// A trial has found changes of another one, a generation has decreased, or a node is in use although its controller is gone.
    fn check(&self, now_ms: u64) -> Result<(), Violation> {
        for (index, node) in self.nodes.iter().enumerate() {
            let name = NODES[index];
            node.check().map_err(|violation| Violation::Node { node: name, violation })?;
            let Some(up_since_ms) = self.node_up_since_ms[index] else { continue };
            let Some(link) = node.kernel.link() else { continue };
            let Some(gone_since_ms) = self.gone_since_ms[holder(&link)][index] else { continue };
            let opened_ms = since_start_ms(link.opened_ns);
            let since_ms = up_since_ms.max(gone_since_ms).max(opened_ms);
            let end_ms = link.begun_ns.map(|begun_ns| since_start_ms(begun_ns + TRIAL_NS));
            let free_ms = match end_ms {
                Some(end_ms) if end_ms < since_ms + FREE_MS => FREE_AFTER_TRIAL_MS,
                _ => FREE_MS,
            };
            if now_ms > since_ms + free_ms {
                let violation = NodeViolation::NotFree { gone_since_ms: since_ms, link };
                return Err(Violation::Node { node: name, violation });
            }
        }
        Ok(())
    }

    /// Returns the number of messages between the two that have not arrived.
    fn held(&self, one: &str, other: &str) -> usize {
        let ends = BTreeSet::from([one, other].map(|name| self.sim.lookup(name)));
        let mut held = 0;
        self.sim.links(|links| {
            let of_pair =
                links.filter(|link| BTreeSet::from([link.pair().0, link.pair().1]) == ends);
            held = of_pair.map(Iterator::count).sum();
        });
        held
    }

    /// Counts the effects of faults that are known at the end.
    fn count_effects(&mut self) {
        for Planned { fault, begin_ms, end_ms } in &self.faults {
            let is_affected = |node: usize, link: &KernelLink| {
                let removed_ms = link.removed_ns.map_or(u64::MAX, since_start_ms);
                let is_during = since_start_ms(link.opened_ns) < *end_ms && removed_ms > *begin_ms;
                is_during && fault.affects(holder(link), node)
            };
            let nodes = self.nodes.iter().enumerate();
            let links: Vec<KernelLink> = nodes
                .flat_map(|(node, one)| {
                    one.kernel.links().into_iter().filter(move |link| is_affected(node, link))
                })
                .collect();
            if !links.is_empty() {
                self.effects.meets_trial(*fault);
            }
            let count = match fault {
                // Counted when it happens.
                Fault::Hold { .. } | Fault::CrashNodeInCall { .. } | Fault::FailUndo { .. } => 0,
                Fault::Slow => links.len(),
                _ => links.iter().filter(|link| !link.is_whole(TRIAL_NS)).count(),
            };
            self.effects.add(*fault, count);
        }
        for controller in &self.controllers {
            let (repeated, lost) = controller.repeated_and_lost();
            self.effects.repeated_trials += repeated;
            self.effects.lost_nodes += lost;
        }
    }

    /// # Errors
    /// A change is not undone, or a trial was committed twice, with damaged files, or although a node has not run it from beginning to end.
    fn check_end(&self) -> Result<(), Violation> {
        for (node, name) in self.nodes.iter().zip(NODES) {
            node.check_undone().map_err(|violation| Violation::Node { node: name, violation })?;
        }
        for controller in &self.controllers {
            let name = controller.name;
            let failed = |violation| Violation::Run { controller: name, violation };
            let ends = controller.committed(self.flaw).map_err(failed)?;
            for end in ends {
                for (node, of_node) in self.nodes.iter().zip(NODES) {
                    let begun_ns = end.clocks.get(of_node).map(|clock| clock.t0_ns);
                    let links = node.kernel.links();
                    let ran = links.iter().any(|link| {
                        link.name.starts_with(name)
                            && link.begun_ns == begun_ns
                            && link.is_whole(TRIAL_NS)
                    });
                    if begun_ns.is_none() || !ran {
                        let end = Box::new(end);
                        return Err(failed(RunViolation::NotRun { node: of_node, end, links }));
                    }
                }
            }
        }
        Ok(())
    }
}
