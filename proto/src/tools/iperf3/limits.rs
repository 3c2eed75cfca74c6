//! Ranges of the values that iperf3 can report: a value outside is not read and becomes a [`Flaw`].

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
pub struct Flaw {
    /// Its offset in the document of `-J`, in bytes; 0 in a line of `--json-stream`.
    pub at: usize,
    /// Its description.
    pub what: &'static str,
}

impl Flaw {
    pub(super) const START: &str = "`start` cannot be read";
    pub(super) const INTERVAL: &str = "an interval cannot be read";
    pub(super) const END: &str = "`end` cannot be read";
    pub(super) const ERROR: &str = "`error` cannot be read";
    pub(super) const STREAMS: &str = "more than 1024 streams";
    pub(super) const INTERVALS: &str = "more than 2097152 intervals";
    pub(super) const BEGAN: &str = "the test's time is out of range";
    pub(super) const TOTAL: &str = "a stream's total is missing or out of range";
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
    /// Removes optional values that are out of range. Returns what was wrong.
    ///
    /// # Errors
    /// A required value is missing or out of range.
    pub(in crate::tools) fn limit(&mut self) -> Result<Option<&'static str>, &'static str> {
        if ![self.start, self.end, self.seconds].into_iter().all(is_duration) {
            return Err("an interval's time is missing or out of range");
        }
        if !is_size(self.bytes) {
            return Err("an interval's bytes are missing or out of range");
        }
        let mut wrong = None;
        let mut limit = |value: &mut Option<f64>, range: RangeInclusive<f64>, what| {
            if value.is_some_and(|value| !range.contains(&value)) {
                (*value, wrong) = (None, Some(what));
            }
        };
        const SMALL: f64 = u32::MAX as f64;
        limit(&mut self.retransmits, 0.0..=SMALL, "`retransmits` is out of range");
        limit(&mut self.rtt, 0.0..=SMALL, "`rtt` is out of range");
        limit(&mut self.rttvar, 0.0..=SMALL, "`rttvar` is out of range");
        limit(&mut self.pmtu, 0.0..=SMALL, "`pmtu` is out of range");
        limit(&mut self.reorder, 0.0..=SMALL, "`reorder` is out of range");
        limit(&mut self.snd_cwnd, 0.0..=MAX_COUNT, "`snd_cwnd` is out of range");
        limit(&mut self.snd_wnd, 0.0..=MAX_COUNT, "`snd_wnd` is out of range");
        limit(&mut self.jitter_ms, 0.0..=LONGEST_S, "`jitter_ms` is out of range");
        limit(&mut self.lost_packets, 0.0..=MAX_COUNT, "`lost_packets` is out of range");
        limit(&mut self.packets, 0.0..=MAX_COUNT, "`packets` is out of range");
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
