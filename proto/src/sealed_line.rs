//! Lines of journals: each is a JSON object whose last member `crc32` is the CRC-32 of the object without it, so that a reader
//! finds a damaged line.

/// Length of `,"crc32":"01234567"}`.
const SEAL_BYTES: usize = 20;

/// Returns the line of a JSON object, with its checksum and line feed.
#[must_use]
pub fn seal(object: &str) -> String {
    let open = object.strip_suffix('}').unwrap_or(object);
    format!("{open}{}\n", seal_of(object.as_bytes()))
}

/// A complete line of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line<'a> {
    /// Counted from 1.
    pub number: usize,
    /// Without its line feed.
    pub bytes: &'a [u8],
    /// Its JSON object; `None` if the checksum is wrong or absent.
    pub object: Option<Vec<u8>>,
}

/// Returns the complete lines of a journal. A torn last line is left out: its writer died while writing it.
#[must_use]
pub fn lines(journal: &[u8]) -> Vec<Line<'_>> {
    let mut lines: Vec<&[u8]> = journal.split(|byte| *byte == b'\n').collect();
    let torn = lines.pop().unwrap_or_default();
    // The line feed may be damaged although the line is complete.
    let complete = |line: &[u8]| unseal(line).is_some();
    if complete(torn) || torn.split_last().is_some_and(|(_, line)| complete(line)) {
        lines.push(torn);
    }
    let line = |(bytes, number)| Line { number, bytes, object: unseal(bytes) };
    lines.into_iter().zip(1..).map(line).collect()
}

fn seal_of(object: &[u8]) -> String {
    format!(",\"crc32\":\"{:08x}\"}}", crc32fast::hash(object))
}

/// Returns the JSON object of a line without its line feed; `None` if the checksum is wrong or absent.
#[must_use]
pub fn unseal(line: &[u8]) -> Option<Vec<u8>> {
    let split = line.len().checked_sub(SEAL_BYTES)?;
    let object = [line.get(..split)?, b"}"].concat();
    (line.get(split..)? == seal_of(&object).as_bytes()).then_some(object)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_holds_its_object() {
        let line = seal(r#"{"a":1}"#);
        assert_eq!(line, "{\"a\":1,\"crc32\":\"561bacaf\"}\n");
        assert_eq!(unseal(line.trim_end().as_bytes()).unwrap(), br#"{"a":1}"#);
        assert_eq!(unseal(b"{}"), None);
    }

    proptest! {
        #[test]
        fn every_flipped_bit_is_found(text in "[a-z]{0,80}", bit in any::<prop::sample::Index>()) {
            let mut line = seal(&format!(r#"{{"text":"{text}"}}"#)).trim_end().as_bytes().to_vec();
            let bit = bit.index(line.len() * 8);
            line[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(unseal(&line), None);
        }
    }
}
