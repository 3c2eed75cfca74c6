//! Responsiveness: how long after a step (RFC 5166, "response to sudden changes") until a quantity stays where it then is. Pure.
//!
//! A **step** is an instant at which the plan changes a link or starts or stops a flow. What follows it, up to the next step, is
//! averaged over a second at a time. The second half of it says where the quantity ends up: its level is the mean, its range
//! the least and the largest second. It has settled with the first second from which on no second leaves that range by more than
//! a tenth of the level. So a steady oscillation (a sawtooth) is no unrest, whatever its size; how large it is
//! say `cov` and `std` of a phase after the step.
//!
//! It never settles, and is counted, where the last two quarters differ by more than a tenth of the level (it still moves), where
//! something of the second half is not known, or where there is too little of it.

use std::collections::BTreeMap;

use ccbench_proto::metric::Scope;

/// Length of an instant: iperf3's usual interval.
pub(crate) const INSTANT_S: f64 = 0.1;
/// Scope, subject, metric, and how many instants it took to settle.
pub(super) type Settled = (Scope, String, &'static str, Option<usize>);
/// Scope, subject, metric, unit, statistic, value, steps in it.
pub(super) type Number = (Scope, String, &'static str, &'static str, &'static str, f64, u32);

/// The mean over the steps of a phase of what settled, and how many did not.
pub(super) fn over_steps(steps: impl Iterator<Item = Vec<Settled>>) -> Vec<Number> {
    let mut found: BTreeMap<(Scope, String, &'static str), (f64, u32, u32)> = BTreeMap::new();
    for (scope, subject, metric, instants) in steps.flatten() {
        let (sum, n, never) = found.entry((scope, subject, metric)).or_default();
        match instants {
            Some(instants) => {
                *sum += (instants as f64 * INSTANT_S * 1e6).round();
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
            numbers.push((scope, subject, metric, "1", "undefined", f64::from(never), n + never));
        }
    }
    numbers
}

/// Instants that are averaged.
const SECOND: usize = 10;
/// Instants after a step of which nothing can be said: a quarter must be a second.
const LEAST: usize = 4 * SECOND;
/// How much the last quarters may differ, and how far beyond the range is still within: of the level.
const TOLERANCE: f64 = 0.1;

/// After how many instants of these a quantity has settled; `None` if it does not. `None` of an instant: not known.
pub(super) fn settled(instants: &[Option<f64>]) -> Option<usize> {
    if instants.len() < LEAST {
        return None;
    }
    let seconds: Vec<Option<f64>> = instants.windows(SECOND).map(mean).collect();
    let half = instants.len() / 2;
    let later: Option<Vec<f64>> = seconds[half..].iter().copied().collect();
    let later = later?;
    let (low, high) = (
        later.iter().copied().fold(f64::INFINITY, f64::min),
        later.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    );
    let (third, fourth) = instants[half..].split_at((instants.len() - half) / 2);
    let (level, third, fourth) = (mean(&instants[half..])?, mean(third)?, mean(fourth)?);
    let margin = TOLERANCE * level.abs();
    if (third - fourth).abs() > margin {
        return None;
    }
    let within = |second: &Option<f64>| {
        second.is_some_and(|mean| mean >= low - margin && mean <= high + margin)
    };
    Some(seconds.iter().rposition(|second| !within(second)).map_or(0, |last| last + 1))
}

/// Of what is known; `None` of nothing.
fn mean(instants: &[Option<f64>]) -> Option<f64> {
    let (sum, known) = instants
        .iter()
        .flatten()
        .fold((0.0, 0_u32), |(sum, known), value| (sum + value, known + 1));
    (known > 0).then(|| sum / f64::from(known))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn known(values: impl IntoIterator<Item = f64>) -> Vec<Option<f64>> {
        values.into_iter().map(Some).collect()
    }

    /// So long at one value, then at another; instants.
    fn step(first: (usize, f64), then: (usize, f64)) -> Vec<Option<f64>> {
        let first = std::iter::repeat_n(first.1, first.0);
        known(first.chain(std::iter::repeat_n(then.1, then.0)))
    }

    #[test]
    fn what_jumps_has_settled_about_where_it_jumps() {
        // A second of which nine tenths and more are at the new level counts: one instant of the old one at half of it.
        assert_eq!(settled(&step((30, 10.0), (170, 20.0))), Some(28));
        assert_eq!(settled(&step((30, 200.0), (170, 20.0))), Some(30));
        assert_eq!(settled(&step((0, 0.0), (200, 20.0))), Some(0));
    }

    #[test]
    fn an_approach_has_settled_within_a_tenth() {
        // 1 - exp(-t/2 s): 10 % are left after 4.6 s, half a second earlier in the mean over the second that follows.
        let approach = known((0..400).map(|nth| 1.0 - (-(f64::from(nth) / 10.0) / 2.0).exp()));
        let at = settled(&approach).unwrap();
        assert!((40..=44).contains(&at), "{at}");
    }

    #[test]
    fn a_sawtooth_that_goes_on_is_no_unrest_and_one_that_grows_is() {
        let saw = |nth: usize| 20.0 + (nth % 37) as f64 / 2.0;
        let steady = known((0..300).map(saw));
        assert_eq!(settled(&steady), Some(0));
        let after_overshoot = known((0..300).map(|nth| if nth < 40 { 90.0 } else { saw(nth) }));
        assert!((30..=40).contains(&settled(&after_overshoot).unwrap()));
        let growing = known((0..300).map(|nth| nth as f64));
        assert_eq!(settled(&growing), None);
    }

    #[test]
    fn what_is_short_or_not_known_does_not_settle() {
        assert_eq!(settled(&step((0, 0.0), (39, 5.0))), None);
        assert_eq!(settled(&[]), None);
        let mut gone = step((0, 0.0), (100, 5.0));
        gone[70..].fill(None);
        assert_eq!(settled(&gone), None);
        // A few missing samples do not matter, a second of them before that is unrest.
        let mut holes = step((0, 0.0), (100, 5.0));
        holes[60] = None;
        holes[80..85].fill(None);
        assert_eq!(settled(&holes), Some(0));
        holes[20..30].fill(None);
        assert_eq!(settled(&holes), Some(21));
        // Nothing at all is a level, too.
        assert_eq!(settled(&step((20, 5.0), (80, 0.0))), Some(20));
    }

    proptest! {
        #[test]
        fn it_depends_neither_on_scale_nor_on_sign(
            values in prop::collection::vec(1.0..9.0_f64, 40..200), scale in 0.001..1000.0_f64,
        ) {
            let plain = settled(&known(values.iter().copied()));
            // Powers of two: rounding does not matter at the margin.
            let scale = scale.log2().round().exp2();
            prop_assert_eq!(plain, settled(&known(values.iter().map(|v| v * scale))));
            prop_assert_eq!(plain, settled(&known(values.iter().map(|v| -v))));
        }

        #[test]
        fn what_precedes_at_another_level_is_added(
            values in prop::collection::vec(9.5..10.0_f64, 60..120), before in 1_usize..30,
        ) {
            let after = known(values.iter().copied());
            let at = settled(&after);
            prop_assert_eq!(at, Some(0));
            let mut late = known(std::iter::repeat_n(100.0, before));
            late.extend(after);
            let later = settled(&late).unwrap();
            // The last second that has an instant of what was before.
            prop_assert_eq!(later, before);
        }
    }
}
