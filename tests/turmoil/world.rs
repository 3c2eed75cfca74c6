//! Two controllers and two nodes in a simulated network, and what must hold after every step.

use std::sync::Arc;
use std::time::Duration;

use ccbench::virtual_network::{Connecting, Stream, VirtualNetwork};
use ccbench_agent::clock;
use ccbench_agent::flow::process::Generators;
use ccbench_proto::wire::{KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT};
use tempfile::TempDir;
use turmoil::Sim;
use turmoil::net::TcpStream;

use crate::Flaw;
use crate::controller::{Controller, TRIAL_S, control};
use crate::faults::{self, Fault, PEERS, Planned};
use crate::node::{Node, PORT, serve};

const NODES: [&str; PEERS] = ["n1", "n2"];
const CONTROLLERS: [&str; PEERS] = ["a", "b"];
/// The ports of the nodes' agents in the plan begin after this one.
const PLAN_PORT: u16 = 7700;
/// CLOCK_MONOTONIC at the beginning of a simulation.
const START_NS: u64 = 1_000_000_000_000;
const TICK: Duration = Duration::from_millis(10);
const USUAL_LATENCY: Duration = Duration::from_millis(20);
const SLOW_LATENCY: Duration = Duration::from_millis(400);
/// A trial's end is followed by a lease of this length.
const ENDED_LEASE_MS: u64 = 5_000;
/// A node whose controller is gone is free within this time: the tolerated silence, in which its trial may end, the lease after the trial,
/// and the time to undo.
const FREE_MS: u64 = (KEEPALIVE_INTERVAL.as_millis() + KEEPALIVE_TIMEOUT.as_millis()) as u64
    + ENDED_LEASE_MS
    + 2_000;
/// All runs are complete by then.
const LIMIT_MS: u64 = 600_000;

/// Returns the simulation's clock, which all hosts share; `None` on a thread that runs none.
fn now_ns() -> Option<u64> {
    turmoil::sim_elapsed().map(|elapsed| START_NS + elapsed.as_nanos() as u64)
}

/// Connects to an agent of the plan.
fn connect(target: String) -> Connecting {
    Box::pin(async move {
        let port = target.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        let node = port.map(|port| usize::from(port - PLAN_PORT - 1)).unwrap();
        let stream = TcpStream::connect((NODES[node], PORT)).await?;
        let stream: Box<dyn Stream> = Box::new(stream);
        Ok(stream)
    })
}

/// Returns a directory in memory, where writing durably takes no time, if there is one.
fn directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

pub struct World {
    /// Dropped before the files that its hosts use.
    sim: Sim<'static>,
    nodes: Vec<Arc<Node>>,
    controllers: Vec<Arc<Controller>>,
    pub faults: Vec<Planned>,
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
            // For the pings before a trial, which are real, on this machine's loopback interface.
            .enable_tokio_io()
            .build();
        let nodes = NODES.map(|name| {
            let node = Node::new(files.path().join(name), Arc::clone(generators));
            let node = Arc::new(node);
            let of_host = Arc::clone(&node);
            sim.host(name, move || serve(Arc::clone(&of_host), flaw));
            node
        });
        let controllers = CONTROLLERS.map(|name| {
            let controller = Arc::new(Controller::new(name, files.path().join(name)));
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
            node_up_since_ms: [Some(0); PEERS],
            gone_since_ms: [[None; PEERS]; PEERS],
            _files: files,
        }
    }

    fn now_ms(&self) -> u64 {
        self.sim.elapsed().as_millis() as u64
    }

    /// Runs until all runs are complete and all nodes are free.
    ///
    /// # Errors
    /// A promise was broken.
    pub fn simulate(&mut self) -> Result<(), String> {
        let faults_end_ms = self.faults.iter().map(|planned| planned.end_ms).max().unwrap_or(0);
        let mut complete_at_ms = None;
        loop {
            let now_ms = self.now_ms();
            self.begin_and_end_faults(now_ms);
            self.sim.step().map_err(|error| format!("at {now_ms} ms: {error}"))?;
            self.check(now_ms).map_err(|why| format!("at {now_ms} ms: {why}"))?;
            if now_ms > faults_end_ms && self.controllers.iter().all(|one| one.is_done()) {
                let since_ms = *complete_at_ms.get_or_insert(now_ms);
                if now_ms > since_ms + FREE_MS {
                    return self.check_end();
                }
            }
            if now_ms > LIMIT_MS {
                let of = |one: &Arc<Controller>| {
                    format!("{}: {}: {}", one.name, one.is_done(), one.last_error())
                };
                let all: Vec<String> = self.controllers.iter().map(of).collect();
                return Err(format!("no end after {LIMIT_MS} ms: {all:?}"));
            }
        }
    }

    fn begin_and_end_faults(&mut self, now_ms: u64) {
        for index in 0..self.faults.len() {
            let Planned { fault, begin_ms, end_ms } = self.faults[index];
            let is_now = (begin_ms..end_ms).contains(&now_ms);
            if is_now != self.is_active[index] {
                self.is_active[index] = is_now;
                if is_now { self.begin(fault) } else { self.end(fault, now_ms) }
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
            Fault::Cut { controller, node } => {
                self.sim.partition(CONTROLLERS[controller], NODES[node]);
            }
            Fault::CutToNode { controller, node } => {
                self.sim.partition_oneway(CONTROLLERS[controller], NODES[node]);
            }
            Fault::CutFromNode { controller, node } => {
                self.sim.partition_oneway(NODES[node], CONTROLLERS[controller]);
            }
            Fault::Hold { controller, node } => {
                self.sim.hold(CONTROLLERS[controller], NODES[node]);
            }
            Fault::CrashNode { node } => {
                self.sim.crash(NODES[node]);
                let at_ns = START_NS + self.sim.elapsed().as_nanos() as u64;
                self.nodes[node].crashed(at_ns);
                self.node_up_since_ms[node] = None;
            }
            Fault::CrashController { controller } => self.sim.crash(CONTROLLERS[controller]),
            Fault::Slow => self.sim.set_max_message_latency(SLOW_LATENCY),
        }
    }

    fn end(&mut self, fault: Fault, now_ms: u64) {
        match fault {
            Fault::Cut { controller, node } => {
                self.sim.repair(CONTROLLERS[controller], NODES[node]);
            }
            Fault::CutToNode { controller, node } => {
                self.sim.repair_oneway(CONTROLLERS[controller], NODES[node]);
            }
            Fault::CutFromNode { controller, node } => {
                self.sim.repair_oneway(NODES[node], CONTROLLERS[controller]);
            }
            Fault::Hold { controller, node } => {
                self.sim.release(CONTROLLERS[controller], NODES[node]);
            }
            Fault::CrashNode { node } => {
                self.sim.bounce(NODES[node]);
                self.node_up_since_ms[node] = Some(now_ms);
            }
            Fault::CrashController { controller } => self.sim.bounce(CONTROLLERS[controller]),
            Fault::Slow => self.sim.set_max_message_latency(USUAL_LATENCY),
        }
    }

    /// # Errors
    /// A trial has found changes of another one, a generation has decreased, or a node is in use although its controller is gone.
    fn check(&self, now_ms: u64) -> Result<(), String> {
        for (index, node) in self.nodes.iter().enumerate() {
            let name = NODES[index];
            node.check().map_err(|why| format!("{name}: {why}"))?;
            let Some(up_since_ms) = self.node_up_since_ms[index] else { continue };
            let Some(link) = node.kernel.link() else { continue };
            let holder = CONTROLLERS.iter().position(|one| link.name.starts_with(one)).unwrap();
            let Some(gone_since_ms) = self.gone_since_ms[holder][index] else { continue };
            let opened_ms = (link.opened_ns - START_NS) / 1_000_000;
            let since_ms = up_since_ms.max(gone_since_ms).max(opened_ms);
            if now_ms > since_ms + FREE_MS {
                return Err(format!("{name}: controller gone since {since_ms} ms, but: {link:?}"));
            }
        }
        Ok(())
    }

    /// # Errors
    /// A change is not undone, or a trial was committed twice or although a node has not run it from beginning to end.
    fn check_end(&self) -> Result<(), String> {
        for (node, name) in self.nodes.iter().zip(NODES) {
            node.check_undone().map_err(|why| format!("{name}: {why}"))?;
        }
        for controller in &self.controllers {
            let name = controller.name;
            let ends = controller.committed().map_err(|why| format!("run of {name}: {why}"))?;
            for end in ends {
                for (node, of_node) in self.nodes.iter().zip(NODES) {
                    let begun_ns = end.clocks.get(of_node).map(|clock| clock.t0_ns);
                    let links = node.kernel.links();
                    let ran = links.iter().any(|link| {
                        link.name.starts_with(name)
                            && link.begun_ns == begun_ns
                            && link.is_whole(TRIAL_S * 1_000_000_000)
                    });
                    if begun_ns.is_none() || !ran {
                        return Err(format!("{of_node} has not run {end:?} to its end: {links:?}"));
                    }
                }
            }
        }
        Ok(())
    }
}
