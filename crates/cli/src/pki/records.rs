//! The records of an authority: files with one line for each certificate, which names certificates by serial number.

use std::io::ErrorKind;
use std::path::Path;

use ccbench_io::input;

use super::PkiError;
use crate::file::FileError;

/// Parses a serial number of a record.
pub(super) fn from_hex(serial: &str) -> Option<Vec<u8>> {
    let byte = |at| u8::from_str_radix(serial.get(at..at + 2)?, 16).ok();
    (0..serial.len()).step_by(2).map(byte).collect()
}

/// Formats a serial number for a record.
pub(super) fn to_hex(serial: &[u8]) -> String {
    serial.iter().map(|byte| format!("{byte:02x}")).collect()
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
    let Some(text) = text_of(path)? else { return Ok(Vec::new()) };
    let parsed = text.lines().enumerate().map(|(nth, line)| {
        parse(line).ok_or_else(|| PkiError::Damaged {
            path: path.to_owned(),
            line: nth + 1,
            format,
        })
    });
    parsed.collect()
}

/// Returns the text of a file; `None` if there is no such file. Any other error is one, because what is written next would lack what the
/// file has.
///
/// # Errors
/// The file cannot be read.
pub(super) fn text_of(path: &Path) -> Result<Option<String>, FileError> {
    match input::read_to_string(path, &input::CERTIFICATE) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError::io("read", path)(error)),
    }
}
