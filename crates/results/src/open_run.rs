//! An open results directory, shared by its reader and the writers of its trials: `run.json` and the journal behind one lock.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::columns::TABLES;
use super::journal::{Entry, Journal, JournalError, RunState};
use super::layout::{remove, trial_dir};
use super::model::RunStatus;
use super::record::RunRecord;
use crate::error::FileError;

/// State that a run's directory handle and its trial writers share.
#[derive(Debug)]
pub(crate) struct OpenRun {
    pub(crate) path: PathBuf,
    pub(crate) plan_sha256: String,
    pub(crate) ccbench_version: String,
    /// Maximum number of rows of a row group.
    pub(crate) row_group_rows: usize,
    pub(crate) state: Mutex<State>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) record: RunRecord,
    pub(crate) log: Log,
}

impl State {
    /// Returns the status in `run.json`, or the journal's if `run.json` could not be replaced at the end of the run.
    pub(crate) fn status(&self) -> RunStatus {
        match (self.record.status, self.log.state().ended) {
            (RunStatus::Running, Some(ended)) => ended,
            (status, _) => status,
        }
    }
}

/// The journal: open for writing, or as read when the directory was opened for reading.
#[derive(Debug)]
pub(crate) enum Log {
    Write(Journal),
    Read(RunState),
}

impl Log {
    pub(crate) fn state(&self) -> &RunState {
        match self {
            Self::Write(journal) => journal.state(),
            Self::Read(state) => state,
        }
    }

    pub(crate) fn state_mut(&mut self) -> &mut RunState {
        match self {
            Self::Write(journal) => journal.state_mut(),
            Self::Read(state) => state,
        }
    }
}

impl OpenRun {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere does not damage the journal.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an error if the directory is no longer at its path.
    pub(crate) fn check_place(&self) -> Result<(), JournalError> {
        match &self.state().log {
            Log::Write(journal) => journal.check_place(),
            Log::Read(_) => Ok(()),
        }
    }

    /// Appends to the journal, durably. The directory must still be at its path.
    pub(crate) fn append(&self, entry: Entry) -> Result<(), JournalError> {
        match &mut self.state().log {
            Log::Write(journal) => journal.append(entry),
            Log::Read(_) => Err(JournalError::ReadOnly { path: self.path.clone() }),
        }
    }

    /// Removes all files from a trial's directories.
    pub(crate) fn clear(&self, point_id: u32, trial: u16) -> Result<(), FileError> {
        let tables = TABLES.iter().map(|table| self.path.join("tables").join(table));
        for parent in tables.chain([self.path.join("raw")]) {
            let dir = trial_dir(&parent, point_id, trial);
            if dir.exists() {
                remove(&dir)?;
            }
        }
        Ok(())
    }
}
