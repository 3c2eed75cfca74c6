//! Tests for an agent that refuses to run trials for this client.

use std::net::SocketAddr;
use std::process::Command;

use ccbench_proto::wire::{self, run_event::Payload};
use ccbench_results::TrialStatus;
use tonic::Code;

use crate::fake::{self, serve, serve_reads, serve_refusing};
use crate::version::{plan_of, run_on};

/// Runs a plan whose second node has this agent, and expects that the run is refused and prints `expected`.
fn run_is_refused(two: SocketAddr, options: &[&str], expected: &str) {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan.toml");
    std::fs::write(&plan, plan_of(serve(vec![fake::done()]), two)).unwrap();
    let out = dir.path().join("results");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccbench"));
    let done = command.arg("run").arg(&plan).arg("--out").arg(&out).args(options).output().unwrap();
    let printed = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(3), "{printed}");
    assert!(printed.contains(expected), "{printed}");
    assert!(!out.exists(), "{printed}");
}

#[test]
fn a_refused_run_leaves_no_results_directory() {
    run_is_refused(serve_reads(), &[], "node two: check access: it needs the scope `run`");
}

#[test]
fn a_run_whose_plan_is_refused_leaves_no_results_directory() {
    let why = "congestion control mine needs the scope `bpf`";
    for options in [Vec::new(), vec!["--keep-going"]] {
        let two = serve_refusing("/Check", (Code::PermissionDenied, why), vec![fake::done()]);
        run_is_refused(two, &options, &format!("node two: check: {why}"));
    }
}

#[test]
fn an_agent_that_cannot_check_a_plan_runs_it() {
    let kind = wire::ProbeKind::Ping.into();
    let row = wire::Probe { probe_id: "rtt".to_owned(), kind, ..wire::Probe::default() };
    let messages = vec![fake::row(Payload::Probe(row)), fake::done()];
    let one = serve_refusing("/Check", (Code::Unimplemented, "no such RPC"), messages);
    let (status, reasons, ..) = run_on(one);
    assert_eq!((status, reasons), (TrialStatus::Ok, vec![]));
}
