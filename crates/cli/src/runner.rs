//! The trials of an experiment in their order, the same for every backend.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use ccbench_proto::schedule::{self, Point, ScheduledTrial};
use ccbench_results::model::{Reason, Status, Verdict};
use ccbench_results::reason::ReasonCode;
use ccbench_results::store::RunDir;
use tracing::{info, warn};

use crate::backend::error::BackendError;
use crate::experiment::Experiment;
use crate::progress::{Progress, TrialProgress, TrialSchedule};

/// Time of a trial beyond its own length, for the estimate of the remaining time.
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
    /// Its epoch in the lab, which follows from its place in the order of all trials.
    pub epoch: u64,
}

/// The trials of a run. A backend takes them in their order; several may run at the same time.
pub struct TrialQueue<'a> {
    experiment: &'a Experiment,
    dir: &'a RunDir,
    progress: &'a Progress,
    points: BTreeMap<u32, Point>,
    trials: &'a [ScheduledTrial],
    /// Time from the start of each trial to the end of the last one, if one runs after the other.
    time_left: Vec<Duration>,
    /// Of the first trial. Each trial's follows from its place in the order, not from the instant at which it starts.
    first_epoch: u64,
    state: RefCell<State>,
}

/// How far a run has come.
#[derive(Default)]
struct State {
    /// Index of the trial that starts next.
    next: usize,
    /// The first error after which no other trial may start.
    error: Option<BackendError>,
}

/// A trial that runs.
pub struct RunningTrial<'a> {
    /// The trial.
    pub trial: Trial<'a>,
    /// Prints its progress.
    pub progress: TrialProgress<'a>,
    label: String,
}

impl<'a> TrialQueue<'a> {
    /// These trials of an experiment, none of them started.
    pub fn new(
        experiment: &'a Experiment,
        dir: &'a RunDir,
        progress: &'a Progress,
        trials: &'a [ScheduledTrial],
    ) -> Self {
        let points: BTreeMap<u32, Point> =
            experiment.plan.points().into_iter().map(|point| (point.id, point)).collect();
        let time_left = time_left(trials, &points, experiment.plan.plan().gap.duration());
        let (first_epoch, state) = (dir.next_epoch(), RefCell::default());
        Self { experiment, dir, progress, points, trials, time_left, first_epoch, state }
    }

    /// The experiment.
    pub fn experiment(&self) -> &'a Experiment {
        self.experiment
    }

    /// The number of trials.
    pub fn count(&self) -> usize {
        self.trials.len()
    }

    /// Prints a note, and shows and counts on this number of trials at the same time.
    pub fn use_jobs(&self, jobs: usize, note: Option<&str>) {
        self.progress.set_jobs(jobs);
        if let Some(note) = note {
            self.progress.message("note", &format!("note: {note}"));
        }
    }

    /// Whether no trial can start any more.
    pub fn is_over(&self) -> bool {
        let state = self.state.borrow();
        state.error.is_some() || state.next >= self.trials.len()
    }

    /// Whether an error has ended the run.
    pub fn is_stopped(&self) -> bool {
        self.state.borrow().error.is_some()
    }

    /// Starts the next trial; `None` after the last one, or after an error.
    pub fn start(&'a self) -> Option<RunningTrial<'a>> {
        if self.is_over() {
            return None;
        }
        let index = self.state.borrow().next;
        self.state.borrow_mut().next += 1;
        let scheduled = self.trials.get(index)?;
        let Some(point) = self.points.get(&scheduled.point_id) else { return self.start() };
        let label = label(point, scheduled.trial, self.experiment.plan.plan().repeat);
        info!(
            point = scheduled.point_id,
            trial = scheduled.trial,
            seed = scheduled.seed,
            "trial {label}"
        );
        let schedule = TrialSchedule::of(&point.plan);
        let rest = self.time_left.get(index + 1).copied().unwrap_or_default();
        let progress = self.progress.trial_start(index, scheduled, &label, schedule, rest);
        let epoch = self.first_epoch + index as u64;
        let Self { experiment, dir, .. } = self;
        let trial = Trial { experiment, point, scheduled, dir, epoch };
        Some(RunningTrial { trial, progress, label })
    }

    /// A trial has ended. After an error no other trial starts, unless the backend `goes_on` (it is rebuilt) or the user wants
    /// so; those that run go on.
    pub fn end(
        &self,
        mut running: RunningTrial<'_>,
        result: Result<Verdict, BackendError>,
        goes_on: bool,
    ) {
        match result {
            Ok(verdict) => {
                info!(status = ?verdict.status, reasons = verdict.reasons.len(), "verdict");
                running.progress.end(&verdict);
            }
            Err(BackendError::Interrupted) => {
                let text = format!("{}: discarded", running.label);
                running.progress.discard("trial_end", &text);
                self.stop(BackendError::Interrupted);
            }
            Err(error) => {
                warn!("the trial was not run: {error}");
                let reason = Reason::new(ReasonCode::NotRun, error.to_string());
                running.progress.end(&Verdict { status: Status::Failed, reasons: vec![reason] });
                let stops = !goes_on && !self.experiment.keep_going;
                if stops || matches!(error, BackendError::Results(_)) {
                    self.stop(error);
                }
            }
        }
    }

    /// No other trial starts because of this error.
    pub fn stop(&self, error: BackendError) {
        self.state.borrow_mut().error.get_or_insert(error);
    }

    /// How the run ended.
    ///
    /// # Errors
    /// The first error after which no other trial could run. Finished trials are committed by then.
    pub fn result(self) -> Result<(), BackendError> {
        self.state.into_inner().error.map_or(Ok(()), Err)
    }
}

/// Time from the start of each trial to the end of the last one. Computed once: a plan has up to 100 000 trials.
fn time_left(
    trials: &[ScheduledTrial],
    points: &BTreeMap<u32, Point>,
    gap: Duration,
) -> Vec<Duration> {
    let of = |scheduled: &ScheduledTrial| {
        let length = points.get(&scheduled.point_id).map(|point| schedule::length(&point.plan));
        length.map_or(Duration::ZERO, |length| length.duration() + TRIAL_OVERHEAD + gap)
    };
    let mut left = Duration::ZERO;
    let with_later = trials.iter().rev().map(|scheduled| {
        left += of(scheduled);
        left
    });
    let mut all: Vec<Duration> = with_later.collect();
    all.reverse();
    all
}

/// Factors and repetition: `scheme=cubic repeat 1/3`.
fn label(point: &Point, trial: u16, repeat: u32) -> String {
    let levels: Vec<String> =
        point.factors.iter().map(|(factor, level)| format!("{factor}={level}")).collect();
    let of = format!("repeat {trial}/{repeat}");
    if levels.is_empty() { of } else { format!("{} {of}", levels.join(" ")) }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::check;

    use super::*;

    #[test]
    fn the_time_left_is_that_of_a_trial_and_all_later_ones() {
        let text = r#"
name = "lengths"
repeat = 2
order = "as-written"
[nodes]
src = {}
dst = {}
[wires]
path = ["src", "dst"]
[probes.rtt]
kind = "ping"
from = "src"
to = "dst"
[[phases]]
name = "only"
length = "10s"
[matrix]
"phases.0.length" = ["10s", "20s"]
"#;
        let (plan, _) = check::read(text, &[]).unwrap();
        let points = plan.points().into_iter().map(|point| (point.id, point)).collect();
        let trials = schedule::trials(&plan);
        let left = time_left(&trials, &points, Duration::from_millis(500));
        // Each trial takes 2 s more than its phases.
        let seconds: Vec<f64> = left.iter().map(Duration::as_secs_f64).collect();
        assert_eq!(seconds, [68.0, 56.0, 44.0, 22.0]);
    }
}
