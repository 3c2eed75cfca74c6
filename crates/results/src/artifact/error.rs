//! Why a run cannot be packed, unpacked or compared.

use std::path::{Path, PathBuf};

use super::RERUN;
use super::tar::TarError;
use crate::error::{ErrorClass, FileError};
use crate::store::StoreError;
use crate::summarize::SummaryError;

/// An artifact cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArtifactError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A results directory cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The claims cannot be judged.
    #[error(transparent)]
    Summary(#[from] SummaryError),
    /// An archive cannot be opened.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The archive.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// An archive cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The archive.
        path: PathBuf,
        /// Why.
        source: TarError,
    },
    /// The archive would be inside the run that it is made from.
    #[error(
        "cannot write {}: it is inside the results directory {}, so the next archive would contain it; choose another --output",
        path.display(), run.display()
    )]
    OutputInRun {
        /// The archive.
        path: PathBuf,
        /// The results directory.
        run: PathBuf,
    },
    /// An archive cannot be unpacked.
    #[error("cannot unpack {}: {source}{}", path.display(), remedy(source))]
    Unpack {
        /// The archive.
        path: PathBuf,
        /// Why.
        source: TarError,
    },
    /// The artifact's directory exists.
    #[error(
        "{} exists, and a rerun starts over; choose another --directory{}",
        path.display(), removable(path)
    )]
    Exists {
        /// The directory.
        path: PathBuf,
    },
    /// The directory or archive is not an artifact.
    #[error("{} is not an artifact: {reason}", path.display())]
    NotAnArtifact {
        /// The directory or archive.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// The run cannot be repeated.
    #[error("{} cannot be an artifact: {reason}", path.display())]
    Unfit {
        /// The results directory.
        path: PathBuf,
        /// Why.
        reason: &'static str,
    },
    /// The results directory has a symbolic link or a special file.
    #[error("{} is neither a regular file nor a directory, so it cannot be in an artifact; remove it", path.display())]
    NotRegular {
        /// The file.
        path: PathBuf,
    },
    /// Files of a run have changed since they were committed.
    #[error(
        "{} is damaged (files: {count}); the first is {first}; `ccbench verify {}` lists all", path.display(), path.display()
    )]
    Damaged {
        /// The results directory.
        path: PathBuf,
        /// Number of files.
        count: usize,
        /// The first damaged file, and what is wrong with it.
        first: String,
    },
    /// The artifact has not been run again.
    #[error("{} has no complete rerun; run `ccbench artifact rerun` first", path.display())]
    NoRerun {
        /// The unpacked artifact.
        path: PathBuf,
    },
    /// The artifact has no such claim.
    #[error("there is no claim {number}; the artifact has {count}, numbered from 1")]
    NoSuchClaim {
        /// The number as given.
        number: usize,
        /// Number of claims in the artifact.
        count: usize,
    },
}

/// Returns what the user can do about an existing directory. One without a rerun may be that of the run itself.
fn removable(path: &Path) -> &'static str {
    if path.join(RERUN).is_dir() { ", or remove this earlier rerun" } else { "" }
}

/// Returns what the user can do about a refused archive.
const fn remedy(refused: &TarError) -> &'static str {
    match refused {
        TarError::TooLarge { .. } => {
            "; if you trust the archive, unpack it with a larger --max-gib"
        }
        _ => "",
    }
}

impl ArtifactError {
    /// Returns who has to act.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::File(error) => error.class(),
            Self::Store(error) => error.class(),
            Self::Summary(error) => error.class(),
            Self::Unreadable { .. }
            | Self::OutputInRun { .. }
            | Self::Exists { .. }
            | Self::NotAnArtifact { .. }
            | Self::Unfit { .. }
            | Self::NotRegular { .. }
            | Self::NoRerun { .. }
            | Self::NoSuchClaim { .. } => ErrorClass::Usage,
            Self::Write { .. } | Self::Unpack { .. } | Self::Damaged { .. } => ErrorClass::Run,
        }
    }
}
