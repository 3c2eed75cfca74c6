//! Decides which trials a run needs: applies the plan's rules to the finished trials.

use std::collections::BTreeSet;
use std::sync::Arc;

use ccbench_proto::schedule::ScheduledTrial;
use ccbench_results::FileError;
use ccbench_results::stopping::{Decision, Start, StoppingRules, TrialMeter};
use ccbench_results::store::RunDir;
use tracing::info;

use crate::experiment::Experiment;
use crate::runtime::blocking;

/// The rules of a plan and the values of its trials.
pub struct Repetition {
    rules: StoppingRules,
    /// `None` if the plan has no rules.
    meter: Option<Arc<TrialMeter>>,
}

impl Repetition {
    /// Applies the rules of an experiment to all trials of a run that are not `remaining`. Does not read tables again whose
    /// values `earlier`, a previous result for the same run, already has.
    ///
    /// # Errors
    /// A table of a trial cannot be read.
    pub async fn new(
        experiment: &Experiment,
        dir: &Arc<RunDir>,
        remaining: &[ScheduledTrial],
        earlier: Option<&Self>,
    ) -> Result<Self, FileError> {
        let mut rules = StoppingRules::new(&experiment.plan);
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
                // The rules for this point are decided, so its values do not matter.
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
        let measured = blocking(move || {
            let meter = TrialMeter::new(dir, numbers);
            let values = meter.values_of(&unread)?;
            Ok::<_, FileError>((meter, unread, values))
        });
        let (meter, read, values) = measured.await?;
        for ((point_id, trial), values) in read.into_iter().zip(values) {
            rules.trial_ended(point_id, trial, values);
        }
        Ok(Self { rules, meter: Some(Arc::new(meter)) })
    }

    /// Replaces the rules with `rules`, to which the trials in the shard store have been applied.
    #[must_use]
    pub fn after(self, rules: StoppingRules) -> Self {
        Self { rules, ..self }
    }

    /// Returns the values of a trial if its tables were read and the directory still has the same trial.
    fn values_in(&self, dir: &RunDir, point_id: u32, trial: u16) -> Option<Vec<Option<f64>>> {
        let own = self.meter.as_ref()?.run().trial(point_id, trial);
        let values = self.rules.values(point_id, trial).filter(|values| !values.is_empty())?;
        (own == dir.trial(point_id, trial)).then(|| values.to_vec())
    }

    /// Returns whether a trial may start.
    pub fn start(&self, trial: &ScheduledTrial) -> Start {
        self.rules.start(trial.point_id, trial.trial)
    }

    /// Returns whether the run needs a trial, as far as is known.
    pub fn is_needed(&self, trial: &ScheduledTrial) -> bool {
        self.rules.is_needed(trial.point_id, trial.trial)
    }

    /// Returns whether the values of a trial matter, that is, whether an undecided rule is about its point.
    pub fn is_open(&self, trial: &ScheduledTrial) -> bool {
        self.rules.is_open(trial.point_id)
    }

    /// Returns the decisions in the order of the plan's rules.
    pub fn decisions(&self) -> Vec<Decision> {
        self.rules.decisions()
    }

    /// Removes the trials that are not needed.
    pub fn needed(&self, trials: Vec<ScheduledTrial>) -> Vec<ScheduledTrial> {
        trials.into_iter().filter(|trial| self.is_needed(trial)).collect()
    }

    /// Returns what computes the values of a trial; `None` if the plan has no rules.
    pub fn meter(&self) -> Option<Arc<TrialMeter>> {
        self.meter.clone()
    }

    /// Applies the rules to a finished trial with these values. Returns the rules that it decides.
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

/// Returns the values of a finished trial.
///
/// # Errors
/// A table of the trial cannot be read.
pub async fn values(
    meter: Arc<TrialMeter>,
    trial: &ScheduledTrial,
) -> Result<Vec<Option<f64>>, FileError> {
    let (point_id, trial) = (trial.point_id, trial.trial);
    blocking(move || meter.values(point_id, trial)).await
}
