//! A trace: how a link's characteristics change over time. Pure: formats are parsed and written as text or bytes, and the
//! callers read and write files.

use std::sync::Arc;

use crate::plan::TraceUse;
use crate::units::{Ppm, Rate};

mod cursor;
mod detect;
mod error;
mod format;
pub mod generate;
mod lines;
mod netem;
mod number;
mod random;
mod rows;
mod summary;
mod write;

pub use cursor::{Cursor, OpportunityCursor, StepSpan};
pub use error::{TraceError, TraceProblem};
pub use format::{Format, UnknownFormat};
pub use summary::Summary;
pub use write::{WriteError, write};

/// Largest file that is read, in bytes.
pub const MAX_FILE_BYTES: usize = 64 << 20;
/// Longest line in bytes, except in JSON.
pub const MAX_LINE_BYTES: usize = 64 << 10;
/// Most rows (or opportunities) of a trace.
pub const MAX_ROWS: usize = 4_000_000;
/// Longest trace, nanoseconds: 31 days.
pub const MAX_LENGTH_NS: u64 = 31 * 86_400 * 1_000_000_000;
/// Longest trace of opportunities, nanoseconds: a day. Rates are counted over windows, whose number depends only on the length.
pub const MAX_OPPORTUNITIES_LENGTH_NS: u64 = 86_400 * 1_000_000_000;
/// Highest rate of a row.
pub const MAX_RATE: Rate = Rate::from_bits_per_sec(1_000_000_000_000);
/// Longest one-way delay of a row, nanoseconds: a minute.
pub const MAX_DELAY_NS: u64 = 60_000_000_000;

/// Parses a trace in any format. The content decides on the format; the extension of `name` counts only if the content fits
/// several. Errors show `name`, too.
///
/// # Errors
/// Every problem, line by line.
pub fn parse(name: &str, bytes: &[u8]) -> Result<Trace, TraceError> {
    let text = text_of(name, bytes)?;
    let format = detect::detect(name, text)?;
    parse_text(name, text, format)
}

/// Parses a trace in a known format.
///
/// # Errors
/// Every problem, line by line.
pub fn parse_as(name: &str, bytes: &[u8], format: Format) -> Result<Trace, TraceError> {
    parse_text(name, text_of(name, bytes)?, format)
}

/// Returns the format as which [`parse`] would read this.
///
/// # Errors
/// It is not text, or looks like none of the formats.
pub fn format_of(name: &str, bytes: &[u8]) -> Result<Format, TraceError> {
    detect::detect(name, text_of(name, bytes)?)
}

fn parse_text(name: &str, text: &str, format: Format) -> Result<Trace, TraceError> {
    // A JSON document may be a single line.
    let mut lines = text.split('\n').zip(1..).filter(|_| format != Format::Netem);
    if let Some((_, line)) = lines.find(|(line, _)| line.len() > MAX_LINE_BYTES) {
        return Err(TraceError::one(name, Some(format), line, long_line()));
    }
    match format {
        Format::Netem => netem::parse(name, text).map(Trace::Steps),
        other => rows::parse(name, text, other),
    }
}

/// The problem of a line above [`MAX_LINE_BYTES`].
fn long_line() -> String {
    format!("the line is longer than {} kB, too long for a row", MAX_LINE_BYTES >> 10)
}

fn text_of<'a>(name: &str, bytes: &'a [u8]) -> Result<&'a str, TraceError> {
    let refuse = |line, what: String| Err(TraceError::one(name, None, line, what));
    if bytes.len() > MAX_FILE_BYTES {
        let (have, most) = (bytes.len() >> 20, MAX_FILE_BYTES >> 20);
        return refuse(
            0,
            format!("it has {have} MiB; at most {most} are allowed: use fewer, longer rows"),
        );
    }
    if bytes.starts_with(b"PAR1") {
        return refuse(
            0,
            "it is Parquet, which a plan cannot use; convert it to text with `ccbench trace convert`"
                .to_owned(),
        );
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) => {
            let line = bytes[..error.valid_up_to()].iter().filter(|&&b| b == b'\n').count() + 1;
            refuse(line as u32, "it is not text (UTF-8)".to_owned())
        }
    }
}

/// How a link changes in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trace {
    /// Piecewise constant.
    Steps(Steps),
    /// mahimahi's: instants at which one packet of up to [`Opportunities::bytes`] may leave.
    Opportunities(Opportunities),
}

/// Piecewise constant characteristics. There is at least one step, the first begins at 0, instants increase strictly, and
/// `length_ns` is beyond the last instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steps {
    /// In order of time.
    pub steps: Vec<Step>,
    /// When the last step ends, nanoseconds after the trace's beginning.
    pub length_ns: u64,
}

/// Characteristics from an instant on. Absent ones are those of the link's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Nanoseconds after the trace's beginning.
    pub at_ns: u64,
    /// Rate in bit/s; zero: nothing passes.
    pub rate: Option<Rate>,
    /// One-way delay, nanoseconds.
    pub delay_ns: Option<u64>,
    /// Independent random loss.
    pub loss: Option<Ppm>,
    /// Its line in the file, from 1; 0 if it is not from a file.
    pub line: u32,
}

/// Delivery opportunities. There is at least one, and instants never decrease (several may be equal).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opportunities {
    /// The instant of each opportunity, nanoseconds after the trace's beginning.
    pub at_ns: Vec<u64>,
    /// IP bytes that one opportunity carries (mahimahi: 1500, its 1504 less its TUN header of 4). The link's line adds `overhead`
    /// to this and to every packet.
    pub bytes: u32,
    /// When the trace ends: mahimahi's last instant.
    pub length_ns: u64,
}

/// A trace and how a link uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// Shared: traces can be long.
    pub trace: Arc<Trace>,
    /// Its keys in the plan; `file` is its name in messages and rows.
    pub plan: TraceUse,
}

impl Trace {
    /// When its last row ends, nanoseconds after its beginning; more than zero.
    pub fn length_ns(&self) -> u64 {
        match self {
            Self::Steps(steps) => steps.length_ns,
            Self::Opportunities(all) => all.length_ns,
        }
    }

    /// Number of its rows, or of its opportunities.
    pub fn rows(&self) -> usize {
        match self {
            Self::Steps(steps) => steps.steps.len(),
            Self::Opportunities(all) => all.at_ns.len(),
        }
    }

    /// The first row without a rate; the link's rate applies to it.
    pub fn row_without_rate(&self) -> Option<&Step> {
        match self {
            Self::Steps(steps) => steps.steps.iter().find(|step| step.rate.is_none()),
            Self::Opportunities(_) => None,
        }
    }

    /// Whether a row has a rate.
    pub fn has_rates(&self) -> bool {
        match self {
            Self::Steps(steps) => steps.steps.iter().any(|step| step.rate.is_some()),
            Self::Opportunities(_) => true,
        }
    }

    /// Its mean rate over its length, rounded down; `None` if a row has no rate. For opportunities, it counts IP bytes only.
    pub fn mean_rate(&self) -> Option<Rate> {
        let bits = match self {
            Self::Steps(steps) => steps.spans().try_fold(0_u128, |sum, (step, length_ns)| {
                let rate = step.rate?.bits_per_sec();
                Some(sum + u128::from(rate) * u128::from(length_ns))
            })?,
            Self::Opportunities(all) => {
                all.at_ns.len() as u128 * u128::from(all.bytes) * 8_000_000_000
            }
        };
        let mean = bits / u128::from(self.length_ns().max(1));
        Some(Rate::from_bits_per_sec(u64::try_from(mean).unwrap_or(u64::MAX)))
    }
}

impl Steps {
    /// Every step and how long it is in force, nanoseconds.
    pub fn spans(&self) -> impl Iterator<Item = (&Step, u64)> {
        let ends = self.steps.iter().skip(1).map(|step| step.at_ns).chain([self.length_ns]);
        self.steps.iter().zip(ends).map(|(step, end_ns)| (step, end_ns.saturating_sub(step.at_ns)))
    }
}

#[cfg(test)]
mod tests;
