//! How long before a packet is due the thread had better be awake, and how much of its time it may spend so:
//! a timer fires late by what it takes to wake a processor, which is measured here all the time.

/// Share of the time that may be spun, in percent.
const DUTY_PERCENT: u64 = 12;
/// Spinning that may be saved up for: by an ordinary thread, which others of its processor interrupt, and by
/// a real-time one, which they must wait for.
const CREDIT_NS: u64 = 5_000_000;
const REAL_TIME_CREDIT_NS: u64 = 500_000;
/// The margin is at least the first and at most the second.
const LEAST_MARGIN_NS: u64 = 6_000;
const MOST_MARGIN_NS: u64 = 60_000;
/// Larger scheduling errors count as this: a thread that had no CPU does not measure timers.
const MOST_COUNTED_NS: u64 = 100_000;

/// Limits busy waiting, and decides when it starts.
#[derive(Debug)]
pub(crate) struct Spin {
    credit_ns: u64,
    seen_ns: u64,
    /// Smoothed scheduling error of timers, and its smoothed deviation.
    late_ns: u64,
    deviation_ns: u64,
}

impl Spin {
    /// With a full purse, and the margin of a machine whose processors sleep.
    pub(crate) fn new(now_ns: u64) -> Self {
        Self {
            credit_ns: REAL_TIME_CREDIT_NS,
            seen_ns: now_ns,
            late_ns: 25_000,
            deviation_ns: 5_000,
        }
    }

    /// A sleep ended `ns` after the time asked for.
    pub(crate) fn overslept(&mut self, ns: u64) {
        let ns = ns.min(MOST_COUNTED_NS);
        let error = ns.abs_diff(self.late_ns);
        self.deviation_ns = self.deviation_ns - self.deviation_ns / 4 + error / 4;
        self.late_ns = self.late_ns - self.late_ns / 8 + ns / 8;
    }

    /// How long before the time to be awake, nanoseconds.
    pub(crate) fn margin_ns(&self) -> u64 {
        (self.late_ns + 3 * self.deviation_ns).clamp(LEAST_MARGIN_NS, MOST_MARGIN_NS)
    }

    /// Whether the margin may be spun from `now_ns` on.
    pub(crate) fn allows(&mut self, now_ns: u64, real_time: bool) -> bool {
        let most_ns = if real_time { REAL_TIME_CREDIT_NS } else { CREDIT_NS };
        let earned = now_ns.saturating_sub(self.seen_ns).saturating_mul(DUTY_PERCENT) / 100;
        self.credit_ns = self.credit_ns.saturating_add(earned).min(most_ns);
        self.seen_ns = now_ns;
        self.credit_ns >= self.margin_ns()
    }

    /// `ns` were spun.
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
            (0..200).for_each(|nth| spin.overslept(lates[nth % 2]));
            spin.margin_ns()
        };
        // Awake processors: a few microseconds. Halted ones: as long as it takes. Stalls: no longer than sensible.
        assert!((LEAST_MARGIN_NS..12_000).contains(&settle(&mut spin, [3_000, 4_000])));
        assert!((40_000..=MOST_MARGIN_NS).contains(&settle(&mut spin, [30_000, 40_000])));
        assert_eq!(settle(&mut spin, [5_000_000, 5_000_000]), MOST_MARGIN_NS);
        assert!((LEAST_MARGIN_NS..12_000).contains(&settle(&mut spin, [3_000, 4_000])));
    }
}
