//! Verdicts on finite flows.

use super::*;

#[test]
fn a_finite_flow_stalls_before_its_last_byte_only() {
    // 2.8 MB have arrived after 3 s, and nothing more follows.
    let flow_keys = "tool = \"ccbench\"\nbytes = \"2800kB\"\n";
    let complete = Scenario { stalled_ms: (3_000, 10_000), flow_keys, ..Scenario::default() };
    fine(&complete);
    let flow_keys = "tool = \"ccbench\"\nbytes = \"2900kB\"\n";
    only(&Scenario { flow_keys, ..complete }, Status::Degraded, "flow_stalled");
}
