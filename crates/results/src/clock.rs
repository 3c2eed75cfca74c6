//! The controller's clocks. No other module of this crate reads a clock for measurements.
#![expect(clippy::disallowed_methods, reason = "the module that reads clocks")]

use rustix::time::{ClockId, clock_gettime};

/// Returns CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns CLOCK_REALTIME in nanoseconds since 1970, UTC.
pub fn realtime_ns() -> i64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Returns CLOCK_REALTIME minus CLOCK_MONOTONIC in nanoseconds, read one right after the other.
pub fn utc_minus_monotonic_ns() -> i64 {
    realtime_ns() - monotonic_ns() as i64
}
