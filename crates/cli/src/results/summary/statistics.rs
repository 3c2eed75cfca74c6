//! The arithmetic over flows and over trials. Pure.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};
use statrs::distribution::{ContinuousCDF as _, StudentsT};

/// Share of intervals that hold the true mean, if trials are independent and their spread is not too skewed.
pub const CONFIDENCE: f64 = 0.95;
/// Name of the method that [`mean_with_interval`] uses.
pub const METHOD: &str = "t95";

/// Name of the method that [`bootstrap`] uses.
pub const BOOTSTRAP_METHOD: &str = "bootstrap95";
/// How often [`bootstrap`] draws anew: the ends of a 95 % interval then move by a hundredth of its width or so.
const RESAMPLES: usize = 2000;

/// A mean over trials.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    /// The arithmetic mean.
    pub value: f64,
    /// Lower and upper end of the confidence interval; `None` with fewer than two trials.
    pub interval: Option<(f64, f64)>,
}

/// Mean and 95 % confidence interval by Student's t with n - 1 degrees of freedom. `None` of nothing.
pub fn mean_with_interval(values: &[f64]) -> Option<Mean> {
    let value = mean(values)?;
    Some(Mean { value, interval: half_width(values).map(|half| (value - half, value + half)) })
}

fn half_width(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    Some(t_quantile(n - 1.0)? * (variance(values)? / n).sqrt())
}

/// Sample variance; `None` of fewer than two.
pub fn variance(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    let mean = mean(values)?;
    let squares = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
    (values.len() >= 2).then(|| squares / (n - 1.0))
}

/// Arithmetic mean; `None` of nothing.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The middle value, or the mean of the two middle ones; `None` of nothing.
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

/// How far Student's t reaches with so many degrees of freedom (they need not be whole).
pub(in crate::results) fn t_quantile(freedom: f64) -> Option<f64> {
    Some(StudentsT::new(0.0, 1.0, freedom).ok()?.inverse_cdf((1.0 + CONFIDENCE) / 2.0))
}

/// The percentile bootstrap's 95 % interval of a statistic of several samples that were drawn independently: each is
/// drawn anew from itself, 2000 times, always in the same way. `None` where a sample has fewer than two values, or the
/// statistic is not defined for half of the draws. Of few values it is too narrow (of 5: about 80 % instead of 95 %).
pub fn bootstrap(
    samples: &[&[f64]],
    statistic: impl Fn(&[Vec<f64>]) -> Option<f64>,
) -> Option<(f64, f64)> {
    if samples.iter().any(|sample| sample.len() < 2) {
        return None;
    }
    // Of equal values every draw is the same.
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
                let share = u64::from(random.next_u32()) * sample.len() as u64;
                *value = sample[(share >> 32) as usize];
            }
        }
        found.extend(statistic(&drawn).filter(|value| value.is_finite()));
    }
    if found.len() * 2 < RESAMPLES {
        return None;
    }
    let most = (found.len() - 1) as f64;
    let mut at = |share: f64| {
        *found.select_nth_unstable_by((most * share).round() as usize, f64::total_cmp).1
    };
    Some((at((1.0 - CONFIDENCE) / 2.0), at((1.0 + CONFIDENCE) / 2.0)))
}

/// Jain's index of these shares: 1 when all are equal, 1/n when one has everything. `None` of fewer than two and of
/// nothing but zeros.
pub fn jain(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|x| x * x).sum();
    (shares.len() >= 2 && squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// The product of these shares, RFC 5166's measure: largest where a fixed sum is shared equally.
pub fn product(shares: &[f64]) -> Option<f64> {
    (shares.len() >= 2).then(|| shares.iter().product())
}

/// Shannon's entropy of what each has of the sum, over that of equal shares: 1 when all are equal, 0 when one has
/// everything. Not ccperf's column of that name, whose definition is not published.
pub fn entropy(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let parts = shares.iter().map(|x| x / sum).filter(|part| *part > 0.0);
    let bits: f64 = parts.map(|part| -part * part.log2()).sum();
    (shares.len() >= 2 && sum > 0.0).then(|| bits / (shares.len() as f64).log2())
}

/// The least share over the largest. `None` of fewer than two and of nothing but zeros.
pub fn max_min(shares: &[f64]) -> Option<f64> {
    let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
    let most = shares.iter().copied().fold(0.0, f64::max);
    (shares.len() >= 2 && most > 0.0).then(|| least / most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_five_trials_is_that_of_the_tables() {
        // t(0.975, 4) = 2.776445; mean 3, sample standard deviation sqrt(2.5).
        let mean = mean_with_interval(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        let (low, high) = mean.interval.unwrap();
        let half = 2.776_445_105 * (2.5_f64 / 5.0).sqrt();
        assert!((mean.value - 3.0).abs() < 1e-12);
        assert!((low - (3.0 - half)).abs() < 1e-6 && (high - (3.0 + half)).abs() < 1e-6);
    }

    #[test]
    fn one_trial_has_a_mean_and_no_interval() {
        assert_eq!(mean_with_interval(&[7.0]), Some(Mean { value: 7.0, interval: None }));
        assert_eq!(mean_with_interval(&[]), None);
    }

    #[test]
    fn a_bootstrap_covers_the_mean_and_is_the_same_every_time() {
        let values: Vec<f64> = (0..40).map(|n| f64::from(n * 37 % 41)).collect();
        let mean_of = |drawn: &[Vec<f64>]| mean(&drawn[0]);
        let (low, high) = bootstrap(&[&values], mean_of).unwrap();
        let t = mean_with_interval(&values).unwrap();
        let (t_low, t_high) = t.interval.unwrap();
        assert!(low < t.value && t.value < high);
        // Of many values both are about the same.
        assert!((low - t_low).abs() < 0.6 && (high - t_high).abs() < 0.6, "{low} {high} {t:?}");
        assert_eq!(bootstrap(&[&values], mean_of), Some((low, high)));
        assert_eq!(bootstrap(&[&[1.0]], mean_of), None);
        assert_eq!(bootstrap(&[&[2.0, 2.0, 2.0]], mean_of), Some((2.0, 2.0)));
    }

    #[test]
    fn a_median_is_the_middle() {
        assert_eq!(
            [median(&[3.0, 1.0, 9.0]), median(&[4.0, 1.0, 2.0, 9.0]), median(&[])],
            [Some(3.0), Some(3.0), None]
        );
        assert_eq!((variance(&[1.0]), variance(&[1.0, 3.0])), (None, Some(2.0)));
    }

    #[test]
    fn jain_of_the_seeds_two_flows_is_two_thirds() {
        let index = jain(&[26.30, 4.49]).unwrap();
        assert!((index - 0.6659).abs() < 1e-4, "{index}");
        assert_eq!(jain(&[5.0, 5.0, 5.0]), Some(1.0));
        assert_eq!(jain(&[5.0]), None);
        assert_eq!(jain(&[0.0, 0.0]), None);
    }

    #[test]
    fn indices_of_fairness_depend_on_neither_order_nor_scale() {
        let shares = [3.0, 1.0, 4.0, 1.5];
        for index in [jain, entropy, max_min] {
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
        // In bits, of the published two flows.
        assert!((entropy(&[26.30, 4.49]).unwrap() - 0.5993).abs() < 1e-3);
        assert_eq!((entropy(&[1.0, 0.0]), max_min(&[1.0, 0.0])), (Some(0.0), Some(0.0)));
        assert_eq!((product(&[26.0, 4.0]), product(&[26.0])), (Some(104.0), None));
    }
}
