//! Parts of the readers of files that are one document and name their flows: flent data files and qlog files. Pure.
//!
//! Such a file has no addresses, so its flows are not merged with those of other tools.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};

use super::found::{Found, MAX_ROWS, MAX_UNREAD, NamedRows, Unread};
use super::{LATEST_S, MAX_COUNT, truncate};
use crate::wire::run_event::Payload;

/// The record separator of JSON text sequences (RFC 7464).
pub(super) const RECORD_SEPARATOR: u8 = 0x1e;

/// A file that is being read.
pub(super) struct Reading {
    pub(super) named: NamedRows,
    unread: Vec<Unread>,
    more_unread: u64,
    rows_left_out: u64,
}

impl Reading {
    pub(super) fn new(tool: &'static str) -> Self {
        let named = NamedRows { tool, ..Default::default() };
        Self { named, unread: vec![], more_unread: 0, rows_left_out: 0 }
    }

    /// Adds a row of the file.
    pub(super) fn put(&mut self, row: Payload) {
        match self.named.rows.len() < MAX_ROWS {
            true => self.named.rows.push(row),
            false => self.rows_left_out += 1,
        }
    }

    /// Counts rows beyond the limit of a file.
    pub(super) fn leave_out(&mut self, rows: u64) {
        self.rows_left_out += rows;
    }

    /// Records that a part of the document is not in the tables. A document may be one line, so the reason names the part.
    pub(super) fn unread(&mut self, reason: &str) {
        match self.unread.len() < MAX_UNREAD {
            true => {
                self.unread.push(Unread { line: 1, text: String::new(), reason: truncate(reason) });
            }
            false => self.more_unread += 1,
        }
    }

    /// The contents of the file, which has this number of lines.
    pub(super) fn finish(mut self, lines: u64) -> Found {
        if self.rows_left_out > 0 {
            let left_out = self.rows_left_out;
            self.unread(&format!("{left_out} rows beyond {MAX_ROWS}; split the file"));
            self.more_unread += left_out - 1;
        }
        let Self { named, unread, more_unread, .. } = self;
        Found { named, unread, more_unread, lines, ..Default::default() }
    }
}

/// Converts seconds since 1970 to nanoseconds; `None` out of range.
pub(super) fn nanos(seconds: f64) -> Option<u64> {
    scaled(seconds, 1.0)
}

/// Converts milliseconds since 1970 to nanoseconds: as seconds, an instant would be off by more than 100 ns.
pub(super) fn nanos_of_ms(ms: f64) -> Option<u64> {
    scaled(ms, 1e3)
}

fn scaled(time: f64, per_second: f64) -> Option<u64> {
    let ns = 1e9 / per_second;
    let is_read = (0.0..LATEST_S as f64 * per_second).contains(&time);
    is_read.then(|| time.trunc() as u64 * ns as u64 + (time.fract() * ns).round() as u64)
}

/// Converts a count; `None` if its column cannot hold it.
pub(super) fn count(value: f64) -> Option<u32> {
    (0.0..=f64::from(u32::MAX)).contains(&value).then_some(value.round() as u32)
}

/// Converts a number of bytes, or of bytes per second; `None` out of range.
pub(super) fn bytes(value: f64) -> Option<u64> {
    (0.0..=MAX_COUNT).contains(&value).then_some(value.round() as u64)
}

/// Makes a name of a flow, a group or a probe: replaces each sequence of characters other than letters, digits, `_` and `.` by one
/// `-`.
pub(super) fn plain(name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
    let parts: Vec<&str> = name.split(|c| !fits(c)).filter(|part| !part.is_empty()).collect();
    match parts.is_empty() {
        true => "unnamed".to_owned(),
        false => truncate(&parts.join("-")),
    }
}

/// A value that counts as missing if the writer gave it another type.
#[derive(Debug, Clone, serde::Deserialize)]
#[serde(untagged)]
pub(super) enum Lenient<T> {
    Valid(T),
    Other(IgnoredAny),
}

impl<T> Default for Lenient<T> {
    fn default() -> Self {
        Self::Other(IgnoredAny)
    }
}

impl<T> Lenient<T> {
    pub(super) fn get(&self) -> Option<&T> {
        match self {
            Self::Valid(value) => Some(value),
            Self::Other(_) => None,
        }
    }
}

/// A number, which is always finite in JSON.
pub(super) type Number = Lenient<f64>;
/// A text.
pub(super) type Text = Lenient<String>;

impl Number {
    pub(super) fn value(&self) -> Option<f64> {
        self.get().copied()
    }
}

impl Text {
    pub(super) fn text(&self) -> Option<&str> {
        self.get().map(String::as_str)
    }
}

/// The first [`MAX_ROWS`] elements of a list, and the number of further ones, so that a file does not take much more memory than it
/// has bytes.
#[derive(Debug, Clone)]
pub(super) struct BoundedList<T> {
    pub(super) items: Vec<T>,
    pub(super) more: u64,
}

impl<T> Default for BoundedList<T> {
    fn default() -> Self {
        Self { items: vec![], more: 0 }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for BoundedList<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Items<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<T> {
            type Value = BoundedList<T>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut all = BoundedList::default();
                while all.items.len() < MAX_ROWS {
                    let Some(item) = list.next_element()? else { return Ok(all) };
                    all.items.push(item);
                }
                while list.next_element::<IgnoredAny>()?.is_some() {
                    all.more += 1;
                }
                Ok(all)
            }
        }

        from.deserialize_seq(Items(PhantomData))
    }
}

#[cfg(test)]
mod tests;
