//! Which trials a figure is of, and what their plan makes of them.

use std::collections::{BTreeMap, BTreeSet};

use ccbench_proto::plan::Plan;
use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::resolve;
use ccbench_proto::schedule::Point;
use ccbench_proto::units::{FRAME_BYTES, Limit};

use super::error::{FigureError, Result};
use super::request::{Kind, Request};
use crate::journal::{PhaseRecord, TrialEnd};
use crate::store::{Levels, RunDir};
pub(super) use crate::summary::group_of;
use crate::summary::query::values;
use crate::summary::{Group, Schedule, Summary, compute_of};

/// The chosen part of a run.
pub(super) struct Data {
    pub(super) run: RunDir,
    pub(super) request: Request,
    /// Chosen trials that count, by point and number.
    pub(super) trials: Vec<TrialEnd>,
    pub(super) factors: Vec<String>,
    points: BTreeMap<u32, Levels>,
    /// Each point's plan with its links settled; empty where the run's cannot be read.
    plans: BTreeMap<u32, Plan>,
    /// When groups run, as summaries see it.
    pub(super) schedule: Schedule,
}

/// What the bottleneck of a flow group is, as the plan has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Path {
    pub(super) rate_bps: f64,
    pub(super) base_rtt_ms: f64,
    /// How long a full queue takes to drain; `None` where its kind has no limit that says so.
    pub(super) full_queue_ms: Option<f64>,
}

impl Path {
    /// The bandwidth-delay product in frames of 1514 bytes.
    pub(super) fn bdp_packets(self) -> f64 {
        self.rate_bps * self.base_rtt_ms / 1e3 / 8.0 / FRAME_BYTES as f64
    }
}

/// Columns that choose trials, beside factors.
const OF_TRIALS: [&str; 2] = ["point_id", "trial"];
/// Columns that choose what is in a figure of some kind.
const OF_ROWS: [&str; 5] = ["phase", "group", "flow_id", "link", "cc"];

/// Those that choose what is in a figure of this kind.
fn columns(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Phases => &["phase", "group"],
        Kind::Series | Kind::Heatmap => &["phase", "group", "flow_id", "link"],
        Kind::CcState => &["phase", "group", "flow_id", "cc"],
        Kind::OperatingPoint | Kind::Plane | Kind::Ecdf | Kind::Strips => {
            &["phase", "group", "flow_id"]
        }
    }
}

impl Data {
    /// Opens a run and chooses.
    pub(super) fn open(path: &std::path::Path, request: &Request) -> Result<Self> {
        let run = RunDir::open(path)?;
        let (factors, points) = run.points();
        let schedule = Schedule::of(run.plan());
        let plans = run.plan().map_or(vec![], CheckedPlan::points);
        let settled = |point: &Point| (point.id, resolve::settle(point.plan.plan()));
        let plans = plans.iter().map(settled).collect();
        let mut trials = run.trials();
        trials.retain(|end| request.choice.includes(end.status));
        let request = request.clone();
        let mut data = Self { run, request, trials, factors, points, plans, schedule };
        // Trials first: what occurs depends on them.
        let wheres = data.request.wheres.clone();
        let (of_rows, of_trials): (Vec<_>, Vec<_>) =
            wheres.iter().partition(|(column, _)| data.is_of_rows(column));
        for (column, value) in of_trials.into_iter().chain(of_rows) {
            data.narrow(column, value)?;
        }
        if data.trials.is_empty() {
            return Err(data.nothing("it has no trial that counts"));
        }
        Ok(data)
    }

    /// Keeps the trials with this value, or checks that this kind can choose by a row's column and that the value occurs.
    fn narrow(&mut self, column: &str, value: &str) -> Result<()> {
        let wrong = |why: String| FigureError::Where {
            column: column.to_owned(),
            value: value.to_owned(),
            why,
        };
        let of_trial = |end: &TrialEnd| match column {
            "point_id" => end.point_id.to_string(),
            "trial" => end.trial.to_string(),
            factor => self.level(end.point_id, factor).unwrap_or_default().to_owned(),
        };
        if OF_TRIALS.contains(&column) || self.is_factor(column) {
            let known: BTreeSet<String> = self.trials.iter().map(of_trial).collect();
            if !known.contains(value) {
                return Err(wrong(format!("there are: {}", listed(known))));
            }
            let kept = self.trials.iter().filter(|end| of_trial(end) == value).cloned().collect();
            self.trials = kept;
            return Ok(());
        }
        let (kind, mine) = (self.request.kind, columns(self.request.kind));
        if !mine.contains(&column) {
            let factors = self.factors.iter().map(String::as_str);
            let known = listed(factors.chain(OF_TRIALS).chain(mine.iter().copied()));
            return Err(wrong(match OF_ROWS.contains(&column) {
                true => format!("a {} figure can be narrowed by {known}", kind.name()),
                false => format!("there are the columns {known}"),
            }));
        }
        if self.wanted(column) != Some(value) {
            return Err(wrong("a figure is of one value; draw another for this".to_owned()));
        }
        let known = self.occurring(column)?;
        match known.contains(value) {
            true => Ok(()),
            false => Err(wrong(format!("there are: {}", listed(known)))),
        }
    }

    /// Values of a row's column in the chosen trials.
    fn occurring(&self, column: &str) -> Result<BTreeSet<String>> {
        let tables: &[&str] = match column {
            "phase" => {
                // What is not measured has no numbers, but curves.
                let all = matches!(self.request.kind, Kind::Series | Kind::CcState);
                let phases = self.trials.iter().flat_map(|end| &end.phases);
                let shown = phases.filter(|phase| all || phase.measure);
                return Ok(shown.map(|phase| phase.name.clone()).collect());
            }
            "link" => &["qdisc_samples", "link_timing"],
            "cc" => &["cc_state"],
            _ => &["intervals", "flow_samples"],
        };
        Ok(values(&self.run, &self.trials, tables, column)?)
    }

    /// A point's level of a factor.
    pub(super) fn level(&self, point_id: u32, factor: &str) -> Option<&str> {
        let levels = self.points.get(&point_id)?;
        levels.iter().find(|(name, _)| name == factor).map(|(_, level)| level.as_str())
    }

    fn is_factor(&self, column: &str) -> bool {
        self.factors.iter().any(|factor| factor == column)
    }

    /// Whether a column chooses what is in a figure: a factor of such a name chooses trials.
    fn is_of_rows(&self, column: &str) -> bool {
        OF_ROWS.contains(&column) && !self.is_factor(column)
    }

    /// The value that a column of rows must have; `None`: any.
    pub(super) fn wanted(&self, column: &str) -> Option<&str> {
        let mut wheres = self.request.wheres.iter();
        let found = wheres.find(|(name, _)| name == column && self.is_of_rows(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Whether a row's column may have this value.
    pub(super) fn takes(&self, column: &str, value: &str) -> bool {
        self.wanted(column).is_none_or(|wanted| wanted == value)
    }

    /// Whether a flow is wanted.
    pub(super) fn takes_flow(&self, flow: &str) -> bool {
        self.takes("flow_id", flow) && self.takes("group", group_of(flow))
    }

    /// Whether a group, or a flow of it, is wanted.
    fn takes_group(&self, group: &str) -> bool {
        let of_flow = self.wanted("flow_id").is_none_or(|flow| group_of(flow) == group);
        of_flow && self.takes("group", group)
    }

    /// Chosen points, rising.
    pub(super) fn points(&self) -> Vec<u32> {
        let ids: BTreeSet<u32> = self.trials.iter().map(|end| end.point_id).collect();
        ids.into_iter().collect()
    }

    /// Factors that the chosen points differ in.
    pub(super) fn varied(&self) -> Vec<&str> {
        let points = self.points();
        let differs = |factor: &&str| {
            let levels: BTreeSet<_> = points.iter().map(|id| self.level(*id, factor)).collect();
            levels.len() > 1
        };
        self.factors.iter().map(String::as_str).filter(differs).collect()
    }

    /// What a point is called among the chosen ones: its levels of what varies.
    pub(super) fn point_name(&self, point_id: u32) -> String {
        let levels = self.varied().into_iter().filter_map(|factor| self.level(point_id, factor));
        levels.collect::<Vec<_>>().join(", ")
    }

    /// The factors that points are named by, as far as there are several points.
    pub(super) fn factors_of_points(&self) -> String {
        self.varied().join(", ")
    }

    /// What these points are called together: the levels that all of them have and no other chosen point has, or that all
    /// have, or all their names.
    pub(super) fn name_of_points(&self, points: &BTreeSet<u32>) -> String {
        let others: Vec<u32> =
            self.points().into_iter().filter(|id| !points.contains(id)).collect();
        let shared = |factor: &&str| {
            let levels: BTreeSet<_> = points.iter().map(|id| self.level(*id, factor)).collect();
            levels.len() == 1
        };
        let own = |factor: &&str| {
            let levels = |ids: &mut dyn Iterator<Item = &u32>| -> BTreeSet<Option<&str>> {
                ids.map(|id| self.level(*id, factor)).collect()
            };
            levels(&mut points.iter()).is_disjoint(&levels(&mut others.iter()))
        };
        let common: Vec<&str> = self.varied().into_iter().filter(shared).collect();
        let telling: Vec<&str> = common.iter().copied().filter(own).collect();
        let named = if telling.is_empty() { common } else { telling };
        let levels = |id: &u32| named.iter().filter_map(|f| self.level(*id, f)).collect::<Vec<_>>();
        let Some(first) = points.first().filter(|_| !named.is_empty()) else {
            return points.iter().map(|id| self.point_name(*id)).collect::<Vec<_>>().join("; ");
        };
        levels(first).join(", ")
    }

    /// Of a file's name: kind, what was chosen, and, where there are several points, which.
    pub(super) fn stem(&self, end: Option<&TrialEnd>) -> String {
        let Request { wheres, metrics, choice, .. } = &self.request;
        let chosen = wheres.iter().map(|(column, value)| format!("{column}={value}"));
        let metrics = metrics.iter().map(|metric| format!("metric={metric}"));
        let trials = [(choice.include_failed, "include-failed"), (choice.only_ok, "only-ok")];
        let trials = trials.iter().filter(|(set, _)| *set).map(|(_, name)| (*name).to_owned());
        let levels = end.map(|end| self.point_name(end.point_id).replace(", ", "-"));
        let parts = chosen.chain(metrics).chain(trials).chain(levels);
        let parts = parts.filter(|part| !part.is_empty());
        let safe = |c: char| if c.is_ascii_alphanumeric() || "._-=".contains(c) { c } else { '_' };
        parts.fold(self.request.kind.name().to_owned(), |stem, part| {
            format!("{stem}-{}", part.chars().map(safe).collect::<String>())
        })
    }

    /// The first chosen trial of every chosen point.
    pub(super) fn first_trials(&self) -> Vec<&TrialEnd> {
        let mut seen = BTreeSet::new();
        self.trials.iter().filter(|end| seen.insert(end.point_id)).collect()
    }

    /// Chosen trials of a point.
    pub(super) fn trials_of(&self, point_id: u32) -> Vec<&TrialEnd> {
        self.trials.iter().filter(|end| end.point_id == point_id).collect()
    }

    /// Measured phases that are wanted, of the first chosen trial that has any: their names, which all points share.
    pub(super) fn phases(&self) -> Vec<PhaseRecord> {
        self.phases_of(|_| true)
    }

    /// The same of the first such trial. Points may differ in how long phases are.
    fn phases_of(&self, takes: impl Fn(&TrialEnd) -> bool) -> Vec<PhaseRecord> {
        let first = self.trials.iter().find(|end| takes(end) && !end.phases.is_empty());
        let all = first.map_or(vec![], |end| end.phases.clone());
        all.into_iter().filter(|p| p.measure && self.takes("phase", &p.name)).collect()
    }

    /// When a phase of a point begins and ends, in seconds since a trial's beginning.
    fn span(&self, point_id: u32, phase: &str) -> Option<(f64, f64)> {
        let phases = self.phases_of(|end| end.point_id == point_id);
        Some(phases.iter().find(|record| record.name == phase)?.span_s())
    }

    /// A point's plan, if the run's can be read.
    pub(super) fn plan(&self, point_id: u32) -> Option<&Plan> {
        self.plans.get(&point_id)
    }

    /// Names of a point's flow groups.
    pub(super) fn groups(&self, point_id: Option<u32>) -> Vec<String> {
        let plan = point_id.and_then(|id| self.plan(id));
        plan.map_or(vec![], |plan| plan.flows.keys().cloned().collect())
    }

    /// The numbers of the chosen trials.
    pub(super) fn summary(&self) -> Result<Summary> {
        let chosen: BTreeSet<(u32, u16)> =
            self.trials.iter().map(|end| (end.point_id, end.trial)).collect();
        Ok(compute_of(&self.run, |end| chosen.contains(&(end.point_id, end.trial)))?)
    }

    /// Groups that the plan lets run in most of a phase, and how many flows each has.
    pub(super) fn running(&self, point_id: u32, phase: &str) -> BTreeMap<&str, u32> {
        let Some((from_s, to_s)) = self.span(point_id, phase) else { return BTreeMap::new() };
        let inside = |(_, group): &(&str, Group)| {
            let (start_s, stop_s) = group.span;
            stop_s.min(to_s) - start_s.max(from_s) > 0.5 * (to_s - from_s)
        };
        let running = self.schedule.groups(point_id).filter(inside);
        running.map(|(name, group)| (name, group.flows)).collect()
    }

    /// Of these groups those whose data passes this group's bottleneck.
    pub(super) fn sharing(&self, point_id: u32, group: &str, phase: &str) -> BTreeMap<&str, u32> {
        let Some(plan) = self.plan(point_id) else { return BTreeMap::new() };
        let bottleneck = resolve::bottleneck(plan, group).map(|(name, _)| name);
        let passes = |other: &str| {
            let passed = resolve::passed(plan, other);
            passed.iter().any(|(name, _)| Some(*name) == bottleneck)
        };
        let mut running = self.running(point_id, phase);
        running.retain(|other, _| passes(other));
        running
    }

    /// The group that runs in most phases, where there are several points: the others are what it competes with.
    pub(super) fn under_test(&self, groups: &[String]) -> Option<String> {
        let first = *self.points().first()?;
        let phases = self.phases();
        let present = |group: &&String| {
            phases
                .iter()
                .filter(|p| self.running(first, &p.name).contains_key(group.as_str()))
                .count()
        };
        // Of several, the first.
        groups.iter().filter(|group| self.takes_group(group)).rev().max_by_key(present).cloned()
    }

    /// The phase in which most flows run, of those wanted.
    pub(super) fn fullest_phase(&self, point_id: u32) -> Option<PhaseRecord> {
        let flows = |phase: &PhaseRecord| self.running(point_id, &phase.name).values().sum::<u32>();
        // Of several, the first.
        self.phases().into_iter().rev().max_by_key(flows)
    }

    /// The bottleneck of a group's flows; where it has a trace, its rate is what that lets pass in a phase, in the mean.
    pub(super) fn path(&self, point_id: u32, group: &str, phase: &str) -> Option<Path> {
        let plan = self.plan(point_id)?;
        let (name, link) = resolve::bottleneck(plan, group)?;
        let rate = resolve::drain_rate(link)?;
        let rtt = resolve::base_rtt(plan, name);
        let queue = resolve::resolve_queue(link.queue.as_ref(), Some(rate), rtt);
        let bytes = match queue.fifo_limit() {
            Some((Limit::Bytes(bytes), _)) => Some(bytes.get() as f64),
            Some((Limit::Packets(packets), _)) => {
                Some(f64::from(packets.get()) * FRAME_BYTES as f64)
            }
            _ => None,
        };
        let mean_bps = rate.bits_per_sec() as f64;
        let traced = self.run.traced().curve(point_id, name).and_then(|curve| {
            let (from_s, to_s) = self.span(point_id, phase)?;
            let ns = |s: f64| (s * 1e9).round() as u64;
            Some(curve.bytes(ns(from_s), ns(to_s)) * 8.0 / (to_s - from_s))
        });
        (mean_bps > 0.0).then(|| Path {
            rate_bps: traced.unwrap_or(mean_bps),
            base_rtt_ms: rtt.as_secs_f64() * 1e3,
            full_queue_ms: bytes.map(|bytes| bytes * 8.0 / mean_bps * 1e3),
        })
    }

    /// That this kind has no data; which have is found out by [`super::draw`].
    pub(super) fn nothing(&self, why: &str) -> FigureError {
        FigureError::NoData {
            path: self.run.path().to_path_buf(),
            kind: self.request.kind.name(),
            why: why.to_owned(),
            possible: "this run has no data for any kind".to_owned(),
        }
    }

    /// Of few trials, which tell whether something can be drawn: the first of the first point, and of one that differs from
    /// it in each factor that varies.
    pub(super) fn few(mut self) -> Self {
        let first = self.first_trials();
        let level =
            |end: &TrialEnd, factor: &str| self.level(end.point_id, factor).map(str::to_owned);
        let other = |factor: &str| {
            let of_first = level(first.first()?, factor);
            first.iter().find(|end| level(end, factor) != of_first).copied()
        };
        let others = self.varied().into_iter().filter_map(other);
        let kept: BTreeSet<u32> =
            first.first().copied().into_iter().chain(others).map(|end| end.point_id).collect();
        let kept = first.into_iter().filter(|end| kept.contains(&end.point_id)).cloned().collect();
        self.trials = kept;
        self
    }

    /// Whether figures of this kind can be narrowed by this column.
    pub(super) fn can_narrow(&self, kind: Kind, column: &str) -> bool {
        !self.is_of_rows(column) || columns(kind).contains(&column)
    }
}

pub(super) fn listed<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Colour and dash of each flow: its own, or its group's where there are more than can be told apart.
pub(super) fn looks(flows: &[String]) -> Vec<(usize, bool)> {
    let groups: BTreeSet<&str> = flows.iter().map(|flow| group_of(flow)).collect();
    let of_group = |flow: &str| groups.iter().position(|group| *group == group_of(flow));
    let each = flows.len() <= super::canvas::COLOURS.len();
    let look = |(nth, flow): (usize, &String)| match each {
        true => (nth, true),
        false => (of_group(flow).unwrap_or(0), false),
    };
    flows.iter().enumerate().map(look).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bandwidth_delay_product_is_in_frames() {
        let path = Path { rate_bps: 100e6, base_rtt_ms: 10.0, full_queue_ms: Some(15.0) };
        assert!((path.bdp_packets() - 82.56).abs() < 0.01, "{}", path.bdp_packets());
    }

    #[test]
    fn many_flows_have_the_colour_of_their_group() {
        let flows = |groups: &[(&str, usize)]| -> Vec<String> {
            let of = |(group, n): &(&str, usize)| (0..*n).map(|i| format!("{group}/{i}")).collect();
            groups.iter().flat_map(|group| -> Vec<String> { of(group) }).collect()
        };
        assert_eq!(looks(&flows(&[("a", 1), ("b", 1)])), [(0, true), (1, true)]);
        let many = looks(&flows(&[("a", 5), ("b", 5)]));
        assert!(many[..5].iter().all(|look| *look == (0, false)));
        assert!(many[5..].iter().all(|look| *look == (1, false)));
    }
}
