//! Responsiveness (RFC 5166, section 2.4): how long a quantity takes to settle after a step. No I/O.
//!
//! A **step** is a time at which the plan changes a link, or starts or stops a flow. The values up to the next step are averaged over a
//! sliding second. The second half of these averages gives the final level (mean) and the final range (minimum and maximum). The quantity
//! has settled at the start of the first second after which no second leaves that range by more than a tenth of the level. So a persistent
//! sawtooth counts as settled; `cov` and `std` of a phase after the step give its size.
//!
//! The quantity does not settle, and is counted, in three cases: the last two quarters differ by more than a tenth of the level, the second
//! half contains a second without values, or the time to the next step is too short.

use std::collections::BTreeMap;

use ccbench_proto::metric::{Scope, UNDEFINED};

/// Length of a time bin: the usual iperf3 interval.
pub(crate) const BIN_S: f64 = 0.1;
/// Scope, subject, metric, and number of bins until the quantity settled.
pub(super) type Settled = (Scope, String, &'static str, Option<usize>);
/// Scope, subject, metric, unit, statistic, value, number of steps.
pub(super) type Number = (Scope, String, &'static str, &'static str, &'static str, f64, u32);

/// Returns the mean settling time over the steps of a phase, and the number of steps after which a quantity did not settle.
pub(super) fn over_steps(steps: impl Iterator<Item = Vec<Settled>>) -> Vec<Number> {
    let mut found: BTreeMap<(Scope, String, &'static str), (f64, u32, u32)> = BTreeMap::new();
    for (scope, subject, metric, bins) in steps.flatten() {
        let (sum, n, never) = found.entry((scope, subject, metric)).or_default();
        match bins {
            Some(bins) => {
                *sum += (bins as f64 * BIN_S * 1e6).round();
                *n += 1;
            }
            None => *never += 1,
        }
    }
    let mut numbers = Vec::new();
    for ((scope, subject, metric), (sum, n, never)) in found {
        if n > 0 {
            numbers.push((scope, subject.clone(), metric, "us", "mean", sum / f64::from(n), n));
        }
        if never > 0 {
            numbers.push((scope, subject, metric, "1", UNDEFINED, f64::from(never), n + never));
        }
    }
    numbers
}

/// Number of bins of the sliding average.
const SECOND: usize = 10;
/// Minimum number of bins after a step: a quarter must be at least a second.
const MIN_BINS: usize = 4 * SECOND;
/// Maximum difference between the last two quarters, and maximum excess over the final range, as a share of the level.
const TOLERANCE: f64 = 0.1;

/// Returns the number of bins until the quantity has settled; `None` if it does not settle. Bins without a value are `None`.
pub(super) fn settled(bins: &[Option<f64>]) -> Option<usize> {
    if bins.len() < MIN_BINS {
        return None;
    }
    let seconds: Vec<Option<f64>> = bins.windows(SECOND).map(mean).collect();
    let half = bins.len() / 2;
    let later: Option<Vec<f64>> = seconds[half..].iter().copied().collect();
    let later = later?;
    let (low, high) = (
        later.iter().copied().fold(f64::INFINITY, f64::min),
        later.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    );
    let (third, fourth) = bins[half..].split_at((bins.len() - half) / 2);
    let (level, third, fourth) = (mean(&bins[half..])?, mean(third)?, mean(fourth)?);
    let margin = TOLERANCE * level.abs();
    if (third - fourth).abs() > margin {
        return None;
    }
    let within = |second: &Option<f64>| {
        second.is_some_and(|mean| mean >= low - margin && mean <= high + margin)
    };
    Some(seconds.iter().rposition(|second| !within(second)).map_or(0, |last| last + 1))
}

/// Returns the mean of the bins that have a value.
fn mean(bins: &[Option<f64>]) -> Option<f64> {
    let (sum, known) =
        bins.iter().flatten().fold((0.0, 0_u32), |(sum, known), value| (sum + value, known + 1));
    (known > 0).then(|| sum / f64::from(known))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn known(values: impl IntoIterator<Item = f64>) -> Vec<Option<f64>> {
        values.into_iter().map(Some).collect()
    }

    /// Returns a number of bins at one value, then at another.
    fn step(first: (usize, f64), then: (usize, f64)) -> Vec<Option<f64>> {
        let first = std::iter::repeat_n(first.1, first.0);
        known(first.chain(std::iter::repeat_n(then.1, then.0)))
    }

    #[test]
    fn step_settles_when_it_jumps() {
        // A second with at least nine tenths at the new level counts: it may contain bins at the old level.
        assert_eq!(settled(&step((30, 10.0), (170, 20.0))), Some(28));
        assert_eq!(settled(&step((30, 200.0), (170, 20.0))), Some(30));
        assert_eq!(settled(&step((0, 0.0), (200, 20.0))), Some(0));
    }

    #[test]
    fn exponential_approach_settles_within_a_tenth() {
        // 1 - exp(-t/2 s): 10 % remain after 4.6 s, and half a second earlier in the mean over the following second.
        let approach = known((0..400).map(|nth| 1.0 - (-(f64::from(nth) / 10.0) / 2.0).exp()));
        let at = settled(&approach).unwrap();
        assert!((40..=44).contains(&at), "{at}");
    }

    #[test]
    fn steady_sawtooth_settles_and_a_growing_signal_does_not() {
        let saw = |nth: usize| 20.0 + (nth % 37) as f64 / 2.0;
        let steady = known((0..300).map(saw));
        assert_eq!(settled(&steady), Some(0));
        let after_overshoot = known((0..300).map(|nth| if nth < 40 { 90.0 } else { saw(nth) }));
        assert!((30..=40).contains(&settled(&after_overshoot).unwrap()));
        let growing = known((0..300).map(|nth| nth as f64));
        assert_eq!(settled(&growing), None);
    }

    #[test]
    fn short_or_missing_data_does_not_settle() {
        assert_eq!(settled(&step((0, 0.0), (39, 5.0))), None);
        assert_eq!(settled(&[]), None);
        let mut gone = step((0, 0.0), (100, 5.0));
        gone[70..].fill(None);
        assert_eq!(settled(&gone), None);
        // A few missing bins do not matter, but a second without any value in the first half delays settling.
        let mut holes = step((0, 0.0), (100, 5.0));
        holes[60] = None;
        holes[80..85].fill(None);
        assert_eq!(settled(&holes), Some(0));
        holes[20..30].fill(None);
        assert_eq!(settled(&holes), Some(21));
        // A level of zero is valid.
        assert_eq!(settled(&step((20, 5.0), (80, 0.0))), Some(20));
    }

    proptest! {
        #[test]
        fn is_independent_of_scale_and_sign(
            values in prop::collection::vec(1.0..9.0_f64, 40..200), scale in 0.001..1000.0_f64,
        ) {
            let plain = settled(&known(values.iter().copied()));
            // Powers of two avoid rounding errors at the margin.
            let scale = scale.log2().round().exp2();
            prop_assert_eq!(plain, settled(&known(values.iter().map(|v| v * scale))));
            prop_assert_eq!(plain, settled(&known(values.iter().map(|v| -v))));
        }

        #[test]
        fn earlier_level_delays_settling(
            values in prop::collection::vec(9.5..10.0_f64, 60..120), before in 1_usize..30,
        ) {
            let after = known(values.iter().copied());
            let at = settled(&after);
            prop_assert_eq!(at, Some(0));
            let mut late = known(std::iter::repeat_n(100.0, before));
            late.extend(after);
            let later = settled(&late).unwrap();
            // The last second that contains a bin of the earlier level.
            prop_assert_eq!(later, before);
        }
    }
}
