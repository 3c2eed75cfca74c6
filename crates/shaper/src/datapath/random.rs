//! Random numbers of a link: one ChaCha8 stream per purpose, so that adding an impairment does not change the decisions of the others. The
//! n-th draw depends only on the link's seed, the purpose and n.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// What a stream is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Independent loss.
    Loss,
    /// Transitions between the good and the bad state of burst loss.
    BurstState,
    /// Loss in the current state of burst loss.
    BurstLoss,
    /// Duplication.
    Duplicate,
    /// Which packets are reordered.
    Reorder,
    /// Which packets are corrupted, and where.
    Corrupt,
    /// Jitter.
    Jitter,
    /// Times between slots.
    Slot,
    /// Which packets' ECN field is rewritten.
    EcnRewrite,
    /// The queue of this class; 0 is the link's own queue.
    Queue(u8),
}

impl Purpose {
    /// Returns the number of its stream.
    fn stream(self) -> u64 {
        match self {
            Self::Loss => 1,
            Self::BurstState => 2,
            Self::BurstLoss => 3,
            Self::Duplicate => 4,
            Self::Reorder => 5,
            Self::Corrupt => 6,
            Self::Jitter => 7,
            Self::Slot => 8,
            Self::EcnRewrite => 9,
            Self::Queue(class) => 256 + u64::from(class),
        }
    }
}

/// One stream.
#[derive(Debug, Clone)]
pub(crate) struct Random {
    stream: ChaCha8Rng,
}

impl Random {
    /// The draws of `seed` for `purpose`.
    pub(crate) fn new(seed: u64, purpose: Purpose) -> Self {
        let mut stream = ChaCha8Rng::seed_from_u64(seed);
        stream.set_stream(purpose.stream());
        Self { stream }
    }

    /// The next 64 bits.
    #[inline]
    pub(crate) fn draw(&mut self) -> u64 {
        self.stream.next_u64()
    }

    /// Returns the next number in [0, 1).
    #[inline]
    pub(crate) fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Decides with a fixed probability, once per packet.
#[derive(Debug)]
pub(crate) struct Bernoulli {
    /// Threshold of 2^64: a draw below it means yes.
    threshold: u128,
    random: Random,
}

impl Bernoulli {
    /// Creates decisions with probability `ppm`.
    pub(crate) fn new(ppm: u32, seed: u64, purpose: Purpose) -> Self {
        let mut new = Self { threshold: 0, random: Random::new(seed, purpose) };
        new.set(ppm);
        new
    }

    /// Changes the probability to `ppm`.
    pub(crate) fn set(&mut self, ppm: u32) {
        self.threshold = (u128::from(ppm) << 64) / 1_000_000;
    }

    /// Decides for the next packet. A probability of zero draws nothing.
    #[inline]
    pub(crate) fn sample(&mut self) -> bool {
        self.threshold > 0 && u128::from(self.random.draw()) < self.threshold
    }

    /// Returns whether the probability is above zero.
    pub(crate) fn is_possible(&self) -> bool {
        self.threshold > 0
    }

    /// Returns another draw of the same stream.
    pub(crate) fn draw(&mut self) -> u64 {
        self.random.draw()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_those_of_chacha8_and_differ_by_seed_and_purpose() {
        let draws = |seed, purpose| {
            let mut random = Random::new(seed, purpose);
            [random.draw(), random.draw(), random.draw()]
        };
        // Results must stay repeatable in later versions.
        let golden =
            [18_301_176_669_829_311_175, 166_969_048_821_288_533, 13_311_386_896_195_443_538];
        assert_eq!(draws(7, Purpose::Loss), golden);
        assert_ne!(draws(7, Purpose::Loss), draws(7, Purpose::Jitter));
        assert_ne!(draws(7, Purpose::Loss), draws(8, Purpose::Loss));
        assert_ne!(draws(7, Purpose::Queue(0)), draws(7, Purpose::Queue(1)));
    }

    #[test]
    fn the_seed_determines_decisions() {
        let decide = |seed| {
            let mut loss = Bernoulli::new(10_000, seed, Purpose::Loss);
            (0..1_000_000).filter(|_| loss.sample()).collect::<Vec<u32>>()
        };
        let lost = decide(7);
        assert_eq!(lost, decide(7));
        assert_ne!(lost, decide(8));
        // 1 % of a million, within five standard deviations.
        assert!((9_500..10_500).contains(&lost.len()), "{}", lost.len());
    }

    #[test]
    fn chance_zero_and_one() {
        assert!(!(0..1000).any(|_| Bernoulli::new(0, 1, Purpose::Loss).sample()));
        let mut all = Bernoulli::new(1_000_000, 1, Purpose::Loss);
        assert!((0..1000).all(|_| all.sample()));
    }
}
