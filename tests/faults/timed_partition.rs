//! Measures how soon both nodes are free after a partition in a long trial, and how long a partition a trial survives. Times are of
//! CLOCK_BOOTTIME. If the CPU was missing, the test is skipped.

use std::process::Child;
use std::time::Duration;

use ccbench_proto::wire::{KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT};
use ccbench_tests::cpu::CpuWatch;
use ccbench_tests::skip::skip;
use ccbench_tests::{SETUP_TIMEOUT, alone, wait_for};
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

use crate::lane::Lane;
use crate::nodes::{Node, controller, read, send};

/// After the end of the tolerated silence, a node stops its traffic and undoes its changes within this time.
const UNDONE_WITHIN: Duration = Duration::from_secs(2);
/// How long the observation takes.
const OBSERVED_FOR: Duration = Duration::from_secs(20);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// A trial survives interruptions of 3 s. This one lasts almost as long.
const SURVIVED: Duration = Duration::from_millis(2_900);
const SURVIVED_AT_MOST: Duration = Duration::from_secs(3);
/// Missing CPU time that does not matter for a time limit of seconds.
const CPU_TOLERANCE: Duration = Duration::from_millis(500);
/// Exact delays of the test's own sleeps need more.
const SLEEP_TOLERANCE: Duration = Duration::from_millis(50);

/// Trials that would go on for long after each observation.
const LONG: [&str; 8] =
    ["run", "plan.toml", "--set", "repeat=1", "--set", "phases.0.length=40s", "--pki", "pki"];
const SURVIVING: [&str; 8] =
    ["run", "plan.toml", "--set", "repeat=1", "--set", "phases.0.length=10s", "--pki", "pki"];

/// Returns CLOCK_BOOTTIME, which also counts while a machine is suspended.
fn boottime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// Returns new nodes, unless `CCBENCH_FAULT` selects a fault.
fn lane() -> Option<Lane> {
    if std::env::var_os("CCBENCH_FAULT").is_some() {
        skip("CCBENCH_FAULT selects a fault");
        return None;
    }
    let mut lane = Lane::new();
    lane.ensure_started().unwrap();
    Some(lane)
}

/// Starts a run, and returns when its flow is running.
fn start(lane: &Lane, arguments: &[&str]) -> Child {
    let mut run = controller(&lane.bench, &lane.nodes[0], &[], arguments).spawn().unwrap();
    wait_for("the flow", SETUP_TIMEOUT, || {
        assert_eq!(run.try_wait().unwrap(), None, "{}", lane.bench.printed());
        lane.nodes.iter().all(Node::has_traffic)
    });
    run
}

/// Drops all packets between node b and the controller on node a, or no longer does.
fn cut(lane: &Lane, is_cut: bool) {
    let [a, b] = &lane.nodes;
    a.cut(b.control, is_cut);
    b.cut(a.control, is_cut);
}

/// Returns whether a node has neither traffic nor changes. The route that cuts it off is no change of a trial.
fn is_free(lane: &Lane, node: usize) -> bool {
    let changes = lane.changes(&[node]);
    let of_trial = changes.lines().any(|line| !line.contains("blackhole"));
    !of_trial && !lane.nodes[node].has_traffic()
}

#[test]
fn both_nodes_are_free_soon_after_a_partition() {
    let _alone = alone();
    let Some(mut lane) = lane() else { return };
    let run = start(&lane, &LONG);
    assert!(!is_free(&lane, 0) && !is_free(&lane, 1), "the trial changes both nodes");
    let watch = CpuWatch::start();
    cut(&lane, true);
    let cut_at = boottime();
    // For each node, when it was first seen to be free, at the end of the observation.
    let mut free_after = [None; 2];
    while boottime() - cut_at < OBSERVED_FOR && free_after.contains(&None) {
        for (node, after) in free_after.iter_mut().enumerate() {
            if after.is_none() && is_free(&lane, node) {
                *after = Some(boottime() - cut_at);
            }
        }
        std::thread::sleep(SAMPLE_INTERVAL);
    }
    let cpu = watch.report();
    cut(&lane, false);
    send(Some(run.id()), Signal::INT);
    lane.wait(run).unwrap();
    println!("after the partition, nodes a and b are free after {free_after:?}");
    let limit = KEEPALIVE_INTERVAL + KEEPALIVE_TIMEOUT + UNDONE_WITHIN;
    cpu.check(CPU_TOLERANCE, || {
        for (node, after) in ["a", "b"].into_iter().zip(free_after) {
            let is_soon = after.is_some_and(|after| after <= limit);
            assert!(is_soon, "node {node} is free after {after:?}, not within {limit:?}");
        }
    });
    lane.check_after().unwrap();
}

#[test]
fn a_trial_survives_a_partition_of_almost_3_s() {
    let _alone = alone();
    let Some(mut lane) = lane() else { return };
    let run = start(&lane, &SURVIVING);
    let watch = CpuWatch::start();
    let cut_at = boottime();
    cut(&lane, true);
    std::thread::sleep(SURVIVED);
    cut(&lane, false);
    let lasted = boottime() - cut_at;
    let sleep = watch.report();
    let status = lane.wait(run).unwrap();
    lane.check_code(status, false).unwrap();
    lane.check_logs().unwrap();
    println!("the partition lasted {lasted:?}");
    let asserted = sleep.check(SLEEP_TOLERANCE, || {
        assert!(lasted < SURVIVED_AT_MOST, "the partition lasted {lasted:?}");
    });
    if asserted.is_some() {
        let journals = lane.bench.all_results().into_iter().map(|dir| dir.join("journal.ndjson"));
        let journals: String = journals.map(|path| read(&path)).collect();
        let attempts = journals.matches("\"event\":\"trial_begin\"").count();
        assert!(!lane.lost_a_node(), "{}", lane.bench.printed());
        assert_eq!(attempts, 1, "{}", lane.bench.printed());
    }
    lane.check_after().unwrap();
}
