//! A confidence sequence of a mean: an interval after every value. All intervals together contain the mean with a probability of at least
//! 95 %, so an experiment may be judged after every trial and may end after any of them. No I/O.
//!
//! This is the confidence sequence of the t-test: the normal mixture of a scale-invariant likelihood ratio (Lai, Annals of Statistics 1976;
//! Lindon, Ham, Tingley and Bojinov 2022; Wang and Ramdas, Anytime-valid t-tests and confidence sequences for Gaussian means with unknown
//! variance, 2025). With n values, their mean and standard deviation s, and t = (mean - m) sqrt(n) / s,
//!
//! ```text
//! e(m) = sqrt(r) ((1 + t²/(n-1)) / (1 + r t²/(n-1)))^(n/2),   r = φ/(φ + n)
//! ```
//!
//! is a nonnegative supermartingale with mean 1 if m is the true mean, for every variance. By Ville's inequality, the probability that it
//! ever exceeds 20 is at most 5 %. The interval is the set of all m with e(m) < 20.
//!
//! **Assumption:** values are independent and normally distributed with the same mean and variance, as for the t interval of the summaries.
//! Means over a phase come close to this. For many values, the sequence is the asymptotic confidence sequence of Waudby-Smith, Arbour,
//! Sinha, Kennedy and Ramdas (Annals of Statistics 2024), which only needs a finite variance.
//!
//! **Why not a sequence for bounded means** (Waudby-Smith and Ramdas, JRSS B 2024): it assumes no distribution, but it needs bounds of the
//! metric, and its half width after n values is at least ln(40)/n of the distance between the bounds. If a link's rate is the bound of
//! throughput, this is 9 % of the rate after 40 trials, for any variance. Delays have no useful bound.

use crate::summary::statistics::CONFIDENCE;

/// φ: relative to what is possible, the interval is narrowest after about eight values per unit of φ. With 1, it is finite from five values
/// on.
const PRIOR_VALUES: f64 = 1.0;

/// The values so far: their number, mean and sum of squared deviations (Welford's algorithm).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ConfidenceSequence {
    n: u32,
    mean: f64,
    squares: f64,
}

impl ConfidenceSequence {
    /// Adds a value.
    pub fn push(&mut self, value: f64) {
        self.n += 1;
        let from_mean = value - self.mean;
        self.mean += from_mean / f64::from(self.n);
        self.squares += from_mean * (value - self.mean);
    }

    /// Returns the number of values.
    pub fn n(&self) -> u32 {
        self.n
    }

    /// Returns the mean of the values; `None` without values.
    pub fn mean(&self) -> Option<f64> {
        (self.n > 0).then_some(self.mean)
    }

    /// Returns the interval after these values; `None` while it is infinite, which is with fewer than five values.
    pub fn interval(&self) -> Option<(f64, f64)> {
        let half = (squared_t(self.n)? * self.squares.max(0.0) / f64::from(self.n)).sqrt();
        half.is_finite().then_some((self.mean - half, self.mean + half))
    }
}

/// Returns t²/(n-1) at the ends of the interval after n values; `None` while it is infinite.
fn squared_t(n: u32) -> Option<f64> {
    if n < 2 {
        return None;
    }
    let values = f64::from(n);
    let r = PRIOR_VALUES / (PRIOR_VALUES + values);
    // The quotient in e(m) at which e(m) is 1/α.
    // The C library's functions depend on the CPU in the last bit, and decisions must not.
    let log = libm::log(((1.0 - CONFIDENCE) * r.sqrt()).recip());
    let quotient = libm::exp(log * 2.0 / values);
    let rest = 1.0 - quotient * r;
    (rest > 0.0).then(|| (quotient - 1.0) / rest)
}

#[cfg(test)]
pub(super) mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};
    use statrs::distribution::{ContinuousCDF as _, StudentsT};

    use super::*;

    fn sequence(values: &[f64]) -> ConfidenceSequence {
        let mut sequence = ConfidenceSequence::default();
        values.iter().for_each(|value| sequence.push(*value));
        sequence
    }

    /// Returns the likelihood ratio by its definition: from sums of squares about m, without t.
    fn e_value(values: &[f64], m: f64) -> f64 {
        let n = values.len() as f64;
        let null: f64 = values.iter().map(|value| (value - m).powi(2)).sum();
        let sum: f64 = values.iter().map(|value| value - m).sum();
        let mixed = null - sum * sum / (n + PRIOR_VALUES);
        (PRIOR_VALUES / (n + PRIOR_VALUES)).sqrt() * (null / mixed).powf(n / 2.0)
    }

    #[test]
    fn half_width_matches_values_computed_by_hand() {
        // In standard deviations: sqrt(u (n-1)/n) with u = (c-1)/(1-c/(n+1)) and c = (20 sqrt(n+1))^(2/n).
        let by_hand = [(5, 3.7804), (10, 1.2237), (20, 0.7658), (40, 0.5257), (100, 0.3347)];
        for (n, expected) in by_hand {
            let half = (squared_t(n).unwrap() * (f64::from(n) - 1.0) / f64::from(n)).sqrt();
            assert!((half - expected).abs() < 2e-4, "{n}: {half}");
        }
        assert!((0..5).all(|n| squared_t(n).is_none()));
    }

    #[test]
    fn the_ends_have_an_e_value_of_20() {
        let values = [12.0, 9.5, 11.0, 10.25, 13.0, 8.75, 10.0];
        let sequence = sequence(&values);
        let (low, high) = sequence.interval().unwrap();
        for end in [low, high] {
            assert!((e_value(&values, end) - 20.0).abs() < 1e-6, "{end}");
        }
        assert!(e_value(&values, sequence.mean().unwrap()) < 1.0);
        // Ten values with t = 3: sqrt(1/11) (2 / (12/11))^5.
        let spread = (1..=10).map(|nth| if nth % 2 == 0 { 1.0 } else { -1.0 });
        let values: Vec<f64> = spread.map(|value: f64| 1.0 + value).collect();
        assert!((e_value(&values, 0.0) - 6.2449).abs() < 1e-3, "{}", e_value(&values, 0.0));
    }

    #[test]
    fn mean_and_interval_do_not_depend_on_the_unit() {
        let values = [3.0, 5.0, 4.0, 6.0, 2.0, 4.5];
        let (low, high) = sequence(&values).interval().unwrap();
        let (scaled_low, scaled_high) =
            sequence(&values.map(|value| 1e6 + 8.0 * value)).interval().unwrap();
        assert!((scaled_low - (1e6 + 8.0 * low)).abs() < 1e-6);
        assert!((scaled_high - (1e6 + 8.0 * high)).abs() < 1e-6);
        let equal = sequence(&[7.0; 5]);
        assert_eq!((equal.n(), equal.mean(), equal.interval()), (5, Some(7.0), Some((7.0, 7.0))));
        assert_eq!((sequence(&[]).mean(), sequence(&[1.0; 4]).interval()), (None, None));
    }

    /// A source of normally distributed numbers (Box and Muller).
    pub(in crate::stopping) struct Normal(ChaCha8Rng);

    impl Normal {
        pub(in crate::stopping) fn seeded(seed: u64) -> Self {
            Self(ChaCha8Rng::seed_from_u64(seed))
        }

        fn uniform(&mut self) -> f64 {
            ((self.0.next_u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
        }

        pub(in crate::stopping) fn normal(&mut self) -> f64 {
            let radius = (-2.0 * self.uniform().ln()).sqrt();
            radius * (std::f64::consts::TAU * self.uniform()).cos()
        }

        /// Returns the difference of two exponentially distributed numbers, which has heavy tails.
        fn laplace(&mut self) -> f64 {
            self.uniform().ln() - self.uniform().ln()
        }
    }

    /// Returns how many of 10 000 sequences of 40 values with mean 0 have an interval above 0 after some value, and how many below 0. Also
    /// returns how many have a t interval (which is meant for a fixed number of values) that excludes 0 after some value.
    fn exclude_zero(draw: impl Fn(&mut Normal) -> f64) -> ([u32; 2], u32) {
        let quantiles: Vec<f64> = (1..40)
            .map(|n| StudentsT::new(0.0, 1.0, f64::from(n)).unwrap().inverse_cdf(0.975))
            .collect();
        let mut random = Normal::seeded(20);
        let (mut sides, mut fixed) = ([0, 0], 0);
        for _ in 0..10_000 {
            let mut sequence = ConfidenceSequence::default();
            let (mut above, mut below, mut by_t) = (false, false, false);
            for _ in 0..40 {
                sequence.push(draw(&mut random));
                let (low, high) = sequence.interval().unwrap_or((f64::MIN, f64::MAX));
                above |= low > 0.0;
                below |= high < 0.0;
                let n = f64::from(sequence.n);
                if sequence.n >= 2 {
                    let error = (sequence.squares / (n - 1.0) / n).sqrt();
                    by_t |= sequence.mean.abs() > quantiles[sequence.n as usize - 2] * error;
                }
            }
            sides[0] += u32::from(above);
            sides[1] += u32::from(below);
            fixed += u32::from(by_t);
        }
        (sides, fixed)
    }

    #[test]
    fn few_of_10000_a_a_experiments_find_a_difference_with_a_look_after_every_trial() {
        let ([above, below], fixed) = exclude_zero(Normal::normal);
        assert!(above + below <= 500, "{above} above and {below} below");
        assert!(above > 0 && below > 0, "the test sees no interval at all");
        // With the same looks, an interval for a fixed number of trials finds a difference in every fourth experiment.
        assert!(fixed > 2000, "{fixed}");
        let ([above, below], _) = exclude_zero(Normal::laplace);
        assert!(above + below <= 500, "{above} above and {below} below");
    }

    /// A fixed number of pairs finds a difference of half a standard deviation with a probability of 90 % if it is (1.96 + 1.28)² / 0.5² =
    /// 42. Congestion controls differ by more: here, by at least one standard deviation.
    #[test]
    fn clear_differences_need_less_than_40_percent_of_a_fixed_number_of_trials() {
        const FIXED: u32 = 42;
        for difference in [1.0, 1.25, 1.5, 2.0, 3.0] {
            let mut random = Normal::seeded(1);
            let (mut pairs, mut found) = (0, 0);
            for _ in 0..1000 {
                let mut sequence = ConfidenceSequence::default();
                let is_found =
                    |it: &ConfidenceSequence| it.interval().is_some_and(|(low, _)| low > 0.0);
                while sequence.n() < FIXED && !is_found(&sequence) {
                    sequence.push(difference + random.normal());
                }
                pairs += sequence.n();
                found += u32::from(is_found(&sequence));
            }
            let mean = f64::from(pairs) / 1000.0;
            assert!(mean <= 0.4 * f64::from(FIXED), "{difference}: {mean} pairs");
            assert!(mean > 5.0, "{difference}: {mean} pairs");
            assert!(found >= 900, "{difference}: {found} found");
        }
    }
}
