//! The node's clocks. No other module of this crate reads one, except through tokio's timer.
#![expect(clippy::disallowed_methods, reason = "the module that reads clocks")]

use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

fn read_ns(id: ClockId) -> i64 {
    let time = clock_gettime(id);
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn now_ns() -> u64 {
    read_ns(ClockId::Monotonic).unsigned_abs()
}

/// CLOCK_MONOTONIC and CLOCK_REALTIME in nanoseconds, read one right after the other.
pub fn now_both_ns() -> (u64, i64) {
    (now_ns(), read_ns(ClockId::Realtime))
}

/// CLOCK_REALTIME minus CLOCK_MONOTONIC, in nanoseconds.
pub fn realtime_minus_monotonic_ns() -> i64 {
    read_ns(ClockId::Realtime) - read_ns(ClockId::Monotonic)
}

/// From now to `at_ns` (CLOCK_MONOTONIC), or nothing if that is past.
pub fn until(at_ns: u64) -> Duration {
    Duration::from_nanos(at_ns.saturating_sub(now_ns()))
}

/// Waits until `at_ns` (CLOCK_MONOTONIC); exact to about a millisecond (tokio's timer).
pub async fn sleep_until(at_ns: u64) {
    tokio::time::sleep(until(at_ns)).await;
}

/// Like [`sleep_until`], in a thread of its own; exact to the kernel's timer.
pub fn sleep_thread_until(at_ns: u64) {
    let at = Timespec {
        tv_sec: i64::try_from(at_ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: (at_ns % 1_000_000_000) as i64,
    };
    while clock_nanosleep_absolute(ClockId::Monotonic, &at) == Err(Errno::INTR) {}
}
