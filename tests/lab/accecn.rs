//! Tests AccECN (RFC 9768) in the lab's own kernel: Prague negotiates it with its flags, and its sender counts the queue's marks.

use ccbench_tests::{Bench, csv, source_root, text};
use polars::prelude::*;

use crate::acks::table;

/// The kernel's feedback modes, best first.
const MODES: [&str; 4] = ["accecn_struct_ops", "accecn_sysctl", "dctcp_feedback", "rfc3168"];

fn marks_are_counted(engine: &[&str]) {
    let bench = Bench::new();
    let plan = source_root().join("plans/l4s/dualpi2.toml");
    let plan = plan.to_string_lossy();
    let sets = [
        "repeat=1",
        "matrix.step=1ms",
        "links.bottleneck.rate=20mbit",
        "phases.0.length=3s",
        "phases.1.length=3s",
        "phases.2.length=1s",
    ];
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let words: Vec<&str> = ["run", &plan, "--lab"].into_iter().chain(sets).collect();
    let done = bench.run(&[words.as_slice(), engine].concat());
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let record = std::fs::read_to_string(bench.results().join("run.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    for node in ["src", "dst"] {
        let modes = &record["sessions"][0]["nodes"][node]["ecn"];
        assert_eq!(*modes, serde_json::json!(MODES), "{node}");
    }
    // A trial is degraded (`ce_count_off`) if its senders counted different marks than the links made.
    let trials = csv(&bench.results().join("trials.csv"));
    assert_eq!(trials[0]["status"], "ok", "{}", text(&done));
    let events = table(&bench, "events", 0);
    let ecn = events.lazy().filter(col("kind").eq(lit("ecn"))).collect().unwrap();
    let data = ecn.column("data_json").unwrap().str().unwrap();
    let modes: Vec<String> = data
        .iter()
        .flatten()
        .map(|json| serde_json::from_str::<serde_json::Value>(json).unwrap())
        .map(|end| format!("{} {}", end["side"].as_str().unwrap(), end["mode"].as_str().unwrap()))
        .collect();
    assert!(modes.iter().all(|mode| mode.ends_with("accecn_struct_ops")), "{modes:?}");
    assert_eq!(modes.len(), 2, "sender and receiver: {modes:?}");
    let samples = table(&bench, "flow_samples", 0);
    let of_prague = col("group").eq(lit("l4s")).and(col("side").eq(lit("snd")));
    let counted = samples.lazy().filter(of_prague).select([col("delivered_ce_pkts").max()]);
    let counted = counted.collect().unwrap().columns()[0].u32().unwrap().get(0);
    assert!(counted.is_some_and(|pkts| pkts > 20), "{counted:?} marks");
}

#[test]
fn prague_counts_marks_by_accecn() {
    marks_are_counted(&["--engine", "qemu", "--dilation", "5"]);
}

#[test]
fn prague_counts_marks_by_accecn_in_uml() {
    marks_are_counted(&["--engine", "uml"]);
}
