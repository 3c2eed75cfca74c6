//! Reports the progress of operations that read all trials of a run, because they may take long.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The progress of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// What the step does with each trial, for example `measuring`.
    pub activity: &'static str,
    /// Number of trials that are done. Reports of several threads may arrive out of order.
    pub done: usize,
    /// Number of trials in the step.
    pub trials: usize,
}

/// Called after each trial of a step, by the thread that processed it.
type Callback = dyn Fn(Step) + Send + Sync;

/// Receives the progress of steps; the default ignores it.
#[derive(Clone, Default)]
pub struct Observer(Option<Arc<Callback>>);

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observer").field(&self.0.is_some()).finish()
    }
}

impl Observer {
    /// Calls `callback` after each trial.
    pub fn new(callback: impl Fn(Step) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(callback)))
    }

    /// Begins a step.
    pub(crate) fn begin(&self, activity: &'static str, trials: usize) -> Running<'_> {
        Running { observer: self, activity, trials, done: AtomicUsize::new(0) }
    }
}

/// A step in progress.
pub(crate) struct Running<'a> {
    observer: &'a Observer,
    activity: &'static str,
    trials: usize,
    done: AtomicUsize,
}

impl Running<'_> {
    /// Performs the work of one trial.
    pub(crate) fn trial<T>(&self, work: impl FnOnce() -> T) -> T {
        let made = work();
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(callback) = &self.observer.0 {
            callback(Step { activity: self.activity, done, trials: self.trials });
        }
        made
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::sync::Mutex;

    use super::*;
    use crate::compare::{Comparison, compare};
    use crate::model::{RunStatus, TrialFilter};
    use crate::report;
    use crate::store::RunDir;
    use crate::summarize::RunSummary;
    use crate::trial::tests::{filled, good, info};

    /// Creates a run of three trials.
    fn run(root: &Path) -> PathBuf {
        let run = RunDir::create(root, &info()).unwrap();
        (1..=3).for_each(|trial| filled(&run, trial).commit(&good()).unwrap());
        run.finish(RunStatus::Complete).unwrap();
        run.path().to_path_buf()
    }

    /// Returns the steps that `work` reports, each with its number of trials, in the order in which the steps end.
    fn steps(work: impl FnOnce(&Observer)) -> Vec<(&'static str, usize)> {
        let found = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&found);
        work(&Observer::new(move |step| all.lock().unwrap().push(step)));
        let found: Vec<Step> = found.lock().unwrap().clone();
        let mut ended = Vec::new();
        for Step { activity, done, trials } in found {
            assert!((1..=trials).contains(&done), "{activity}: {done} of {trials}");
            if done == trials {
                ended.push((activity, trials));
            }
        }
        ended
    }

    #[test]
    fn every_trial_of_summaries_comparisons_and_reports_is_counted() {
        let root = tempfile::tempdir().unwrap();
        let run = run(root.path());
        let filter = TrialFilter::default();
        let summary = steps(|observer| {
            RunSummary::compute_observed(&run, filter, observer).unwrap();
        });
        assert_eq!(summary, [("comparing digests", 3), ("measuring", 3)]);
        let report = steps(|observer| {
            let summary = RunSummary::compute_observed(&run, filter, observer).unwrap();
            report::html(&summary).unwrap();
        });
        assert_eq!(report, [&summary[..], &[("drawing curves", 3)]].concat());
        let both = steps(|observer| {
            // The made-up trials have no metric in common, so the comparison fails at its end.
            let _ = compare(&run, &Comparison::Run(&run), &[], &[], filter, observer);
        });
        assert_eq!(both, [&summary[..], &summary[..]].concat());
    }
}
