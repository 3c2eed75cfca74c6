//! The transmitter: one packet at a time at a rate, on a virtual clock. What is left of a nanosecond is
//! carried to the next packet, so a busy line keeps its rate for ever; a change of rate in the middle of
//! a packet applies to the bits that are left.

/// Work is counted in bit·ns/s: a rate in bit/s does `rate` of it in every nanosecond.
const WORK_PER_BYTE: u64 = 8 * 1_000_000_000;

/// A transmitter.
#[derive(Debug)]
pub(crate) struct Line {
    rate_bps: Option<u64>,
    busy: bool,
    /// Since when `work` is what is left, `CLOCK_MONOTONIC` nanoseconds; when idle, the end of the last packet.
    mark_ns: u64,
    work: u64,
}

impl Line {
    /// An idle line; without a rate a packet takes no time.
    pub(crate) fn new(rate_bps: Option<u64>) -> Self {
        Self { rate_bps, busy: false, mark_ns: 0, work: 0 }
    }

    /// The rate in bit/s; `None` is unlimited.
    pub(crate) fn rate_bps(&self) -> Option<u64> {
        self.rate_bps
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
        self.work += u64::from(bytes) * WORK_PER_BYTE;
        self.busy = true;
    }

    /// When the packet being transmitted will have left, in nanoseconds rounded down; `u64::MAX` is never
    /// (a rate of zero).
    pub(crate) fn end_ns(&self) -> u64 {
        match self.rate_bps {
            None => self.mark_ns,
            Some(0) => u64::MAX,
            Some(rate) => self.mark_ns.saturating_add(self.work / rate),
        }
    }

    /// The packet has left at [`Self::end_ns`], which is returned; the line is idle.
    pub(crate) fn finish(&mut self) -> u64 {
        let end = self.end_ns();
        self.work = self.rate_bps.map_or(0, |rate| self.work.checked_rem(rate).unwrap_or(0));
        self.mark_ns = end;
        self.busy = false;
        end
    }

    /// When a packet of `bytes` that is ready at `ready_ns` would have left an idle line.
    pub(crate) fn would_end_ns(&self, ready_ns: u64, bytes: u32) -> u64 {
        let start = ready_ns.max(self.mark_ns);
        match self.rate_bps {
            None => start,
            Some(0) => u64::MAX,
            Some(rate) => start.saturating_add(u64::from(bytes) * WORK_PER_BYTE / rate),
        }
    }

    /// From `at_ns` on the rate is another.
    pub(crate) fn set_rate(&mut self, at_ns: u64, rate_bps: Option<u64>) {
        if self.busy && at_ns > self.mark_ns {
            let done = self.rate_bps.map_or(u128::from(u64::MAX), |rate| {
                u128::from(rate) * u128::from(at_ns - self.mark_ns)
            });
            self.work = u128::from(self.work).saturating_sub(done) as u64;
            self.mark_ns = at_ns;
        }
        self.rate_bps = rate_bps;
    }
}

#[cfg(test)]
mod tests {
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
    }
}
