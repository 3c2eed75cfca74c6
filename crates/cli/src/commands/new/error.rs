//! Why no plan can be written from answers.

use std::io;
use std::path::PathBuf;

use crate::exit::ExitCode;

/// A plan cannot be made from the answers.
#[derive(Debug, thiserror::Error)]
pub enum NewError {
    /// The file exists.
    #[error("{} already exists, and `ccbench new` overwrites nothing; give another file", .0.display())]
    Exists(PathBuf),
    /// A limit was given for a discipline that keeps the kernel's.
    #[error(
        "--buffer sets the limit of a FIFO, but {queue} keeps the kernel's limit; leave out --buffer, or use --queue bfifo"
    )]
    NoFifo {
        /// The discipline.
        queue: &'static str,
    },
    /// A default cannot be parsed.
    #[error("{text}: {source}")]
    Default {
        /// The default.
        text: &'static str,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The working directory, to which the paths in an answer are relative, is unknown.
    #[error("cannot find a file: {0}")]
    WorkingDirectory(#[source] io::Error),
    /// Standard input cannot be read.
    #[error("cannot read the answer: {0}")]
    Input(#[source] io::Error),
}

impl NewError {
    /// Returns the process's exit code.
    pub const fn exit_code(&self) -> ExitCode {
        match self {
            Self::Exists(_) | Self::NoFifo { .. } | Self::Default { .. } => ExitCode::Usage,
            Self::WorkingDirectory(_) | Self::Input(_) => ExitCode::Failure,
        }
    }
}
