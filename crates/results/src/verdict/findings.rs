//! The problems that the checks of a trial find, and the trial's time span on a node's clock.

use crate::model::{Reason, Status, Verdict};
use crate::reason::ReasonCode;

/// Problems found so far, each with the status that it leads to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Findings(pub(super) Vec<(Status, Reason)>);

impl Findings {
    /// Adds a problem of a subject (see [`Reason::subject`]). The message also names the subject.
    pub(crate) fn add(
        &mut self,
        status: Status,
        code: ReasonCode,
        subject: impl Into<String>,
        message: String,
    ) {
        self.push(status, Reason::about(code, subject, message));
    }

    /// Adds a problem.
    pub(super) fn push(&mut self, status: Status, reason: Reason) {
        debug_assert!(
            status != Status::Failed || reason.code.cause().is_some(),
            "{} fails no trial: ReasonCode::cause",
            reason.code
        );
        self.0.push((status, reason));
    }

    /// Returns the verdict, with the worst reason first.
    pub(super) fn verdict(mut self) -> Verdict {
        self.0.sort_by_key(|(status, _)| std::cmp::Reverse(*status));
        Verdict {
            status: self.0.first().map_or(Status::Ok, |(status, _)| *status),
            reasons: self.0.into_iter().map(|(_, reason)| reason).collect(),
        }
    }
}

/// Start and end of the trial on one node's CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) t0_ns: u64,
    pub(crate) end_ns: u64,
}

impl Span {
    pub(crate) fn contains(&self, at_ns: u64) -> bool {
        self.t0_ns <= at_ns && at_ns <= self.end_ns
    }

    /// Returns seconds since the trial's start.
    pub(crate) fn seconds(&self, at_ns: u64) -> f64 {
        (i128::from(at_ns) - i128::from(self.t0_ns)) as f64 / 1e9
    }
}
