//! Tests `ccbench reproduce conformance` in the simulator: verdicts of some test cases of the BBR draft.

use ccbench_tests::{Bench, text};
use serde_json::Value;

/// Returns the events with this name in a command's output with `--json`.
fn events(done: &std::process::Output, name: &str) -> Vec<Value> {
    let printed = String::from_utf8_lossy(&done.stdout);
    let events = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter(|event| event["event"] == name).collect()
}

/// STARTUP ends because of a plateau, DRAIN only because of what is in flight, and PROBE_RTT occurs. A state machine without any of these
/// fails these cases.
#[test]
fn cases_of_startup_drain_and_probe_rtt_hold() {
    for (case, measured) in [
        ("conformance_01", 15),
        ("conformance_03", 10),
        ("conformance_04", 11),
        ("conformance-20", 4),
    ] {
        let bench = Bench::new();
        let done = bench.run(&["reproduce", case, "--sim", "--quick", "--json"]);
        let claims = events(&done, "expectation");
        let with = |verdict: &str| {
            claims.iter().filter(|claim| claim["verdict"] == verdict).collect::<Vec<_>>()
        };
        assert!(with("does_not_hold").is_empty(), "{case}: {:#?}", with("does_not_hold"));
        assert_eq!(with("holds").len(), measured, "{case}: {}", text(&done));
        for claim in with("not_measured") {
            let reason = claim["reason"][0].as_str().unwrap_or_default();
            assert!(reason.starts_with("known deviation: "), "{case}: {claim:#}");
        }
        assert_eq!(done.status.code(), Some(0), "{case}: {}", text(&done));
    }
}

/// The cases detect an implementation that breaks a rule of the draft: no PROBE_RTT in a minute, a DRAIN that hardly drains.
#[test]
fn cases_tell_a_wrong_implementation() {
    for (case, file, params) in [
        ("conformance_20", "20-probe-rtt-startup.toml", "probe_rtt_interval_ms = 60000"),
        ("conformance_03", "03-drain-inflight.toml", "drain_gain = 950"),
    ] {
        let bench = Bench::new();
        let written = bench.run(&["reproduce", case, "--write", "."]);
        assert_eq!(written.status.code(), Some(0), "{case}: {}", text(&written));
        let plan = std::fs::read_to_string(bench.path(file)).unwrap();
        let right = r#"algorithm = "bbr3" }"#;
        assert_eq!(plan.matches(right).count(), 1, "{plan}");
        let wrong = format!(r#"algorithm = "bbr3", params = {{ {params} }} }}"#);
        bench.write(file, &plan.replace(right, &wrong));
        let done = bench.run(&["run", file, "--sim", "--quick", "--json"]);
        assert_eq!(done.status.code(), Some(4), "{case}: {}", text(&done));
        let claims = events(&done, "expectation");
        assert!(claims.iter().any(|claim| claim["verdict"] == "does_not_hold"), "{claims:#?}");
    }
}

/// Runs all cases in turn. Those without what `--set` selects are not run, and do not change the result of the others.
#[test]
fn all_cases_end_with_a_line_for_each() {
    let bench = Bench::new();
    let only = ["--set", "matrix.state=startup", "--json"];
    let done = bench.run(&[&["reproduce", "conformance", "--sim", "--quick"][..], &only].concat());
    let lines = events(&done, "reproduced");
    assert_eq!(lines.len(), 22, "{}", text(&done));
    for line in &lines {
        // Only case 7 has the factor.
        let is_run = line["name"] == "conformance_07";
        assert_eq!(line["result"] != "not run", is_run, "{line}");
        assert_eq!(line["held"].is_number(), is_run, "{line}");
    }
    assert_eq!(bench.all_results().len(), 1, "{}", text(&done));
}

/// The lines of all cases are printed although one ended with an error.
#[test]
fn an_error_is_the_result_of_its_case() {
    let bench = Bench::new();
    bench.write("file", "");
    let only = ["--set", "matrix.state=startup", "--json", "--out", "file"];
    let done = bench.run(&[&["reproduce", "conformance", "--sim", "--quick"][..], &only].concat());
    assert_eq!(done.status.code(), Some(1), "{}", text(&done));
    let lines = events(&done, "reproduced");
    assert_eq!(lines.len(), 22, "{}", text(&done));
    for line in &lines {
        let expected = if line["name"] == "conformance_07" { "error" } else { "not run" };
        assert_eq!(line["result"], expected, "{line}");
    }
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(errors.contains("ccbench: conformance_07: cannot "), "{errors}");
}
