//! Parses the output of other tools into rows: `ss`, iperf3, ping, flent, qlog. Pure. Parsing never fails; unreadable lines are
//! reported.
//!
//! - [`iperf3`] reads iperf3's JSON, also for the agent; [`iperf3_text`] reads its text into the same report.
//! - [`ss`] reads `ss -ti` and its relatives, [`ping`] reads ping(8), [`stamp`] the time stamps of ts(1) and `ping -D`.
//! - [`text`] walks over a file and finds out which tool wrote each line. Files of flent and qlog are one document each, which names
//!   its flows.
//! - [`gather`] merges the files about the same connections.
//!
//! The parsers limit numbers so that no sum of them overflows: a time to [`LATEST_S`], a test to [`LONGEST_S`], a count to the
//! range of its column. Numbers out of range are not read, and count like unreadable lines.

mod flent;
mod found;
pub mod gather;
pub mod iperf3;
pub mod iperf3_text;
mod named;
pub mod ping;
mod qlog;
pub mod ss;
pub mod stamp;
pub mod text;

/// The latest instant that is read, in seconds since 1970: the year 2200.
pub const LATEST_S: u64 = 7_258_118_400;
/// The longest test or run of ping that is read, in seconds: three years.
pub const LONGEST_S: f64 = 1e8;
/// The largest count and number of bytes that is read: up to here a floating-point number is exact.
const MAX_COUNT: f64 = 9_007_199_254_740_992.0;
/// Maximum length of a stored name, version or error message, in characters.
const TEXT_CHARS: usize = 1000;

/// The beginning of a text that another program wrote.
fn truncate(text: &str) -> String {
    text.chars().take(TEXT_CHARS).collect()
}

#[cfg(test)]
mod tests;
