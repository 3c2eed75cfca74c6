//! Why tables cannot be exported.

use std::path::PathBuf;

use crate::error::{ErrorClass, FileError};
use crate::store::StoreError;

/// The result of an export.
pub type Result<T, E = ExportError> = std::result::Result<T, E>;

/// Tables cannot be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The results directory cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The run has no such table.
    #[error("there is no table `{table}` in this run; there are: {known}{near}")]
    UnknownTable {
        /// The table as given.
        table: String,
        /// The tables that exist.
        known: String,
        /// The one that was probably meant, beginning with "; "; may be empty.
        near: String,
    },
    /// There are several tables for standard output.
    #[error("standard output is for one table; name it with --table (there are: {known})")]
    ManyTables {
        /// The tables that exist.
        known: String,
    },
    /// The run has no rows for the other tool's format.
    #[error("{}: nothing to export: {reason}; `ccbench export csv` writes every table that the run has", path.display())]
    NoData {
        /// The results directory.
        path: PathBuf,
        /// What is missing.
        reason: &'static str,
    },
}

impl ExportError {
    /// Returns who has to act.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::File(error) => error.class(),
            Self::Store(error) => error.class(),
            Self::UnknownTable { .. } | Self::ManyTables { .. } | Self::NoData { .. } => {
                ErrorClass::Usage
            }
        }
    }
}
