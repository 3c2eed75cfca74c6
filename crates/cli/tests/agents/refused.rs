//! An agent that refuses to run trials for this client.

use std::process::Command;

use crate::fake::{self, serve, serve_reads};
use crate::version::plan_of;

#[test]
fn a_refused_run_leaves_no_results_directory() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan.toml");
    std::fs::write(&plan, plan_of(serve(vec![fake::done()]), serve_reads())).unwrap();
    let out = dir.path().join("results");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccbench"));
    let done = command.arg("run").arg(&plan).arg("--out").arg(&out).output().unwrap();
    let printed = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(3), "{printed}");
    assert!(printed.contains("node two: check access: it needs the scope `run`"), "{printed}");
    assert!(!out.exists(), "{printed}");
}
