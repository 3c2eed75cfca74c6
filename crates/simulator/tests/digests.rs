//! Digests of all rows of a few simulated trials, by point and table. They are the same on every machine; `make test-arm64` runs these
//! tests on another architecture.
//!
//! A change of the model changes them. In that case, raise `MODEL_VERSION` and write them again with `UPDATE_GOLDEN=1`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ccbench_proto::cc;
use ccbench_proto::plan;
use ccbench_proto::plan::check::{self, CheckedPlan, Target, TraceFacts, TraceFiles};
use ccbench_proto::schedule;
use ccbench_proto::trace;
use ccbench_proto::wire::run_event::Payload;
use ccbench_simulator::{MODEL_VERSION, Simulation};
use prost::Message as _;

/// All rows of a table.
#[derive(Default)]
struct Table {
    rows: u64,
    /// Node and protobuf message of each row, with their lengths.
    bytes: Vec<u8>,
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/digests").join(name)
}

/// Returns the trace files that a plan names.
fn traces(text: &str) -> TraceFiles {
    let facts = |name: String| {
        let bytes = std::fs::read(file(&name)).unwrap();
        let trace = Arc::new(trace::parse(&name, &bytes).unwrap());
        (name, Ok(TraceFacts { sha256: plan::digest_bytes(&bytes), trace }))
    };
    check::trace_files(text, &[]).into_iter().map(facts).collect()
}

fn table_of(row: &Payload) -> &'static str {
    match row {
        Payload::FlowSample(_) => "flow_samples",
        Payload::Interval(_) => "intervals",
        Payload::Probe(_) => "probes",
        Payload::QdiscSample(_) => "qdisc_samples",
        Payload::LinkChange(_) => "link_changes",
        Payload::HostSample(_) => "host_samples",
        Payload::Event(_) => "events",
        Payload::Flow(_) => "flows",
        Payload::Raw(_) => "raw",
        Payload::Done(_) => "done",
        Payload::LinkTiming(_) => "link_timing",
        Payload::LinkPacket(_) => "link_packets",
        Payload::CcState(_) => "cc_state",
        Payload::Acks(_) => "acks",
        Payload::TcpEvents(_) => "tcp_events",
        Payload::AckCount(_) => "ack_counts",
    }
}

/// Returns the tables of a trial, by name.
fn simulate(point: &CheckedPlan, seed: u64) -> BTreeMap<&'static str, Table> {
    let mut tables = BTreeMap::<_, Table>::new();
    let simulation = Simulation::of_trial(point, seed).unwrap();
    let emit = &mut |node: &str, event: ccbench_proto::wire::RunEvent| {
        let table = tables.entry(table_of(event.payload.as_ref().unwrap())).or_default();
        table.rows += 1;
        table.bytes.push(node.len() as u8);
        table.bytes.extend(node.as_bytes());
        event.encode_length_delimited(&mut table.bytes).unwrap();
    };
    simulation.run(emit, &|| true).unwrap();
    tables
}

/// Returns the version of the model, then one line for each trial and table of the plan.
fn digests(text: &str) -> String {
    let read = check::read_for(Target::Simulator, text, &[], traces(text));
    let plan = read.unwrap_or_else(|problems| panic!("{problems:?}")).0;
    let (points, trials) = (plan.points(), schedule::trials(&plan));
    let mut lines = format!("model {MODEL_VERSION}\n");
    for trial in trials {
        let point = &points[trial.point_id as usize];
        let factors: Vec<String> =
            point.factors.iter().map(|(name, level)| format!("{name}={level}")).collect();
        let factors = factors.join(" ");
        for (name, table) in simulate(&point.plan, trial.seed) {
            let digest = plan::digest_bytes(&table.bytes);
            lines += &format!("{factors} {name} {} {digest}\n", table.rows);
        }
    }
    lines
}

fn check(name: &str) {
    let text = std::fs::read_to_string(file(&format!("{name}.toml"))).unwrap();
    let (found, golden) = (digests(&text), file(&format!("{name}.txt")));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&golden, &found).unwrap();
    }
    let wanted = std::fs::read_to_string(&golden).unwrap_or_default();
    let differs = |(found, wanted): &(&str, &str)| found != wanted;
    let differences: Vec<_> = found.lines().zip(wanted.lines()).filter(differs).collect();
    assert!(
        found == wanted,
        "rows differ from {}. If the model was changed, raise MODEL_VERSION and run this test with UPDATE_GOLDEN=1. Found and \
         wanted: {differences:#?}",
        golden.display()
    );
}

/// A new queue or congestion control needs a line in its plan.
#[test]
fn plans_have_every_queue_and_congestion_control() {
    let text = |name: &str| std::fs::read_to_string(file(name)).unwrap();
    let queues = text("queues.toml");
    // The simulator does not model CAKE.
    for kind in plan::Queue::kinds().iter().filter(|kind| **kind != "cake") {
        assert!(queues.contains(&format!("kind = \"{kind}\"")), "queues.toml has no {kind}");
    }
    let ccs = text("congestion-controls.toml");
    let cores = cc::table().cores.iter().map(|core| core.name.as_str());
    for name in cores.chain(cc::SIMULATED_BUILTINS) {
        assert!(ccs.contains(&format!(" = \"{name}\"")), "congestion-controls.toml has no {name}");
    }
}

#[test]
fn rows_of_every_congestion_control_are_the_same_on_every_machine() {
    check("congestion-controls");
}

#[test]
fn rows_of_every_queue_are_the_same_on_every_machine() {
    check("queues");
}

#[test]
fn rows_of_every_impairment_are_the_same_on_every_machine() {
    check("impairments");
}

#[test]
fn rows_of_bursts_and_fewer_acknowledgements_are_the_same_on_every_machine() {
    check("bursts");
}

#[test]
fn rows_of_traces_are_the_same_on_every_machine() {
    check("traces");
}
