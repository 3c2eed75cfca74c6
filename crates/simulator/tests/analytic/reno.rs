//! Reno's throughput under random loss: the square root formula (Mathis, Semke, Mahdavi and Ott 1997).

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::wire::run_event::Of;
use ccbench_proto::wire::{FlowSample, Side};
use ccbench_simulator::T0_NS;

use super::{points, simulate};

const PLAN: &str = include_str!("../../../../plans/conformance/analytic/reno-loss-rate.toml");

/// W sqrt(p) for losses at equal distances, and for independent ones (Ott, Kemperman and Mathis 1996). Linux counts the packets of a delayed
/// acknowledgement, so neither is divided by sqrt(2).
const PERIODIC: f64 = 1.22;
const INDEPENDENT: f64 = 1.31;
/// A fifth less: one of about ten round trips per loss is spent in recovery, in which the window does not grow, and at 250 losses the mean
/// has a standard error of 4 %. A quarter more.
const LEAST: f64 = 0.8;
const MOST: f64 = 1.25;
/// The plan's first phase, which has slow start.
const START_S: f64 = 10.0;
const MSS_BYTES: f64 = 1448.0;

/// The sender's samples after the first phase.
fn samples(point: &CheckedPlan) -> Vec<FlowSample> {
    let mut samples = Vec::new();
    simulate(point, 1, |row| match row {
        Of::FlowSample(sample) if sample.side() == Side::Sender => samples.push(sample),
        _ => {}
    });
    samples.retain(|sample| (sample.at_ns - T0_NS) as f64 / 1e9 >= START_S);
    samples
}

#[test]
fn throughput_is_inverse_to_the_root_of_the_loss_rate() {
    for (levels, point) in points(PLAN) {
        let percent: f64 = levels[0].trim_end_matches('%').parse().unwrap();
        let samples = samples(&point);
        let [first, .., last] = &samples[..] else { panic!("{levels:?}: {}", samples.len()) };
        let acked_bytes = last.bytes_acked.unwrap() - first.bytes_acked.unwrap();
        let span_s = (last.at_ns - first.at_ns) as f64 / 1e9;
        let rtt_s = f64::from(last.min_rtt_us.unwrap()) / 1e6;
        let window_pkts = acked_bytes as f64 / MSS_BYTES / span_s * rtt_s;
        let constant = window_pkts * (percent / 100.0).sqrt();
        let bounds = PERIODIC * LEAST..=INDEPENDENT * MOST;
        assert!(bounds.contains(&constant), "{levels:?}: {constant} of {bounds:?}");
    }
}
