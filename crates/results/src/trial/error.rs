//! Why a trial's rows cannot be written or committed.

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{ErrorClass, FileError};
use crate::journal::JournalError;
use crate::writer_thread::WriteError;

/// A trial's rows cannot be written or committed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrialError {
    /// A file or directory cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The writing thread failed; every later call of the trial returns the same error.
    #[error(transparent)]
    Write(#[from] Arc<WriteError>),
    /// The trial has been committed before.
    #[error("{} exists already: point {point_id}, trial {trial} was committed before", path.display())]
    Exists {
        /// The existing directory.
        path: PathBuf,
        /// The point.
        point_id: u32,
        /// The repetition.
        trial: u16,
    },
    /// A row comes from a node whose clock is not known.
    #[error("rows of node `{node}` arrived, but the trial began without that node's clock")]
    UnknownNode {
        /// The node.
        node: String,
    },
    /// A raw file's name leads out of the trial's directory, or there are too many raw files.
    #[error("node `{node}` sent a raw file named `{name}`: {reason}")]
    RawFile {
        /// The node.
        node: String,
        /// The file's name.
        name: String,
        /// What is wrong.
        reason: &'static str,
    },
}

impl TrialError {
    /// Returns who has to act.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::File(error) => error.class(),
            Self::Journal(error) => error.class(),
            Self::Write(_)
            | Self::Exists { .. }
            | Self::UnknownNode { .. }
            | Self::RawFile { .. } => ErrorClass::Run,
        }
    }
}
