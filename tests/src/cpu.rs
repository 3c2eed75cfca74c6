//! Measures whether a test had the CPU, and reports tests that could not measure time as skipped.
//!
//! A test whose assertions depend on the real clock starts a [`CpuWatch`], does its work, and passes these assertions to
//! [`CpuReport::check`] with the delay that they tolerate. Assertions that hold always count. If they fail and the measurement shows that
//! more CPU time than that delay was missing, the test is skipped; otherwise it fails. Nothing is run a second time.
//!
//! Two measurements must agree, so that neither a busy neighbour that did not interfere nor the test's own load excuses a failure:
//!
//! * *waited*: a thread repeatedly sleeps for 1 ms and sums up how late it wakes. This is run-queue delay plus steal, as a thread of the
//!   test experiences them.
//! * *taken*: CPU time that the hypervisor kept (steal, `/proc/stat`) or that processes outside this test's process tree used.
//!
//! For experiments, their own timing reasons replace *waited* ([`CpuReport::check_run`]).
//!
//! `cargo test --workspace --features netns,browser --lib cpu -- --ignored --nocapture` prints the measurement for 10 s
//! without a test. Two CPUs beside eight builds of this project: waited 4219 ms (at most 25 ms at once), steal 220 ms,
//! other processes 19 640 ms.
#![expect(clippy::disallowed_methods, reason = "a test measures real time")]

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::skip::skip;

/// Sleep of the watching thread. Lateness up to `SLACK` is caused by the timer (50 us by default) and the wakeup.
const SLEEP: Duration = Duration::from_millis(1);
const SLACK: Duration = Duration::from_micros(500);

/// `/proc` counts in ticks of `USER_HZ`. On a machine with many CPUs, their number exceeds 32 bits after some days.
pub(crate) fn ticks(count: u64) -> Duration {
    Duration::from_millis(10 * count)
}

/// An experiment tolerates that others use this share of one CPU. A userspace link fails a trial when 10 % of its packets are late
/// (`link_late`).
const RUN_TOLERANCE: f64 = 0.1;

/// Reasons of failed or degraded trials that missing CPU time can explain.
const TIMING_REASONS: [&str; 14] = [
    "base_rtt",
    "clock_uncertain",
    "cpu_bound",
    "flow_early",
    "flow_late",
    "flow_overrun",
    "flow_stalled",
    "link_late",
    "link_rate_low",
    "rows_dropped",
    "samples_late",
    "samples_missing",
    "start_late",
    "trace_late",
];

/// Watches the CPU until [`report`](Self::report).
pub struct CpuWatch {
    started: Instant,
    counters: Counters,
    stop: Arc<AtomicBool>,
    sleeper: JoinHandle<(Duration, Duration)>,
}

/// CPU time that was missing while a test ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuReport {
    /// Duration of the measurement.
    pub elapsed: Duration,
    /// Sum of the delays of a thread that wakes every millisecond.
    pub waited: Duration,
    /// The longest of these delays.
    pub longest: Duration,
    /// Time that the hypervisor gave to others, summed over all CPUs.
    pub steal: Duration,
    /// CPU time of processes outside this process's tree.
    pub other_processes: Duration,
}

impl CpuReport {
    /// Returns whether more CPU time than `tolerance` was missing.
    pub fn is_short(&self, tolerance: Duration) -> bool {
        self.waited > tolerance && self.was_taken(tolerance)
    }

    fn was_taken(&self, tolerance: Duration) -> bool {
        self.steal + self.other_processes > tolerance
    }

    /// Runs assertions about time that tolerate missing CPU time of `tolerance`. Returns `None` if they fail and more than that was
    /// missing: the test is then recorded as skipped and must return.
    ///
    /// # Panics
    /// Panics if the assertions do, unless CPU time was missing.
    pub fn check<T>(&self, tolerance: Duration, assertions: impl FnOnce() -> T) -> Option<T> {
        self.skip_if(self.is_short(tolerance), "", assertions)
    }

    /// `details` is what a skip and a failure also print.
    fn skip_if<T>(
        &self,
        is_short: bool,
        details: &str,
        assertions: impl FnOnce() -> T,
    ) -> Option<T> {
        match catch_unwind(AssertUnwindSafe(assertions)) {
            Ok(value) => Some(value),
            Err(panic) if is_short => {
                let message = panic.downcast_ref::<String>().map(String::as_str);
                let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
                let first = message.unwrap_or("an assertion failed").lines().next();
                skip(&format!("no CPU: {self}{details}; {}", first.unwrap_or_default()));
                None
            }
            Err(panic) => {
                eprintln!("not excused: {self}{details}");
                resume_unwind(panic)
            }
        }
    }

    /// Runs assertions about experiments in these results directories. Failed assertions are excused only if the experiments themselves
    /// report a timing reason, and none of another kind, and others used the CPU. The report replaces *waited*: a thread that only sleeps
    /// is woken at once where the working thread of a link has to wait.
    ///
    /// # Panics
    /// Panics if the assertions do, unless CPU time was missing.
    pub fn check_run<T>(&self, results: &[PathBuf], assertions: impl FnOnce() -> T) -> Option<T> {
        self.check_run_or(&[], results, assertions)
    }

    /// As [`check_run`](Self::check_run), for experiments with flows of a second, which may carry nothing without CPU time.
    ///
    /// # Panics
    /// Panics if the assertions do, unless CPU time was missing.
    pub fn check_short_run<T>(
        &self,
        results: &[PathBuf],
        assertions: impl FnOnce() -> T,
    ) -> Option<T> {
        self.check_run_or(&["flow_dead", "flow_error"], results, assertions)
    }

    fn check_run_or<T>(
        &self,
        reasons: &[&str],
        results: &[PathBuf],
        assertions: impl FnOnce() -> T,
    ) -> Option<T> {
        let journals = last_journals(results);
        let excused = self.is_disturbed() && has_only_timing_reasons_or(reasons, &journals);
        let details = format!("; reasons of its trials: {:?}", reason_codes(&journals));
        self.skip_if(excused, &details, assertions)
    }

    /// Returns whether missing CPU time explains that experiments in these results directories failed: since each was last started or
    /// continued, they report timing reasons, and none of another kind, and others used the CPU.
    pub fn explains_runs(&self, results: &[PathBuf]) -> bool {
        self.disturbed_run(&last_journals(results))
    }

    /// Returns whether others used more CPU time than an experiment tolerates.
    pub fn is_disturbed(&self) -> bool {
        self.was_taken(self.elapsed.mul_f64(RUN_TOLERANCE))
    }

    fn disturbed_run(&self, journals: &str) -> bool {
        self.is_disturbed() && is_late_and_nothing_else(journals)
    }
}

impl std::fmt::Display for CpuReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = |time: Duration| time.as_millis();
        write!(
            f,
            "in {} ms a thread waited {} ms for a CPU (at most {} ms at once), steal {} ms, other processes {} ms",
            ms(self.elapsed),
            ms(self.waited),
            ms(self.longest),
            ms(self.steal),
            ms(self.other_processes)
        )
    }
}

impl CpuWatch {
    /// Starts watching.
    pub fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let sleeper = std::thread::spawn(move || sum_delays(&stopped));
        Self { started: Instant::now(), counters: Counters::read(), stop, sleeper }
    }

    /// Ends the measurement.
    pub fn report(self) -> CpuReport {
        let (elapsed, now) = (self.started.elapsed(), Counters::read());
        self.stop.store(true, Ordering::Relaxed);
        let (waited, longest) = self.sleeper.join().unwrap_or_default();
        let since = |now: Duration, then: Duration| now.saturating_sub(then);
        let own = since(now.own_processes, self.counters.own_processes);
        CpuReport {
            elapsed,
            waited,
            longest,
            steal: since(now.steal, self.counters.steal),
            other_processes: since(since(now.busy, self.counters.busy), own),
        }
    }
}

/// Returns what the journals of these results directories say since their runs were started or continued.
fn last_journals(results: &[PathBuf]) -> String {
    let journal = |dir: &PathBuf| std::fs::read_to_string(dir.join("journal.ndjson"));
    let journals = results.iter().map(journal).map(Result::unwrap_or_default);
    journals.map(|all| since_last_start(&all).to_owned()).collect()
}

/// Returns what a journal says since its run was started, or continued by `--resume`. It may begin within a line.
fn since_last_start(journal: &str) -> &str {
    journal.rfind("\"event\":\"run_start\"").map_or(journal, |at| &journal[at..])
}

/// Returns the codes of all reasons of trials in journals.
fn reason_codes(journals: &str) -> BTreeSet<String> {
    let ended = |line: &str| {
        let entry: serde_json::Value = serde_json::from_str(line).ok()?;
        (entry["event"] == "trial_end").then_some(entry)
    };
    let code = |reason: serde_json::Value| reason["code"].as_str().unwrap_or_default().to_owned();
    let of = |entry: serde_json::Value| entry["reasons"].as_array().cloned().unwrap_or_default();
    journals.lines().filter_map(ended).flat_map(of).map(code).collect()
}

/// Returns whether journals have trials with timing reasons, and none with another reason.
fn is_late_and_nothing_else(journals: &str) -> bool {
    has_only_timing_reasons_or(&[], journals)
}

/// Returns whether journals have trials with timing reasons or these, and none with another reason.
fn has_only_timing_reasons_or(reasons: &[&str], journals: &str) -> bool {
    let codes = reason_codes(journals);
    let of_timing = |code: &str| TIMING_REASONS.contains(&code) || reasons.contains(&code);
    !codes.is_empty() && codes.iter().all(|code| of_timing(code))
}

/// Returns the sum and maximum of the delays of sleeps.
fn sum_delays(stop: &AtomicBool) -> (Duration, Duration) {
    let (mut sum, mut longest) = (Duration::ZERO, Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let begin = Instant::now();
        std::thread::sleep(SLEEP);
        let late = begin.elapsed().saturating_sub(SLEEP);
        if late > SLACK {
            sum += late;
            longest = longest.max(late);
        }
    }
    (sum, longest)
}

/// CPU times since boot.
struct Counters {
    steal: Duration,
    /// CPU time of all processes.
    busy: Duration,
    /// CPU time of this process and its descendants, including those that they have waited for.
    own_processes: Duration,
}

impl Counters {
    fn read() -> Self {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let (busy, steal) = host_ticks(&text);
        Self {
            steal: ticks(steal),
            busy: ticks(busy),
            own_processes: ticks(tree_ticks(std::process::id())),
        }
    }
}

/// Returns the ticks in `/proc/stat`: user, nice and system; steal.
fn host_ticks(stat: &str) -> (u64, u64) {
    let line = stat.lines().next().unwrap_or_default();
    let counts: Vec<u64> =
        line.split_whitespace().skip(1).map(|word| word.parse().unwrap_or(0)).collect();
    (counts.iter().take(3).sum(), counts.get(7).copied().unwrap_or(0))
}

/// Returns the ticks of a process, its descendants, and the processes that any of them has waited for.
fn tree_ticks(root: u32) -> u64 {
    let mut processes: BTreeMap<u32, (u32, u64)> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let stat = std::fs::read_to_string(entry.path().join("stat"));
        if let (Some(pid), Some(of)) = (pid, stat.ok().and_then(|text| parent_and_ticks(&text))) {
            processes.insert(pid, of);
        }
    }
    let is_below = |mut pid: u32| loop {
        match processes.get(&pid) {
            _ if pid == root => return true,
            Some(&(parent, _)) if parent != pid => pid = parent,
            _ => return false,
        }
    };
    processes.iter().filter(|(pid, _)| is_below(**pid)).map(|(_, (_, ticks))| ticks).sum()
}

/// Returns from `/proc/PID/stat`: `ppid`; `utime + stime + cutime + cstime`.
fn parent_and_ticks(stat: &str) -> Option<(u32, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = fields.get(11..15)?.iter().map(|field| field.parse::<u64>().unwrap_or(0)).sum();
    Some((fields.get(1)?.parse().ok()?, ticks))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn missing(waited: u32, steal: u32, others: u32) -> CpuReport {
        CpuReport {
            elapsed: MS * 1000,
            waited: MS * waited,
            longest: MS,
            steal: MS * steal,
            other_processes: MS * others,
        }
    }

    #[test]
    fn cpu_is_short_only_if_it_was_waited_for_and_taken_by_others() {
        assert!(missing(30, 20, 5).is_short(MS * 20));
        assert!(missing(30, 0, 25).is_short(MS * 20));
        assert!(!missing(30, 0, 5).is_short(MS * 20), "the test's own load");
        assert!(!missing(5, 30, 30).is_short(MS * 20), "a neighbour that did not disturb");
    }

    #[test]
    fn lateness_excuses_no_other_reason_and_no_wrong_value() {
        let trial = |codes: &[&str]| {
            let reasons: Vec<String> =
                codes.iter().map(|code| format!("{{\"code\":\"{code}\"}}")).collect();
            format!("{{\"event\":\"trial_end\",\"reasons\":[{}]}}\n", reasons.join(","))
        };
        let late = trial(&["link_late", "link_rate_low"]);
        assert!(is_late_and_nothing_else(&late));
        let dead = trial(&["link_late", "flow_dead"]);
        assert!(!is_late_and_nothing_else(&dead));
        assert!(has_only_timing_reasons_or(&["flow_dead"], &dead), "of a short flow");
        assert!(!is_late_and_nothing_else(&trial(&[])), "the trial was not disturbed");
        assert!(
            missing(0, 0, 150).disturbed_run(&late),
            "a link's thread waited, the one that sleeps did not"
        );
        assert!(!missing(500, 0, 50).disturbed_run(&late), "the experiment's own load");
        assert!(!is_late_and_nothing_else(&(late + &trial(&["wrong_cc"]))));
    }

    #[test]
    fn trials_before_a_run_was_resumed_do_not_count() {
        let start = "{\"event\":\"run_start\",\"plan_sha256\":\"\"}\n";
        let trial = |code: &str| {
            format!("{{\"event\":\"trial_end\",\"reasons\":[{{\"code\":\"{code}\"}}]}}\n")
        };
        let resumed = [start, &trial("node_lost"), start, &trial("link_late")].concat();
        assert!(is_late_and_nothing_else(since_last_start(&resumed)));
        let again = [resumed.as_str(), start, &trial("node_lost")].concat();
        assert!(!is_late_and_nothing_else(since_last_start(&again)));
        assert_eq!(since_last_start(&trial("link_late")), trial("link_late"), "a cut journal");
    }

    #[test]
    fn counters_of_proc_are_read() {
        let stat = "cpu  10 20 30 400 5 6 7 8 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(host_ticks(stat), (60, 8));
        let stat = "7 (a) b) S 3 7 7 0 -1 0 0 0 0 0 11 12 13 14 20 0 1 0 5 6 7";
        assert_eq!(parent_and_ticks(stat), Some((3, 50)));
        let many = "cpu  4294967296 4294967296 0 0 0 0 0 5000000000\n";
        assert_eq!(host_ticks(many), (2 << 32, 5_000_000_000));
        // In a container, process 1 need not be an ancestor. The counts of the parent's tree are read last, so they include these.
        let own = tree_ticks(std::process::id());
        assert!(tree_ticks(std::os::unix::process::parent_id()) >= own);
    }

    /// Prints what the documentation of this module quotes.
    #[test]
    #[ignore = "a measurement, not a test"]
    fn measure_for_ten_seconds() {
        let watch = CpuWatch::start();
        std::thread::sleep(Duration::from_secs(10));
        println!("{}", watch.report());
    }
}
