//! A node: the agent's state machine (`ccbench_agent::session`) between models of the kernel and of its disk. What surrounds the state
//! machine follows `executor.rs`: one order at a time, leases, the undo journal, the generation file.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use ccbench_agent::session::{Action, Command, Holder, NodeSession, Refused, State};

use crate::Flaw;
use crate::world::{Answer, Event, Message, Ms, NODE, World};

/// Number of changes that a trial makes to a node.
const CHANGES: u32 = 4;
/// The lease that the controller requests, and the one after the end of a trial.
const LEASE_MS: Ms = 15_000;
const ENDED_LEASE_MS: Ms = 5_000;
/// Length of a trial.
pub const TRIAL_MS: Ms = 800;
/// Maximum time of a step: a record on disk, a change, an undo.
const STEP_MS: u64 = 20;

#[derive(Debug, Clone)]
pub enum Request {
    Describe,
    /// `uses`: how many Prepares the node had accepted when its controller last asked it. Only the model knows this.
    Prepare {
        run: usize,
        trial: u32,
        epoch: u64,
        generation: Option<u64>,
        boot: u64,
        uses: usize,
    },
    Run {
        epoch: u64,
    },
    Reset {
        run: usize,
        epoch: u64,
    },
}

/// Orders that the executor handles one after another.
#[derive(Debug)]
pub enum Order {
    Request { connection: usize, call: u64, request: Request },
    Lease { end: Ms },
    RunEnd { epoch: u64 },
    Ended { connection: usize },
}

/// A call that is waiting for its reply.
#[derive(Debug, Clone, Copy)]
struct Caller {
    connection: usize,
    call: u64,
}

#[derive(Debug)]
enum Work {
    /// Odd steps are changes, even steps are the records before them.
    Prepare { caller: Caller, step: u32 },
    /// Keeps what fails. `answer` is for the caller, if there is one.
    Undo { answer: Option<(Caller, Option<Answer>)>, kept: Vec<Change> },
}

/// A change to the kernel, or its record in the undo journal.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Change {
    boot: u64,
    run: String,
    epoch: u64,
    number: u32,
}

pub struct Node {
    // On disk.
    journal: Vec<Change>,
    generation_file: (u64, String),
    // In the kernel.
    boot: u64,
    kernel: Vec<Change>,
    // In the process.
    pub is_up: bool,
    pub incarnation: u64,
    pub session: NodeSession,
    last_run: String,
    inbox: VecDeque<Order>,
    work: Option<Work>,
    stream: Option<Caller>,
    lease_end: Option<Ms>,
    // Faults.
    pub stopped_until: Ms,
    pub awake_since: Ms,
    pub disk_full_until: Ms,
    pub undo_fails_until: Ms,
    // History, which only the model knows.
    /// The run of every accepted Prepare.
    uses: Vec<usize>,
    /// How many of them were before the state directory was last lost.
    forgotten: usize,
    /// The largest generation since the state directory was created.
    last_generation: u64,
    /// Run and epoch of the trials that ran from beginning to end.
    completed: BTreeSet<(String, u64)>,
}

impl Node {
    pub fn new() -> Self {
        Self {
            journal: Vec::new(),
            generation_file: (0, String::new()),
            boot: 1,
            kernel: Vec::new(),
            is_up: true,
            incarnation: 0,
            session: NodeSession { boot_id: boot_id(1), ..NodeSession::default() },
            last_run: String::new(),
            inbox: VecDeque::new(),
            work: None,
            stream: None,
            lease_end: None,
            stopped_until: 0,
            awake_since: 0,
            disk_full_until: 0,
            undo_fails_until: 0,
            uses: Vec::new(),
            forgotten: 0,
            last_generation: 0,
            completed: BTreeSet::new(),
        }
    }

    pub fn is_process(&self, incarnation: u64) -> bool {
        self.is_up && self.incarnation == incarnation
    }

    /// Returns whether a trial ran from beginning to end.
    pub fn ran(&self, run: usize, epoch: u64) -> bool {
        self.completed.contains(&(run.to_string(), epoch))
    }

    /// Restarts the machine, with or without its state directory.
    pub fn reboot(&mut self, keeps_state: bool) {
        self.boot += 1;
        self.kernel.clear();
        if !keeps_state {
            (self.journal, self.generation_file) = (Vec::new(), (0, String::new()));
            self.last_generation = 0;
            self.forgotten = self.uses.len();
        }
    }

    /// Returns the runs other than `run` of some accepted Prepares.
    pub fn others(&self, run: usize, uses: Range<usize>) -> Vec<usize> {
        let uses = self.uses.get(uses).unwrap_or_default();
        uses.iter().copied().filter(|other| *other != run).collect()
    }

    /// Returns the connection that holds the node, and whether its trial is over.
    pub fn held_by(&self) -> Option<(usize, bool)> {
        let holder = self.holder().filter(|_| self.is_up)?;
        let connection = usize::try_from(holder.connection?).ok()?;
        Some((connection, matches!(self.session.state, State::Ended(_))))
    }

    fn holder(&self) -> Option<&Holder> {
        match &self.session.state {
            State::Idle => None,
            State::Preparing(holder)
            | State::Prepared(holder)
            | State::Running(holder)
            | State::Ended(holder) => Some(holder),
        }
    }

    /// # Errors
    /// There is a change without a record, or of a trial that does not hold the node.
    pub fn check_changes(&self) -> Result<(), String> {
        if let Some(change) = self.kernel.iter().find(|change| !self.journal.contains(change)) {
            return Err(format!("{change:?} is not in the undo journal {:?}", self.journal));
        }
        let Some(holder) = self.holder().filter(|_| self.is_up) else { return Ok(()) };
        let is_foreign =
            |change: &&Change| change.run != holder.run_id || change.epoch != holder.epoch;
        match self.kernel.iter().find(is_foreign) {
            Some(change) => Err(format!("{change:?} disturbs {holder}")),
            None => Ok(()),
        }
    }

    /// # Errors
    /// The node is held, or has changes that the next Prepare would not find.
    pub fn check_free(&self) -> Result<(), String> {
        match &self.session.state {
            State::Idle if self.is_up && self.work.is_none() => self.check_changes(),
            state => Err(format!("{state:?}")),
        }
    }

    fn undo_fails(&self, now: Ms) -> bool {
        self.undo_fails_until > now
    }

    /// Undoes all that can be undone, at once.
    fn undo_all(&mut self, now: Ms) {
        if !self.undo_fails(now) {
            let undone = std::mem::take(&mut self.journal);
            self.kernel.retain(|change| !undone.contains(change));
        }
    }

    /// Passes a command to the state machine.
    fn report(&mut self, command: Command) -> Result<Action, Refused> {
        let (session, action) = self.session.clone().on(command)?;
        self.session = session;
        Ok(action)
    }
}

pub fn boot_id(boot: u64) -> String {
    format!("boot-{boot}")
}

/// Returns what a request asks of the state machine; `None` if it does not concern it.
fn command_of(connection: usize, request: &Request) -> Option<Command> {
    let connection = Some(connection as u64);
    match request {
        Request::Describe => None,
        Request::Prepare { run, trial, epoch, generation, boot, .. } => {
            let (run_id, trial, epoch) = (run.to_string(), *trial, *epoch);
            Some(Command::Prepare {
                holder: Holder { run_id, point_id: 0, trial, epoch, connection },
                generation: *generation,
                boot_id: Some(boot_id(*boot)),
            })
        }
        Request::Run { epoch } => Some(Command::Run { epoch: *epoch, connection }),
        Request::Reset { run, epoch } => {
            Some(Command::Reset { run_id: run.to_string(), epoch: *epoch })
        }
    }
}

impl World {
    pub fn order(&mut self, node: usize, order: Order) {
        self.nodes[node].inbox.push_back(order);
        self.handle_orders(node);
    }

    fn handle_orders(&mut self, node: usize) {
        while self.nodes[node].work.is_none() {
            let Some(order) = self.nodes[node].inbox.pop_front() else { break };
            match order {
                Order::Request { connection, call, request } => {
                    self.handle_request(node, Caller { connection, call }, &request);
                }
                Order::Lease { end } if self.nodes[node].lease_end == Some(end) => self.lost(node),
                Order::Lease { .. } => {}
                Order::RunEnd { epoch } => self.run_ended(node, epoch),
                Order::Ended { connection } => {
                    let is_over = matches!(self.nodes[node].session.state, State::Ended(_));
                    let holder = self.nodes[node].holder().and_then(|holder| holder.connection);
                    // After the end of a trial, only the lease frees the node.
                    if holder == Some(connection as u64) && !is_over {
                        self.lost(node);
                    }
                }
            }
        }
    }

    fn reply(&mut self, node: usize, caller: Caller, answer: Answer) {
        let Caller { connection, call } = caller;
        if self.connections[connection].open[NODE] && self.connections[connection].node == node {
            let towards = crate::world::CONTROLLER;
            self.send(connection, towards, call, Message::Answer(answer));
        }
    }

    fn step_later(&mut self, node: usize) {
        let incarnation = self.nodes[node].incarnation;
        let delay = 1 + self.random.below(STEP_MS);
        self.after(delay, Event::NodeStep { node, incarnation });
    }

    fn lease(&mut self, node: usize, length: Ms) {
        let (end, incarnation) = (self.now + length, self.nodes[node].incarnation);
        self.nodes[node].lease_end = Some(end);
        self.at(end, Event::NodeOrder { node, incarnation, order: Order::Lease { end } });
    }

    fn handle_request(&mut self, node: usize, caller: Caller, request: &Request) {
        let now = self.now;
        let is_prepare = matches!(request, Request::Prepare { .. });
        let of = &mut self.nodes[node];
        if is_prepare && of.session.state == State::Idle && !of.journal.is_empty() {
            of.undo_all(now);
            if !of.journal.is_empty() {
                return self.reply(node, caller, Answer::Refused);
            }
        }
        let Some(command) = command_of(caller.connection, request) else {
            let generation = of.session.generation;
            let (boot, last_run) = (of.boot, of.last_run.clone());
            let (uses, forgotten) = (of.uses.len(), of.forgotten);
            let described = Answer::Described { generation, boot, last_run, uses, forgotten };
            return self.reply(node, caller, described);
        };
        let action = match of.report(command) {
            Ok(action) => action,
            Err(Refused::Rebooted { .. }) => {
                return self.reply(node, caller, Answer::Unavailable);
            }
            Err(_) => return self.reply(node, caller, Answer::Refused),
        };
        match (action, request) {
            (Action::Prepare, Request::Prepare { run, uses, .. }) => {
                self.prepare(node, caller, *run, *uses);
            }
            (Action::Run, Request::Run { epoch }) => self.run(node, caller, *epoch),
            (Action::Undo, _) => self.undo(node, Some((caller, None))),
            (action, request) => self.violate(format!("{action:?} for {request:?}")),
        }
    }

    fn prepare(&mut self, node: usize, caller: Caller, run: usize, uses: usize) {
        let of = &mut self.nodes[node];
        let generation = of.session.generation;
        let others = of.others(run, uses..of.uses.len());
        let (last, kernel) = (of.last_generation, of.kernel.clone());
        of.uses.push(run);
        of.last_generation = generation;
        of.last_run = run.to_string();
        if self.flaw != Flaw::ForgetsGeneration {
            of.generation_file = (generation, run.to_string());
        }
        of.work = Some(Work::Prepare { caller, step: 0 });
        if !others.is_empty() {
            self.violate(format!("run {run} uses node {node}, not knowing of runs {others:?}"));
        }
        if generation <= last {
            self.violate(format!("node {node} gives generation {generation} after {last}"));
        }
        if !kernel.is_empty() {
            self.violate(format!("node {node} prepares run {run} with {kernel:?}"));
        }
        self.step_later(node);
    }

    fn run(&mut self, node: usize, caller: Caller, epoch: u64) {
        let incarnation = self.nodes[node].incarnation;
        let changes = self.nodes[node].kernel.len();
        self.nodes[node].lease_end = None;
        self.nodes[node].stream = Some(caller);
        if changes != CHANGES as usize {
            self.violate(format!("node {node} runs epoch {epoch} with {changes} changes"));
        }
        let order = Order::RunEnd { epoch };
        self.after(TRIAL_MS, Event::NodeOrder { node, incarnation, order });
        if !self.connections[caller.connection].open[NODE] {
            self.lost(node);
        }
    }

    fn run_ended(&mut self, node: usize, epoch: u64) {
        let of = &mut self.nodes[node];
        let State::Running(holder) = &of.session.state else { return };
        if holder.epoch != epoch {
            return;
        }
        let whole = (holder.run_id.clone(), epoch);
        of.completed.insert(whole);
        let reported = of.report(Command::RunDone);
        let stream = of.stream.take();
        if let Err(refused) = reported {
            self.violate(format!("node {node}: {refused}"));
        }
        if let Some(caller) = stream {
            self.reply(node, caller, Answer::Done);
        }
        self.lease(node, ENDED_LEASE_MS);
    }

    fn lost(&mut self, node: usize) {
        match self.nodes[node].report(Command::Lost) {
            Ok(Action::Undo) => self.undo(node, None),
            Ok(_) => self.nodes[node].lease_end = None,
            Err(refused) => self.violate(format!("node {node}: {refused}")),
        }
    }

    fn undo(&mut self, node: usize, answer: Option<(Caller, Option<Answer>)>) {
        self.nodes[node].lease_end = None;
        if let Some(caller) = self.nodes[node].stream.take() {
            self.reply(node, caller, Answer::StreamEnd);
        }
        self.nodes[node].work = Some(Work::Undo { answer, kept: Vec::new() });
        self.step_later(node);
    }

    /// Executes one step of the executor.
    pub fn step(&mut self, node: usize) {
        match self.nodes[node].work.take() {
            Some(Work::Prepare { caller, step }) => self.prepare_step(node, caller, step),
            Some(Work::Undo { answer, kept }) => self.undo_step(node, answer, kept),
            None => {}
        }
        self.handle_orders(node);
    }

    fn prepare_step(&mut self, node: usize, caller: Caller, step: u32) {
        let (now, flaw) = (self.now, self.flaw);
        let of = &mut self.nodes[node];
        if step == 2 * CHANGES {
            return self.prepared(node, caller);
        }
        let Some(holder) = of.holder() else { return };
        let (run, epoch) = (holder.run_id.clone(), holder.epoch);
        let change = Change { boot: of.boot, run, epoch, number: step / 2 };
        let is_record = step.is_multiple_of(2) != (flaw == Flaw::ChangesBeforeRecord);
        if is_record && of.disk_full_until > now {
            let reported = of.report(Command::PrepareDone { ok: false });
            if reported != Ok(Action::Undo) {
                self.violate(format!("node {node}: {reported:?} after a failed Prepare"));
            }
            return self.undo(node, Some((caller, Some(Answer::Unavailable))));
        }
        let list = if is_record { &mut of.journal } else { &mut of.kernel };
        list.push(change);
        of.work = Some(Work::Prepare { caller, step: step + 1 });
        self.step_later(node);
    }

    fn prepared(&mut self, node: usize, caller: Caller) {
        let of = &mut self.nodes[node];
        let reported = of.report(Command::PrepareDone { ok: true });
        let (generation, uses) = (of.session.generation, of.uses.len());
        if reported != Ok(Action::None) {
            self.violate(format!("node {node}: {reported:?} after a Prepare"));
        }
        self.reply(node, caller, Answer::Prepared { generation, uses });
        self.lease(node, LEASE_MS);
        if !self.connections[caller.connection].open[NODE] && self.flaw != Flaw::IgnoresLoss {
            self.lost(node);
        }
    }

    /// Undoes the last remaining change. At the end, the journal has those that could not be undone.
    fn undo_step(
        &mut self,
        node: usize,
        answer: Option<(Caller, Option<Answer>)>,
        mut kept: Vec<Change>,
    ) {
        let now = self.now;
        let of = &mut self.nodes[node];
        let left = of
            .journal
            .iter()
            .rev()
            .find(|change| of.kernel.contains(*change) && !kept.contains(*change));
        if let Some(change) = left.cloned() {
            if of.undo_fails(now) {
                kept.push(change);
            } else {
                of.kernel.retain(|other| *other != change);
            }
            of.work = Some(Work::Undo { answer, kept });
            return self.step_later(node);
        }
        kept.reverse();
        let failed = !kept.is_empty();
        of.journal = kept;
        if let Some((caller, answer)) = answer {
            self.reply(node, caller, answer.unwrap_or(Answer::Reset { failed }));
        }
    }

    /// Ends the agent's process, which starts again later.
    pub fn end_node(&mut self, node: usize, down: Ms) {
        let of = &mut self.nodes[node];
        of.is_up = false;
        of.incarnation += 1;
        of.stopped_until = 0;
        of.inbox.clear();
        (of.work, of.stream, of.lease_end) = (None, None, None);
        let incarnation = of.incarnation;
        self.after(down, Event::NodeStart { node, incarnation });
    }

    /// Starts the agent. It undoes what a dead one has left, unless the machine has been rebooted meanwhile.
    pub fn start_node(&mut self, node: usize, incarnation: u64) {
        let now = self.now;
        let of = &mut self.nodes[node];
        if of.incarnation != incarnation {
            return;
        }
        of.is_up = true;
        let boot = of.boot;
        of.journal.retain(|change| change.boot == boot);
        of.undo_all(now);
        let generation;
        (generation, of.last_run) = of.generation_file.clone();
        of.session = NodeSession { generation, boot_id: boot_id(boot), ..NodeSession::default() };
    }
}
