//! The only module of this crate that reads clocks. All times are nanoseconds of `CLOCK_MONOTONIC`.
#![expect(clippy::disallowed_methods, reason = "the module that reads clocks")]

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Returns `CLOCK_MONOTONIC` in nanoseconds.
pub fn monotonic_ns() -> u64 {
    nanos(clock_gettime(ClockId::Monotonic))
}

/// Returns `CLOCK_REALTIME` in nanoseconds since 1970.
pub fn realtime_ns() -> u64 {
    nanos(clock_gettime(ClockId::Realtime))
}

/// Returns the current difference of `CLOCK_REALTIME` and `CLOCK_MONOTONIC` in nanoseconds. Read it again for every batch of packets, so
/// that a step of the wall clock affects at most one batch.
pub fn real_minus_monotonic_ns() -> i64 {
    let monotonic = monotonic_ns();
    let real = nanos(clock_gettime(ClockId::Realtime));
    real.wrapping_sub(monotonic).cast_signed()
}

/// Returns the CPU time that the calling thread has used, in nanoseconds. Costs a system call.
pub fn thread_cpu_ns() -> u64 {
    nanos(clock_gettime(ClockId::ThreadCPUTime))
}

fn nanos(time: Timespec) -> u64 {
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_time_does_not_go_back() {
        let first = monotonic_ns();
        assert!(monotonic_ns() >= first);
    }
}
