//! Tests `ccbench compare` with two runs of several points.

use ccbench_tests::{Bench, text};

use crate::PLAN;

/// Makes a finished run of [`PLAN`] with these changes.
fn run(changes: &[(&str, &str)]) -> (Bench, String) {
    let bench = Bench::new();
    let plan = changes.iter().fold(PLAN.to_owned(), |plan, (from, to)| {
        assert!(plan.contains(from), "{from}");
        plan.replace(from, to)
    });
    let plan = bench.write("plan.toml", &plan.replace("seed = 1", "seed = 1\nrepeat = 2"));
    let done = bench.run(&["run", &plan.display().to_string(), "--sim"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let dir = bench.results().display().to_string();
    (bench, dir)
}

fn compare(a: &(Bench, String), b: &(Bench, String), arguments: &[&str]) -> String {
    let done = a.0.run(&[&["compare", &a.1, &b.1], arguments].concat());
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn points_are_matched_judged_and_counted() {
    let first = run(&[]);
    let slower = run(&[
        ("rate = \"20mbit\"", "rate = \"10mbit\""),
        ("[\"cubic\", \"bbr\"]", "[\"bbr\", \"cubic\", \"reno\"]"),
    ]);
    let printed = compare(&first, &slower, &[]);
    assert!(printed.contains("not compared: 1 point only in B: reno\n"), "{printed}");
    assert!(printed.contains("does not agree: cubic: throughput_sum of "), "{printed}");
    assert!(printed.contains("note: the plans differ in links.bottleneck.rate"), "{printed}");
    assert!(printed.ends_with("\n0 of 2 points agree\n"), "{printed}");
    let wide = "throughput_sum=60,srtt=200,retransmission_share=100000";
    let printed = compare(&first, &slower, &["--tolerance", wide]);
    assert!(printed.ends_with("\n2 of 2 points agree\n"), "{printed}");
    // Requesting a metric excludes the tolerances of others.
    let wide = ["--metric", "srtt", "--tolerance", "srtt=200"];
    let printed = compare(&first, &slower, &wide);
    assert!(!printed.contains("throughput_sum"), "{printed}");
    assert!(printed.ends_with("\n2 of 2 points agree\n"), "{printed}");
    let swapped = compare(&slower, &first, &[]);
    assert!(swapped.contains("not compared: 1 point only in A: reno\n"), "{swapped}");
    let same = compare(&first, &first, &[]);
    assert!(same.ends_with("\n2 of 2 points agree\n"), "{same}");

    let csv = compare(&first, &slower, &["--csv", "-"]);
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    let at = |name: &str| rows[0].iter().position(|column| *column == name).unwrap();
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{csv}");
    let of = |row: &&Vec<&str>| {
        (row[at("point")], row[at("scope")], row[at("metric")])
            == ("cubic", "group", "throughput_sum")
    };
    let cubic = rows.iter().find(of).unwrap();
    assert_eq!(cubic[at("agrees")], "false");
    let [low, mean, high] =
        ["b95_low", "mean_b", "b95_high"].map(|name| cubic[at(name)].parse::<f64>().unwrap());
    assert!(low < mean && mean < high && mean < 10e6, "{cubic:?}");
    let reno = rows.iter().find(|row| row[at("point")] == "reno").unwrap();
    assert_eq!((reno[at("mean_b")], reno[at("note")]), ("", "only in B"));
}

/// A claim that holds only at 20 Mbit/s, and one that also holds at 10 Mbit/s.
const CLAIMS: &str = r#"
[[expect]]
claim = "The flow is fast"
metric = "throughput"
group = "f"
above = "12mbit"
[[expect]]
claim = "The flow runs"
metric = "throughput"
group = "f"
above = "1mbit"
"#;

#[test]
fn claims_that_hold_in_one_run_are_a_table() {
    let run = |rate: &str, code: i32| {
        let bench = Bench::new();
        let plan = PLAN.replace("seed = 1", "seed = 1\nrepeat = 2");
        let plan = plan.replace("rate = \"20mbit\"", rate) + CLAIMS;
        let plan = bench.write("plan.toml", &plan);
        let done = bench.run(&["run", &plan.display().to_string(), "--sim"]);
        assert_eq!(done.status.code(), Some(code), "{}", text(&done));
        let dir = bench.results().display().to_string();
        (bench, dir)
    };
    let (fast, slow) = (run("rate = \"20mbit\"", 0), run("rate = \"10mbit\"", 4));
    let file = fast.0.path("claims.csv").display().to_string();
    let printed = compare(&fast, &slow, &["--claims-csv", &file]);
    let csv = std::fs::read_to_string(file).unwrap();
    let only_fast = |line: &&str| line.contains(",holds,") && line.ends_with(",does_not_hold");
    assert_eq!((csv.lines().count(), csv.lines().filter(only_fast).count()), (5, 2), "{csv}");
    assert_eq!(compare(&fast, &slow, &["--claims-csv", "-"]), csv, "instead of the tables");
    let both = ["compare", &fast.1, &slow.1, "--csv", "-", "--claims-csv", "-"];
    let refused = fast.0.run(&both);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(!fast.0.path("-").exists());
    assert!(printed.contains("claims that hold in one run and not in the other:"), "{printed}");
    let of_claim = printed.lines().filter(|line| line.contains("The flow is fast"));
    assert_eq!(of_claim.filter(|line| line.ends_with(" A")).count(), 2, "{printed}");
    assert!(!printed.contains("The flow runs"), "{printed}");
    let count = "\nclaims: 2 hold in A and B, 2 only in A, 0 only in B, 0 in neither\n";
    assert!(printed.contains(count), "{printed}");
    assert!(printed.ends_with(" of 2 points agree\n"), "{printed}");
    let same = compare(&slow, &slow, &[]);
    assert!(same.contains("\nclaims: 2 hold in A and B, 0 only in A, 0 only in B, 2 in neither\n"));
    assert!(!same.contains("The flow is fast"), "{same}");
}

#[test]
fn intervals_and_trials_that_do_not_count_are_stated() {
    let (bench, dir) = run(&[]);
    let levels = ["compare", &dir, "--by", "flows.f.cc=cubic,bbr"];
    let whole = text(&bench.run(&levels));
    assert!(
        whole.contains("if nothing differed, about one in twenty would have it by chance"),
        "{whole}"
    );
    assert!(!whole.contains("trials of A: ") && !whole.contains("trials of B: "), "{whole}");
    let line = whole.lines().find(|line| line.contains(" intervals (t) have *")).unwrap();
    let counts: Vec<usize> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    let of_table = |line: &&str| line.starts_with(" only ");
    let rows: Vec<&str> = whole.lines().filter(of_table).collect();
    let marked = rows.iter().filter(|row| row.contains(" *")).count();
    assert_eq!(counts, [marked, rows.len()], "{whole}");
    let samples = bench.results().join("tables/flow_samples/point=0/trial-01/part-0.parquet");
    std::fs::write(samples, "damaged").unwrap();
    let damaged = text(&bench.run(&levels));
    let expected = "trials of A: 1 of 2 failed, excluded (damaged in 1)";
    assert!(damaged.contains(expected), "{damaged}");
}

#[test]
fn trials_of_points_that_are_not_compared_are_not_counted() {
    let first = run(&[]);
    let other = run(&[("[\"cubic\", \"bbr\"]", "[\"cubic\", \"reno\"]")]);
    let damage = |point: u32| {
        let part = format!("tables/flow_samples/point={point}/trial-01/part-0.parquet");
        std::fs::write(first.0.results().join(part), "damaged").unwrap();
    };
    // Point 1 has BBR, which the other run does not have.
    damage(1);
    let printed = compare(&first, &other, &[]);
    assert!(printed.contains("not compared: 1 point only in A: bbr\n"), "{printed}");
    assert!(!printed.contains("trials of A: "), "{printed}");
    damage(0);
    let printed = compare(&first, &other, &[]);
    let expected = "trials of A: 1 of 2 failed, excluded (damaged in 1)\n";
    assert!(printed.contains(expected), "{printed}");
}

#[test]
fn levels_are_paired_if_the_plan_compares_them() {
    let by = |bench: &Bench, dir: &str| {
        let done = bench.run(&["compare", dir, "--by", "flows.f.cc=cubic,bbr"]);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done));
        text(&done)
    };
    let alone = run(&[]);
    let printed = by(&alone.0, &alone.1);
    let why = "\nnot paired: each point has its own seeds, unless `[[compare]]` in the plan connects points";
    assert!(printed.contains(" 2 + 2\n") && printed.contains(why), "{printed}");
    let comparison = "\n[[compare]]\na = { \"flows.f.cc\" = \"cubic\" }\nb = { \"flows.f.cc\" = \"bbr\" }\n\
                      metric = \"throughput\"\ngroup = \"f\"\nbetter = \"higher\"\nmargin = \"5%\"\n";
    let levels = "\"flows.f.cc\" = [\"cubic\", \"bbr\"]\n";
    let compared = run(&[(levels, format!("{levels}{comparison}").as_str())]);
    let printed = by(&compared.0, &compared.1);
    let paired = "\npaired: trials of A and B with the same number and seed.\n";
    assert!(printed.contains(" 2 pairs\n") && printed.contains(paired), "{printed}");
    // Two runs.
    let other = run(&[("seed = 1", "seed = 2")]);
    let printed = compare(&alone, &other, &[]);
    assert!(printed.contains("\nnot paired: fewer than two trials have the same number and seed"));
    assert!(compare(&alone, &alone, &[]).contains(paired));
}

#[test]
fn a_tolerance_is_a_metric_and_a_percentage() {
    let bench = Bench::new();
    let done = bench.run(&["compare", "a", "b", "--tolerance", "srtt"]);
    assert_eq!(done.status.code(), Some(2), "{}", text(&done));
    assert!(text(&done).contains("write METRIC=PERCENT, as in srtt=6"), "{}", text(&done));
    let printed = text(&bench.run(&["compare", "a", "b", "--tolerance", "packet_lateness:p99=3"]));
    let warning = "metric `packet_lateness` is deprecated; use `packet_scheduling_error`";
    assert!(printed.contains(warning), "{printed}");
}
