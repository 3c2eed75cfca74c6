//! Tests `ccbench scorecard`: the criteria of RFC 9743 in simulated trials.

use std::collections::{BTreeMap, BTreeSet};

use ccbench_tests::{Bench, csv, text};
use serde_json::Value;

/// The sections of RFC 9743 that have a criterion.
const SECTIONS: &str = "5.1.1 5.1.2 5.1.3 5.1.4 5.1.5 5.2 5.2.1 5.2.2 5.2.3 5.3.1 5.3.2 6.1 6.2 6.3 6.4 7.1 7.2 7.3 7.4 7.5 7.6 7.7 7.8 \
                        7.9 7.10 7.11";

fn number(row: &BTreeMap<String, String>, column: &str) -> Option<f64> {
    row[column].parse().ok()
}

/// Both congestion controls are CUBIC with the same seeds, so their trials are equal.
#[test]
fn cubic_equals_its_baseline_and_every_criterion_has_a_row() {
    let bench = Bench::new();
    let done = bench.run(&["scorecard", "cubic", "--sim", "--quick"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let printed = text(&done);
    assert!(printed.contains("! Some rows have only 2 trials. "), "{printed}");
    assert!(printed.contains("matrix.cc.tested: is the baseline, cubic, "), "{printed}");
    assert!(!printed.contains("use `repeat`"), "{printed}");
    let dir = bench.results();
    assert!(dir.display().to_string().contains("scorecard-cubic-"), "{dir:?}");
    let rows = csv(&dir.join("scorecard.csv"));
    let sections: BTreeSet<&str> = rows.iter().map(|row| row["section"].as_str()).collect();
    assert_eq!(sections, SECTIONS.split_whitespace().collect::<BTreeSet<_>>());
    let measures: Vec<_> = rows.iter().filter(|row| !row["scenario"].is_empty()).collect();
    assert!(measures.len() > 40, "{printed}");
    let mut ratios = 0;
    for row in measures {
        let name = format!("{} {}", row["section"], row["quantity"]);
        assert_ne!(row["verdict"], "not_measured", "{name}: {}\n{printed}", row["reason"]);
        let (value, baseline) = (number(row, "value"), number(row, "baseline"));
        assert!(value.is_some() && baseline.is_some(), "{name}: {row:?}");
        // Without a second pair whose baseline is not zero, a ratio has no interval.
        let ends = (number(row, "ratio_ci_low"), number(row, "ratio_ci_high"));
        if let (Some(low), Some(high)) = ends {
            assert!(low - 1e-9 <= 1.0 && 1.0 <= high + 1e-9, "{name}: {low} to {high}");
            ratios += 1;
        }
        assert_eq!(row["comparison"], "no_difference", "{name}: {row:?}");
        let point = &row["point_id"];
        let trials = dir.join(format!("tables/flow_samples/point={point}"));
        assert!(trials.is_dir(), "{name}: no {}", trials.display());
        assert!(printed.contains(&format!(" point={point}\n")), "{name}: {printed}");
    }
    assert!(ratios > 30, "only {ratios} ratios: {printed}");
    for file in ["scorecard.md", "scorecard.parquet"] {
        assert!(dir.join(file).is_file(), "no {file}");
    }
    let dir = dir.display().to_string();
    let again = bench.run(&["scorecard", "--resume", &dir, "--sim"]);
    assert_eq!(again.status.code(), Some(0), "{}", text(&again));
    assert!(text(&again).contains("nothing is left to run"), "{}", text(&again));
    assert!(text(&again).contains("Protection Against Bufferbloat"), "{}", text(&again));
    let verified = bench.run(&["verify", &dir]);
    assert_eq!(verified.status.code(), Some(0), "{}", text(&verified));
    assert!(!text(&verified).contains("not covered: scorecard"), "{}", text(&verified));
}

#[test]
fn one_scenario_leaves_the_other_rows_without_values() {
    let bench = Bench::new();
    let only = ["--set", "matrix.scenario=data_center", "--set", "repeat=2", "--json"];
    let done = bench.run(&[&["scorecard", "bbr3", "--sim"][..], &only].concat());
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let printed = String::from_utf8(done.stdout).unwrap();
    let events = printed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let rows: Vec<Value> = events.filter(|event| event["event"] == "scorecard").collect();
    let of = |section: &str| rows.iter().find(|row| row["section"] == section).unwrap();
    assert_eq!(of("6.1")["verdict"], "not_measured");
    assert_eq!(of("6.1")["reason"][0], "not run");
    assert_eq!(of("7.11")["cc"], "bbr3");
    assert!(of("7.11")["value"]["mean"].is_number(), "{printed}");
    assert_eq!(of("7.11")["value"]["n_trials"], 2);
}

#[test]
fn names_and_directories_that_do_not_fit_are_refused() {
    let bench = Bench::new();
    for (words, message) in [
        (&["scorecard", "../x", "--sim"][..], "is not a congestion control's name"),
        (&["scorecard", "bbrr", "--sim"], "did you mean `bbr"),
        (&["scorecard"], "required"),
        (&["scorecard", "--resume", "nosuch"], "it does not exist"),
    ] {
        let done = bench.run(words);
        assert_eq!(done.status.code(), Some(2), "{words:?}: {}", text(&done));
        assert!(text(&done).contains(message), "{words:?}: {}", text(&done));
    }
    assert!(bench.all_results().is_empty());
}
