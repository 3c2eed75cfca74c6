//! Delay and loss of a trace for arriving packets, and the begin of a trace that the first packet starts.

use ccbench_proto::plan::TraceStart;
use ccbench_proto::trace::{Cursor, Replay};
use ccbench_proto::units::Ppm;

use super::spec::{LinkSpec, delays};

/// The part of a trace that applies to arriving packets.
#[derive(Debug)]
pub(super) struct ArrivalTrace {
    /// `None`: no row sets a delay or a loss.
    cursor: Option<Cursor>,
    first_packet: bool,
    /// The first packet from this time on begins the trace.
    armed_ns: u64,
    began_ns: Option<u64>,
    /// End of the last row returned.
    until_ns: u64,
    /// Delay and loss of rows without a value.
    delay_ns: u64,
    loss_ppm: u32,
    min_delay_ns: u64,
}

impl ArrivalTrace {
    pub(super) fn new(replay: &Replay, spec: &LinkSpec) -> Self {
        let (delay_ns, loss_ppm) = (spec.delay_ns(), spec.loss_ppm());
        let least = delays(replay).map(|delay| delay.unwrap_or(delay_ns)).min();
        let summary = replay.trace.summary();
        let cursor = Cursor::new(replay, u64::MAX);
        let cursor = cursor.filter(|_| summary.delay.is_some() || summary.loss.is_some());
        Self {
            until_ns: if cursor.is_some() { 0 } else { u64::MAX },
            cursor,
            first_packet: replay.plan.start == TraceStart::FirstPacket,
            armed_ns: u64::MAX,
            began_ns: None,
            delay_ns,
            loss_ppm,
            min_delay_ns: least.unwrap_or(delay_ns).min(delay_ns),
        }
    }

    /// Records that the trial begins at `at_ns`. Returns when the trace begins, if known.
    pub(super) fn arm(&mut self, at_ns: u64) -> Option<u64> {
        if self.first_packet {
            self.armed_ns = at_ns;
            return None;
        }
        self.begin_at(at_ns);
        Some(at_ns)
    }

    /// Takes a packet's arrival. Returns when the trace begins if this packet starts it.
    pub(super) fn arrival(&mut self, at_ns: u64) -> Option<u64> {
        if at_ns < self.armed_ns {
            return None;
        }
        self.armed_ns = u64::MAX;
        self.begin_at(at_ns);
        Some(at_ns)
    }

    fn begin_at(&mut self, at_ns: u64) {
        self.began_ns = Some(at_ns);
        if let Some(cursor) = &mut self.cursor {
            cursor.begin(at_ns);
            self.until_ns = 0;
        }
    }

    /// Returns delay and loss of packets that arrive at `at_ns`, if they may have changed.
    pub(super) fn row(&mut self, at_ns: u64) -> Option<(u64, u32)> {
        let cursor = self.cursor.as_mut()?;
        if at_ns < self.until_ns {
            return None;
        }
        cursor.seek(at_ns);
        let span = cursor.span();
        self.until_ns = span.until_ns;
        let loss_ppm = span.loss.map_or(self.loss_ppm, Ppm::get);
        Some((span.delay_ns.unwrap_or(self.delay_ns), loss_ppm))
    }

    /// Arrivals from this time on must be passed to [`Self::arrival`] and [`Self::row`].
    pub(super) fn next_ns(&self) -> u64 {
        self.until_ns.min(self.armed_ns)
    }

    /// Returns when the trace began or will begin; `None`: not known yet.
    pub(super) fn began_ns(&self) -> Option<u64> {
        self.began_ns
    }

    /// The shortest delay of any row.
    pub(super) fn min_delay_ns(&self) -> u64 {
        self.min_delay_ns
    }
}
