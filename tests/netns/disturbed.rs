//! Tests trials that something other than ccbench disturbs: settings that change, and foreign packets on a link.

use std::fs::File;
use std::process::Command;

use ccbench_tests::skip::skip;
use ccbench_tests::{Bench, beside_others, text, watched_run};
use polars::prelude::*;

use crate::experiment::kernel_plan;
use crate::killed::{agent, is_client, start, wait_for_flow};
use crate::plan;

/// Runs a command in the network namespace of a node. Returns its output.
fn inside(bench: &Bench, node: &str, command: &[&str]) -> String {
    let pid = agent(bench, node).as_raw_nonzero().to_string();
    let mut program = Command::new("nsenter");
    let output = program.args(["-n", "-t", &pid, "--"]).args(command).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Disturbs a trial of this plan as soon as its first flow runs. Returns its `trials.csv`, unless the flows ended too early.
fn disturbed(plan: &str, disturb: impl FnOnce(&Bench)) -> Option<String> {
    let (bench, mut child) = start(plan);
    wait_for_flow(&bench);
    disturb(&bench);
    let in_time = bench.processes().iter().any(|(_, line)| is_client(line));
    child.wait().unwrap();
    if !in_time {
        skip("the flows ended before the trial was disturbed");
        return None;
    }
    Some(std::fs::read_to_string(bench.results().join("trials.csv")).unwrap())
}

#[test]
fn settings_that_change_during_a_trial_degrade_it() {
    let _beside = beside_others();
    let plan = kernel_plan("settings", 1)
        .replace("length = \"1s\"", "length = \"3s\"")
        .replace("rate = \"100mbit\"", "rate = \"100mbit\"\nbackend = \"kernel\"");
    let disturb = |bench: &Bench| {
        inside(bench, "src", &["ip", "link", "set", "to-router", "mtu", "1400"]);
        let limit = "tc qdisc change dev to-emulator parent 1:1 handle 10: bfifo limit 150000";
        inside(bench, "router", &limit.split(' ').collect::<Vec<_>>());
    };
    let Some(trials) = disturbed(&plan, disturb) else { return };
    for part in [
        "setting_changed",
        "src: to-router: MTU: expected 1500, found 1400; ",
        "router: to-emulator: parameters of qdisc under 1:1: expected ",
    ] {
        assert!(trials.contains(part), "{part:?}: {trials}");
    }
}

/// Returns a plan whose bottleneck is a userspace link.
fn userspace_plan(name: &str) -> String {
    let link = "rate = \"20mbit\"\nbackend = \"userspace\"";
    plan(name, "3s", 1).replace("rate = \"100mbit\"", link)
}

#[test]
fn foreign_packets_on_a_userspace_link_degrade_the_trial() {
    let _beside = beside_others();
    let disturb = |bench: &Bench| {
        let listed =
            inside(bench, "dst", &["ip", "-4", "-o", "addr", "show", "dev", "to-emulator"]);
        let address = listed.split_whitespace().skip_while(|word| *word != "inet").nth(1);
        let (ip, _) = address.and_then(|address| address.split_once('/')).unwrap();
        let send = format!(
            "import socket\nudp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
             for _ in range(300):\n    udp.sendto(bytes(1000), ('{ip}', 9))\n"
        );
        inside(bench, "src", &["python3", "-c", &send]);
    };
    let Some(trials) = disturbed(&userspace_plan("foreign"), disturb) else { return };
    for part in ["foreign_traffic", "link bottleneck: ", "foreign packets arrived"] {
        assert!(trials.contains(part), "{part:?}: {trials}");
    }
    assert!(!trials.contains("setting_changed"), "{trials}");
}

/// Traffic of every kind that a trial has, and a change.
const OWN: &str = r#"
[flows.back]
from = "src"
to = "dst"
cc = "cubic"
reverse = true

[probes.echo]
kind = "udp"
from = "src"
to = "dst"
every = "200ms"

[probes.page]
kind = "http"
from = "src"
to = "dst"
bytes = "10000B"
every = "500ms"

[[changes]]
at = "1s"
set = { "links.bottleneck.rate" = "15mbit" }
"#;

/// Returns `foreign_pkts` of the bottleneck at the end of the only trial.
fn foreign_pkts(bench: &Bench) -> Option<u64> {
    let path = bench.results().join("tables/qdisc_samples/point=0/trial-01/part-0.parquet");
    let rows = ParquetReader::new(File::open(path).unwrap()).finish().unwrap();
    let of_link = rows.lazy().filter(col("link").eq(lit("bottleneck")));
    // The rows of a link are sorted by time.
    let found = of_link.select([col("foreign_pkts")]).collect().unwrap();
    let values: Vec<Option<u64>> = found.columns()[0].u64().unwrap().iter().collect();
    values.last().copied().flatten()
}

#[test]
fn what_the_trial_itself_sends_and_changes_disturbs_nothing() {
    let _beside = beside_others();
    let flows = "flows = [\"first\", \"second\"]";
    let three = "flows = [\"first\", \"second\", \"back\"]";
    let userspace = userspace_plan("own").replace(flows, three) + OWN;
    let kernel = userspace.replace("backend = \"userspace\"", "backend = \"kernel\"");
    // Packets on a kernel link are not known.
    for (plan, foreign) in [(kernel, None), (userspace, Some(0))] {
        let (bench, ran, _) = watched_run(&plan, &[]);
        let trials = std::fs::read_to_string(bench.results().join("trials.csv")).unwrap();
        for reason in ["setting_changed", "foreign_traffic", "not_run"] {
            assert!(!trials.contains(reason), "{trials}\n{}", text(&ran));
        }
        assert_eq!(foreign_pkts(&bench), foreign, "{plan}\n{}", text(&ran));
    }
}
