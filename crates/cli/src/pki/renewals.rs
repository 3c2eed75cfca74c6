//! The renewed certificates of an authority: its file `renewed` has one line `EARLIER_SERIAL DATE LATER_SERIAL` for each. The
//! earlier certificate stays valid although its file is replaced, so only this record allows it to be revoked.

use std::path::Path;

use ccbench_io::replace::replace;
use jiff::civil::Date;

use super::PkiError;
use super::records::{from_hex, lines, to_hex};
use crate::clock;
use crate::file::FileError;

const FILE_NAME: &str = "renewed";

/// A renewed certificate and its successor, by serial number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Renewal {
    earlier: Vec<u8>,
    date: Date,
    later: Vec<u8>,
}

impl Renewal {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let [earlier, date, later] = [words.next()?, words.next()?, words.next()?];
        let (earlier, later) = (from_hex(earlier)?, from_hex(later)?);
        words.next().is_none().then_some(Self { earlier, date: date.parse().ok()?, later })
    }

    fn line(&self) -> String {
        format!("{} {} {}\n", to_hex(&self.earlier), self.date, to_hex(&self.later))
    }
}

/// Returns all renewals; none if the file is missing.
///
/// # Errors
/// The file cannot be read or is damaged.
pub(super) fn read(dir: &Path) -> Result<Vec<Renewal>, PkiError> {
    lines(&dir.join(FILE_NAME), "EARLIER_SERIAL DATE LATER_SERIAL", Renewal::parse)
}

/// Records the renewal of a certificate, before it is issued.
///
/// # Errors
/// The file cannot be read or written.
pub(super) fn add(dir: &Path, earlier: &[u8], later: &[u8]) -> Result<(), PkiError> {
    let mut all = read(dir)?;
    let (earlier, later) = (earlier.to_vec(), later.to_vec());
    all.push(Renewal { earlier, date: clock::today(), later });
    let text: String = all.iter().map(Renewal::line).collect();
    let path = dir.join(FILE_NAME);
    Ok(replace(&path, text.as_bytes()).map(drop).map_err(FileError::io("write", &path))?)
}

/// Returns a serial number and those of the certificates from which it was renewed.
pub(super) fn earlier(all: &[Renewal], serial: &[u8]) -> Vec<Vec<u8>> {
    follow(all, serial, |one| (&one.later, &one.earlier))
}

/// Returns a serial number and those of the certificates to which it was renewed.
pub(super) fn later(all: &[Renewal], serial: &[u8]) -> Vec<Vec<u8>> {
    follow(all, serial, |one| (&one.earlier, &one.later))
}

/// Follows renewals from a serial number. `ends` returns the serial numbers at which a renewal is entered and left.
fn follow(
    all: &[Renewal],
    serial: &[u8],
    ends: fn(&Renewal) -> (&Vec<u8>, &Vec<u8>),
) -> Vec<Vec<u8>> {
    let mut found = vec![serial.to_vec()];
    let mut visited = 0;
    while let Some(here) = found.get(visited).cloned() {
        visited += 1;
        for (from, to) in all.iter().map(ends) {
            if *from == here && !found.contains(to) {
                found.push(to.clone());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_are_followed_both_ways() {
        let line = |line: &str| Renewal::parse(line).unwrap();
        let lines =
            ["0a 2026-01-02 0b", "0b 2026-02-03 0c", "0d 2026-02-03 0e", "0c 2026-03-04 0a"];
        let all: Vec<Renewal> = lines[..3].iter().map(|text| line(text)).collect();
        assert_eq!(earlier(&all, &[0x0c]), [[0x0c], [0x0b], [0x0a]]);
        assert_eq!(later(&all, &[0x0a]), [[0x0a], [0x0b], [0x0c]]);
        assert_eq!(earlier(&all, &[0x0a]), [[0x0a]]);
        let circle = lines.map(line);
        assert_eq!(later(&circle, &[0x0b]), [[0x0b], [0x0c], [0x0a]]);
        assert_eq!(all[0].line(), "0a 2026-01-02 0b\n");
    }

    #[test]
    fn damaged_lines_are_refused() {
        for text in ["", "0a 2026-01-02", "0a never 0b", "x 2026-01-02 0b", "0a 2026-01-02 0b 0c"] {
            assert_eq!(Renewal::parse(text), None, "{text:?}");
        }
    }
}
