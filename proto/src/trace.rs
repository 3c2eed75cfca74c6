//! A trace: how a link's characteristics change in time. Pure; formats are read and written here as text
//! or bytes, files are the callers'.

use std::sync::Arc;

use crate::plan::impair::{OnEnd, TraceStart};
use crate::units::{Ppm, Rate};

/// How a link changes in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trace {
    /// Piecewise constant.
    Steps(Steps),
    /// mahimahi's: instants at which one packet of up to [`Opportunities::bytes`] may leave.
    Opportunities(Opportunities),
}

/// Piecewise constant characteristics. At least one step; the first begins at 0; instants grow strictly;
/// `length_ns` is beyond the last instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steps {
    /// In order of time.
    pub steps: Vec<Step>,
    /// When the last step ends, nanoseconds after the trace's beginning.
    pub length_ns: u64,
}

/// Characteristics from an instant on. What is absent stays as the link's configuration has it.
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
    /// Line of the file that this is from, from 1; 0 if from none.
    pub line: u32,
}

/// Delivery opportunities. At least one; instants do not shrink (several may be equal).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opportunities {
    /// Nanoseconds after the trace's beginning, each an opportunity.
    pub at_ns: Vec<u64>,
    /// IP bytes that one opportunity carries (mahimahi: 1504, of which 4 are its TUN header).
    pub bytes: u32,
    /// When the trace ends: mahimahi's last instant.
    pub length_ns: u64,
}

/// A trace and how a link uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// Shared: traces can be long.
    pub trace: Arc<Trace>,
    /// Its file's name, for messages and rows.
    pub name: String,
    /// What follows its last row.
    pub on_end: OnEnd,
    /// When it begins.
    pub start: TraceStart,
    /// Rows below this rate are raised to it.
    pub floor: Option<Rate>,
}
