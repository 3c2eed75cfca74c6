//! Independent random loss.

/// Decides for one packet after the other. The n-th decision is a function of the seed and n alone.
#[derive(Debug)]
pub(crate) struct Loss {
    /// A packet is lost if its draw is below this, of 2^64.
    below: u128,
    random: Random,
}

impl Loss {
    /// Loses `ppm` parts of a million.
    pub(crate) fn new(ppm: u32, seed: u64) -> Self {
        Self { below: (u128::from(ppm) << 64) / 1_000_000, random: Random::new(seed) }
    }

    /// Whether the next packet is lost.
    pub(crate) fn next_is_lost(&mut self) -> bool {
        self.below > 0 && u128::from(self.random.draw()) < self.below
    }
}

/// Draws that are a function of the seed and their number alone.
#[derive(Debug)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// The draws of `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits. SplitMix64 (Steele, Lea, Flood 2014): a counter through a mixing function.
    pub(crate) fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_those_of_splitmix64() {
        let mut random = Random::new(1_234_567);
        assert_eq!(random.draw(), 6_457_827_717_110_365_317);
        assert_eq!(random.draw(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn a_seed_decides_and_the_share_is_right() {
        let decide = |seed| {
            let mut loss = Loss::new(10_000, seed);
            (0..1_000_000).filter(|_| loss.next_is_lost()).collect::<Vec<u32>>()
        };
        let lost = decide(7);
        assert_eq!(lost, decide(7));
        assert_ne!(lost, decide(8));
        // 1 % of a million, five standard deviations wide.
        assert!((9_500..10_500).contains(&lost.len()), "{}", lost.len());
    }

    #[test]
    fn nothing_and_everything() {
        assert!(!(0..1000).any(|_| Loss::new(0, 1).next_is_lost()));
        let mut all = Loss::new(1_000_000, 1);
        assert!((0..1000).all(|_| all.next_is_lost()));
    }
}
