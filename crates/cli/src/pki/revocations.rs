//! The certificates that an authority has revoked: its file `revoked` has one line `SERIAL DATE NAME` for each, and `crl.pem` is
//! for agents and controllers.

use std::path::{Path, PathBuf};

use ccbench_io::certificate::Certificate;
use ccbench_io::replace::replace;
use jiff::civil::Date;
use rcgen::{
    CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
};

use super::records::{from_hex, lines, text_of, to_hex};
use super::{PkiError, day, expiry, renewals};
use crate::clock;
use crate::file::{FileError, exists};

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
        // A list of revocations cannot have earlier dates.
        let date = date.parse().ok().filter(|date: &Date| date.year() >= 0)?;
        Some(Self { serial, date, name: name.to_owned() })
    }

    fn line(&self) -> String {
        format!("{} {} {}\n", to_hex(&self.serial), self.date, self.name)
    }
}

/// Returns the revoked certificates; none if the file is missing.
///
/// # Errors
/// The file cannot be read or is damaged.
pub(super) fn read(dir: &Path) -> Result<Vec<Revoked>, PkiError> {
    lines(&dir.join(FILE_NAME), "SERIAL DATE NAME", Revoked::parse)
}

/// Adds certificates, those from which they were renewed, and those to which these were renewed. Skips those that are already revoked.
///
/// # Errors
/// A record cannot be read, or the file cannot be written.
pub(super) fn add(dir: &Path, certificates: &[Certificate]) -> Result<(), PkiError> {
    let mut all = read(dir)?;
    let renewals = renewals::read(dir)?;
    for certificate in certificates {
        // A record has one word per name.
        let name = certificate.name.split_whitespace().collect::<Vec<_>>().join("_");
        for serial in renewals::related(&renewals, &certificate.serial) {
            if all.iter().all(|revoked| revoked.serial != serial) {
                all.push(Revoked { serial, date: clock::today(), name: name.clone() });
            }
        }
    }
    let text: String = all.iter().map(Revoked::line).collect();
    let path = dir.join(FILE_NAME);
    Ok(replace(&path, text.as_bytes()).map(drop).map_err(FileError::io("write", &path))?)
}

/// Writes `crl.pem`, also to the directories of controllers that have one. Returns its path.
///
/// # Errors
/// The record of revocations cannot be read, or the file cannot be written. After it was written wherever that is possible: a directory
/// of a controller cannot be read or written.
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
    replace(&path, text.as_bytes()).map(drop).map_err(FileError::io("write", &path))?;
    let folders = std::fs::read_dir(dir).map_err(FileError::io("list", dir))?;
    let paths = folders.map(|folder| Ok(folder.map_err(FileError::io("list", dir))?.path()));
    copy_to_all(dir, paths)?;
    Ok(path)
}

/// Copies `crl.pem` to those of these folders that have one. An error does not keep it from the other folders.
///
/// # Errors
/// The first file operation that failed.
pub(super) fn copy_to_all(
    dir: &Path,
    folders: impl IntoIterator<Item = Result<PathBuf, FileError>>,
) -> Result<(), PkiError> {
    let copy_to = |folder: Result<PathBuf, FileError>| -> Result<(), PkiError> {
        let folder = folder?;
        // The root directory of a file system has this folder, which only root can read.
        if !folder.ends_with("lost+found") && exists(&folder.join(LIST))? {
            copy(dir, &folder)?;
        }
        Ok(())
    };
    folders.into_iter().map(copy_to).fold(Ok(()), Result::and)
}

/// Returns the text of `crl.pem`; empty if there is none.
///
/// # Errors
/// The file cannot be read.
pub(super) fn list(dir: &Path) -> Result<String, PkiError> {
    Ok(text_of(&dir.join(LIST))?.unwrap_or_default())
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
    Ok(replace(&to, text.as_bytes()).map(drop).map_err(FileError::io("write", &to))?)
}
