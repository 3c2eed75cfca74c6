//! Why a journal cannot be read or written.

use std::path::{Path, PathBuf};

use ccbench_proto::plan::timeline::MAX_TRIAL;
use ccbench_proto::units::Micros;

use super::{PhaseRecord, TrialEnd};
use crate::error::{ErrorClass, FileError};

/// The journal cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A line other than the last fails its checksum.
    #[error(
        "{}: line {line} is damaged, and lines follow it, so this is not an interrupted write; \
         restore the file from a copy, or remove that line and every later one to resume from there",
        path.display()
    )]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
    },
    /// A phase ends later than that of any trial can: its instants would not fit into memory.
    #[error(
        "{}: line {line}: `phases` of trial {trial} of point {point_id}: `{phase}` ends {end} after the trial's beginning, but a trial \
         lasts at most a week ({}); restore the file from a copy, or repeat the run",
        path.display(), MAX_TRIAL
    )]
    PhaseTooLate {
        /// The journal.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// The point.
        point_id: u32,
        /// The repetition.
        trial: u16,
        /// The phase's name.
        phase: String,
        /// When the phase ends, after the trial's beginning.
        end: Micros,
    },
    /// The results directory is no longer at its path.
    #[error(
        "the results directory {} was removed, renamed or replaced while it was written; this run ends, and its later \
         trials are lost. Put it back and use `ccbench run --resume DIR`, or start a new run",
        path.display()
    )]
    Moved {
        /// Where it was.
        path: PathBuf,
    },
    /// Another process writes to the results directory.
    #[error("another ccbench is writing to {}; wait for it to end, or stop it", path.display())]
    Locked {
        /// The results directory.
        path: PathBuf,
    },
    /// The results directory was opened for reading.
    #[error("{} is open for reading only", path.display())]
    ReadOnly {
        /// The results directory.
        path: PathBuf,
    },
}

impl JournalError {
    /// Returns the error for a trial in this line with a phase that ends later than the longest trial can.
    pub(super) fn phase_too_late(
        path: &Path,
        line: usize,
        trial: &TrialEnd,
        phase: &PhaseRecord,
    ) -> Self {
        Self::PhaseTooLate {
            path: path.to_path_buf(),
            line,
            point_id: trial.point_id,
            trial: trial.trial,
            phase: phase.name.clone(),
            end: Micros::new(phase.end_us),
        }
    }

    /// Returns who has to act.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::File(error) => error.class(),
            Self::Damaged { .. }
            | Self::PhaseTooLate { .. }
            | Self::Moved { .. }
            | Self::Locked { .. }
            | Self::ReadOnly { .. } => ErrorClass::Run,
        }
    }
}
