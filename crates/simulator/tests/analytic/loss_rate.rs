//! Tests throughput under random loss: the square root formula of Reno (Mathis, Semke, Mahdavi and Ott 1997), which CUBIC on short paths
//! and DCTCP without marks also follow, and CUBIC's own formula (RFC 9438, section 5).

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::wire::run_event::Payload;
use ccbench_proto::wire::{FlowSample, Side};
use ccbench_simulator::T0_NS;

use super::{points, simulate};

const RENO: &str = include_str!("../../../../plans/conformance/analytic/reno-loss-rate.toml");
const CUBIC: &str = include_str!("../../../../plans/conformance/analytic/cubic-loss-rate.toml");

/// W sqrt(p) for losses at equal distances, and for independent losses (Ott, Kemperman and Mathis 1996). Linux counts the packets of a
/// delayed acknowledgement, so neither is divided by sqrt(2).
const PERIODIC: f64 = 1.22;
const INDEPENDENT: f64 = 1.31;
/// W (p / R)^0.75 of CUBIC: the fourth root of C (3 + beta) / (4 (1 - beta)).
const CUBIC_PERIODIC: f64 = 1.054;
/// A fifth less: about one of ten round trips per loss is spent in recovery, in which the window does not grow, and at 250 losses the mean
/// has a standard error of 4 %. A quarter more: with CUBIC, whose window is concave, independent losses raise the mean by a tenth (computed
/// from the formulas of the window, with fast convergence).
const LEAST: f64 = 0.8;
const MOST: f64 = 1.25;
/// The first phase of the plans, which contains slow start.
const START_S: f64 = 10.0;
const MSS_BYTES: f64 = 1448.0;

/// Returns the mean window in packets after the first phase, the loss rate, and the round-trip time in seconds.
fn measured(levels: &[String], point: &CheckedPlan) -> (f64, f64, f64) {
    let mut samples: Vec<FlowSample> = Vec::new();
    simulate(point, 1, |row| match row {
        Payload::FlowSample(sample) if sample.side() == Side::Sender => samples.push(sample),
        _ => {}
    });
    samples.retain(|sample| (sample.at_ns - T0_NS) as f64 / 1e9 >= START_S);
    let [first, .., last] = &samples[..] else { panic!("{levels:?}: {}", samples.len()) };
    let acked_bytes = last.bytes_acked.unwrap() - first.bytes_acked.unwrap();
    let span_s = (last.at_ns - first.at_ns) as f64 / 1e9;
    let rtt_s = f64::from(last.min_rtt_us.unwrap()) / 1e6;
    let loss = point.plan().links["there"].loss.unwrap();
    (acked_bytes as f64 / MSS_BYTES / span_s * rtt_s, f64::from(loss.get()) / 1e6, rtt_s)
}

#[test]
fn throughput_is_inverse_to_the_root_of_the_loss_rate() {
    for (levels, point) in points(RENO) {
        let (window_pkts, loss, _) = measured(&levels, &point);
        let constant = window_pkts * loss.sqrt();
        let bounds = PERIODIC * LEAST..=INDEPENDENT * MOST;
        assert!(bounds.contains(&constant), "{levels:?}: {constant} of {bounds:?}");
    }
}

#[test]
fn cubic_takes_the_power_of_three_quarters() {
    for (levels, point) in points(CUBIC) {
        let (window_pkts, loss, rtt_s) = measured(&levels, &point);
        let constant = window_pkts * (loss / rtt_s).powf(0.75);
        let bounds = CUBIC_PERIODIC * LEAST..=CUBIC_PERIODIC * MOST;
        assert!(bounds.contains(&constant), "{levels:?}: {constant} of {bounds:?}");
    }
}
