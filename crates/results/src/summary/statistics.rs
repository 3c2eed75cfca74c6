//! Statistics over flows and over trials, with confidence intervals: [`mean_with_interval`] (Student's t) and [`bootstrap`]. The rows of a
//! summary get the same intervals from `OverTrials`, which computes only once what rows share. No I/O.

use std::collections::BTreeMap;

use ccbench_proto::metric::SAMPLED;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};
use statrs::distribution::{ContinuousCDF as _, StudentsT};

/// Confidence level: the share of intervals that contain the true mean, if trials are independent and not too skewed.
pub const CONFIDENCE: f64 = 0.95;
/// Name of the method that [`mean_with_interval`] uses.
pub const METHOD: &str = "t95";

/// Name of the method that [`bootstrap`] uses.
pub const BOOTSTRAP_METHOD: &str = "bootstrap95";
/// Number of resamples of [`bootstrap`]. With 2000, the ends of a 95 % interval vary by about a hundredth of its width.
const RESAMPLES: usize = 2000;

/// A mean over trials.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    /// The arithmetic mean.
    pub value: f64,
    /// Lower and upper ends of the confidence interval; `None` with fewer than two trials.
    pub interval: Option<(f64, f64)>,
}

/// Returns the mean and its 95 % confidence interval by Student's t with n - 1 degrees of freedom; `None` without values.
pub fn mean_with_interval(values: &[f64]) -> Option<Mean> {
    with_quantile(values, |n| t_quantile(n - 1.0))
}

/// Returns the mean, and its interval from the quantile of Student's t for this number of values.
fn with_quantile(values: &[f64], t: impl FnOnce(f64) -> Option<f64>) -> Option<Mean> {
    let (value, n) = (mean(values)?, values.len() as f64);
    let half = t(n).zip(variance(values)).map(|(t, variance)| t * (variance / n).sqrt());
    Some(Mean { value, interval: half.map(|half| (value - half, value + half)) })
}

/// Returns the sample variance; `None` with fewer than two values.
pub fn variance(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    let mean = mean(values)?;
    let squares = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
    (values.len() >= 2).then(|| squares / (n - 1.0))
}

/// Returns the arithmetic mean; `None` without values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Returns the middle value, or the mean of the two middle ones; `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    Some(if sorted.len() % 2 == 1 {
        upper
    } else {
        f64::midpoint(sorted[sorted.len() / 2 - 1], upper)
    })
}

/// Returns the single-sided trimmed mean at the 95th percentile of draft-ietf-ippm-responsiveness: the mean without the largest twentieth
/// of the values, rounded down. `None` without values. Reorders the values.
pub(super) fn trimmed_mean(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    mean(&values[..values.len() - values.len() / 20])
}

/// Returns the statistics [`SAMPLED`]; a single sample has no standard deviation. Quantiles are interpolated linearly. Reorders the
/// samples.
pub(super) fn sample_stats(values: &mut [f64]) -> Vec<(&'static str, f64)> {
    let Some(mean) = mean(values) else { return vec![] };
    let std = variance(values).map(f64::sqrt);
    let [p5, median, p95, p99] = quantiles(values, [0.05, 0.5, 0.95, 0.99]);
    let smallest = values.iter().copied().fold(f64::INFINITY, f64::min);
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let all = [Some(mean), median, p5, p95, p99, std, Some(smallest), Some(largest)];
    SAMPLED.into_iter().zip(all).filter_map(|(stat, value)| Some((stat, value?))).collect()
}

/// Returns quantiles for ascending shares. Reorders the samples.
fn quantiles<const N: usize>(values: &mut [f64], shares: [f64; N]) -> [Option<f64>; N] {
    let most = values.len().saturating_sub(1) as f64;
    let mut from = 0;
    shares.map(|share| {
        let at = most * share;
        let below = at.floor();
        // Values before `from` are not larger than those from `from` on.
        let rest = values.get_mut(from..).filter(|rest| !rest.is_empty())?;
        let (_, lower, above) = rest.select_nth_unstable_by(below as usize - from, f64::total_cmp);
        from = below as usize;
        if at == below {
            return Some(*lower);
        }
        let upper = above.iter().copied().fold(f64::INFINITY, f64::min);
        Some((at - below) * (upper - *lower) + *lower)
    })
}

/// Returns the quantile of Student's t for [`CONFIDENCE`]. The degrees of freedom need not be an integer.
pub(crate) fn t_quantile(freedom: f64) -> Option<f64> {
    Some(StudentsT::new(0.0, 1.0, freedom).ok()?.inverse_cdf((1.0 + CONFIDENCE) / 2.0))
}

/// Returns the 95 % percentile bootstrap interval of a statistic of independent samples. Each sample is resampled with replacement, 2000
/// times, always with the same seed. `None` if a sample has fewer than two values, or if the statistic is undefined for more than half of
/// the resamples. With few values, the interval is too narrow (5 values: about 80 % coverage).
pub fn bootstrap(
    samples: &[&[f64]],
    statistic: impl Fn(&[Vec<f64>]) -> Option<f64>,
) -> Option<(f64, f64)> {
    if samples.iter().any(|sample| sample.len() < 2) {
        return None;
    }
    // All resamples of equal values are equal.
    if samples.iter().all(|sample| sample.iter().all(|value| *value == sample[0])) {
        let all: Vec<Vec<f64>> = samples.iter().map(|sample| sample.to_vec()).collect();
        return statistic(&all).map(|value| (value, value));
    }
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let mut drawn: Vec<Vec<f64>> = samples.iter().map(|sample| sample.to_vec()).collect();
    let mut found = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        for (values, sample) in drawn.iter_mut().zip(samples) {
            for value in values {
                *value = sample[draw(&mut random, sample.len())];
            }
        }
        found.extend(statistic(&drawn).filter(|value| value.is_finite()));
    }
    if found.len() * 2 < RESAMPLES {
        return None;
    }
    Some(percentile_interval(&mut found))
}

/// Up to this many distinct resamples are sorted; with more, selection is faster.
const MAX_SORTED_DRAWS: usize = 256;

/// Values that all intervals over `n` trials share, computed once for the thousands of rows of a summary.
pub(super) struct OverTrials {
    t: Option<f64>,
    /// Distinct resamples of [`bootstrap`] with their frequency. A resample is how often it has each trial. Few trials have few distinct
    /// resamples.
    draws: Vec<(Vec<f64>, usize)>,
}

impl OverTrials {
    /// Draws the resamples for `n` trials.
    pub(super) fn new(n: usize) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(0);
        let mut draws: BTreeMap<Vec<u32>, usize> = BTreeMap::new();
        for _ in 0..if n < 2 { 0 } else { RESAMPLES } {
            let mut times = vec![0; n];
            (0..n).for_each(|_| times[draw(&mut random, n)] += 1);
            *draws.entry(times).or_default() += 1;
        }
        let numbers = |times: Vec<u32>| times.into_iter().map(f64::from).collect();
        let draws = draws.into_iter().map(|(times, of)| (numbers(times), of)).collect();
        Self { t: t_quantile(n as f64 - 1.0), draws }
    }

    /// Like [`mean_with_interval`], for `n` values.
    pub(super) fn mean(&self, values: &[f64]) -> Option<Mean> {
        with_quantile(values, |_| self.t)
    }

    /// Like [`bootstrap`] for the mean of `n` values.
    pub(super) fn bootstrap(&self, values: &[f64]) -> Option<(f64, f64)> {
        let first = values.first()?;
        if self.draws.is_empty() || values.iter().all(|value| value == first) {
            return bootstrap(&[values], |drawn| mean(&drawn[0]));
        }
        let n = values.len() as f64;
        let mean_of = |times: &[f64]| {
            times.iter().zip(values).map(|(times, value)| times * value).sum::<f64>() / n
        };
        let means = self.draws.iter().map(|(times, of)| (mean_of(times), *of));
        if self.draws.len() > MAX_SORTED_DRAWS {
            return Some(percentile_interval(
                &mut means.flat_map(|(mean, of)| std::iter::repeat_n(mean, of)).collect::<Vec<_>>(),
            ));
        }
        let mut means: Vec<(f64, usize)> = means.collect();
        means.sort_by(|a, b| a.0.total_cmp(&b.0));
        let at = |nth: usize| {
            let mut before = 0;
            let found = means.iter().find(|(_, of)| {
                before += of;
                before > nth
            });
            found.map(|(mean, _)| *mean)
        };
        let [low, high] = positions(RESAMPLES);
        at(low).zip(at(high))
    }
}

/// Returns a uniformly distributed index below `n`.
fn draw(random: &mut ChaCha8Rng, n: usize) -> usize {
    ((u64::from(random.next_u32()) * n as u64) >> 32) as usize
}

/// Returns the indices of the ends of the 95 % interval among `count` sorted values.
fn positions(count: usize) -> [usize; 2] {
    let most = (count - 1) as f64;
    [(1.0 - CONFIDENCE) / 2.0, (1.0 + CONFIDENCE) / 2.0]
        .map(|share| (most * share).round() as usize)
}

/// Returns the ends of the 95 % interval of these values. Reorders them.
fn percentile_interval(values: &mut [f64]) -> (f64, f64) {
    let [low, high] =
        positions(values.len()).map(|at| *values.select_nth_unstable_by(at, f64::total_cmp).1);
    (low, high)
}

/// Returns Jain's fairness index: 1 if all shares are equal, 1/n if one flow has everything. `None` for fewer than two shares, or if all
/// are zero.
pub fn jain_index(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|x| x * x).sum();
    (shares.len() >= 2 && squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// Returns the product of the shares (RFC 5166). For a fixed sum, it is largest if the shares are equal.
pub fn product(shares: &[f64]) -> Option<f64> {
    (shares.len() >= 2).then(|| shares.iter().product())
}

/// Returns the normalised Shannon entropy of the shares: 1 if all are equal, 0 if one flow has everything. Not comparable with ccperf's
/// column of that name, whose definition is not published.
pub fn entropy(shares: &[f64]) -> Option<f64> {
    // The C library's `log2` depends on the CPU in the last bit.
    let sum: f64 = shares.iter().sum();
    let parts = shares.iter().map(|x| x / sum).filter(|part| *part > 0.0);
    let bits: f64 = parts.map(|part| -part * libm::log2(part)).sum();
    (shares.len() >= 2 && sum > 0.0).then(|| bits / libm::log2(shares.len() as f64))
}

/// Returns the smallest share divided by the largest, as in epsilon-fairness (RFC 5166). `None` for fewer than two shares, or if all are
/// zero.
pub fn min_max_ratio(shares: &[f64]) -> Option<f64> {
    let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
    let most = shares.iter().copied().fold(0.0, f64::max);
    (shares.len() >= 2 && most > 0.0).then(|| least / most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn interval_of_five_trials_matches_the_t_table() {
        // t(0.975, 4) = 2.776445; mean 3, sample standard deviation sqrt(2.5).
        let mean = mean_with_interval(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        let (low, high) = mean.interval.unwrap();
        let half = 2.776_445_105 * (2.5_f64 / 5.0).sqrt();
        assert!((mean.value - 3.0).abs() < 1e-12);
        assert!((low - (3.0 - half)).abs() < 1e-6 && (high - (3.0 + half)).abs() < 1e-6);
    }

    #[test]
    fn one_trial_has_a_mean_but_no_interval() {
        assert_eq!(mean_with_interval(&[7.0]), Some(Mean { value: 7.0, interval: None }));
        assert_eq!(mean_with_interval(&[]), None);
    }

    #[test]
    fn bootstrap_contains_the_mean_and_is_deterministic() {
        let values: Vec<f64> = (0..40).map(|n| f64::from(n * 37 % 41)).collect();
        let mean_of = |drawn: &[Vec<f64>]| mean(&drawn[0]);
        let (low, high) = bootstrap(&[&values], mean_of).unwrap();
        let t = mean_with_interval(&values).unwrap();
        let (t_low, t_high) = t.interval.unwrap();
        assert!(low < t.value && t.value < high);
        // With many values, both intervals are similar.
        assert!((low - t_low).abs() < 0.6 && (high - t_high).abs() < 0.6, "{low} {high} {t:?}");
        assert_eq!(bootstrap(&[&values], mean_of), Some((low, high)));
        assert_eq!(bootstrap(&[&[1.0]], mean_of), None);
        assert_eq!(bootstrap(&[&[2.0, 2.0, 2.0]], mean_of), Some((2.0, 2.0)));
    }

    #[test]
    fn shared_resamples_give_the_same_intervals() {
        for n in [1, 2, 3, 5, 12, 40] {
            let values: Vec<f64> = (0..n).map(|nth| f64::from(nth * 37 % 41) / 3.0).collect();
            let shared = OverTrials::new(n as usize);
            assert_eq!(shared.mean(&values), mean_with_interval(&values));
            let alone = bootstrap(&[&values], |drawn| mean(&drawn[0]));
            let (shared, alone) = (shared.bootstrap(&values), alone);
            let near = |a: f64, b: f64| (a - b).abs() < 1e-12 * a.abs().max(1.0);
            match (shared, alone) {
                (Some(a), Some(b)) => assert!(near(a.0, b.0) && near(a.1, b.1), "{n}: {a:?} {b:?}"),
                (a, b) => assert_eq!(a, b, "{n}"),
            }
        }
        assert_eq!(OverTrials::new(3).bootstrap(&[2.0, 2.0, 2.0]), Some((2.0, 2.0)));
    }

    proptest! {
        #[test]
        fn statistics_match_the_sorted_samples(
            values in prop::collection::vec(0.0..1e6_f64, 1..200),
        ) {
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let found = sample_stats(&mut values.clone());
            let find = |stat: &str| found.iter().find(|(name, _)| *name == stat).map(|(_, v)| *v);
            let most = (values.len() - 1) as f64;
            for (stat, share) in [("p5", 0.05), ("median", 0.5), ("p95", 0.95), ("p99", 0.99)] {
                let at = most * share;
                let [lower, upper] = [at.floor(), at.ceil()].map(|at| sorted[at as usize]);
                let wanted = lower + (upper - lower) * (at - at.floor());
                prop_assert!((find(stat).unwrap() - wanted).abs() < 1e-6, "{stat}");
            }
            prop_assert!((find("median").unwrap() - median(&values).unwrap()).abs() < 1e-6);
            prop_assert_eq!(find("min"), sorted.first().copied());
            prop_assert_eq!(find("max"), sorted.last().copied());
            prop_assert_eq!(find("std").is_some(), values.len() > 1);
        }

        #[test]
        fn trimmed_mean_is_at_most_the_mean(
            values in prop::collection::vec(0.0..1e6_f64, 1..200), outlier in 1e6..1e9_f64,
        ) {
            let trimmed = |mut values: Vec<f64>| trimmed_mean(&mut values).unwrap();
            let (plain, all) = (trimmed(values.clone()), mean(&values).unwrap());
            prop_assert!(plain <= all * (1.0 + 1e-12), "{plain} {all}");
            // With twenty values, the largest has no effect.
            let mut twenty: Vec<f64> = values.iter().copied().cycle().take(19).collect();
            let nineteen = mean(&twenty).unwrap();
            twenty.push(outlier);
            prop_assert!((trimmed(twenty) - nineteen).abs() <= 1e-9 * nineteen.max(1.0));
        }
    }

    #[test]
    fn trimmed_mean_leaves_out_a_twentieth() {
        let trimmed =
            |count: u32| trimmed_mean(&mut (1..=count).rev().map(f64::from).collect::<Vec<_>>());
        assert_eq!((trimmed(0), trimmed(1), trimmed(19)), (None, Some(1.0), Some(10.0)));
        assert_eq!((trimmed(20), trimmed(40)), (Some(10.0), Some(19.5)));
    }

    #[test]
    fn no_samples_have_no_statistics() {
        assert_eq!(sample_stats(&mut []), vec![]);
        assert_eq!(sample_stats(&mut [3.0]).len(), 7);
    }

    #[test]
    fn median_is_the_middle_value() {
        assert_eq!(
            [median(&[3.0, 1.0, 9.0]), median(&[4.0, 1.0, 2.0, 9.0]), median(&[])],
            [Some(3.0), Some(3.0), None]
        );
        assert_eq!((variance(&[1.0]), variance(&[1.0, 3.0])), (None, Some(2.0)));
    }

    #[test]
    fn jain_of_the_published_flows_is_two_thirds() {
        let index = jain_index(&[26.30, 4.49]).unwrap();
        assert!((index - 0.6659).abs() < 1e-4, "{index}");
        assert_eq!(jain_index(&[5.0, 5.0, 5.0]), Some(1.0));
        assert_eq!(jain_index(&[5.0]), None);
        assert_eq!(jain_index(&[0.0, 0.0]), None);
    }

    #[test]
    fn fairness_is_independent_of_order_and_scale() {
        let shares = [3.0, 1.0, 4.0, 1.5];
        for index in [jain_index, entropy, min_max_ratio] {
            let value = index(&shares).unwrap();
            let scaled = index(&shares.map(|x| x * 1e6)).unwrap();
            let turned = index(&[1.5, 4.0, 1.0, 3.0]).unwrap();
            assert!((value - scaled).abs() < 1e-12 && (value - turned).abs() < 1e-12);
            assert!(
                value < index(&[2.0; 4]).unwrap()
                    && (index(&[2.0; 4]).unwrap() - 1.0).abs() < 1e-12
            );
            assert_eq!((index(&[5.0]), index(&[0.0, 0.0])), (None, None));
        }
        // Entropy in bits of the two published flows.
        assert!((entropy(&[26.30, 4.49]).unwrap() - 0.5993).abs() < 1e-3);
        assert_eq!((entropy(&[1.0, 0.0]), min_max_ratio(&[1.0, 0.0])), (Some(0.0), Some(0.0)));
        assert_eq!((product(&[26.0, 4.0]), product(&[26.0])), (Some(104.0), None));
    }
}
