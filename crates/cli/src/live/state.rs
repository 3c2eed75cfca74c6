//! The state of a run: its trials, its messages, and what comes next.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ccbench_proto::wire::RunEvent;

use super::trial::{LiveTrial, TrialFacts};
use super::update::{EndedTrial, RunView, Update};

/// Maximum number of ended trials, and of messages, that a view lists. Earlier ones are only counted.
const LISTED: usize = 30;

/// The aggregated state of a run.
#[derive(Debug, Default)]
pub struct LiveState {
    /// Increases with every update that a subscriber gets. All rows between two updates belong to one revision.
    revision: u32,
    name: String,
    directory: String,
    trials: usize,
    /// Running trials, by number.
    running: BTreeMap<usize, LiveTrial>,
    /// Trials that lost a node and wait for it, by number.
    suspended: BTreeMap<usize, LiveTrial>,
    /// The trial that ended last, while no other runs.
    last_trial: Option<LiveTrial>,
    ended: BTreeMap<String, u32>,
    last: VecDeque<EndedTrial>,
    messages: VecDeque<String>,
    messages_left_out: u64,
    next: Option<String>,
    left: Option<Duration>,
    status: Option<&'static str>,
}

/// What a subscriber already has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The revision of its last update.
    revision: u32,
    /// The number of the trial in its last update, and the attempt at it.
    trial: (usize, u32),
}

impl LiveState {
    /// Sets the run's name, results directory, and maximum number of trials.
    pub fn describe(&mut self, name: &str, directory: &str, trials: usize) {
        (self.name, self.directory) = (name.to_owned(), directory.to_owned());
        self.trials = trials;
    }

    /// Adds a printed message.
    pub fn message(&mut self, text: &str) {
        if self.messages.len() >= LISTED {
            self.messages.pop_front();
            self.messages_left_out += 1;
        }
        self.messages.push_back(text.to_owned());
    }

    /// Starts a trial. `next` is the label of the one that will start after it.
    pub fn start_trial(&mut self, facts: TrialFacts, next: Option<String>) {
        self.next = next;
        self.last_trial = None;
        self.running.insert(facts.number, LiveTrial::new(facts));
    }

    /// Takes a trial that lost a node out of the running ones, until it is repeated or has ended.
    pub fn suspend_trial(&mut self, number: usize) {
        if let Some(trial) = self.running.remove(&number) {
            self.suspended.insert(number, trial);
        }
    }

    /// Starts a trial again. Its earlier rows are void. Returns the number of the attempt, from 1.
    pub fn repeat_trial(&mut self, number: usize) -> u32 {
        let earlier = self.suspended.remove(&number).or_else(|| self.running.remove(&number));
        let Some(trial) = earlier.map(LiveTrial::next_attempt) else { return 1 };
        let attempt = trial.attempt();
        self.running.insert(number, trial);
        attempt
    }

    /// Sets the start of a trial on the clock of each node.
    pub fn clocks(&mut self, number: usize, t0_ns: BTreeMap<String, u64>) {
        if let Some(trial) = self.running.get_mut(&number) {
            trial.start(t0_ns);
        }
    }

    /// Adds a row of a node.
    pub fn record(&mut self, number: usize, node: &str, event: &RunEvent) {
        // Subscribers' updates were taken in earlier revisions.
        let revision = self.revision + 1;
        if let Some(trial) = self.running.get_mut(&number) {
            trial.record(node, event, revision);
        }
    }

    /// Sets how much of a trial has passed, and how much longer the run takes (`left`).
    pub fn tick(&mut self, number: usize, elapsed_ns: u64, left: Duration) {
        self.left = Some(left);
        if let Some(trial) = self.running.get_mut(&number) {
            trial.tick(elapsed_ns);
        }
    }

    /// Sets the verdict on a trial so far.
    pub fn judge(&mut self, number: usize, status: &'static str, reasons: Vec<String>) {
        if let Some(trial) = self.running.get_mut(&number) {
            trial.judge(status, reasons);
        }
    }

    /// Ends a trial as `ok`, `degraded`, `failed` or `discarded`.
    pub fn end_trial(&mut self, number: usize, status: &'static str, reasons: Vec<String>) {
        let ended = self.running.remove(&number).or_else(|| self.suspended.remove(&number));
        let Some(mut trial) = ended else { return };
        trial.judge(status, reasons);
        trial.end(self.revision + 1);
        *self.ended.entry(status.to_owned()).or_default() += 1;
        if self.last.len() >= LISTED {
            self.last.pop_front();
        }
        let (label, status) = (trial.label().to_owned(), status.to_owned());
        self.last.push_back(EndedTrial { number, label, status });
        if self.running.is_empty() {
            self.last_trial = Some(trial);
        }
    }

    /// Ends the run as `complete`, `interrupted` or `failed`.
    pub fn end(&mut self, status: &'static str) {
        self.status = Some(status);
        (self.next, self.left) = (None, Some(Duration::ZERO));
    }

    /// Returns whether the run has ended.
    pub fn has_ended(&self) -> bool {
        self.status.is_some()
    }

    /// Returns what has changed since the subscriber's last update, or everything, and the cursor for its next update.
    pub fn update(&mut self, cursor: Option<Cursor>) -> (Update, Cursor) {
        self.revision += 1;
        let shown = self.running.values().next().or(self.last_trial.as_ref());
        let shown_trial = shown.map_or((0, 0), |trial| (trial.number(), trial.attempt()));
        let known = cursor.filter(|cursor| cursor.trial == shown_trial);
        let since = known.map_or(0, |cursor| cursor.revision);
        let run = RunView {
            name: self.name.clone(),
            directory: self.directory.clone(),
            trials: self.trials,
            ended: self.ended.clone(),
            last: self.last.iter().cloned().collect(),
            running: self.running.values().map(LiveTrial::running).collect(),
            waits_for_nodes: !self.suspended.is_empty(),
            next: self.next.clone(),
            left_s: self.left.map(|left| left.as_secs()),
            messages: self.messages.iter().cloned().collect(),
            messages_left_out: self.messages_left_out,
            status: self.status.map(str::to_owned),
        };
        let update = Update { run, trial: shown.map(|trial| trial.view(since)) };
        (update, Cursor { revision: self.revision, trial: shown_trial })
    }
}
