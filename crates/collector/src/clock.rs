//! The clocks of this node. No other module of this crate reads a clock: samplers take the time as an argument.
#![expect(clippy::disallowed_methods, reason = "the module that reads clocks")]

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Returns `CLOCK_MONOTONIC` in nanoseconds: the `at_ns` of every row of this node.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = to_ns(clock_gettime(ClockId::Monotonic));
    u64::try_from(now).unwrap_or(0)
}

/// Returns `CLOCK_REALTIME` in nanoseconds since the UTC epoch; negative before it.
#[must_use]
pub fn realtime_ns() -> i64 {
    to_ns(clock_gettime(ClockId::Realtime))
}

fn to_ns(at: Timespec) -> i64 {
    at.tv_sec.saturating_mul(1_000_000_000).saturating_add(at.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_seconds_and_nanoseconds() {
        let at = Timespec { tv_sec: 3, tv_nsec: 25 };
        assert_eq!(to_ns(at), 3_000_000_025);
    }

    #[test]
    fn monotonic_clock_does_not_go_back() {
        let first = monotonic_ns();
        assert!(first > 0);
        assert!(monotonic_ns() >= first);
    }

    #[test]
    fn realtime_is_after_2020() {
        assert!(realtime_ns() > 1_577_836_800_000_000_000);
    }
}
