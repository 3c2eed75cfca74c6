//! Tests figures and the report of a run with many points, and the index of runs.

use ccbench_tests::{Bench, text};

use crate::PLAN;

#[test]
fn many_points_have_panels_and_an_overview() {
    let bench = Bench::new();
    let rates: Vec<String> = (1..=13).map(|nth| format!("\"{}mbit\"", 4 * nth)).collect();
    let plan = PLAN.replace("length = \"3s\"", "length = \"1s\"")
        + &format!(
            "\"links.bottleneck.rate\" = [{}]\n\"links.back.delay\" = [\"10ms\", \"20ms\"]\n",
            rates.join(", ")
        );
    let plan = bench.write("plan.toml", &plan).display().to_string();
    let done = bench.run(&["run", &plan, "--sim"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let run = bench.results().display().to_string();

    let axes = ["--x", "links.bottleneck.rate", "--y", "links.back.delay"];
    let done = bench.run(&[&["plot", &run, "--kind", "heatmap"][..], &axes].concat());
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let stem = "figures/heatmap-x=links.bottleneck.rate-y=links.back.delay";
    let figure =
        |ending: &str| std::fs::read_to_string(bench.results().join(format!("{stem}.{ending}")));
    let svg = figure("svg").unwrap();
    assert!(svg.contains(">panels: flows.f.cc<") && svg.contains(">bbr<"), "{svg}");
    assert_eq!(figure("csv").unwrap().lines().count(), 1 + 52);

    let done = bench.run(&["report", &run]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let report = std::fs::read_to_string(bench.results().join("report.html")).unwrap();
    let at = |part: &str| report.find(part).unwrap_or_else(|| panic!("no {part}"));
    assert!(at("id=\"overview\"") < at("<figure>") && at("</figure>") < at("id=\"verdicts\""));
    assert!(report.contains("\"overview\":true"));
}

#[test]
fn an_index_lists_runs_and_writes_their_reports() {
    let bench = Bench::new();
    let plan = bench.write("plan.toml", &PLAN.replace("length = \"3s\"", "length = \"1s\""));
    let done = bench.run(&["run", &plan.display().to_string(), "--sim", "--set", "repeat=1"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let run = bench.results();
    let report = run.join("report.html");
    let index = || std::fs::read_to_string(bench.path("results/index.html")).unwrap();
    let done = bench.run(&["index"]);
    assert!(done.status.success(), "{}", text(&done));
    assert_eq!(done.stdout, b"results/index.html\n");
    assert!(!report.exists() && index().contains("\"has_report\":false"));
    assert!(index().contains("\"backend\":\"simulator, model "), "{}", index());
    let done = bench.run(&["index", "--reports"]);
    assert!(done.status.success(), "{}", text(&done));
    assert!(report.exists() && index().contains("\"has_report\":true"));
    // A run without its plan has no report, but it has a line.
    std::fs::remove_file(&report).unwrap();
    std::fs::remove_file(run.join("plan.toml")).unwrap();
    let done = bench.run(&["index", "--reports"]);
    assert_eq!(done.status.code(), Some(1), "{}", text(&done));
    assert!(
        text(&done).contains("cannot write the report of ")
            && index().contains("\"has_report\":false")
    );
}
