//! Problems of a plan and their places.

/// A problem, its place in the plan, and its fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct PlanProblem {
    /// Dotted path of the key, as a user would write it: `links.bottleneck.rate`.
    pub path: String,
    /// The problem and its fix.
    pub reason: String,
    /// An error stops the plan; a warning is a lint about a misleading setup.
    pub severity: Severity,
    /// The line of the key in the plan's text, from 1, or of the nearest table around it; `None` if neither is written: the key
    /// comes from `--set`, or is missing from the top of the plan.
    pub line: Option<u32>,
    /// The segments of the key on that line.
    pub(crate) place: Vec<String>,
}

/// The severity of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The plan runs, but its results may mislead.
    Warning,
    /// The plan cannot run.
    Error,
}

impl std::fmt::Display for Severity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}
