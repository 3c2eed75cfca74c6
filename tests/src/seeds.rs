//! Runs a simulation with many seeds. `CCBENCH_SEEDS` is the number of seeds, `CCBENCH_SEED` is the first one.

use std::io::Write as _;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// A seed that takes longer hangs: usual ones take less than 2 s, also on a busy machine.
const SEED_LIMIT: Duration = Duration::from_secs(120);
/// Number of failures that are printed.
const SHOWN: usize = 3;

/// Consecutive seeds.
#[derive(Debug, Clone, Copy)]
pub struct Seeds {
    first: u64,
    count: u64,
}

impl Seeds {
    /// Reads the environment; without it, returns the first `usual` seeds. `CCBENCH_SEED` alone means a single seed.
    ///
    /// # Panics
    /// Panics if a variable is not a number.
    pub fn from_environment(usual: u64) -> Self {
        let first = number("CCBENCH_SEED", 0);
        Self { first, count: number("CCBENCH_SEEDS", if first == 0 { usual } else { 1 }) }
    }

    /// Returns whether these are at least the first `count` seeds, so that what a few seeds lack is missing.
    pub fn include_first(self, count: u64) -> bool {
        self.first == 0 && self.count >= count
    }

    /// Simulates each seed, and prints their number.
    ///
    /// # Panics
    /// Panics with the first errors if there are any. Each has the command that repeats it in the test target `target`.
    pub fn check(self, target: &str, mut simulate: impl FnMut(u64) -> Result<(), String>) {
        let (Self { first, count }, watchdog) = (self, Watchdog::start());
        let mut failures = Vec::new();
        for seed in first..first + count {
            watchdog.begin(seed);
            if let Err(why) = simulate(seed) {
                failures.push(format!(
                    "seed {seed}: {why}\nrepeat: CCBENCH_SEED={seed} CCBENCH_SEEDS=1 cargo test --workspace --features netns,browser \
                     --test {target} every_seed\n"
                ));
            }
        }
        let shown: String = failures.iter().take(SHOWN).map(String::as_str).collect();
        assert!(failures.is_empty(), "{} of {count} seeds:\n{shown}", failures.len());
        println!("{count} seeds");
    }
}

#[expect(clippy::unwrap_used, reason = "a test may panic")]
fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().unwrap())
}

/// Ends the process if a seed hangs. Simulated time cannot do that, because it stands still then.
#[derive(Debug)]
pub struct Watchdog(Sender<u64>);

impl Watchdog {
    /// Starts a thread, which ends when this is dropped.
    pub fn start() -> Self {
        let (begin, begun) = channel();
        thread::spawn(move || watch(&begun));
        Self(begin)
    }

    /// Notes that the simulation of a seed begins, and that the one before has ended.
    pub fn begin(&self, seed: u64) {
        // The thread has ended only if the process is about to end.
        let _ = self.0.send(seed);
    }
}

fn watch(begun: &Receiver<u64>) {
    let Ok(mut seed) = begun.recv() else { return };
    loop {
        match begun.recv_timeout(SEED_LIMIT) {
            Ok(next) => seed = next,
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                // The test harness captures what `eprintln!` prints, and would not print it.
                let limit_s = SEED_LIMIT.as_secs();
                let _ = writeln!(std::io::stderr(), "seed {seed} hangs: no end after {limit_s} s");
                std::process::abort();
            }
        }
    }
}
