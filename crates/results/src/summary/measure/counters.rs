//! Counters at the ends of phases. A sample at a boundary ends one phase and starts the next. Its row has the next phase, or none at the
//! end of the trial.

use std::collections::BTreeMap;

/// Position of rows after the last phase.
pub(super) const AFTER_PHASES: usize = usize::MAX;

/// Counters of one subject at its first sample in each phase, by the position of the phase, and at its first sample after the last phase.
#[derive(Debug, Default)]
pub(super) struct FirstSamples<const N: usize>(BTreeMap<usize, [Option<f64>; N]>);

impl<const N: usize> FirstSamples<N> {
    /// Adds the counters of the first sample in a phase.
    pub(super) fn add(&mut self, phase: usize, counters: [Option<f64>; N]) {
        self.0.insert(phase, counters);
    }

    /// Returns the counters at the end of a phase: those of the first sample at or after its end. `last` has those of the phase's last
    /// sample, which apply if the later sample lacks a counter or the counter has started again.
    pub(super) fn at_end(&self, phase: usize, last: [Option<f64>; N]) -> [Option<f64>; N] {
        let next = self.0.range(phase.saturating_add(1)..).next();
        let Some((_, next)) = next else { return last };
        std::array::from_fn(|nth| {
            last[nth].map(|last| next[nth].map_or(last, |next| next.max(last)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_at_a_boundary_ends_one_phase_and_starts_the_next() {
        let mut first = FirstSamples::default();
        first.add(0, [Some(0.0), None]);
        first.add(1, [Some(5.0), None]);
        first.add(AFTER_PHASES, [Some(31.0), Some(2.0)]);
        assert_eq!(first.at_end(0, [Some(4.0), None]), [Some(5.0), None]);
        assert_eq!(first.at_end(1, [Some(26.0), Some(1.0)]), [Some(31.0), Some(2.0)]);
        // Without a later sample, and with a counter that starts again.
        assert_eq!(first.at_end(AFTER_PHASES, [Some(31.0), None]), [Some(31.0), None]);
        assert_eq!(first.at_end(1, [Some(40.0), Some(3.0)]), [Some(40.0), Some(3.0)]);
        // A phase without samples of its own.
        let mut first = FirstSamples::default();
        first.add(2, [Some(7.0)]);
        assert_eq!(first.at_end(0, [Some(6.0)]), [Some(7.0)]);
    }
}
