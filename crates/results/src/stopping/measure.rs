//! Measures one committed trial, for the rules that are applied after it.

use std::sync::Arc;

use ccbench_proto::plan::expect::Numbered;

use super::value_of;
use crate::error::Result;
use crate::journal::TrialEnd;
use crate::model::TrialFilter;
use crate::parallel::in_parallel;
use crate::store::RunDir;
use crate::summary::{self, Schedule};

/// Returns whether a trial has values, as those do that summaries include by default.
pub(super) fn counts(end: &TrialEnd) -> bool {
    TrialFilter::default().includes(end.status)
}

/// Computes the values of committed trials. Must be used outside an asynchronous runtime: Polars has its own.
pub struct TrialMeter {
    run: Arc<RunDir>,
    numbers: Vec<Numbered>,
    schedule: Schedule,
}

impl TrialMeter {
    /// Creates a meter of these numbers for the trials of a run.
    pub fn new(run: Arc<RunDir>, numbers: Vec<Numbered>) -> Self {
        let schedule = Schedule::from_plan(run.plan());
        Self { run, numbers, schedule }
    }

    /// Returns the run.
    pub fn run(&self) -> &RunDir {
        &self.run
    }

    /// Returns the value of every number in a trial; `None` if the trial does not count or lacks the number.
    ///
    /// # Errors
    /// A table cannot be read.
    pub fn values(&self, point_id: u32, trial: u16) -> Result<Vec<Option<f64>>> {
        let end = self.run.trial(point_id, trial).filter(counts);
        let rows = match &end {
            Some(end) => summary::rows_of_trial(&self.run, end, &self.schedule)?,
            None => vec![],
        };
        Ok(self.numbers.iter().map(|number| value_of(&rows, number)).collect())
    }

    /// As [`Self::values`], for several trials (point and repetition), in their order.
    ///
    /// # Errors
    /// A table cannot be read.
    pub fn values_of(&self, trials: &[(u32, u16)]) -> Result<Vec<Vec<Option<f64>>>> {
        let of = |(point_id, trial): &(u32, u16)| self.values(*point_id, *trial);
        in_parallel(trials, of).into_iter().collect()
    }
}
