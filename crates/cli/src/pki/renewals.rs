//! The renewed certificates of an authority: its file `renewed` has one line `EARLIER_SERIAL DATE LATER_SERIAL` for each. The
//! earlier certificate stays valid although its file is replaced, so only this record allows it to be revoked.

use std::path::Path;

use ccbench_io::input;
use ccbench_io::replace::replace;
use jiff::civil::Date;

use super::PkiError;
use super::records::{from_hex, lines, to_hex};
use crate::clock;
use crate::file::FileError;

const FILE_NAME: &str = "renewed";
/// Limit for the file: some thousand renewals. A larger one could soon not be read, and then no certificate could be revoked.
const MAX_BYTES: u64 = input::CERTIFICATE.max_bytes / 2;

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
/// The file cannot be read or written, or would be too large.
pub(super) fn add(dir: &Path, earlier: &[u8], later: &[u8]) -> Result<(), PkiError> {
    let mut all = read(dir)?;
    let (earlier, later) = (earlier.to_vec(), later.to_vec());
    all.push(Renewal { earlier, date: clock::today(), later });
    let text: String = all.iter().map(Renewal::line).collect();
    let path = dir.join(FILE_NAME);
    if text.len() as u64 > MAX_BYTES {
        return Err(PkiError::ManyRenewals(path));
    }
    Ok(replace(&path, text.as_bytes()).map(drop).map_err(FileError::io("write", &path))?)
}

/// Returns a serial number and those of all certificates that are connected with it by renewals: they have the same key. A certificate may
/// have been renewed several times, for example by a node that did not receive the first answer, or by a thief of its key.
pub(super) fn related(all: &[Renewal], serial: &[u8]) -> Vec<Vec<u8>> {
    follow(all, serial, |one, here| {
        if one.later == here {
            Some(&one.earlier)
        } else {
            (one.earlier == here).then_some(&one.later)
        }
    })
}

/// Returns a serial number and those of the certificates to which it was renewed.
pub(super) fn later(all: &[Renewal], serial: &[u8]) -> Vec<Vec<u8>> {
    follow(all, serial, |one, here| (one.earlier == here).then_some(&one.later))
}

/// Returns how many of these certificates were issued by renewals on a date.
pub(super) fn count(all: &[Renewal], serials: &[Vec<u8>], date: Date) -> usize {
    all.iter().filter(|one| one.date == date && serials.contains(&one.later)).count()
}

/// Follows renewals from a serial number. `step` returns the serial number to which a renewal leads from another one.
fn follow(
    all: &[Renewal],
    serial: &[u8],
    step: for<'r> fn(&'r Renewal, &[u8]) -> Option<&'r Vec<u8>>,
) -> Vec<Vec<u8>> {
    let mut found = vec![serial.to_vec()];
    let mut visited = 0;
    while let Some(here) = found.get(visited).cloned() {
        visited += 1;
        for to in all.iter().filter_map(|one| step(one, &here)) {
            if !found.contains(to) {
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
        assert_eq!(related(&all, &[0x0c]), [[0x0c], [0x0b], [0x0a]]);
        assert_eq!(later(&all, &[0x0a]), [[0x0a], [0x0b], [0x0c]]);
        assert_eq!(later(&all, &[0x0b]), [[0x0b], [0x0c]]);
        let all_of_key = related(&all, &[0x0b]);
        assert_eq!(all_of_key, [[0x0b], [0x0a], [0x0c]]);
        let dates: [Date; 3] =
            ["2026-01-02", "2026-02-03", "2026-03-04"].map(|date| date.parse().unwrap());
        assert_eq!(dates.map(|date| count(&all, &all_of_key, date)), [1, 1, 0]);
        // A certificate that was renewed twice.
        let fork = ["0a 2026-01-02 0b", "0a 2026-01-03 0f"].map(line);
        assert_eq!(related(&fork, &[0x0f]), [[0x0f], [0x0a], [0x0b]]);
        let circle = lines.map(line);
        assert_eq!(later(&circle, &[0x0b]), [[0x0b], [0x0c], [0x0a]]);
        assert_eq!(all[0].line(), "0a 2026-01-02 0b\n");
    }

    #[test]
    fn the_record_never_grows_beyond_what_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        let line = "0a 2026-01-02 0b\n";
        let fits = MAX_BYTES as usize / line.len();
        std::fs::write(&path, line.repeat(fits - 1)).unwrap();
        add(dir.path(), &[0x0b], &[0x0c]).unwrap();
        let refused = add(dir.path(), &[0x0c], &[0x0d]).unwrap_err();
        assert!(matches!(&refused, PkiError::ManyRenewals(found) if *found == path), "{refused}");
        assert_eq!(read(dir.path()).unwrap().len(), fits);
    }

    #[test]
    fn damaged_lines_are_refused() {
        for text in ["", "0a 2026-01-02", "0a never 0b", "x 2026-01-02 0b", "0a 2026-01-02 0b 0c"] {
            assert_eq!(Renewal::parse(text), None, "{text:?}");
        }
    }
}
