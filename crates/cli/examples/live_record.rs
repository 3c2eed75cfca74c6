//! Measures the CPU time of recording rows for live views. Every run records them, also without a view.
//!
//! `live_record FLOWS SECONDS` replays a trial of this length with flows that both ends sample every 100 ms, and prints the time in
//! percent of a core.
#![allow(clippy::disallowed_methods, reason = "measures CPU time")]
#![allow(clippy::unwrap_used, reason = "a measurement may panic")]

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Mutex;

use ccbench_proto::schedule::PhaseSpan;
use ccbench_proto::units::Micros;
use ccbench_proto::wire::{FlowSample, Role, RunEvent, Side, run_event::Payload};
use rustix::time::{ClockId, clock_gettime};

use live::state::LiveState;
use live::trial::TrialFacts;

#[allow(dead_code, reason = "views use the rest")]
#[path = "../src/live"]
mod live {
    mod link;
    pub mod series;
    pub mod state;
    pub mod trial;
    pub mod update;
}

const SAMPLES_PER_S: u64 = 10;
const SAMPLE_NS: u64 = 1_000_000_000 / SAMPLES_PER_S;
/// A node and the end of a flow that it samples.
const ENDS: [(&str, Side); 2] = [("src", Side::Sender), ("dst", Side::Receiver)];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |text: &String| text.parse::<u64>().ok().filter(|number| *number > 0);
    let numbers: Vec<u64> = arguments.iter().skip(1).filter_map(number).collect();
    let [flows, seconds] = numbers[..] else {
        eprintln!("usage: live_record FLOWS SECONDS, both above 0");
        return ExitCode::from(2);
    };
    let mut state = LiveState::default();
    let phases = vec![PhaseSpan::new("only", Micros::from_secs(0), Micros::from_secs(seconds))];
    let facts = TrialFacts { number: 1, label: "replayed".to_owned(), phases, flows };
    state.start_trial(facts, None);
    state.clocks(1, ENDS.iter().map(|(node, _)| ((*node).to_owned(), 0)).collect());
    // As in a run, each row locks the state.
    let state = Mutex::new(state);
    let with = replay(flows, seconds, |node, row| state.lock().unwrap().record(1, node, row));
    let without = replay(flows, seconds, |node, row| {
        black_box((node, row));
    });
    let (update, _) = state.into_inner().unwrap().update(None);
    let trial = update.trial.unwrap();
    assert_eq!(trial.flows.len() as u64, flows, "every flow is recorded");
    assert_eq!((trial.rows_left_out, trial.rows_outside), (0, 0), "every row is recorded");
    println!("{:.3}", 100.0 * with.saturating_sub(without) as f64 / (seconds as f64 * 1e9));
    ExitCode::SUCCESS
}

/// Passes each row of a trial with its node to `each`. Returns the CPU time in nanoseconds.
fn replay(flows: u64, seconds: u64, each: impl Fn(&str, &RunEvent)) -> u64 {
    let row = |flow: u64, side: Side| FlowSample {
        flow_id: format!("many/{flow}"),
        group: "many".to_owned(),
        cc: "cubic".to_owned(),
        side: side.into(),
        role: Role::Data.into(),
        rtt_us: Some(20_000),
        snd_cwnd_pkts: Some(10),
        unacked_pkts: Some(8),
        sacked_pkts: Some(0),
        lost_pkts: Some(0),
        retrans_pkts: Some(0),
        total_retrans_pkts: Some(0),
        ..FlowSample::default()
    };
    let mut rows: Vec<(&str, RunEvent)> = Vec::new();
    for flow in 0..flows {
        let of_end =
            |(node, side)| (node, RunEvent { payload: Some(Payload::FlowSample(row(flow, side))) });
        rows.extend(ENDS.map(of_end));
    }
    let begin_ns = cpu_ns();
    for sample in 0..seconds * SAMPLES_PER_S {
        for (node, event) in &mut rows {
            if let Some(Payload::FlowSample(row)) = &mut event.payload {
                row.at_ns = sample * SAMPLE_NS;
                let bytes = Some(sample * 12_500);
                (row.bytes_acked, row.bytes_received) = (bytes, bytes);
            }
            each(node, event);
        }
    }
    cpu_ns() - begin_ns
}

/// Returns the CPU time of this thread.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
