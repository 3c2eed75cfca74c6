//! Why a results directory cannot be created, opened, resumed or finished.

use std::path::PathBuf;

use crate::error::{ErrorClass, FileError};
use crate::journal::JournalError;

/// A results directory cannot be created, opened, resumed or finished.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The directory was not made by ccbench.
    #[error(
        "{} is not a results directory of ccbench ({reason}); give the directory that `ccbench run` printed",
        path.display()
    )]
    NotResults {
        /// The directory.
        path: PathBuf,
        /// What is missing.
        reason: &'static str,
    },
    /// The path is a plan, not a results directory.
    #[error(
        "{} is a plan, not a results directory; `ccbench run {}` runs it and prints the directory",
        path.display(), path.display()
    )]
    IsPlan {
        /// The file.
        path: PathBuf,
    },
    /// The plan of a resumed run resolves to something else.
    #[error(
        "{} holds a run of another plan (its resolved plan has sha256 {found}, this one {expected}); \
         continue with the version of ccbench that began it (run.json names it), or start a new run of {}/plan.toml",
        path.display(), path.display()
    )]
    OtherPlan {
        /// The results directory.
        path: PathBuf,
        /// SHA-256 of the plan that the directory was made for.
        found: String,
        /// SHA-256 of the plan given now.
        expected: String,
    },
    /// The resolved plan or `run.json` is not the one that the run wrote.
    #[error(
        "{}/{file} is damaged ({what}), so numbers and claims of the run would be wrong; restore it from a copy; \
         `ccbench verify {}` lists all damaged files",
        path.display(), path.display()
    )]
    Damaged {
        /// The results directory.
        path: PathBuf,
        /// The file's name.
        file: &'static str,
        /// What is wrong.
        what: String,
    },
    /// A trace or a congestion control of a resumed run is not the one with which it began.
    #[error(
        "{}/{file} is not the file with which the run began ({what}), so the remaining trials would differ from the earlier ones; restore it \
         from a copy, or start a new run; `ccbench verify {}` lists all damaged files",
        path.display(), path.display()
    )]
    OtherFile {
        /// The results directory.
        path: PathBuf,
        /// The file's path in it.
        file: String,
        /// What is wrong with the file there.
        what: String,
    },
    /// The journal of a complete run lacks a trial, so apparent leftovers are that trial's data.
    #[error(
        "{}/journal.ndjson is damaged: it lacks trial {trial} of point {point_id}, which run.json of the complete run has, and \
         resuming would remove its data; restore the file from a copy; `ccbench verify {}` lists all damaged files",
        path.display(), path.display()
    )]
    LostTrial {
        /// The results directory.
        path: PathBuf,
        /// The point.
        point_id: u32,
        /// The repetition.
        trial: u16,
    },
    /// The run's trials share files, so it cannot be continued.
    #[error(
        "{} is compacted, so its trials cannot be repeated; merge the shards again without --compact, and resume that run",
        path.display()
    )]
    Compacted {
        /// The results directory.
        path: PathBuf,
    },
    /// The directory for an import is not empty.
    #[error("{} is not empty; name a directory that does not exist yet", path.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
}

impl StoreError {
    /// Returns who has to act.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::File(error) => error.class(),
            Self::Journal(error) => error.class(),
            Self::NotResults { .. }
            | Self::IsPlan { .. }
            | Self::Compacted { .. }
            | Self::NotEmpty { .. } => ErrorClass::Usage,
            Self::OtherPlan { .. }
            | Self::Damaged { .. }
            | Self::OtherFile { .. }
            | Self::LostTrial { .. } => ErrorClass::Run,
        }
    }
}
