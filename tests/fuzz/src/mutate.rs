//! A small mutator, the same on every machine, for `make test`, where libFuzzer is not available.

/// Pseudo-random numbers (xorshift64*).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Creates the generator with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.max(1))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// Maximum length of an input, in bytes.
const MAX_BYTES: usize = 64 << 10;

/// Pieces of text on which parsers of numbers, names and documents stumble.
const PIECES: [&[u8]; 30] = [
    b"1e308",
    b"-1e308",
    b"1e-308",
    b"NaN",
    b"inf",
    b"-1",
    b"0",
    b"4294967295",
    b"4294967296",
    b"18446744073709551615",
    b"18446744073709551616",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"0.0000000000000000001",
    b"99999999999999999999999999999999999999",
    b"\"",
    b"'",
    b"\\",
    b"\n",
    b"\r\n",
    b"[[",
    b"{{{{",
    b"}",
    b"]",
    b",",
    b"=",
    b".",
    b"\xef\xbb\xbf",
    b"\xff\xff\xff\xff",
    b"\0\0\0\0",
];

/// Makes one to four changes to `input`. Inserts pieces of `other`, another input.
#[must_use]
pub fn mutate(input: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(4) {
        change(&mut bytes, other, random);
    }
    bytes.truncate(MAX_BYTES);
    bytes
}

fn change(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(bytes.len() + 1);
    let length = 1 + random.below(16);
    let end = bytes.len().min(at + length);
    match random.below(9) {
        0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        1 if at < bytes.len() => bytes[at] = random.next() as u8,
        2 => drop(bytes.drain(at..end)),
        3 => {
            let again = bytes[at..end].to_vec();
            insert(bytes, at, &again);
        }
        4 => bytes.truncate(at),
        5 | 6 => {
            let piece = PIECES[random.below(PIECES.len())];
            drop(bytes.drain(at..end));
            insert(bytes, at, piece);
        }
        7 if !other.is_empty() => {
            let from = random.below(other.len());
            let piece = &other[from..other.len().min(from + 1 + random.below(256))];
            insert(bytes, at, piece);
        }
        // A length, a count or a time in binary.
        _ if at + 4 <= bytes.len() => {
            let number: u32 = [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX][random.below(5)];
            bytes[at..at + 4].copy_from_slice(&number.to_ne_bytes());
        }
        _ => bytes.push(random.next() as u8),
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, piece: &[u8]) {
    let tail = bytes.split_off(at);
    bytes.extend_from_slice(piece);
    bytes.extend(tail);
}
