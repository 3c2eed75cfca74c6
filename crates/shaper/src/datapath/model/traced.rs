//! Values of a trace for arriving packets: their delay and loss, and, if it is to begin with the first
//! packet, when that is.

use ccbench_proto::plan::TraceStart;
use ccbench_proto::trace::{Cursor, Replay, Trace};
use ccbench_proto::units::Ppm;

use super::LinkSpec;

/// A trace as arriving packets see it.
#[derive(Debug)]
pub(super) struct Traced {
    /// `None`: its rows have neither delay nor loss.
    cursor: Option<Cursor>,
    first_packet: bool,
    /// The first packet from then on begins the trace.
    armed_ns: u64,
    began_ns: u64,
    /// End of the last row returned.
    until_ns: u64,
    /// For rows without a value.
    delay_ns: u64,
    loss_ppm: u32,
    least_delay_ns: u64,
}

impl Traced {
    pub(super) fn new(replay: &Replay, spec: &LinkSpec) -> Self {
        let LinkSpec { delay_ns, loss_ppm, .. } = *spec;
        let least = delays(replay).map(|delay| delay.unwrap_or(delay_ns)).min();
        let summary = replay.trace.summary();
        let cursor = Cursor::new(replay, u64::MAX);
        let cursor = cursor.filter(|_| summary.delay.is_some() || summary.loss.is_some());
        Self {
            until_ns: if cursor.is_some() { 0 } else { u64::MAX },
            cursor,
            first_packet: replay.start == TraceStart::FirstPacket,
            armed_ns: u64::MAX,
            began_ns: 0,
            delay_ns,
            loss_ppm,
            least_delay_ns: least.unwrap_or(delay_ns).min(delay_ns),
        }
    }

    /// The trial begins at `at_ns`. Returns when the trace does, if that is known.
    pub(super) fn arm(&mut self, at_ns: u64) -> Option<u64> {
        if self.first_packet {
            self.armed_ns = at_ns;
            return None;
        }
        self.lay(at_ns);
        Some(at_ns)
    }

    /// A packet arrives. Returns when the trace begins, if this begins it.
    pub(super) fn arrival(&mut self, at_ns: u64) -> Option<u64> {
        if at_ns < self.armed_ns {
            return None;
        }
        self.armed_ns = u64::MAX;
        self.lay(at_ns);
        Some(at_ns)
    }

    fn lay(&mut self, at_ns: u64) {
        self.began_ns = at_ns;
        if let Some(cursor) = &mut self.cursor {
            cursor.begin(at_ns);
            self.until_ns = 0;
        }
    }

    /// Delay and loss of packets that arrive at `at_ns`, if they may have changed.
    pub(super) fn row(&mut self, at_ns: u64) -> Option<(u64, u32)> {
        let cursor = self.cursor.as_mut()?;
        if at_ns < self.until_ns {
            return None;
        }
        cursor.seek(at_ns);
        let piece = cursor.piece();
        self.until_ns = piece.until_ns;
        let loss_ppm = piece.loss.map_or(self.loss_ppm, Ppm::get);
        Some((piece.delay_ns.unwrap_or(self.delay_ns), loss_ppm))
    }

    /// Which arrivals have to be given to [`Self::arrival`] and [`Self::row`]: those from then on.
    pub(super) fn next_ns(&self) -> u64 {
        self.until_ns.min(self.armed_ns)
    }

    /// When the trace began or will begin; 0 if that is not known yet.
    pub(super) fn began_ns(&self) -> u64 {
        self.began_ns
    }

    /// The shortest delay that any packet may have.
    pub(super) fn least_delay_ns(&self) -> u64 {
        self.least_delay_ns
    }
}

/// The longest delay that a row gives.
pub(super) fn longest_delay_ns(replay: &Replay) -> u64 {
    delays(replay).flatten().max().unwrap_or(0)
}

fn delays(replay: &Replay) -> impl Iterator<Item = Option<u64>> {
    let steps = match &*replay.trace {
        Trace::Steps(steps) => steps.steps.as_slice(),
        Trace::Opportunities(_) => &[],
    };
    steps.iter().map(|step| step.delay_ns)
}
