//! Tests `ccbench trace record` in network namespaces.

use ccbench_tests::cpu::CpuWatch;
use ccbench_tests::{Bench, alone, recorded, text};

#[test]
fn a_replayed_trace_is_recorded_again() {
    let _alone = alone();
    let bench = Bench::new();
    let arguments = recorded::arguments(&bench, "20mbit", "path");
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let watch = CpuWatch::start();
    let done = bench.run(&words);
    let cpu = watch.report();
    cpu.check_run(&bench.all_results(), || {
        assert_eq!(done.status.code(), Some(0), "{}", text(&done));
        recorded::check(&bench, "path");
    });
}
