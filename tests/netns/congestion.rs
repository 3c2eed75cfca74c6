//! ccbench's own congestion controls from plan to tables.

use std::time::Duration;

use ccbench_tests::{Bench, alone, beside_others, text, wait_for, watched_run};

use crate::plan;

fn available() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    text.unwrap().split_whitespace().map(str::to_owned).collect()
}

/// Two instances of one algorithm against each other.
fn instances(phase: &str) -> String {
    let flows = plan("instances", phase, 1)
        .replace("cc = \"cubic\"", "cc = \"quick\"")
        .replace("cc = \"reno\"", "cc = \"slow\"");
    let own = "[cc.quick]\nalgorithm = \"ta\"\nparams = { betao = 1000 }\n\n[cc.slow]\nalgorithm = \"ta\"\nparams \
               = { betao = 6000 }\n\n[flows.first]";
    flows.replace("[flows.first]", own)
}

#[test]
fn two_instances_of_one_algorithm_run_and_report_state() {
    let _alone = alone();
    let (bench, ran, cpu) = watched_run(&instances("2s"), &[]);
    let has_run = || assert_eq!(ran.status.code(), Some(0), "{}", text(&ran));
    cpu.check_run(&bench.all_results(), has_run);
    let results = bench.results();
    let part = results.join("tables/cc_state/point=0/trial-01/part-0.parquet");
    assert!(part.exists(), "{}", text(&ran));
    let trials = std::fs::read_to_string(results.join("trials.csv")).unwrap();
    assert!(!trials.contains("cc_"), "the right ones, and no row of state lost: {trials}");
}

#[test]
fn killed_testbed_unregisters_congestion_controls() {
    let _beside = beside_others();
    let bench = Bench::new();
    let plan = bench.write("plan.toml", &instances("20s"));
    let before = available();
    let mut child = bench.spawn(&["run", &plan.to_string_lossy()]);
    let made = || {
        let new = available().into_iter().filter(|name| !before.contains(name));
        new.filter(|name| name.starts_with("ta.")).collect::<Vec<_>>()
    };
    wait_for("two instances", Duration::from_secs(20), || made().len() >= 2);
    let names = made();
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("they are gone", Duration::from_secs(30), || {
        let there = available();
        names.iter().all(|name| !there.contains(name))
    });
}
