//! The only place of the controller that reads a clock.
#![expect(clippy::disallowed_methods, reason = "the module that reads clocks")]

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use tokio::time::Instant;

pub use ccbench_results::clock::{monotonic_ns, realtime_ns, utc_minus_monotonic_ns};

/// The runtime's clock (CLOCK_MONOTONIC), for time limits.
pub fn now() -> Instant {
    Instant::now()
}

/// Time since an instant of [`now`].
pub fn since(instant: Instant) -> Duration {
    now().saturating_duration_since(instant)
}

/// The time of day in UTC.
pub fn utc() -> Timestamp {
    Timestamp::now()
}

/// Today's date in the local time zone.
pub fn today() -> Date {
    jiff::Zoned::now().date()
}
