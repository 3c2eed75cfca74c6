//! Runs the trials of an experiment in order, with the same logic for every backend.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ccbench_proto::plan::Repetitions;
use ccbench_proto::schedule::{self, Point, ScheduledTrial};
use ccbench_results::model::{Reason, Status, Verdict};
use ccbench_results::reason::ReasonCode;
use ccbench_results::stopping::{Decision, Start, TrialMeter};
use ccbench_results::store::RunDir;
use tokio::sync::Notify;
use tracing::{info, warn};

use crate::backend::error::BackendError;
use crate::experiment::Experiment;
use crate::progress::{Progress, TrialProgress, TrialSchedule};
use crate::repetition::{self, Repetition};
use crate::shard::ShardRun;

/// Time that a trial takes besides its own length, for the estimate of the remaining time.
const TRIAL_OVERHEAD: Duration = Duration::from_millis(1500);

/// One trial to run.
#[derive(Clone, Copy)]
pub struct Trial<'a> {
    /// The experiment.
    pub experiment: &'a Experiment,
    /// The point of its matrix.
    pub point: &'a Point,
    /// Repetition and seed.
    pub scheduled: &'a ScheduledTrial,
    /// Where the results go.
    pub dir: &'a RunDir,
    /// The trial's epoch in the lab. It follows from the trial's position in the order of all trials.
    pub epoch: u64,
}

/// The trials of a run. A backend takes them in order; several may run at the same time.
pub struct TrialQueue<'a> {
    experiment: &'a Experiment,
    dir: &'a RunDir,
    progress: &'a Progress,
    points: BTreeMap<u32, Point>,
    trials: &'a [ScheduledTrial],
    /// The trials of each point, by index.
    of_point: BTreeMap<u32, Vec<usize>>,
    /// Wall-clock time of a trial of each point.
    lengths: BTreeMap<u32, Duration>,
    /// Epoch of the first trial. The epoch of the others follows from their position in the order, not from when they start.
    first_epoch: u64,
    meter: Option<Arc<TrialMeter>>,
    /// The shard whose trials these are. It puts them into the shard store.
    shard: Option<&'a ShardRun>,
    state: RefCell<State>,
    /// Notifies that a trial has ended, so that others may start.
    ended: Notify,
}

/// How far a run has come.
struct State {
    /// Indices of the trials that have not started.
    waiting: BTreeSet<usize>,
    /// Time that these trials take one after the other.
    time_left: Duration,
    /// Numbers of trials that have started and that are running.
    started: usize,
    running: usize,
    repetition: Repetition,
    /// The first error that stops the run.
    error: Option<BackendError>,
}

/// What a free place does next.
enum Next {
    /// Runs the trial of this index.
    Trial(usize),
    /// Waits for a running trial, which decides which trials are needed.
    Wait,
    /// Nothing: no trial is left.
    Nothing,
}

/// What a run does after a trial that could not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterError {
    /// Starts no other trial, unless the user asked to keep going.
    Stop,
    /// Goes on: the backend is rebuilt.
    GoOn,
}

/// A running trial.
pub struct RunningTrial<'a> {
    /// The trial.
    pub trial: Trial<'a>,
    /// Prints its progress.
    pub progress: TrialProgress<'a>,
    label: String,
}

impl<'a> TrialQueue<'a> {
    /// Makes a queue of these trials of an experiment.
    pub fn new(
        experiment: &'a Experiment,
        dir: &'a RunDir,
        progress: &'a Progress,
        trials: &'a [ScheduledTrial],
        repetition: Repetition,
    ) -> Self {
        let points: BTreeMap<u32, Point> =
            experiment.plan.points().into_iter().map(|point| (point.id, point)).collect();
        let lengths = lengths(&points, experiment.plan.plan().gap.duration());
        let mut of_point: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (index, trial) in trials.iter().enumerate() {
            of_point.entry(trial.point_id).or_default().push(index);
        }
        let meter = repetition.meter();
        let state = State {
            waiting: (0..trials.len()).collect(),
            time_left: time_of(trials, &lengths),
            started: 0,
            running: 0,
            repetition,
            error: None,
        };
        Self {
            experiment,
            dir,
            progress,
            points,
            trials,
            of_point,
            lengths,
            first_epoch: dir.next_epoch(),
            meter,
            shard: None,
            state: RefCell::new(state),
            ended: Notify::new(),
        }
    }

    /// Marks the trials as those of a shard.
    #[must_use]
    pub fn of_shard(self, shard: Option<&'a ShardRun>) -> Self {
        Self { shard, ..self }
    }

    /// Returns the experiment.
    pub fn experiment(&self) -> &'a Experiment {
        self.experiment
    }

    /// Returns the number of trials. The run may not need all of them.
    pub fn count(&self) -> usize {
        self.trials.len()
    }

    /// Prints a note and sets the number of concurrent trials for the progress display.
    pub fn use_jobs(&self, jobs: usize, note: Option<&str>) {
        self.progress.set_jobs(jobs);
        if let Some(note) = note {
            self.progress.message("note", &format!("note: {note}"));
        }
    }

    /// Returns whether no more trials can start.
    pub fn is_over(&self) -> bool {
        let state = self.state.borrow();
        state.error.is_some() || state.waiting.is_empty()
    }

    /// Returns whether an error has stopped the run.
    pub fn is_stopped(&self) -> bool {
        self.state.borrow().error.is_some()
    }

    /// Starts the next trial as soon as it is known which one is needed. Returns `None` after the last trial or after an error.
    pub async fn start(&'a self) -> Option<RunningTrial<'a>> {
        loop {
            // Subscribes before looking at the trials, so that no end is missed.
            let ended = self.ended.notified();
            match self.next() {
                Next::Nothing => return None,
                Next::Wait => ended.await,
                Next::Trial(index) => {
                    if let Some(running) = self.begin(index) {
                        return Some(running);
                    }
                }
            }
        }
    }

    /// Returns what to do next. Takes a trial that may turn out unnecessary only if no trial runs, because only running trials
    /// can decide that.
    fn next(&self) -> Next {
        let state = self.state.borrow();
        if state.error.is_some() {
            return Next::Nothing;
        }
        let start = |index: &&usize| {
            self.trials.get(**index).map_or(Start::Never, |trial| state.repetition.start(trial))
        };
        let now = state.waiting.iter().find(|index| start(index) == Start::Now);
        let later = || state.waiting.iter().find(|index| start(index) == Start::Later);
        match now.or_else(|| later().filter(|_| state.running == 0)) {
            Some(index) => Next::Trial(*index),
            None if state.running > 0 && !state.waiting.is_empty() => Next::Wait,
            None => Next::Nothing,
        }
    }

    /// Starts the trial of this index.
    fn begin(&'a self, index: usize) -> Option<RunningTrial<'a>> {
        let scheduled = self.trials.get(index)?;
        let (number, rest) = {
            let mut state = self.state.borrow_mut();
            self.leave_out(&mut state, index);
            state.started += 1;
            (state.started - 1, (state.time_left, self.next_label(&state)))
        };
        let point = self.points.get(&scheduled.point_id)?;
        self.state.borrow_mut().running += 1;
        let label = label(point, scheduled.trial, &self.experiment.plan.plan().repeat);
        info!(
            point = scheduled.point_id,
            trial = scheduled.trial,
            seed = scheduled.seed,
            "trial {label}"
        );
        let schedule = TrialSchedule::from_plan(&point.plan);
        let progress = self.progress.trial_start(number, scheduled, &label, schedule, rest);
        // A trial of a shard has the same epoch as in a run on a single machine.
        let place = if self.shard.is_some() { scheduled.index as usize } else { index };
        let epoch = self.first_epoch + place as u64;
        let Self { experiment, dir, .. } = self;
        let trial = Trial { experiment, point, scheduled, dir, epoch };
        Some(RunningTrial { trial, progress, label })
    }

    /// Returns the label of the first waiting trial that may be needed.
    fn next_label(&self, state: &State) -> Option<String> {
        let mut waiting = state.waiting.iter().filter_map(|index| self.trials.get(*index));
        let trial = waiting.find(|trial| state.repetition.start(trial) != Start::Never)?;
        let point = self.points.get(&trial.point_id)?;
        Some(label(point, trial.trial, &self.experiment.plan.plan().repeat))
    }

    /// Removes the trial of this index from the waiting ones.
    fn leave_out(&self, state: &mut State, index: usize) {
        if state.waiting.remove(&index)
            && let Some(trial) = self.trials.get(index)
        {
            let length = self.lengths.get(&trial.point_id).copied().unwrap_or_default();
            state.time_left = state.time_left.saturating_sub(length);
        }
    }

    /// Handles the end of a trial. Running trials continue after an error.
    pub async fn end(
        &self,
        mut running: RunningTrial<'_>,
        result: Result<Verdict, BackendError>,
        after_error: AfterError,
    ) {
        let scheduled = running.trial.scheduled;
        let ended = match result {
            Ok(verdict) => {
                info!(status = ?verdict.status, reasons = verdict.reasons.len(), "verdict");
                running.progress.end(&verdict);
                self.recorded(scheduled).await.map(Some)
            }
            Err(BackendError::Interrupted) => {
                let text = format!("{}: interrupted", running.label);
                running.progress.discard("trial_end", &text);
                self.stop(BackendError::Interrupted);
                Ok(None)
            }
            Err(error) => {
                warn!("the trial was not run: {error}");
                let reason = Reason::new(ReasonCode::NotRun, error.to_string());
                running.progress.end(&Verdict { status: Status::Failed, reasons: vec![reason] });
                let stops = after_error == AfterError::Stop && !self.experiment.options.keep_going;
                if stops || matches!(error, BackendError::Results(_)) {
                    self.stop(error);
                }
                Ok(Some(vec![]))
            }
        };
        let applied = ended.and_then(|values| match values {
            Some(values) => self.apply_rules(scheduled, values),
            None => Ok(()),
        });
        if let Err(error) = applied {
            self.stop(error);
        }
        self.state.borrow_mut().running -= 1;
        self.ended.notify_waiters();
    }

    /// Returns the values of a recorded trial that the plan's rules need. Publishes a shard's trial to the shard store first, and
    /// returns the values of the committed trial there.
    async fn recorded(&self, scheduled: &ScheduledTrial) -> Result<Vec<Option<f64>>, BackendError> {
        // Reading a trial's tables takes time. A commit always contains the values, because a later attempt may need them.
        let is_open = self.state.borrow().repetition.is_open(scheduled);
        let values = match &self.meter {
            Some(meter) if is_open || self.shard.is_some() => {
                let measured = repetition::values(Arc::clone(meter), scheduled).await;
                measured.map_err(ccbench_results::Error::from)?
            }
            _ => vec![],
        };
        match self.shard {
            Some(shard) => Ok(shard.publish(self.dir, scheduled, values).await?),
            None => Ok(values),
        }
    }

    /// Applies the plan's rules after a trial with these values, and drops the trials that are no longer needed.
    fn apply_rules(
        &self,
        scheduled: &ScheduledTrial,
        values: Vec<Option<f64>>,
    ) -> Result<(), BackendError> {
        if self.meter.is_none() {
            return Ok(());
        }
        let decided = {
            let mut state = self.state.borrow_mut();
            let decided = state.repetition.trial_ended(scheduled, values);
            let points = decided.iter().flat_map(|decision| &decision.points);
            for index in points.filter_map(|point| self.of_point.get(point)).flatten() {
                if self.trials.get(*index).is_some_and(|trial| !state.repetition.is_needed(trial)) {
                    self.leave_out(&mut state, *index);
                }
            }
            decided
        };
        for decision in decided {
            let Decision { rule, points, outcome, after, .. } = &decision;
            let points: Vec<String> = points.iter().map(u32::to_string).collect();
            let (outcome, points) = (outcome.as_str(), points.join(" and "));
            let text = format!("{rule}: {outcome} after repetition {after} of point {points}");
            self.progress.message("decision", &text);
            self.dir.record_decision(&decision)?;
        }
        Ok(())
    }

    /// Removes the trials that the run does not need.
    pub fn needed(&self, trials: Vec<ScheduledTrial>) -> Vec<ScheduledTrial> {
        self.state.borrow().repetition.needed(trials)
    }

    /// Returns the decisions in the order of the plan's rules.
    pub fn decisions(&self) -> Vec<Decision> {
        self.state.borrow().repetition.decisions()
    }

    /// Stops the run because of this error: no other trial starts.
    pub fn stop(&self, error: BackendError) {
        self.state.borrow_mut().error.get_or_insert(error);
    }

    /// Returns how the run ended.
    ///
    /// # Errors
    /// The error that stopped the run. Finished trials are committed by then.
    pub fn result(self) -> Result<(), BackendError> {
        self.state.into_inner().error.map_or(Ok(()), Err)
    }
}

/// Returns the wall-clock time of a trial of each point.
fn lengths(points: &BTreeMap<u32, Point>, gap: Duration) -> BTreeMap<u32, Duration> {
    let length = |point: &Point| schedule::length(&point.plan).duration() + TRIAL_OVERHEAD + gap;
    points.iter().map(|(id, point)| (*id, length(point))).collect()
}

/// Returns the wall-clock time of these trials, one after the other.
fn time_of(trials: &[ScheduledTrial], lengths: &BTreeMap<u32, Duration>) -> Duration {
    trials.iter().filter_map(|trial| lengths.get(&trial.point_id)).sum()
}

/// Returns factors and repetition, such as `scheme=cubic repeat 1/3`.
fn label(point: &Point, trial: u16, repeat: &Repetitions) -> String {
    let levels: Vec<String> =
        point.factors.iter().map(|(factor, level)| format!("{factor}={level}")).collect();
    let of = match repeat {
        Repetitions::Times(times) => format!("repeat {trial}/{times}"),
        Repetitions::Adaptive(adaptive) => {
            format!("repeat {trial}, at most {}", adaptive.at_most)
        }
    };
    if levels.is_empty() { of } else { format!("{} {of}", levels.join(" ")) }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::check;
    use ccbench_tests::plans;

    use super::*;

    #[test]
    fn the_time_left_is_that_of_all_trials() {
        let head = "name = \"lengths\"\nrepeat = 2\norder = \"as-written\"";
        let text = plans::of_lengths(head, &["10s", "20s"]);
        let (plan, _) = check::read(&text, &[]).unwrap();
        let points = plan.points().into_iter().map(|point| (point.id, point)).collect();
        let trials = schedule::trials(&plan);
        let lengths = lengths(&points, Duration::from_millis(500));
        // Each trial takes 2 s more than its phases.
        let seconds: Vec<f64> = lengths.values().map(Duration::as_secs_f64).collect();
        assert_eq!(seconds, [12.0, 22.0]);
        assert_eq!(time_of(&trials, &lengths).as_secs_f64(), 68.0);
        assert_eq!(time_of(&trials[2..], &lengths).as_secs_f64(), 44.0);
    }
}
