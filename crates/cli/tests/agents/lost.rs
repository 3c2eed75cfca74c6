//! Tests for a node that is lost during a trial.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use ccbench_proto::wire::{self, run_event::Payload};
use ccbench_results::TrialStatus;
use ccbench_tests::SETUP_TIMEOUT;
use rustix::process::{Pid, Signal, kill_process};
use tonic::Code;

use crate::fake::{
    self, serve, serve_leaving, serve_rebooted, serve_refusing, serve_runs, serve_upgraded,
};
use crate::version::{plan_of, run_on, run_on_both};

/// What a reset cannot undo.
const LEFT: &str = "link up on eth1: busy";

/// Returns a row of the plan's probe.
pub(crate) fn probe() -> Vec<u8> {
    let kind = wire::ProbeKind::Ping.into();
    fake::row(Payload::Probe(wire::Probe {
        probe_id: "rtt".to_owned(),
        kind,
        ..wire::Probe::default()
    }))
}

#[test]
fn a_trial_that_lost_a_node_is_repeated_once_the_node_answers() {
    let (status, reasons, _, printed) =
        run_on(serve_runs(vec![vec![probe()], vec![probe(), fake::done()]]));
    assert_eq!((status, reasons), (TrialStatus::Ok, vec![]));
    assert!(printed.contains("trying again when every node answers"), "{printed}");
    assert!(printed.contains("trial 1/1: every node answers again; attempt 2"), "{printed}");
    assert!(printed.contains("1 trial was repeated after the loss of a node"), "{printed}");
}

#[test]
fn what_the_reset_of_a_lost_node_leaves_is_a_reason_of_the_next_trial() {
    // In the second run, the node is reset once more before its trial, which undoes nothing else.
    for port_in_use_after in [None, Some(2)] {
        let runs = vec![vec![probe()], vec![probe(), fake::done()]];
        let one = serve_leaving((3, LEFT), port_in_use_after, runs);
        let (status, reasons, ..) = run_on(one);
        assert_ne!(status, TrialStatus::Ok);
        let expected = format!("one: reset failed: {LEFT}");
        assert!(reasons.iter().any(|reason| reason.contains(&expected)), "{reasons:?}");
    }
}

#[test]
fn what_the_reset_after_a_failed_prepare_leaves_is_a_reason() {
    let two = || serve_leaving((2, LEFT), None, vec![vec![fake::done()]]);
    let refuses = (Code::FailedPrecondition, "it is busy");
    let (status, reasons, ..) =
        run_on_both(serve_refusing("/Prepare", refuses, vec![fake::done()]), two());
    assert_eq!(status, TrialStatus::Failed);
    let expected = format!("not_run: node one: prepare: it is busy; node two: reset: {LEFT}");
    assert_eq!(reasons, [expected]);
    // The trial is repeated, because the node was lost.
    let (status, reasons, ..) = run_on_both(serve_rebooted(vec![probe(), fake::done()]), two());
    assert_ne!(status, TrialStatus::Ok);
    let expected = format!("two: reset failed: {LEFT}");
    assert!(reasons.iter().any(|reason| reason.contains(&expected)), "{reasons:?}");
}

#[test]
fn a_reboot_between_trials_is_recorded_in_the_trial_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let ccbench = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ccbench"));
        command.args(arguments).current_dir(dir.path()).output().unwrap()
    };
    let (one, two) = (serve_rebooted(vec![probe(), fake::done()]), serve(vec![fake::done()]));
    std::fs::write(dir.path().join("plan.toml"), plan_of(one, two)).unwrap();
    let done = ccbench(&["run", "plan.toml", "--out", "results"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let runs = std::fs::read_dir(dir.path().join("results")).unwrap().flatten();
    let run = runs.map(|entry| entry.path()).find(|path| path.is_dir()).unwrap();
    let run = run.to_str().unwrap();
    let events = ccbench(&["export", "csv", run, "--table", "events", "--output", "-"]);
    let events = String::from_utf8_lossy(&events.stdout);
    let recorded = events.lines().filter(|line| line.contains("node_rebooted")).count();
    assert_eq!(recorded, 1, "{events}");
    assert!(events.contains("boot ID a later boot, previously another machine"), "{events}");
}

#[test]
fn a_run_that_another_kernel_ended_is_not_resumed_with_that_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let ccbench = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ccbench"));
        let done = command.args(arguments).current_dir(dir.path()).output().unwrap();
        let printed = String::from_utf8_lossy(&done.stderr).into_owned();
        println!("{printed}");
        (done.status.code(), printed)
    };
    let one = serve_upgraded("7.9.0", vec![probe(), fake::done()]);
    std::fs::write(dir.path().join("plan.toml"), plan_of(one, serve(vec![fake::done()]))).unwrap();
    let (_, printed) = ccbench(&["run", "plan.toml", "--out", "results"]);
    assert!(printed.contains("rebooted into another kernel (7.9.0"), "{printed}");
    let runs = std::fs::read_dir(dir.path().join("results")).unwrap().flatten();
    let run = runs.map(|entry| entry.path()).find(|path| path.is_dir()).unwrap();
    let record = || std::fs::read(run.join("run.json")).unwrap();
    let before = record();
    let (code, printed) = ccbench(&["run", "--resume", run.to_str().unwrap()]);
    assert_eq!(code, Some(2), "{printed}");
    let why = "(node one: 7.9.0 instead of 7.3.4); boot the previous kernel";
    assert!(printed.contains(why), "{printed}");
    assert_eq!(record(), before, "no session begins");
}

#[test]
fn a_silent_node_ends_the_trial_long_before_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan.toml");
    let (one, two) = (serve_runs(vec![vec![]]), serve_runs(vec![vec![fake::done()]]));
    std::fs::write(&plan, plan_of(one, two).replace("200ms", "1h")).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_ccbench"));
    run.arg("run").arg(&plan).arg("--out").arg(dir.path().join("results"));
    let mut run = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let stderr = BufReader::new(run.stderr.take().unwrap());
    let loss = stderr.lines().map_while(Result::ok).find(|line| line.contains("trying again"));
    run.kill().unwrap();
    run.wait().unwrap();
    assert!(loss.is_some_and(|line| line.contains("one")));
}

#[test]
fn a_run_that_waits_for_its_first_agent_can_be_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let (plan, results) = (dir.path().join("plan.toml"), dir.path().join("results"));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = silent.local_addr().unwrap();
    std::fs::write(&plan, plan_of(one, serve(vec![fake::done()]))).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_ccbench"));
    run.arg("run").arg(&plan).arg("--out").arg(&results);
    let mut run = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let _connection = silent.accept().unwrap();
    kill_process(Pid::from_child(&run), Signal::INT).unwrap();
    // Not 3, with which the run ends when the agent's time is over.
    assert_eq!(run.wait().unwrap().code(), Some(130));
    assert!(!results.exists(), "no trial was begun");
}

#[test]
fn a_run_that_sends_a_file_can_be_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let (arrived, arrives) = std::sync::mpsc::channel();
    let plan = plan_of(fake::serve_holding_files(arrived), serve(vec![fake::done()]));
    let link = "[links.up]\nnode = \"one\"\ntoward = \"two\"\ntrace = { file = \"cell.csv\" }\n";
    std::fs::write(dir.path().join("cell.csv"), "rate_mbit,dwell_s\n12,1\n").unwrap();
    std::fs::write(dir.path().join("plan.toml"), plan + link).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_ccbench"));
    run.args(["run", "plan.toml", "--out", "results"]).current_dir(dir.path());
    let mut run = run.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap();
    arrives.recv_timeout(SETUP_TIMEOUT).unwrap();
    kill_process(Pid::from_child(&run), Signal::INT).unwrap();
    // Not 3, with which the run ends when the agent's time is over.
    assert_eq!(run.wait().unwrap().code(), Some(130));
}

#[test]
fn trial_that_cannot_start_because_of_a_clock_is_recorded() {
    let (status, reasons, ..) = run_on(fake::serve_with_unusable_clock());
    assert_eq!(status, TrialStatus::Failed);
    let is_clock = |reason: &String| {
        reason.starts_with("not_run: ") && reason.contains("clock") && reason.contains("impossible")
    };
    assert!(reasons.first().is_some_and(is_clock), "{reasons:?}");
}

#[test]
fn a_trial_is_repeated_only_once() {
    let (status, reasons, ..) = run_on(serve_runs(vec![vec![probe()]]));
    assert_eq!(status, TrialStatus::Failed);
    assert!(reasons.iter().any(|reason| reason.starts_with("node_lost: one")), "{reasons:?}");
}
