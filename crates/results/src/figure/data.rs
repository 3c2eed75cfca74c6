//! Selects the trials of a figure and derives bottlenecks and fair shares from their plans.

use std::collections::{BTreeMap, BTreeSet};

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::plan::{self, Change, Plan};
use ccbench_proto::resolve;
use ccbench_proto::schedule::Point;
use ccbench_proto::units::{FRAME_BYTES, Limit};

use super::cc_names::{CcNames, SelectedAlgorithms};
use super::error::{FigureError, Result};
use super::request::{Kind, Request};
use crate::curve::{extra_bytes, line_bytes};
use crate::journal::{PhaseRecord, TrialEnd};
use crate::model::Levels;
use crate::store::RunDir;
pub(super) use crate::summary::group_of;
use crate::summary::query::values;
use crate::summary::{Group, PathLimits, Schedule, Summary, UNREAD_TABLE};
use crate::summary::{compute_of, payload_share, sender_ccs, with_key};

/// The selected part of a run.
pub(super) struct Selection {
    pub(super) run: RunDir,
    pub(super) request: Request,
    /// The selected trials, by point and number.
    pub(super) trials: Vec<TrialEnd>,
    pub(super) factors: Vec<String>,
    /// The factors in which the selected points differ.
    varying: Vec<String>,
    points: BTreeMap<u32, Levels>,
    /// Each point's plan with its links resolved; empty if the run's plan cannot be read.
    plans: BTreeMap<u32, Plan>,
    pub(super) algorithms: SelectedAlgorithms,
    /// When groups run, as in summaries.
    pub(super) schedule: Schedule,
}

/// The bottleneck of a flow group in a phase according to the plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct BottleneckPath {
    /// The mean rate of frames, as the link counts them.
    pub(super) rate_bps: f64,
    /// Bytes of payload in a full packet per byte that counts against the rate.
    pub(super) payload_share: f64,
    /// The base RTT of the group's path; `None` if it is not constant in the phase.
    pub(super) base_rtt_ms: Option<f64>,
    /// The time to drain a full queue; `None` if no constant limit of the discipline determines it.
    pub(super) full_queue_ms: Option<f64>,
}

impl BottleneckPath {
    /// Returns the rate in payload, as throughput counts.
    pub(super) fn payload_bps(self) -> f64 {
        self.rate_bps * self.payload_share
    }

    /// Returns the bandwidth-delay product of this round-trip time in frames of 1514 bytes.
    pub(super) fn bdp_packets(self, rtt_ms: f64) -> f64 {
        self.rate_bps * rtt_ms / 1e3 / 8.0 / FRAME_BYTES as f64
    }
}

/// Columns that filter trials, in addition to factors.
const TRIAL_COLUMNS: [&str; 2] = ["point_id", "trial"];
/// Columns that filter the content of some kinds of figures.
const ROW_COLUMNS: [&str; 5] = ["phase", "group", "flow_id", "link", "cc"];

/// The subject of a summary's values of all flows together.
pub(super) const ALL_FLOWS: &str = "all";

/// Returns the columns that filter this kind.
fn columns(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Phases => &["phase", "group"],
        Kind::Series | Kind::Heatmap | Kind::Lines => &["phase", "group", "flow_id", "link"],
        Kind::CcState => &["phase", "group", "flow_id", "cc"],
        Kind::OperatingPoint | Kind::Plane | Kind::Ecdf | Kind::Strips | Kind::TimeSequence => {
            &["phase", "group", "flow_id"]
        }
    }
}

impl Selection {
    /// Opens a run and applies the filters of a request.
    pub(super) fn open(path: &std::path::Path, request: &Request) -> Result<Self> {
        request.check()?;
        let run = RunDir::open(path)?;
        let is_of_summary = request.kind.is_of_summary();
        run.check(|table| !is_of_summary || table != UNREAD_TABLE);
        let (factors, points) = run.points();
        let schedule = Schedule::from_plan(run.plan());
        let plans = run.plan().map_or(vec![], CheckedPlan::points);
        let normalized = |point: &Point| (point.id, resolve::normalize(point.plan.plan()));
        let plans = plans.iter().map(normalized).collect();
        let algorithms = SelectedAlgorithms::from_plans(&plans);
        let mut trials = run.trials();
        trials.retain(|end| request.trial_filter.includes(end.status));
        let request = request.clone();
        let varying = vec![];
        let mut data =
            Self { run, request, trials, factors, varying, points, plans, algorithms, schedule };
        // Trials first, because they determine which other values exist.
        let filters = data.request.filters.clone();
        let (of_rows, of_trials): (Vec<_>, Vec<_>) =
            filters.iter().partition(|(column, _)| data.is_row_column(column));
        for (column, value) in of_trials.into_iter().chain(of_rows) {
            data.apply_filter(column, value)?;
        }
        if data.trials.is_empty() {
            return Err(data.no_data("no trial matches the filters and the verdict selection"));
        }
        let varying = data.factors_of(&data.points()).into_iter().map(str::to_owned).collect();
        data.varying = varying;
        Ok(data)
    }

    /// Keeps the trials with this value. For a row column, checks that the kind supports it and that the value exists.
    fn apply_filter(&mut self, column: &str, value: &str) -> Result<()> {
        let wrong = |reason: String| FigureError::Where {
            column: column.to_owned(),
            value: value.to_owned(),
            reason,
        };
        let of_trial = |end: &TrialEnd| match column {
            "point_id" => end.point_id.to_string(),
            "trial" => end.trial.to_string(),
            factor => self.level(end.point_id, factor).unwrap_or_default().to_owned(),
        };
        if TRIAL_COLUMNS.contains(&column) || self.is_factor(column) {
            let known: BTreeSet<String> = self.trials.iter().map(of_trial).collect();
            if !known.contains(value) {
                return Err(wrong(format!("no such value; there are: {}", comma_separated(known))));
            }
            let kept = self.trials.iter().filter(|end| of_trial(end) == value).cloned().collect();
            self.trials = kept;
            return Ok(());
        }
        let (kind, mine) = (self.request.kind, columns(self.request.kind));
        if !mine.contains(&column) {
            let factors = self.factors.iter().map(String::as_str);
            let known = comma_separated(factors.chain(TRIAL_COLUMNS).chain(mine.iter().copied()));
            return Err(wrong(match ROW_COLUMNS.contains(&column) {
                true => format!("a {} figure can be filtered only by {known}", kind.name()),
                false => format!("no such column; the columns are {known}"),
            }));
        }
        let known = self.existing_values(column)?;
        match known.contains(value) {
            true => Ok(()),
            false => Err(wrong(format!("no such value; there are: {}", comma_separated(known)))),
        }
    }

    /// Returns the values of a row column in the selected trials.
    fn existing_values(&self, column: &str) -> Result<BTreeSet<String>> {
        let tables: &[&str] = match column {
            "phase" => {
                // Phases that are not measured have curves, but no numbers.
                let kinds = [Kind::Series, Kind::CcState, Kind::TimeSequence];
                let all = kinds.contains(&self.request.kind);
                let phases = self.trials.iter().flat_map(|end| &end.phases);
                let shown = phases.filter(|phase| all || phase.measure);
                return Ok(shown.map(|phase| phase.name.clone()).collect());
            }
            "link" => &["qdisc_samples", "link_timing"],
            "cc" => &["cc_state"],
            _ => &["intervals", "flow_samples"],
        };
        let mut known = values(&self.run, &self.trials, tables, column)?;
        if column == "group" && self.request.kind.is_of_summary() {
            known.insert(ALL_FLOWS.to_owned());
        }
        Ok(known)
    }

    /// Returns a point's level of a factor.
    pub(super) fn level(&self, point_id: u32, factor: &str) -> Option<&str> {
        let levels = self.points.get(&point_id)?;
        levels.iter().find(|(name, _)| name == factor).map(|(_, level)| level.as_str())
    }

    fn is_factor(&self, column: &str) -> bool {
        self.factors.iter().any(|factor| factor == column)
    }

    /// Returns whether a column filters rows. A factor with the same name filters trials instead.
    fn is_row_column(&self, column: &str) -> bool {
        ROW_COLUMNS.contains(&column) && !self.is_factor(column)
    }

    /// Returns the filter value of a row column; `None` if there is no filter.
    pub(super) fn wanted(&self, column: &str) -> Option<&str> {
        let mut filters = self.request.filters.iter();
        let found = filters.find(|(name, _)| name == column && self.is_row_column(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Returns whether the filters accept this value of a row column.
    pub(super) fn accepts(&self, column: &str, value: &str) -> bool {
        self.wanted(column).is_none_or(|wanted| wanted == value)
    }

    /// Returns whether the filters select the values of all flows together. A group with their name is a group.
    pub(super) fn wants_all_flows(&self) -> bool {
        let first = self.trials.first().map(|end| end.point_id);
        self.wanted("group") == Some(ALL_FLOWS)
            && !self.groups(first).iter().any(|group| group == ALL_FLOWS)
    }

    /// Returns whether the filters accept a flow.
    pub(super) fn accepts_flow(&self, flow: &str) -> bool {
        self.accepts("flow_id", flow) && self.accepts("group", group_of(flow))
    }

    /// Returns whether the filters accept every flow.
    pub(super) fn accepts_every_flow(&self) -> bool {
        ["flow_id", "group"].into_iter().all(|column| self.wanted(column).is_none())
    }

    /// Returns whether the filters accept a group or one of its flows.
    fn accepts_group(&self, group: &str) -> bool {
        let of_flow = self.wanted("flow_id").is_none_or(|flow| group_of(flow) == group);
        of_flow && self.accepts("group", group)
    }

    /// Returns the selected points, ascending.
    pub(super) fn points(&self) -> Vec<u32> {
        let ids: BTreeSet<u32> = self.trials.iter().map(|end| end.point_id).collect();
        ids.into_iter().collect()
    }

    /// Returns all points of the run that the filters accept, ascending, including those without a selected trial.
    pub(super) fn planned_points(&self) -> Vec<u32> {
        let accepts = |id: u32, column: &str, value: &str| match column {
            "point_id" => id.to_string() == value,
            factor => !self.is_factor(factor) || self.level(id, factor) == Some(value),
        };
        let is_planned = |id: &u32| {
            self.request.filters.iter().all(|(column, value)| accepts(*id, column, value))
        };
        self.points.keys().copied().filter(is_planned).collect()
    }

    /// Returns the factors in which the selected points differ.
    pub(super) fn varying_factors(&self) -> Vec<&str> {
        self.varying.iter().map(String::as_str).collect()
    }

    /// Returns the factors in which these points differ.
    pub(super) fn factors_of(&self, points: &[u32]) -> Vec<&str> {
        let differs = |factor: &&str| {
            let levels: BTreeSet<_> = points.iter().map(|id| self.level(*id, factor)).collect();
            levels.len() > 1
        };
        self.factors.iter().map(String::as_str).filter(differs).collect()
    }

    /// Returns the name of a point: its levels of the varying factors.
    pub(super) fn point_name(&self, point_id: u32) -> String {
        let levels =
            self.varying_factors().into_iter().filter_map(|factor| self.level(point_id, factor));
        levels.collect::<Vec<_>>().join(", ")
    }

    /// Returns the factors that name the points; empty for a single point.
    pub(super) fn point_factors(&self) -> String {
        self.varying_factors().join(", ")
    }

    /// Returns a common name of several points: the levels that only these points share, otherwise the levels that they share, otherwise
    /// all their names.
    pub(super) fn common_name(&self, points: &BTreeSet<u32>) -> String {
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
        let common: Vec<&str> = self.varying_factors().into_iter().filter(shared).collect();
        let telling: Vec<&str> = common.iter().copied().filter(own).collect();
        let named = if telling.is_empty() { common } else { telling };
        let levels = |id: &u32| named.iter().filter_map(|f| self.level(*id, f)).collect::<Vec<_>>();
        let Some(first) = points.first().filter(|_| !named.is_empty()) else {
            return points.iter().map(|id| self.point_name(*id)).collect::<Vec<_>>().join("; ");
        };
        levels(first).join(", ")
    }

    /// Returns the file name: kind, filters and, if there are several points, the point.
    pub(super) fn stem(&self, end: Option<&TrialEnd>) -> String {
        let Request { filters, metrics, trial_filter, .. } = &self.request;
        let Request { x, y, by, .. } = &self.request;
        let axes = [("x", x), ("y", y), ("by", by)];
        let axes =
            axes.iter().filter_map(|(axis, factor)| Some(format!("{axis}={}", factor.as_ref()?)));
        let value = |column: &str, value: &str| self.file_part(column, value, str::to_owned);
        let chosen = filters.iter().map(|(column, of)| format!("{column}={}", value(column, of)));
        let chosen = chosen.chain(axes);
        let metrics = metrics.iter().map(|metric| format!("metric={metric}"));
        let trials =
            [(trial_filter.include_failed, "include-failed"), (trial_filter.only_ok, "only-ok")];
        let trials = trials.iter().filter(|(set, _)| *set).map(|(_, name)| (*name).to_owned());
        let level = |id: u32, factor: &str| {
            let level = self.level(id, factor)?;
            Some(self.file_part(factor, level, |level| level.replace(", ", "-")))
        };
        let levels = end.map(|end| {
            let factors = self.varying_factors().into_iter();
            factors.filter_map(|factor| level(end.point_id, factor)).collect::<Vec<_>>().join("-")
        });
        let parts = chosen.chain(metrics).chain(trials).chain(levels);
        let parts = parts.filter(|part| !part.is_empty());
        parts.fold(self.request.kind.name().to_owned(), |stem, part| {
            format!("{stem}-{}", plain(&part))
        })
    }

    /// Returns a level, as `text` writes it, as part of a file name. If another level of the run would become the same part, adds a piece
    /// of the level's digest. A level that is valid in a file name does not change.
    pub(super) fn file_part(
        &self,
        factor: &str,
        level: &str,
        text: impl Fn(&str) -> String,
    ) -> String {
        let part = plain(&text(level));
        let mut others = self.points.keys().filter_map(|id| self.level(*id, factor));
        if part == level || !others.any(|other| other != level && plain(&text(other)) == part) {
            return part;
        }
        let digest = plan::digest(level);
        format!("{part}-{}", digest.get(..8).unwrap_or(&digest))
    }

    /// Returns the first selected trial of every point.
    pub(super) fn first_trials(&self) -> Vec<&TrialEnd> {
        let mut seen = BTreeSet::new();
        self.trials.iter().filter(|end| seen.insert(end.point_id)).collect()
    }

    /// Returns the selected trials of a point.
    pub(super) fn trials_of(&self, point_id: u32) -> Vec<&TrialEnd> {
        self.trials_at(point_id).iter().collect()
    }

    fn trials_at(&self, point_id: u32) -> &[TrialEnd] {
        with_key(&self.trials, point_id, |end| end.point_id)
    }

    /// Returns the measured phases that the filters accept, from the first selected trial that has any. All points share the names of
    /// phases.
    pub(super) fn phases(&self) -> Vec<PhaseRecord> {
        self.phases_of(&self.trials)
    }

    /// As [`Self::phases`], from these trials. The length of phases may differ between points.
    fn phases_of(&self, trials: &[TrialEnd]) -> Vec<PhaseRecord> {
        let first = trials.iter().find(|end| !end.phases.is_empty());
        let all = first.map_or(vec![], |end| end.phases.clone());
        all.into_iter().filter(|p| p.measure && self.accepts("phase", &p.name)).collect()
    }

    /// Returns start and end of a phase at a point, in seconds since the start of a trial.
    fn span(&self, point_id: u32, phase: &str) -> Option<(f64, f64)> {
        let phases = self.phases_of(self.trials_at(point_id));
        Some(phases.iter().find(|record| record.name == phase)?.span_s())
    }

    /// Returns a point's plan, if the run's plan can be read.
    pub(super) fn plan(&self, point_id: u32) -> Option<&Plan> {
        self.plans.get(&point_id)
    }

    /// Returns the names of a point's flow groups.
    pub(super) fn groups(&self, point_id: Option<u32>) -> Vec<String> {
        let plan = point_id.and_then(|id| self.plan(id));
        plan.map_or(vec![], |plan| plan.flows.keys().cloned().collect())
    }

    /// Returns the summary of the selected trials.
    pub(super) fn summary(&self) -> Result<Summary> {
        let chosen: BTreeSet<(u32, u16)> =
            self.trials.iter().map(|end| (end.point_id, end.trial)).collect();
        let includes = |end: &TrialEnd| chosen.contains(&(end.point_id, end.trial));
        Ok(compute_of(&self.run, self.request.trial_filter, includes)?)
    }

    /// Returns the congestion controls of the groups in these trials.
    pub(super) fn cc_names(&self, trials: &[&TrialEnd]) -> Result<CcNames> {
        Ok(CcNames::new(sender_ccs(&self.run, trials)?, self.algorithms.clone()))
    }

    /// Returns the groups that the plan schedules for most of a phase, with their number of flows.
    pub(super) fn running_groups(&self, point_id: u32, phase: &str) -> BTreeMap<&str, u32> {
        let Some((from_s, to_s)) = self.span(point_id, phase) else { return BTreeMap::new() };
        let inside = |(_, group): &(&str, Group)| {
            let (start_s, stop_s) = group.span;
            stop_s.min(to_s) - start_s.max(from_s) > 0.5 * (to_s - from_s)
        };
        let running = self.schedule.groups(point_id).filter(inside);
        running.map(|(name, group)| (name, group.flows)).collect()
    }

    /// Returns the running groups whose data passes this group's bottleneck.
    pub(super) fn groups_sharing_bottleneck(
        &self,
        point_id: u32,
        group: &str,
        phase: &str,
    ) -> BTreeMap<&str, u32> {
        let limits = self.limits(point_id, group, phase);
        let network = self.schedule.network(point_id);
        let Some((network, limits)) = network.zip(limits) else { return BTreeMap::new() };
        let mut running = self.running_groups(point_id, phase);
        running.retain(|other, _| network.may_pass(other, limits.link));
        running
    }

    /// Returns the group under test if there are several points: the one that runs in most phases. The others are competitors.
    pub(super) fn group_under_test(&self, groups: &[String]) -> Option<String> {
        let first = *self.points().first()?;
        let phases = self.phases();
        let present = |group: &&String| {
            phases
                .iter()
                .filter(|p| self.running_groups(first, &p.name).contains_key(group.as_str()))
                .count()
        };
        // The first of equal ones.
        groups.iter().filter(|group| self.accepts_group(group)).rev().max_by_key(present).cloned()
    }

    /// Returns the accepted phase in which most flows run.
    pub(super) fn busiest_phase(&self, point_id: u32) -> Option<PhaseRecord> {
        let flows =
            |phase: &PhaseRecord| self.running_groups(point_id, &phase.name).values().sum::<u32>();
        // The first of equal ones.
        self.phases().into_iter().rev().max_by_key(flows)
    }

    /// Returns the bottleneck of a group's flows in a phase, with the rate and the base RTT of summaries.
    pub(super) fn path(&self, point_id: u32, group: &str, phase: &str) -> Option<BottleneckPath> {
        let plan = self.plan(point_id)?;
        let (_, to_s) = self.span(point_id, phase)?;
        let limits = self.limits(point_id, group, phase)?;
        let queue_bytes = full_queue_bytes(plan, limits, to_s);
        Some(BottleneckPath {
            rate_bps: limits.rate_bps,
            payload_share: payload_share(plan.links.get(limits.link)?),
            base_rtt_ms: limits.base_rtt_us.map(|us| us / 1e3),
            full_queue_ms: queue_bytes.map(|bytes| bytes * 8.0 / limits.rate_bps * 1e3),
        })
    }

    /// Returns what a group's path permits in a phase.
    fn limits(&self, point_id: u32, group: &str, phase: &str) -> Option<PathLimits<'_>> {
        let span = self.span(point_id, phase)?;
        let curve = |link: &str| self.run.trace_capacities().curve(point_id, link);
        self.schedule.network(point_id)?.limits(group, span, &curve)
    }

    /// Returns the error for a kind without data. [`super::draw`] adds the kinds that have data.
    pub(super) fn no_data(&self, reason: &str) -> FigureError {
        FigureError::NoData {
            path: self.run.path().to_path_buf(),
            kind: self.request.kind.name(),
            reason: reason.to_owned(),
            possible: "this run has no data for any kind".to_owned(),
        }
    }

    /// Keeps a few trials, which suffice to check whether a figure can be drawn: the first trial of the first point and, for each varying
    /// factor, of one point that differs in it, so that the same factors vary.
    pub(super) fn sample_trials(mut self) -> Self {
        let first = self.first_trials();
        let level =
            |end: &TrialEnd, factor: &str| self.level(end.point_id, factor).map(str::to_owned);
        let other = |factor: &str| {
            let of_first = level(first.first()?, factor);
            first.iter().find(|end| level(end, factor) != of_first).copied()
        };
        let others = self.varying_factors().into_iter().filter_map(other);
        let kept: BTreeSet<u32> =
            first.first().copied().into_iter().chain(others).map(|end| end.point_id).collect();
        let kept = first.into_iter().filter(|end| kept.contains(&end.point_id)).cloned().collect();
        self.trials = kept;
        self
    }

    /// Returns whether this column can filter figures of this kind.
    pub(super) fn can_filter_by(&self, kind: Kind, column: &str) -> bool {
        !self.is_row_column(column) || columns(kind).contains(&column)
    }
}

/// Returns the bytes that the full queue of a bottleneck takes on the line. `None` if no limit of the discipline determines them, if the
/// limit changes before `until_s`, or if the policer in front of the queue has the lower rate at some time, so that the queue does not fill.
fn full_queue_bytes(plan: &Plan, limits: PathLimits<'_>, until_s: f64) -> Option<f64> {
    let link = plan.links.get(limits.link)?;
    let rate = resolve::drain_rate(link)?;
    let key = format!("links.{}.queue.limit", limits.link);
    let changes_limit = |change: &Change| {
        let is_later = change.at.is_some_and(|at| at.as_secs_f64() >= until_s);
        change.set.contains_key(&key) && !is_later
    };
    if limits.is_policed || plan.changes.iter().any(changes_limit) {
        return None;
    }
    // Limits in BDP refer to the initial rate and to the longest base RTT of all flows and probes.
    let rtt = resolve::base_rtt(plan, limits.link);
    let queue = resolve::resolve_queue(link.queue.as_ref(), Some(rate), rtt);
    let bytes = match queue.fifo_limit()? {
        (Limit::Bytes(bytes), _) => bytes.get() as f64,
        (Limit::Packets(packets), _) => f64::from(packets.get()) * FRAME_BYTES as f64,
        _ => return None,
    };
    // Limits count an Ethernet header; on the line, a packet has the link's overhead instead.
    Some(line_bytes(bytes, bytes / FRAME_BYTES as f64, extra_bytes(link)))
}

/// Replaces characters that do not belong in file names with `_`.
pub(super) fn plain(text: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || "._-=".contains(c) { c } else { '_' };
    text.chars().map(safe).collect()
}

pub(super) fn comma_separated<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Returns the style index of each flow, and whether the flow has it alone. If there are more flows than styles, flows share their group's
/// style.
pub(super) fn flow_styles(flows: &[String]) -> Vec<(usize, bool)> {
    let groups: BTreeSet<&str> = flows.iter().map(|flow| group_of(flow)).collect();
    let of_group = |flow: &str| groups.iter().position(|group| *group == group_of(flow));
    let each = flows.len() <= super::canvas::PALETTE.len();
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
    fn bdp_is_in_frames() {
        let payload_share = 1448.0 / 1514.0;
        let path = BottleneckPath {
            rate_bps: 100e6,
            payload_share,
            base_rtt_ms: Some(10.0),
            full_queue_ms: Some(15.0),
        };
        let packets = path.bdp_packets(10.0);
        assert!((packets - 82.56).abs() < 0.01, "{packets}");
        assert!((path.payload_bps() / 1e6 - 95.64).abs() < 0.01, "{}", path.payload_bps());
    }

    #[test]
    fn many_flows_share_group_colours() {
        let flows = |groups: &[(&str, usize)]| -> Vec<String> {
            let of = |(group, n): &(&str, usize)| (0..*n).map(|i| format!("{group}/{i}")).collect();
            groups.iter().flat_map(|group| -> Vec<String> { of(group) }).collect()
        };
        assert_eq!(flow_styles(&flows(&[("a", 1), ("b", 1)])), [(0, true), (1, true)]);
        let many = flow_styles(&flows(&[("a", 5), ("b", 5)]));
        assert!(many[..5].iter().all(|look| *look == (0, false)));
        assert!(many[5..].iter().all(|look| *look == (1, false)));
    }
}
