//! What can end a command, and with which exit code.

use std::path::PathBuf;

use ccbench_proto::plan::check::{PlanProblem, Severity};
use ccbench_results::{
    CompareError, ErrorClass, ExportError, FigureError, FileError, ReportError, StoreError,
    SummaryError, TrialError, UnknownGroup,
};

/// An error of the controller.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The plan file cannot be read.
    #[error("cannot read the plan {path}: {source}")]
    PlanFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The plan is wrong; the problems have all been printed.
    #[error("{path}: {}; it cannot be run", counted(problems, *in_traces))]
    Plan {
        /// The file.
        path: PathBuf,
        /// All of them.
        problems: Vec<PlanProblem>,
        /// Problems of its trace files.
        in_traces: usize,
    },
    /// The command makes no sense.
    #[error("{0}")]
    Usage(String),
    /// The topology could not be built on this machine.
    #[error("testbed: {0}")]
    Testbed(String),
    /// An agent could not be reached or refused.
    #[error("node {node}: {step}: {why}")]
    Node {
        /// Its name in the plan.
        node: String,
        /// What was tried.
        step: &'static str,
        /// Its answer.
        why: String,
    },
    /// A node cannot do what the plan asks for.
    #[error("node {node} cannot do what the plan asks for: {why}")]
    Impossible {
        /// Its name in the plan.
        node: String,
        /// What, and the way out.
        why: String,
    },
    /// Results could not be written or read.
    #[error(transparent)]
    Results(#[from] ccbench_results::Error),
    /// A file operation.
    #[error("{op} {path}: {source}")]
    File {
        /// What was tried.
        op: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The lab's machine.
    #[error(transparent)]
    Lab(#[from] crate::lab::LabError),
    /// Certificates.
    #[error("pki: {0}")]
    Pki(String),
    /// Ctrl-C or SIGTERM.
    #[error("interrupted")]
    Interrupted,
}

/// The errors of the results crate's modules, so that `?` takes them.
macro_rules! from_results {
    ($($error:ty),* $(,)?) => {
        $(impl From<$error> for CliError {
            fn from(error: $error) -> Self {
                Self::Results(error.into())
            }
        })*
    };
}

from_results!(
    CompareError,
    ExportError,
    FigureError,
    FileError,
    ReportError,
    StoreError,
    SummaryError,
    TrialError,
    UnknownGroup,
);

/// `2 errors, 1 warning`.
fn counted(problems: &[PlanProblem], in_traces: usize) -> String {
    let plural = |count: usize, word: &str| match count {
        1 => format!("1 {word}"),
        _ => format!("{count} {word}s"),
    };
    let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).count();
    let warnings = match problems.len() - errors {
        0 => String::new(),
        count => format!(", {}", plural(count, "warning")),
    };
    plural(errors + in_traces, "error") + &warnings
}

impl CliError {
    /// The process's exit code (see `ccbench --help`).
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::PlanFile { .. }
            | Self::Plan { .. }
            | Self::Usage(_)
            | Self::Impossible { .. } => 2,
            Self::Results(error) => match error.class() {
                ErrorClass::Usage => 2,
                ErrorClass::Run => 1,
            },
            Self::Testbed(_) | Self::Node { .. } | Self::Pki(_) | Self::Lab(_) => 3,
            Self::File { .. } => 1,
            Self::Interrupted => 130,
        }
    }
}
