//! A stopped agent leaves gaps in its tables, a killed one fails its trial, and the verdict has the reason.

use std::time::Duration;

use ccbench_tests::cpu::CpuWatch;
use ccbench_tests::skip::skip;
use ccbench_tests::{Bench, alone, beside_others, text, wait_for};
use rustix::process::{Pid, Signal, kill_process};

use crate::experiment::kernel_plan;

fn is_client(line: &str) -> bool {
    line.starts_with("iperf3") && line.contains(" -c ")
}

fn wait_for_flow(bench: &Bench) {
    wait_for("an iperf3 client", Duration::from_secs(20), || {
        bench.processes().iter().any(|(_, line)| is_client(line))
    });
}

/// The agent of a node.
fn agent(bench: &Bench, node: &str) -> Pid {
    let (serve, node) = ("ccbench-agent serve".to_owned(), format!("--node {node} "));
    let is_agent = |line: &str| line.contains(&serve) && line.contains(&node);
    let all = bench.processes();
    let found =
        all.iter().find(|(_, line)| is_agent(line)).and_then(|(pid, _)| Pid::from_raw(*pid as i32));
    found.unwrap_or_else(|| panic!("no agent with {node}: {all:?}"))
}

#[test]
fn resume_repeats_a_trial_whose_agent_died() {
    let _beside = beside_others();
    let bench = Bench::new();
    let plan = kernel_plan("lost", 1).replace("length = \"1s\"", "length = \"2s\"");
    let plan = bench.write("plan.toml", &plan);
    let mut child = bench.spawn(&["run", &plan.to_string_lossy()]);
    wait_for_flow(&bench);
    kill_process(agent(&bench, "dst"), Signal::KILL).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{}", bench.printed());
    let results = bench.results();
    let file = |name: &str| std::fs::read_to_string(results.join(name)).unwrap();
    assert!(file("trials.csv").contains("node_lost"), "{}", file("trials.csv"));
    let output = bench.run(&["run", "--resume", &results.to_string_lossy()]);
    assert!(!text(&output).contains("nothing is left to run"), "{}", text(&output));
    assert!(!file("trials.csv").contains("node_lost"), "replaced: {}", file("trials.csv"));
    let journal = file("journal.ndjson");
    assert_eq!(journal.matches("\"trial_end\"").count(), 2, "both attempts: {journal}");
    assert!(journal.contains("node_lost"), "{journal}");
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
