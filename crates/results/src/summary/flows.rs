//! Reads the socket samples and the throughput intervals of a trial in one pass.

use std::collections::BTreeMap;

use super::rows::{GroupedRows, Names, each_slice};
use super::sampled::BinnedFlows;
use super::span::Span;
use crate::error::{FileError, Result};
use crate::in_flight::{COLUMNS as IN_FLIGHT, packets_in_flight};
use crate::journal::TrialEnd;
use crate::store::RunDir;

/// The bytes of one flow in one phase, and the time that they cover.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Transferred {
    pub(super) bytes: f64,
    pub(super) seconds: f64,
    pub(super) intervals: u32,
    /// The bytes within the phase. An interval that crosses the phase's beginning or end counts in proportion to the time inside.
    pub(super) inside_bytes: f64,
    /// From the first interval to the last, in seconds since the start of the trial.
    span_s: Option<Span>,
}

impl Transferred {
    /// Extends the time from the first interval to the last.
    pub(super) fn reach(&mut self, (from_s, to_s): Span) {
        let (first_s, last_s) = self.span_s.unwrap_or((from_s, to_s));
        self.span_s = Some((first_s.min(from_s), last_s.max(to_s)));
    }

    /// Returns how much longer than others a flow seems to last, because intervals of different flows end at different times.
    fn resolution_s(&self, (from_s, to_s): Span) -> f64 {
        if self.intervals < 2 {
            return 0.0;
        }
        (self.seconds / f64::from(self.intervals)).min(MAX_RESOLUTION * (to_s - from_s))
    }
}

/// Maximum resolution of a flow's span, as a share of the span.
const MAX_RESOLUTION: f64 = 0.1;

/// Returns the seconds that the intervals of a group's flows cover. The time in which flows overlap counts once: a flow adds the part of
/// its seconds that is after the end of those that began earlier, if this part is longer than an interval. Flows of an import may follow
/// each other; their seconds add up, to at most the time from the first to the last, unless the flows overlap for more than half of the
/// shorter one.
pub(super) fn covered_s<'t>(flows: impl Iterator<Item = &'t Transferred>) -> f64 {
    let mut known: Vec<(Span, f64, f64)> = Vec::new();
    let mut without_time_s = 0.0_f64;
    // A flow with a single sample covers no time.
    for flow in flows.filter(|flow| flow.seconds > 0.0) {
        match flow.span_s {
            Some(span) => known.push((span, flow.seconds, flow.resolution_s(span))),
            None => without_time_s = without_time_s.max(flow.seconds),
        }
    }
    known.sort_by(|a, b| a.0.0.total_cmp(&b.0.0));
    let mut apart: Vec<(Span, f64)> = Vec::new();
    for ((from_s, to_s), seconds, resolution_s) in known {
        match apart.last_mut() {
            Some(((first_s, last_s), most_s))
                if last_s.min(to_s) - from_s > 0.5 * (to_s - from_s).min(*last_s - *first_s) =>
            {
                let later_s = to_s - *last_s;
                if later_s > resolution_s {
                    *most_s += seconds * later_s / (to_s - from_s);
                    *last_s = to_s;
                }
                *most_s = most_s.max(seconds);
            }
            _ => apart.push(((from_s, to_s), seconds)),
        }
    }
    let sum_s: f64 = apart.iter().map(|(_, seconds)| seconds).sum();
    let longest_s = apart.iter().map(|(_, seconds)| *seconds).fold(without_time_s, f64::max);
    let ends = apart.first().zip(apart.last());
    // The time in which flows overlap counts once.
    let all_s = ends.map_or(0.0, |(((first_s, _), _), ((_, last_s), _))| last_s - first_s);
    sum_s.min(all_s).max(longest_s)
}

/// The intervals that both ends of a flow reported in a phase.
#[derive(Debug, Default)]
pub(super) struct Reported {
    pub(super) received: Option<Transferred>,
    pub(super) sent: Option<Transferred>,
}

/// The samples of a flow's data socket at the sender in a phase.
#[derive(Debug, Default)]
pub(super) struct Sampled {
    /// Smoothed round-trip times.
    pub(super) srtt_us: Vec<f64>,
    /// Congestion windows.
    pub(super) cwnd_pkts: Vec<f64>,
    /// Packets in flight.
    pub(super) in_flight_pkts: Vec<f64>,
    /// TCP's estimates of the delivery rate.
    pub(super) delivery_rate_bps: Vec<f64>,
    /// Variants of ECN negotiated in the handshake (`tcpi_ecn_mode`).
    pub(super) ecn_mode: Vec<f64>,
    /// Times of the first and the last sample in seconds since the start of the trial.
    pub(super) span_s: Option<(f64, f64)>,
    /// Number of samples with a time.
    pub(super) rows: u32,
    /// Largest values of `total_retrans_pkts`, `data_segs_out_pkts`, `bytes_acked` and `total_rto`.
    pub(super) counters: [Option<f64>; 4],
    /// Smallest values of the same counters, which are those of the first sample.
    pub(super) first_counters: [Option<f64>; 4],
}

impl Sampled {
    /// Adds the counters of a sample.
    fn add_counters(&mut self, now: [Option<f64>; 4]) {
        let ends = self.first_counters.iter_mut().zip(&mut self.counters);
        for ((smallest, largest), now) in ends.zip(now) {
            *smallest = (*smallest).into_iter().chain(now).reduce(f64::min);
            *largest = (*largest).into_iter().chain(now).reduce(f64::max);
        }
    }
}

const COUNTERS: [&str; 4] =
    ["total_retrans_pkts", "data_segs_out_pkts", "bytes_acked", "total_rto"];
/// Which of them the kernel keeps in 32 bits. At 10 Gbit/s, the number of segments wraps after 80 minutes.
const WRAPS: [bool; 4] = [true, true, false, true];
/// The number of values of 32 bits.
const ROUND: f64 = 4_294_967_296.0;

/// The counters of a flow over its samples, which come in the order of time.
#[derive(Debug, Default)]
struct Unwrapped {
    last: [Option<f64>; 4],
    rounds: [f64; 4],
}

impl Unwrapped {
    /// Returns the counters of the next sample without their wraps. A counter that is a little smaller has not wrapped.
    fn next(&mut self, counters: [Option<f64>; 4]) -> [Option<f64>; 4] {
        std::array::from_fn(|nth| {
            let now = counters[nth]?;
            let before = self.last[nth].replace(now).unwrap_or(now);
            if WRAPS[nth] && before - now > ROUND / 2.0 {
                self.rounds[nth] += ROUND;
            }
            Some(now + self.rounds[nth])
        })
    }
}

/// The flows of one trial.
pub(super) struct Flows {
    /// Intervals, by phase, group and flow.
    pub(super) reported: Vec<(Names, Reported)>,
    /// Samples, by phase, group and flow. Those after the last phase have no phase name, and only counters.
    pub(super) sampled: Vec<(Names, Sampled)>,
    /// All flows in time bins.
    pub(super) bins: BinnedFlows,
    /// When each flow started, in seconds since the start of the trial: the earlier one of the times that its two ends report.
    pub(super) starts_s: BTreeMap<String, f64>,
}

impl Flows {
    /// Reads the flows of one trial.
    pub(super) fn read(run: &RunDir, end: &TrialEnd) -> Result<Self> {
        let mut bins = BinnedFlows::new(end.length_s());
        let reported = intervals(run, end, &mut bins)?;
        let sampled = samples(run, end, &mut bins)?;
        if bins.is_full() {
            let (path, TrialEnd { point_id, trial, .. }) = (run.path().to_path_buf(), end);
            return Err(FileError::TooManyFlows { path, point_id: *point_id, trial: *trial });
        }
        let starts_s = starts(run, end)?;
        Ok(Self { reported, sampled, bins, starts_s })
    }
}

fn starts(run: &RunDir, end: &TrialEnd) -> Result<BTreeMap<String, f64>> {
    let mut found: BTreeMap<String, f64> = BTreeMap::new();
    each_slice(run, "flows", end, &["flow_id", "role", "start_s"], |slice| {
        let [flow, role] = ["flow_id", "role"].map(|name| slice.texts(name));
        let start_s = slice.numbers("start_s");
        for row in (0..slice.len()).filter(|row| role.get(*row) == Some("data")) {
            if let Some((flow, at_s)) = flow.get(row).zip(start_s.get(row)) {
                let start_s = found.entry(flow.to_owned()).or_insert(at_s);
                *start_s = start_s.min(at_s);
            }
        }
    })?;
    Ok(found)
}

fn intervals(
    run: &RunDir,
    end: &TrialEnd,
    bins: &mut BinnedFlows,
) -> Result<Vec<(Names, Reported)>> {
    const COLUMNS: [&str; 8] =
        ["phase", "group", "flow_id", "side", "omitted", "t_s", "seconds", "bytes"];
    let mut found: GroupedRows<Reported> = GroupedRows::new();
    each_slice(run, "intervals", end, &COLUMNS, |slice| {
        let [phase, group, flow, side] =
            ["phase", "group", "flow_id", "side"].map(|name| slice.texts(name));
        let [end_s, seconds, bytes] = ["t_s", "seconds", "bytes"].map(|name| slice.numbers(name));
        for row in 0..slice.len() {
            let seconds = seconds.get(row).filter(|seconds| *seconds > 0.0);
            let Some(seconds) = seconds.filter(|_| slice.flag("omitted", row) == Some(false))
            else {
                continue;
            };
            let (flow, received) =
                (flow.get(row).unwrap_or_default(), side.get(row) == Some("rcv"));
            let (end_s, received_bytes) = (end_s.get(row), bytes.get(row));
            let bytes = received_bytes.unwrap_or(0.0);
            let group = group.get(row).unwrap_or_default();
            let known_end_s = end_s.filter(|_| received);
            if let Some(end_s) = known_end_s {
                bins.interval(flow, end_s, seconds, bytes);
                for phase in &end.phases {
                    let (from_s, to_s) = phase.span_s();
                    let inside_s = end_s.min(to_s) - (end_s - seconds).max(from_s);
                    if inside_s > 0.0 {
                        let sum = &mut found.at([&phase.name, group, flow]).received;
                        sum.get_or_insert_default().inside_bytes += bytes * inside_s / seconds;
                    }
                }
            }
            let Some(phase) = phase.get(row) else { continue };
            let reported = found.at([phase, group, flow]);
            let side = if received { &mut reported.received } else { &mut reported.sent };
            let sum = side.get_or_insert_default();
            if known_end_s.is_none() {
                sum.inside_bytes += bytes;
            }
            if let Some(end_s) = end_s {
                sum.reach((end_s - seconds, end_s));
            }
            sum.bytes += bytes;
            sum.seconds += seconds;
            sum.intervals += u32::from(received_bytes.is_some());
        }
    })?;
    let mut found = found.sorted();
    // If only the remainder of an interval reaches into a phase, the flow has no intervals in this phase.
    for (_, reported) in &mut found {
        reported.received = reported.received.filter(|sum| sum.seconds > 0.0);
    }
    found.retain(|(_, reported)| reported.received.is_some() || reported.sent.is_some());
    Ok(found)
}

fn samples(run: &RunDir, end: &TrialEnd, bins: &mut BinnedFlows) -> Result<Vec<(Names, Sampled)>> {
    const COLUMNS: [&str; 6] = ["phase", "group", "flow_id", "role", "side", "t_s"];
    const GAUGES: [&str; 4] = ["rtt_us", "snd_cwnd_pkts", "delivery_rate_bytes_per_s", "ecn_mode"];
    let columns = [&COLUMNS[..], &GAUGES, &IN_FLIGHT, &COUNTERS].concat();
    let mut found: GroupedRows<Sampled> = GroupedRows::new();
    let mut unwrapped: GroupedRows<Unwrapped> = GroupedRows::new();
    each_slice(run, "flow_samples", end, &columns, |slice| {
        let [phase, group, flow, role, side] =
            ["phase", "group", "flow_id", "role", "side"].map(|name| slice.texts(name));
        let at_s = slice.numbers("t_s");
        let [srtt_us, cwnd_pkts, delivery_rate, ecn_mode] = GAUGES.map(|name| slice.numbers(name));
        let in_flight = IN_FLIGHT.map(|name| slice.numbers(name));
        let counters = COUNTERS.map(|name| slice.numbers(name));
        for row in 0..slice.len() {
            if role.get(row) != Some("data") || side.get(row) != Some("snd") {
                continue;
            }
            let (flow, at_s) = (flow.get(row).unwrap_or_default(), at_s.get(row));
            // Before the first measurement, as after a lost SYN, the kernel has 0 (`tcp_rtt_estimator` in net/ipv4/tcp_input.c).
            let srtt_us = srtt_us.get(row).filter(|us| *us > 0.0);
            if let Some((at_s, us)) = at_s.zip(srtt_us) {
                bins.srtt(flow, at_s, us);
            }
            let known = phase.get(row);
            if known.is_none() && at_s.is_none_or(|at_s| at_s < 0.0) {
                continue;
            }
            let group = group.get(row).unwrap_or_default();
            let sampled = found.at([known.unwrap_or_default(), group, flow]);
            let now = counters.each_ref().map(|counter| counter.get(row));
            sampled.add_counters(unwrapped.at(["", "", flow]).next(now));
            if known.is_none() {
                continue;
            }
            sampled.srtt_us.extend(srtt_us);
            sampled.cwnd_pkts.extend(cwnd_pkts.get(row));
            let counted = in_flight.each_ref().map(|counter| counter.get(row));
            sampled.in_flight_pkts.extend(packets_in_flight(counted));
            sampled.delivery_rate_bps.extend(delivery_rate.get(row).map(|bytes| bytes * 8.0));
            sampled.ecn_mode.extend(ecn_mode.get(row));
            if let Some(at_s) = at_s {
                let (first_s, last_s) = sampled.span_s.unwrap_or((at_s, at_s));
                sampled.span_s = Some((first_s.min(at_s), last_s.max(at_s)));
                sampled.rows += 1;
            }
        }
    })?;
    Ok(found.sorted())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_in_turn_cover_the_time_of_all() {
        let flow = |from_s: f64, to_s: f64, seconds: f64| {
            let mut flow = Transferred { seconds, ..Transferred::default() };
            flow.reach((from_s, to_s));
            flow
        };
        let covered = |flows: &[Transferred]| covered_s(flows.iter());
        // Together: that of the one that covers the most.
        assert_eq!(covered(&[flow(0.0, 20.0, 19.5), flow(0.01, 20.0, 19.9)]), 19.9);
        assert_eq!(covered(&[flow(0.0, 20.0, 20.0), flow(3.0, 4.0, 1.0)]), 20.0);
        // Three tests of a server, whose times have a resolution of a second.
        let tests = [flow(40.0, 60.0, 20.0), flow(0.0, 20.0, 20.0), flow(19.0, 39.0, 20.0)];
        assert_eq!(covered(&tests), 60.0);
        // They overlap a little: a test that began early, and a short flow beside one that began late.
        assert_eq!(covered(&[flow(0.0, 10.0, 10.0), flow(6.0, 16.0, 10.0)]), 16.0);
        assert_eq!(covered(&[flow(0.0, 1.0, 1.0), flow(0.75, 10.0, 9.25)]), 10.0);
        // Flows that overlap for more than half of their time, and one that lasts longer by less than an interval.
        assert_eq!(covered(&[flow(0.0, 10.0, 10.0), flow(4.0, 14.0, 10.0)]), 14.0);
        let tenths =
            |from_s: f64| Transferred { intervals: 100, ..flow(from_s, from_s + 10.0, 10.0) };
        assert_eq!(covered(&[tenths(0.0), tenths(0.05)]), 10.0);
        let found = covered(&[tenths(0.0), tenths(0.08), tenths(0.16)]);
        assert!((found - 10.16).abs() < 1e-9, "{found}");
        let sampled_once = [flow(0.0, 10.0, 10.0), flow(0.25, 0.25, 0.0), flow(0.5, 10.0, 9.5)];
        assert_eq!(covered(&sampled_once), 10.0);
        assert_eq!(covered(&[Transferred { seconds: 5.0, ..Transferred::default() }]), 5.0);
        assert_eq!(covered(&[]), 0.0);
    }

    #[test]
    fn counters_of_32_bits_go_on_after_a_wrap() {
        let mut socket = Unwrapped::default();
        let mut next = |segments: u32, bytes: f64| {
            let found = socket.next([None, Some(f64::from(segments)), Some(bytes), None]);
            assert_eq!((found[0], found[3]), (None, None));
            (found[1].unwrap(), found[2].unwrap())
        };
        assert_eq!(next(4_294_967_000, 9e12), (4_294_967_000.0, 9e12));
        assert_eq!(next(704, 9.1e12), (4_294_968_000.0, 9.1e12));
        // Two samples in the wrong order, a second round, and bytes that begin again.
        assert_eq!(next(700, 9.1e12), (4_294_967_996.0, 9.1e12));
        assert_eq!(next(4_000_000_000, 9.2e12), (8_294_967_296.0, 9.2e12));
        assert_eq!(next(5, 1.0), (8_589_934_597.0, 1.0));
    }
}
