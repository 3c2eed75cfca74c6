//! Tests probes over TCP, from the plan to the summary.

use ccbench_tests::run_files::{assert_equal, tables_and_summaries};
use ccbench_tests::{Bench, csv, text};

use crate::PLAN;

const PROBES: &str = r#"
[probes.page]
kind = "http"
from = "dst"
to = "src"
bytes = "50000B"
cc = "reno"
every = "500ms"
[probes.connect]
kind = "tcp_connect"
from = "src"
to = "dst"
every = "200ms"
"#;

fn plan(more: &str) -> String {
    PLAN.replace("[[phases]]", &format!("{PROBES}{more}[[phases]]"))
}

#[test]
fn pages_and_connections_are_summarised() {
    let run = |jobs: &str| {
        let bench = Bench::new();
        let plan = bench.write("plan.toml", &plan("")).display().to_string();
        let done = bench.run(&["run", &plan, "--sim", "--jobs", jobs]);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done));
        let trials = csv(&bench.results().join("trials.csv"));
        assert!(trials.iter().all(|trial| trial["status"] == "ok"), "{}", text(&done));
        (bench, text(&done))
    };
    let (bench, printed) = run("1");
    assert!(printed.contains("first byte ms"), "{printed}");
    let rows = csv(&bench.results().join("summary_phase.csv"));
    let of = |subject: &str, metric: &str, stat: &str| {
        let wanted = [("point_id", "0"), ("subject", subject), ("metric", metric), ("stat", stat)];
        let row =
            rows.iter().find(|row| wanted.iter().all(|(column, value)| row[*column] == *value));
        let row = row.unwrap_or_else(|| panic!("no {metric} of {subject}"));
        row["value"].parse::<f64>().unwrap()
    };
    // 20 ms, a queue of up to 30 ms, and packets on the line. A SYN may be dropped, so the mean is no measure.
    assert!((20e3..52e3).contains(&of("connect", "rtt", "min")));
    assert!((40e3..104e3).contains(&of("page", "first_byte_time", "min")));
    assert!(of("page", "fetch_time", "mean") > of("page", "first_byte_time", "mean"));
    assert_eq!(of("page", "loss_share", "mean"), 0.0);
    assert_equal(&tables_and_summaries(&bench), &tables_and_summaries(&run("2").0));
}

#[test]
fn fetches_that_fail_degrade_the_trial() {
    let bench = Bench::new();
    let dead = plan("[[changes]]\nat = \"1s\"\nset = { \"links.back.loss\" = \"99.99%\" }\n")
        .replace("every = \"500ms\"", "every = \"500ms\"\ntimeout = \"400ms\"")
        .replace("50000B", "5000B");
    let plan = bench.write("plan.toml", &dead).display().to_string();
    let done = bench.run(&["run", &plan, "--sim"]);
    let trials = std::fs::read_to_string(bench.results().join("trials.csv")).unwrap();
    // Those from 1 s on fail. Earlier ones may fail, because they share the line with a flow that begins.
    let why = "of 6 http probes failed; first error: ";
    assert!(trials.matches(why).count() >= 2, "{}", text(&done));
}
