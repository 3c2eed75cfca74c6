//! Why a command failed, and the exit code that follows from it.

use std::path::{Path, PathBuf};

use ccbench_proto::manifest::ManifestError;
use ccbench_store::ObjectError;

use crate::backend::error::BackendError;
use crate::exit::{ExitCode, from_results, of_results};
use crate::file::FileError;
use crate::lab::error::LabError;
use crate::paths::agent_binary;
use crate::pki::PkiError;
use crate::plan_source::PlanSourceError;
use crate::provision::ProvisionError;
use crate::run_cache::RunCacheError;
use crate::shard::ShardRunError;
use crate::view::ViewError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The command line does not fit the plan, the results or the machine.
    #[error("{0}")]
    Usage(String),
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
    /// A run cannot be copied to the cache.
    #[error(transparent)]
    RunCache(#[from] RunCacheError),
    /// The plan cannot run on a testbed.
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    /// A testbed's manifest cannot be used.
    #[error("{}: {source}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ManifestError,
    },
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
    /// A scheduler cannot take jobs from this machine.
    #[error("{0}")]
    Scheduler(String),
    /// A scheduler did not answer when a job was submitted, and may have the job.
    #[error("{0}")]
    SchedulerLost(String),
    /// A job is in Slurm's queue but not in the store, where the next command would look for it.
    #[error(
        "job {id} is in Slurm's queue, but the store cannot keep its ID: {source}; cancel the job (`scancel {id}`) or wait for its end \
         (`squeue --jobs {id}`), then repeat the command: it does not know this job and would run the same shards again"
    )]
    JobNotRecorded {
        /// The job.
        id: String,
        /// Why.
        source: Box<ShardRunError>,
    },
    /// The asynchronous runtime or its signal handlers are not available.
    #[error("cannot {op}: {source}")]
    Runtime {
        /// What was tried.
        op: &'static str,
        /// Why.
        source: std::io::Error,
    },
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
            Self::Usage(_) | Self::Plan(_) | Self::Provision(_) | Self::Manifest { .. } => {
                ExitCode::Usage
            }
            Self::Backend(error) => error.exit_code(),
            Self::Shard(error) => error.exit_code(),
            Self::JobNotRecorded { source, .. } => source.exit_code(),
            Self::Terminated => ExitCode::Terminated,
            Self::Lab(error) => error.exit_code(),
            Self::Results(error) => of_results(error),
            Self::RunCache(RunCacheError::Limit(_)) => ExitCode::Usage,
            Self::RunCache(_) | Self::File(_) | Self::Runtime { .. } => ExitCode::Failure,
            Self::Pki(error) => error.exit_code(),
            Self::View(error) => error.exit_code(),
            Self::StartProgram { .. } | Self::Scheduler(_) | Self::SchedulerLost(_) => {
                ExitCode::Unavailable
            }
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
