//! The decisions of a generator, read from the bytes of an input.

/// Reads an input from its beginning. After the input's end, every decision is the first choice, so shorter inputs make simpler plans.
#[derive(Debug)]
pub(super) struct Choices<'a> {
    data: &'a [u8],
}

impl<'a> Choices<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self { data }
    }

    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.data.split_first() else { return 0 };
        self.data = rest;
        *first
    }

    /// Returns a number below `bound`, which is from 1 to 65 536.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        let mut drawn = u64::from(self.byte());
        if bound > 256 {
            drawn = drawn << 8 | u64::from(self.byte());
        }
        drawn % bound
    }

    /// Returns true for this many values of 256.
    pub(super) fn chance(&mut self, of_256: u8) -> bool {
        self.byte() > u8::MAX - of_256
    }

    /// Returns one of these.
    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Returns a number from `low`, which is not 0, to `high`. Each doubling is equally likely.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        let doublings = u64::from((high / low).ilog2());
        let base = low << self.below(doublings + 1);
        (base + base * u64::from(self.byte()) / 256).min(high)
    }
}
