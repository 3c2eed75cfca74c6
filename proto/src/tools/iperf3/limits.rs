//! Ranges of the values that iperf3 can report: a value outside is not read and becomes an [`UnreadPart`].

use std::ops::RangeInclusive;

use super::{Connection, IntervalValues};
use crate::tools::{LATEST_S, LONGEST_S, MAX_COUNT};

/// Streams of a test: iperf3 makes at most 128 in each direction.
pub(in crate::tools) const MAX_STREAMS: usize = 1024;
/// Intervals that are kept of one report: 128 streams at 10 a second for 27 minutes.
pub(super) const MAX_INTERVALS: usize = 1 << 21;
/// Bytes of one member of the report: `start` with 1024 connections has 200 kB.
pub(super) const MAX_MEMBER_BYTES: usize = 4 << 20;
/// Bytes of one element of `intervals`, or of one line of `--json-stream`: 1024 streams have 500 kB.
pub(super) const MAX_ELEMENT_BYTES: usize = 1 << 20;

/// A part of a report that was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnreadPart {
    /// Its offset in the document of `-J`, in bytes; 0 in a line of `--json-stream`.
    pub at: usize,
    /// Why it was not read.
    pub reason: UnreadReason,
}

/// Why a part of a report was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnreadReason {
    /// This member of the report is too long, or its values have other types.
    #[error("`{0}` cannot be read")]
    Member(&'static str),
    /// An element of `intervals` is too long, or its values have other types.
    #[error("an interval cannot be read")]
    Interval,
    /// The test has more streams than are read.
    #[error("more than {MAX_STREAMS} streams")]
    TooManyStreams,
    /// The report has more intervals than are kept.
    #[error("more than {MAX_INTERVALS} intervals")]
    TooManyIntervals,
    /// The time at which the test began is out of range.
    #[error("the test's time is out of range")]
    TestTime,
    /// The total of a stream is missing or out of range.
    #[error("a stream's total is missing or out of range")]
    StreamTotal,
    /// The time of an interval is missing or out of range.
    #[error("an interval's time is missing or out of range")]
    IntervalTime,
    /// The number of bytes of an interval is missing or out of range.
    #[error("an interval's bytes are missing or out of range")]
    IntervalBytes,
    /// This value of an interval is out of range.
    #[error("`{0}` is out of range")]
    Value(&'static str),
}

/// Whether a number of seconds since the test began is in range.
pub(super) fn is_duration(seconds: f64) -> bool {
    (0.0..=LONGEST_S).contains(&seconds)
}

/// Whether a number of bytes is in range.
pub(super) fn is_size(bytes: f64) -> bool {
    (0.0..=MAX_COUNT).contains(&bytes)
}

/// Whether a number of seconds since 1970 is in range.
pub(super) fn is_instant(seconds: f64) -> bool {
    (0.0..=LATEST_S as f64).contains(&seconds)
}

impl IntervalValues {
    /// Removes optional values that are out of range. Returns the last of them.
    ///
    /// # Errors
    /// A required value is missing or out of range.
    pub(in crate::tools) fn limit(&mut self) -> Result<Option<UnreadReason>, UnreadReason> {
        if ![self.start, self.end, self.seconds].into_iter().all(is_duration) {
            return Err(UnreadReason::IntervalTime);
        }
        if !is_size(self.bytes) {
            return Err(UnreadReason::IntervalBytes);
        }
        let mut wrong = None;
        let mut limit = |value: &mut Option<f64>, range: RangeInclusive<f64>, name| {
            if value.is_some_and(|value| !range.contains(&value)) {
                (*value, wrong) = (None, Some(UnreadReason::Value(name)));
            }
        };
        const SMALL: f64 = u32::MAX as f64;
        limit(&mut self.retransmits, 0.0..=SMALL, "retransmits");
        limit(&mut self.rtt, 0.0..=SMALL, "rtt");
        limit(&mut self.rttvar, 0.0..=SMALL, "rttvar");
        limit(&mut self.pmtu, 0.0..=SMALL, "pmtu");
        limit(&mut self.reorder, 0.0..=SMALL, "reorder");
        limit(&mut self.snd_cwnd, 0.0..=MAX_COUNT, "snd_cwnd");
        limit(&mut self.snd_wnd, 0.0..=MAX_COUNT, "snd_wnd");
        limit(&mut self.jitter_ms, 0.0..=LONGEST_S, "jitter_ms");
        limit(&mut self.lost_packets, 0.0..=MAX_COUNT, "lost_packets");
        limit(&mut self.packets, 0.0..=MAX_COUNT, "packets");
        Ok(wrong)
    }
}

impl Connection {
    /// Removes addresses that are longer than any real one.
    pub(super) fn limited(mut self) -> Self {
        for host in [&mut self.local_host, &mut self.remote_host] {
            if host.len() > 255 {
                host.clear();
            }
        }
        self
    }
}
