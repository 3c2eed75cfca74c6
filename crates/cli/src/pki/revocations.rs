//! The certificates that an authority has revoked: its file `revoked` has one line `SERIAL DATE NAME` for each, and `crl.pem` is
//! for agents and controllers.

use std::path::{Path, PathBuf};

use ccbench_io::certificate::Certificate;
use ccbench_io::input;
use ccbench_io::replace::replace;
use jiff::civil::Date;
use rcgen::{
    CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
};

use super::{PkiError, day, expiry, read as read_file, renewals};
use crate::clock;
use crate::file::FileError;

const FILE_NAME: &str = "revoked";
const LIST: &str = "crl.pem";

/// A revoked certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Revoked {
    /// Its serial number.
    pub(super) serial: Vec<u8>,
    date: Date,
    name: String,
}

impl Revoked {
    fn parse(line: &str) -> Option<Self> {
        let (serial, rest) = line.split_once(' ')?;
        let (date, name) = rest.split_once(' ')?;
        let serial = from_hex(serial)?;
        Some(Self { serial, date: date.parse().ok()?, name: name.to_owned() })
    }

    fn line(&self) -> String {
        format!("{} {} {}\n", to_hex(&self.serial), self.date, self.name)
    }
}

/// Parses a serial number of a record.
pub(super) fn from_hex(serial: &str) -> Option<Vec<u8>> {
    let byte = |at| u8::from_str_radix(serial.get(at..at + 2)?, 16).ok();
    (0..serial.len()).step_by(2).map(byte).collect()
}

/// Formats a serial number for a record.
pub(super) fn to_hex(serial: &[u8]) -> String {
    serial.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the revoked certificates; none if the file is missing.
///
/// # Errors
/// The file cannot be read or is damaged.
pub(super) fn read(dir: &Path) -> Result<Vec<Revoked>, PkiError> {
    lines(&dir.join(FILE_NAME), "SERIAL DATE NAME", Revoked::parse)
}

/// Returns the lines of a record; none if the file is missing.
///
/// # Errors
/// The file cannot be read or is damaged.
pub(super) fn lines<T>(
    path: &Path,
    format: &'static str,
    parse: fn(&str) -> Option<T>,
) -> Result<Vec<T>, PkiError> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = input::read_to_string(path, &input::CERTIFICATE);
    let text = text.map_err(FileError::of("read", path))?;
    let parsed = text.lines().enumerate().map(|(nth, line)| {
        parse(line).ok_or_else(|| PkiError::Damaged {
            path: path.to_owned(),
            line: nth + 1,
            format,
        })
    });
    parsed.collect()
}

/// Adds certificates and those from which they were renewed. Skips those that are already revoked.
///
/// # Errors
/// A record cannot be read, or the file cannot be written.
pub(super) fn add(dir: &Path, certificates: &[Certificate]) -> Result<(), PkiError> {
    let mut all = read(dir)?;
    let renewals = renewals::read(dir)?;
    for certificate in certificates {
        // A record has one word per name.
        let name = certificate.name.split_whitespace().collect::<Vec<_>>().join("_");
        for serial in renewals::earlier(&renewals, &certificate.serial) {
            if all.iter().all(|revoked| revoked.serial != serial) {
                all.push(Revoked { serial, date: clock::today(), name: name.clone() });
            }
        }
    }
    let text: String = all.iter().map(Revoked::line).collect();
    let path = dir.join(FILE_NAME);
    Ok(replace(&path, text.as_bytes()).map(drop).map_err(FileError::of("write", &path))?)
}

/// Writes `crl.pem`, also to the directories of controllers that have one. Returns its path.
///
/// # Errors
/// The record of revocations cannot be read, or the file cannot be written.
pub(super) fn write(dir: &Path, issuer: &Issuer<'_, KeyPair>) -> Result<PathBuf, PkiError> {
    let revoked = |revoked: &Revoked| RevokedCertParams {
        serial_number: SerialNumber::from_slice(&revoked.serial),
        revocation_time: day(revoked.date, rcgen::date_time_ymd),
        reason_code: None,
        invalidity_date: None,
    };
    let number = u64::try_from(clock::realtime_ns()).unwrap_or(0);
    let list = CertificateRevocationListParams {
        this_update: day(clock::today(), rcgen::date_time_ymd),
        // The format requires this date. Agents and controllers use a list until they have a newer one.
        next_update: day(expiry(None), rcgen::date_time_ymd),
        crl_number: SerialNumber::from(number),
        issuing_distribution_point: None,
        revoked_certs: read(dir)?.iter().map(revoked).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let text = list.signed_by(issuer)?.pem()?;
    let path = dir.join(LIST);
    replace(&path, text.as_bytes()).map(drop).map_err(FileError::of("write", &path))?;
    let folders = std::fs::read_dir(dir).map_err(FileError::of("list", dir))?;
    for folder in folders {
        let folder = folder.map_err(FileError::of("list", dir))?.path();
        if folder.join(LIST).exists() {
            copy(dir, &folder)?;
        }
    }
    Ok(path)
}

/// Returns the text of `crl.pem`; empty if there is none.
///
/// # Errors
/// The file cannot be read.
pub(super) fn list(dir: &Path) -> Result<String, PkiError> {
    let path = dir.join(LIST);
    if path.exists() { Ok(read_file(&path, "read")?) } else { Ok(String::new()) }
}

/// Copies `crl.pem` for a controller, if it exists.
///
/// # Errors
/// A file operation failed.
pub(super) fn copy(dir: &Path, controller: &Path) -> Result<(), PkiError> {
    let (text, to) = (list(dir)?, controller.join(LIST));
    if text.is_empty() {
        return Ok(());
    }
    Ok(replace(&to, text.as_bytes()).map(drop).map_err(FileError::of("write", &to))?)
}
