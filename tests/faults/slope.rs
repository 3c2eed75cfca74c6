//! Tests memory and descriptors over many trials: a line fitted to the second half of the samples, when all one-time allocations are done,
//! must not rise by more than a stated bound.

use std::time::Duration;

use ccbench_tests::skip::skip;
use ccbench_tests::{Bench, alone};

use crate::lane::Lane;
use crate::nodes::read;
use crate::points;

/// Simulated trials in `make soak` and in `make test-faults`.
const SIMULATED: [usize; 2] = [10_000, 400];
/// Runs of two trials each on two nodes: 2000 trials in `make soak`, which take about an hour, and 24 in `make test-faults`.
const RUNS: [usize; 2] = [1_000, 12];
/// A controller keeps the journal entry of every trial, with the digest of every file.
const CONTROLLER: Bound = Bound { once: 16 << 20, per_trial: 16 << 10 };
/// An agent keeps nothing from a trial.
const AGENT: Bound = Bound { once: 4 << 20, per_trial: 1 << 10 };
/// How much the number of open descriptors may rise in total: samples during a trial see files that are open briefly.
const DESCRIPTORS: f64 = 4.0;
/// Milliseconds between samples of a controller. The journal is read for each sample.
const SAMPLE_MS: [usize; 2] = [1_000, 50];

/// How much the memory of a process may rise, in bytes: once, because of caches and fragmentation, and per trial.
struct Bound {
    once: u64,
    per_trial: u64,
}

/// What a process uses after a number of trials.
#[derive(Debug, Clone, Copy)]
struct Sample {
    trials: f64,
    memory_bytes: f64,
    descriptors: f64,
}

impl Sample {
    /// Returns `None` if the process has ended.
    fn of(pid: u32, trials: usize) -> Option<Self> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: f64 = resident.trim().strip_suffix(" kB")?.parse().ok()?;
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
        let (trials, descriptors) = (trials as f64, descriptors as f64);
        Some(Self { trials, memory_bytes: kib * 1024.0, descriptors })
    }
}

/// Returns the slope of the least-squares line through these points; 0 if all have the same abscissa.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len().max(1) as f64;
    let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / count;
    let spread: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let common: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    if spread > 0.0 { common / spread } else { 0.0 }
}

/// Checks the second half of the samples.
fn check(process: &str, samples: &[Sample], bound: &Bound) {
    let half = &samples[samples.len() / 2..];
    assert!(half.len() >= 5, "{process}: {} samples are too few", samples.len());
    let (first, last) = (half[0], half[half.len() - 1]);
    let trials = last.trials - first.trials;
    // A single step raises the line by up to 1.5 times its height, so the rise is not more than the difference of the ends.
    let rise = |value: fn(&Sample) -> f64| {
        let points: Vec<_> = half.iter().map(|sample| (sample.trials, value(sample))).collect();
        (slope(&points) * trials).min(value(&last) - value(&first))
    };
    let memory = rise(|sample| sample.memory_bytes);
    let descriptors = rise(|sample| sample.descriptors);
    println!(
        "{process}: over {trials} trials {:+.0} kB, {:+.2} descriptors for each 1000 trials; at the end {:.1} MB, {} descriptors",
        memory / 1e3,
        descriptors / trials * 1e3,
        last.memory_bytes / 1e6,
        last.descriptors
    );
    let limit = bound.once as f64 + bound.per_trial as f64 * trials;
    let repeat = "repeat: CCBENCH_FAULT_POINTS=0 make test-faults";
    assert!(memory <= limit, "{process}: memory rises, from {first:?} to {last:?}; {repeat}");
    assert!(
        descriptors <= DESCRIPTORS,
        "{process}: descriptors rise, {first:?} to {last:?}; {repeat}"
    );
}

/// Returns the applicable one of two numbers, for `make soak` and for `make test-faults`.
fn count(of: [usize; 2]) -> usize {
    if points(1) == usize::MAX { of[0] } else { of[1] }
}

/// The shortest trial with a flow.
fn simulated(bench: &Bench, trials: usize) {
    let plan = format!(
        r#"
name = "slope"
seed = 1
repeat = {trials}
[nodes]
src = {{}}
router = {{}}
dst = {{}}
[wires]
path = ["src", "router", "dst"]
[links.bottleneck]
node = "router"
toward = "dst"
rate = "5mbit"
delay = "5ms"
queue = {{ kind = "bfifo", limit = "20000B" }}
[flows.f]
from = "src"
to = "dst"
[[phases]]
name = "only"
length = "200ms"
flows = ["f"]
"#
    );
    bench.write("plan.toml", &plan);
}

#[test]
fn a_controller_does_not_grow_by_simulated_trials() {
    let _alone = alone();
    if std::env::var_os("CCBENCH_FAULT").is_some() {
        return skip("CCBENCH_FAULT selects a fault");
    }
    let trials = count(SIMULATED);
    let bench = Bench::new();
    simulated(&bench, trials);
    let mut controller = bench.spawn(&["run", "plan.toml", "--sim"]);
    let interval = Duration::from_millis(count(SAMPLE_MS) as u64);
    let mut samples = Vec::new();
    let status = loop {
        if let Some(status) = controller.try_wait().unwrap() {
            break status;
        }
        let dirs = bench.all_results();
        let journal = dirs.first().map(|dir| read(&dir.join("journal.ndjson")));
        let done = journal.unwrap_or_default().matches("\"event\":\"trial_end\"").count();
        // What follows the last trial, the summary of all, is not part of any trial.
        if (1..trials).contains(&done) {
            samples.extend(Sample::of(controller.id(), done));
        }
        std::thread::sleep(interval);
    };
    assert!(status.code().is_some_and(|code| code < 2), "{}", bench.printed());
    check("ccbench run --sim", &samples, &CONTROLLER);
}

#[test]
fn agents_do_not_grow_by_trials() {
    let _alone = alone();
    if std::env::var_os("CCBENCH_FAULT").is_some() {
        return skip("CCBENCH_FAULT selects a fault");
    }
    let mut lane = Lane::new();
    lane.start(&[]).unwrap();
    let mut samples = [Vec::new(), Vec::new()];
    for run in 1..=count(RUNS) {
        lane.run_short().unwrap();
        for (samples, node) in samples.iter_mut().zip(&lane.nodes) {
            let pid = node.pid().unwrap();
            samples.push(Sample::of(pid, 2 * run).expect("the agent runs"));
        }
    }
    for (samples, node) in samples.iter().zip(&lane.nodes) {
        check(&format!("agent of {}", node.control), samples, &AGENT);
    }
}

#[test]
fn a_slope_is_that_of_the_line() {
    let line: Vec<(f64, f64)> = (0..9).map(|x| (f64::from(x), 3.0 * f64::from(x) + 7.0)).collect();
    assert!((slope(&line) - 3.0).abs() < 1e-9);
    assert!(slope(&[(1.0, 2.0), (1.0, 5.0)]).abs() < 1e-9);
}

/// An agent that allocates 4 MB once, in its tenth run.
#[test]
fn a_single_step_is_not_a_leak() {
    let samples: Vec<Sample> = (1..=12)
        .map(|run| Sample {
            trials: f64::from(2 * run),
            memory_bytes: if run < 10 { 59.9e6 } else { 63.9e6 },
            descriptors: 16.0,
        })
        .collect();
    check("a step of 4 MB", &samples, &AGENT);
}

#[test]
#[should_panic(expected = "memory rises")]
fn a_leak_is_found() {
    let samples: Vec<Sample> = (0..200)
        .map(|trials| f64::from(trials * 100))
        .map(|trials| Sample { trials, memory_bytes: 2e3 * trials, descriptors: 20.0 })
        .collect();
    check("a leak of 2 kB for each trial", &samples, &AGENT);
}

#[test]
#[should_panic(expected = "descriptors rise")]
fn an_open_file_is_found() {
    let samples: Vec<Sample> = (0..200)
        .map(|trials| f64::from(trials * 100))
        .map(|trials| Sample { trials, memory_bytes: 3e7, descriptors: 20.0 + trials / 1000.0 })
        .collect();
    check("a file for each 1000 trials", &samples, &AGENT);
}
