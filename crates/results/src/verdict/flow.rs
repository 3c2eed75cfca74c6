//! Checks whether every flow ran as planned: on time, without stalls, with its congestion control, and with TCP samples.

use std::collections::BTreeMap;

use ccbench_proto::plan::Link;
use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::resolve;
use ccbench_proto::schedule::{self, FlowTask};
use ccbench_proto::topology::Topology;
use ccbench_proto::units::{Bytes, Micros};
use ccbench_proto::wire::{Done, Flow, FlowSample, Interval, Role, Side};

use super::findings::{Findings, Span};
use crate::curve;
use crate::model::Status;
use crate::reason::ReasonCode;

/// How late a flow may start, in addition to the time that iperf3 needs before its first byte ...
pub const LATE_S: f64 = 1.0;
/// ... which is one RTT for each of its sockets in turn, and this many for its control messages.
pub const SET_UP_RTTS: u32 = 4;
/// Bytes counted on a connection without data: iperf3's cookie, and SYN and FIN, which the kernel counts.
pub const NOT_DATA_BYTES: u64 = 37 + 1 + 1;
/// Growth of a byte counter due to a FIN alone.
const FIN_BYTES: u64 = 1;
/// A flow without a rate of its own has stalled if it delivers nothing for longer than this and longer than [`STALLED_RTTS`]. A
/// retransmission timeout starts at a fifth of this time, and doubles.
pub const STALLED_S: f64 = 1.0;
/// Number of smoothed round trips without a new byte; loss recovery takes fewer.
pub const STALLED_RTTS: f64 = 10.0;
/// Shortest outage of a traced link that is subtracted from a stall.
pub const OUTAGE_NS: u64 = 100_000_000;
/// How long buffered data may arrive after a flow's stop: iperf3 needs a few tenths of a second to stop ...
pub const OVERRUN_S: f64 = 0.3;
/// ... and the queues on the path drain within a few smoothed RTTs.
pub const OVERRUN_RTTS: f64 = 3.0;
/// How long before its planned end a flow's socket may close ...
pub const EARLY_S: f64 = 1.0;
/// ... plus this many sampling intervals, because its last sample is earlier than its end.
pub const EARLY_INTERVALS: f64 = 2.0;
/// Share of samples that may come more than 1.5 intervals after the previous one.
pub const LATE_SAMPLES_SHARE: f64 = 0.05;

/// The state of each data flow.
#[derive(Debug)]
pub(crate) struct FlowCheck {
    groups: BTreeMap<String, FlowTask>,
    every: Micros,
    end_s: f64,
    flows: BTreeMap<String, FlowState>,
    /// Outages of the links that each group's packets pass.
    outages: BTreeMap<String, Vec<Outage>>,
    samples_by_node: BTreeMap<String, u64>,
}

/// One data flow, in seconds since the trial's beginning.
#[derive(Debug, Default)]
struct FlowState {
    /// Delivered data as counted by the socket at each end.
    received: Progress,
    acked: Progress,
    /// First and last intervals with data that the receiver reported, and the first one of the sender.
    received_s: Option<(f64, f64)>,
    sent_s: Option<f64>,
    /// The reported start, if the final byte count shows that the flow had data.
    reported_s: Option<f64>,
    srtt_s: f64,
    last_sample_s: Option<f64>,
    /// The congestion control that the kernel last reported at the sender.
    cc: String,
    exit_code: Option<i32>,
}

/// How a counter of delivered bytes grew.
#[derive(Debug, Default)]
struct Progress {
    bytes: u64,
    last_sample_s: Option<f64>,
    /// When it first had data, and the last sample before that.
    first_data_s: Option<f64>,
    no_data_s: Option<f64>,
    /// The last sample with new bytes, and the sample before it.
    last_progress_s: Option<(f64, f64)>,
    stall: Option<Stall>,
}

/// A time in which a traced link lets nothing pass: start and end in seconds since the trial's beginning.
type Outage = (f64, f64);

/// Merges the outages (in nanoseconds) of the links of a path, so that each instant counts once.
fn merged_s(mut outages: Vec<(u64, u64)>) -> Vec<Outage> {
    outages.sort_unstable();
    let mut all: Vec<(u64, u64)> = Vec::new();
    for (from, to) in outages {
        match all.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => all.push((from, to)),
        }
    }
    all.into_iter().map(|(from, to)| (from as f64 / 1e9, to as f64 / 1e9)).collect()
}

/// A time without a new byte.
#[derive(Debug, Clone, Copy)]
struct Stall {
    from_s: f64,
    length_s: f64,
    limit_s: f64,
}

impl Progress {
    /// Adds a sample. Looks for a stall until `stop_s`, beyond what the links' outages explain.
    fn sample(&mut self, at_s: f64, bytes: u64, srtt_s: f64, stop_s: f64, outages: &[Outage]) {
        let before_s = self.last_sample_s.replace(at_s).unwrap_or(at_s);
        let grew = bytes > self.bytes.saturating_add(FIN_BYTES);
        self.bytes = self.bytes.max(bytes);
        if bytes <= NOT_DATA_BYTES {
            self.no_data_s = Some(at_s);
        } else if self.first_data_s.is_none() || grew {
            self.first_data_s.get_or_insert(at_s);
            self.last_progress_s = Some((before_s, at_s));
        } else if let Some((_, from_s)) = self.last_progress_s
            && at_s <= stop_s
        {
            let within =
                |(begin_s, end_s): &Outage| (end_s.min(at_s) - begin_s.max(from_s)).max(0.0);
            let outage_s: f64 = outages.iter().map(within).sum();
            let limit_s = STALLED_S.max(STALLED_RTTS * srtt_s) + outage_s;
            let stall = Stall { from_s, length_s: at_s - from_s, limit_s };
            let beyond_s = |stall: Stall| stall.length_s - stall.limit_s;
            if beyond_s(stall) > self.stall.map_or(0.0, beyond_s) {
                self.stall = Some(stall);
            }
        }
    }
}

impl FlowCheck {
    pub(super) fn new(plan: &CheckedPlan) -> Self {
        let groups = schedule::flows(plan).into_iter().map(|task| (task.group.clone(), task));
        let groups: BTreeMap<String, FlowTask> = groups.collect();
        let ids = groups
            .values()
            .flat_map(|task| (0..task.plan.count).map(|i| format!("{}/{i}", task.group)));
        let end_s = schedule::length(plan).as_secs_f64();
        let end_ns = (end_s * 1e9) as u64;
        let of_link = |link: &Link| curve::outages(plan, link, (end_ns, OUTAGE_NS));
        let plan = plan.plan();
        let of_links: Vec<(&Link, Vec<(u64, u64)>)> =
            plan.links.values().map(|link| (link, of_link(link))).collect();
        let topology = Topology::build(plan);
        let outages = |task: &FlowTask| {
            let hops = topology.round_trip(&task.plan.from, &task.plan.to);
            // If the cabling is unknown, use all links.
            let passed = |link: &Link| {
                let is_on = |hop: &(&str, &str)| resolve::shapes(link, &topology, *hop);
                hops.as_ref().is_none_or(|hops| hops.iter().any(is_on))
            };
            let passed = of_links.iter().filter(|(link, _)| passed(link));
            merged_s(passed.flat_map(|(_, outages)| outages).copied().collect())
        };
        Self {
            outages: groups.iter().map(|(name, task)| (name.clone(), outages(task))).collect(),
            flows: ids.map(|id| (id, FlowState::default())).collect(),
            groups,
            every: plan.sample.tcp,
            end_s,
            samples_by_node: BTreeMap::new(),
        }
    }

    pub(crate) fn sample(&mut self, node: &str, span: Span, row: &FlowSample) {
        *self.samples_by_node.entry(node.to_owned()).or_default() += 1;
        let Some(flow) = self.flows.get_mut(&row.flow_id) else { return };
        if row.role() != Role::Data {
            return;
        }
        let at_s = span.seconds(row.at_ns);
        let outages = self.outages.get(&row.group).map_or(&[][..], Vec::as_slice);
        let task = self.groups.get(&row.group);
        let stop_s = task.map_or(self.end_s, |task| task.stop.as_secs_f64());
        let length_bytes = task.and_then(|task| task.plan.bytes).map_or(u64::MAX, Bytes::get);
        // No byte follows the last one of a finite flow.
        let until_s = |bytes| if bytes < length_bytes { stop_s } else { f64::NEG_INFINITY };
        if row.side() != Side::Sender {
            let bytes = row.bytes_received.unwrap_or(0);
            flow.received.sample(at_s, bytes, flow.srtt_s, until_s(bytes), outages);
            return;
        }
        if let Some(rtt_us) = row.rtt_us {
            flow.srtt_s = f64::from(rtt_us) / 1e6;
        }
        let acked = row.bytes_acked.unwrap_or(0);
        flow.acked.sample(at_s, acked, flow.srtt_s, until_s(acked), outages);
        flow.last_sample_s = Some(flow.last_sample_s.map_or(at_s, |last_s| last_s.max(at_s)));
        if !row.cc.is_empty() {
            flow.cc.clone_from(&row.cc);
        }
    }

    pub(crate) fn interval(&mut self, span: Span, row: &Interval) {
        let Some(flow) = self.flows.get_mut(&row.flow_id).filter(|_| row.bytes > 0) else { return };
        let at_s = span.seconds(row.at_ns) - row.seconds;
        if row.side() == Side::Sender {
            flow.sent_s = Some(flow.sent_s.map_or(at_s, |first| first.min(at_s)));
        } else {
            let (first_s, last_s) = flow.received_s.unwrap_or((at_s, at_s));
            flow.received_s = Some((first_s.min(at_s), last_s.max(at_s)));
        }
    }

    pub(crate) fn flow(&mut self, row: &Flow) {
        let Some(flow) = self.flows.get_mut(&row.flow_id).filter(|_| row.role() == Role::Data)
        else {
            return;
        };
        if row.bytes > NOT_DATA_BYTES {
            flow.reported_s = flow.reported_s.or(row.start_s);
        }
        if flow.cc.is_empty() {
            flow.cc.clone_from(&row.cc_actual);
        }
        if let Some(code) = row.exit_code.filter(|code| *code != 0) {
            flow.exit_code = Some(code);
        }
    }

    pub(crate) fn finish(self, done: &BTreeMap<String, Done>, findings: &mut Findings) {
        let late_samples = |(node, done): (&String, &Done)| {
            let seen =
                self.samples_by_node.get(node).copied().unwrap_or(0).max(done.samples_late).max(1);
            let share = done.samples_late as f64 / seen as f64;
            (share > LATE_SAMPLES_SHARE).then(|| {
                let message = format!(
                    "{node}: {:.0} % of {seen} TCP samples came more than 1.5 intervals after the previous one \
                     (limit {:.0} %), {} were missed",
                    share * 100.0,
                    LATE_SAMPLES_SHARE * 100.0,
                    done.samples_missed
                );
                (node.clone(), message)
            })
        };
        for (node, message) in done.iter().filter_map(late_samples) {
            findings.add(Status::Degraded, ReasonCode::SamplesLate, node, message);
        }
        for task in self.groups.values() {
            let mut problems = Problems::default();
            let flow = |index| self.flows.get(&format!("{}/{index}", task.group));
            let flows: Vec<&FlowState> = (0..task.plan.count).filter_map(flow).collect();
            let has_data = flows.iter().any(|flow| flow.first_data_s().is_some());
            for flow in flows {
                flow.judge((task, has_data), self.every, self.end_s, &mut problems);
            }
            problems.into_findings(task, findings);
        }
    }
}

/// The problems of a flow group: one finding for each code, with the number of flows and the first message.
#[derive(Debug, Default)]
struct Problems(BTreeMap<ReasonCode, (Status, u32, String)>);

impl Problems {
    fn add(&mut self, status: Status, code: ReasonCode, first: String) {
        self.0.entry(code).or_insert((status, 0, first)).1 += 1;
    }

    fn into_findings(self, task: &FlowTask, findings: &mut Findings) {
        for (code, (status, count, first)) in self.0 {
            let of = if task.plan.count > 1 {
                format!(" ({count} of {} flows)", task.plan.count)
            } else {
                String::new()
            };
            let subject = format!("flows.{}", task.group);
            let message = format!("{subject}{of}: {first}");
            findings.add(status, code, subject, message);
        }
    }
}

impl FlowState {
    /// Returns the progress at the receiver if it was sampled, otherwise at the sender; `None` without samples.
    fn delivered(&self) -> Option<&Progress> {
        [&self.received, &self.acked].into_iter().find(|p| p.last_sample_s.is_some())
    }

    /// Returns when the first byte of data arrived. Samples bound the instant. iperf3's intervals are finer, but the sender's count bytes
    /// that have not arrived yet.
    fn first_data_s(&self) -> Option<f64> {
        let Some(delivered) = self.delivered() else {
            return self.received_s.map(|(first_s, _)| first_s).or(self.sent_s).or(self.reported_s);
        };
        let sampled = [self.received.first_data_s, self.acked.first_data_s];
        let reported = self.received_s.map(|(first_s, _)| first_s);
        let first_s = sampled.into_iter().flatten().chain(reported).min_by(f64::total_cmp);
        let least_s = delivered
            .no_data_s
            .filter(|least| delivered.first_data_s.is_some_and(|first| *least < first));
        first_s
            .or(self.reported_s)
            .map(|first_s| least_s.map_or(first_s, |least| first_s.max(least)))
    }

    /// Returns a lower bound of the instant when data last arrived.
    fn last_data_s(&self) -> Option<f64> {
        match self.delivered() {
            Some(delivered) => delivered.last_progress_s.map(|(before_s, _)| before_s),
            None => self.received_s.map(|(_, last_s)| last_s),
        }
    }

    /// Judges a flow. `has_data` says whether data of any flow of the group arrived.
    fn judge(
        &self,
        (task, has_data): (&FlowTask, bool),
        every: Micros,
        end_s: f64,
        problems: &mut Problems,
    ) {
        let (start_s, stop_s) = (task.start.as_secs_f64(), task.stop.as_secs_f64().min(end_s));
        if let Some(code) = self.exit_code {
            problems.add(
                Status::Degraded,
                ReasonCode::FlowExit,
                format!("iperf3 ended with exit code {code}"),
            );
        }
        let Some(first_s) = self.first_data_s() else {
            // The sender's socket was connected, and the other flows used the same path: all packets were lost.
            if has_data && self.last_sample_s.is_some() {
                let why =
                    "no data arrived, although other flows of the group received data".to_owned();
                problems.add(Status::Degraded, ReasonCode::FlowStarved, why);
                // A socket that closed early has its own reason.
                self.judge_end(stop_s, every, problems);
            } else {
                let why = dead(stop_s - start_s);
                problems.add(Status::Failed, ReasonCode::FlowDead, why);
            }
            return;
        };
        let late_s = first_s - start_s;
        let limit_s = LATE_S + f64::from(SET_UP_RTTS + task.plan.count) * self.srtt_s;
        if late_s > limit_s {
            let why = format!(
                "first data at {first_s:.2} s, {late_s:.2} s after the flow's start at {start_s:.1} s (limit {limit_s:.2} s: \
                 {LATE_S:.0} s plus connection set-up)"
            );
            problems.add(Status::Degraded, ReasonCode::FlowLate, why);
        }
        if let Some(wanted) =
            task.plan.cc.as_ref().filter(|cc| !self.cc.is_empty() && **cc != self.cc)
        {
            let why = format!("the kernel used `{}`, but the plan requires `{wanted}`", self.cc);
            problems.add(Status::Failed, ReasonCode::WrongCc, why);
        }
        self.judge_delivery(task, stop_s, problems);
        self.judge_end(stop_s, every, problems);
    }

    fn judge_delivery(&self, task: &FlowTask, stop_s: f64, problems: &mut Problems) {
        if let Some(stall) =
            self.delivered().and_then(|p| p.stall).filter(|_| task.plan.rate.is_none())
        {
            let why = format!(
                "no new byte for {:.2} s from {:.2} s on (limit {:.2} s: the longer of {STALLED_S:.0} s and \
                 {STALLED_RTTS:.0} srtt, plus outages of traced links)",
                stall.length_s, stall.from_s, stall.limit_s
            );
            problems.add(Status::Degraded, ReasonCode::FlowStalled, why);
        }
        let limit_s = OVERRUN_S.max(OVERRUN_RTTS * self.srtt_s);
        if let Some(last_s) = self.last_data_s().filter(|last_s| *last_s > stop_s + limit_s) {
            let why = format!(
                "data still arrived at {last_s:.2} s, {:.2} s after the flow's stop at {stop_s:.1} s \
                 (limit {limit_s:.2} s: {OVERRUN_S} s or {OVERRUN_RTTS:.0} srtt)",
                last_s - stop_s
            );
            problems.add(Status::Degraded, ReasonCode::FlowOverrun, why);
        }
    }

    fn judge_end(&self, stop_s: f64, every: Micros, problems: &mut Problems) {
        let Some(last_s) = self.last_sample_s else {
            problems.add(
                Status::Degraded,
                ReasonCode::SamplesMissing,
                "no TCP sample of the sender".to_owned(),
            );
            return;
        };
        let early_s = stop_s - last_s;
        let limit_s = EARLY_S + EARLY_INTERVALS * every.as_secs_f64();
        if early_s > limit_s {
            let why = format!(
                "the sender's socket closed {early_s:.2} s before the flow's end (limit {limit_s:.2} s: {EARLY_S:.0} s plus \
                 {EARLY_INTERVALS:.0} sampling intervals)"
            );
            problems.add(Status::Degraded, ReasonCode::FlowEarly, why);
        }
    }
}

/// Returns why a flow that ran for `ran_s` is dead. A flow may start up to [`LATE_S`] late, so the path need not be the cause if it ran for
/// less.
fn dead(ran_s: f64) -> String {
    if ran_s >= LATE_S {
        return "no data arrived".to_owned();
    }
    format!(
        "no data arrived in {ran_s:.2} s; on a busy machine or a long path, a flow takes up to {LATE_S:.0} s to start: let it run \
         longer"
    )
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::check::{self, TraceFacts};
    use ccbench_proto::trace;

    use super::*;

    #[test]
    fn merges_outages_of_both_directions() {
        let text = r#"
name = "outages"
[nodes]
a = {}
b = {}
c = {}
[wires]
one = ["a", "b"]
other = ["b", "c"]
[links.there]
node = "a"
toward = "b"
trace = { file = "there.csv" }
[links.back]
node = "b"
toward = "a"
trace = { file = "back.csv" }
[links.elsewhere]
node = "b"
toward = "c"
trace = { file = "elsewhere.csv" }
[flows.near]
from = "a"
to = "b"
[flows.far]
from = "b"
to = "c"
[[phases]]
name = "all"
length = "10s"
flows = ["near", "far"]
"#;
        let file = |name: &str, from_s: u64, to_s: u64| {
            let rows = format!(
                "t_us,rate_bps\n0,8000000\n{from_s}000000,0\n{to_s}000000,8000000\n10000000,8000000\n"
            );
            let trace = trace::parse(name, rows.as_bytes()).unwrap().into();
            (name.to_owned(), Ok(TraceFacts { sha256: "0".repeat(64), trace }))
        };
        let files = [file("there.csv", 2, 5), file("back.csv", 3, 6), file("elsewhere.csv", 7, 9)];
        let (plan, _) = check::read_with(text, &[], files.into()).unwrap();
        let check = FlowCheck::new(&plan);
        assert_eq!(check.outages["near"], [(2.0, 6.0)]);
        assert_eq!(check.outages["far"], [(7.0, 9.0)]);
    }

    /// A group of two flows that run for 10 s.
    fn two_flows() -> FlowTask {
        let text = r#"
name = "starved"
[nodes]
a = {}
b = {}
[wires]
one = ["a", "b"]
[flows.many]
from = "a"
to = "b"
count = 2
[[phases]]
name = "all"
length = "10s"
flows = ["many"]
"#;
        let (plan, _) = check::read(text, &[]).unwrap();
        schedule::flows(&plan).remove(0)
    }

    #[test]
    fn a_dead_flow_that_was_too_short_says_so() {
        let task = two_flows();
        let why = |end_s| {
            let mut problems = Problems::default();
            let every = Micros::from_millis(100);
            FlowState::default().judge((&task, false), every, end_s, &mut problems);
            problems.0.remove(&ReasonCode::FlowDead).unwrap().2
        };
        assert_eq!(why(10.0), "no data arrived");
        assert_eq!(why(1.0), "no data arrived");
        let short = why(0.3);
        assert!(short.starts_with("no data arrived in 0.30 s; on a busy machine"), "{short}");
    }

    #[test]
    fn a_flow_without_data_is_starved_if_others_of_its_group_are_not() {
        let task = two_flows();
        let judged = |flow: &FlowState, has_data| {
            let mut problems = Problems::default();
            flow.judge((&task, has_data), Micros::from_millis(100), 10.0, &mut problems);
            problems.0.into_iter().map(|(code, (status, ..))| (code, status)).collect::<Vec<_>>()
        };
        let dead = [(ReasonCode::FlowDead, Status::Failed)];
        let connected = FlowState { last_sample_s: Some(9.9), ..FlowState::default() };
        assert_eq!(judged(&connected, false), dead);
        assert_eq!(judged(&connected, true), [(ReasonCode::FlowStarved, Status::Degraded)]);
        assert_eq!(judged(&FlowState::default(), true), dead, "it had no socket");
        let closed = FlowState { last_sample_s: Some(3.0), ..FlowState::default() };
        let starved_and_early = [ReasonCode::FlowEarly, ReasonCode::FlowStarved];
        assert_eq!(judged(&closed, true), starved_and_early.map(|code| (code, Status::Degraded)));
    }

    #[test]
    fn the_limit_of_an_early_end_includes_two_sampling_intervals() {
        let why = |last_s| {
            let flow = FlowState { last_sample_s: Some(last_s), ..FlowState::default() };
            let mut problems = Problems::default();
            flow.judge_end(10.0, Micros::from_secs(2), &mut problems);
            problems.0.remove(&ReasonCode::FlowEarly).map(|(_, _, why)| why)
        };
        assert_eq!(why(5.1), None);
        let early = why(4.9).unwrap();
        assert!(early.contains("5.10 s before"), "{early}");
        assert!(early.ends_with("(limit 5.00 s: 1 s plus 2 sampling intervals)"), "{early}");
    }

    #[test]
    fn outage_of_traced_link_is_not_a_stall() {
        let stalled = |outages: &[Outage]| {
            let mut progress = Progress::default();
            for tenth in 0..60_u32 {
                let bytes = 1000 * u64::from(tenth.min(20));
                progress.sample(f64::from(tenth) / 10.0, bytes, 0.02, 6.0, outages);
            }
            progress.stall.map(|stall| stall.from_s)
        };
        assert_eq!(stalled(&[]), Some(2.0));
        assert_eq!(
            stalled(&[(0.0, 0.5), (2.0, 3.0)]),
            Some(2.0),
            "longer than the outage explains"
        );
        assert_eq!(stalled(&[(2.0, 5.5)]), None);
    }
}
