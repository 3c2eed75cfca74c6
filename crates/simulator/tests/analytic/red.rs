//! Tests RED's probability as a function of the average queue (Floyd and Jacobson 1993, `net/sched/sch_red.c`).

use std::collections::VecDeque;

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::wire::run_event::Payload;
use ccbench_proto::wire::{LinkPacket, PacketFate, QdiscSample};
use statrs::distribution::{ChiSquared, ContinuousCDF as _};

use super::{points, simulate};

const PLAN: &str = include_str!("../../../../plans/conformance/analytic/red-probability.toml");

/// The plan's thresholds in bytes, and its probability at `MAX_TH`.
const MIN_TH: f64 = 20_000.0;
const MAX_TH: f64 = 80_000.0;
const MAX_P: f64 = 0.1;
/// The weight of a packet, 2^-8: the first for which a burst of 100 packets of 1000 bytes leaves the average below `min` (section 6 of the
/// paper; `tc_red_eval_ewma()`).
const WEIGHT: f64 = 1.0 / 256.0;
/// Idle time counts as packets of 1000 bytes at 12.112 Mbit/s.
const PACKET_NS: f64 = 660_501.0;

/// Number of intervals of the average queue, and the variance of marks above which an interval's count is almost normal.
const INTERVALS: usize = 10;
const LEAST_VARIANCE: f64 = 5.0;
/// The test rejects one correct queue in a thousand.
const SIGNIFICANCE: f64 = 1e-3;

/// Returns the probability at an average queue of this many bytes: p_b of the paper, and 1 from `max` on.
fn probability(average: f64) -> f64 {
    match average {
        average if average < MIN_TH => 0.0,
        average if average >= MAX_TH => 1.0,
        average => MAX_P * (average - MIN_TH) / (MAX_TH - MIN_TH),
    }
}

/// Packets between the thresholds for which the average queue was in one interval.
#[derive(Debug, Clone, Copy, Default)]
struct Interval {
    marked: f64,
    expected: f64,
    variance: f64,
}

/// Returns the packets of a bottleneck in order of arrival, up to the last one that was sent, and its samples.
fn rows(point: &CheckedPlan) -> (Vec<LinkPacket>, Vec<QdiscSample>) {
    let (mut packets, mut samples) = (Vec::new(), Vec::new());
    simulate(point, 1, |row| match row {
        Payload::LinkPacket(packet) if packet.link == "bottleneck" => packets.push(packet),
        Payload::QdiscSample(sample) if sample.link == "bottleneck" => samples.push(sample),
        _ => {}
    });
    let sent = packets.iter().filter(|packet| packet.fate() == PacketFate::Sent);
    let last_ns = sent.map(|packet| packet.at_ns).max().unwrap();
    packets.retain(|packet| packet.at_ns <= last_ns);
    packets.sort_by_key(|packet| packet.at_ns);
    (packets, samples)
}

/// RED's computation from the arriving packets: an independent model of the queue and its average.
#[derive(Debug, Default)]
struct Replay {
    /// When each packet leaves the queue for the line, and its size in bytes.
    waiting: VecDeque<(u64, u32)>,
    backlog_bytes: u64,
    /// Since when the line has been idle, as of the time at which it had sent all packets so far.
    idle_since_ns: Option<u64>,
    average: f64,
    /// Packets since the last mark, and the maximum of their number times the probability; `None`: outside the thresholds.
    since_mark: Option<(u32, f64)>,
}

impl Replay {
    /// Computes the average queue that a packet finds, as in the paper, which counts idle time as packets that arrive at an empty queue.
    fn arrive(&mut self, at_ns: u64) {
        while self.waiting.front().is_some_and(|(leaves_ns, _)| *leaves_ns <= at_ns) {
            let left = self.waiting.pop_front().map_or(0, |(_, bytes)| bytes);
            self.backlog_bytes -= u64::from(left);
        }
        match self.idle_since_ns {
            Some(since_ns) if since_ns <= at_ns => {
                let packets = (at_ns - since_ns) as f64 / PACKET_NS;
                self.average *= (1.0 - WEIGHT).powf(packets);
            }
            _ => self.average += (self.backlog_bytes as f64 - self.average) * WEIGHT,
        }
    }

    /// Lets the packet wait until it is sent at `due_ns`.
    fn enqueue(&mut self, packet: &LinkPacket, due_ns: u64) {
        let begins_ns = self.idle_since_ns.map_or(packet.at_ns, |ns| ns.max(packet.at_ns));
        self.waiting.push_back((begins_ns, packet.bytes));
        self.backlog_bytes += u64::from(packet.bytes);
        self.idle_since_ns = Some(due_ns);
    }

    /// Compares the fate of a packet with the probability. A packet is marked when the number of packets since the last mark, times the
    /// probability, reaches a number that is uniform between 0 and 1. If the products so far are below a, and this one is b, that happens
    /// with probability (b - a) / (1 - a). With a constant probability, this is p / (1 - count p) of the paper.
    fn compare(&mut self, is_marked: bool, intervals: &mut [Interval; INTERVALS]) {
        if !(MIN_TH..MAX_TH).contains(&self.average) {
            assert_eq!(is_marked, self.average >= MAX_TH, "{self:?}");
            self.since_mark = None;
            return;
        }
        let Some((before, reached)) = self.since_mark else {
            assert!(!is_marked, "the first packet above the threshold: {self:?}");
            self.since_mark = Some((0, 0.0));
            return;
        };
        let product = (probability(self.average) * f64::from(before + 1)).clamp(reached, 1.0);
        let hazard = (product - reached) / (1.0 - reached);
        let share = (self.average - MIN_TH) / (MAX_TH - MIN_TH);
        let interval = &mut intervals[(share * INTERVALS as f64) as usize];
        interval.marked += f64::from(u8::from(is_marked));
        interval.expected += hazard;
        interval.variance += hazard * (1.0 - hazard);
        assert!(is_marked || product < 1.0, "a mark is overdue: {self:?}");
        self.since_mark = Some(if is_marked { (0, 0.0) } else { (before + 1, product) });
    }
}

/// Replays the packets. Returns the probability after each one, with its time.
fn replay(packets: &[LinkPacket], intervals: &mut [Interval; INTERVALS]) -> Vec<(u64, f64)> {
    let (mut replay, mut probabilities) = (Replay::default(), Vec::new());
    for packet in packets {
        replay.arrive(packet.at_ns);
        let is_dropped = match packet.fate() {
            PacketFate::Sent => false,
            // Dropped because it is not ECN-capable.
            PacketFate::Early => true,
            other => panic!("{other:?}"),
        };
        replay.compare(is_dropped || packet.marked, intervals);
        if !is_dropped {
            replay.enqueue(packet, packet.due_ns.unwrap());
        } else if replay.idle_since_ns.is_some_and(|since_ns| since_ns < packet.at_ns) {
            // The queue was empty and stays empty, so its idle time begins again.
            replay.idle_since_ns = Some(packet.at_ns);
        }
        probabilities.push((packet.at_ns, probability(replay.average)));
    }
    probabilities
}

/// Checks that the queue's own probability is that of the model after the previous packet.
fn assert_probabilities(samples: &[QdiscSample], probabilities: &[(u64, f64)]) {
    let mut compared = 0;
    for sample in samples {
        let later = probabilities.partition_point(|(at_ns, _)| *at_ns < sample.at_ns);
        let is_known = probabilities.get(later).is_some_and(|(at_ns, _)| *at_ns > sample.at_ns);
        if later > 0 && is_known {
            let (own, model) = (sample.prob.unwrap(), probabilities[later - 1].1);
            assert!((own - model).abs() < 1e-6, "{} ns: {own} {model}", sample.at_ns);
            compared += 1;
        }
    }
    assert!(compared > 100, "{compared}");
}

#[test]
fn marks_have_the_probability_of_the_average_queue() {
    let mut intervals = [Interval::default(); INTERVALS];
    for (_, point) in points(PLAN) {
        let (packets, samples) = rows(&point);
        assert!(packets.len() > 10_000, "{}", packets.len());
        let probabilities = replay(&packets, &mut intervals);
        assert_probabilities(&samples, &probabilities);
    }
    let enough = intervals.iter().filter(|interval| interval.variance >= LEAST_VARIANCE);
    let terms = enough.map(|interval| {
        let Interval { marked, expected, variance } = *interval;
        (marked - expected).powi(2) / variance
    });
    let terms: Vec<f64> = terms.collect();
    assert!(terms.len() >= 5, "{intervals:?}");
    let chi_squared: f64 = terms.iter().sum();
    let share = ChiSquared::new(terms.len() as f64).unwrap().sf(chi_squared);
    assert!(share > SIGNIFICANCE, "{chi_squared} of {}: {share} {intervals:?}", terms.len());
}
