//! A token bucket on virtual time, for policers and for the shaper tbf. It counts tokens in bit·ns/s, like the work of a line, so nothing
//! is rounded.

/// Work of a line, or tokens, for a byte. Both are counted in bit·ns/s: a rate in bit/s is also the number of them per nanosecond.
pub(crate) const WORK_PER_BYTE: u64 = 8 * 1_000_000_000;

/// Tokens that arrive at a rate, up to the size of the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokenBucket {
    rate_bps: u64,
    size: u64,
    tokens: u64,
    /// The time to which the number of tokens refers.
    at_ns: u64,
}

impl TokenBucket {
    /// Creates a full bucket of `burst_bytes`, of which at most 2 GiB count.
    pub(crate) fn new(rate_bps: u64, burst_bytes: u64) -> Self {
        let size = burst_bytes.min(1 << 31) * WORK_PER_BYTE;
        Self { rate_bps, size, tokens: size, at_ns: 0 }
    }

    /// The rate in bit/s.
    pub(crate) fn rate_bps(&self) -> u64 {
        self.rate_bps
    }

    /// Adds the tokens that have arrived until `now_ns`.
    fn fill(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.at_ns);
        let more = u128::from(self.rate_bps) * u128::from(passed_ns);
        let tokens = u128::from(self.tokens) + more;
        self.tokens = tokens.min(u128::from(self.size)) as u64;
        self.at_ns = self.at_ns.max(now_ns);
    }

    /// Returns the tokens that a packet needs: at most the whole bucket.
    fn price(&self, bytes: u32) -> u64 {
        (u64::from(bytes) * WORK_PER_BYTE).min(self.size)
    }

    /// Takes the tokens of a packet at `now_ns`. Returns `false` and takes none if there are too few. Not for packets larger than the
    /// bucket.
    pub(crate) fn conforms(&mut self, now_ns: u64, bytes: u32) -> bool {
        self.fill(now_ns);
        let needed = u64::from(bytes) * WORK_PER_BYTE;
        let conforms = needed <= self.tokens;
        if conforms {
            self.tokens -= needed;
        }
        conforms
    }

    /// Returns when there are enough tokens for a packet, not before `now_ns`; `u64::MAX`: never.
    pub(crate) fn ready_ns(&self, now_ns: u64, bytes: u32) -> u64 {
        let missing = self.price(bytes).saturating_sub(self.tokens);
        let ready_ns = match (missing, self.rate_bps) {
            (0, _) => self.at_ns,
            (_, 0) => u64::MAX,
            (missing, rate_bps) => self.at_ns.saturating_add(missing.div_ceil(rate_bps)),
        };
        ready_ns.max(now_ns)
    }

    /// Takes the tokens of a packet at a time that [`Self::ready_ns`] allows.
    pub(crate) fn take(&mut self, now_ns: u64, bytes: u32) {
        self.fill(now_ns);
        self.tokens = self.tokens.saturating_sub(self.price(bytes));
    }

    /// Sets the rate from `at_ns` on.
    pub(crate) fn set_rate(&mut self, at_ns: u64, rate_bps: u64) {
        self.fill(at_ns);
        self.rate_bps = rate_bps;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn burst_conforms_and_then_the_rate() {
        // 8 Mbit/s: one byte per us.
        let mut bucket = TokenBucket::new(8_000_000, 3_000);
        let conforming: Vec<bool> = (0..4).map(|_| bucket.conforms(5, 1_000)).collect();
        assert_eq!(conforming, [true, true, true, false]);
        assert!(!bucket.conforms(MS + 4, 1_000));
        assert!(bucket.conforms(MS + 5, 1_000));
        // A small packet can take the tokens that a large one has left.
        assert!(!bucket.conforms(MS + 100_005, 101));
        assert!(bucket.conforms(MS + 100_005, 100));
        // Idle time fills the bucket, but not beyond its size.
        assert!((0..3).all(|_| bucket.conforms(1_000 * MS, 1_000)));
        assert!(!bucket.conforms(1_000 * MS, 1));
    }

    #[test]
    fn waits_until_the_tokens_have_come() {
        let mut bucket = TokenBucket::new(8_000_000, 1_500);
        assert_eq!(bucket.ready_ns(7, 1_500), 7);
        bucket.take(7, 1_500);
        assert_eq!(bucket.ready_ns(7, 1_000), 7 + MS);
        bucket.take(7 + MS, 1_000);
        bucket.set_rate(7 + MS, 4_000_000);
        assert_eq!(bucket.ready_ns(7 + MS, 1_000), 7 + 3 * MS);
        bucket.set_rate(7 + 2 * MS, 0);
        assert_eq!(bucket.ready_ns(7 + 2 * MS, 1_000), u64::MAX);
        assert_eq!(bucket.rate_bps(), 0);
        // A packet larger than the bucket waits until the bucket is full.
        let mut small = TokenBucket::new(8_000_000, 1_000);
        small.take(0, 9_000);
        assert_eq!(small.ready_ns(0, 9_000), MS);
    }

    proptest! {
        /// In any interval, what conforms is at most the bucket and the tokens that arrive in it.
        #[test]
        fn never_more_than_burst_and_rate(
            rate_bps in 1_000_u64..10_000_000_000,
            burst_bytes in 1_514_u64..1_000_000,
            arrivals in proptest::collection::vec((0_u64..5_000_000, 60_u32..1515), 1..200),
        ) {
            let mut bucket = TokenBucket::new(rate_bps, burst_bytes);
            let (mut now_ns, mut passed) = (0, Vec::<(u64, u64)>::new());
            for (gap_ns, bytes) in arrivals {
                now_ns += gap_ns;
                if bucket.conforms(now_ns, bytes) {
                    passed.push((now_ns, u64::from(bytes)));
                }
            }
            for (first, (from_ns, _)) in passed.iter().enumerate() {
                let mut bytes = 0;
                for (at_ns, more) in &passed[first..] {
                    bytes += more;
                    let length_ns = u128::from(at_ns - from_ns);
                    let tokens = length_ns * u128::from(rate_bps)
                        + u128::from(burst_bytes) * u128::from(WORK_PER_BYTE);
                    prop_assert!(u128::from(bytes) * u128::from(WORK_PER_BYTE) <= tokens);
                }
            }
        }
    }
}
