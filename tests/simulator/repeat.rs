//! Rules that end the repetition of points, and comparisons.

use ccbench_tests::run_files::{assert_equal, tables_and_summaries};
use ccbench_tests::{Bench, csv, text};
use serde_json::Value;

use super::PLAN;

/// Any spread that these trials have is less than this.
const LOOSE: &str = r#"repeat = { at_least = 5, at_most = 8, until = [{ metric = "throughput", group = "f", within = "90%" }] }"#;
/// A difference is never within this margin.
const COMPARED: &str = r#"
[[compare]]
a = { "flows.f.cc" = "bbr" }
b = { "flows.f.cc" = "cubic" }
metric = "throughput"
group = "f"
better = "higher"
margin = "1bit"
"#;

/// A run with these rules.
fn run(repeat: &str, rest: &str, arguments: &[&str]) -> Bench {
    let bench = Bench::new();
    let plan = PLAN.replace("seed = 1", &format!("seed = 1\n{repeat}")) + rest;
    let plan = bench.write("plan.toml", &plan).display().to_string();
    let done = bench.run(&[&["run", &plan, "--sim"], arguments].concat());
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    bench
}

fn record(bench: &Bench) -> Value {
    let record = std::fs::read(bench.results().join("run.json")).unwrap();
    serde_json::from_slice(&record).unwrap()
}

/// The number of trials of each of the two points.
fn trials(bench: &Bench) -> [usize; 2] {
    let trials = csv(&bench.results().join("trials.csv"));
    ["0", "1"].map(|point| trials.iter().filter(|trial| trial["point_id"] == point).count())
}

#[test]
fn points_are_repeated_until_their_rules_are_decided() {
    let bench = run(LOOSE, "", &[]);
    assert_eq!(trials(&bench), [5, 5]);
    let record = record(&bench);
    assert_eq!(record["status"], "complete");
    let decisions = record["decisions"].as_array().unwrap();
    assert_eq!(decisions.len(), 2);
    assert!(decisions.iter().all(|it| it["after"] == 5 && it["outcome"] == "known"), "{record}");
    let journal = std::fs::read_to_string(bench.results().join("journal.ndjson")).unwrap();
    assert_eq!(journal.matches("\"event\":\"decision\"").count(), 2);
    let dir = bench.results().display().to_string();
    let again = bench.run(&["run", "--resume", &dir, "--sim"]);
    assert_eq!(again.status.code(), Some(0), "{}", text(&again));
    assert!(text(&again).contains("nothing is left to run"), "{}", text(&again));
    let summary = text(&bench.run(&["summarize", &dir]));
    assert!(
        summary.contains("2 of 2 rules decided") && !summary.contains("of 16 trials"),
        "{summary}"
    );
}

#[test]
fn the_same_trials_run_for_any_number_of_jobs() {
    let files = |jobs: &str| {
        let bench = run(LOOSE, COMPARED, &["--jobs", jobs]);
        let counts = trials(&bench);
        // Both points are repeated for the comparison.
        assert_eq!(counts[0], counts[1]);
        let record = record(&bench);
        let decisions = record["decisions"].as_array().unwrap().clone();
        let after = |it: &Value| it["after"].as_u64().unwrap() as usize;
        let compared = decisions.iter().find(|it| it["rule"] == "compare.0").map(after);
        assert_eq!(counts[0], compared.unwrap_or(8));
        let mut decisions: Vec<String> = decisions.iter().map(Value::to_string).collect();
        decisions.sort();
        (tables_and_summaries(&bench), decisions)
    };
    let one = files("1");
    for jobs in ["2", "5"] {
        let other = files(jobs);
        assert_equal(&one.0, &other.0);
        assert_eq!(one.1, other.1);
    }
}
