//! Virtual time, the network between controllers and nodes, and the faults. The seed determines everything.

use std::collections::BTreeMap;

use ccbench_proto::wire::{KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT};

use crate::Flaw;
use crate::controller::Controller;
use crate::node::{Node, Order, Request};

/// Milliseconds of virtual time.
pub type Ms = u64;

pub const NODES: usize = 3;
pub const CONTROLLERS: usize = 2;
/// The two ends of a connection.
pub const CONTROLLER: usize = 0;
pub const NODE: usize = 1;
/// Faults begin within this time.
const FAULTS_MS: Ms = 30_000;
/// Maximum length of a fault.
pub const FAULT_MS: Ms = 20_000;
/// By this time, all faults are over, leases have ended, and controllers have stopped waiting for nodes.
const QUIET_MS: Ms = FAULTS_MS + FAULT_MS + 120_000;
/// A controller that starts after the faults ends within this time.
const RUN_MS: Ms = 60_000;
const KEEPALIVE_MS: Ms = KEEPALIVE_INTERVAL.as_millis() as Ms;
const SILENCE_MS: Ms = KEEPALIVE_TIMEOUT.as_millis() as Ms;
const WATCH_MS: Ms = 250;
/// A number that no call has.
const NO_CALL: u64 = u64::MAX;
/// A lost segment is sent again after this time, and then after twice, four times … this time.
const RETRANSMIT_MS: Ms = 200;
/// A node whose controller is gone is free within this time: the tolerated silence, a tick, and the time to undo.
const FREE_MS: Ms = SILENCE_MS + KEEPALIVE_MS + 2_000;
/// The same after the end of a trial: the lease after it, and the time to undo.
const ENDED_FREE_MS: Ms = 9_000;

/// Returns how long a connection that is cut for `length` is silent: until TCP first repeats what was lost.
fn silence(length: Ms) -> Ms {
    let repeats = std::iter::successors(Some(RETRANSMIT_MS), |rto| Some(rto * 2));
    let mut after = repeats.scan(0, |after, rto| {
        *after += rto;
        Some(*after)
    });
    after.find(|after| *after >= length).unwrap_or(length)
}

#[test]
fn keepalive_outlasts_what_tcp_repeats_after_three_seconds() {
    assert_eq!(silence(0), 200);
    assert_eq!(silence(201), 600);
    assert_eq!(silence(3_000), 3_000);
    assert!(silence(3_000) < SILENCE_MS && SILENCE_MS < silence(3_001));
    assert_eq!([KEEPALIVE_MS, SILENCE_MS], [500, 4_500]);
}

/// Numbers that the seed determines (splitmix64).
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// A node's reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// `uses`: how many Prepares the node has ever accepted. `forgotten`: how many of them before its state directory was last lost. Only
    /// the model knows these.
    Described {
        generation: u64,
        boot: u64,
        last_run: String,
        uses: usize,
        forgotten: usize,
    },
    Prepared {
        generation: u64,
        uses: usize,
    },
    /// All rows of a trial have been sent.
    Done,
    /// The stream of a trial has ended early.
    StreamEnd,
    Reset {
        failed: bool,
    },
    /// FAILED_PRECONDITION.
    Refused,
    /// UNAVAILABLE.
    Unavailable,
}

#[derive(Debug, Clone)]
pub enum Message {
    Request(Request),
    Answer(Answer),
}

/// A TCP connection with keepalives. Its messages may be late, repeated and in any order, which is worse than TCP.
#[derive(Debug)]
pub struct Connection {
    pub controller: usize,
    pub node: usize,
    /// The processes at both ends.
    incarnations: [u64; 2],
    /// Indexed by end.
    pub open: [bool; 2],
    /// When it became silent.
    pub silent_since: Option<Ms>,
}

/// Kinds of faults.
pub const FAULT_KINDS: usize = 8;

/// An event that affects a process or the network.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Messages towards this end of the connections between the two are lost.
    Cut {
        controller: usize,
        node: usize,
        towards: usize,
        length: Ms,
    },
    CrashNode {
        node: usize,
        down: Ms,
    },
    /// With or without the state directory.
    RebootNode {
        node: usize,
        down: Ms,
        keeps_state: bool,
    },
    PauseNode {
        node: usize,
        length: Ms,
    },
    CrashController {
        controller: usize,
    },
    PauseController {
        controller: usize,
        length: Ms,
    },
    FullDisk {
        node: usize,
        length: Ms,
    },
    UndoFails {
        node: usize,
        length: Ms,
    },
}

#[derive(Debug)]
pub enum Event {
    Deliver { connection: usize, towards: usize, call: u64, message: Message },
    Keepalive { connection: usize },
    NodeOrder { node: usize, incarnation: u64, order: Order },
    NodeStep { node: usize, incarnation: u64 },
    NodeStart { node: usize, incarnation: u64 },
    CallFails { controller: usize, incarnation: u64, node: usize, call: u64 },
    ReportTimeout { controller: usize, incarnation: u64, epoch: u64 },
    Retry { controller: usize, incarnation: u64, node: usize },
    Start { controller: usize },
    Fault(Fault),
    Watch,
}

pub struct World {
    pub now: Ms,
    pub flaw: Flaw,
    pub random: Random,
    queue: BTreeMap<(Ms, u64), Event>,
    next: u64,
    pub connections: Vec<Connection>,
    pub nodes: Vec<Node>,
    pub controllers: Vec<Controller>,
    /// Until when the end is unreachable, indexed by controller, node and end.
    cuts: [[[Ms; 2]; NODES]; CONTROLLERS],
    /// The first violation.
    pub violation: Option<String>,
    pub faults: Vec<(Ms, Fault)>,
}

impl World {
    pub fn new(seed: u64, flaw: Flaw) -> Self {
        let mut world = Self {
            now: 0,
            flaw,
            random: Random(seed),
            queue: BTreeMap::new(),
            next: 0,
            connections: Vec::new(),
            nodes: (0..NODES).map(|_| Node::new()).collect(),
            controllers: (0..CONTROLLERS).map(|run| Controller::new(run, NODES)).collect(),
            cuts: [[[0; 2]; NODES]; CONTROLLERS],
            violation: None,
            faults: Vec::new(),
        };
        for _ in 0..=world.random.below(8) {
            let (at, fault) = (world.random.below(FAULTS_MS), world.draw_fault());
            world.faults.push((at, fault.clone()));
            world.at(at, Event::Fault(fault));
        }
        for controller in 0..CONTROLLERS {
            let at = world.random.below(10_000);
            world.at(at, Event::Start { controller });
        }
        world.at(WATCH_MS, Event::Watch);
        world
    }

    fn draw_fault(&mut self) -> Fault {
        let (node, controller) = (
            self.random.below(NODES as u64) as usize,
            self.random.below(CONTROLLERS as u64) as usize,
        );
        let (down, length) =
            (100 + self.random.below(5_000), 100 + self.random.below(FAULT_MS - 100));
        match self.random.below(9) {
            0 | 1 => {
                let towards = self.random.below(2) as usize;
                Fault::Cut { controller, node, towards, length }
            }
            2 => Fault::CrashNode { node, down },
            3 => Fault::RebootNode { node, down: 2 * down, keeps_state: self.random.chance(50) },
            4 => Fault::PauseNode { node, length },
            5 => Fault::CrashController { controller },
            6 => Fault::PauseController { controller, length },
            7 => Fault::FullDisk { node, length },
            _ => Fault::UndoFails { node, length },
        }
    }

    /// Runs the whole simulation: faults, quiet, and then a run of each controller without faults.
    ///
    /// # Errors
    /// The first violation.
    pub fn simulate(&mut self) -> Result<(), String> {
        self.run_until(QUIET_MS)?;
        self.check_quiet()?;
        for controller in 0..CONTROLLERS {
            self.at(self.now, Event::Start { controller });
            self.run_until(self.now + RUN_MS)?;
            self.check_complete(controller)?;
        }
        self.check_quiet()
    }

    /// Returns whether controllers no longer start by themselves.
    pub fn is_quiet(&self) -> bool {
        self.now > FAULTS_MS + FAULT_MS
    }

    fn run_until(&mut self, end: Ms) -> Result<(), String> {
        while let Some(entry) = self.queue.first_entry() {
            if entry.key().0 > end {
                break;
            }
            let ((at, _), event) = entry.remove_entry();
            self.now = at;
            self.dispatch(event);
            self.check_changes();
            if let Some(violation) = self.violation.take() {
                return Err(format!("after {} ms: {violation}", self.now));
            }
        }
        self.now = end;
        Ok(())
    }

    pub fn at(&mut self, at: Ms, event: Event) {
        self.next += 1;
        self.queue.insert((at, self.next), event);
    }

    pub fn after(&mut self, delay: Ms, event: Event) {
        self.at(self.now + delay, event);
    }

    /// Returns the number of events.
    pub fn events(&self) -> u64 {
        self.next
    }

    pub fn violate(&mut self, what: String) {
        if self.violation.is_none() {
            self.violation = Some(what);
        }
    }

    /// Returns until when the process of an event is stopped.
    fn stopped_until(&self, event: &Event) -> Ms {
        let end_of = |connection: &usize, towards: usize| {
            let Connection { controller, node, .. } = self.connections[*connection];
            if towards == NODE {
                self.nodes[node].stopped_until
            } else {
                self.controllers[controller].stopped_until
            }
        };
        match event {
            Event::Deliver { connection, towards, .. } => end_of(connection, *towards),
            Event::NodeOrder { node, .. } | Event::NodeStep { node, .. } => {
                self.nodes[*node].stopped_until
            }
            Event::CallFails { controller, .. }
            | Event::ReportTimeout { controller, .. }
            | Event::Retry { controller, .. } => self.controllers[*controller].stopped_until,
            Event::Keepalive { .. }
            | Event::NodeStart { .. }
            | Event::Start { .. }
            | Event::Fault(_)
            | Event::Watch => 0,
        }
    }

    fn dispatch(&mut self, event: Event) {
        let stopped_until = self.stopped_until(&event);
        if stopped_until > self.now {
            return self.at(stopped_until, event);
        }
        match event {
            Event::Deliver { connection, towards, call, message } => {
                self.deliver(connection, towards, call, message);
            }
            Event::Keepalive { connection } => self.keepalive(connection),
            Event::NodeOrder { node, incarnation, order } => {
                if self.nodes[node].is_process(incarnation) {
                    self.order(node, order);
                }
            }
            Event::NodeStep { node, incarnation } => {
                if self.nodes[node].is_process(incarnation) {
                    self.step(node);
                }
            }
            Event::NodeStart { node, incarnation } => self.start_node(node, incarnation),
            Event::CallFails { controller, incarnation, node, call } => {
                if self.controllers[controller].is_process(incarnation) {
                    self.call_fails(controller, node, call);
                }
            }
            Event::ReportTimeout { controller, incarnation, epoch } => {
                if self.controllers[controller].is_process(incarnation) {
                    self.report_timeout(controller, epoch);
                }
            }
            Event::Retry { controller, incarnation, node } => {
                if self.controllers[controller].is_process(incarnation) {
                    self.recover(controller, node);
                }
            }
            Event::Start { controller } => self.start_controller(controller),
            Event::Fault(fault) => self.inject(&fault),
            Event::Watch => self.watch(),
        }
    }

    fn inject(&mut self, fault: &Fault) {
        let now = self.now;
        match *fault {
            Fault::Cut { controller, node, towards, length } => {
                self.cuts[controller][node][towards] = now + silence(length);
            }
            Fault::CrashNode { node, down } => self.end_node(node, down),
            Fault::RebootNode { node, down, keeps_state } => {
                self.end_node(node, down);
                self.nodes[node].reboot(keeps_state);
            }
            // A shorter pause within a longer one ends no sooner: what waits is already planned for that end.
            Fault::PauseNode { node, length } => {
                let until = &mut self.nodes[node].stopped_until;
                *until = (now + length).max(*until);
            }
            Fault::CrashController { controller } => {
                self.controllers[controller].end();
                let again = 1_000 + self.random.below(10_000);
                self.after(again, Event::Start { controller });
            }
            Fault::PauseController { controller, length } => {
                let until = &mut self.controllers[controller].stopped_until;
                *until = (now + length).max(*until);
            }
            Fault::FullDisk { node, length } => self.nodes[node].disk_full_until = now + length,
            Fault::UndoFails { node, length } => self.nodes[node].undo_fails_until = now + length,
        }
    }

    /// Opens a connection, if the node's process listens and nothing is cut.
    pub fn connect(&mut self, controller: usize, node: usize) -> Option<usize> {
        let is_cut = self.cuts[controller][node].iter().any(|until| *until > self.now);
        if is_cut || !self.nodes[node].is_up {
            return None;
        }
        let incarnations = [self.controllers[controller].incarnation, self.nodes[node].incarnation];
        let id = self.connections.len();
        let (open, silent_since) = ([true; 2], None);
        self.connections.push(Connection { controller, node, incarnations, open, silent_since });
        self.after(KEEPALIVE_MS, Event::Keepalive { connection: id });
        Some(id)
    }

    pub fn send(&mut self, connection: usize, towards: usize, call: u64, message: Message) {
        let late = if self.random.chance(5) { self.random.below(2_000) } else { 0 };
        let delay = 1 + self.random.below(40) + late;
        if self.random.chance(3) {
            // Nobody waits for the reply to a copy.
            let (message, call) = (message.clone(), NO_CALL);
            let delay = delay + 1 + self.random.below(2_000);
            self.after(delay, Event::Deliver { connection, towards, call, message });
        }
        self.after(delay, Event::Deliver { connection, towards, call, message });
    }

    fn deliver(&mut self, connection: usize, towards: usize, call: u64, message: Message) {
        let Connection { controller, node, .. } = self.connections[connection];
        if !self.connections[connection].open[towards] || !self.alive(connection)[towards] {
            return;
        }
        if self.cuts[controller][node][towards] > self.now {
            return self
                .after(RETRANSMIT_MS, Event::Deliver { connection, towards, call, message });
        }
        match message {
            Message::Request(request) => {
                self.order(node, Order::Request { connection, call, request });
            }
            Message::Answer(answer) => self.answer(controller, node, call, answer),
        }
    }

    /// Returns whether the processes at both ends of a connection are those that opened it.
    fn alive(&self, connection: usize) -> [bool; 2] {
        let Connection { controller, node, incarnations, .. } = self.connections[connection];
        [
            self.controllers[controller].is_process(incarnations[CONTROLLER]),
            self.nodes[node].is_process(incarnations[NODE]),
        ]
    }

    fn keepalive(&mut self, id: usize) {
        let alive = self.alive(id);
        let Connection { controller, node, open, silent_since, .. } = self.connections[id];
        let now = self.now;
        let stopped = [
            self.controllers[controller].stopped_until > now,
            self.nodes[node].stopped_until > now,
        ];
        let cut = self.cuts[controller][node].map(|until| until > now);
        let passes = alive == [true; 2] && open == [true; 2] && stopped == [false; 2];
        let since = if passes && cut == [false; 2] { None } else { silent_since.or(Some(now)) };
        self.connections[id].silent_since = since;
        for side in [CONTROLLER, NODE] {
            let peer = 1 - side;
            // The kernel resets the connections of a process that has ended.
            let is_reset = !(cut[side] || alive[peer] && open[peer]);
            let is_silent = since.is_some_and(|since| now - since >= SILENCE_MS);
            if !open[side] || (alive[side] && (stopped[side] || !(is_reset || is_silent))) {
                continue;
            }
            self.connections[id].open[side] = false;
            if alive[side] && side == CONTROLLER {
                self.connection_lost(controller, node, id);
            } else if alive[side] && self.flaw != Flaw::IgnoresLoss {
                self.order(node, Order::Ended { connection: id });
            }
        }
        if self.connections[id].open != [false; 2] {
            self.after(KEEPALIVE_MS, Event::Keepalive { connection: id });
        }
    }

    /// Checks that every change to a node of this boot has a record that undoes it, and belongs to the trial that holds the node.
    fn check_changes(&mut self) {
        for node in 0..NODES {
            if let Err(what) = self.nodes[node].check_changes() {
                self.violate(format!("node {node}: {what}"));
            }
        }
    }

    /// Checks that no node is held by a controller that is gone.
    fn watch(&mut self) {
        for node in 0..NODES {
            let now = self.now;
            if self.nodes[node].stopped_until > now {
                self.nodes[node].awake_since = now;
            }
            let Some((connection, is_over)) = self.nodes[node].held_by() else { continue };
            let Some(since) = self.connections[connection].silent_since else { continue };
            let held = now.saturating_sub(since.max(self.nodes[node].awake_since));
            let limit = if is_over { ENDED_FREE_MS } else { FREE_MS };
            if held > limit {
                let state = &self.nodes[node].session.state;
                self.violate(format!("node {node} is held {held} ms after the loss: {state:?}"));
            }
        }
        self.after(WATCH_MS, Event::Watch);
    }

    /// Checks after the faults that nodes are free, and either clean or known not to be.
    fn check_quiet(&self) -> Result<(), String> {
        for (node, of) in self.nodes.iter().enumerate() {
            of.check_free().map_err(|what| format!("in the end: node {node}: {what}"))?;
        }
        Ok(())
    }

    /// Checks that every trial is recorded as ok exactly once.
    fn check_complete(&self, controller: usize) -> Result<(), String> {
        self.controllers[controller]
            .check_complete()
            .map_err(|what| format!("run {controller}, resumed without faults: {what}"))
    }
}
