//! Computes the metrics of each trial, phase, flow, group, probe and link from aggregated rows.
//!
//! - **Throughput** of a group is receiver goodput: bytes divided by the measured seconds that its intervals cover in the phase (the
//!   time in which flows overlap counts once), not by the requested seconds. If no receiver reported intervals,
//!   it is computed from the bytes acknowledged between the first and the last sample around the phase. If there are no samples either,
//!   it is computed from the bytes that senders passed to the kernel. In an import, this applies to each flow whose receiver reported no
//!   intervals in the trial, because there may be no file of the receiver. A note reports these cases. The throughput of a flow has the same
//!   denominator, so flows add up to their group; a flow without data counts as 0 while its group runs. In an import, which does not
//!   know when a flow was to run, a flow without data in a phase does not count there. For all flows together, it is all
//!   bytes inside the phase divided by the phase's length, so it cannot exceed the link rate. An interval that crosses an end of the
//!   phase counts with the part that is inside.
//! - **coverage_share** of a group is the time that its throughput covers, divided by the time the plan lets it run.
//! - A **group runs in a phase** if the plan schedules it there; queues that drain after its end do not count. If the
//!   plan cannot be read, a group runs in a phase if its intervals cover half of it, or a tenth with at least three
//!   intervals.
//! - **srtt** is the mean over all samples of the senders' data sockets, as smoothed by the kernel.
//! - **Retransmissions**, and **drops** and **marks** of links, are the increase of their counters over the phase: from the
//!   first sample at or after its beginning to the first at or after its end, or the last sample if there is none. Counters of sockets
//!   begin with 0 or, in an import, with the flow's first sample. Those of links begin with the sample at the start of the trial, because
//!   packets pass a link before; without such a sample, and in the simulator, with 0.
//!   Those of sockets are summed.
//! - **packet_scheduling_error** and **step_scheduling_error** of a link cover the whole trial; their phase is `(trial)`.
//! - **utilisation** of a link is the bytes sent, including the link's overhead, divided by the bytes that its mean rate allows or,
//!   for a link with a trace, that the trace offered. **queue_delay** is the time to send the backlog, including this overhead, at
//!   the rate of that moment, or as the trace continues. Links without a rate have neither.
//! - **Fairness** is Jain's index over the mean throughput of each flow (`_of_mean`). Indices, utilities and power that are
//!   computed in time bins and then averaged are in [`super::sampled`]. Metrics derived from these metrics and the plan's paths are
//!   in [`super::derived`].

use std::collections::{BTreeMap, BTreeSet};

use ccbench_proto::metric::{Scope, WHOLE_TRIAL};
use ccbench_proto::plan::ProbeKind;
use ccbench_proto::wire::TimingKind;
use polars::prelude::{Expr, col, lit};

use super::flows::{Flows, Sampled, Transferred};
use super::network::Curves;
use super::query::{self, Lines, count, samples, sum};
use super::rows::Names;
use super::sampled::{self, BinnedFlows};
use super::schedule::{Schedule, group_of};
use super::settling::{self, BIN_S};
use super::statistics::{self, jain_index};
use super::tables::PhaseRow;
use super::totals::GroupTotals;
use super::{
    cc_states, completion, convergence, derived, fetches, harm, one_way_delay, recovery,
    responsiveness,
};
use crate::backend::RunBackend;
use crate::error::Result;
use crate::journal::{PhaseRecord, TrialEnd};
use crate::parallel::in_parallel;
use crate::store::RunDir;

mod counters;
mod group_phase;
mod links;

use counters::{AFTER_PHASES, FirstSamples};

/// Columns of `probes` and their metrics.
const PROBE_METRICS: [(&str, &str); 5] = [
    ("rtt_us", "rtt"),
    ("dns_us", "dns_time"),
    ("connect_us", "connect_time"),
    ("ttfb_us", "first_byte_time"),
    ("total_us", "fetch_time"),
];

/// Metrics of the samples of senders' sockets, and their units.
const SOCKET_METRICS: [(&str, &str); 5] = [
    ("srtt", "us"),
    ("cwnd", "packets"),
    ("in_flight", "packets"),
    ("delivery_rate", "bit/s"),
    ("ecn_mode", "1"),
];

/// Point and repetition.
type Trial = (u32, u16);
/// Trial, phase, group.
type GroupKey = (Trial, String, String);

/// The flows of one group in one phase, by flow.
#[derive(Debug, Default)]
struct GroupPhase {
    received: BTreeMap<String, Transferred>,
    /// Some of `received` is what senders reported.
    has_senders: bool,
    sent: BTreeMap<String, Transferred>,
    acked: BTreeMap<String, Transferred>,
    retransmissions: BTreeMap<String, f64>,
    rtos: BTreeMap<String, f64>,
    segments: BTreeMap<String, f64>,
}

/// Metrics, and notes for the reader.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) rows: Vec<PhaseRow>,
    pub(super) notes: Vec<String>,
    /// As in the summary.
    pub(super) completion_bounds_us: BTreeMap<(u32, String), f64>,
}

/// Returns all metrics of these trials.
pub(super) fn measure(run: &RunDir, trials: &[&TrialEnd], schedule: &Schedule) -> Result<Measured> {
    let mut measured = Measured::default();
    let step = run.observer.begin("measuring", trials.len());
    for of_trial in in_parallel(trials, |end| step.trial(|| measure_trial(run, end, schedule))) {
        let Measured { rows, notes, completion_bounds_us } = of_trial?;
        measured.rows.extend(rows);
        measured.notes.extend(notes);
        for (group, bound_us) in completion_bounds_us {
            let most_us = measured.completion_bounds_us.entry(group).or_default();
            *most_us = most_us.max(bound_us);
        }
    }
    let timeline = Timeline::new(trials);
    let mut out = RowCollector { timeline: &timeline, schedule, measured: &mut measured };
    let is_simulated = matches!(run.backend(), RunBackend::Simulator { .. });
    for batch in query::batches(trials) {
        if let Some(lines) = probes(run, batch)? {
            out.probes(&lines);
        }
        if let Some(lines) = links::read(run, batch, schedule)? {
            out.links(&lines, is_simulated);
        }
    }
    Ok(measured)
}

/// Returns the flow metrics of each trial, and its flows in time bins.
pub(crate) fn flows_of(
    run: &RunDir,
    trials: &[&TrialEnd],
    schedule: &Schedule,
) -> Vec<Result<(Vec<PhaseRow>, BinnedFlows)>> {
    let of_trial = |end: &&TrialEnd| measure_flows(run, end, schedule);
    let found = in_parallel(trials, of_trial).into_iter();
    found.map(|found| found.map(|(measured, bins)| (measured.rows, bins))).collect()
}

/// Returns the metrics of one trial that are computed row by row.
fn measure_trial(run: &RunDir, end: &TrialEnd, schedule: &Schedule) -> Result<Measured> {
    let (mut measured, _) = measure_flows(run, end, schedule)?;
    measured.rows.extend(recovery::recovery_times(run, end, schedule)?);
    measured.rows.extend(cc_states::cc_states(run, end, schedule)?);
    let completions = completion::completion_times(run, end, schedule)?;
    measured.rows.extend(completions.rows);
    let bounds_us = completions.bounds_us.into_iter();
    let of_point = bounds_us.map(|(group, bound_us)| ((end.point_id, group), bound_us));
    measured.completion_bounds_us.extend(of_point);
    measured.rows.extend(fetches::fetches(run, end, schedule)?);
    measured.rows.extend(responsiveness::responsiveness(run, end, schedule)?);
    let curve = |link: &str| run.trace_capacities().curve(end.point_id, link);
    measured.rows.extend(one_way_delay::one_way_delays(run, end, schedule, &curve)?);
    Ok(measured)
}

/// Returns the metrics of one trial without those of links and probes, and its flows in time bins.
fn measure_flows(
    run: &RunDir,
    end: &TrialEnd,
    schedule: &Schedule,
) -> Result<(Measured, BinnedFlows)> {
    let mut measured = Measured::default();
    let mut groups: BTreeMap<GroupKey, GroupPhase> = BTreeMap::new();
    let mut names: BTreeMap<(Trial, String), BTreeSet<String>> = BTreeMap::new();
    let trial = (end.point_id, end.trial);
    let timeline = Timeline::new(&[end]);
    let Flows { reported, sampled, bins, starts_s } = Flows::read(run, end)?;
    for ([phase, group, flow], reported) in reported {
        names.entry((trial, group.clone())).or_default().insert(flow.clone());
        let phase = groups.entry((trial, phase, group)).or_default();
        phase.received.extend(reported.received.map(|transferred| (flow.clone(), transferred)));
        phase.sent.extend(reported.sent.map(|transferred| (flow.clone(), transferred)));
    }
    let is_import = matches!(run.backend(), RunBackend::Import);
    add_socket_counters(&sampled, trial, (&timeline, is_import), &mut groups, &mut names);
    if is_import {
        group_phase::add_senders(&mut groups);
    }
    let mut out = RowCollector { timeline: &timeline, schedule, measured: &mut measured };
    out.throughputs(&groups, &names, is_import);
    out.samples(trial, sampled, &groups);
    let curve = |link: &str| run.trace_capacities().curve(end.point_id, link);
    out.binned(trial, &bins, &starts_s, &curve);
    for row in query::timing(run, end)? {
        out.timing(trial, &row);
    }
    let nth = |row: &PhaseRow| timeline.phase(trial, &row.phase).map(|at| at.0);
    let harm = harm::harm(&measured.rows, nth);
    let derived = derived::derived(&measured.rows, &end.phases, schedule, &curve);
    measured.rows.extend(harm.into_iter().chain(derived));
    Ok((measured, bins))
}

fn probes(run: &RunDir, trials: &[&TrialEnd]) -> Result<Option<Lines>> {
    let known = query::columns(run, "probes", trials)?;
    let there = PROBE_METRICS.iter().filter(|(column, _)| known.iter().any(|name| name == column));
    // A failed fetch has the times that it reached: its connection, or all times if it got an error page.
    let answered = |column: &str| col(column).filter(col("lost").not());
    let mut aggregates: Vec<Expr> =
        there.map(|(column, _)| samples(answered(column), column)).collect();
    aggregates.extend([sum("lost"), count("seq")]);
    // A row of a stream is an interval: it is neither answered nor lost, whatever part of the packets arrived.
    let has_answers = col("kind").neq(lit(ProbeKind::UdpStream.as_str()));
    query::group(run, "probes", trials, has_answers, &["probe_id"], aggregates)
}

/// The phases of each trial.
struct Timeline<'a>(BTreeMap<Trial, &'a [PhaseRecord]>);

impl<'a> Timeline<'a> {
    fn new(trials: &[&'a TrialEnd]) -> Self {
        Self(trials.iter().map(|end| ((end.point_id, end.trial), end.phases.as_slice())).collect())
    }

    /// Returns position and record of a phase.
    fn phase(&self, trial: Trial, name: &str) -> Option<(usize, &'a PhaseRecord)> {
        self.0.get(&trial)?.iter().enumerate().find(|(_, phase)| phase.name == name)
    }

    /// Returns the position of the rows' phase. Rows after the last phase have no phase name; their position is [`AFTER_PHASES`].
    fn position(&self, trial: Trial, name: &str) -> Option<usize> {
        if name.is_empty() { Some(AFTER_PHASES) } else { self.phase(trial, name).map(|at| at.0) }
    }
}

/// Computes the increase of cumulative socket counters in each phase. Acknowledged bytes, which are divided by the time between samples,
/// count from the last sample before the phase, or the flow's first one, to the last one in it. In an import, all counters begin with the
/// flow's first sample: the connection may be older than the trial.
fn add_socket_counters(
    sampled: &[(Names, Sampled)],
    trial: Trial,
    (timeline, is_import): (&Timeline<'_>, bool),
    groups: &mut BTreeMap<GroupKey, GroupPhase>,
    names: &mut BTreeMap<(Trial, String), BTreeSet<String>>,
) {
    let mut order: Vec<(usize, &(Names, Sampled))> = sampled
        .iter()
        .filter_map(|row| Some((timeline.position(trial, &row.0[0])?, row)))
        .collect();
    order.sort_by_key(|(position, _)| *position);
    let mut firsts: BTreeMap<&str, FirstSamples<4>> = BTreeMap::new();
    for (position, ([_, _, flow], sampled)) in &order {
        firsts.entry(flow).or_default().add(*position, sampled.first_counters);
    }
    let mut before: BTreeMap<&str, [f64; 5]> = BTreeMap::new();
    for (position, ([phase, group, flow], sampled)) in order {
        if position == AFTER_PHASES {
            continue;
        }
        let last = sampled.counters;
        let at_end = firsts.get(flow.as_str()).map_or(last, |first| first.at_end(position, last));
        let [[retrans, segments, _, rtos], [_, _, acked, _]] = [at_end, last];
        let of_first = sampled.first_counters.map(|counter| counter.unwrap_or(0.0));
        let [old_retrans, old_segments, _, old_rtos] =
            if is_import { of_first } else { Default::default() };
        let first_s = sampled.span_s.map_or(0.0, |(first_s, _)| first_s);
        // What a socket acknowledged before its first sample took a time that is unknown.
        let begin = [old_retrans, old_segments, of_first[2], old_rtos, first_s];
        let past = before.entry(flow).or_insert(begin);
        let now = [
            retrans.unwrap_or(past[0]),
            segments.unwrap_or(past[1]),
            acked.unwrap_or(past[2]),
            rtos.unwrap_or(past[3]),
            sampled.span_s.map_or(past[4], |(_, last_s)| last_s),
        ];
        let [new_retrans, segments, bytes, new_rtos, seconds] =
            std::array::from_fn(|i| (now[i] - past[i]).max(0.0));
        *past = now;
        names.entry((trial, group.clone())).or_default().insert(flow.clone());
        let phase = groups.entry((trial, phase.clone(), group.clone())).or_default();
        if retrans.is_some() {
            *phase.retransmissions.entry(flow.clone()).or_default() += new_retrans;
        }
        if rtos.is_some() {
            *phase.rtos.entry(flow.clone()).or_default() += new_rtos;
        }
        *phase.segments.entry(flow.clone()).or_default() += segments;
        let acked = phase.acked.entry(flow.clone()).or_default();
        acked.bytes += bytes;
        acked.inside_bytes += bytes;
        acked.seconds = acked.seconds.max(seconds);
        acked.reach((now[4] - seconds, now[4]));
        acked.intervals += sampled.rows;
    }
}

/// Collects the rows of measured phases.
struct RowCollector<'a> {
    timeline: &'a Timeline<'a>,
    schedule: &'a Schedule,
    measured: &'a mut Measured,
}

/// Trial, phase, scope and subject of a row.
type Place<'a> = (Trial, &'a str, Scope, &'a str);

impl RowCollector<'_> {
    fn row(
        &mut self,
        place: Place<'_>,
        metric: &'static str,
        unit: &'static str,
        stat: &'static str,
        value: f64,
        n: u32,
    ) {
        let ((point_id, trial), phase, scope, subject) = place;
        self.measured.rows.push(PhaseRow {
            point_id,
            trial,
            phase: phase.to_owned(),
            scope,
            subject: subject.to_owned(),
            metric,
            unit,
            stat,
            value,
            n,
        });
    }

    fn measured_phase(&self, trial: Trial, phase: &str) -> Option<&PhaseRecord> {
        self.timeline.phase(trial, phase).map(|(_, record)| record).filter(|record| record.measure)
    }

    /// Returns the seconds that a group's intervals cover; `None` if it does not run in this phase, or the phase is not measured.
    fn running_s(&self, trial: Trial, phase: &str, group: &str, data: &GroupPhase) -> Option<f64> {
        let record = self.measured_phase(trial, phase)?;
        data.covered_s(record, self.schedule.allows(trial.0, group, record.span_s()))
    }

    /// Adds throughput, fairness and retransmissions of flows, groups and all flows together.
    fn throughputs(
        &mut self,
        groups: &BTreeMap<GroupKey, GroupPhase>,
        flows: &BTreeMap<(Trial, String), BTreeSet<String>>,
        is_import: bool,
    ) {
        let mut net: BTreeMap<(Trial, &str), GroupTotals> = BTreeMap::new();
        for ((trial, phase, group), data) in groups {
            let Some(seconds) = self.running_s(*trial, phase, group, data) else {
                continue;
            };
            let (transferred, caveat) = data.transferred();
            if let Some(caveat) = caveat {
                let (point_id, nr) = trial;
                let note = format!(
                    "point {point_id}, trial {nr}, {phase}: throughput of `{group}` is {caveat}"
                );
                self.measured.notes.push(note);
            }
            let known = flows.get(&(*trial, group.clone())).into_iter().flatten();
            // Without a plan, the group's other flows may have run in other phases.
            let known = known.filter(|flow| !is_import || data.has(flow));
            let bytes = |flow: &String| transferred.get(flow).map_or(0.0, |c| c.bytes);
            let flow_bytes: Vec<(&String, f64)> = known.map(|flow| (flow, bytes(flow))).collect();
            for (flow, bytes) in &flow_bytes {
                let n = transferred.get(*flow).map_or(0, |c| c.intervals);
                let place = (*trial, phase.as_str(), Scope::Flow, flow.as_str());
                self.row(place, "throughput", "bit/s", "mean", bytes * 8.0 / seconds, n);
                if let Some(packets) = data.retransmissions.get(*flow) {
                    self.row(place, "retransmissions", "packets", "sum", *packets, 1);
                }
                if let Some(rtos) = data.rtos.get(*flow) {
                    self.row(place, "rtos", "1", "sum", *rtos, 1);
                }
            }
            let totals = GroupTotals {
                bytes: flow_bytes.iter().map(|(_, bytes)| *bytes).collect(),
                retransmissions: data.retransmissions.values().copied().collect(),
                rtos: data.rtos.values().copied().collect(),
                segments: data.segments.values().sum(),
            };
            let place = (*trial, phase.as_str(), Scope::Group, group.as_str());
            self.totals(place, &totals, seconds);
            self.coverage(place, seconds, transferred);
            let inside =
                |(flow, _): &(&String, f64)| transferred.get(*flow).map_or(0.0, |c| c.inside_bytes);
            let bytes = flow_bytes.iter().map(inside).collect();
            net.entry((*trial, phase)).or_default().add(GroupTotals { bytes, ..totals });
        }
        for ((trial, phase), all) in &net {
            let length_s = self.measured_phase(*trial, phase).map_or(0.0, PhaseRecord::seconds);
            self.totals((*trial, phase, Scope::Net, "all"), all, length_s);
        }
    }

    /// Adds the share of a group's planned time in this phase that its throughput covers.
    fn coverage(
        &mut self,
        place: Place<'_>,
        seconds: f64,
        transferred: &BTreeMap<String, Transferred>,
    ) {
        let (trial, phase, _, group) = place;
        let planned_s = self
            .measured_phase(trial, phase)
            .map_or(0.0, |record| self.schedule.planned_s(trial.0, group, record.span_s()));
        if planned_s > 0.0 {
            let n = transferred.values().map(|c| c.intervals).sum();
            self.row(place, "coverage_share", "1", "mean", seconds / planned_s, n);
        }
    }

    /// Adds metrics of several flows together; `seconds` is the denominator of their throughput.
    fn totals(&mut self, place: Place<'_>, all: &GroupTotals, seconds: f64) {
        let flows = all.bytes.len() as u32;
        let total = all.bytes.iter().sum::<f64>() * 8.0 / seconds;
        self.row(place, "throughput_sum", "bit/s", "mean", total, flows);
        let per_flow = total / f64::from(flows.max(1));
        self.row(place, "throughput_per_flow_mean", "bit/s", "mean", per_flow, flows);
        if let Some(index) = jain_index(&all.bytes) {
            self.row(place, "jain_fairness_of_mean", "1", "mean", index, flows);
        }
        if !all.rtos.is_empty() {
            let rtos = all.rtos.iter().sum();
            self.row(place, "rtos", "1", "sum", rtos, all.rtos.len() as u32);
        }
        if all.retransmissions.is_empty() {
            return;
        }
        let packets: f64 = all.retransmissions.iter().sum();
        let sockets = all.retransmissions.len() as u32;
        self.row(place, "retransmissions", "packets", "sum", packets, sockets);
        if all.segments > 0.0 {
            self.row(place, "retransmission_share", "1", "mean", packets / all.segments, sockets);
        }
    }

    /// Adds samples of the senders' sockets, in phases in which the group runs.
    fn samples(
        &mut self,
        trial: Trial,
        sampled: Vec<(Names, Sampled)>,
        groups: &BTreeMap<GroupKey, GroupPhase>,
    ) {
        let mut of_group: Vec<([String; 2], [Vec<f64>; SOCKET_METRICS.len()])> = Vec::new();
        for ([phase, group, flow], sampled) in sampled {
            let data = groups.get(&(trial, phase.clone(), group.clone()));
            if data.and_then(|data| self.running_s(trial, &phase, &group, data)).is_none() {
                continue;
            }
            let Sampled { srtt_us, cwnd_pkts, in_flight_pkts, delivery_rate_bps, ecn_mode, .. } =
                sampled;
            let mut values = [srtt_us, cwnd_pkts, in_flight_pkts, delivery_rate_bps, ecn_mode];
            self.statistics((trial, &phase, Scope::Flow, &flow), &mut values);
            // Sorted by phase, then group.
            match of_group.last_mut() {
                Some(last) if last.0[0] == phase && last.0[1] == group => {
                    for (all, values) in last.1.iter_mut().zip(&values) {
                        all.extend_from_slice(values);
                    }
                }
                _ => of_group.push(([phase, group], values)),
            }
        }
        for ([phase, group], mut values) in of_group {
            self.statistics((trial, &phase, Scope::Group, &group), &mut values);
        }
    }

    /// Adds all statistics of [`SOCKET_METRICS`]. A mode is not a quantity, so only its range is added.
    fn statistics(&mut self, place: Place<'_>, values: &mut [Vec<f64>; SOCKET_METRICS.len()]) {
        for ((metric, unit), values) in SOCKET_METRICS.into_iter().zip(values) {
            let n = values.len() as u32;
            let found = statistics::sample_stats(values);
            let of = |stat: &str| found.iter().find(|(name, _)| *name == stat).map(|(_, v)| *v);
            let spread = of("std").zip(of("mean").filter(|mean| *mean > 0.0));
            let cov = spread.map(|(std, mean)| std / mean);
            let has = |stat: &str| metric != "ecn_mode" || ["min", "max"].contains(&stat);
            for (stat, value) in found.into_iter().filter(|(stat, _)| has(stat)) {
                self.row(place, metric, unit, stat, value, n);
            }
            if let Some(cov) = cov.filter(|_| metric == "in_flight") {
                self.row(place, metric, "1", "cov", cov, n);
            }
        }
    }

    fn probes(&mut self, lines: &Lines) {
        for line in 0..lines.len() {
            let (trial, phase, probe) =
                (lines.trial(line), lines.text("phase", line), lines.text("probe_id", line));
            if self.measured_phase(trial, &phase).is_none() {
                continue;
            }
            let place = (trial, phase.as_str(), Scope::Probe, probe.as_str());
            for (column, metric) in PROBE_METRICS {
                let mut answered = lines.samples(column, line);
                for (stat, value) in statistics::sample_stats(&mut answered) {
                    self.row(place, metric, "us", stat, value, answered.len() as u32);
                }
            }
            let sent = lines.count("seq.n", line);
            let lost = lines.number("lost", line).unwrap_or(0.0) / f64::from(sent.max(1));
            self.row(place, "loss_share", "1", "mean", lost, sent);
        }
    }

    /// Adds metrics computed in time bins, and settling times after steps.
    fn binned(
        &mut self,
        trial: Trial,
        bins: &BinnedFlows,
        starts_s: &BTreeMap<String, f64>,
        curves: Curves<'_, '_>,
    ) {
        let phases = self.timeline.0.get(&trial).copied().unwrap_or_default();
        let schedule = self.schedule;
        let runs = |(from_s, to_s): (f64, f64)| {
            move |flow: &str| schedule.allows(trial.0, group_of(flow), (from_s, to_s))
        };
        let steps = schedule.steps(trial.0, phases);
        let per = (schedule.timescale_s(trial.0) / BIN_S).round() as usize;
        for record in phases.iter().filter(|phase| phase.measure) {
            let (start_s, end_s) = record.span_s();
            let mut numbers = bins.between(start_s, end_s).numbers(runs(record.span_s()), per);
            if !numbers.is_empty() {
                let timescale_us = (per as f64 * BIN_S * 1e6).round();
                numbers.push((None, "timescale", "us", "mean", timescale_us, 1));
            }
            let span = record.span_s();
            let converged =
                convergence::convergence_time_us(bins, starts_s, schedule, trial.0, span, curves);
            if let Some(time) = converged {
                sampled::push_value("convergence_time", "us", time, &mut numbers);
            }
            for (flow, metric, unit, stat, value, n) in numbers {
                let (scope, subject) = flow.map_or((Scope::Net, "all"), |flow| (Scope::Flow, flow));
                self.row((trial, &record.name, scope, subject), metric, unit, stat, value, n);
            }
            let here = steps.iter().filter(|(at_s, _)| (start_s..end_s).contains(at_s));
            let settled = here.map(|span| bins.between(span.0, span.1).settling(runs(*span)));
            for (scope, subject, metric, unit, stat, value, n) in settling::over_steps(settled) {
                self.row((trial, &record.name, scope, &subject), metric, unit, stat, value, n);
            }
        }
    }

    /// Adds the scheduling error of packets and trace steps over the whole trial.
    fn timing(&mut self, trial: Trial, row: &query::TimingRow) {
        let metric = match row.kind {
            Some(TimingKind::Packets) => "packet_scheduling_error",
            Some(TimingKind::Steps) => "step_scheduling_error",
            // The log has no scheduling error. The verdict reports kinds that this build does not know.
            Some(TimingKind::Log | TimingKind::Unspecified) | None => return,
        };
        let place = (trial, WHOLE_TRIAL, Scope::Link, row.link.as_str());
        let n = u32::try_from(row.count).unwrap_or(u32::MAX);
        for (stat, us) in
            [("p50", row.us[0]), ("p90", row.us[1]), ("p99", row.us[2]), ("max", row.us[3])]
        {
            self.row(place, metric, "us", stat, us, n);
        }
    }
}
