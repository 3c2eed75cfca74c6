//! Which trials a run needs: the rules of the plan that end the repetition, applied to the trials that have ended.

use std::collections::BTreeSet;
use std::sync::Arc;

use ccbench_proto::schedule::ScheduledTrial;
use ccbench_results::FileError;
use ccbench_results::stopping::{Decision, Start, StoppingRules, TrialMeter};
use ccbench_results::store::RunDir;
use tokio::task::{JoinError, spawn_blocking};
use tracing::info;

use crate::experiment::Experiment;

/// The rules of a plan and the values of its trials.
pub struct Repetition {
    rules: StoppingRules,
    /// `None` without rules.
    meter: Option<Arc<TrialMeter>>,
}

impl Repetition {
    /// The rules of an experiment after all trials of a run that are not `remaining`. Tables whose values an `earlier` look at the run
    /// has are not read again.
    ///
    /// # Errors
    /// A table of a trial cannot be read.
    pub async fn of(
        experiment: &Experiment,
        dir: &Arc<RunDir>,
        remaining: &[ScheduledTrial],
        earlier: Option<&Self>,
    ) -> Result<Self, FileError> {
        let mut rules = StoppingRules::of(&experiment.plan);
        if rules.is_empty() {
            return Ok(Self { rules, meter: None });
        }
        let again: BTreeSet<(u32, u16)> =
            remaining.iter().map(|trial| (trial.point_id, trial.trial)).collect();
        let ended = dir.finished().into_iter().filter(|trial| !again.contains(trial));
        let mut unread: Vec<(u32, u16)> = Vec::new();
        for (point_id, trial) in ended {
            let known = if rules.is_open(point_id) {
                earlier.and_then(|earlier| earlier.values_in(dir, point_id, trial))
            } else {
                // They do not matter.
                Some(vec![])
            };
            match known {
                Some(values) => {
                    rules.trial_ended(point_id, trial, values);
                }
                None => unread.push((point_id, trial)),
            }
        }
        let (dir, numbers) = (Arc::clone(dir), rules.numbers());
        // Polars must not run in this runtime, and reading takes time.
        let measured = spawn_blocking(move || {
            let meter = TrialMeter::new(dir, numbers);
            let values = meter.values_of(&unread)?;
            Ok::<_, FileError>((meter, unread, values))
        });
        let (meter, read, values) = finished(measured.await)?;
        for ((point_id, trial), values) in read.into_iter().zip(values) {
            rules.trial_ended(point_id, trial, values);
        }
        Ok(Self { rules, meter: Some(Arc::new(meter)) })
    }

    /// The same, after the trials that are in the store of all shards.
    #[must_use]
    pub fn after(self, rules: StoppingRules) -> Self {
        Self { rules, ..self }
    }

    /// The values of a trial, if its tables were read and the directory has the same trial.
    fn values_in(&self, dir: &RunDir, point_id: u32, trial: u16) -> Option<Vec<Option<f64>>> {
        let own = self.meter.as_ref()?.run().trial(point_id, trial);
        let values = self.rules.values(point_id, trial).filter(|values| !values.is_empty())?;
        (own == dir.trial(point_id, trial)).then(|| values.to_vec())
    }

    /// Whether a trial may start.
    pub fn start(&self, trial: &ScheduledTrial) -> Start {
        self.rules.start(trial.point_id, trial.trial)
    }

    /// Whether a run needs a trial, as far as is known.
    pub fn is_needed(&self, trial: &ScheduledTrial) -> bool {
        self.rules.is_needed(trial.point_id, trial.trial)
    }

    /// Whether the values of a trial matter: an undecided rule is about its point.
    pub fn is_open(&self, trial: &ScheduledTrial) -> bool {
        self.rules.is_open(trial.point_id)
    }

    /// The rules that are decided, in the order of the plan.
    pub fn decisions(&self) -> Vec<Decision> {
        self.rules.decisions()
    }

    /// These trials without those that are not needed.
    pub fn needed(&self, trials: Vec<ScheduledTrial>) -> Vec<ScheduledTrial> {
        trials.into_iter().filter(|trial| self.is_needed(trial)).collect()
    }

    /// What computes the values of a trial; `None` without rules.
    pub fn meter(&self) -> Option<Arc<TrialMeter>> {
        self.meter.clone()
    }

    /// A trial has ended, with these values; the rules that are decided by it.
    pub fn trial_ended(
        &mut self,
        trial: &ScheduledTrial,
        values: Vec<Option<f64>>,
    ) -> Vec<Decision> {
        let decided = self.rules.trial_ended(trial.point_id, trial.trial, values);
        for decision in &decided {
            info!(rule = decision.rule, outcome = decision.outcome.as_str(), "decision");
        }
        decided
    }
}

/// The values of a trial that has ended.
///
/// # Errors
/// A table of the trial cannot be read.
pub async fn values(
    meter: Arc<TrialMeter>,
    trial: &ScheduledTrial,
) -> Result<Vec<Option<f64>>, FileError> {
    let (point_id, trial) = (trial.point_id, trial.trial);
    finished(spawn_blocking(move || meter.values(point_id, trial)).await)
}

/// The result of a blocking task; its panic goes on here.
fn finished<T>(result: Result<T, JoinError>) -> T {
    result.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}
