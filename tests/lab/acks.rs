//! Tests `sample.acks` on every kernel of the lab and in both engines, with the hook that the kernel supports.

use std::fs::File;

use ccbench_tests::{Bench, text};
use polars::prelude::*;

use crate::plan;

const KERNELS: [&str; 4] = ["own", "6.1", "6.12", "7.2"];

/// Returns the rows of a table in the only trial of a point.
pub fn table(bench: &Bench, name: &str, point: usize) -> DataFrame {
    let path = format!("tables/{name}/point={point}/trial-01/part-0.parquet");
    ParquetReader::new(File::open(bench.results().join(path)).unwrap()).finish().unwrap()
}

/// Returns the numbers of a column, in the rows of the sender's data connection.
fn numbers(frame: &DataFrame, column: &str) -> Vec<u64> {
    let sender = frame.clone().lazy().filter(
        col("flow_id")
            .eq(lit("f/0"))
            .and(col("side").eq(lit("snd")))
            .and(col("role").eq(lit("data"))),
    );
    let column = sender.select([col(column).cast(DataType::UInt64)]).collect().unwrap();
    column.columns()[0].u64().unwrap().iter().flatten().collect()
}

#[test]
fn every_acknowledgement_has_a_row_on_every_kernel() {
    let bench = Bench::new();
    for kernel in &KERNELS[1..] {
        let built = bench.run(&["lab", "build", "--kernel", kernel]);
        assert_eq!(built.status.code(), Some(0), "{}", text(&built));
    }
    let more = format!("[sample]\nacks = \"every-ack\"\n[matrix]\n\"lab.kernel\" = {KERNELS:?}\n");
    let path = bench.write("plan.toml", &(plan(1) + &more));
    let done = bench.run(&["run", &path.to_string_lossy()]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    for (point, kernel) in KERNELS.iter().enumerate() {
        assert_complete(&bench, point, kernel);
    }
}

#[test]
fn every_acknowledgement_has_a_row_in_uml() {
    let bench = Bench::new();
    let more = "[sample]\nacks = \"every-ack\"\n";
    let path = bench.write("plan.toml", &(plan(1) + more));
    let done = bench.run(&["run", &path.to_string_lossy(), "--lab", "--engine", "uml"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    assert_complete(&bench, 0, "uml");
}

/// Checks that the sender's rows are all its acknowledgements, in order.
fn assert_complete(bench: &Bench, point: usize, kernel: &str) {
    let (counts, acks) = (table(bench, "ack_counts", point), table(bench, "acks", point));
    let hooks = counts.column("hook").unwrap().str().unwrap();
    assert!(hooks.iter().flatten().any(|hook| hook == "fexit/tcp_ack"), "{kernel}: {counts}");
    let segments = numbers(&acks, "segments");
    assert_eq!(numbers(&counts, "segments"), [segments.len() as u64], "{kernel}: {counts}");
    assert!(
        segments.len() > 500 && segments.windows(2).all(|two| two[0] + 1 == two[1]),
        "{kernel}"
    );
    // After the acknowledgement: the first row includes its effect.
    assert!(numbers(&acks, "delivered_pkts")[0] > 0, "{kernel}");
    let events = table(bench, "tcp_events", point);
    let kinds: Vec<_> = events.column("kind").unwrap().str().unwrap().iter().flatten().collect();
    assert!(kinds.contains(&"cc"), "{kernel}: {kinds:?}");
}
