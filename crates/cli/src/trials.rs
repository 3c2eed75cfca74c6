//! The loop over an experiment's trials, the same whatever they run on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ccbench_proto::schedule::{self, Point, Run};
use ccbench_proto::units::Micros;
use ccbench_proto::wire::NodeInfo;
use tokio::sync::watch;

use crate::coordinate::Experiment;
use crate::error::CliError;
use crate::live::{Live, Timetable};
use ccbench_results::store::RunDir;
use ccbench_results::verdict::{Reason, Status, Verdict};

/// What a trial costs beside its own length, for the estimate of the time left.
const TRIAL_OVERHEAD: Duration = Duration::from_millis(1500);

/// What trials run on: nodes with agents, or the lab.
pub(crate) trait Ground {
    /// Whether its time is another than ours.
    fn is_virtual(&self) -> bool {
        false
    }

    /// What is known of it before the first trial.
    fn about(&self, experiment: &Experiment) -> About;

    /// The pause between two trials.
    fn gap(&self, experiment: &Experiment) -> Micros;

    /// Runs one trial and keeps what it gives.
    ///
    /// # Errors
    /// Why it could not be run at all; that is recorded too.
    async fn trial(
        &mut self,
        trial: Trial<'_>,
        live: &mut Live,
        interrupt: &mut watch::Receiver<bool>,
    ) -> Result<Verdict, CliError>;

    /// Whether it must be made anew after a trial that `failed`, or did not.
    fn lost(&mut self, failed: bool) -> bool;

    /// Makes it anew.
    ///
    /// # Errors
    /// What could not be had.
    async fn rebuild(&mut self, experiment: &Experiment) -> Result<(), CliError>;

    /// Ends it.
    async fn close(self);
}

/// What is known before the first trial.
pub(crate) struct About {
    /// What was built, for the record.
    pub(crate) topology: String,
    /// By node.
    pub(crate) nodes: BTreeMap<String, NodeInfo>,
    /// What cannot be done, or how it is done; kept with the results.
    pub(crate) notes: Vec<String>,
    /// What some point will miss, as it looks now; only said.
    pub(crate) missing: BTreeSet<String>,
}

/// One trial to run.
#[derive(Clone, Copy)]
pub(crate) struct Trial<'a> {
    pub(crate) experiment: &'a Experiment,
    pub(crate) point: &'a Point,
    pub(crate) run: &'a Run,
    pub(crate) dir: &'a RunDir,
}

impl Experiment {
    /// Runs these trials.
    ///
    /// # Errors
    /// The first thing that makes going on pointless; finished trials are committed by then.
    pub(crate) async fn run(
        &self,
        ground: &mut impl Ground,
        dir: &RunDir,
        runs: Vec<Run>,
        live: &mut Live,
        mut interrupt: watch::Receiver<bool>,
    ) -> Result<(), CliError> {
        let points: BTreeMap<u32, Point> =
            self.plan.points().into_iter().map(|point| (point.id, point)).collect();
        for (done, run) in runs.iter().enumerate() {
            let Some(point) = points.get(&run.point_id) else { continue };
            if done > 0 && !pause(ground.gap(self), &mut interrupt).await {
                return Err(CliError::Interrupted);
            }
            let rest = self.time_for(&points, runs.get(done + 1..).unwrap_or_default());
            let label = label(point, run.trial, self.plan.plan().repeat);
            live.trial_start(run, &label, Timetable::of(&point.plan), rest);
            let trial = Trial { experiment: self, point, run, dir };
            let ended = ground.trial(trial, live, &mut interrupt).await;
            let failed = matches!(&ended, Ok(verdict) if verdict.status == Status::Failed);
            let lost = ground.lost(failed);
            match ended {
                Ok(verdict) => live.trial_end(&verdict),
                Err(CliError::Interrupted) => {
                    live.say("trial_end", &format!("{label}: abandoned"));
                    return Err(CliError::Interrupted);
                }
                Err(error) => {
                    let reason = Reason::new("not_run", error.to_string());
                    live.trial_end(&Verdict { status: Status::Failed, reasons: vec![reason] });
                    let hopeless = !lost && !self.keep_going;
                    if hopeless || matches!(error, CliError::Results(_)) {
                        return Err(error);
                    }
                }
            }
            if lost {
                ground.rebuild(self).await?;
            }
        }
        Ok(())
    }

    fn time_for(&self, points: &BTreeMap<u32, Point>, runs: &[Run]) -> Duration {
        let each = TRIAL_OVERHEAD + self.plan.plan().gap.duration();
        let lengths = runs.iter().filter_map(|run| points.get(&run.point_id));
        lengths.map(|point| schedule::length(&point.plan).duration() + each).sum()
    }
}

/// Factors and repetition, for people.
fn label(point: &Point, trial: u16, repeat: u32) -> String {
    let levels: Vec<String> =
        point.factors.iter().map(|(factor, level)| format!("{factor}={level}")).collect();
    let of = format!("repeat {trial}/{repeat}");
    if levels.is_empty() { of } else { format!("{} {of}", levels.join(" ")) }
}

/// Sleeps for `gap`; false if interrupted.
async fn pause(gap: Micros, interrupt: &mut watch::Receiver<bool>) -> bool {
    tokio::select! {
        () = tokio::time::sleep(gap.duration()) => true,
        () = interrupted(interrupt) => false,
    }
}

/// Completes when the user wants to stop.
pub(crate) async fn interrupted(interrupt: &mut watch::Receiver<bool>) {
    if interrupt.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}
