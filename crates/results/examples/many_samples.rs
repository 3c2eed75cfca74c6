//! Creates a synthetic results directory to benchmark the summary and the report. Its trials have eight flows in four groups, which run
//! through three phases with evenly spaced samples, and two links and a probe with ten samples per second.
//!
//! `many_samples FOLDER SAMPLES [TRIALS]` prints the path of the directory.

#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::collections::BTreeMap;
use std::path::Path;

use ccbench_proto::schedule::PhaseSpan;
use ccbench_proto::units::Micros;
use ccbench_proto::wire::{
    FlowSample, Interval, Probe, QdiscSample, Role, RunEvent, SampleSource, Side,
    run_event::Payload,
};
use ccbench_results::model::{NodeClock, RunInfo, RunStatus, Status, TrialKey, Verdict};
use ccbench_results::store::RunDir;

const FLOWS: u64 = 8;
const LENGTH_S: u64 = 180;
const T0_NS: u64 = 1_000_000_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, samples, rest @ ..] = arguments.as_slice() else {
        eprintln!("many_samples FOLDER SAMPLES [TRIALS]");
        std::process::exit(2);
    };
    let samples: u64 = samples.parse().unwrap();
    let trials: u16 = rest.first().map_or(5, |text| text.parse().unwrap());
    let run = RunDir::create(Path::new(folder), &info(trials)).unwrap();
    for trial in 1..=trials {
        write_trial(&run, trial, samples / u64::from(trials) / FLOWS);
    }
    run.finish(RunStatus::Complete).unwrap();
    println!("{}", run.path().display());
}

fn info(trials: u16) -> RunInfo {
    RunInfo {
        plan_name: "many".into(),
        plan_text: "name = \"many\"\n".into(),
        resolved_text: "# many: there is no plan\n".into(),
        plan_sha256: "0".repeat(64),
        points: vec![(0, vec![])],
        repeat: u32::from(trials),
        seed: 1,
        command_line: vec![],
        ccbench_version: env!("CARGO_PKG_VERSION").into(),
        started_utc: jiff::Timestamp::UNIX_EPOCH,
        nodes: BTreeMap::new(),
        backend: ccbench_results::backend::RunBackend::Testbed,
        topology: serde_json::Value::Null,
        notes: vec![],
        sets: vec![],
        traces: BTreeMap::new(),
        ccs: BTreeMap::new(),
        imported: vec![],
    }
}

fn phases() -> Vec<PhaseSpan> {
    let third = |nth| Micros::from_secs(nth * LENGTH_S / 3);
    let phase = |(nth, name): (u64, &str)| PhaseSpan::new(name, third(nth), third(nth + 1));
    (0..).zip(["alone", "compete", "resume"]).map(phase).collect()
}

/// Writes one trial with this many samples of each flow.
fn write_trial(run: &RunDir, trial: u16, samples_per_flow: u64) {
    let offset_ns = 1_700_000_000_000_000_000 + i64::from(trial) * 1_000_000_000_000;
    let clock = NodeClock::shared(T0_NS, offset_ns);
    let key = TrialKey { point_id: 0, trial, seed: u64::from(trial), epoch: run.next_epoch() };
    let clocks = BTreeMap::from([("src".to_owned(), clock)]);
    let mut writer = run.begin_trial(key, &phases(), clocks).unwrap();
    let gap_ns = LENGTH_S * 1_000_000_000 / samples_per_flow.max(1);
    let mut state = u64::from(trial);
    let mut random = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    for nth in 0..samples_per_flow {
        for flow in 0..FLOWS {
            let sample = sample(nth, flow, gap_ns, &mut random);
            writer.push("src", RunEvent { payload: Some(Payload::FlowSample(sample)) }).unwrap();
        }
    }
    for step in 0..LENGTH_S * 10 {
        for flow in 0..FLOWS {
            let bytes = 140_000 + u64::from(random() % 20_000);
            let interval = Interval {
                at_ns: T0_NS + (step + 1) * 100_000_000,
                flow_id: format!("group-{}/{}", flow / 2, flow % 2),
                group: format!("group-{}", flow / 2),
                side: Side::Receiver.into(),
                start_s: step as f64 / 10.0,
                end_s: (step + 1) as f64 / 10.0,
                seconds: 0.1,
                bytes,
                bits_per_second: bytes as f64 * 80.0,
                ..Interval::default()
            };
            writer.push("src", RunEvent { payload: Some(Payload::Interval(interval)) }).unwrap();
        }
    }
    for step in 0..LENGTH_S * 10 {
        let at_ns = T0_NS + step * 100_000_000;
        let rtt_us = Some(20_000.0 + f64::from(random() % 1_000_000) / 300.0);
        let probe = Probe { at_ns, probe_id: "rtt".into(), rtt_us, ..Probe::default() };
        writer.push("src", RunEvent { payload: Some(Payload::Probe(probe)) }).unwrap();
        for link in ["there", "back"] {
            let backlog_bytes = u64::from(random() % 200_000);
            for (kind, parent) in [("htb", "root"), ("bfifo", "1:1")] {
                let sample = QdiscSample {
                    at_ns,
                    link: link.into(),
                    kind: kind.into(),
                    parent: parent.into(),
                    sent_bytes: step * 1_200_000,
                    backlog_bytes,
                    rate_bps: Some(97_000_000 + u64::from(random() % 1_000_000)),
                    ..QdiscSample::default()
                };
                writer
                    .push("src", RunEvent { payload: Some(Payload::QdiscSample(sample)) })
                    .unwrap();
            }
        }
    }
    writer.commit(&Verdict { status: Status::Ok, reasons: vec![] }).unwrap();
}

fn sample(nth: u64, flow: u64, gap_ns: u64, random: &mut impl FnMut() -> u32) -> FlowSample {
    FlowSample {
        at_ns: T0_NS + nth * gap_ns,
        flow_id: format!("group-{}/{}", flow / 2, flow % 2),
        group: format!("group-{}", flow / 2),
        side: Side::Sender.into(),
        role: Role::Data.into(),
        sample_src: SampleSource::Diag.into(),
        gap_ns,
        cc: "cubic".into(),
        sport: 10_000 + flow as u32,
        dport: 5201,
        rtt_us: Some(10_000 + random() % 15_000),
        rttvar_us: Some(random() % 1000),
        snd_cwnd_pkts: Some(20 + random() % 100),
        snd_mss_bytes: Some(1448),
        unacked_pkts: Some(random() % 100),
        sacked_pkts: Some(0),
        lost_pkts: Some(0),
        retrans_pkts: Some(0),
        total_retrans_pkts: Some((nth / 1000) as u32),
        data_segs_out_pkts: Some(nth as u32),
        bytes_acked: Some(nth * 1448),
        delivery_rate_bytes_per_s: Some(u64::from(1_000_000 + random() % 500_000)),
        pacing_rate_bytes_per_s: Some(u64::from(1_000_000 + random() % 500_000)),
        min_rtt_us: Some(10_000),
        ..FlowSample::default()
    }
}
