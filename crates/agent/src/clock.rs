//! The node's clocks. No other module of this crate reads one, except through tokio's timer.
#![expect(clippy::disallowed_methods, reason = "the module that reads clocks")]

use std::sync::OnceLock;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Number of reads per offset; the least interrupted one counts.
const OFFSET_READS: usize = 4;

/// A clock minus CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offset {
    /// The difference.
    pub ns: i64,
    /// Time between the reads around it.
    pub uncertainty_ns: u64,
}

/// The offsets that the kernel keeps (`offs_real` and `offs_boot` in `timekeeper_internal.h`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offsets {
    /// Offset of CLOCK_REALTIME; changes when the clock is set.
    pub realtime: Offset,
    /// Offset of CLOCK_BOOTTIME; changes when the machine is suspended.
    pub boottime: Offset,
}

/// The clock of a simulation.
static SIMULATED: OnceLock<fn() -> Option<u64>> = OnceLock::new();

/// Lets `now_ns` replace every clock, where it returns one: on a thread that runs a simulation. Only the first call in a process has an effect.
/// Used by `tests/turmoil`.
#[doc(hidden)]
pub fn simulate(now_ns: fn() -> Option<u64>) {
    let _ = SIMULATED.set(now_ns);
}

/// Whether a simulation's clock replaces those of the kernel on this thread.
pub fn is_simulated() -> bool {
    simulated_ns().is_some()
}

fn simulated_ns() -> Option<u64> {
    SIMULATED.get().and_then(|now_ns| now_ns())
}

fn read_ns(id: ClockId) -> i64 {
    if let Some(now_ns) = simulated_ns() {
        return now_ns.cast_signed();
    }
    let time = clock_gettime(id);
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

/// Returns CLOCK_MONOTONIC in nanoseconds.
pub fn now_ns() -> u64 {
    read_ns(ClockId::Monotonic).unsigned_abs()
}

/// Returns CLOCK_MONOTONIC and CLOCK_REALTIME in nanoseconds, read in immediate succession.
pub fn now_both_ns() -> (u64, i64) {
    (now_ns(), read_ns(ClockId::Realtime))
}

/// Returns CLOCK_REALTIME minus CLOCK_MONOTONIC, in nanoseconds.
pub fn realtime_minus_monotonic_ns() -> i64 {
    offset(ClockId::Realtime).ns
}

/// Returns the current offsets.
pub fn offsets() -> Offsets {
    Offsets { realtime: offset(ClockId::Realtime), boottime: offset(ClockId::Boottime) }
}

fn offset(id: ClockId) -> Offset {
    let reads = (0..OFFSET_READS).map(|_| {
        let before_ns = read_ns(ClockId::Monotonic);
        let clock_ns = read_ns(id);
        let gap_ns = read_ns(ClockId::Monotonic) - before_ns;
        Offset { ns: clock_ns - before_ns, uncertainty_ns: gap_ns.unsigned_abs() }
    });
    reads.min_by_key(|offset| offset.uncertainty_ns).unwrap_or_default()
}

/// Returns the time from now to `at_ns` (CLOCK_MONOTONIC), or zero if that has passed.
pub fn until(at_ns: u64) -> Duration {
    Duration::from_nanos(at_ns.saturating_sub(now_ns()))
}

/// Returns the first time after `now_ns` that is a whole number of periods after `due_ns`, which has passed.
pub fn next_due_ns(due_ns: u64, period_ns: u64, now_ns: u64) -> u64 {
    let period_ns = period_ns.max(1);
    let passed = now_ns.saturating_sub(due_ns) / period_ns;
    due_ns.saturating_add(period_ns.saturating_mul(passed.saturating_add(1)))
}

/// Returns CLOCK_BOOTTIME in nanoseconds, which continues while the machine is suspended.
pub fn boottime_ns() -> u64 {
    read_ns(ClockId::Boottime).unsigned_abs()
}

/// Waits until `at_ns` (CLOCK_BOOTTIME). Tokio's timer stands still while the machine is suspended, so this reads the
/// clock again at least every second.
pub async fn sleep_until_boottime(at_ns: u64) {
    const LONGEST: Duration = Duration::from_secs(1);
    loop {
        let left = Duration::from_nanos(at_ns.saturating_sub(boottime_ns()));
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(LONGEST)).await;
    }
}

/// Waits until `at_ns` (CLOCK_MONOTONIC), within about a millisecond (tokio's timer).
pub async fn sleep_until(at_ns: u64) {
    tokio::time::sleep(until(at_ns)).await;
}

/// Like [`sleep_until`], but blocks the calling thread, with the precision of the kernel's timer.
pub fn sleep_thread_until(at_ns: u64) {
    let at = timespec(at_ns);
    while clock_nanosleep_absolute(ClockId::Monotonic, &at) == Err(Errno::INTR) {}
}

fn timespec(ns: u64) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: (ns % 1_000_000_000) as i64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_due_time_keeps_the_rhythm_and_does_not_overflow() {
        assert_eq!(next_due_ns(1_000, 100, 1_000), 1_100);
        assert_eq!(next_due_ns(1_000, 100, 1_099), 1_100);
        assert_eq!(next_due_ns(1_000, 100, 1_350), 1_400);
        assert_eq!(next_due_ns(1_000, u64::MAX, 1_000), u64::MAX);
        assert_eq!(next_due_ns(0, 0, 5), 6);
    }
}
