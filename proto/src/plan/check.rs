//! Cross-field rules: a plan becomes a [`CheckedPlan`], or the list of all that is wrong with it.

use super::Plan;

/// A plan that passed every check. Only [`check`] makes one; only it can be scheduled.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedPlan(Plan);

/// One problem, its place in the plan, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {why}")]
pub struct PlanProblem {
    /// Dotted path of the key, as a user would write it: `links.bottleneck.rate`.
    pub path: String,
    /// What is wrong and how to mend it.
    pub why: String,
    /// An error stops the plan; a warning is a lint about something that misleads.
    pub severity: Severity,
}

/// How bad a problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The plan runs, but its results may mislead.
    Warning,
    /// The plan cannot run.
    Error,
}

impl CheckedPlan {
    /// The plan's contents.
    pub fn plan(&self) -> &Plan {
        &self.0
    }
}
