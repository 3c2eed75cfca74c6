//! Tests of a plan that names a node's kernel, into which the controller reboots the node.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use ccbench_results::TrialStatus;
use ccbench_results::store::RunDir;

use crate::fake::{self, serve, serve_booting, serve_elsewhere, serve_elsewhere_refusing};
use crate::lost::probe;
use crate::version::plan_of;

/// The kernel that the plan names for the first node.
const NAMED: &str = "6.99.0-other";

/// Runs the plan in a directory, with this agent for its first node. Returns the exit code and what was printed.
fn run(dir: &Path, one: SocketAddr, arguments: &[&str]) -> (Option<i32>, String) {
    let plan = plan_of(one, serve(vec![fake::done()]));
    let named = format!("[nodes.one]\nkernel_release = \"{NAMED}\"");
    std::fs::write(dir.join("plan.toml"), plan.replace("[nodes.one]", &named)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccbench"));
    command.args(["run", "plan.toml", "--out", "results"]).args(arguments).current_dir(dir);
    let done = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let printed = text(&done.stdout) + &text(&done.stderr);
    println!("{printed}");
    (done.status.code(), printed)
}

/// Opens the run's only results directory.
fn results(dir: &Path) -> RunDir {
    let runs = std::fs::read_dir(dir.join("results")).unwrap().flatten();
    let run = runs.map(|entry| entry.path()).find(|path| path.is_dir()).unwrap();
    RunDir::open(&run).unwrap()
}

#[test]
fn a_node_is_rebooted_into_the_kernel_of_the_plan() {
    let dir = tempfile::tempdir().unwrap();
    let one = serve_booting(NAMED, vec![probe(), fake::done()]);
    let (code, printed) = run(dir.path(), one, &[]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("one: rebooting from kernel 7.3.4 into 6.99.0-other"), "{printed}");
    let trials = results(dir.path()).trials();
    let boots = &trials[0].boots;
    let kernels: Vec<&str> = boots.values().map(|boot| boot.kernel.as_str()).collect();
    assert_eq!(kernels, [NAMED, "7.3.4"]);
    assert_eq!(boots["one"].boot_id, "the boot of another kernel");
    let path = results(dir.path()).path().to_owned();
    let mut export = Command::new(env!("CARGO_BIN_EXE_ccbench"));
    export.arg("export").arg("csv").arg(path).args(["--table", "events", "--output", "-"]);
    let events = String::from_utf8_lossy(&export.output().unwrap().stdout).into_owned();
    let event = "rebooted into kernel 6.99.0-other, which the plan names (boot ID the boot of another kernel, previously another \
                 machine with kernel 7.3.4)";
    assert!(events.contains("node_rebooted") && events.contains(event), "{events}");
}

#[test]
fn a_node_that_comes_back_with_another_kernel_ends_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let one = serve_booting("6.1.0-usual", vec![probe(), fake::done()]);
    let (code, printed) = run(dir.path(), one, &[]);
    assert_eq!(code, Some(3), "{printed}");
    let why = "runs kernel 6.1.0-usual, not 6.99.0-other";
    let trials = results(dir.path()).trials();
    assert_eq!(trials[0].status, TrialStatus::Failed);
    assert!(trials[0].reasons.iter().any(|reason| reason.message.contains(why)), "{printed}");
}

#[test]
fn a_kernel_that_did_not_start_is_not_booted_for_every_trial() {
    let dir = tempfile::tempdir().unwrap();
    let one = serve_booting("6.1.0-usual", vec![probe(), fake::done()]);
    let options = ["--keep-going", "--set", "repeat=2", "--await-reboot", "10s"];
    let (_, printed) = run(dir.path(), one, &options);
    let trials = results(dir.path()).trials();
    let reasons = || trials.iter().flat_map(|trial| &trial.reasons);
    let with = |part: &str| reasons().filter(|reason| reason.message.contains(part)).count();
    assert_eq!(trials.len(), 2, "{printed}");
    assert_eq!(with("runs kernel 6.1.0-usual, not 6.99.0-other"), 1, "{printed}");
    assert_eq!(with("ccbench does not try 6.99.0-other again"), 1, "{printed}");
}

#[test]
fn a_node_that_does_not_reboot_in_time_ends_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let one = serve_elsewhere(vec![probe(), fake::done()]);
    let (code, printed) = run(dir.path(), one, &["--await-reboot", "1s"]);
    assert_eq!(code, Some(3), "{printed}");
    for part in
        ["did not come back with kernel 6.99.0-other within 1s", "still up with kernel 7.3.4"]
    {
        assert!(printed.contains(part), "no `{part}`: {printed}");
    }
}

#[test]
fn only_a_machine_of_its_own_is_rebooted() {
    let dir = tempfile::tempdir().unwrap();
    // It reports the boot ID of the machine that runs this test.
    let (code, printed) = run(dir.path(), serve(vec![probe(), fake::done()]), &[]);
    assert_eq!(code, Some(3), "{printed}");
    assert!(printed.contains("it is the machine on which ccbench runs"), "{printed}");
}

#[test]
fn an_agent_that_may_not_reboot_ends_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let refused = (tonic::Code::PermissionDenied, "this agent may not reboot its machine");
    let one = serve_elsewhere_refusing("/Reboot", refused);
    let (code, printed) = run(dir.path(), one, &[]);
    assert_eq!(code, Some(3), "{printed}");
    assert!(printed.contains("node one: reboot: this agent may not reboot"), "{printed}");
}
