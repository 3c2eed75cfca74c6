//! Random numbers that are the same on every machine: integers, and only those floating-point operations whose rounding
//! IEEE 754 defines.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A random number generator.
pub(super) struct Rng(ChaCha8Rng);

impl Rng {
    /// The generator with this seed.
    pub(super) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// From zero to below one, each equally likely.
    pub(super) fn unit(&mut self) -> f64 {
        f64::from(self.0.next_u32()) / 4_294_967_296.0
    }

    /// From `low` to `high`, each equally likely.
    pub(super) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Normal with mean zero and deviation one: the sum of twelve uniform draws, cut off at six deviations.
    pub(super) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    /// Exponential with mean one, by comparisons alone (von Neumann).
    pub(super) fn exponential(&mut self) -> f64 {
        let mut whole = 0.0;
        loop {
            let first = self.unit();
            let (mut last, mut run) = (first, 1);
            loop {
                let next = self.unit();
                if next >= last {
                    break;
                }
                last = next;
                run += 1;
            }
            if run % 2 == 1 {
                return whole + first;
            }
            whole += 1.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_have_their_moments() {
        let mut rng = Rng::new(7);
        let count = 200_000;
        let (mut sum, mut squares, mut waits, mut wait_squares) = (0.0, 0.0, 0.0, 0.0);
        for _ in 0..count {
            let (normal, wait) = (rng.normal(), rng.exponential());
            sum += normal;
            squares += normal * normal;
            waits += wait;
            wait_squares += wait * wait;
        }
        let mean = |sum: f64| sum / f64::from(count);
        assert!(mean(sum).abs() < 0.01 && (mean(squares) - 1.0).abs() < 0.01);
        assert!((mean(waits) - 1.0).abs() < 0.01 && (mean(wait_squares) - 2.0).abs() < 0.05);
    }
}
