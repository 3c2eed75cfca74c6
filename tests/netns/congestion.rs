//! Tests ccbench's congestion controls from the plan to the tables.

use std::time::Duration;

use ccbench_tests::cpu::CpuWatch;
use ccbench_tests::{
    Bench, SETUP_TIMEOUT, alone, beside_others, source_root, text, wait_for, watched_run,
};

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
fn a_congestion_control_that_the_kernel_lacks_is_refused_before_there_are_results() {
    let _beside = beside_others();
    let bench = Bench::new();
    let plan = plan("unknown", "1s", 1).replace("cc = \"cubic\"", "cc = \"renno\"");
    let plan = bench.write("plan.toml", &plan);
    let ran = bench.run(&["run", &plan.to_string_lossy()]);
    let printed = text(&ran);
    assert_eq!(ran.status.code(), Some(2), "{printed}");
    assert_eq!(printed.matches("no congestion control `renno`").count(), 1, "{printed}");
    assert!(printed.contains("node src cannot do"), "{printed}");
    assert!(bench.all_results().is_empty(), "{printed}");
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
    wait_for("two instances", SETUP_TIMEOUT, || made().len() >= 2);
    let names = made();
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("they are gone", Duration::from_secs(30), || {
        let there = available();
        names.iter().all(|name| !there.contains(name))
    });
}

#[path = "../../crates/collector/build/clang.rs"]
#[allow(dead_code, missing_docs, reason = "the build script uses the rest")]
mod clang;

/// The example of `plans/cc`, built as its instructions say, with two values of a parameter in two points of the matrix.
#[test]
fn a_congestion_control_of_the_user_runs_with_its_parameters() {
    let _alone = alone();
    let bench = Bench::new();
    let source = source_root().join("plans/cc/aimd.bpf.c");
    clang::compile(&clang::clang().unwrap(), &source, &bench.path("aimd.bpf.o")).unwrap();
    let own = "[cc.mine]\nfile = \"aimd.bpf.o\"\n\n[matrix]\n\"cc.mine.params.decrease_pct\" = [10, 90]\n\n[flows.first]";
    let plan = plan("user-cc", "2s", 1).replace("cc = \"cubic\"", "cc = \"mine\"");
    bench.write("plan.toml", &plan.replace("[flows.first]", own));
    let watch = CpuWatch::start();
    let ran = bench.run(&["run", "plan.toml"]);
    let cpu = watch.report();
    let registered = available();
    let has_run = || assert_eq!(ran.status.code(), Some(0), "{}", text(&ran));
    cpu.check_run(&bench.all_results(), has_run);
    let results = bench.results();
    let record = std::fs::read_to_string(results.join("run.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    let digest = record["cc_digests"]["cc/aimd.bpf.o"].as_str().unwrap();
    assert_eq!(digest.len(), 64, "{record}");
    let trials = record["trials"].as_array().unwrap();
    assert_eq!(trials.len(), 2);
    for trial in trials {
        let loaded = &trial["congestion_controls"][0];
        assert_eq!((&loaded["name"], &loaded["algorithm"]), (&"mine".into(), &"aimd".into()));
        assert_eq!(loaded["sha256"], digest);
        let kernel_name = loaded["kernel_name"].as_str().unwrap();
        assert!(kernel_name.starts_with("aimd."), "{loaded}");
        assert!(!registered.iter().any(|name| name == kernel_name), "{kernel_name} is left");
        let expected = if trial["point_id"] == 0 { "10" } else { "90" };
        assert_eq!(loaded["params"]["decrease_pct"], expected, "{trial}");
    }
    let copy = std::fs::read(results.join("cc/aimd.bpf.o")).unwrap();
    assert_eq!(copy, std::fs::read(bench.path("aimd.bpf.o")).unwrap());
    let trials = std::fs::read_to_string(results.join("trials.csv")).unwrap();
    assert!(!trials.contains("cc_"), "every socket ran it: {trials}");
    let archive = bench.path("artifact.tar.gz");
    let (run, archive) = (results.to_string_lossy(), archive.to_string_lossy());
    let packed = bench.run(&["artifact", "pack", &run, "--output", &archive]);
    assert_eq!(packed.status.code(), Some(0), "{}", text(&packed));
    let refused = bench.run(&["artifact", "rerun", &archive]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(text(&refused).contains(&format!("--allow-cc-digest {digest}")), "{}", text(&refused));
}
