//! Tests one experiment from the plan to the results.

use std::path::Path;
use std::time::Duration;

use ccbench_tests::cpu::CpuWatch;
use ccbench_tests::skip::skip;
use ccbench_tests::{Bench, SETUP_TIMEOUT, alone, text, wait_for, watched_run};
use rustix::process::{Signal, kill_process};

use crate::killed::{agent, is_client, wait_for_flow};
use crate::plan;

/// Returns values of a CSV summary: (phase, scope, subject, metric) to the value of the first trial or point.
fn value(csv: &Path, wanted: &[(&str, &str)], column: &str) -> Option<f64> {
    ccbench_tests::csv(csv).into_iter().find_map(|row| {
        let fits = wanted.iter().all(|(name, value)| row[*name] == *value);
        fits.then(|| row[column].parse().ok()).flatten()
    })
}

#[test]
fn writes_all_tables_and_cleans_up() {
    let _alone = alone();
    let bench = Bench::new();
    let plan = bench.write("plan.toml", &plan("whole", "3s", 1));
    let watch = CpuWatch::start();
    let mut child = bench.spawn(&["run", &plan.to_string_lossy()]);
    wait_for("four nodes", SETUP_TIMEOUT, || bench.namespaces().len() >= 4);
    let made = bench.namespaces();
    let code = child.wait().unwrap().code();
    let (cpu, printed) = (watch.report(), bench.printed());
    let results = bench.results();
    for file in [
        "plan.toml",
        "plan.resolved.toml",
        "run.json",
        "journal.ndjson",
        "trials.parquet",
        "summary_point.csv",
    ] {
        assert!(results.join(file).exists(), "{file} is missing: {printed}");
    }
    for table in [
        "flows",
        "flow_samples",
        "intervals",
        "probes",
        "qdisc_samples",
        "host_samples",
        "events",
        "clock",
    ] {
        let part = results.join("tables").join(table).join("point=0/trial-01/part-0.parquet");
        assert!(part.exists(), "{} is missing", part.display());
    }
    assert!(bench.processes().is_empty(), "left: {:?}", bench.processes());
    wait_for("no namespace of ours is left", Duration::from_secs(5), || {
        bench.processes_in(&made).is_empty()
    });
    cpu.check_run(&bench.all_results(), || {
        assert_eq!(code, Some(0), "{printed}");
        both_flows_fill_the_link(&results.join("summary_phase.csv"));
    });
}

fn both_flows_fill_the_link(csv: &Path) {
    let of = |phase, subject, metric, column| {
        let wanted =
            [("phase", phase), ("scope", "group"), ("subject", subject), ("metric", metric)];
        value(csv, &wanted, column).unwrap_or_else(|| panic!("no {metric} of {subject} in {phase}"))
    };
    let alone = of("alone", "first", "throughput_sum", "value") / 1e6;
    assert!((80.0..=97.0).contains(&alone), "one flow fills the link: {alone} Mbit/s");
    let together = (of("together", "first", "throughput_sum", "value")
        + of("together", "second", "throughput_sum", "value"))
        / 1e6;
    assert!(
        (85.0..=100.0).contains(&together),
        "two flows share the link: {together} Mbit/s (each over its own seconds)"
    );
}

#[test]
fn checks_claims_against_measurements() {
    let _alone = alone();
    let claims = r#"
[quick]
repeat = 1

[[expect]]
claim = "One flow fills the link"
metric = "utilisation"
link = "bottleneck"
phase = "alone"
above = 0.5

[[expect]]
claim = "Alone is more than beside another"
metric = "throughput"
group = "first"
phase = "alone"
over = { phase = "together" }
above = 1

[[expect]]
claim = "A link of 100 Mbit/s carries a Gbit/s"
metric = "throughput"
phase = "alone"
above = "1gbit"
"#;
    let plan = plan("claims", "3s", 2) + claims;
    let (bench, output, cpu) = watched_run(&plan, &["--quick"]);
    let claims_hold = || assert_eq!(output.status.code(), Some(4), "{}", text(&output));
    if cpu.check_run(&bench.all_results(), claims_hold).is_none() {
        return;
    }
    let verdicts: Vec<String> = ccbench_tests::csv(&bench.results().join("expectations.csv"))
        .into_iter()
        .map(|row| format!("{} {}", row["verdict"], row["n_trials"]))
        .collect();
    assert_eq!(verdicts, ["holds 1", "holds 1", "does_not_hold 1"], "{}", text(&output));
    assert!(text(&output).contains("2 of 3 claims hold, 1 does not."), "{}", text(&output));
}

#[test]
fn two_experiments_run_at_the_same_time() {
    let _alone = alone();
    let (one, two) = (Bench::new(), Bench::new());
    let watch = CpuWatch::start();
    let mut children = [(&one, "one"), (&two, "two")].map(|(bench, name)| {
        let plan = bench.write("p.toml", &plan(name, "2s", 1));
        bench.spawn(&["run", &plan.to_string_lossy()])
    });
    let codes = children.each_mut().map(|child| child.wait().unwrap().code());
    let cpu = watch.report();
    assert!(one.processes().is_empty() && two.processes().is_empty());
    // On a small machine, two experiments may be judged degraded, but neither may fail.
    cpu.check_run(&[one.all_results(), two.all_results()].concat(), || {
        assert_eq!(codes, [Some(0), Some(0)], "{}{}", one.printed(), two.printed());
    });
}

#[test]
fn runs_without_root_in_a_user_namespace() {
    let _alone = alone();
    let args = ["--rootless", "--set", "flows.second.cc=cubic"];
    let (bench, output, cpu) = watched_run(&plan("rootless", "2s", 1), &args);
    let wanted = [
        ("phase", "alone"),
        ("scope", "group"),
        ("subject", "first"),
        ("metric", "throughput_sum"),
    ];
    cpu.check_run(&bench.all_results(), || {
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        let throughput = value(&bench.results().join("summary_phase.csv"), &wanted, "value");
        assert!(throughput.is_some_and(|bps| bps > 70e6), "{}", text(&output));
    });
}

/// Returns a plan with short trials, without a userspace link, which would be late when others use the CPUs.
pub(crate) fn kernel_plan(name: &str, repeat: u32) -> String {
    let plan = plan(name, "1s", repeat);
    let delay = plan.find("[links.delay]").unwrap()..plan.find("[flows.first]").unwrap();
    plan.replace(&plan[delay], "")
}

#[test]
fn stopped_agents_of_bottleneck_and_receiver_degrade_the_trial() {
    let _alone = alone();
    let bench = Bench::new();
    let plan = kernel_plan("gaps", 1).replace("length = \"1s\"", "length = \"4s\"");
    let plan = bench.write("plan.toml", &plan);
    let cpu = CpuWatch::start();
    let mut child = bench.spawn(&["run", &plan.to_string_lossy()]);
    wait_for_flow(&bench);
    let agents = [agent(&bench, "router"), agent(&bench, "dst")];
    let send = |signal| agents.iter().for_each(|agent| kill_process(*agent, signal).unwrap());
    send(Signal::STOP);
    // A longer sleep makes a longer gap.
    std::thread::sleep(Duration::from_millis(1_600));
    let in_time = bench.processes().iter().any(|(_, line)| is_client(line));
    send(Signal::CONT);
    let code = child.wait().unwrap().code();
    if !in_time {
        return skip("the flows ended before the agents went on");
    }
    let trials = std::fs::read_to_string(bench.results().join("trials.csv")).unwrap();
    for part in [
        "router: table qdisc_samples, links.bottleneck: no sample for ",
        "dst: table flow_samples, flows.first: no sample for ",
    ] {
        assert!(trials.contains(part), "{part:?}: {trials}");
    }
    cpu.report().check_run(&bench.all_results(), || {
        assert_eq!(code, Some(0), "degraded, not failed: {}", bench.printed());
        assert!(!trials.contains("src: table"), "{trials}");
    });
}
