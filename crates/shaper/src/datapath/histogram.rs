//! A histogram of durations with a fixed size. One thread writes it, any thread may read it.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Buckets per doubling, hence the precision of a percentile: 1/32.
const STEPS: u64 = 32;
const STEP_BITS: u32 = STEPS.trailing_zeros();
/// Longer durations fall into the last bucket: 2^34 ns are 17 s.
const LONGEST_BITS: u32 = 34;
const BUCKETS: usize = ((LONGEST_BITS - STEP_BITS + 1) as u64 * STEPS) as usize;

/// Counts of durations in nanoseconds: exact below [`STEPS`], then in linear steps per doubling.
#[derive(Debug)]
pub(crate) struct Histogram {
    buckets: Box<[AtomicU64]>,
    max_ns: AtomicU64,
}

/// Percentiles of a [`Histogram`] in nanoseconds: the upper edge of the bucket, at most the maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Summary {
    pub(crate) count: u64,
    pub(crate) p50_ns: u64,
    pub(crate) p90_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            max_ns: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    /// Counts one duration. Only one thread may call it.
    pub(crate) fn record(&self, ns: u64) {
        let bucket = &self.buckets[bucket_of(ns)];
        bucket.store(bucket.load(Relaxed) + 1, Relaxed);
        if ns > self.max_ns.load(Relaxed) {
            self.max_ns.store(ns, Relaxed);
        }
    }

    /// Percentiles of all durations so far.
    pub(crate) fn summary(&self) -> Summary {
        let counts: Vec<u64> = self.buckets.iter().map(|count| count.load(Relaxed)).collect();
        let max_ns = self.max_ns.load(Relaxed);
        let count: u64 = counts.iter().sum();
        let quantile = |permille: u64| {
            // The smallest value that at least this share does not exceed.
            let rank = (u128::from(count) * u128::from(permille)).div_ceil(1000) as u64;
            let mut seen = 0;
            let at = counts.iter().position(|bucket| {
                seen += bucket;
                seen >= rank
            });
            at.map_or(0, upper_ns).min(max_ns)
        };
        if count == 0 {
            return Summary::default();
        }
        let (p50_ns, p90_ns, p99_ns) = (quantile(500), quantile(900), quantile(990));
        Summary { count, p50_ns, p90_ns, p99_ns, max_ns }
    }
}

fn bucket_of(ns: u64) -> usize {
    if ns < STEPS {
        return ns as usize;
    }
    let ns = ns.min((1 << LONGEST_BITS) - 1);
    let shift = ns.ilog2() - STEP_BITS;
    // The leading bit and the STEP_BITS after it.
    ((u64::from(shift) * STEPS) + (ns >> shift)) as usize
}

/// Returns the longest duration of a bucket.
fn upper_ns(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < STEPS {
        return bucket;
    }
    let shift = bucket / STEPS - 1;
    ((bucket - shift * STEPS + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn empty_histogram_is_zero() {
        assert_eq!(Histogram::default().summary(), Summary::default());
    }

    #[test]
    fn small_values_are_exact_and_the_longest_is_never_exceeded() {
        let histogram = Histogram::default();
        for ns in 1..=10 {
            histogram.record(ns);
        }
        histogram.record(1_000_003);
        let expected =
            Summary { count: 11, p50_ns: 6, p90_ns: 10, p99_ns: 1_000_003, max_ns: 1_000_003 };
        assert_eq!(histogram.summary(), expected);
    }

    proptest! {
        #[test]
        fn a_bucket_holds_its_values_to_one_part_in_so_many(ns in 0_u64..1 << LONGEST_BITS) {
            let upper = upper_ns(bucket_of(ns));
            prop_assert!(upper >= ns);
            prop_assert!(upper - ns <= ns / STEPS);
            prop_assert_eq!(bucket_of(upper), bucket_of(ns));
            prop_assert!(bucket_of(upper) < BUCKETS);
            prop_assert_eq!(bucket_of(upper + 1), (bucket_of(ns) + 1).min(BUCKETS - 1));
        }

        #[test]
        fn any_value_finds_a_bucket(ns: u64) {
            Histogram::default().record(ns);
        }

        #[test]
        fn quantiles_are_those_of_the_sorted_values(mut values in proptest::collection::vec(0_u64..1 << 30, 1..300)) {
            let histogram = Histogram::default();
            values.iter().for_each(|&ns| histogram.record(ns));
            values.sort_unstable();
            let summary = histogram.summary();
            prop_assert_eq!(summary.max_ns, *values.last().unwrap());
            for (reported, permille) in [(summary.p50_ns, 500), (summary.p90_ns, 900), (summary.p99_ns, 990)] {
                let exact = values[(values.len() * permille).div_ceil(1000) - 1];
                prop_assert!(reported >= exact && reported - exact <= exact / STEPS, "{} {}", reported, exact);
            }
        }
    }
}
