//! An agent that stands still leaves gaps in its tables, and the verdict names them.

use std::time::Duration;

use ccbench_tests::cpu::CpuWatch;
use ccbench_tests::{Bench, alone, text, wait_for};
use rustix::process::{Pid, Signal, kill_process};

use crate::experiment::kernel_plan;

#[test]
fn stopped_agents_of_bottleneck_and_receiver_degrade_the_trial() {
    let _alone = alone();
    let bench = Bench::new();
    let plan = kernel_plan("gaps", 1).replace("length = \"1s\"", "length = \"4s\"");
    let plan = bench.write("plan.toml", &plan);
    let cpu = CpuWatch::start();
    let mut child = bench.spawn(&["run", &plan.to_string_lossy()]);
    let is_client = |line: &str| line.starts_with("iperf3") && line.contains(" -c ");
    wait_for("an iperf3 client", Duration::from_secs(20), || {
        bench.processes().iter().any(|(_, line)| is_client(line))
    });
    let of = |line: &str| {
        line.contains("serve")
            && ["--node router", "--node dst"].iter().any(|node| line.contains(node))
    };
    let agents: Vec<Pid> = bench
        .processes()
        .into_iter()
        .filter(|(_, line)| of(line))
        .filter_map(|(pid, _)| Pid::from_raw(pid as i32))
        .collect();
    assert_eq!(agents.len(), 2, "{:?}", bench.processes());
    let send = |signal| agents.iter().for_each(|agent| kill_process(*agent, signal).unwrap());
    send(Signal::STOP);
    // A longer sleep makes a longer gap.
    std::thread::sleep(Duration::from_millis(1_600));
    send(Signal::CONT);
    let code = child.wait().unwrap().code();
    cpu.report().check_run(&bench.all_results(), || {
        assert_eq!(code, Some(0), "degraded, not failed: {}", bench.printed());
        let trials = std::fs::read_to_string(bench.results().join("trials.csv")).unwrap();
        for part in [
            "router: table qdisc_samples, links.bottleneck: no sample for ",
            "dst: table flow_samples, flows.first: no sample for ",
        ] {
            assert!(trials.contains(part), "{part:?}: {trials}");
        }
        assert!(!trials.contains("src: table"), "{trials}");
    });
    let strict = bench.run(&["summarize", &bench.results().to_string_lossy(), "--only-ok"]);
    assert!(!text(&strict).contains("throughput"), "{}", text(&strict));
}
