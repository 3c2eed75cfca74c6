//! Two samples of one metric: means, difference, ratio and effect size, with intervals.

use std::collections::BTreeMap;

use crate::summary::statistics::{bootstrap, mean, mean_with_interval, t_quantile, variance};

/// Two samples and how they differ.
#[derive(Debug, Clone, PartialEq)]
pub struct Numbers {
    /// Number of trials on each side; equal if the trials are paired.
    pub n: (u32, u32),
    /// Whether the trials are paired.
    pub paired: bool,
    /// Number of trials in a paired comparison without a counterpart with the same seed.
    pub left_out: u32,
    /// Mean of each side.
    pub means: (f64, f64),
    /// 95 % confidence interval of each mean by Student's t; `None` with one trial.
    pub intervals: [Option<(f64, f64)>; 2],
    /// Second mean minus the first.
    pub difference: f64,
    /// 95 % confidence interval of the difference: Student's t for pairs, Welch's t otherwise.
    pub t: Option<(f64, f64)>,
    /// 95 % percentile bootstrap interval of the difference.
    pub bootstrap: Option<(f64, f64)>,
    /// Second mean divided by the first; `None` if the first is zero.
    pub ratio: Option<f64>,
    /// 95 % percentile bootstrap interval of the ratio.
    pub ratio_bootstrap: Option<(f64, f64)>,
    /// Hedges' g: the difference divided by the pooled standard deviation, corrected for small samples. `None` if no value varies.
    pub hedges_g: Option<f64>,
}

impl Numbers {
    /// Compares independent samples.
    fn unpaired(a: &[f64], b: &[f64]) -> Option<Self> {
        let difference = mean(b)? - mean(a)?;
        let welch = || {
            let (na, nb) = (a.len() as f64, b.len() as f64);
            let (va, vb) = (variance(a)? / na, variance(b)? / nb);
            let freedom = (va + vb).powi(2) / (va.powi(2) / (na - 1.0) + vb.powi(2) / (nb - 1.0));
            let reach = if va + vb > 0.0 { t_quantile(freedom)? * (va + vb).sqrt() } else { 0.0 };
            Some((difference - reach, difference + reach))
        };
        let drawn = |of: fn(f64, f64) -> f64| {
            bootstrap(&[a, b], |both| Some(of(mean(&both[0])?, mean(&both[1])?)))
        };
        Some(Self::with(a, b, false, welch(), [drawn(|a, b| b - a), drawn(|a, b| b / a)]))
    }

    /// Compares pairs of trials. Both slices have the same order.
    fn paired(a: &[f64], b: &[f64]) -> Option<Self> {
        let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| b - a).collect();
        let difference = mean(&differences)?;
        let n = differences.len() as f64;
        let t = || {
            let reach = t_quantile(n - 1.0)? * (variance(&differences)? / n).sqrt();
            Some((difference - reach, difference + reach))
        };
        let pairs: Vec<f64> = (0..a.len()).map(|nth| nth as f64).collect();
        let drawn = |of: fn(f64, f64) -> f64| {
            bootstrap(&[&pairs], |drawn| {
                let side = |values: &[f64]| {
                    mean(&drawn[0].iter().map(|nth| values[*nth as usize]).collect::<Vec<_>>())
                };
                Some(of(side(a)?, side(b)?))
            })
        };
        Some(Self::with(a, b, true, t(), [drawn(|a, b| b - a), drawn(|a, b| b / a)]))
    }

    fn with(
        a: &[f64],
        b: &[f64],
        paired: bool,
        t: Option<(f64, f64)>,
        [bootstrap, ratio_bootstrap]: [Option<(f64, f64)>; 2],
    ) -> Self {
        let means = (mean(a).unwrap_or(f64::NAN), mean(b).unwrap_or(f64::NAN));
        let interval = |values: &[f64]| mean_with_interval(values)?.interval;
        let ratio = (means.0 != 0.0).then(|| means.1 / means.0);
        Self {
            n: (a.len() as u32, b.len() as u32),
            paired,
            left_out: 0,
            means,
            intervals: [interval(a), interval(b)],
            difference: means.1 - means.0,
            t,
            bootstrap,
            ratio,
            ratio_bootstrap: ratio.and(ratio_bootstrap),
            hedges_g: hedges_g(a, b),
        }
    }

    /// Returns whether the t interval excludes zero; `None` without an interval.
    pub fn differs(&self) -> Option<bool> {
        self.t.map(|(low, high)| low > 0.0 || high < 0.0)
    }
}

/// Returns Hedges' g with the approximate correction 1 - 3 / (4 (na + nb) - 9).
fn hedges_g(a: &[f64], b: &[f64]) -> Option<f64> {
    let (na, nb) = (a.len() as f64, b.len() as f64);
    let pooled = ((na - 1.0) * variance(a)? + (nb - 1.0) * variance(b)?) / (na + nb - 2.0);
    let correction = 1.0 - 3.0 / (4.0 * (na + nb) - 9.0);
    (pooled > 0.0)
        .then(|| correction * (mean(b).unwrap_or(0.0) - mean(a).unwrap_or(0.0)) / pooled.sqrt())
}

/// Compares one metric. Pairs trials if at least two have a counterpart with the same seed; other trials are then left out and counted.
pub(super) fn numbers(
    a: &BTreeMap<u16, (u64, f64)>,
    b: &BTreeMap<u16, (u64, f64)>,
) -> Option<Numbers> {
    let pairs: Vec<(f64, f64)> = a
        .iter()
        .filter_map(|(trial, (seed, of_a))| {
            let (other, of_b) = b.get(trial)?;
            (seed == other).then_some((*of_a, *of_b))
        })
        .collect();
    if pairs.len() >= 2 || (pairs.len() == 1 && a.len() == 1 && b.len() == 1) {
        let left_out = (a.len() + b.len() - 2 * pairs.len()) as u32;
        let (a, b): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
        return Numbers::paired(&a, &b).map(|numbers| Numbers { left_out, ..numbers });
    }
    let all = |side: &BTreeMap<u16, (u64, f64)>| {
        side.values().map(|(_, value)| *value).collect::<Vec<_>>()
    };
    Numbers::unpaired(&all(a), &all(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_close(found: Option<f64>, expected: f64) {
        let found = found.unwrap();
        assert!(
            (found - expected).abs() < 1e-3 * expected.abs().max(1.0),
            "{found} is not {expected}"
        );
    }

    #[test]
    fn welch_interval_and_hedges_g_match_the_textbook() {
        let (a, b) = ([1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 4.0, 6.0]);
        let n = Numbers::unpaired(&a, &b).unwrap();
        assert!(!n.paired && n.n == (4, 4));
        assert_close(Some(n.difference), 1.5);
        // Four values each, with variances 5/3 and 8/3: (va + vb)^2 / ((va^2 + vb^2) / 3) = 5.70 degrees of freedom.
        let (va, vb) = (5.0 / 12.0, 8.0 / 12.0);
        let freedom: f64 = (va + vb) * (va + vb) / (va * va / 3.0 + vb * vb / 3.0);
        assert_close(Some(freedom), 5.697);
        let reach = t_quantile(freedom).unwrap() * (va + vb).sqrt();
        assert_close(n.t.map(|t| t.0), 1.5 - reach);
        // d = 1.5 / sqrt(13/6) = 1.0190; J = 1 - 3/23.
        assert_close(n.hedges_g, 1.0190 * (1.0 - 3.0 / 23.0));
        assert_close(n.ratio, 1.6);
        assert_eq!(n.differs(), Some(false));
    }

    #[test]
    fn pairing_detects_a_difference_within_the_spread() {
        let a = [10.0, 20.0, 30.0, 40.0, 50.0];
        let b = [11.0, 21.1, 31.0, 40.9, 51.0];
        let side = |values: &[f64], seeds: u64| -> BTreeMap<u16, (u64, f64)> {
            values
                .iter()
                .zip(1..)
                .map(|(v, trial)| (trial, (u64::from(trial) + seeds, *v)))
                .collect()
        };
        let paired = numbers(&side(&a, 0), &side(&b, 0)).unwrap();
        assert!(paired.paired && paired.differs() == Some(true), "{paired:?}");
        let apart = numbers(&side(&a, 0), &side(&b, 7)).unwrap();
        assert!(!apart.paired && apart.differs() == Some(false), "{apart:?}");
        assert!((paired.difference - apart.difference).abs() < 1e-9);
        let most = side(&b, 0).into_iter().filter(|(trial, _)| *trial > 2).collect();
        let paired_three = numbers(&side(&a, 0), &most).unwrap();
        assert_eq!((paired_three.n, paired_three.left_out), ((3, 3), 2));
        // The bootstrap interval contains the difference.
        let (low, high) = paired.bootstrap.unwrap();
        assert!(low > 0.9 && high < 1.1 && low < paired.difference && paired.difference < high);
    }

    #[test]
    fn one_trial_has_a_difference_but_no_interval() {
        let one = |value: f64| BTreeMap::from([(1_u16, (1_u64, value))]);
        let n = numbers(&one(5.0), &one(0.0)).unwrap();
        assert_eq!((n.difference, n.t, n.bootstrap, n.hedges_g), (-5.0, None, None, None));
        let n = numbers(&one(0.0), &one(5.0)).unwrap();
        assert_eq!((n.ratio, n.ratio_bootstrap), (None, None));
    }
}
