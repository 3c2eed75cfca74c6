//! The Kaplan-Meier estimator (1958) of the distribution of durations, some of which are right-censored: they are only known to be longer
//! than the observation. No I/O.

/// Returns the median: the shortest duration for which the estimated share of longer durations is at most a half. `None` without durations,
/// or if the observations end earlier, so that the median is longer than all of them. Without censored observations, it is the lower one of
/// the two middle durations. Reorders both slices.
pub(super) fn median(durations: &mut [f64], censored: &mut [f64]) -> Option<f64> {
    durations.sort_by(f64::total_cmp);
    censored.sort_by(f64::total_cmp);
    let mut at_risk = durations.len() + censored.len();
    let (mut left, mut lost) = (1.0, 0);
    for (nth, duration) in durations.iter().enumerate() {
        // At equal times, durations come before censored observations.
        let shorter = censored.partition_point(|observed| observed < duration);
        at_risk -= shorter - lost;
        lost = shorter;
        left *= 1.0 - 1.0 / at_risk as f64;
        at_risk -= 1;
        let is_last_of_equals = durations.get(nth + 1).is_none_or(|next| next > duration);
        if is_last_of_equals && left <= 0.5 + ROUNDING {
            return Some(*duration);
        }
    }
    None
}

/// Products of ratios have rounding errors.
const ROUNDING: f64 = 1e-12;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(durations: &[f64], censored: &[f64]) -> Option<f64> {
        median(&mut durations.to_vec(), &mut censored.to_vec())
    }

    #[test]
    fn published_example() {
        // Remission times of leukaemia patients under 6-MP (Freireich et al., 1963; 9 of 21, median 23) and placebo (median 8).
        let treated = [6.0, 6.0, 6.0, 7.0, 10.0, 13.0, 16.0, 22.0, 23.0];
        let still = [6.0, 9.0, 10.0, 11.0, 17.0, 19.0, 20.0, 25.0, 32.0, 32.0, 34.0, 35.0];
        assert_eq!(of(&treated, &still), Some(23.0));
        let placebo = [
            1.0, 1.0, 2.0, 2.0, 3.0, 4.0, 4.0, 5.0, 5.0, 8.0, 8.0, 8.0, 8.0, 11.0, 11.0, 12.0,
            12.0, 15.0, 17.0, 22.0, 23.0,
        ];
        assert_eq!(of(&placebo, &[]), Some(8.0));
    }

    #[test]
    fn more_than_half_censored_has_no_median() {
        assert_eq!(of(&[1.0], &[5.0, 5.0]), None);
        assert_eq!(of(&[1.0, 2.0], &[5.0, 5.0]), Some(2.0));
        assert_eq!(of(&[], &[1.0]), None);
        assert_eq!(of(&[], &[]), None);
        // Observations shorter than every duration have no effect.
        assert_eq!(of(&[4.0, 6.0, 8.0], &[1.0, 1.0, 1.0]), Some(6.0));
        assert_eq!(of(&[4.0, 6.0, 8.0], &[f64::INFINITY; 3]), Some(8.0));
    }

    proptest! {
        #[test]
        fn censored_observations_never_shorten_the_median(
            mut durations in prop::collection::vec(1.0..100.0_f64, 1..40),
            censored in prop::collection::vec(1.0..100.0_f64, 0..40),
        ) {
            let found = of(&durations, &[]);
            durations.sort_by(f64::total_cmp);
            prop_assert_eq!(found, Some(durations[(durations.len() - 1) / 2]));
            if let Some(longer) = of(&durations, &censored) {
                prop_assert!(durations.contains(&longer) && Some(longer) >= found);
            }
        }
    }
}
