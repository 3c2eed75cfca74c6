//! The append-only record of a run. Each line is a JSON object with a CRC-32 of itself, and is durable before anything relies on it. The
//! journal decides which trials exist: readers use a trial's files only if the trial's last line here is a `trial_end`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ccbench_io::input;
use ccbench_proto::column_text::as_text;
use ccbench_proto::plan::timeline::MAX_TRIAL;
use ccbench_proto::schedule::PhaseSpan;
use ccbench_proto::sealed_line::{seal, unseal};
use ccbench_proto::units::Micros;
use ccbench_proto::wire::Via;
use serde::{Deserialize, Serialize};

use super::digest::{Digests, FileDigest};
use super::model::decision::Decision;
use super::model::{NodeClock, Reason, RunStatus, TrialKey, TrialStatus};
use super::reason::Cause;
use crate::error::{FileError, io_error};

mod error;

pub use error::JournalError;

/// The result of reading or writing the journal.
type Result<T, E = JournalError> = std::result::Result<T, E>;

/// The journal's name in the results directory.
pub const FILE_NAME: &str = "journal.ndjson";

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Entry {
    /// The run started or was continued.
    RunStart {
        /// SHA-256 of the resolved plan.
        plan_sha256: String,
        /// The start time in RFC 3339 format.
        started_utc: String,
        /// Files that never change; only in the first `run_start`.
        #[serde(default, skip_serializing_if = "Digests::is_empty")]
        files: Digests,
        /// `run.json` as it is written after this line.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        record: Option<FileDigest>,
    },
    /// A trial began. Earlier content of its directories is invalid.
    TrialBegin {
        /// The point.
        point_id: u32,
        /// The repetition.
        trial: u16,
        /// The trial's seed.
        seed: u64,
        /// Increases with every trial.
        epoch: u64,
    },
    /// A trial's files are in place. This line is the commit.
    TrialEnd(TrialEnd),
    /// A rule of the plan was decided. The decision follows from the plan and the committed trials.
    Decision(Decision),
    /// The run ended.
    RunEnd {
        /// The run's status.
        status: String,
        /// `run.json` as it is written after this line.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        record: Option<FileDigest>,
    },
    /// An entry of a later version.
    #[serde(other)]
    Unknown,
}

/// A committed trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialEnd {
    /// The point.
    pub point_id: u32,
    /// The repetition.
    pub trial: u16,
    /// The trial's seed.
    pub seed: u64,
    /// The trial's epoch.
    pub epoch: u64,
    /// The verdict's status.
    pub status: TrialStatus,
    /// Why the trial is not ok.
    pub reasons: Vec<Reason>,
    /// Rows per table; a table without rows has no file.
    pub rows: BTreeMap<String, u64>,
    /// Number of files, for tables that have more than one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, usize>,
    /// Tables whose rows are in a file that trials share. The trial has no file of its own for such a table.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shared: BTreeMap<String, SharedRows>,
    /// The digest of every table file and raw file. [`RunState`] keeps them separately from the committed trials.
    #[serde(default, skip_serializing_if = "Digests::is_empty")]
    pub digests: Digests,
    /// The phases of the trial.
    pub phases: Vec<PhaseRecord>,
    /// Each node's clock.
    pub clocks: BTreeMap<String, NodeClock>,
    /// What each machine with an agent of its own ran; empty for other nodes, and in runs of earlier versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub boots: BTreeMap<String, NodeBoot>,
    /// The congestion controls of the plan as the nodes loaded them, in the nodes' order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub congestion_controls: Vec<CcRecord>,
}

/// A boot of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBoot {
    /// The kernel's boot ID: `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: String,
}

/// Where a trial's rows of a table begin in a file of a compacted run. The table's row count says where they end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedRows {
    /// The file's path in the results directory.
    pub file: String,
    /// The number of rows before the trial's first.
    pub first_row: u64,
}

/// A congestion control of the plan (`[cc.NAME]`) as loaded into one node's kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CcRecord {
    /// The node.
    pub node: String,
    /// The name in the plan.
    pub name: String,
    /// The algorithm.
    pub algorithm: String,
    /// The name in the kernel, which differs in every trial.
    pub kernel_name: String,
    /// How it was loaded into the kernel.
    #[serde(with = "as_text")]
    pub via: Via,
    /// Why it was loaded that way; `why` in journals of earlier versions.
    #[serde(alias = "why")]
    pub reason: String,
    /// Every parameter, read back from the kernel.
    pub params: BTreeMap<String, String>,
    /// SHA-256 of the user's file, in hexadecimal; empty if the congestion control is ccbench's or the kernel's own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sha256: String,
}

/// A phase as recorded in the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseRecord {
    /// The phase's name.
    pub name: String,
    /// Start, in microseconds after the trial's beginning.
    pub start_us: u64,
    /// End, in microseconds after the trial's beginning.
    pub end_us: u64,
    /// Whether summaries include the phase.
    pub measure: bool,
}

impl From<&PhaseSpan> for PhaseRecord {
    fn from(span: &PhaseSpan) -> Self {
        Self {
            name: span.name.clone(),
            start_us: span.start.get(),
            end_us: span.end.get(),
            measure: span.measure,
        }
    }
}

impl TrialEnd {
    /// Returns a trial with this status and nothing else.
    pub fn new(key: TrialKey, status: TrialStatus) -> Self {
        let TrialKey { point_id, trial, seed, epoch } = key;
        Self {
            point_id,
            trial,
            seed,
            epoch,
            status,
            reasons: vec![],
            rows: BTreeMap::new(),
            files: BTreeMap::new(),
            shared: BTreeMap::new(),
            digests: Digests::new(),
            phases: vec![],
            clocks: BTreeMap::new(),
            boots: BTreeMap::new(),
            congestion_controls: vec![],
        }
    }

    /// Returns whether a resumed run repeats the trial without being asked to: it was aborted, or the infrastructure failed.
    pub fn needs_repeat(&self) -> bool {
        let is_infrastructure =
            |reason: &Reason| reason.code.cause() == Some(Cause::Infrastructure);
        match self.status {
            TrialStatus::Aborted => true,
            TrialStatus::Failed => self.reasons.iter().any(is_infrastructure),
            TrialStatus::Ok | TrialStatus::Degraded => false,
        }
    }

    /// Returns the trial's length in seconds: the end of its last phase.
    pub fn length_s(&self) -> f64 {
        self.phases.iter().map(|phase| phase.end_us).max().unwrap_or(0) as f64 / 1e6
    }
}

impl PhaseRecord {
    /// Returns the phase's length in seconds.
    pub fn seconds(&self) -> f64 {
        Micros::new(self.end_us.saturating_sub(self.start_us)).as_secs_f64()
    }

    /// Returns the start and the end, in seconds after the trial's beginning.
    pub fn span_s(&self) -> (f64, f64) {
        (self.start_us as f64 / 1e6, self.end_us as f64 / 1e6)
    }
}

/// The state of a run according to its journal.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunState {
    /// SHA-256 of the resolved plan, from the first line.
    pub plan_sha256: Option<String>,
    /// Committed trials, by point and repetition.
    pub committed: BTreeMap<(u32, u16), TrialEnd>,
    /// Files of the committed trials; trials written by a version without digests are missing.
    pub digests: BTreeMap<(u32, u16), Digests>,
    /// The decided rules, in the order of the decisions. A repeated trial may change a decision.
    pub decisions: Vec<Decision>,
    /// Files of the run that never change.
    pub run_files: Digests,
    /// Every version of `run.json` that was written, except for those of ccbench versions without digests.
    pub records: Vec<FileDigest>,
    /// Whether a session without digests was resumed by a version with digests.
    pub has_unrecorded: bool,
    /// How the run ended; `None` while a session is active.
    pub ended: Option<RunStatus>,
    /// Trials that began and did not end.
    pub open: BTreeSet<(u32, u16)>,
    /// Highest epoch seen.
    pub last_epoch: u64,
    /// Number of bytes up to the end of the last complete line.
    pub good_bytes: u64,
    /// Number of bytes after it: a line that was being written when the machine or ccbench stopped.
    pub torn_bytes: u64,
}

/// Returns the line for an entry, with its checksum and line feed.
pub(crate) fn line(entry: &Entry) -> Result<String, serde_json::Error> {
    Ok(seal(&serde_json::to_string(entry)?))
}

/// Parses a line without its line feed; `None` if the checksum is wrong or absent.
fn parse(line: &[u8]) -> Option<Entry> {
    serde_json::from_slice(&unseal(line)?).ok()
}

/// Returns the first phase of a trial that ends later than the longest trial can.
fn late_phase(entry: &Entry) -> Option<(&TrialEnd, &PhaseRecord)> {
    let Entry::TrialEnd(end) = entry else { return None };
    end.phases.iter().find(|phase| phase.end_us > MAX_TRIAL.get()).map(|phase| (end, phase))
}

/// Reads a journal's bytes. Only the last line may be torn.
pub fn read(bytes: &[u8], path: &Path) -> Result<RunState> {
    let mut state = RunState::default();
    let mut bad = None;
    let mut at = 0;
    for (index, line) in bytes.split_inclusive(|b| *b == b'\n').enumerate() {
        at += line.len() as u64;
        let entry = line.strip_suffix(b"\n").and_then(parse);
        match (entry, bad) {
            (Some(_), Some(line)) => {
                let path = path.to_path_buf();
                return Err(JournalError::Damaged { path, line });
            }
            (Some(entry), None) => {
                if let Some((end, phase)) = late_phase(&entry) {
                    return Err(JournalError::phase_too_late(path, index + 1, end, phase));
                }
                state.apply(entry);
                state.good_bytes = at;
            }
            (None, _) => bad = bad.or(Some(index + 1)),
        }
    }
    state.torn_bytes = bytes.len() as u64 - state.good_bytes;
    Ok(state)
}

/// Returns the state according to the intact lines, and what is wrong with the others, by their line numbers from 1.
pub(crate) fn read_intact(bytes: &[u8]) -> (RunState, Vec<(usize, &'static str)>) {
    let (mut state, mut bad) = (RunState::default(), vec![]);
    for (line, number) in bytes.split_inclusive(|b| *b == b'\n').zip(1..) {
        match line.strip_suffix(b"\n").and_then(parse) {
            Some(entry) => {
                // Lines that contradict earlier ones may be consequences of a bad line.
                if bad.is_empty() {
                    bad.extend(state.contradiction(&entry).map(|what| (number, what)));
                }
                let late = "has a phase that ends later than a trial can last (a week)";
                bad.extend(late_phase(&entry).map(|_| (number, late)));
                state.apply(entry);
            }
            None => bad.push((number, "is damaged or was only partly written")),
        }
    }
    (state, bad)
}

impl RunState {
    /// Returns why this entry cannot come next in any journal.
    fn contradiction(&self, entry: &Entry) -> Option<&'static str> {
        match entry {
            Entry::RunStart { .. } | Entry::Unknown => None,
            _ if self.plan_sha256.is_none() => Some("comes before the start of the run"),
            Entry::TrialEnd(end) if !self.open.contains(&(end.point_id, end.trial)) => {
                Some("ends a trial that has not begun, or has ended before")
            }
            Entry::TrialBegin { .. }
            | Entry::TrialEnd(_)
            | Entry::Decision(_)
            | Entry::RunEnd { .. } => None,
        }
    }

    /// Returns whether trials share files.
    pub(crate) fn is_compacted(&self) -> bool {
        self.committed.values().any(|end| !end.shared.is_empty())
    }

    /// Applies the next entry.
    pub(crate) fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::RunStart { plan_sha256, files, record, .. } => {
                self.has_unrecorded |= self.plan_sha256.is_some() && self.records.is_empty();
                self.plan_sha256.get_or_insert(plan_sha256);
                self.run_files.extend(files);
                self.records.extend(record);
                self.ended = None;
            }
            Entry::TrialBegin { point_id, trial, epoch, .. } => {
                self.committed.remove(&(point_id, trial));
                self.digests.remove(&(point_id, trial));
                self.open.insert((point_id, trial));
                self.last_epoch = self.last_epoch.max(epoch);
            }
            Entry::TrialEnd(mut end) => {
                let key = (end.point_id, end.trial);
                self.open.remove(&key);
                self.last_epoch = self.last_epoch.max(end.epoch);
                let digests = std::mem::take(&mut end.digests);
                if !digests.is_empty() {
                    self.digests.insert(key, digests);
                }
                self.committed.insert(key, end);
            }
            Entry::Decision(decision) => {
                self.decisions.retain(|known| !known.has_rule_of(&decision));
                self.decisions.push(decision);
            }
            Entry::RunEnd { status, record } => {
                self.records.extend(record);
                self.ended = RunStatus::named(&status);
            }
            Entry::Unknown => {}
        }
    }
}

/// A journal that is open for appending. Its lock admits only one writer.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    path: PathBuf,
    state: RunState,
}

impl Journal {
    /// Creates a journal.
    pub(crate) fn create(dir: &Path) -> Result<Self> {
        let path = dir.join(FILE_NAME);
        let mut options = OpenOptions::new();
        let opened = options.append(true).read(true).create_new(true).open(&path);
        let file = opened.map_err(io_error("create", &path))?;
        lock(&file, dir)?;
        Ok(Self { file, path, state: RunState::default() })
    }

    /// Opens an existing journal. A torn end stays until the next append.
    pub(crate) fn reopen(dir: &Path) -> Result<Self> {
        let path = dir.join(FILE_NAME);
        let opened = OpenOptions::new().append(true).read(true).open(&path);
        let file = opened.map_err(io_error("open", &path))?;
        lock(&file, dir)?;
        let bytes = input::read_open(&file, &input::RECORD).map_err(io_error("read", &path))?;
        let state = read(&bytes, &path)?;
        Ok(Self { file, path, state })
    }

    /// Returns an error if the open file is no longer the one at its path: nobody would find new lines.
    pub(crate) fn check_place(&self) -> Result<()> {
        use std::os::unix::fs::MetadataExt as _;
        let own = self.file.metadata().map_err(io_error("examine", &self.path))?;
        let is_own =
            |found: std::fs::Metadata| (found.dev(), found.ino()) == (own.dev(), own.ino());
        if std::fs::symlink_metadata(&self.path).is_ok_and(is_own) {
            return Ok(());
        }
        let path = self.path.parent().unwrap_or(&self.path).to_path_buf();
        Err(JournalError::Moved { path })
    }

    /// Removes the beginning of a line, which a killed process left or a failed append could not remove. If another line followed it, the journal would be damaged.
    fn remove_torn_line(&self) -> Result<()> {
        let bytes = self.file.metadata().map_err(io_error("examine", &self.path))?.len();
        if bytes > self.state.good_bytes {
            self.file.set_len(self.state.good_bytes).map_err(io_error("truncate", &self.path))?;
        }
        Ok(())
    }

    /// Appends an entry. The entry is durable when this returns.
    pub(crate) fn append(&mut self, entry: Entry) -> Result<()> {
        self.check_place()?;
        self.remove_torn_line()?;
        let line = line(&entry).map_err(|source| FileError::Json {
            op: "write a line of",
            path: self.path.clone(),
            source,
        })?;
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        if let Err(e) = written {
            // Readers skip a partial line, and the next append removes it. The first error is the one to report.
            let _ = self.file.set_len(self.state.good_bytes);
            return Err(io_error("append to", &self.path)(e).into());
        }
        self.state.good_bytes += line.len() as u64;
        self.state.apply(entry);
        Ok(())
    }

    /// Returns the state so far.
    pub(crate) fn state(&self) -> &RunState {
        &self.state
    }

    /// Returns the state, to mark damaged trials. The file keeps what was committed.
    pub(crate) fn state_mut(&mut self) -> &mut RunState {
        &mut self.state
    }
}

/// Returns whether a process holds the journal's lock, and so writes to it. Also true if the file cannot be read or locked.
pub(crate) fn is_written(dir: &Path) -> bool {
    !File::open(dir.join(FILE_NAME)).is_ok_and(|file| !is_locked(&file))
}

/// Returns whether a process holds the lock of this journal, and so writes to it. Also true if it cannot be locked. Otherwise the file has
/// a shared lock until it is closed.
pub fn is_locked(journal: &File) -> bool {
    journal.try_lock_shared().is_err()
}

/// Maximum number of tries.
const MAX_TRIES: u32 = 10_000;

/// Locks a journal for its writer. Waits for readers, which share the lock for an instant ([`is_written`]).
fn lock(file: &File, dir: &Path) -> Result<()> {
    lock_with(file, dir, || std::thread::sleep(Duration::from_millis(1)))
}

/// As [`lock`], with this pause between two tries.
fn lock_with(file: &File, dir: &Path, mut pause: impl FnMut()) -> Result<()> {
    for _ in 0..MAX_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(e)) => {
                return Err(io_error("lock the journal of", dir)(e).into());
            }
            // Unlike a reader, a writer holds the lock exclusively.
            Err(TryLockError::WouldBlock) if file.try_lock_shared().is_err() => break,
            Err(TryLockError::WouldBlock) => {
                file.unlock().map_err(io_error("unlock the journal of", dir))?;
                pause();
            }
        }
    }
    Err(JournalError::Locked { path: dir.to_path_buf() })
}

#[cfg(test)]
mod tests;
