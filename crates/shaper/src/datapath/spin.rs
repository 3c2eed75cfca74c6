//! Busy waiting before a deadline. The margin follows the measured wakeup latency of timers. A budget limits the share of CPU time.

/// Share of CPU time for busy waiting, percent.
const DUTY_PERCENT: u64 = 12;
/// Maximum saved credit for busy waiting: of an ordinary thread, which other threads can preempt, and of a real-time thread, which they
/// cannot preempt.
const CREDIT_NS: u64 = 5_000_000;
const REAL_TIME_CREDIT_NS: u64 = 500_000;
/// Bounds of the margin.
const MIN_MARGIN_NS: u64 = 6_000;
const MAX_MARGIN_NS: u64 = 60_000;
/// Timers whose error stays below this need no busy waiting. Timers of a virtual clock are exact, except for the time that reading the
/// clock takes. Busy waiting reads the clock; in the lab's engine uml, time passes during it only because of that.
const EXACT_NS: u64 = 2_000;
/// Larger scheduling errors are clamped to this, because they come from a busy CPU, not from the timer.
const MAX_COUNTED_NS: u64 = 100_000;

/// Limits busy waiting, and decides when it starts.
#[derive(Debug)]
pub(crate) struct Spin {
    credit_ns: u64,
    seen_ns: u64,
    /// Smoothed scheduling error of timers and its mean deviation, as SRTT and RTTVAR of RFC 6298.
    late_ns: u64,
    deviation_ns: u64,
}

impl Spin {
    /// Starts with full credit and the margin of a machine with CPU idle states.
    pub(crate) fn new(now_ns: u64) -> Self {
        Self {
            credit_ns: REAL_TIME_CREDIT_NS,
            seen_ns: now_ns,
            late_ns: 25_000,
            deviation_ns: 5_000,
        }
    }

    /// Records that a sleep ended `ns` after its deadline.
    pub(crate) fn woke_late(&mut self, ns: u64) {
        let ns = ns.min(MAX_COUNTED_NS);
        let error = ns.abs_diff(self.late_ns);
        self.deviation_ns = self.deviation_ns - self.deviation_ns / 4 + error / 4;
        self.late_ns = self.late_ns - self.late_ns / 8 + ns / 8;
    }

    /// Returns how long before a deadline the thread should be awake, nanoseconds; 0 if timers are exact.
    pub(crate) fn margin_ns(&self) -> u64 {
        match self.late_ns + 3 * self.deviation_ns {
            ns if ns < EXACT_NS => 0,
            ns => ns.clamp(MIN_MARGIN_NS, MAX_MARGIN_NS),
        }
    }

    /// Returns whether the credit covers busy waiting for the margin at `now_ns`.
    pub(crate) fn allows(&mut self, now_ns: u64, real_time: bool) -> bool {
        let most_ns = if real_time { REAL_TIME_CREDIT_NS } else { CREDIT_NS };
        let earned = now_ns.saturating_sub(self.seen_ns).saturating_mul(DUTY_PERCENT) / 100;
        self.credit_ns = self.credit_ns.saturating_add(earned).min(most_ns);
        self.seen_ns = now_ns;
        self.credit_ns >= self.margin_ns()
    }

    /// Charges `ns` of busy waiting.
    pub(crate) fn spend(&mut self, ns: u64) {
        self.credit_ns = self.credit_ns.saturating_sub(ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_is_rationed() {
        for real_time in [false, true] {
            let mut spin = Spin::new(0);
            let (mut now_ns, mut spun_ns) = (0, 0);
            while now_ns < 1_000_000_000 {
                let margin_ns = spin.margin_ns();
                if spin.allows(now_ns, real_time) {
                    spin.spend(margin_ns);
                    spun_ns += margin_ns;
                }
                now_ns += margin_ns;
            }
            assert!((118_000_000..=126_000_000).contains(&spun_ns), "{spun_ns}");
        }
    }

    #[test]
    fn the_margin_follows_the_timers() {
        let mut spin = Spin::new(0);
        let settle = |spin: &mut Spin, lates: [u64; 2]| {
            (0..200).for_each(|nth| spin.woke_late(lates[nth % 2]));
            spin.margin_ns()
        };
        // Awake CPUs take a few microseconds, halted ones take longer. The margin does not cover stalls.
        assert!((MIN_MARGIN_NS..12_000).contains(&settle(&mut spin, [3_000, 4_000])));
        assert!((40_000..=MAX_MARGIN_NS).contains(&settle(&mut spin, [30_000, 40_000])));
        assert_eq!(settle(&mut spin, [5_000_000, 5_000_000]), MAX_MARGIN_NS);
        assert!((MIN_MARGIN_NS..12_000).contains(&settle(&mut spin, [3_000, 4_000])));
        assert_eq!(settle(&mut spin, [768, 1_024]), 0, "a virtual clock");
        assert!((40_000..=MAX_MARGIN_NS).contains(&settle(&mut spin, [30_000, 40_000])));
    }
}
