//! Tests one-way delays of simulated packets, from the plan to the summary.

use std::collections::BTreeMap;

use ccbench_tests::{Bench, csv, text};

use crate::PLAN;

/// Makes a run whose bottleneck has a packet log of this size. Returns its output and the rows of the summary.
fn logged(bytes: &str) -> (Bench, String, Vec<BTreeMap<String, String>>) {
    let queue = "limit = \"75000B\" }";
    let plan = PLAN.replace(queue, &format!("{queue}\npacket_log = \"{bytes}\""));
    let bench = Bench::new();
    let file = bench.write("plan.toml", &plan).display().to_string();
    let done = bench.run(&["run", &file, "--sim"]);
    let rows = csv(&bench.results().join("summary_phase.csv"));
    (bench, text(&done), rows)
}

fn of(
    rows: &[BTreeMap<String, String>],
    (scope, subject): (&str, &str),
    stat: &str,
) -> Option<f64> {
    let wanted = [
        ("point_id", "0"),
        ("scope", scope),
        ("subject", subject),
        ("metric", "one_way_delay"),
        ("stat", stat),
    ];
    let row = rows.iter().find(|row| wanted.iter().all(|(column, value)| row[*column] == *value));
    Some(row?["value"].parse().unwrap())
}

#[test]
fn delay_of_packets_is_within_what_the_link_permits() {
    let (_bench, printed, rows) = logged("4MiB");
    assert!(printed.contains("one-way delay ms"), "{printed}");
    let flow = |stat| of(&rows, ("flow", "f/0"), stat).unwrap_or_else(|| panic!("no {stat}"));
    let [p50_us, p95_us, p99_us] = ["p50", "p95", "p99"].map(flow);
    // 10 ms and the time on the line, at most after a full queue (30 ms) and the packet on the line.
    assert!((10_605.0..=p95_us).contains(&p50_us), "{p50_us} {p95_us}");
    assert!(p95_us <= p99_us && p99_us < 41_500.0, "{p95_us} {p99_us}");
    assert_eq!(of(&rows, ("flow", "f/0"), "undefined"), None);
    // There is one flow. Pings and acknowledgements do not count.
    for place in [("group", "f"), ("net", "all"), ("link", "bottleneck")] {
        assert_eq!(of(&rows, place, "p95"), Some(p95_us), "{place:?}");
    }
    assert_eq!(of(&rows, ("link", "back"), "p95"), None, "it has no log");
}

#[test]
fn log_without_space_degrades_the_trial_and_leaves_the_delay_undefined() {
    let (bench, _, rows) = logged("48KiB");
    let trials = std::fs::read_to_string(bench.results().join("trials.csv")).unwrap();
    assert!(trials.contains("packets_not_logged"), "{trials}");
    for place in [("flow", "f/0"), ("net", "all"), ("link", "bottleneck")] {
        assert!(of(&rows, place, "undefined").is_some_and(|missing| missing > 0.0), "{place:?}");
        assert_eq!(of(&rows, place, "p95"), None, "{place:?}");
    }
}
