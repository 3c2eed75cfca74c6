//! Computes means over the phases of committed trials, and means with confidence intervals over trials.
//!
//! The journal lists the committed trials. Degraded trials are included and marked in every output; failed and aborted trials are excluded
//! by default. The module `measure` documents the metrics.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;

use ccbench_proto::event;
use ccbench_proto::link_state::Fallback;
use ccbench_proto::metric::{Scope, UNDEFINED, WHOLE_TRIAL};

use super::backend::RunBackend;
use super::journal::TrialEnd;
use super::model::{RunStatus, TrialFilter, TrialStatus};
use super::store::RunDir;
use crate::error::Result;

mod cc_states;
mod ccs;
mod completion;
mod convergence;
mod derived;
mod fair_share;
mod fetches;
mod flows;
mod harm;
mod kaplan_meier;
mod measure;
mod network;
mod one_way_delay;
pub(crate) mod query;
mod recovery;
mod responsiveness;
mod rows;
pub(crate) mod sampled;
mod scan;
mod schedule;
pub(crate) mod settling;
mod span;
pub mod statistics;
pub(crate) mod steal;
pub(crate) mod tables;
mod totals;
pub(crate) mod undefined;

pub(crate) use ccs::sender_ccs;
pub(crate) use derived::Running;
pub(crate) use measure::flows_of;
pub(crate) use network::{PathLimits, payload_share};
pub(crate) use schedule::{Schedule, group_of};
pub(crate) use span::Group;
use statistics::OverTrials;
pub use tables::{PhaseRow, PointRow};

/// The table that neither summaries nor reports read; it is by far the largest.
pub(crate) const UNREAD_TABLE: &str = "acks";

/// The summary of a run.
#[derive(Debug)]
pub struct Summary {
    /// The results directory.
    pub run_dir: PathBuf,
    /// Status of the run.
    pub status: RunStatus,
    /// Where the trials took place.
    pub backend: RunBackend,
    /// Which trials the metrics include.
    pub trial_filter: TrialFilter,
    /// Names of the factors.
    pub factors: Vec<String>,
    /// Factors and levels of each point, in the order of the factors.
    pub points: BTreeMap<u32, Vec<(String, String)>>,
    /// The congestion control of each group by point, as reported by the kernel.
    pub ccs: BTreeMap<(u32, String), String>,
    /// Every committed trial with its verdict, including excluded ones, in the order of points.
    pub trials: Vec<TrialEnd>,
    /// Names of the measured phases, in order of time.
    pub phases: Vec<String>,
    /// The metrics of each trial, in the order of points.
    pub phase_rows: Vec<PhaseRow>,
    /// The metrics of each point, in the order of points.
    pub point_rows: Vec<PointRow>,
    /// Number of trials in the plan.
    pub planned: u32,
    /// Links with `backend = "auto"` that are emulated in userspace, with the reason.
    pub fallbacks: Vec<String>,
    /// Mean CPU steal, in percent, of trials that lacked CPU time, by point and trial.
    pub steal_pct: BTreeMap<(u32, u16), f64>,
    /// Upper bound of the error of completion times in us, by point and group: that of the clocks of both ends together, in the worst trial.
    pub completion_bounds_us: BTreeMap<(u32, String), f64>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

/// Computes the summary of the trials that the filter includes.
///
/// # Errors
/// A table cannot be read.
pub fn compute(run: &RunDir, filter: TrialFilter) -> Result<Summary> {
    compute_of(run, filter, |end| filter.includes(end.status))
}

/// Like [`compute`], for the trials that `includes` accepts. `trial_filter` is the part of this selection that depends on the verdict.
pub(crate) fn compute_of(
    run: &RunDir,
    trial_filter: TrialFilter,
    includes: impl Fn(&TrialEnd) -> bool,
) -> Result<Summary> {
    run.check(|table| table != UNREAD_TABLE);
    let trials = run.trials();
    let counted: Vec<&TrialEnd> = trials.iter().filter(|end| includes(end)).collect();
    let (mut phase_rows, mut notes) = (vec![], run.notes());
    let schedule = Schedule::from_plan(run.plan());
    let measured = measure::measure(run, &counted, &schedule)?;
    phase_rows.extend(measured.rows);
    notes.extend(measured.notes);
    let ccs = ccs::sender_ccs(run, &counted)?;
    let link_events = query::events(run, &trials, event::LINK)?;
    let links: BTreeSet<String> =
        link_events.iter().filter_map(|(link, data)| fallback(link, data)).collect();
    let phases = phase_names(&trials);
    let position = |name: &str| phases.iter().position(|phase| phase == name);
    phase_rows.sort_by(|a, b| {
        let key = |r: &PhaseRow| (r.point_id, r.trial, position(&r.phase), r.scope);
        key(a).cmp(&key(b)).then_with(|| a.subject.cmp(&b.subject))
    });
    let point_rows = over_trials(&phase_rows, &phases);
    let lacking_cpu: Vec<&TrialEnd> = trials.iter().filter(|end| steal::lacks_cpu(end)).collect();
    let steal_pct = steal::steal_pct(run, &lacking_cpu)?;
    let (factors, points) = run.points();
    Ok(Summary {
        run_dir: run.path().to_path_buf(),
        status: run.status(),
        backend: run.backend(),
        trial_filter,
        planned: run.planned(),
        fallbacks: links.into_iter().collect(),
        factors,
        points,
        ccs,
        phases,
        phase_rows,
        point_rows,
        steal_pct,
        completion_bounds_us: measured.completion_bounds_us,
        notes,
        trials,
    })
}

/// Returns the metrics of one committed trial. Does not compare the trial's tables with their digests.
pub(crate) fn rows_of_trial(
    run: &RunDir,
    end: &TrialEnd,
    schedule: &Schedule,
) -> Result<Vec<PhaseRow>> {
    Ok(measure::measure(run, &[end], schedule)?.rows)
}

/// Describes why `backend = "auto"` did not use the kernel's qdiscs for a link.
fn fallback(link: &str, data_json: &str) -> Option<String> {
    match Fallback::of_stored_link(data_json) {
        Ok(fallback) => Some(format!("link {link}: userspace ({})", fallback?.cause())),
        Err(error) => {
            Some(format!("link {link}: cannot read its event in table `events`: {error}"))
        }
    }
}

/// Returns the distinct measured phases of all trials.
fn phase_names(trials: &[TrialEnd]) -> Vec<String> {
    let mut names: Vec<String> = vec![];
    for phase in trials.iter().flat_map(|end| &end.phases).filter(|phase| phase.measure) {
        if !names.contains(&phase.name) {
            names.push(phase.name.clone());
        }
    }
    names
}

/// Returns the mean and confidence interval of every metric over the trials of a point.
fn over_trials(rows: &[PhaseRow], phases: &[String]) -> Vec<PointRow> {
    let mut series: BTreeMap<_, Vec<&PhaseRow>> = BTreeMap::new();
    // Keep metrics in the order in which a trial lists them.
    let mut ranks: HashMap<(&str, &str), usize> = HashMap::new();
    // Those of each metric, without the statistic `undefined`.
    let mut ranks_of: HashMap<&str, Vec<usize>> = HashMap::new();
    for row in rows {
        let next = ranks.len();
        let rank = *ranks.entry((row.metric, row.stat)).or_insert(next);
        if rank == next && row.stat != UNDEFINED {
            ranks_of.entry(row.metric).or_default().push(rank);
        }
        let phase = phases.iter().position(|name| *name == row.phase);
        let key = (row.point_id, phase, row.scope, &row.subject, rank);
        series.entry(key).or_default().push(row);
    }
    let mut over: BTreeMap<usize, OverTrials> = BTreeMap::new();
    let mut point_row = |row: &PhaseRow, values: &[f64], n: u32| {
        let trials = values.len();
        let over = over.entry(trials).or_insert_with(|| OverTrials::new(trials));
        let mean = over.mean(values)?;
        Some(PointRow {
            point_id: row.point_id,
            phase: row.phase.clone(),
            scope: row.scope,
            subject: row.subject.clone(),
            metric: row.metric,
            unit: row.unit,
            stat: row.stat,
            value: mean.value,
            n,
            interval: mean.interval,
            n_trials: values.len() as u32,
            median: statistics::median(values)?,
            sd: statistics::variance(values).map(f64::sqrt),
            bootstrap: over.bootstrap(values),
        })
    };
    let mut found = Vec::with_capacity(series.len());
    for (key, of_series) in &series {
        let Some(first) = of_series.first() else { continue };
        let (mut values, mut n) = (Vec::with_capacity(of_series.len()), 0_u32);
        let mut add = |value, of_trial| {
            values.push(value);
            n = n.saturating_add(of_trial);
        };
        if first.stat == UNDEFINED {
            let (point_id, phase, scope, subject, _) = *key;
            let others = ranks_of.get(first.metric).into_iter().flatten();
            let others =
                others.filter_map(|rank| series.get(&(point_id, phase, scope, subject, *rank)));
            let of_trials = undefined::of_trials(of_series, others.flatten().copied());
            of_trials.into_values().for_each(|(value, of_trial)| add(value, of_trial));
        } else {
            of_series.iter().for_each(|row| add(row.value, row.n));
        }
        found.extend(point_row(first, &values, n));
    }
    found
}

/// Returns the items with this key, such as a point, from a slice in the order of the keys. A run may have 10 000 points and millions of
/// rows.
pub(crate) fn with_key<T, K: Ord + Copy>(all: &[T], key: K, key_of: impl Fn(&T) -> K) -> &[T] {
    let from = all.partition_point(|one| key_of(one) < key);
    let count = all[from..].partition_point(|one| key_of(one) == key);
    &all[from..from + count]
}

impl Summary {
    /// Returns the mean of one metric over trials; `None` if no included trial has it.
    pub fn find(
        &self,
        point_id: u32,
        phase: &str,
        scope: Scope,
        subject: &str,
        metric: &str,
        stat: &str,
    ) -> Option<&PointRow> {
        self.point_rows_of(point_id).iter().find(|row| {
            row.phase == phase
                && row.scope == scope
                && row.subject == subject
                && row.metric == metric
                && row.stat == stat
        })
    }

    /// Returns the metrics of a point.
    pub(crate) fn point_rows_of(&self, point_id: u32) -> &[PointRow] {
        with_key(&self.point_rows, point_id, |row| row.point_id)
    }

    /// Returns the metrics of a point's trials.
    pub(crate) fn phase_rows_of(&self, point_id: u32) -> &[PhaseRow] {
        with_key(&self.phase_rows, point_id, |row| row.point_id)
    }

    /// Returns the metrics of a trial.
    pub(crate) fn phase_rows_of_trial(&self, point_id: u32, trial: u16) -> &[PhaseRow] {
        with_key(&self.phase_rows, (point_id, trial), |row| (row.point_id, row.trial))
    }

    /// Returns the committed trials of a point.
    pub(crate) fn trials_of(&self, point_id: u32) -> &[TrialEnd] {
        with_key(&self.trials, point_id, |end| end.point_id)
    }

    /// Returns a line about a run that lacks trials.
    pub(crate) fn incomplete_run(&self) -> Option<String> {
        let done = self.trials.iter().filter(|end| end.status != TrialStatus::Aborted).count();
        let how = match self.status {
            RunStatus::Complete if done >= self.planned as usize => return None,
            RunStatus::Complete => "is incomplete",
            RunStatus::Killed if done >= self.planned as usize => {
                "was not finished; `ccbench run --resume DIR` finishes it"
            }
            RunStatus::Killed => "was killed; `ccbench run --resume DIR` continues it",
            RunStatus::Running => "is running",
            RunStatus::Interrupted => "was interrupted",
            RunStatus::Failed => "failed",
        };
        Some(format!("{done} of {} trials; the run {how}", self.planned))
    }

    /// Returns points without metrics because all their trials failed or were aborted, with the number of trials.
    pub(crate) fn lost_points(&self) -> BTreeMap<u32, usize> {
        let mut lost: BTreeMap<u32, usize> = BTreeMap::new();
        for end in &self.trials {
            *lost.entry(end.point_id).or_default() += 1;
        }
        for end in self.trials.iter().filter(|end| TrialFilter::default().includes(end.status)) {
            lost.remove(&end.point_id);
        }
        lost.retain(|id, _| self.point_rows_of(*id).is_empty());
        lost
    }

    /// Returns the names of the flow groups.
    pub fn groups(&self) -> Vec<String> {
        // Groups that run in no measured phase also have completion times.
        let groups = self
            .phase_rows
            .iter()
            .filter(|row| row.scope == Scope::Group && row.phase != WHOLE_TRIAL);
        let names: std::collections::BTreeSet<&String> = groups.map(|row| &row.subject).collect();
        names.into_iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_packets_in_all_trials_saturates() {
        let row = |trial| PhaseRow {
            point_id: 0,
            trial,
            phase: WHOLE_TRIAL.to_owned(),
            scope: Scope::Link,
            subject: "l".to_owned(),
            metric: "packet_scheduling_error",
            unit: "us",
            stat: "p50",
            value: 2.0,
            n: 3_000_000_000,
        };
        let found = over_trials(&[row(1), row(2)], &[]);
        assert_eq!((found[0].n, found[0].n_trials, found[0].value), (u32::MAX, 2, 2.0));
    }

    /// Ten trials, one of which does not converge.
    #[test]
    fn trial_without_undefined_values_counts_as_zero() {
        let row = |trial: u16, stat: &'static str, value| PhaseRow {
            point_id: 0,
            trial,
            phase: "main".to_owned(),
            scope: Scope::Net,
            subject: "all".to_owned(),
            metric: "convergence_time",
            unit: if stat == UNDEFINED { "1" } else { "us" },
            stat,
            value,
            n: 1,
        };
        let of = |failed: u16| {
            let rows = (1..=10).map(|trial| match trial <= failed {
                true => row(trial, UNDEFINED, 1.0),
                false => row(trial, "mean", 4e6),
            });
            let found = over_trials(&rows.collect::<Vec<_>>(), &["main".to_owned()]);
            found.into_iter().map(|row| (row.stat, (row.value, row.n_trials, row.n)))
        };
        let some: BTreeMap<_, _> = of(1).collect();
        assert_eq!(some[UNDEFINED], (0.1, 10, 10));
        assert_eq!(some["mean"], (4e6, 9, 9));
        assert_eq!(of(0).collect::<Vec<_>>(), [("mean", (4e6, 10, 10))]);
        assert_eq!(of(10).collect::<Vec<_>>(), [(UNDEFINED, (1.0, 10, 10))]);
    }

    #[test]
    fn a_point_has_its_own_rows() {
        let all = [(1, 'a'), (1, 'b'), (3, 'c'), (7, 'd'), (7, 'e')];
        let of = |point_id| with_key(&all, point_id, |one| one.0);
        assert_eq!(of(1), [(1, 'a'), (1, 'b')]);
        assert_eq!(of(3), [(3, 'c')]);
        assert_eq!(of(7), [(7, 'd'), (7, 'e')]);
        assert!([0, 2, 4, 8].into_iter().all(|point_id| of(point_id).is_empty()));
    }
}
