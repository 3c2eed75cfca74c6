//! Random decisions that follow from a seed, the same on every machine.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use sha2::{Digest, Sha256};

/// Derives 256 bits that depend only on these arguments.
pub(crate) fn derive(seed: u64, what: &str, numbers: &[u64]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(seed.to_be_bytes());
    hash.update(what.as_bytes());
    for number in numbers {
        hash.update([0]);
        hash.update(number.to_be_bytes());
    }
    hash.finalize().into()
}

/// The first 64 of these bits.
pub(crate) fn derive_u64(seed: u64, what: &str, numbers: &[u64]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = derive(seed, what, numbers);
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// A generator of random numbers.
pub(crate) fn generator(seed: [u8; 32]) -> ChaCha8Rng {
    ChaCha8Rng::from_seed(seed)
}

/// A number below `bound`, each equally likely; 0 if there is none.
pub(crate) fn draw(random: &mut ChaCha8Rng, bound: u64) -> u64 {
    let bound = bound.max(1);
    let fair = u64::MAX - u64::MAX % bound;
    loop {
        let drawn = random.next_u64();
        if drawn < fair {
            return drawn % bound;
        }
    }
}

/// Fisher and Yates' shuffle, each permutation equally likely.
pub(crate) fn shuffle<T>(items: &mut [T], seed: [u8; 32]) {
    let mut random = generator(seed);
    for last in (1..items.len()).rev() {
        items.swap(last, draw(&mut random, last as u64 + 1) as usize);
    }
}
