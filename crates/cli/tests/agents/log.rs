//! `ccbench -v` logs the steps of a trial and `-vv` the messages.

use std::process::Command;

use crate::fake;

/// Runs a plan of one short trial with these options. Returns standard error.
fn run(options: &[&str]) -> String {
    let [src, dst] = [(); 2].map(|()| fake::serve_elsewhere(vec![fake::done()]));
    let dir = tempfile::tempdir().unwrap();
    let plan = format!(
        r#"
        name = "log"
        nodes.src = {{ agent = "{src}", address = "127.0.0.1" }}
        nodes.dst = {{ agent = "{dst}", address = "127.0.0.2" }}
        flows.bulk = {{ from = "src", to = "dst" }}
        phases = [{{ name = "all", length = "1s", flows = ["bulk"] }}]
        "#
    );
    std::fs::write(dir.path().join("plan.toml"), plan).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccbench"));
    command.args(options).args(["run", "plan.toml"]).current_dir(dir.path());
    let output = command.env_remove("CCBENCH_LOG").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    // The trial fails because no flow sends a row.
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    stderr
}

#[test]
fn verbose_logs_the_steps_of_a_trial_in_order() {
    let log = run(&["-v"]);
    let mut rest = log.as_str();
    for step in [
        "ccbench::agents: connect node=\"src\"",
        "ccbench::agents: describe node=\"src\"",
        "ccbench::runner: trial repeat 1/1",
        "ccbench::agents: clock node=\"src\"",
        "ccbench::agents: prepare nodes=2",
        "ccbench::testbed::trial: run nodes=2",
        "ccbench::agents: reset nodes=2",
        "ccbench::testbed::trial: commit",
        "ccbench::runner: verdict status=Failed",
    ] {
        let at = rest.find(step);
        rest = &rest[at.unwrap_or_else(|| panic!("`{step}` is missing or out of order: {log}"))..];
    }
    assert!(!log.contains("DEBUG"), "{log}");
}

#[test]
fn twice_verbose_logs_messages_with_kind_and_node() {
    let log = run(&["-vv"]);
    for message in [
        "prepare request node=\"dst\"",
        "prepare reply node=\"dst\"",
        "run request node=\"dst\"",
        "message node=\"dst\" kind=\"done\"",
        "end of stream node=\"dst\"",
    ] {
        assert!(log.contains(message), "no `{message}`: {log}");
    }
}

#[test]
fn logs_nothing_without_verbose() {
    let output = run(&[]);
    assert!(!output.contains("ccbench::"), "{output}");
}
