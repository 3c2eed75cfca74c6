//! Turns committed trials into means over phases and, over trials, into means with confidence intervals.
//!
//! The journal decides which trials there are. Degraded trials count, and are marked wherever they are printed;
//! failed and aborted ones stay out unless asked for. What each metric means is said in `measure`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use ccbench_proto::event;
use ccbench_proto::link_state::Fallback;
use ccbench_proto::metric::Scope;

use super::journal::TrialEnd;
use super::model::RunStatus;
use super::model::TrialFilter;
use super::store::RunDir;
use crate::error::Result;

mod ccs;
mod flows;
mod harm;
mod measure;
pub(crate) mod query;
mod rows;
pub(crate) mod sampled;
mod schedule;
pub(crate) mod settling;
pub mod statistics;
pub(crate) mod steal;
pub(crate) mod tables;

pub(crate) use measure::flows_of;
pub(crate) use schedule::{Group, Schedule, group_of};
use statistics::OverTrials;
pub use tables::{PhaseRow, PointRow};

/// A run in numbers.
#[derive(Debug)]
pub struct Summary {
    /// Where the run is.
    pub run_dir: PathBuf,
    /// How it stands.
    pub status: RunStatus,
    /// Names of the factors.
    pub factors: Vec<String>,
    /// Each point's level of each factor, in the factors' order.
    pub points: BTreeMap<u32, Vec<(String, String)>>,
    /// The congestion control of each point's groups, where it was seen.
    pub ccs: BTreeMap<(u32, String), String>,
    /// Every committed trial with its verdict, also those that do not count.
    pub trials: Vec<TrialEnd>,
    /// Names of the measured phases, in the order of the timeline.
    pub phases: Vec<String>,
    /// The numbers of each trial.
    pub phase_rows: Vec<PhaseRow>,
    /// The numbers of each point.
    pub point_rows: Vec<PointRow>,
    /// How many trials the plan has.
    pub planned: u32,
    /// Links that are emulated in userspace though the plan leaves the filter open, each with the reason.
    pub fallbacks: Vec<String>,
    /// Mean CPU steal in percent, of trials that lacked CPU time, by point and trial.
    pub steal_pct: BTreeMap<(u32, u16), f64>,
    /// What a reader must know.
    pub notes: Vec<String>,
}

/// The numbers of the trials that count.
pub fn compute(run: &RunDir, filter: TrialFilter) -> Result<Summary> {
    compute_of(run, |end| filter.includes(end.status))
}

/// As [`compute`], of the trials that `takes` says.
pub(crate) fn compute_of(run: &RunDir, takes: impl Fn(&TrialEnd) -> bool) -> Result<Summary> {
    let trials = run.trials();
    let counted: Vec<&TrialEnd> = trials.iter().filter(|end| takes(end)).collect();
    let (mut phase_rows, mut notes) = (vec![], run.notes());
    let schedule = Schedule::of(run.plan());
    let measured = measure::measure(run, &counted, &schedule)?;
    phase_rows.extend(measured.rows);
    notes.extend(measured.notes);
    let ccs = ccs::sender_ccs(run, &counted)?;
    let told = query::events(run, &trials, event::LINK)?;
    let links: BTreeSet<String> =
        told.iter().filter_map(|(link, data)| fallback(link, data)).collect();
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
        planned: run.planned(),
        fallbacks: links.into_iter().collect(),
        factors,
        points,
        ccs,
        phases,
        phase_rows,
        point_rows,
        steal_pct,
        notes,
        trials,
    })
}

/// The line for a link for which `backend = "auto"` did not take the kernel's qdiscs.
fn fallback(link: &str, data_json: &str) -> Option<String> {
    match Fallback::of_stored_link(data_json) {
        Ok(fallback) => Some(format!("link {link}: userspace ({})", fallback?.cause())),
        Err(error) => {
            Some(format!("link {link}: cannot read its event in table `events`: {error}"))
        }
    }
}

/// Measured phases of all trials, each once.
fn phase_names(trials: &[TrialEnd]) -> Vec<String> {
    let mut names: Vec<String> = vec![];
    for phase in trials.iter().flat_map(|end| &end.phases).filter(|phase| phase.measure) {
        if !names.contains(&phase.name) {
            names.push(phase.name.clone());
        }
    }
    names
}

/// Mean and interval of every number over its point's trials.
fn over_trials(rows: &[PhaseRow], phases: &[String]) -> Vec<PointRow> {
    let mut series: BTreeMap<_, (Vec<f64>, u32, &PhaseRow)> = BTreeMap::new();
    // Metrics keep the order in which a trial lists them.
    let mut order: Vec<(&str, &str)> = vec![];
    for row in rows {
        let metric = (row.metric, row.stat);
        let rank = order.iter().position(|known| *known == metric).unwrap_or_else(|| {
            order.push(metric);
            order.len() - 1
        });
        let phase = phases.iter().position(|name| *name == row.phase);
        let key = (row.point_id, phase, row.scope, &row.subject, rank);
        let (values, n, _) = series.entry(key).or_insert((vec![], 0, row));
        values.push(row.value);
        *n += row.n;
    }
    let mut over: BTreeMap<usize, OverTrials> = BTreeMap::new();
    let point_row = |(values, n, row): (Vec<f64>, u32, &PhaseRow)| {
        let trials = values.len();
        let over = over.entry(trials).or_insert_with(|| OverTrials::of(trials));
        let mean = over.mean(&values)?;
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
            median: statistics::median(&values)?,
            sd: statistics::variance(&values).map(f64::sqrt),
            bootstrap: over.bootstrap(&values),
        })
    };
    series.into_values().filter_map(point_row).collect()
}

impl Summary {
    /// The mean over trials of one number; `None` if no counted trial has it.
    pub fn find(
        &self,
        point_id: u32,
        phase: &str,
        scope: Scope,
        subject: &str,
        metric: &str,
        stat: &str,
    ) -> Option<&PointRow> {
        self.point_rows.iter().find(|row| {
            row.point_id == point_id
                && row.phase == phase
                && row.scope == scope
                && row.subject == subject
                && row.metric == metric
                && row.stat == stat
        })
    }

    /// Points whose trials all failed, with how many there are: no number is theirs.
    pub(crate) fn lost_points(&self) -> BTreeMap<u32, usize> {
        let mut lost: BTreeMap<u32, usize> = BTreeMap::new();
        for end in &self.trials {
            *lost.entry(end.point_id).or_default() += 1;
        }
        for end in self.trials.iter().filter(|end| TrialFilter::default().includes(end.status)) {
            lost.remove(&end.point_id);
        }
        lost.retain(|id, _| self.point_rows.iter().all(|row| row.point_id != *id));
        lost
    }

    /// Names of the flow groups.
    pub fn groups(&self) -> Vec<String> {
        let groups = self.phase_rows.iter().filter(|row| row.scope == Scope::Group);
        let names: std::collections::BTreeSet<&String> = groups.map(|row| &row.subject).collect();
        names.into_iter().cloned().collect()
    }
}
