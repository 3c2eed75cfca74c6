//! Random loss: independent for each packet, and in bursts.

use ccbench_proto::plan::BurstLoss;
use ccbench_proto::units::Ppm;

use super::random::{Bernoulli, Purpose, Random};

/// Both kinds of loss together: a packet is lost if either loses it.
#[derive(Debug)]
pub(crate) struct Loss {
    independent: Bernoulli,
    burst: Option<Gilbert>,
}

impl Loss {
    /// Creates independent loss of `ppm` and the loss of `burst`.
    pub(crate) fn new(ppm: u32, burst: Option<BurstLoss>, seed: u64) -> Self {
        Self {
            independent: Bernoulli::new(ppm, seed, Purpose::Loss),
            burst: burst.map(|burst| Gilbert::new(burst, seed)),
        }
    }

    /// Changes the independent loss to `ppm`.
    pub(crate) fn set(&mut self, ppm: u32) {
        self.independent.set(ppm);
    }

    /// Returns whether a packet can be lost.
    pub(crate) fn is_possible(&self) -> bool {
        self.independent.is_possible() || self.burst.is_some()
    }

    /// Returns whether the next packet is lost.
    #[inline]
    pub(crate) fn next_is_lost(&mut self) -> bool {
        // Both draw for every packet, so that adding one does not change the other's decisions.
        let independent = self.independent.sample();
        let burst = self.burst.as_mut().is_some_and(Gilbert::next_is_lost);
        independent | burst
    }
}

/// The Gilbert-Elliott model: two states, one transition per packet, and a loss probability per state.
#[derive(Debug)]
struct Gilbert {
    enter: Threshold,
    leave: Threshold,
    bad: Threshold,
    good: Threshold,
    is_bad: bool,
    state: Random,
    loss: Random,
}

/// Threshold of 2^64: a draw below it means yes.
#[derive(Debug, Clone, Copy)]
struct Threshold(u128);

impl Threshold {
    fn new(share: Ppm) -> Self {
        Self((u128::from(share.get()) << 64) / 1_000_000)
    }
    fn exceeds(self, draw: u64) -> bool {
        u128::from(draw) < self.0
    }
}

impl Gilbert {
    fn new(spec: BurstLoss, seed: u64) -> Self {
        Self {
            enter: Threshold::new(spec.enter),
            leave: Threshold::new(spec.leave),
            bad: spec.bad.map_or(Threshold(1 << 64), Threshold::new),
            good: Threshold::new(spec.good.unwrap_or_default()),
            is_bad: false,
            state: Random::new(seed, Purpose::BurstState),
            loss: Random::new(seed, Purpose::BurstLoss),
        }
    }

    fn next_is_lost(&mut self) -> bool {
        let turn = if self.is_bad { self.leave } else { self.enter };
        self.is_bad ^= turn.exceeds(self.state.draw());
        let lost = if self.is_bad { self.bad } else { self.good };
        lost.exceeds(self.loss.draw())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ppm(n: u32) -> Ppm {
        Ppm::new(n).unwrap()
    }

    fn bursts(enter: u32, leave: u32) -> BurstLoss {
        BurstLoss { enter: ppm(enter), leave: ppm(leave), ..BurstLoss::default() }
    }

    /// Returns the share of packets lost and the mean length of a run of losses.
    fn figures(mut loss: Loss, packets: u32) -> (f64, f64) {
        let (mut lost, mut runs, mut before) = (0, 0, false);
        for _ in 0..packets {
            let now = loss.next_is_lost();
            lost += u32::from(now);
            runs += u32::from(now && !before);
            before = now;
        }
        (f64::from(lost) / f64::from(packets), f64::from(lost) / f64::from(runs))
    }

    #[test]
    fn bursts_have_the_models_length_and_share() {
        // Stationary share of the bad state: enter / (enter + leave); mean run: 1 / leave.
        let (share, run) = figures(Loss::new(0, Some(bursts(10_000, 250_000)), 3), 1_000_000);
        assert!((share - 0.01 / 0.26).abs() < 0.002, "{share}");
        assert!((run - 4.0).abs() < 0.1, "{run}");
        // With loss in both states, the share is that of a mixture.
        let mixed = BurstLoss {
            bad: Some(ppm(500_000)),
            good: Some(ppm(1_000)),
            ..bursts(10_000, 250_000)
        };
        let (share, _) = figures(Loss::new(0, Some(mixed), 3), 1_000_000);
        let wanted = 0.01 / 0.26 * 0.5 + 0.25 / 0.26 * 0.001;
        assert!((share - wanted).abs() < 0.001, "{share} {wanted}");
    }

    #[test]
    fn one_kind_of_loss_does_not_change_the_other() {
        let lost = |mut loss: Loss| {
            (0..100_000)
                .filter(|_| loss.next_is_lost())
                .collect::<std::collections::BTreeSet<u32>>()
        };
        let independent = lost(Loss::new(5_000, None, 9));
        let burst = lost(Loss::new(0, Some(bursts(2_000, 300_000)), 9));
        let both = lost(Loss::new(5_000, Some(bursts(2_000, 300_000)), 9));
        assert_eq!(both, &independent | &burst);
        assert!(!independent.is_empty() && !burst.is_empty());
    }

    #[test]
    fn a_change_of_loss_counts_from_the_next_packet() {
        let mut loss = Loss::new(0, None, 1);
        assert!(!loss.next_is_lost());
        loss.set(1_000_000);
        assert!(loss.next_is_lost());
    }
}
