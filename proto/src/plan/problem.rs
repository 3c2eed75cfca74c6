//! Problems of a plan and their places.

/// One problem, its place in the plan, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct PlanProblem {
    /// Dotted path of the key, as a user would write it: `links.bottleneck.rate`.
    pub path: String,
    /// The problem and its fix.
    pub reason: String,
    /// An error stops the plan; a warning is a lint about a misleading setup.
    pub severity: Severity,
    /// Line of the plan's text, from 1, with the key or the nearest table around it; `None` when it is written
    /// nowhere: from `--set`, or missing from the plan as a whole.
    pub line: Option<u32>,
    /// The segments of the key whose line that is.
    pub(crate) place: Vec<String>,
}

/// How bad a problem is.
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
