//! What is found in a file.

use super::iperf3_text::Test;
use super::{ping, ss};
use crate::wire::run_event::Payload;

/// Maximum rows that are read of a file, each a kilobyte in memory: two sockets ten times a second for 14 hours.
pub const MAX_ROWS: usize = 1 << 20;
/// Maximum number of unread lines whose text and reason are kept.
pub const MAX_UNREAD: usize = 100_000;

/// Contents of a file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Found {
    /// Samples of sockets.
    pub sockets: Vec<ss::Row>,
    /// Tests of iperf3, from JSON and from text.
    pub tests: Vec<Test>,
    /// Runs of ping.
    pub pings: Vec<ping::PingRun>,
    /// Rows of a flent or qlog file.
    pub named: NamedRows,
    /// Lines that are not empty.
    pub lines: u64,
    /// Lines that are not completely in the tables; at most the first [`MAX_UNREAD`] that are noticed.
    pub unread: Vec<Unread>,
    /// Number of further ones.
    pub more_unread: u64,
}

impl Found {
    /// How many lines, or parts of a report, were not read.
    pub fn unread_count(&self) -> u64 {
        self.unread.len() as u64 + self.more_unread
    }
}

/// Rows of a file whose flows have names.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NamedRows {
    /// `flent` or `qlog`; empty: the file is neither.
    pub tool: &'static str,
    /// Times are nanoseconds since 1970.
    pub rows: Vec<Payload>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

/// A line that could not be read, or not wholly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// Counted from 1.
    pub line: u64,
    /// Its beginning.
    pub text: String,
    /// The problem.
    pub reason: String,
}
