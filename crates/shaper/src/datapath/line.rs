//! The transmitter: one packet at a time, on a virtual clock, at a rate that is constant or a trace's, or at
//! a trace's opportunities. What is left of a nanosecond is carried to the next packet, so a busy line keeps
//! its rate for ever; a change of rate in the middle of a packet applies to the bits that are left.
//!
//! A trace needs no timer: when a packet starts, the rate is integrated over the steps that it crosses.
//! An opportunity carries so many bytes at an instant: several small packets share it, a large one takes
//! several, and what nobody is there to use is gone.

use ccbench_proto::trace::{Cursor, OpportunityCursor, Replay};
use ccbench_proto::units::Rate;

/// Work is counted in bit·ns/s: a rate in bit/s does `rate` of it in every nanosecond.
const WORK_PER_BYTE: u64 = 8 * 1_000_000_000;

/// A transmitter.
#[derive(Debug)]
pub(crate) struct Line {
    pace: Pace,
    busy: bool,
    /// Since when `work` is what is left, `CLOCK_MONOTONIC` nanoseconds; when idle, the end of the last packet.
    mark_ns: u64,
    work: u64,
    /// While busy: when the packet will have left, and the work that rounding then leaves.
    end_ns: u64,
    left: u64,
}

/// How fast it goes.
#[derive(Debug)]
enum Pace {
    /// At a rate in bit/s; `None` is unlimited.
    Constant(Option<u64>),
    Steps(Box<Steps>),
    Opportunities(Box<Opportunities>),
}

/// A piecewise constant rate.
#[derive(Debug)]
struct Steps {
    /// At the line's mark; at the end of the packet being transmitted; at the last reported change.
    cursor: Cursor,
    ahead: Cursor,
    reported: Cursor,
    /// The rate where the trace gives none.
    unset_bps: Option<u64>,
}

/// Instants.
#[derive(Debug)]
struct Opportunities {
    cursor: OpportunityCursor,
    /// Until the trace begins, the line goes at its mean rate; `u64::MAX` is not yet.
    begin_ns: u64,
    mean_bps: u64,
    /// Bytes that each carries with their overhead, and how many the one that `cursor` is at has left, if it
    /// has been used.
    bytes: u32,
    open: Option<u32>,
    replay: Replay,
}

impl Opportunities {
    /// When the last of `bytes` leaves that are ready at `ready_ns`; `u64::MAX` is never.
    fn carry(&mut self, ready_ns: u64, bytes: u32) -> u64 {
        if self.open.is_none() || self.cursor.at_ns() < ready_ns {
            self.cursor.seek(ready_ns);
            self.open = Some(self.bytes);
        }
        let mut left = self.open.unwrap_or(self.bytes);
        let mut needed = bytes;
        while needed > left {
            needed -= left;
            left = self.bytes;
            self.cursor.advance();
            if self.cursor.at_ns() == u64::MAX {
                break;
            }
        }
        self.open = Some(left.saturating_sub(needed));
        self.cursor.at_ns()
    }
}

impl Line {
    /// An idle line; without a rate a packet takes no time.
    pub(crate) fn new(rate_bps: Option<u64>) -> Self {
        Self::at(Pace::Constant(rate_bps))
    }

    /// An idle line that will play a trace. `unset_bps` is the rate where that gives none, `overhead_bytes` what
    /// the line carries beside each IP packet.
    pub(crate) fn of_trace(replay: &Replay, unset_bps: Option<u64>, overhead_bytes: u32) -> Self {
        if let Some(cursor) = Cursor::new(replay, u64::MAX) {
            let (ahead, reported) = (cursor.clone(), cursor.clone());
            return Self::at(Pace::Steps(Box::new(Steps { cursor, ahead, reported, unset_bps })));
        }
        let Some(cursor) = OpportunityCursor::new(replay, u64::MAX) else {
            return Self::new(unset_bps);
        };
        let bytes = cursor.bytes().saturating_add(overhead_bytes);
        let mean = replay.trace.mean_rate().map_or(0, Rate::bits_per_sec);
        let mean_bps = u128::from(mean) * u128::from(bytes) / u128::from(cursor.bytes().max(1));
        Self::at(Pace::Opportunities(Box::new(Opportunities {
            cursor,
            begin_ns: u64::MAX,
            mean_bps: mean_bps as u64,
            bytes,
            open: None,
            replay: replay.clone(),
        })))
    }

    fn at(pace: Pace) -> Self {
        Self { pace, busy: false, mark_ns: 0, work: 0, end_ns: 0, left: 0 }
    }

    /// The rate in bit/s, of a trace at the last reported change; `None` is unlimited.
    pub(crate) fn rate_bps(&self) -> Option<u64> {
        match &self.pace {
            Pace::Constant(rate_bps) => *rate_bps,
            Pace::Steps(steps) => {
                steps.reported.piece().rate.map(Rate::bits_per_sec).or(steps.unset_bps)
            }
            Pace::Opportunities(all) => Some(all.mean_bps),
        }
    }

    /// Whether a packet that is ready at `at_ns` takes no time.
    pub(crate) fn is_unlimited(&mut self, at_ns: u64) -> bool {
        match &mut self.pace {
            Pace::Constant(rate_bps) => rate_bps.is_none(),
            Pace::Opportunities(_) => false,
            Pace::Steps(steps) if steps.unset_bps.is_some() => false,
            Pace::Steps(steps) => {
                steps.cursor.seek(at_ns.max(self.mark_ns));
                steps.cursor.piece().rate.is_none()
            }
        }
    }

    /// The next change of the rate by a trace since the last call, at most up to `now_ns`, with its time. To be called
    /// until there is none.
    pub(crate) fn next_step(&mut self, now_ns: u64) -> Option<(u64, Option<u64>)> {
        let Pace::Steps(steps) = &mut self.pace else { return None };
        let at_ns = steps.reported.piece().until_ns;
        if at_ns > now_ns || !steps.reported.advance() {
            return None;
        }
        let rate_bps = steps.reported.piece().rate.map(Rate::bits_per_sec).or(steps.unset_bps);
        Some((at_ns, rate_bps))
    }

    /// As [`Self::next_step`] for all steps at once.
    pub(crate) fn advance_to(&mut self, now_ns: u64) {
        if let Pace::Steps(steps) = &mut self.pace {
            steps.reported.seek(now_ns);
        }
    }

    /// When a trace changes the rate next; `u64::MAX` is never.
    pub(crate) fn next_step_ns(&self) -> u64 {
        match &self.pace {
            Pace::Steps(steps) => steps.reported.piece().until_ns,
            Pace::Constant(_) | Pace::Opportunities(_) => u64::MAX,
        }
    }

    /// The trace begins at `at_ns`, which may be to come. What has left by then has left.
    pub(crate) fn begin(&mut self, at_ns: u64) {
        match &mut self.pace {
            Pace::Constant(_) => return,
            Pace::Steps(steps) => {
                steps.cursor.begin(at_ns);
                steps.cursor.seek(self.mark_ns);
                steps.reported.begin(at_ns);
            }
            Pace::Opportunities(all) => {
                all.begin_ns = at_ns;
                all.open = None;
                if let Some(cursor) = OpportunityCursor::new(&all.replay, at_ns) {
                    all.cursor = cursor;
                }
                // The packet that is being transmitted goes on at the pace that it began with.
                return;
            }
        }
        if self.busy {
            self.integrate();
        }
    }

    /// Whether a packet is being transmitted.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Begins to transmit a packet that is ready at `ready_ns`: then, or when the line's last packet ended
    /// if that is later. The line must be idle.
    pub(crate) fn start(&mut self, ready_ns: u64, bytes: u32) {
        debug_assert!(!self.busy, "one packet at a time");
        if ready_ns > self.mark_ns {
            self.mark_ns = ready_ns;
            self.work = 0;
        }
        self.busy = true;
        if let Pace::Opportunities(all) = &mut self.pace
            && self.mark_ns >= all.begin_ns
        {
            self.work = 0;
            self.left = 0;
            self.end_ns = all.carry(self.mark_ns, bytes);
            return;
        }
        self.work += u64::from(bytes) * WORK_PER_BYTE;
        self.integrate();
    }

    /// Computes when the work will be done.
    fn integrate(&mut self) {
        let rate = match &mut self.pace {
            Pace::Constant(rate_bps) => *rate_bps,
            Pace::Opportunities(all) => Some(all.mean_bps),
            Pace::Steps(steps) => {
                steps.cursor.seek(self.mark_ns);
                steps.ahead.follow(&steps.cursor);
                let end = steps.ahead.carry(self.mark_ns, self.work, steps.unset_bps);
                (self.end_ns, self.left) = end.unwrap_or((u64::MAX, 0));
                return;
            }
        };
        (self.end_ns, self.left) = match rate {
            None => (self.mark_ns, 0),
            Some(0) => (u64::MAX, 0),
            Some(rate) => (self.mark_ns.saturating_add(self.work / rate), self.work % rate),
        };
    }

    /// When the packet being transmitted will have left, in nanoseconds rounded down; `u64::MAX` is never
    /// (a rate of zero).
    pub(crate) fn end_ns(&self) -> u64 {
        if self.busy { self.end_ns } else { self.mark_ns }
    }

    /// The packet has left at [`Self::end_ns`], which is returned; the line is idle.
    pub(crate) fn finish(&mut self) -> u64 {
        self.work = self.left;
        self.mark_ns = self.end_ns;
        self.busy = false;
        if let Pace::Steps(steps) = &mut self.pace {
            steps.cursor.follow(&steps.ahead);
        }
        self.end_ns
    }

    /// When a packet of `bytes` that is ready at `ready_ns` would have left an idle line, or, with a trace, when it
    /// would start.
    pub(crate) fn would_end_ns(&self, ready_ns: u64, bytes: u32) -> u64 {
        let start = ready_ns.max(self.mark_ns);
        match &self.pace {
            Pace::Constant(Some(0)) => u64::MAX,
            Pace::Constant(Some(rate)) => {
                start.saturating_add(u64::from(bytes) * WORK_PER_BYTE / rate)
            }
            Pace::Constant(None) | Pace::Steps(_) | Pace::Opportunities(_) => start,
        }
    }

    /// From `at_ns` on the rate is another. Not of a trace.
    pub(crate) fn set_rate(&mut self, at_ns: u64, rate_bps: Option<u64>) {
        let Pace::Constant(rate) = &mut self.pace else {
            debug_assert!(false, "a trace has its own rates");
            return;
        };
        if self.busy && at_ns > self.mark_ns {
            let done = rate.map_or(u128::from(u64::MAX), |rate| {
                u128::from(rate) * u128::from(at_ns - self.mark_ns)
            });
            self.work = u128::from(self.work).saturating_sub(done) as u64;
            self.mark_ns = at_ns;
        }
        *rate = rate_bps;
        if self.busy {
            self.integrate();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ccbench_proto::plan::{OnEnd, TraceStart};
    use ccbench_proto::trace::{self, Step, Trace};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_million_packets_keep_the_rate_to_the_nanosecond() {
        for rate in [99_999_989_u64, 100_000_000, 3_000_000_000, 1_499_977] {
            let mut line = Line::new(Some(rate));
            let mut end = 1_000;
            for _ in 0..1_000_000 {
                line.start(1_000, 1514);
                end = line.finish();
            }
            let exact = u128::from(1514_u64 * WORK_PER_BYTE) * 1_000_000 / u128::from(rate);
            assert_eq!(u128::from(end - 1_000), exact, "{rate} bit/s");
        }
    }

    #[test]
    fn a_change_of_rate_applies_to_the_bits_that_are_left() {
        // 1250 B at 10 Mbit/s take 1 ms; half of it, then half at a tenth of the rate: 0.5 + 5 ms.
        let mut line = Line::new(Some(10_000_000));
        line.start(0, 1250);
        assert_eq!(line.end_ns(), 1_000_000);
        line.set_rate(500_000, Some(1_000_000));
        assert_eq!(line.end_ns(), 5_500_000);
        line.set_rate(500_000, Some(0));
        assert_eq!(line.end_ns(), u64::MAX);
        line.set_rate(9_500_000, Some(1_000_000));
        assert_eq!(line.finish(), 14_500_000);
    }

    #[test]
    fn an_idle_line_starts_when_the_packet_is_ready() {
        let mut line = Line::new(Some(8_000_000_000));
        line.start(100, 1000);
        assert_eq!(line.finish(), 1_100);
        assert_eq!(line.would_end_ns(5_000, 1000), 6_000);
        line.start(5_000, 1000);
        assert_eq!(line.finish(), 6_000);
    }

    #[test]
    fn an_unlimited_line_takes_no_time() {
        let mut line = Line::new(None);
        line.start(7, 1514);
        assert_eq!(line.finish(), 7);
        line.start(7, 1514);
        line.set_rate(7, Some(1_000_000_000));
        assert_eq!(line.end_ns(), 7 + 1514 * 8);
    }

    fn replay(trace: Trace, on_end: OnEnd) -> Replay {
        let trace = Arc::new(trace);
        let name = "t".to_owned();
        Replay { trace, name, on_end, start: TraceStart::Trial, floor: None }
    }

    fn steps(rows: &[(u64, u64)], length_ns: u64, on_end: OnEnd) -> Replay {
        let step = |&(at_ns, bps)| Step {
            at_ns,
            rate: Some(Rate::from_bits_per_sec(bps)),
            delay_ns: None,
            loss: None,
            line: 0,
        };
        let steps = rows.iter().map(step).collect();
        replay(Trace::Steps(trace::Steps { steps, length_ns }), on_end)
    }

    #[test]
    fn a_packet_crosses_the_steps_of_a_trace() {
        // As with set_rate above: 0.5 ms at 10 Mbit/s, nothing for 9 ms, the rest at 1 Mbit/s.
        let ms = 1_000_000;
        let rows = [(0, 10_000_000), (500_000, 0), (9_500_000, 1_000_000)];
        let replay = steps(&rows, 100 * ms, OnEnd::Hold);
        let mut line = Line::of_trace(&replay, None, 14);
        line.begin(0);
        line.start(0, 1250);
        assert_eq!(line.end_ns(), 14_500_000);
        assert_eq!(line.next_step(ms), Some((0, Some(10_000_000))));
        assert_eq!(line.next_step(ms), Some((500_000, Some(0))));
        assert_eq!((line.next_step(ms), line.next_step_ns()), (None, 9_500_000));
        assert_eq!(line.finish(), 14_500_000);
    }

    #[test]
    fn before_its_beginning_a_trace_is_at_its_first_row() {
        let replay = steps(&[(0, 8_000_000), (10_000, 16_000_000)], 20_000, OnEnd::Loop);
        let mut line = Line::of_trace(&replay, None, 14);
        line.start(5_000, 100);
        assert_eq!(line.end_ns(), 105_000);
        // It begins under way: 10 us each at 8 and 16 Mbit/s from 45 us on.
        line.begin(45_000);
        assert_eq!(line.end_ns(), 45_000 + 40_000);
        line.advance_to(60_000);
        assert_eq!(line.rate_bps(), Some(16_000_000));
    }

    #[test]
    fn opportunities_are_shared_straddled_and_wasted() {
        let at_ns = vec![0, 1_000, 1_000, 5_000, 9_000];
        let all = trace::Opportunities { at_ns, bytes: 1500, length_ns: 9_000 };
        let replay = replay(Trace::Opportunities(all), OnEnd::Stop);
        let mut line = Line::of_trace(&replay, None, 0);
        line.begin(100);
        let mut send = |ready_ns, bytes| {
            line.start(ready_ns, bytes);
            line.finish()
        };
        // Those at 1100: two of 700 in the first of them, the third straddles to the second, whose rest
        // is gone when the fourth comes.
        assert_eq!([send(101, 700), send(101, 700), send(1_100, 700)], [1_100; 3]);
        assert_eq!(send(1_101, 100), 5_100);
        // 1400 are left there, 1600 at the end: then it stops.
        assert_eq!(send(5_100, 1600), 9_100);
        assert_eq!(send(5_100, 1300), 9_100);
        line.start(5_100, 1);
        assert_eq!(line.end_ns(), u64::MAX);
    }

    proptest! {
        #[test]
        fn changing_to_the_same_rate_changes_nothing(
            rate in 1_000_u64..10_000_000_000,
            bytes in 60_u32..9_018,
            cuts in proptest::collection::vec(0_u64..1_000_000, 0..10),
        ) {
            let mut plain = Line::new(Some(rate));
            plain.start(0, bytes);
            let mut changed = Line::new(Some(rate));
            changed.start(0, bytes);
            let mut at = 0;
            for cut in cuts {
                at += cut;
                if at < plain.end_ns() {
                    changed.set_rate(at, Some(rate));
                }
            }
            prop_assert_eq!(plain.finish(), changed.finish());
        }

        #[test]
        fn a_trace_is_the_same_as_its_changes_told_one_by_one(
            rows in proptest::collection::vec((1_u64..200_000, 1_u64..2_000_000_000), 1..12),
            packets in proptest::collection::vec((0_u64..100_000, 60_u32..9_018), 1..40),
        ) {
            let mut at = 0;
            let rows: Vec<_> = rows.iter().map(|&(l, bps)| { at += l; (at - l, bps) }).collect();
            let replay = steps(&rows, at, OnEnd::Hold);
            let mut traced = Line::of_trace(&replay, None, 14);
            traced.begin(0);
            let mut told = Line::new(Some(rows[0].1));
            let mut changes = rows[1..].iter().copied().peekable();
            let mut ready = 0;
            for (gap, bytes) in packets {
                ready += gap;
                let start = ready.max(told.end_ns());
                while let Some((at, bps)) = changes.next_if(|&(at, _)| at <= start) {
                    told.set_rate(at, Some(bps));
                }
                told.start(ready, bytes);
                while let Some((at, bps)) = changes.next_if(|&(at, _)| at < told.end_ns()) {
                    told.set_rate(at, Some(bps));
                }
                traced.start(ready, bytes);
                // Told at the nanosecond of its end, a change comes too late for the fraction behind it.
                prop_assert!(traced.end_ns().abs_diff(told.end_ns()) <= 1);
                let end = traced.finish();
                told.finish();
                ready = ready.max(end.saturating_sub(1_000_000));
            }
        }
    }
}
