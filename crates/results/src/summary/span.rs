//! Spans of time in a trial.

/// Start and end in seconds since the start of the trial.
pub(crate) type Span = (f64, f64);

/// A flow group: number of flows, start and end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    pub(crate) flows: u32,
    pub(crate) span: Span,
}
