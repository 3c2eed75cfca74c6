//! A controller that works like `crates/cli/src/testbed.rs`, `testbed/trial.rs` and `agents.rs`. It sends calls to all nodes at once,
//! repeats a trial whose node was lost once when all nodes answer, and resumes a run that ended early. What it does with a node that
//! answers again is the program's own function (`after_loss`).

use std::collections::{BTreeSet, VecDeque};

use ccbench_proto::wire::NodeInfo;

use crate::Flaw;
use crate::node::{Request, TRIAL_MS, boot_id};
use crate::world::{Answer, CONTROLLER, Event, Message, Ms, NODE, World};

/// Number of trials of a run.
const TRIALS: u32 = 5;
/// `CALL_TIMEOUT`, `REPORT_TIMEOUT`, `AWAIT_NODES`, `AWAIT_INTERVAL` and the time to connect.
const CALL_TIMEOUT_MS: Ms = 15_000;
const REPORT_TIMEOUT_MS: Ms = 12_000;
const AWAIT_NODES_MS: Ms = 30_000;
const AWAIT_INTERVAL_MS: Ms = 500;
const CONNECT_TIMEOUT_MS: Ms = 5_000;

/// A line of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Record {
    Begin { trial: u32, epoch: u64 },
    NotRun { trial: u32, epoch: u64 },
    End { trial: u32, epoch: u64, ok: bool },
}

impl Record {
    /// Trial and epoch.
    fn key(&self) -> (u32, u64) {
        match *self {
            Self::Begin { trial, epoch }
            | Self::NotRun { trial, epoch }
            | Self::End { trial, epoch, .. } => (trial, epoch),
        }
    }
}

/// Result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Good,
    /// A reset that left something behind.
    NotUndone,
    Lost,
    Refused,
}

/// How a trial ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    NotRun { lost: bool },
    Ran { ok: bool, lost: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No run is in progress.
    Over,
    Connect,
    Prepare,
    Run,
    Reset(End),
    Await(End, Ms),
}

/// What the controller knows about a node.
#[derive(Debug, Clone, Default)]
struct Known {
    generation: u64,
    boot: u64,
    last_run: String,
    /// How often the node had been used at that time. Only the model knows this.
    uses: usize,
}

pub struct Controller {
    run: usize,
    // On disk.
    journal: Vec<Record>,
    // In the process.
    is_up: bool,
    pub incarnation: u64,
    phase: Phase,
    waiting: VecDeque<u32>,
    trial: u32,
    epoch: u64,
    is_repeated: bool,
    known: Vec<Known>,
    connections: Vec<Option<usize>>,
    calls: Vec<Option<u64>>,
    next_call: u64,
    outcomes: Vec<Option<Outcome>>,
    pub stopped_until: Ms,
}

impl Controller {
    pub fn new(run: usize, nodes: usize) -> Self {
        Self {
            run,
            journal: Vec::new(),
            is_up: false,
            incarnation: 0,
            phase: Phase::Over,
            waiting: VecDeque::new(),
            trial: 0,
            epoch: 0,
            is_repeated: false,
            known: vec![Known::default(); nodes],
            connections: vec![None; nodes],
            calls: vec![None; nodes],
            next_call: 0,
            outcomes: vec![None; nodes],
            stopped_until: 0,
        }
    }

    pub fn is_process(&self, incarnation: u64) -> bool {
        self.is_up && self.incarnation == incarnation
    }

    /// Ends the process. Its journal stays.
    pub fn end(&mut self) {
        let nodes = self.calls.len();
        let (journal, next_call) = (std::mem::take(&mut self.journal), self.next_call);
        let incarnation = self.incarnation + 1;
        *self = Self { journal, next_call, incarnation, ..Self::new(self.run, nodes) };
    }

    fn next_epoch(&self) -> u64 {
        1 + self.journal.iter().map(|record| record.key().1).max().unwrap_or(0)
    }

    fn oks(&self, of: u32) -> usize {
        let is_ok = |record: &&Record| matches!(record, Record::End { trial, ok: true, .. } if *trial == of);
        self.journal.iter().filter(is_ok).count()
    }

    fn is_complete(&self) -> bool {
        (0..TRIALS).all(|trial| self.oks(trial) > 0)
    }

    /// # Errors
    /// A trial is not ok, or ok twice, or two trials have the same epoch, or the run goes on.
    pub fn check_complete(&self) -> Result<(), String> {
        if self.phase != Phase::Over {
            return Err(format!("still in {:?}: {:?}", self.phase, self.journal));
        }
        let epochs: BTreeSet<(u32, u64)> = self.journal.iter().map(Record::key).collect();
        if epochs.len() as u64 + 1 != self.next_epoch() {
            return Err(format!("an epoch is missing or has two trials: {:?}", self.journal));
        }
        match (0..TRIALS).find(|trial| self.oks(*trial) != 1) {
            Some(trial) => Err(format!("trial {trial}: {:?}", self.journal)),
            None => Ok(()),
        }
    }
}

impl World {
    /// Starts or resumes a run.
    pub fn start_controller(&mut self, c: usize) {
        let of = &mut self.controllers[c];
        if of.phase != Phase::Over || of.is_complete() {
            return;
        }
        of.is_up = true;
        of.incarnation += 1;
        of.waiting = (0..TRIALS).filter(|trial| of.oks(*trial) == 0).collect();
        self.call_all(c, Phase::Connect, |_, _| Request::Describe);
    }

    /// Sends a request to every node. The replies belong to this phase.
    fn call_all(
        &mut self,
        c: usize,
        phase: Phase,
        request: impl Fn(&Controller, usize) -> Request,
    ) {
        let of = &mut self.controllers[c];
        let nodes = of.calls.len();
        of.phase = phase;
        (of.calls, of.outcomes) = (vec![None; nodes], vec![None; nodes]);
        for node in 0..nodes {
            let request = request(&self.controllers[c], node);
            self.call(c, node, request);
        }
    }

    fn call(&mut self, c: usize, node: usize, request: Request) {
        let of = &mut self.controllers[c];
        let (call, incarnation) = (of.next_call, of.incarnation);
        of.next_call += 1;
        of.calls[node] = Some(call);
        let open = of.connections[node];
        let open = open.filter(|id| self.connections[*id].open[CONTROLLER]);
        let Some(connection) = open.or_else(|| self.connect(c, node)) else {
            let delay = if self.nodes[node].is_up { CONNECT_TIMEOUT_MS } else { 10 };
            let fails = Event::CallFails { controller: c, incarnation, node, call };
            return self.after(delay, fails);
        };
        self.controllers[c].connections[node] = Some(connection);
        // The stream of a trial has the trial's limit.
        if !matches!(request, Request::Run { .. }) {
            let fails = Event::CallFails { controller: c, incarnation, node, call };
            self.after(CALL_TIMEOUT_MS, fails);
        }
        self.send(connection, NODE, call, Message::Request(request));
    }

    /// Handles a call without a reply within the limit, or without a connection.
    pub fn call_fails(&mut self, c: usize, node: usize, call: u64) {
        if self.controllers[c].calls[node] == Some(call) {
            self.lose(c, node);
        }
    }

    /// Handles the end of a connection, and with it of the call that used it.
    pub fn connection_lost(&mut self, c: usize, node: usize, connection: usize) {
        let of = &self.controllers[c];
        if of.connections[node] == Some(connection) && of.calls[node].is_some() {
            self.lose(c, node);
        }
    }

    fn lose(&mut self, c: usize, node: usize) {
        let of = &mut self.controllers[c];
        of.calls[node] = None;
        let incarnation = of.incarnation;
        match of.phase {
            Phase::Await(_, until) if self.now < until => {
                self.after(AWAIT_INTERVAL_MS, Event::Retry { controller: c, incarnation, node });
            }
            _ => self.settle(c, node, Outcome::Lost),
        }
    }

    /// Tries again to reach a lost node.
    pub fn recover(&mut self, c: usize, node: usize) {
        let of = &self.controllers[c];
        if matches!(of.phase, Phase::Await(..)) && of.calls[node].is_none() {
            self.call(c, node, Request::Describe);
        }
    }

    /// Handles a reply. Nobody waits for replies to calls that were given up.
    pub fn answer(&mut self, c: usize, node: usize, call: u64, answer: Answer) {
        let of = &mut self.controllers[c];
        if of.calls[node] != Some(call) {
            return;
        }
        of.calls[node] = None;
        if let (Phase::Await(..), Answer::Unavailable) = (of.phase, &answer) {
            return self.lose(c, node);
        }
        let outcome = match (of.phase, answer) {
            (Phase::Connect, Answer::Described { generation, boot, last_run, uses, .. }) => {
                of.known[node] = Known { generation, boot, last_run, uses };
                Outcome::Good
            }
            (Phase::Prepare, Answer::Prepared { generation, uses }) => {
                let (boot, last_run) = (of.known[node].boot, of.run.to_string());
                of.known[node] = Known { generation, boot, last_run, uses };
                Outcome::Good
            }
            (Phase::Run, Answer::Done) => Outcome::Good,
            (
                Phase::Await(..),
                Answer::Described { generation, boot, last_run, uses, forgotten },
            ) => {
                let now = Known { generation, boot, last_run, uses };
                return self.described(c, node, now, forgotten);
            }
            (Phase::Reset(_) | Phase::Await(..), Answer::Reset { failed: false }) => Outcome::Good,
            (Phase::Reset(_), Answer::Reset { failed: true } | Answer::Refused) => {
                Outcome::NotUndone
            }
            // What is left is undone before the next trial, or the trial is refused.
            (Phase::Await(..), Answer::Reset { failed: true }) => Outcome::Good,
            (Phase::Run, Answer::StreamEnd | Answer::Refused) | (_, Answer::Unavailable) => {
                Outcome::Lost
            }
            (_, Answer::Refused) => Outcome::Refused,
            (phase, answer) => {
                return self.violate(format!("run {c}: {answer:?} in {phase:?}"));
            }
        };
        self.settle(c, node, outcome);
    }

    /// Handles a lost node that answers again.
    fn described(&mut self, c: usize, node: usize, now: Known, forgotten: usize) {
        let info = |known: &Known| NodeInfo {
            generation: known.generation,
            boot_id: boot_id(known.boot),
            last_run_id: known.last_run.clone(),
            ..NodeInfo::default()
        };
        let of = &self.controllers[c];
        let (run, known) = (of.run, of.known[node].clone());
        let run_id = run.to_string();
        let (before, after) = (info(&known), info(&now));
        let is_ours = match self.flaw {
            Flaw::TakesBack => now.generation <= known.generation || now.last_run == run_id,
            _ => ccbench::after_loss("n", &run_id, known.generation, &before, &after).is_ok(),
        };
        if !is_ours {
            return self.settle(c, node, Outcome::Refused);
        }
        // What the node no longer knows, no controller can know. Neither can it see that a node has lost its state, if the same run has used
        // the node as often again.
        let others = self.nodes[node].others(run, known.uses.max(forgotten)..now.uses);
        let is_same = (known.generation, &known.last_run) == (now.generation, &now.last_run);
        if !(others.is_empty() || is_same) {
            self.violate(format!("run {run} takes node {node} back from runs {others:?}"));
        }
        self.controllers[c].known[node] = now;
        let epoch = self.controllers[c].next_epoch();
        self.call(c, node, Request::Reset { run, epoch });
    }

    /// Records that a node's part of the phase is over.
    fn settle(&mut self, c: usize, node: usize, outcome: Outcome) {
        let of = &mut self.controllers[c];
        of.outcomes[node] = Some(outcome);
        let settled: Vec<Outcome> = of.outcomes.iter().flatten().copied().collect();
        let all = settled.len() == of.outcomes.len();
        let is_good = settled.iter().all(|outcome| *outcome == Outcome::Good);
        // The outcome of the node whose error is the run's.
        let first = settled.iter().find(|outcome| **outcome != Outcome::Good).copied();
        let lost = first == Some(Outcome::Lost);
        let phase = of.phase;
        match phase {
            Phase::Run if lost => self.stop_trial(c, lost),
            _ if !all => {}
            Phase::Over => {}
            Phase::Connect if is_good => self.next_trial(c),
            Phase::Connect => self.end_run(c),
            Phase::Prepare if is_good => self.run_trial(c),
            Phase::Prepare => self.reset_all(c, End::NotRun { lost }),
            Phase::Run => self.stop_trial(c, lost),
            Phase::Reset(end) => self.end_trial(c, end, is_good),
            Phase::Await(..) if is_good => {
                self.controllers[c].is_repeated = true;
                self.begin_trial(c);
            }
            Phase::Await(end, _) => self.after_trial(c, end),
        }
    }

    fn next_trial(&mut self, c: usize) {
        let of = &mut self.controllers[c];
        let Some(trial) = of.waiting.pop_front() else { return self.end_run(c) };
        (of.trial, of.is_repeated) = (trial, false);
        self.begin_trial(c);
    }

    fn begin_trial(&mut self, c: usize) {
        let is_fenced = self.flaw != Flaw::NoFencing;
        let of = &mut self.controllers[c];
        of.epoch = of.next_epoch();
        self.call_all(c, Phase::Prepare, |of, node| {
            let Known { generation, boot, uses, .. } = of.known[node];
            let generation = is_fenced.then_some(generation);
            let (run, trial, epoch) = (of.run, of.trial, of.epoch);
            Request::Prepare { run, trial, epoch, generation, boot, uses }
        });
    }

    fn run_trial(&mut self, c: usize) {
        let of = &mut self.controllers[c];
        let (trial, epoch, incarnation) = (of.trial, of.epoch, of.incarnation);
        of.journal.push(Record::Begin { trial, epoch });
        self.call_all(c, Phase::Run, move |_, _| Request::Run { epoch });
        let timeout = Event::ReportTimeout { controller: c, incarnation, epoch };
        self.after(TRIAL_MS + REPORT_TIMEOUT_MS, timeout);
    }

    /// Handles that some nodes have not reported in time.
    pub fn report_timeout(&mut self, c: usize, epoch: u64) {
        if self.controllers[c].phase == Phase::Run && self.controllers[c].epoch == epoch {
            self.stop_trial(c, true);
        }
    }

    fn stop_trial(&mut self, c: usize, lost: bool) {
        let outcomes = &self.controllers[c].outcomes;
        let mut done = outcomes.iter().map(|outcome| *outcome == Some(Outcome::Good));
        let ok = match self.flaw {
            Flaw::CommitsTooEarly => done.any(|done| done),
            _ => done.all(|done| done),
        };
        self.reset_all(c, End::Ran { ok, lost });
    }

    fn reset_all(&mut self, c: usize, end: End) {
        self.call_all(c, Phase::Reset(end), |of, _| Request::Reset {
            run: of.run,
            epoch: of.epoch,
        });
    }

    /// Records a trial, and repeats it once if a node was lost.
    fn end_trial(&mut self, c: usize, end: End, is_reset: bool) {
        let of = &mut self.controllers[c];
        let (run, trial, epoch) = (of.run, of.trial, of.epoch);
        let (record, end) = match end {
            End::NotRun { .. } => (Record::NotRun { trial, epoch }, end),
            End::Ran { ok, lost } => {
                let ok = ok && (is_reset || self.flaw == Flaw::CommitsTooEarly);
                (Record::End { trial, epoch, ok }, End::Ran { ok, lost })
            }
        };
        let is_newest = of.next_epoch() <= epoch + 1;
        of.journal.push(record);
        let is_repeated = of.is_repeated;
        if !is_newest {
            self.violate(format!("run {c}: epoch {epoch} is older than its journal"));
        }
        if let Record::End { ok: true, .. } = record
            && let Some(node) =
                (0..self.nodes.len()).find(|node| !self.nodes[*node].ran(run, epoch))
        {
            self.violate(format!("run {c}: epoch {epoch} is ok, but did not end on node {node}"));
        }
        match end {
            End::NotRun { lost: true } | End::Ran { ok: false, lost: true } if !is_repeated => {
                let until = self.now + AWAIT_NODES_MS;
                self.call_all(c, Phase::Await(end, until), |_, _| Request::Describe);
            }
            _ => self.after_trial(c, end),
        }
    }

    fn after_trial(&mut self, c: usize, end: End) {
        match end {
            End::NotRun { .. } => self.end_run(c),
            End::Ran { .. } => self.next_trial(c),
        }
    }

    /// Ends the process. While there are faults, somebody resumes the run if it is not complete.
    fn end_run(&mut self, c: usize) {
        for connection in self.controllers[c].connections.clone().into_iter().flatten() {
            self.connections[connection].open[CONTROLLER] = false;
        }
        self.controllers[c].end();
        let again = 1_000 + self.random.below(20_000);
        if !self.is_quiet() && !self.controllers[c].is_complete() {
            self.after(again, Event::Start { controller: c });
        }
    }
}
