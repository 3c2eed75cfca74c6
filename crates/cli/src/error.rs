//! Why a command failed, and the exit code that follows from it. Only commands return this error, which knows all others: other modules
//! return their own.

use std::path::{Path, PathBuf};

use ccbench_store::ObjectError;

use crate::backend::choice::BackendChoiceError;
use crate::backend::error::BackendError;
use crate::collect::CollectError;
use crate::commands::artifact::error::ArtifactUsageError;
use crate::commands::exec::error::ExecUsageError;
use crate::commands::import::error::ImportUsageError;
use crate::commands::merge::error::MergeUsageError;
use crate::commands::new::error::NewError;
use crate::commands::plan::UnknownTable;
use crate::commands::record::error::RecordUsageError;
use crate::commands::reproduce::error::ReproduceUsageError;
use crate::commands::reset::error::ResetUsageError;
use crate::commands::results::error::CompareUsageError;
use crate::commands::run::error::RunUsageError;
use crate::commands::scorecard::error::ScorecardUsageError;
use crate::commands::submit::error::SubmitError;
use crate::commands::testbed::error::TestbedUsageError;
use crate::commands::trace::error::TraceUsageError;
use crate::exit::{ExitCode, from_results, of_results};
use crate::file::FileError;
use crate::lab::error::LabError;
use crate::paths::agent_binary;
use crate::pki::PkiError;
use crate::plan_source::PlanSourceError;
use crate::provision::ProvisionError;
use crate::readable_run::ReadableRunError;
use crate::runtime::RuntimeError;
use crate::shard::ShardRunError;
use crate::view::ViewError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// No artifact is rerun.
    #[error(transparent)]
    Artifact(#[from] ArtifactUsageError),
    /// Runs are not compared.
    #[error(transparent)]
    Compare(#[from] CompareUsageError),
    /// No experiment is entered.
    #[error(transparent)]
    Exec(#[from] ExecUsageError),
    /// No files are imported.
    #[error(transparent)]
    Import(#[from] ImportUsageError),
    /// No shards are merged.
    #[error(transparent)]
    Merge(#[from] MergeUsageError),
    /// No new plan is written.
    #[error(transparent)]
    New(#[from] NewError),
    /// The reference of plans has no such table.
    #[error(transparent)]
    Reference(#[from] UnknownTable),
    /// No path is recorded.
    #[error(transparent)]
    Record(#[from] RecordUsageError),
    /// No experiment is reproduced.
    #[error(transparent)]
    Reproduce(#[from] ReproduceUsageError),
    /// No node is reset.
    #[error(transparent)]
    Reset(#[from] ResetUsageError),
    /// No plan is run.
    #[error(transparent)]
    Run(#[from] RunUsageError),
    /// No congestion control is measured.
    #[error(transparent)]
    Scorecard(#[from] ScorecardUsageError),
    /// No shards are submitted.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// No request to a testbed is written.
    #[error(transparent)]
    Testbed(#[from] TestbedUsageError),
    /// A trace cannot be read, written or generated.
    #[error(transparent)]
    Trace(#[from] TraceUsageError),
    /// The options name no backend, or another one than that of a resumed run.
    #[error(transparent)]
    BackendChoice(#[from] BackendChoiceError),
    /// The plan cannot be read or is invalid.
    #[error(transparent)]
    Plan(#[from] PlanSourceError),
    /// The backend cannot run trials.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The lab's kernel cannot be built or booted.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A shard cannot be run.
    #[error(transparent)]
    Shard(#[from] ShardRunError),
    /// A shard store cannot be read.
    #[error(transparent)]
    Collect(#[from] CollectError),
    /// A run cannot be read.
    #[error(transparent)]
    ReadableRun(#[from] ReadableRunError),
    /// The plan cannot run on a testbed.
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    /// SIGTERM ended a shard.
    #[error("terminated; finished trials are in the store, and the same command runs the others")]
    Terminated,
    /// Results cannot be written or read.
    #[error(transparent)]
    Results(#[from] ccbench_results::Error),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A certificate cannot be issued.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// A live view cannot be shown.
    #[error(transparent)]
    View(#[from] ViewError),
    /// A program that replaces this process cannot be executed.
    #[error("cannot start {}: {source}{}", path.display(), agent_hint(path))]
    StartProgram {
        /// The program.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The asynchronous runtime or its signal handlers are not available.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

from_results!(
    CliError: ArtifactError,
    CompareError,
    ExportError,
    FigureError,
    FileError,
    MergeError,
    RecordedError,
    ReportError,
    StoreError,
    SummaryError,
    TrialError,
    UnknownGroup,
);

impl From<ObjectError> for CliError {
    fn from(error: ObjectError) -> Self {
        ShardRunError::from(error).into()
    }
}

impl CliError {
    /// Returns the process's exit code (see `ccbench --help`).
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Artifact(_)
            | Self::Compare(_)
            | Self::Exec(_)
            | Self::Import(_)
            | Self::Merge(_)
            | Self::Reference(_)
            | Self::Record(_)
            | Self::Reproduce(_)
            | Self::Reset(_)
            | Self::Run(_)
            | Self::Scorecard(_)
            | Self::Testbed(_)
            | Self::Trace(_)
            | Self::BackendChoice(_)
            | Self::Plan(_)
            | Self::Provision(_) => ExitCode::Usage,
            Self::New(error) => error.exit_code(),
            Self::Submit(error) => error.exit_code(),
            Self::Backend(error) => error.exit_code(),
            Self::Shard(error) => error.exit_code(),
            Self::Collect(error) => error.exit_code(),
            Self::ReadableRun(error) => error.exit_code(),
            Self::Terminated => ExitCode::Terminated,
            Self::Lab(error) => error.exit_code(),
            Self::Results(error) => of_results(error),
            Self::File(_) | Self::Runtime(_) => ExitCode::Failure,
            Self::Pki(error) => error.exit_code(),
            Self::View(error) => error.exit_code(),
            Self::StartProgram { .. } => ExitCode::Unavailable,
        }
    }
}

/// Returns a hint on how to get the agent, if the program is the agent.
fn agent_hint(program: &Path) -> &'static str {
    if program == agent_binary() {
        "; build it (`make`) or set CCBENCH_AGENT to its path"
    } else {
        ""
    }
}
