//! Tests that the state rows of congestion controls begin after the handshake.

use ccbench_tests::{Bench, text};
use polars::prelude::*;

use crate::acks::table;
use crate::plan;

/// Number of connections. Each has its own random initial sequence number.
const FLOWS: usize = 8;

/// The acknowledgement of a SYN arrives before the kernel initialises the congestion control. With the zeroed state, it ended a round of
/// DCTCP for half of all initial sequence numbers: a row with alpha 0 instead of 1024 (at most one sixteenth less after a window).
#[test]
fn no_row_of_dctcp_is_from_before_its_initialisation() {
    let bench = Bench::new();
    let own = plan(1)
        .replace("cc = \"cubic\"", &format!("cc = \"own\"\ncount = {FLOWS}"))
        .replace("[flows.f]", "[cc.own]\nalgorithm = \"dctcp\"\n[flows.f]");
    let path = bench.write("plan.toml", &own);
    let done = bench.run(&["run", &path.to_string_lossy(), "--lab", "--engine", "uml"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let alpha = col("variable").eq(lit("alpha"));
    let first = table(&bench, "cc_state", 0)
        .lazy()
        .filter(alpha)
        .sort(["t_ns"], SortMultipleOptions::default().with_maintain_order(true))
        .group_by_stable([col("flow_id"), col("sport")])
        .agg([col("value").first()])
        .collect()
        .unwrap();
    let values: Vec<f64> = first.column("value").unwrap().f64().unwrap().iter().flatten().collect();
    assert!(values.len() >= FLOWS, "{first}");
    assert!(values.iter().all(|value| *value >= 960.0), "{values:?}");
}
