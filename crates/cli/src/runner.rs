//! The loop over an experiment's trials, the same for every backend.

use std::collections::BTreeMap;
use std::time::Duration;

use ccbench_proto::schedule::{self, Point, ScheduledTrial};
use ccbench_proto::units::Micros;
use ccbench_results::model::{Reason, Status, Verdict};
use ccbench_results::store::RunDir;
use tracing::{info, warn};

use crate::backend::{Backend, BackendError, Trial};
use crate::experiment::Experiment;
use crate::interrupt::Interrupt;
use crate::progress::{Progress, TrialSchedule};

/// Time of a trial beyond its own length, for the estimate of the remaining time.
const TRIAL_OVERHEAD: Duration = Duration::from_millis(1500);

/// Runs these trials.
///
/// # Errors
/// The first error after which no other trial can run. Finished trials are committed by then.
pub async fn run_trials(
    experiment: &Experiment,
    backend: &mut impl Backend,
    dir: &RunDir,
    trials: &[ScheduledTrial],
    progress: &mut Progress,
    mut interrupt: Interrupt,
) -> Result<(), BackendError> {
    let points: BTreeMap<u32, Point> =
        experiment.plan.points().into_iter().map(|point| (point.id, point)).collect();
    for (done, scheduled) in trials.iter().enumerate() {
        let Some(point) = points.get(&scheduled.point_id) else { continue };
        if done > 0 {
            pause(backend.gap(experiment), &mut interrupt).await?;
        }
        let rest = time_for(experiment, &points, trials.get(done + 1..).unwrap_or_default());
        let label = label(point, scheduled.trial, experiment.plan.plan().repeat);
        info!(
            point = scheduled.point_id,
            trial = scheduled.trial,
            seed = scheduled.seed,
            "trial {label}"
        );
        progress.trial_start(scheduled, &label, TrialSchedule::of(&point.plan), rest);
        let trial = Trial { experiment, point, scheduled, dir };
        let result = backend.run_trial(trial, progress, &mut interrupt).await;
        let failed = matches!(&result, Ok(verdict) if verdict.status == Status::Failed);
        let needs_rebuild = backend.needs_rebuild(failed);
        match result {
            Ok(verdict) => {
                info!(status = ?verdict.status, reasons = verdict.reasons.len(), "verdict");
                progress.trial_end(&verdict);
            }
            Err(BackendError::Interrupted) => {
                progress.message("trial_end", &format!("{label}: discarded"));
                return Err(BackendError::Interrupted);
            }
            Err(error) => {
                warn!("the trial was not run: {error}");
                let reason = Reason::new("not_run", error.to_string());
                progress.trial_end(&Verdict { status: Status::Failed, reasons: vec![reason] });
                let stop = !needs_rebuild && !experiment.keep_going;
                if stop || matches!(error, BackendError::Results(_)) {
                    return Err(error);
                }
            }
        }
        if needs_rebuild {
            info!("rebuild the testbed");
            backend.rebuild(experiment).await?;
        }
    }
    Ok(())
}

fn time_for(
    experiment: &Experiment,
    points: &BTreeMap<u32, Point>,
    trials: &[ScheduledTrial],
) -> Duration {
    let each = TRIAL_OVERHEAD + experiment.plan.plan().gap.duration();
    let lengths = trials.iter().filter_map(|scheduled| points.get(&scheduled.point_id));
    lengths.map(|point| schedule::length(&point.plan).duration() + each).sum()
}

/// Factors and repetition: `scheme=cubic repeat 1/3`.
fn label(point: &Point, trial: u16, repeat: u32) -> String {
    let levels: Vec<String> =
        point.factors.iter().map(|(factor, level)| format!("{factor}={level}")).collect();
    let of = format!("repeat {trial}/{repeat}");
    if levels.is_empty() { of } else { format!("{} {of}", levels.join(" ")) }
}

/// Sleeps for `gap`.
async fn pause(gap: Micros, interrupt: &mut Interrupt) -> Result<(), BackendError> {
    tokio::select! {
        () = tokio::time::sleep(gap.duration()) => Ok(()),
        () = interrupt.requested() => Err(BackendError::Interrupted),
    }
}
