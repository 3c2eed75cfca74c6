//! Why files are not imported.

use std::path::PathBuf;

use ccbench_proto::plan::timeline::MAX_TRIAL;

/// Largest trial number. It leaves room for a count of all trials.
pub const MAX_NUMBER: u16 = u16::MAX - 1;

/// The files, or the options about them, do not make a run.
#[derive(Debug, thiserror::Error)]
pub enum ImportUsageError {
    /// The phases are invalid.
    #[error("--phase: {reason}")]
    Phases {
        /// Why.
        reason: String,
    },
    /// A file does not exist.
    #[error("cannot read {}: {source}", path.display())]
    NotFound {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// No file has output of a known tool.
    #[error(
        "none of {files} file(s) has output of ss, iperf3, ping or flent, or is a qlog file; nothing was written"
    )]
    NothingKnown {
        /// The number of files.
        files: usize,
    },
    /// The trial number in a name is too large.
    #[error(
        "{}: its name has the trial number {number}, but trials are 0 to {MAX_NUMBER}; rename the file",
        path.display()
    )]
    Number {
        /// The file.
        path: PathBuf,
        /// The number.
        number: String,
    },
    /// The files that are numbered by the times in their names are too many.
    #[error(
        "{}: it would be trial {number}, but trials are 0 to {MAX_NUMBER}; rename the files",
        path.display()
    )]
    NumberByTime {
        /// The file.
        path: PathBuf,
        /// Its number.
        number: usize,
    },
    /// Two files have the same contents.
    #[error(
        "{} and {} have the same content, which would count twice; leave one of them out",
        first.display(),
        second.display()
    )]
    Copies {
        /// A file.
        first: PathBuf,
        /// The other file.
        second: PathBuf,
    },
    /// A trial would exceed the limit.
    #[error(
        "trial {trial}: the phase `all` would last {} s, from {begin_s} s to {end_s} s after 1970-01-01; the latest timestamp is in {}. A \
         trial lasts at most a week ({MAX_TRIAL}): correct the timestamps, or give phases with --phase NAME=LENGTH",
        end_s - begin_s,
        latest.display()
    )]
    TooLong {
        /// The trial.
        trial: u16,
        /// The time of its first row.
        begin_s: u64,
        /// The time of its last row.
        end_s: u64,
        /// The file with the latest timestamp.
        latest: PathBuf,
    },
}
