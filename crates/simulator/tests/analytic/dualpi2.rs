//! Tests DualPI2's coupling (RFC 9332): p_CL = k p', p_C = p'^2.

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::wire::QdiscSample;
use ccbench_proto::wire::run_event::Payload;

use super::{points, simulate};

const PLAN: &str = include_str!("../../../../plans/conformance/analytic/dualpi2-coupling.toml");

/// Normal quantile for a two-sided significance of 10^-4, per comparison of a share with its probability.
const Z: f64 = 3.89;
/// A backlog below two frames is never marked or dropped. This is twice that, plus what the line takes between two samples (2500 bytes and
/// the packet that it has begun).
const LEAST_BACKLOG_BYTES: u64 = 4 * 1514 + 2500 + 1514;

/// A sum of independent trials with the probabilities from the formula.
#[derive(Debug, Default)]
struct Shares {
    found: f64,
    expected: f64,
    variance: f64,
}

impl Shares {
    fn add(&mut self, found: u64, packets: u64, probability: f64) {
        self.found += found as f64;
        self.expected += packets as f64 * probability;
        self.variance += packets as f64 * probability * (1.0 - probability);
    }

    /// Returns the distance from the expectation in standard deviations.
    fn z(&self) -> f64 {
        (self.found - self.expected) / self.variance.sqrt()
    }
}

/// Returns the samples of the bottleneck.
fn samples(point: &CheckedPlan) -> Vec<QdiscSample> {
    let mut samples = Vec::new();
    simulate(point, 1, |row| match row {
        Payload::QdiscSample(sample) if sample.link == "bottleneck" => samples.push(sample),
        _ => {}
    });
    samples
}

/// Returns the marks of L, whose probability should be k p', and the drops of C, whose probability should be p' to the `power`. Counts
/// intervals between samples with the same base probability, which changes at most once between two samples.
fn shares(samples: &[QdiscSample], k: f64, power: i32) -> (Shares, Shares) {
    let (mut l, mut c) = (Shares::default(), Shares::default());
    for two in samples.windows(2) {
        let (before, after) = (&two[0], &two[1]);
        let prob = after.prob.unwrap();
        // The backlog afterwards is no criterion: it is shorter where more packets were dropped.
        let is_short = before.backlog_bytes < LEAST_BACKLOG_BYTES;
        // Above 1/k, RFC 9332 drops packets of both queues.
        if before.prob != after.prob || is_short || k * prob > 1.0 {
            continue;
        }
        let grown = |of: fn(&QdiscSample) -> Option<u64>| of(after).unwrap() - of(before).unwrap();
        let (marks, drops) = (grown(|row| row.ecn_mark_pkts), grown(|row| row.drop_early_pkts));
        // Packets of C are not ECN-capable, so all drops belong to C and all marks to L.
        l.add(marks, grown(|row| row.pkts_in_l), k * prob);
        c.add(drops, grown(|row| row.pkts_in_c) + drops, prob.powi(power));
    }
    (l, c)
}

#[test]
fn marks_and_drops_have_the_coupled_probabilities() {
    for (levels, point) in points(PLAN) {
        let k: f64 = levels[0].parse().unwrap();
        let samples = samples(&point);
        let last = samples.last().unwrap();
        assert_eq!((last.step_mark_pkts, last.drop_overlimit_pkts), (Some(0), Some(0)), "{k}");
        let (l, c) = shares(&samples, k, 2);
        assert!(l.expected > 1000.0 && c.expected > 100.0, "k = {k}: {l:?} {c:?}");
        assert!(l.z().abs() < Z, "k = {k}: {} {l:?}", l.z());
        assert!(c.z().abs() < Z, "k = {k}: {} {c:?}", c.z());
        // There are enough packets to reject a different coupling factor or power.
        let (other, _) = shares(&samples, k + 0.5, 2);
        assert!(other.z().abs() > Z, "k = {k}: {} {other:?}", other.z());
        for power in [1, 3] {
            let (_, other) = shares(&samples, k, power);
            assert!(other.z().abs() > Z, "p'^{power}: {} {other:?}", other.z());
        }
    }
}
