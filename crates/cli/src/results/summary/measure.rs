//! From aggregated rows to the metrics of each trial, phase, flow, group, probe and link.
//!
//! - **Throughput** of a group is what its receivers got: bytes over the real seconds that its intervals cover in
//!   the phase (of the flow that covers the most), not over the seconds that were asked for. Where no receiver
//!   reported, it is bytes acknowledged to the senders between the first and the last sample around the phase,
//!   and where that is missing too, what senders handed to the kernel; a note says so. A flow's throughput has
//!   the same denominator, so that flows add up to their group; a flow without data in a phase in which its group
//!   runs counts with 0. Of all flows together it is all bytes over the phase's length, so that it never exceeds
//!   the link.
//! - **coverage_share** of a group is the seconds that its throughput is over, of those in which the plan lets it run.
//! - A **group runs in a phase** if the plan lets it: what drains after a group's end is not a phase of its own. Where
//!   the run's plan cannot be read, it runs in a phase that its intervals cover half, or a tenth with three intervals
//!   or more.
//! - **srtt** is the mean over all samples of the data sockets at the sending side, as the kernel smooths them.
//! - **Retransmissions** are the growth of `total_retrans` from the last sample before the phase (0 at first) to
//!   the last within it, summed over sockets.
//! - **packet_lateness** and **step_lateness** of a link are over the whole trial, under a phase `(trial)`.
//! - **utilisation** of a link is what it sent over its rate (the mean of it, where it changes). Its **queue_delay** at an
//!   instant is how long what waits takes at the rate of that instant; of a link without a rate there is none.
//! - **Fairness** is Jain's index over what each flow got in the phase (`_of_mean`); indices, utilities and power at
//!   every instant and then averaged are in [`super::sampled`].

use std::collections::{BTreeMap, BTreeSet};

use ccbench_proto::metric::WHOLE_TRIAL;
use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::schedule::{self, FlowTask, Point, TrialContext};
use polars::prelude::{Expr, LazyFrame, col, lit};

use super::harm;
use super::query::{self, Lines, count, first, last, stats, sum};
use super::sampled::{Aligned, INSTANT_S};
use super::statistics::jain;
use super::{PhaseRow, Scope};
use crate::results::Result;
use crate::results::journal::{PhaseRecord, TrialEnd};
use crate::results::store::RunDir;

/// Without a plan: covering this share of a phase, a group runs in it.
const MOST_OF_A_PHASE: f64 = 0.5;
/// Covering this share, and with [`ENOUGH_INTERVALS`], too.
const SOME_OF_A_PHASE: f64 = 0.1;
const ENOUGH_INTERVALS: u32 = 3;

/// Columns of probes and their metrics.
const PROBED: [(&str, &str); 5] = [
    ("rtt_us", "rtt"),
    ("dns_us", "dns_time"),
    ("connect_us", "connect_time"),
    ("ttfb_us", "first_byte_time"),
    ("total_us", "fetch_time"),
];

/// Point and repetition.
type Trial = (u32, u16);
/// Trial, phase, group.
type GroupKey = (Trial, String, String);

/// Bytes of one flow in one phase.
#[derive(Debug, Clone, Copy, Default)]
struct Carried {
    bytes: f64,
    seconds: f64,
    intervals: u32,
}

/// What is known of the flows of one group in one phase, by flow.
#[derive(Debug, Default)]
struct GroupPhase {
    received: BTreeMap<String, Carried>,
    sent: BTreeMap<String, Carried>,
    acked: BTreeMap<String, Carried>,
    retransmissions: BTreeMap<String, f64>,
    segments: BTreeMap<String, f64>,
}

/// Metrics, and what a reader must know about them.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) rows: Vec<PhaseRow>,
    pub(super) notes: Vec<String>,
}

/// When the plan lets each group of each point run, in seconds since the trial's beginning.
pub(super) struct Schedule(Option<BTreeMap<(u32, String), (f64, f64)>>);

impl Schedule {
    /// From the run's own plan.
    pub(super) fn of(plan: Option<&CheckedPlan>) -> Self {
        let context = TrialContext::default();
        let spans = |point: Point| {
            let nodes = point.plan.plan().nodes.keys();
            let tasks =
                nodes.flat_map(|node| schedule::task_for(&point.plan, node, &context).clients);
            let span = |task: FlowTask| {
                ((point.id, task.group), (task.start.as_secs_f64(), task.stop.as_secs_f64()))
            };
            tasks.map(span).collect::<Vec<_>>()
        };
        Self(plan.map(|plan| plan.points().into_iter().flat_map(spans).collect()))
    }

    /// Whether a group may run in a phase; `None` if the plan is not known.
    fn allows(&self, point_id: u32, group: &str, phase: &PhaseRecord) -> Option<bool> {
        let span = self.0.as_ref()?.get(&(point_id, group.to_owned()));
        let (begin_s, end_s) = (phase.start_us as f64 / 1e6, phase.end_us as f64 / 1e6);
        Some(span.is_some_and(|(start_s, stop_s)| *start_s < end_s && *stop_s > begin_s))
    }

    /// How many seconds of a phase the plan lets a group run; the whole phase if the plan is not known.
    fn planned_s(&self, point_id: u32, group: &str, phase: &PhaseRecord) -> f64 {
        let spans = self.0.as_ref();
        let span = spans.and_then(|spans| spans.get(&(point_id, group.to_owned())));
        let (begin_s, end_s) = (phase.start_us as f64 / 1e6, phase.end_us as f64 / 1e6);
        span.map_or(end_s - begin_s, |(start_s, stop_s)| stop_s.min(end_s) - start_s.max(begin_s))
    }
}

/// All metrics of these trials.
pub(super) fn measure(run: &RunDir, trials: &[&TrialEnd], schedule: &Schedule) -> Result<Measured> {
    let mut measured = Measured::default();
    let mut groups: BTreeMap<GroupKey, GroupPhase> = BTreeMap::new();
    let mut flows: BTreeMap<(Trial, String), BTreeSet<String>> = BTreeMap::new();
    let timeline = Timeline::new(trials);
    if let Some(lines) = intervals(run, trials)? {
        for line in 0..lines.len() {
            take_interval(&lines, line, &mut groups, &mut flows);
        }
    }
    let senders = query::senders(run, trials)?;
    if let Some(senders) = &senders {
        take_sockets(&sockets(run, senders)?, &timeline, &mut groups, &mut flows);
    }
    let mut out = Out { timeline: &timeline, schedule, measured: &mut measured };
    out.throughputs(&groups, &flows);
    for (scope, keys) in [(Scope::Flow, &["group", "flow_id"][..]), (Scope::Group, &["group"])] {
        if let Some(senders) = &senders {
            let lines = query::of_senders(run, senders, keys, socket_stats())?;
            out.samples(&lines, scope, &groups);
        }
    }
    if let Some(lines) = probes(run, trials)? {
        out.probes(&lines);
    }
    if let Some(lines) = links(run, trials)? {
        out.links(&lines);
    }
    for row in query::timing(run, trials)? {
        out.timing(&row);
    }
    out.sampled(&aligned(run, trials, senders.as_ref())?);
    let nth = |row: &PhaseRow| timeline.phase((row.point_id, row.trial), &row.phase).map(|at| at.0);
    let harm = harm::harm(&measured.rows, nth);
    measured.rows.extend(harm);
    Ok(measured)
}

/// The flows of every measured phase on one grid of instants.
fn aligned(
    run: &RunDir,
    trials: &[&TrialEnd],
    senders: Option<&LazyFrame>,
) -> Result<BTreeMap<(Trial, String), Aligned>> {
    let mut all = BTreeMap::new();
    for end in trials {
        for phase in end.phases.iter().filter(|phase| phase.measure) {
            let (start_s, end_s) = (phase.start_us as f64 / 1e6, phase.end_us as f64 / 1e6);
            let key = ((end.point_id, end.trial), phase.name.clone());
            all.insert(key, Aligned::new(start_s, end_s));
        }
    }
    let mut each = |trial: Trial, take: &mut dyn FnMut(&mut Aligned)| {
        all.range_mut((trial, String::new())..)
            .take_while(|((of, _), _)| *of == trial)
            .for_each(|(_, phase)| take(phase));
    };
    if let Some(lines) = query::intervals(run, trials)? {
        for line in 0..lines.len() {
            let number = |name: &str| lines.number(name, line);
            let (Some(end_s), Some(seconds)) = (number("t_s"), number("seconds")) else { continue };
            let (flow, bytes) = (lines.text("flow_id", line), number("bytes").unwrap_or(0.0));
            each(lines.trial(line), &mut |phase| phase.interval(&flow, end_s, seconds, bytes));
        }
    }
    if let Some(senders) = senders {
        let lines = query::round_trips(run, senders, INSTANT_S)?;
        for line in 0..lines.len() {
            let number = |name: &str| lines.number(name, line);
            let (Some(nth), Some(us)) = (number("instant"), number("rtt_us")) else { continue };
            let flow = lines.text("flow_id", line);
            each(lines.trial(line), &mut |phase| phase.srtt(&flow, nth as i64, us));
        }
    }
    Ok(all)
}

fn intervals(run: &RunDir, trials: &[&TrialEnd]) -> Result<Option<Lines>> {
    let kept = col("omitted").not().and(col("seconds").gt(lit(0.0)));
    let aggregates = vec![sum("bytes"), sum("seconds"), count("bytes")];
    query::group(run, "intervals", trials, kept, &["group", "flow_id", "side"], aggregates)
}

fn sockets(run: &RunDir, senders: &LazyFrame) -> Result<Lines> {
    let aggregates = vec![
        first("t_s"),
        last("t_s"),
        last("total_retrans_pkts"),
        last("data_segs_out_pkts"),
        last("bytes_acked"),
        count("t_s"),
    ];
    query::of_senders(run, senders, &["group", "flow_id"], aggregates)
}

fn socket_stats() -> Vec<Expr> {
    [stats("rtt_us"), stats("snd_cwnd_pkts")].concat()
}

fn probes(run: &RunDir, trials: &[&TrialEnd]) -> Result<Option<Lines>> {
    let known = query::columns(run, "probes", trials)?;
    let there = PROBED.iter().filter(|(column, _)| known.iter().any(|name| name == column));
    let mut aggregates: Vec<Expr> = there.flat_map(|(column, _)| stats(column)).collect();
    aggregates.extend([sum("lost"), count("seq")]);
    query::group(run, "probes", trials, lit(true), &["probe_id"], aggregates)
}

fn links(run: &RunDir, trials: &[&TrialEnd]) -> Result<Option<Lines>> {
    let mut aggregates = [stats("backlog_bytes"), stats("queue_delay_us")].concat();
    aggregates.extend([first("t_s"), last("t_s"), last("sent_bytes"), first("sent_bytes")]);
    aggregates.extend([last("drops_pkts"), last("marks_pkts"), query::mean("rate_bps")]);
    query::links(run, trials, aggregates)
}

/// When phases are, per trial.
struct Timeline<'a>(BTreeMap<Trial, &'a [PhaseRecord]>);

impl<'a> Timeline<'a> {
    fn new(trials: &[&'a TrialEnd]) -> Self {
        Self(trials.iter().map(|end| ((end.point_id, end.trial), end.phases.as_slice())).collect())
    }

    /// Position and record of a phase.
    fn phase(&self, trial: Trial, name: &str) -> Option<(usize, &'a PhaseRecord)> {
        self.0.get(&trial)?.iter().enumerate().find(|(_, phase)| phase.name == name)
    }
}

fn take_interval(
    lines: &Lines,
    line: usize,
    groups: &mut BTreeMap<GroupKey, GroupPhase>,
    flows: &mut BTreeMap<(Trial, String), BTreeSet<String>>,
) {
    let (trial, group, flow) =
        (lines.trial(line), lines.text("group", line), lines.text("flow_id", line));
    let carried = Carried {
        bytes: lines.number("bytes", line).unwrap_or(0.0),
        seconds: lines.number("seconds", line).unwrap_or(0.0),
        intervals: lines.count("bytes.n", line),
    };
    flows.entry((trial, group.clone())).or_default().insert(flow.clone());
    let phase = groups.entry((trial, lines.text("phase", line), group)).or_default();
    let side = match lines.text("side", line).as_str() {
        "rcv" => &mut phase.received,
        _ => &mut phase.sent,
    };
    side.insert(flow, carried);
}

/// Counters of sockets grow from phase to phase; what a phase has is the growth.
fn take_sockets(
    lines: &Lines,
    timeline: &Timeline<'_>,
    groups: &mut BTreeMap<GroupKey, GroupPhase>,
    flows: &mut BTreeMap<(Trial, String), BTreeSet<String>>,
) {
    let mut order: Vec<(usize, usize)> = (0..lines.len())
        .filter_map(|line| {
            let (position, _) = timeline.phase(lines.trial(line), &lines.text("phase", line))?;
            Some((position, line))
        })
        .collect();
    order.sort_unstable();
    let mut before: BTreeMap<(Trial, String), [f64; 4]> = BTreeMap::new();
    for (_, line) in order {
        let (trial, group, flow) =
            (lines.trial(line), lines.text("group", line), lines.text("flow_id", line));
        let number = |name: &str| lines.number(name, line);
        let begin = [0.0, 0.0, 0.0, number("t_s.first").unwrap_or(0.0)];
        let past = before.entry((trial, flow.clone())).or_insert(begin);
        let now = [
            number("total_retrans_pkts.last").unwrap_or(past[0]),
            number("data_segs_out_pkts.last").unwrap_or(past[1]),
            number("bytes_acked.last").unwrap_or(past[2]),
            number("t_s.last").unwrap_or(past[3]),
        ];
        let [retrans, segments, bytes, seconds] =
            std::array::from_fn(|i| (now[i] - past[i]).max(0.0));
        *past = now;
        flows.entry((trial, group.clone())).or_default().insert(flow.clone());
        let phase = groups.entry((trial, lines.text("phase", line), group)).or_default();
        if number("total_retrans_pkts.last").is_some() {
            *phase.retransmissions.entry(flow.clone()).or_default() += retrans;
        }
        *phase.segments.entry(flow.clone()).or_default() += segments;
        let acked = phase.acked.entry(flow).or_default();
        acked.bytes += bytes;
        acked.seconds = acked.seconds.max(seconds);
        acked.intervals += lines.count("t_s.n", line);
    }
}

impl GroupPhase {
    /// The best account of bytes that there is, and what to say of it.
    fn carried(&self) -> (&BTreeMap<String, Carried>, Option<&'static str>) {
        if !self.received.is_empty() {
            (&self.received, None)
        } else if self.acked.values().any(|c| c.bytes > 0.0) {
            (&self.acked, Some("bytes acknowledged to the senders: no receiver reported intervals"))
        } else {
            (&self.sent, Some("what senders handed to the kernel: nothing else was reported"))
        }
    }

    /// Seconds over which to take its rates; `None` if it does not run in this phase. `allowed` is what the plan says.
    fn covered_s(&self, phase: &PhaseRecord, allowed: Option<bool>) -> Option<f64> {
        let (carried, _) = self.carried();
        let seconds = carried.values().map(|c| c.seconds).fold(0.0, f64::max);
        let intervals = carried.values().map(|c| c.intervals).max().unwrap_or(0);
        let share = seconds / phase.seconds();
        let seems =
            share >= MOST_OF_A_PHASE || (share >= SOME_OF_A_PHASE && intervals >= ENOUGH_INTERVALS);
        (allowed.unwrap_or(seems) && seconds > 0.0).then_some(seconds)
    }
}

/// Puts rows of measured phases together.
struct Out<'a> {
    timeline: &'a Timeline<'a>,
    schedule: &'a Schedule,
    measured: &'a mut Measured,
}

/// Where a row belongs: trial, phase, scope, subject.
type Place<'a> = (Trial, &'a str, Scope, &'a str);

impl Out<'_> {
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

    /// Seconds over which to take a group's rates; `None` if it does not run in this phase, or that is not measured.
    fn running_s(&self, trial: Trial, phase: &str, group: &str, data: &GroupPhase) -> Option<f64> {
        let record = self.measured_phase(trial, phase)?;
        data.covered_s(record, self.schedule.allows(trial.0, group, record))
    }

    /// Throughput, fairness and retransmissions of flows, groups and all flows together.
    fn throughputs(
        &mut self,
        groups: &BTreeMap<GroupKey, GroupPhase>,
        flows: &BTreeMap<(Trial, String), BTreeSet<String>>,
    ) {
        let mut net: BTreeMap<(Trial, &str), Together> = BTreeMap::new();
        for ((trial, phase, group), data) in groups {
            let Some(seconds) = self.running_s(*trial, phase, group, data) else {
                continue;
            };
            let (carried, caveat) = data.carried();
            if let Some(caveat) = caveat {
                let (point_id, nr) = trial;
                let note = format!(
                    "point {point_id}, trial {nr}, {phase}: throughput of `{group}` is {caveat}"
                );
                self.measured.notes.push(note);
            }
            let known = flows.get(&(*trial, group.clone())).into_iter().flatten();
            let bytes = |flow: &String| carried.get(flow).map_or(0.0, |c| c.bytes);
            let flow_bytes: Vec<(&String, f64)> = known.map(|flow| (flow, bytes(flow))).collect();
            for (flow, bytes) in &flow_bytes {
                let n = carried.get(*flow).map_or(0, |c| c.intervals);
                let place = (*trial, phase.as_str(), Scope::Flow, flow.as_str());
                self.row(place, "throughput", "bit/s", "mean", bytes * 8.0 / seconds, n);
                if let Some(packets) = data.retransmissions.get(*flow) {
                    self.row(place, "retransmissions", "packets", "sum", *packets, 1);
                }
            }
            let together = Together {
                bytes: flow_bytes.iter().map(|(_, bytes)| *bytes).collect(),
                retransmissions: data.retransmissions.values().copied().collect(),
                segments: data.segments.values().sum(),
            };
            let place = (*trial, phase.as_str(), Scope::Group, group.as_str());
            self.together(place, &together, seconds);
            self.coverage(place, seconds, carried);
            net.entry((*trial, phase)).or_default().add(together);
        }
        for ((trial, phase), all) in &net {
            let length_s = self.measured_phase(*trial, phase).map_or(0.0, PhaseRecord::seconds);
            self.together((*trial, phase, Scope::Net, "all"), all, length_s);
        }
    }

    /// How much of a group's time in this phase its throughput is over.
    fn coverage(&mut self, place: Place<'_>, seconds: f64, carried: &BTreeMap<String, Carried>) {
        let (trial, phase, _, group) = place;
        let planned_s = self
            .measured_phase(trial, phase)
            .map_or(0.0, |record| self.schedule.planned_s(trial.0, group, record));
        if planned_s > 0.0 {
            let n = carried.values().map(|c| c.intervals).sum();
            self.row(place, "coverage_share", "1", "mean", seconds / planned_s, n);
        }
    }

    /// Metrics of several flows, with their bytes over so many seconds.
    fn together(&mut self, place: Place<'_>, all: &Together, seconds: f64) {
        let flows = all.bytes.len() as u32;
        let total = all.bytes.iter().sum::<f64>() * 8.0 / seconds;
        self.row(place, "throughput_sum", "bit/s", "mean", total, flows);
        let per_flow = total / f64::from(flows.max(1));
        self.row(place, "throughput_per_flow_mean", "bit/s", "mean", per_flow, flows);
        if let Some(index) = jain(&all.bytes) {
            self.row(place, "jain_fairness_of_mean", "1", "mean", index, flows);
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

    /// Smoothed RTT and congestion window; only where the group runs.
    fn samples(&mut self, lines: &Lines, scope: Scope, groups: &BTreeMap<GroupKey, GroupPhase>) {
        for line in 0..lines.len() {
            let (trial, phase, group) =
                (lines.trial(line), lines.text("phase", line), lines.text("group", line));
            let data = groups.get(&(trial, phase.clone(), group.clone()));
            if data.and_then(|data| self.running_s(trial, &phase, &group, data)).is_none() {
                continue;
            }
            let subject = if scope == Scope::Flow { lines.text("flow_id", line) } else { group };
            let place = (trial, phase.as_str(), scope, subject.as_str());
            for (stem, metric, unit) in
                [("rtt_us", "srtt", "us"), ("snd_cwnd_pkts", "cwnd", "packets")]
            {
                let n = lines.count(&format!("{stem}.n"), line);
                for (stat, value) in lines.stats(stem, line) {
                    self.row(place, metric, unit, stat, value, n);
                }
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
            for (column, metric) in PROBED {
                let answered = lines.count(&format!("{column}.n"), line);
                for (stat, value) in lines.stats(column, line) {
                    self.row(place, metric, "us", stat, value, answered);
                }
            }
            let asked = lines.count("seq.n", line);
            let lost = lines.number("lost", line).unwrap_or(0.0) / f64::from(asked.max(1));
            self.row(place, "loss_share", "1", "mean", lost, asked);
        }
    }

    /// Metrics that are taken at every instant.
    fn sampled(&mut self, phases: &BTreeMap<(Trial, String), Aligned>) {
        for ((trial, phase), aligned) in phases {
            let Some(record) = self.measured_phase(*trial, phase) else { continue };
            let group =
                |flow: &str| flow.rsplit_once('/').map_or(flow, |(group, _)| group).to_owned();
            let runs = |flow: &str| self.schedule.allows(trial.0, &group(flow), record);
            for (flow, metric, unit, stat, value, n) in aligned.numbers(runs) {
                let (scope, subject) = flow.map_or((Scope::Net, "all"), |flow| (Scope::Flow, flow));
                self.row((*trial, phase.as_str(), scope, subject), metric, unit, stat, value, n);
            }
        }
    }

    /// How late packets and steps were, which is known of a trial as a whole.
    fn timing(&mut self, row: &query::TimingRow) {
        let metric = match row.what.as_str() {
            "packets" => "packet_lateness",
            "steps" => "step_lateness",
            _ => return,
        };
        let place = (row.trial, WHOLE_TRIAL, Scope::Link, row.link.as_str());
        let n = u32::try_from(row.count).unwrap_or(u32::MAX);
        for (stat, us) in
            [("p50", row.us[0]), ("p90", row.us[1]), ("p99", row.us[2]), ("max", row.us[3])]
        {
            self.row(place, metric, "us", stat, us, n);
        }
    }

    fn links(&mut self, lines: &Lines) {
        let mut order: Vec<(usize, usize)> = (0..lines.len())
            .filter_map(|line| {
                let (position, _) =
                    self.timeline.phase(lines.trial(line), &lines.text("phase", line))?;
                Some((position, line))
            })
            .collect();
        order.sort_unstable();
        let mut before: BTreeMap<(Trial, String), [f64; 2]> = BTreeMap::new();
        for (_, line) in order {
            let (trial, phase, link) =
                (lines.trial(line), lines.text("phase", line), lines.text("link", line));
            let number = |name: &str| lines.number(name, line);
            let (dropped, marked) = (number("drops_pkts.last"), number("marks_pkts.last"));
            let counted = [dropped, marked].map(|count| count.unwrap_or(0.0));
            let past = before.insert((trial, link.clone()), counted).unwrap_or_default();
            if self.measured_phase(trial, &phase).is_none() {
                continue;
            }
            let place = (trial, phase.as_str(), Scope::Link, link.as_str());
            let n = lines.count("backlog_bytes.n", line);
            let grown = |stem: &str| {
                let at = |end: &str| lines.number(&format!("{stem}.{end}"), line);
                Some(at("last")? - at("first")?)
            };
            if let (Some(bytes), Some(seconds)) =
                (grown("sent_bytes"), grown("t_s").filter(|s| *s > 0.0))
            {
                let sent = bytes * 8.0 / seconds;
                self.row(place, "throughput", "bit/s", "mean", sent, n);
                if let Some(rate) = number("rate_bps.mean").filter(|rate| *rate > 0.0) {
                    self.row(place, "utilisation", "1", "mean", sent / rate, n);
                }
            }
            self.row(place, "drops", "packets", "sum", (counted[0] - past[0]).max(0.0), n);
            if marked.is_some() {
                self.row(place, "marks", "packets", "sum", (counted[1] - past[1]).max(0.0), n);
            }
            for (stem, metric, unit) in
                [("backlog_bytes", "backlog", "bytes"), ("queue_delay_us", "queue_delay", "us")]
            {
                for (stat, value) in lines.stats(stem, line) {
                    self.row(place, metric, unit, stat, value, n);
                }
            }
        }
    }
}

/// Flows taken together.
#[derive(Debug, Default)]
struct Together {
    bytes: Vec<f64>,
    retransmissions: Vec<f64>,
    segments: f64,
}

impl Together {
    fn add(&mut self, other: Self) {
        self.bytes.extend(other.bytes);
        self.retransmissions.extend(other.retransmissions);
        self.segments += other.segments;
    }
}
