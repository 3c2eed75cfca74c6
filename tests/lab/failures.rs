//! Tests errors inside the guest: the trial fails, and its reason has the end of the console. The guest gets iperf3 through PATH, so a
//! script of that name replaces it, and brings the host's tools along.

use std::process::{Command, Output};

use ccbench_tests::{Bench, csv, text};

use crate::{path_with, plan};

/// Name of the real iperf3 in the machine: that of a tool that a trial does not need.
const REAL: &str = "tcpdump";

const QEMU: &[&str] = &["--engine", "qemu", "--dilation", "5"];
const UML: &[&str] = &["--engine", "uml"];

/// Runs the plan in a machine in which `act` happens in the middle of the trial, as root: agents ask iperf3 for its version with their own
/// rights, and start traffic as an unprivileged user.
fn run(bench: &Bench, engine: &[&str], act: &str, environment: &[(&str, &str)]) -> Output {
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *--version*) ( sleep 5; {act} ) > /dev/null 2>&1 & ;; esac\nexec /bin/{REAL} \"$@\"\n"
    );
    let path = path_with(bench, &[("iperf3", REAL)], &script);
    let plan = plan(1).replace("length = \"3s\"", "length = \"8s\"");
    let plan = plan.replace("cc = \"cubic\"", "cc = \"cubic\"\ntool = \"iperf3\"");
    let plan = bench.write("plan.toml", &plan);
    let mut command: Command =
        bench.command(&[&["run", &plan.to_string_lossy(), "--lab"], engine].concat());
    command.env("PATH", path).envs(environment.iter().copied());
    command.output().unwrap()
}

/// Checks that the only trial failed for a reason with these words, and that the rows until then are kept.
fn assert_failed(bench: &Bench, done: &Output, words: &[&str]) {
    let output = text(done);
    assert_eq!(done.status.code(), Some(1), "{output}");
    let trials = std::fs::read_to_string(bench.results().join("trials.csv")).unwrap();
    assert!(trials.contains("failed"), "{trials}");
    for word in words {
        assert!(output.contains(word), "no `{word}`: {output}");
    }
    assert!(!csv(&bench.results().join("points.csv")).is_empty());
    let samples = bench.results().join("tables/flow_samples/point=0/trial-01/part-0.parquet");
    assert!(samples.exists(), "the rows until then are kept: {output}");
}

#[test]
fn kernel_panic_fails_the_trial() {
    let bench = Bench::new();
    let done = run(&bench, QEMU, "echo c > /proc/sysrq-trigger", &[]);
    assert_failed(&bench, &done, &["the lab's virtual machine panicked", "sysrq triggered crash"]);
}

fn out_of_memory(engine: &[&str]) {
    let bench = Bench::new();
    let done = run(&bench, engine, "a=xxxxxxxx; while :; do a=$a$a; done", &[]);
    assert_failed(&bench, &done, &["the lab's virtual machine panicked", "Out of memory"]);
}

#[test]
fn out_of_memory_fails_the_trial() {
    out_of_memory(QEMU);
}

#[test]
fn out_of_memory_fails_the_trial_in_uml() {
    out_of_memory(UML);
}

#[test]
fn silent_guest_fails_the_trial() {
    let freeze = "mkdir /sys/fs/cgroup/ice && echo 1 > /sys/fs/cgroup/ice/cgroup.procs && \
                  echo 1 > /sys/fs/cgroup/ice/cgroup.freeze";
    let bench = Bench::new();
    let done = run(&bench, QEMU, freeze, &[("CCBENCH_LAB_SILENCE_S", "40")]);
    assert_failed(
        &bench,
        &done,
        &["the lab's virtual machine has sent no message for 40 s and was stopped"],
    );
}

/// With User-Mode Linux, the clock stands still while a process computes.
#[test]
fn spinning_process_fails_the_trial_and_is_named() {
    let bench = Bench::new();
    let done = run(&bench, UML, "while :; do :; done", &[("CCBENCH_LAB_SILENCE_S", "15")]);
    let reason = "has sent no message for 15 s and was stopped; process ";
    assert_failed(&bench, &done, &[reason, "(iperf3) of the guest was running"]);
}

/// What an agent writes before it dies, for example a panic, must be in the reason of the failed trial.
fn console_output_is_kept(engine: &[&str]) {
    let bench = Bench::new();
    let act = "echo the last words > /dev/console; for p in /proc/[0-9]*; do read line < $p/cmdline; \
               case $line in *ccbench-agent*) kill -9 ${p#/proc/};; esac; done";
    let done = run(&bench, engine, act, &[("CCBENCH_LAB_SILENCE_S", "40")]);
    assert_failed(
        &bench,
        &done,
        &["stream failed", "the guest's console ends with:", "the last words"],
    );
}

#[test]
fn console_output_before_a_kill_is_kept() {
    console_output_is_kept(QEMU);
}

#[test]
fn console_output_before_a_kill_is_kept_in_uml() {
    console_output_is_kept(UML);
}
