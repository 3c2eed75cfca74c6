//! Tests `new` and `doctor`, the commands before the first experiment.

use ccbench_tests::{Bench, text};

use crate::{err, out};

#[test]
fn a_new_plan_is_valid_and_nothing_is_overwritten() {
    let bench = Bench::new();
    // Standard input is not a terminal, so `new` asks nothing.
    let done = bench.run(&["new"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    assert!(out(&done).contains("next: ccbench run plan.toml"), "{}", text(&done));
    let note = err(&done);
    assert!(note.starts_with("note: standard input is not a terminal"), "{note}");
    let help = out(&bench.run(&["new", "--help"]));
    for option in ["--rate", "--rtt", "--queue", "--buffer", "--cc"] {
        assert!(note.contains(option) && help.contains(&format!("{option} <")), "{option}: {note}");
    }
    for arguments in [&["check", "plan.toml"][..], &["check", "plan.toml", "--sim"]] {
        let checked = bench.run(arguments);
        assert_eq!(checked.status.code(), Some(0), "{}", text(&checked));
        assert_eq!(err(&checked), "", "no warning");
    }
    let again = bench.run(&["new", "--rate", "10mbit"]);
    assert_eq!(again.status.code(), Some(2), "{}", text(&again));
    assert!(err(&again).contains("overwrites nothing"), "{}", text(&again));
    let options = ["--rtt", "300ms", "--queue", "fq_codel", "--cc", "reno"];
    let other = bench.run(&[&["new", "other.toml"][..], &options].concat());
    assert_eq!(other.status.code(), Some(0), "{}", text(&other));
    assert!(!err(&other).contains("note:"), "{}", text(&other));
    // `new` does not write a plan that would be invalid.
    let invalid = bench.run(&["new", "invalid.toml", "--rate", "0mbit"]);
    assert_eq!(invalid.status.code(), Some(2), "{}", text(&invalid));
    assert!(!bench.path("invalid.toml").exists());
}

#[test]
fn a_file_is_a_congestion_control_and_an_unknown_name_is_explained() {
    let bench = Bench::new();
    bench.write("tcp_mine.bpf.o", "no object");
    let file = bench.run(&["new", "file.toml", "--cc", "tcp_mine.bpf.o,cubic"]);
    assert_eq!(file.status.code(), Some(2), "{}", text(&file));
    assert!(err(&file).contains("cc.tcp_mine.file: `tcp_mine.bpf.o`"), "{}", text(&file));
    let name = bench.run(&["new", "name.toml", "--cc", "tcp_mine,cubic"]);
    assert_eq!(name.status.code(), Some(0), "{}", text(&name));
    assert!(
        err(&name).contains("or a `[cc.NAME]` must name its `file` or `module`"),
        "{}",
        text(&name)
    );
}

#[test]
fn the_choice_of_the_labs_engine_starts_no_qemu() {
    let bench = Bench::new();
    let started = bench.path("started");
    bench.program("bin/qemu-system-x86_64", &format!("#!/bin/sh\n: >'{}'\n", started.display()));
    let path = format!("{}:{}", bench.path("bin").display(), std::env::var("PATH").unwrap());
    let plan = ccbench_tests::source_root().join("plans/quickstart.toml");
    let mut check = bench.command(&["check", &plan.to_string_lossy(), "--lab"]);
    let checked = check.env("PATH", path).output().unwrap();
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked));
    assert!(!started.exists());
}

/// CUBIC against CUBIC: the phases of the plan favour neither.
#[test]
fn shares_in_a_new_plan_are_fair_to_read() {
    let bench = Bench::new();
    let path = ["--rate", "50mbit", "--rtt", "30ms", "--queue", "pfifo", "--cc", "cubic,cubic"];
    let new = bench.run(&[&["new", "same.toml"][..], &path].concat());
    assert_eq!(new.status.code(), Some(0), "{}", text(&new));
    let done = bench.run(&["run", "same.toml", "--sim", "--set", "repeat=5"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let points = std::fs::read_to_string(bench.results().join("summary_point.csv")).unwrap();
    let rows: Vec<Vec<&str>> = points.lines().map(|line| line.split(',').collect()).collect();
    let at = |name: &str| rows[0].iter().position(|column| *column == name).unwrap();
    let share = |group: &str| -> f64 {
        let of_group = |row: &&Vec<&str>| {
            let [phase, subject, metric, stat] =
                ["phase", "subject", "metric", "stat"].map(|name| row[at(name)]);
            (phase, subject, metric, stat) == ("together", group, "throughput_sum", "mean")
        };
        rows.iter().find(of_group).unwrap()[at("value")].parse().unwrap()
    };
    let ratio = share("cubic") / share("cubic-2");
    assert!((0.8..1.25).contains(&ratio), "{ratio}");
    let unmeasured = |row: &Vec<&str>| row[at("phase")] == "settle";
    assert!(!rows.iter().any(unmeasured), "{points}");
}

/// The simulator runs on every machine. Does not assert what else the machine has.
#[test]
fn doctor_reports_every_backend() {
    let bench = Bench::new();
    let done = bench.run(&["doctor", "--json"]);
    assert!([Some(0), Some(3)].contains(&done.status.code()), "{}", text(&done));
    let report: serde_json::Value = serde_json::from_str(&out(&done)).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let find = |name: &str| checks.iter().find(|check| check["name"] == name);
    let namespaces = find("network namespaces").unwrap();
    assert_eq!(namespaces["ok"] == true, done.status.success(), "{report}");
    for name in ["lab, engine qemu", "lab, engine uml", "simulator"] {
        let check = find(name).unwrap_or_else(|| panic!("no {name}: {report}"));
        let remedy = check["remedy"].as_str().unwrap();
        assert_eq!(check["ok"] == true, remedy.is_empty(), "{check}");
    }
    assert_eq!(find("simulator").unwrap()["ok"], true);
    assert_eq!(find("iperf3").is_some(), done.status.success(), "{report}");
    let printed = bench.run(&["doctor"]);
    assert!(out(&printed).contains("ok       simulator: model "), "{}", text(&printed));
}
