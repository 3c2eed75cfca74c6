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
        let points = experiment.plan.points().into_iter().map(|point| (point.id, point)).collect();
        let (first_epoch, state) = (dir.next_epoch(), RefCell::default());
        Self { experiment, dir, progress, points, trials, first_epoch, state }
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
        let later = self.trials.get(index + 1..).unwrap_or_default();
        let label = label(point, scheduled.trial, self.experiment.plan.plan().repeat);
        info!(
            point = scheduled.point_id,
            trial = scheduled.trial,
            seed = scheduled.seed,
            "trial {label}"
        );
        let schedule = TrialSchedule::of(&point.plan);
        let rest = self.time_for(later);
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

    fn time_for(&self, trials: &[ScheduledTrial]) -> Duration {
        let each = TRIAL_OVERHEAD + self.experiment.plan.plan().gap.duration();
        let lengths = trials.iter().filter_map(|scheduled| self.points.get(&scheduled.point_id));
        lengths.map(|point| schedule::length(&point.plan).duration() + each).sum()
    }
}

/// Factors and repetition: `scheme=cubic repeat 1/3`.
fn label(point: &Point, trial: u16, repeat: u32) -> String {
    let levels: Vec<String> =
        point.factors.iter().map(|(factor, level)| format!("{factor}={level}")).collect();
    let of = format!("repeat {trial}/{repeat}");
    if levels.is_empty() { of } else { format!("{} {of}", levels.join(" ")) }
}
