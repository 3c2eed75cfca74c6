//! Tests `--jobs`: concurrent trials have the same results as sequential ones, and end with the controller.

use std::path::Path;
use std::process::Child;
use std::time::Duration;

use ccbench_tests::run_files::{assert_equal, tables, tables_and_summaries};
use ccbench_tests::{Bench, csv, text, wait_for};
use rustix::process::{Pid, Signal, kill_process};

use crate::plan;
use crate::uml::{descendants, started_at};

/// Writes the plan with this number of trials, each of this length.
fn plan_file(bench: &Bench, repeat: u32, length: &str) -> String {
    let text = plan(1).replace("seed = 1", &format!("seed = 1\nrepeat = {repeat}"));
    let text = text.replace("length = \"3s\"", &format!("length = \"{length}\""));
    bench.write("plan.toml", &text).display().to_string()
}

fn arguments<'a>(first: &[&'a str], jobs: &'a str) -> Vec<&'a str> {
    [first, &["--lab", "--jobs", jobs]].concat()
}

fn same_for_any_number_of_jobs(engine: &[&str]) {
    let run = |jobs| {
        let bench = Bench::new();
        let plan = plan_file(&bench, 3, "3s");
        let done = bench.run(&[&arguments(&["run", &plan], jobs), engine].concat());
        assert_eq!(done.status.code(), Some(0), "{}", text(&done));
        let output = text(&done);
        assert_eq!(output.contains("2/3    3 s"), jobs != "1", "lines name their trial: {output}");
        tables_and_summaries(&bench)
    };
    let one = run("1");
    assert_equal(&one, &run("2"));
    if engine.contains(&"uml") {
        assert_equal(&one, &run("4"));
    }
}

#[test]
fn results_are_the_same_for_any_number_of_jobs() {
    same_for_any_number_of_jobs(&["--engine", "uml"]);
}

#[test]
fn results_are_the_same_for_any_number_of_jobs_in_qemu() {
    same_for_any_number_of_jobs(&["--engine", "qemu", "--dilation", "5"]);
}

/// Starts a run with two trials at the same time. Returns once both have begun, with the processes of both guests. The guest of the trial
/// that begins first is stopped until the other one begins too, because it could end before.
fn started(bench: &Bench, plan: &str, engine: &[&str]) -> (Child, Vec<(u32, u64)>) {
    let mut controller = bench.spawn(&[&arguments(&["run", plan], "2"), engine].concat());
    let id = controller.id();
    let mut kernels = Vec::new();
    let both = || {
        let seeds = bench.all_results().first().map_or_else(Vec::new, |dir| begun_trials(dir));
        kernels = seeds.iter().filter_map(|seed| kernel(id, *seed)).collect::<Vec<_>>();
        kernels.iter().for_each(|pid| kill_process(*pid, Signal::STOP).unwrap());
        kernels.len() == 2 || controller.try_wait().unwrap().is_some()
    };
    wait_for("two trials", Duration::from_secs(120), both);
    assert!(controller.try_wait().unwrap().is_none(), "{}", bench.printed());
    let guests = descendants(id);
    kernels.iter().for_each(|pid| kill_process(*pid, Signal::CONT).unwrap());
    (controller, guests)
}

/// Returns the seeds of the trials that have begun.
fn begun_trials(dir: &Path) -> Vec<u64> {
    let journal = std::fs::read_to_string(dir.join("journal.ndjson")).unwrap_or_default();
    let lines = journal.lines().filter(|line| line.contains("\"trial_begin\""));
    let rows = lines.filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    rows.filter_map(|row| row["seed"].as_u64()).collect()
}

/// Returns the first process of the kernel, or QEMU's, that a controller has started for the trial with this seed.
fn kernel(controller: u32, seed: u64) -> Option<Pid> {
    let (of_uml, of_qemu) = (format!("\0rng-seed={seed}\0"), format!("\0-seed\0{seed}\0"));
    let is_kernel = |pid: u32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.contains(&of_uml) || line.contains(&of_qemu)
    };
    let pid = descendants(controller).into_iter().map(|(pid, _)| pid).find(|pid| is_kernel(*pid));
    Pid::from_raw(i32::try_from(pid?).ok()?)
}

fn wait_for_the_end_of(guests: &[(u32, u64)]) {
    let gone = || guests.iter().all(|(pid, start)| started_at(*pid) != Some(*start));
    wait_for("the end of the guests", Duration::from_secs(20), gone);
}

fn guests_end_with_a_killed_controller(engine: &[&str]) {
    let bench = Bench::new();
    let (mut controller, guests) = started(&bench, &plan_file(&bench, 2, "600s"), engine);
    controller.kill().unwrap();
    controller.wait().unwrap();
    wait_for_the_end_of(&guests);
}

#[test]
fn no_guest_survives_a_killed_controller() {
    guests_end_with_a_killed_controller(&["--engine", "uml"]);
}

#[test]
fn no_guest_survives_a_killed_controller_in_qemu() {
    guests_end_with_a_killed_controller(&["--engine", "qemu", "--dilation", "5"]);
}

/// Ctrl-C discards both running trials. The resumed run has the results of an uninterrupted one.
#[test]
fn an_interrupted_run_is_resumed() {
    let bench = Bench::new();
    let plan = plan_file(&bench, 2, "40s");
    let (mut controller, guests) = started(&bench, &plan, &["--engine", "uml"]);
    let pid = Pid::from_raw(i32::try_from(controller.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let status = controller.wait().unwrap();
    assert_eq!(status.code(), Some(130), "{}", bench.printed());
    wait_for_the_end_of(&guests);
    let record = std::fs::read_to_string(bench.results().join("run.json")).unwrap();
    assert_eq!(record.matches("\"aborted\"").count(), 2 * 2, "status and reason: {record}");
    let dir = bench.results().display().to_string();
    let done = bench.run(&arguments(&["run", "--resume", &dir], "2"));
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let trials = csv(&bench.results().join("trials.csv"));
    let statuses: Vec<_> = trials.iter().map(|row| row["status"].as_str()).collect();
    assert_eq!(statuses, ["ok", "ok"]);
    let whole = Bench::new();
    let plan = plan_file(&whole, 2, "40s");
    let done =
        whole.run(&[&arguments(&["run", &plan], "1"), ["--engine", "uml"].as_slice()].concat());
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    assert_equal(&tables(&whole), &tables(&bench));
}

/// A trial that cannot be prepared does not end the other one.
#[test]
fn a_failed_trial_fails_only_itself() {
    let bench = Bench::new();
    let matrix = "[matrix.flow]\na_works = {}\nb_fails = { \"flows.f.cc\" = \"unknown_cc\" }\n";
    let path = bench.write("plan.toml", &(plan(1) + matrix)).display().to_string();
    let engine: &[&str] = &["--engine", "uml", "--keep-going"];
    let done = bench.run(&[&arguments(&["run", &path], "2"), engine].concat());
    assert_eq!(done.status.code(), Some(1), "{}", text(&done));
    let trials = csv(&bench.results().join("trials.csv"));
    let statuses: Vec<_> = trials.iter().map(|row| row["status"].as_str()).collect();
    assert_eq!(statuses, ["ok", "failed"], "{}", text(&done));
}
