//! Tests `ccbench trace record` of a simulated path.

use ccbench_tests::{Bench, recorded, text};

/// Records the path. Returns the output.
fn record(bench: &Bench, rate: &str) -> String {
    let arguments = recorded::arguments(bench, rate, "path");
    let words: Vec<&str> = arguments.iter().map(String::as_str).chain(["--sim"]).collect();
    let done = bench.run(&words);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    text(&done)
}

#[test]
fn a_replayed_trace_is_recorded_again() {
    let bench = Bench::new();
    let printed = record(&bench, "20mbit");
    recorded::check(&bench, "path");
    for direction in ["down", "up"] {
        let whole =
            printed.lines().find(|line| line.starts_with(&format!("path.{direction}.csv: ")));
        let whole = whole.unwrap_or_else(|| panic!("no line about {direction}: {printed}"));
        assert!(whole.ends_with(" 100 rows, 100 of them saturated"), "{whole}");
    }
    // The rows are the same on any machine.
    let again = Bench::new();
    record(&again, "20mbit");
    for file in ["path.down.csv", "path.up.csv"] {
        let read = |bench: &Bench| std::fs::read_to_string(bench.path(file)).unwrap();
        assert_eq!(read(&bench), read(&again), "{file}");
    }
}

/// A recorded trace is like any other: recording a path that replays it gives the same capacity in each second.
#[test]
fn a_recorded_trace_replays_within_two_percent_of_each_second() {
    let bench = Bench::new();
    record(&bench, "20mbit");
    let arguments = recorded::replay_arguments(&bench, "20mbit", "path", "again");
    let words: Vec<&str> = arguments.iter().map(String::as_str).chain(["--sim"]).collect();
    let done = bench.run(&words);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    recorded::check_replay(&bench, "path", "again");
}

#[test]
fn a_rate_below_the_capacity_is_reported() {
    let bench = Bench::new();
    let printed = record(&bench, "5mbit");
    // Towards `src`, seven of the ten seconds have more.
    let line = printed.lines().find(|line| line.starts_with("path.down.csv: ")).unwrap();
    assert!(line.contains("; 70 not saturated, so their rates are lower bounds"), "{line}");
}

#[test]
fn wrong_arguments_are_refused() {
    let bench = Bench::new();
    let arguments = recorded::arguments(&bench, "20mbit", "path");
    let refused = |more: &[&str], why: &str| {
        let words: Vec<&str> =
            arguments.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let done = bench.run(&words);
        assert_eq!(done.status.code(), Some(2), "{}", text(&done));
        assert!(text(&done).contains(why), "{}", text(&done));
    };
    refused(&["--sim", "--every", "30ms"], "must divide 1s");
    refused(&["--sim", "--quick"], "--quick is for plans");
    let done =
        bench.run(&["trace", "record", "--peer", "127.0.0.1:7700", "--rate", "1mbit", "-o", "x"]);
    assert_eq!(done.status.code(), Some(2), "{}", text(&done));
    assert!(text(&done).contains("--peer-address"), "{}", text(&done));
}
