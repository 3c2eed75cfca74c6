//! Compares the simulator with closed formulas, with the plans of `plans/conformance/analytic`. docs/congestion-controls.md, "Analytic
//! checks", has the formulas and the origin of the tolerances. Seeds are fixed, so a test always gives the same result.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use ccbench_proto::plan::check::{self, CheckedPlan, Target, TraceFiles};
use ccbench_proto::wire::run_event::Payload;
use ccbench_proto::wire::{Acks, RunEvent, Side};
use ccbench_simulator::{Simulation, T0_NS};

mod cubic;
mod dualpi2;
mod loss;
mod loss_rate;
mod red;

/// `enum tcp_ca_state`. States below it: Open, and Disorder, in which nothing is known to be lost.
const OPEN: u32 = 0;
const CWR: u32 = 2;
const RECOVERY: u32 = 3;
const LOSS: u32 = 4;

/// Returns the points of a plan, each with the levels of its factors. Kernels can also run the plan.
fn points(text: &str) -> Vec<(Vec<String>, CheckedPlan)> {
    check::read(text, &[]).unwrap_or_else(|problems| panic!("{problems:?}"));
    let read = check::read_for(Target::Simulator, text, &[], TraceFiles::new());
    let (plan, _) = read.unwrap_or_else(|problems| panic!("{problems:?}"));
    let levels = |factors: Vec<(String, String)>| factors.into_iter().map(|(_, level)| level);
    plan.points().into_iter().map(|point| (levels(point.factors).collect(), point.plan)).collect()
}

/// Runs a trial. `take` receives each row.
fn simulate(point: &CheckedPlan, seed: u64, mut take: impl FnMut(Payload)) {
    let emit = &mut |_: &str, event: RunEvent| take(event.payload.unwrap());
    Simulation::of_trial(point, seed).unwrap().run(emit, &|| true).unwrap();
}

/// A sender's row of `acks`: the state after an acknowledgement, before the sender sends what it permits.
#[derive(Debug, Clone, Copy)]
struct AckRow {
    /// Seconds since the trial began.
    at_s: f64,
    ca_state: u32,
    cwnd_pkts: u32,
    ssthresh_pkts: u32,
    srtt_us: u32,
    min_rtt_us: u32,
    /// Bytes acknowledged, and bytes sent at least once.
    acked_bytes: u64,
    next_bytes: u64,
    delivered_pkts: u32,
    delivered_ce_pkts: u32,
}

/// Returns a cell. A column with only one value has that value in every row.
fn cell<T: Copy>(column: &[T], row: usize) -> T {
    if column.len() == 1 { column[0] } else { column[row] }
}

/// Returns the rows of a batch.
fn ack_rows(acks: &Acks) -> impl Iterator<Item = AckRow> + '_ {
    acks.at_ns.iter().enumerate().map(|(row, at_ns)| AckRow {
        at_s: (at_ns - T0_NS) as f64 / 1e9,
        ca_state: cell(&acks.ca_state, row),
        cwnd_pkts: cell(&acks.snd_cwnd_pkts, row),
        ssthresh_pkts: cell(&acks.snd_ssthresh_pkts, row),
        srtt_us: cell(&acks.rtt_us, row),
        min_rtt_us: cell(&acks.min_rtt_us, row),
        acked_bytes: cell(&acks.bytes_acked, row),
        next_bytes: cell(&acks.bytes_sent, row) - cell(&acks.bytes_retrans, row),
        delivered_pkts: cell(&acks.delivered_pkts, row),
        delivered_ce_pkts: cell(&acks.delivered_ce_pkts, row),
    })
}

/// Returns the sender's rows of the only flow of a plan.
fn sender_rows(point: &CheckedPlan, seed: u64) -> Vec<AckRow> {
    let mut rows = Vec::new();
    simulate(point, seed, |row| match row {
        Payload::Acks(acks) if acks.side() == Side::Sender => rows.extend(ack_rows(&acks)),
        _ => {}
    });
    assert!(rows.len() > 10_000, "{}", rows.len());
    rows
}
