//! Output of other tools as rows: `ss`, iperf3, ping, flent, qlog. Pure; parsing never fails, and unreadable lines are reported.
//!
//! - [`iperf3`] reads its JSON, and is what the agent uses too; [`iperf3_text`] its text, into the same report.
//! - [`ss`] reads `ss -ti` and its relatives, [`ping`] reads ping(8), [`stamp`] what ts(1) and `ping -D` put in front.
//! - [`named`] reads files of flent and qlog files, which are one document and name their flows.
//! - [`text`] walks over a file and finds out which of them wrote each line.
//! - [`gather`] merges the files about the same connections.
//!
//! Numbers are limited where they are parsed, so that no sum of them overflows: a time to [`LATEST_S`], a test to
//! [`LONGEST_S`], a count to what its column holds. What lies outside is not read, and counted like a line that cannot be.

mod flent;
pub mod gather;
pub mod iperf3;
pub mod iperf3_text;
pub mod named;
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
/// Most of a name, a version or an error message that is kept, in characters.
const TEXT_CHARS: usize = 1000;

/// The beginning of a text that another program wrote.
fn clip(text: &str) -> String {
    text.chars().take(TEXT_CHARS).collect()
}

#[cfg(test)]
mod tests;
