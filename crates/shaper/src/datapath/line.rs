//! The transmitter. It serializes one packet at a time on a virtual clock: at a constant rate, at the rate of a trace, or at the delivery
//! opportunities of a trace. It carries fractions of a nanosecond to the next packet, so that rounding does not change the long-term rate.
//! A rate change during a packet applies to its remaining bits.
//!
//! A trace needs no timer: when a packet starts, the line integrates the rate over the steps that the packet crosses. A delivery
//! opportunity (mahimahi) carries a fixed number of bytes at one instant: several small packets share it, a large packet takes several, and
//! unused bytes are lost. A token bucket filter takes a packet at once and releases it when there are tokens for it, like the kernel's
//! (`tbf_dequeue`).

use ccbench_proto::plan::Tbf;
use ccbench_proto::trace::{Cursor, OpportunityCursor, Replay};
use ccbench_proto::units::{Bytes, Rate};

use super::token_bucket::{TokenBucket, WORK_PER_BYTE};

/// The state of a transmitter.
#[derive(Debug)]
pub(crate) struct Line {
    rate_source: RateSource,
    busy: bool,
    /// The time to which `work` refers, `CLOCK_MONOTONIC` nanoseconds. When idle, the end of the last packet.
    work_at_ns: u64,
    work: u64,
    /// Time without a transmission until `work_at_ns`.
    idle_ns: u64,
    /// While busy: when the transmission ends, and the work that rounding leaves.
    end_ns: u64,
    remainder: u64,
}

/// What determines the rate.
#[derive(Debug)]
enum RateSource {
    /// At a rate in bit/s; `None` is unlimited.
    Constant(Option<u64>),
    Steps(Box<Steps>),
    Opportunities(Box<Opportunities>),
    /// A token bucket filter.
    Buckets(Box<Buckets>),
}

/// The buckets of a token bucket filter.
#[derive(Debug)]
struct Buckets {
    rate: TokenBucket,
    peak: Option<TokenBucket>,
    /// Size of the packet that waits for its tokens.
    bytes: u32,
}

impl Buckets {
    /// Returns when both buckets have tokens for the packet, not before `now_ns`.
    fn ready_ns(&self, now_ns: u64) -> u64 {
        let peak_ns = self.peak.map_or(now_ns, |peak| peak.ready_ns(now_ns, self.bytes));
        self.rate.ready_ns(now_ns, self.bytes).max(peak_ns)
    }

    /// Takes the packet's tokens from both buckets.
    fn take(&mut self, now_ns: u64) {
        self.rate.take(now_ns, self.bytes);
        if let Some(peak) = &mut self.peak {
            peak.take(now_ns, self.bytes);
        }
    }
}

/// A piecewise constant rate.
#[derive(Debug)]
struct Steps {
    /// Positions in the trace: at `work_at_ns`, at the end of the current packet, and at the last reported change.
    cursor: Cursor,
    ahead: Cursor,
    reported: Cursor,
    /// The rate for steps without a rate.
    unset_bps: Option<u64>,
}

/// Delivery opportunities.
#[derive(Debug)]
struct Opportunities {
    cursor: OpportunityCursor,
    /// When the trace begins; until then, the line has the trace's mean rate. `u64::MAX`: not known yet.
    begin_ns: u64,
    mean_bps: u64,
    /// Bytes of each opportunity including overhead, and the bytes left of the opportunity at `cursor` if it has been used.
    bytes: u32,
    open: Option<u32>,
    replay: Replay,
}

impl Opportunities {
    /// Returns when a packet of `bytes` that is ready at `ready_ns` has left; `u64::MAX`: never.
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
    /// Creates an idle line. Without a rate, transmission takes no time.
    pub(crate) fn new(rate_bps: Option<u64>) -> Self {
        Self::at(RateSource::Constant(rate_bps))
    }

    /// Creates an idle line that replays a trace. `unset_bps` is the rate of steps without one; `overhead_bytes` is the link-layer overhead
    /// of each IP packet.
    pub(crate) fn from_trace(replay: &Replay, unset_bps: Option<u64>, overhead_bytes: u32) -> Self {
        if let Some(cursor) = Cursor::new(replay, u64::MAX) {
            let (ahead, reported) = (cursor.clone(), cursor.clone());
            let steps = Steps { cursor, ahead, reported, unset_bps };
            return Self::at(RateSource::Steps(Box::new(steps)));
        }
        let Some(cursor) = OpportunityCursor::new(replay, u64::MAX) else {
            return Self::new(unset_bps);
        };
        let bytes = cursor.bytes().saturating_add(overhead_bytes);
        let mean = replay.trace.mean_rate().map_or(0, Rate::bits_per_sec);
        let mean_bps = u128::from(mean) * u128::from(bytes) / u128::from(cursor.bytes().max(1));
        Self::at(RateSource::Opportunities(Box::new(Opportunities {
            cursor,
            begin_ns: u64::MAX,
            mean_bps: mean_bps as u64,
            bytes,
            open: None,
            replay: replay.clone(),
        })))
    }

    /// Creates an idle token bucket filter with full buckets. `mtu_bytes` is the size of the peak rate's bucket unless `tbf` sets it. As in
    /// the kernel, a bucket holds the tokens of a packet of its size plus the link's overhead, `extra_bytes`.
    pub(crate) fn from_tbf(rate_bps: u64, tbf: &Tbf, mtu_bytes: u32, extra_bytes: i32) -> Self {
        let size = |bytes: u64| bytes.saturating_add_signed(i64::from(extra_bytes)).max(1);
        let mtu_bytes = tbf.mtu.map_or(u64::from(mtu_bytes), Bytes::get);
        let peak = tbf.peakrate.map(Rate::bits_per_sec);
        Self::at(RateSource::Buckets(Box::new(Buckets {
            rate: TokenBucket::new(rate_bps, size(tbf.burst.get())),
            peak: peak.map(|peak_bps| TokenBucket::new(peak_bps, size(mtu_bytes))),
            bytes: 0,
        })))
    }

    fn at(rate_source: RateSource) -> Self {
        Self {
            rate_source,
            busy: false,
            work_at_ns: 0,
            work: 0,
            idle_ns: 0,
            end_ns: 0,
            remainder: 0,
        }
    }

    /// Returns the rate in bit/s, with a trace that of the last reported change; `None`: unlimited.
    pub(crate) fn rate_bps(&self) -> Option<u64> {
        match &self.rate_source {
            RateSource::Constant(rate_bps) => *rate_bps,
            RateSource::Steps(steps) => {
                steps.reported.span().rate.map(Rate::bits_per_sec).or(steps.unset_bps)
            }
            RateSource::Opportunities(all) => Some(all.mean_bps),
            RateSource::Buckets(buckets) => Some(buckets.rate.rate_bps()),
        }
    }

    /// Returns whether transmitting a packet that is ready at `at_ns` takes no time.
    pub(crate) fn is_unlimited(&mut self, at_ns: u64) -> bool {
        match &mut self.rate_source {
            RateSource::Constant(rate_bps) => rate_bps.is_none(),
            RateSource::Opportunities(_) | RateSource::Buckets(_) => false,
            RateSource::Steps(steps) if steps.unset_bps.is_some() => false,
            RateSource::Steps(steps) => {
                steps.cursor.seek(at_ns.max(self.work_at_ns));
                steps.cursor.span().rate.is_none()
            }
        }
    }

    /// Returns the trace's next rate change until `now_ns`, with its time. Call it until it returns `None`.
    pub(crate) fn next_step(&mut self, now_ns: u64) -> Option<(u64, Option<u64>)> {
        let RateSource::Steps(steps) = &mut self.rate_source else { return None };
        let at_ns = steps.reported.span().until_ns;
        if at_ns > now_ns || !steps.reported.advance() {
            return None;
        }
        let rate_bps = steps.reported.span().rate.map(Rate::bits_per_sec).or(steps.unset_bps);
        Some((at_ns, rate_bps))
    }

    /// Skips all steps until `now_ns` that [`Self::next_step`] would return.
    pub(crate) fn advance_to(&mut self, now_ns: u64) {
        if let RateSource::Steps(steps) = &mut self.rate_source {
            steps.reported.seek(now_ns);
        }
    }

    /// Returns when the trace changes the rate next; `u64::MAX`: never.
    pub(crate) fn next_step_ns(&self) -> u64 {
        let RateSource::Steps(steps) = &self.rate_source else { return u64::MAX };
        steps.reported.span().until_ns
    }

    /// Begins the trace at `at_ns`, which may be in the future. Bits that were sent before are not affected.
    pub(crate) fn begin(&mut self, at_ns: u64) {
        match &mut self.rate_source {
            RateSource::Constant(_) | RateSource::Buckets(_) => return,
            RateSource::Steps(steps) => {
                steps.cursor.begin(at_ns);
                steps.cursor.seek(self.work_at_ns);
                steps.reported.begin(at_ns);
            }
            RateSource::Opportunities(all) => {
                all.begin_ns = at_ns;
                all.open = None;
                if let Some(cursor) = OpportunityCursor::new(&all.replay, at_ns) {
                    all.cursor = cursor;
                }
                // The packet in transmission keeps the rate with which it started.
                return;
            }
        }
        if self.busy {
            self.integrate();
        }
    }

    /// Returns whether a packet is being transmitted.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Returns the time without a transmission from zero of the clock until `now_ns`.
    pub(crate) fn idle_ns(&self, now_ns: u64) -> u64 {
        let idle_now_ns = if self.busy { 0 } else { now_ns.saturating_sub(self.work_at_ns) };
        self.idle_ns + idle_now_ns
    }

    /// Starts to transmit a packet when it is ready (`ready_ns`) and the last packet has ended. The line must be idle.
    pub(crate) fn start(&mut self, ready_ns: u64, bytes: u32) {
        debug_assert!(!self.busy, "one packet at a time");
        if ready_ns > self.work_at_ns {
            self.idle_ns += ready_ns - self.work_at_ns;
            self.work_at_ns = ready_ns;
            self.work = 0;
        }
        self.busy = true;
        if let RateSource::Opportunities(all) = &mut self.rate_source
            && self.work_at_ns >= all.begin_ns
        {
            self.work = 0;
            self.remainder = 0;
            self.end_ns = all.carry(self.work_at_ns, bytes);
            return;
        }
        if let RateSource::Buckets(buckets) = &mut self.rate_source {
            buckets.bytes = bytes;
        } else {
            self.work += u64::from(bytes) * WORK_PER_BYTE;
        }
        self.integrate();
    }

    /// Computes the end of the transmission.
    fn integrate(&mut self) {
        let rate = match &mut self.rate_source {
            RateSource::Constant(rate_bps) => *rate_bps,
            RateSource::Opportunities(all) => Some(all.mean_bps),
            RateSource::Buckets(buckets) => {
                (self.end_ns, self.remainder) = (buckets.ready_ns(self.work_at_ns), 0);
                return;
            }
            RateSource::Steps(steps) => {
                steps.cursor.seek(self.work_at_ns);
                steps.ahead.follow(&steps.cursor);
                let end = steps.ahead.carry(self.work_at_ns, self.work, steps.unset_bps);
                (self.end_ns, self.remainder) = end.unwrap_or((u64::MAX, 0));
                return;
            }
        };
        (self.end_ns, self.remainder) = match rate {
            None => (self.work_at_ns, 0),
            Some(0) => (u64::MAX, 0),
            Some(rate) => (self.work_at_ns.saturating_add(self.work / rate), self.work % rate),
        };
    }

    /// Returns when the transmission ends, nanoseconds rounded down; `u64::MAX`: never (a rate of zero).
    pub(crate) fn end_ns(&self) -> u64 {
        if self.busy { self.end_ns } else { self.work_at_ns }
    }

    /// Ends the transmission, which makes the line idle, and returns [`Self::end_ns`].
    pub(crate) fn finish(&mut self) -> u64 {
        self.work = self.remainder;
        self.work_at_ns = self.end_ns;
        self.busy = false;
        match &mut self.rate_source {
            RateSource::Steps(steps) => steps.cursor.follow(&steps.ahead),
            RateSource::Buckets(buckets) => buckets.take(self.end_ns),
            RateSource::Constant(_) | RateSource::Opportunities(_) => {}
        }
        self.end_ns
    }

    /// Returns when an idle line would end the transmission of a packet of `bytes` that is ready at `ready_ns`; with a trace or token
    /// buckets, when it would start.
    pub(crate) fn would_end_ns(&self, ready_ns: u64, bytes: u32) -> u64 {
        let start = ready_ns.max(self.work_at_ns);
        match &self.rate_source {
            RateSource::Constant(Some(0)) => u64::MAX,
            RateSource::Constant(Some(rate)) => {
                start.saturating_add(u64::from(bytes) * WORK_PER_BYTE / rate)
            }
            RateSource::Constant(None)
            | RateSource::Steps(_)
            | RateSource::Opportunities(_)
            | RateSource::Buckets(_) => start,
        }
    }

    /// Changes the rate from `at_ns` on. Not for lines with a trace.
    pub(crate) fn set_rate(&mut self, at_ns: u64, rate_bps: Option<u64>) {
        let rate = match &mut self.rate_source {
            RateSource::Constant(rate) => rate,
            RateSource::Buckets(buckets) => {
                buckets.rate.set_rate(at_ns, rate_bps.unwrap_or(u64::MAX));
                if self.busy {
                    self.integrate();
                }
                return;
            }
            RateSource::Steps(_) | RateSource::Opportunities(_) => {
                debug_assert!(false, "a line with a trace has no settable rate");
                return;
            }
        };
        if self.busy && at_ns > self.work_at_ns {
            let done = rate.map_or(u128::from(u64::MAX), |rate| {
                u128::from(rate) * u128::from(at_ns - self.work_at_ns)
            });
            self.work = u128::from(self.work).saturating_sub(done) as u64;
            self.work_at_ns = at_ns;
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

    use ccbench_proto::plan::{OnEnd, TraceUse};
    use ccbench_proto::trace::{self, Step, Trace};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rounding_does_not_accumulate_over_a_million_packets() {
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
    fn rate_change_applies_to_the_remaining_bits() {
        // 1250 B at 10 Mbit/s take 1 ms. Half of them at this rate, half at a tenth of it: 0.5 + 5 ms.
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
    fn idle_line_starts_when_the_packet_is_ready() {
        let mut line = Line::new(Some(8_000_000_000));
        line.start(100, 1000);
        assert_eq!(line.finish(), 1_100);
        assert_eq!(line.would_end_ns(5_000, 1000), 6_000);
        line.start(5_000, 1000);
        assert_eq!((line.end_ns(), line.idle_ns(5_500)), (6_000, 100 + 3_900));
        line.finish();
        assert_eq!(line.idle_ns(6_200), 100 + 3_900 + 200);
    }

    #[test]
    fn unlimited_line_takes_no_time() {
        let mut line = Line::new(None);
        line.start(7, 1514);
        assert_eq!(line.finish(), 7);
        line.start(7, 1514);
        line.set_rate(7, Some(1_000_000_000));
        assert_eq!(line.end_ns(), 7 + 1514 * 8);
    }

    /// 8 Mbit/s, one byte per us; bursts of 3000 bytes.
    fn tbf(peak_bps: Option<u64>) -> Line {
        let tbf = Tbf {
            burst: Bytes::new(3_000),
            peakrate: peak_bps.map(Rate::from_bits_per_sec),
            mtu: None,
        };
        Line::from_tbf(8_000_000, &tbf, 1_500, 0)
    }

    /// Returns when packets of 1000 bytes leave that are ready at these times.
    fn leave(line: &mut Line, ready_us: &[u64]) -> Vec<u64> {
        let one = |at_us: &u64| {
            line.start(at_us * 1_000, 1_000);
            line.finish() / 1_000
        };
        ready_us.iter().map(one).collect()
    }

    #[test]
    fn tbf_sends_a_burst_at_once_and_then_at_its_rate() {
        let mut line = tbf(None);
        assert_eq!(line.rate_bps(), Some(8_000_000));
        assert!(!line.is_unlimited(0));
        assert_eq!(leave(&mut line, &[0, 0, 0, 0, 0]), [0, 0, 0, 1_000, 2_000]);
        // Idle for 1.5 ms: tokens for one and a half packets.
        assert_eq!(leave(&mut line, &[3_500, 3_500, 3_500]), [3_500, 4_000, 5_000]);
        assert_eq!(leave(&mut line, &[100_000; 4]), [100_000, 100_000, 100_000, 101_000]);
    }

    #[test]
    fn peakrate_spreads_a_burst() {
        // 16 Mbit/s. The bucket holds one frame of 1500 bytes, so the second packet waits for 500 bytes.
        let mut line = tbf(Some(16_000_000));
        assert_eq!(leave(&mut line, &[0; 5]), [0, 250, 750, 1_250, 2_000]);
    }

    #[test]
    fn rate_change_applies_to_the_tokens_that_are_missing() {
        let mut line = tbf(None);
        leave(&mut line, &[0; 3]);
        line.start(0, 1_000);
        line.set_rate(500_000, Some(4_000_000));
        assert_eq!(line.end_ns(), 1_500_000);
        line.set_rate(600_000, Some(0));
        assert_eq!(line.end_ns(), u64::MAX);
        line.set_rate(700_000, Some(8_000_000));
        // There are tokens for 550 bytes by then.
        assert_eq!(line.finish(), 1_150_000);
    }

    fn replay(trace: Trace, on_end: OnEnd) -> Replay {
        let trace = Arc::new(trace);
        Replay { trace, plan: TraceUse { on_end, ..TraceUse::new("t") } }
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
    fn one_packet_spans_several_trace_steps() {
        // As with set_rate above: 0.5 ms at 10 Mbit/s, then nothing for 9 ms, the rest at 1 Mbit/s.
        let ms = 1_000_000;
        let rows = [(0, 10_000_000), (500_000, 0), (9_500_000, 1_000_000)];
        let replay = steps(&rows, 100 * ms, OnEnd::Hold);
        let mut line = Line::from_trace(&replay, None, 14);
        line.begin(0);
        line.start(0, 1250);
        assert_eq!(line.end_ns(), 14_500_000);
        assert_eq!(line.next_step(ms), Some((0, Some(10_000_000))));
        assert_eq!(line.next_step(ms), Some((500_000, Some(0))));
        assert_eq!((line.next_step(ms), line.next_step_ns()), (None, 9_500_000));
        assert_eq!(line.finish(), 14_500_000);
    }

    #[test]
    fn trace_has_its_first_rate_before_it_begins() {
        let replay = steps(&[(0, 8_000_000), (10_000, 16_000_000)], 20_000, OnEnd::Loop);
        let mut line = Line::from_trace(&replay, None, 14);
        line.start(5_000, 100);
        assert_eq!(line.end_ns(), 105_000);
        // The trace begins during the packet: 10 us at 8 Mbit/s and 10 us at 16 Mbit/s, from 45 us on.
        line.begin(45_000);
        assert_eq!(line.end_ns(), 45_000 + 40_000);
        line.advance_to(60_000);
        assert_eq!(line.rate_bps(), Some(16_000_000));
    }

    #[test]
    fn opportunities_are_shared_split_and_wasted() {
        let at_ns = vec![0, 1_000, 1_000, 5_000, 9_000];
        let all = trace::Opportunities { at_ns, bytes: 1500, length_ns: 9_000 };
        let replay = replay(Trace::Opportunities(all), OnEnd::Stop);
        let mut line = Line::from_trace(&replay, None, 0);
        line.begin(100);
        let mut send = |ready_ns, bytes| {
            line.start(ready_ns, bytes);
            line.finish()
        };
        // At 1100: the first opportunity carries two packets of 700 bytes. The third packet also needs the second opportunity, whose
        // remaining bytes are lost when the fourth packet arrives.
        assert_eq!([send(101, 700), send(101, 700), send(1_100, 700)], [1_100; 3]);
        assert_eq!(send(1_101, 100), 5_100);
        // 1400 bytes are left there. The last opportunity takes the rest of the 1600, then the trace stops.
        assert_eq!(send(5_100, 1600), 9_100);
        assert_eq!(send(5_100, 1300), 9_100);
        line.start(5_100, 1);
        assert_eq!(line.end_ns(), u64::MAX);
    }

    proptest! {
        #[test]
        fn change_to_the_same_rate_has_no_effect(
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
        fn trace_equals_individual_rate_changes(
            rows in proptest::collection::vec((1_u64..200_000, 1_u64..2_000_000_000), 1..12),
            packets in proptest::collection::vec((0_u64..100_000, 60_u32..9_018), 1..40),
        ) {
            let mut at = 0;
            let rows: Vec<_> = rows.iter().map(|&(l, bps)| { at += l; (at - l, bps) }).collect();
            let replay = steps(&rows, at, OnEnd::Hold);
            let mut traced = Line::from_trace(&replay, None, 14);
            traced.begin(0);
            let mut manual = Line::new(Some(rows[0].1));
            let mut changes = rows[1..].iter().copied().peekable();
            let mut ready = 0;
            for (gap, bytes) in packets {
                ready += gap;
                let start = ready.max(manual.end_ns());
                while let Some((at, bps)) = changes.next_if(|&(at, _)| at <= start) {
                    manual.set_rate(at, Some(bps));
                }
                manual.start(ready, bytes);
                // The end is rounded down: a change at that nanosecond applies to the work that the rounding leaves.
                while let Some((at, bps)) = changes.next_if(|&(at, _)| (at, 0) < (manual.end_ns(), manual.remainder)) {
                    manual.set_rate(at, Some(bps));
                }
                traced.start(ready, bytes);
                prop_assert_eq!(traced.end_ns(), manual.end_ns());
                let end = traced.finish();
                manual.finish();
                ready = ready.max(end.saturating_sub(1_000_000));
            }
        }
    }
}
