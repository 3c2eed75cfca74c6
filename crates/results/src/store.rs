//! The results directory: created once, then opened to resume the run or to read it.
//!
//! ```text
//! results/<plan>-<utc>-<shorthash>/
//!   plan.toml  plan.resolved.toml  run.json  journal.ndjson  points.parquet  traces/<file>
//!   tables/<table>/point=<id>/trial-<nn>/part-0.parquet    compacted: tables/<table>/part-0.parquet
//!   raw/point=<id>/trial-<nn>/<node>/<file>
//! ```
//!
//! `point=<id>` is a Hive key: Polars, pandas and DuckDB read a whole table from its one directory and skip files by `point`. The trial's
//! directory is deliberately not a Hive key: every file has a column `trial`, and a key with the same name makes pandas refuse the
//! directory and DuckDB turn the column into text. `point_id` and `trial` are columns, so every file is complete without its path.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use super::backend::RunBackend;
use super::curve::TraceCapacities;
use super::damage::{self, Depth};
use super::digest::{Digests, FileDigest};
use super::journal::{self, Entry, Journal, RunState, TrialEnd};
use super::layout::{RESOLVED_PLAN, RUN_FILES, table_files, trial_dir};
use super::model::decision::Decision;
use super::model::{Levels, NodeClock, Reason, RunInfo, RunStatus, TrialKey, TrialStatus};
use super::observer::Observer;
use super::open_run::{Log, OpenRun, State};
use super::parquet_file::SharedMetadata;
use super::part::{self, sync};
use super::points;
use super::record::{self, RunRecord, RunSession, replace};
use super::trial::TrialError;
use super::trial::TrialWriter;
use crate::error::{FileError, io_error};
use crate::trace::stored;
use ccbench_io::input;
use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::schedule::PhaseSpan;

pub(crate) mod error;
mod fill;
mod kernels;
mod plan;
mod reopen;

pub use error::StoreError;
pub use kernels::Kernel;
use plan::StoredPlan;
use reopen::reopen;

/// The result of creating, opening or finishing a results directory.
type Result<T, E = StoreError> = std::result::Result<T, E>;

/// A results directory.
#[derive(Debug)]
pub struct RunDir {
    pub(crate) shared: OpenRun,
    /// Read on first use.
    plan: OnceLock<StoredPlan>,
    trace_capacities: OnceLock<TraceCapacities>,
    pub(crate) metadata: SharedMetadata,
    /// Whether every file has been compared with its digest. If so, [`Self::check`] reads none again.
    pub(crate) is_verified: bool,
    /// Reports the progress of operations that read all trials.
    pub(crate) observer: Observer,
}

impl RunDir {
    /// Creates `root/<plan>-<utc>-<shorthash>/`. Two runs of a plan in the same second get different names.
    ///
    /// # Errors
    /// The directory cannot be created or written.
    pub fn create(root: &Path, info: &RunInfo) -> Result<Self> {
        std::fs::create_dir_all(root).map_err(io_error("create", root))?;
        let started_utc = info.started_utc.to_string();
        let name = directory_name(&info.plan_name, &started_utc, &info.plan_sha256);
        let create = |path: &Path| std::fs::DirBuilder::new().create(path);
        let path = make_unique(root, &name, "create", create)?;
        let run = Self::set_up(path, info)?;
        sync(root)?;
        Ok(run)
    }

    /// Creates exactly this directory, which must not exist or be empty.
    ///
    /// # Errors
    /// The directory has files, or cannot be created or written.
    pub fn create_at(path: &Path, info: &RunInfo) -> Result<Self> {
        fill::make_empty(path)?;
        Self::set_up(path.to_path_buf(), info)
    }

    fn set_up(path: PathBuf, info: &RunInfo) -> Result<Self> {
        for dir in ["tables", "raw"] {
            let dir = path.join(dir);
            std::fs::create_dir(&dir).map_err(io_error("create", &dir))?;
        }
        replace(&path, "plan.toml", info.plan_text.as_bytes())?;
        replace(&path, RESOLVED_PLAN, info.resolved_text.as_bytes())?;
        for (file, bytes) in copies(info) {
            keep_copy(&path.join(file), bytes)?;
        }
        let record = RunRecord::new(info);
        points::write(&path, &record)?;
        let mut journal = Journal::create(&path)?;
        start(&mut journal, &path, info, &record, run_files(&path, info)?)?;
        Ok(Self::with(path, info.ccbench_version.clone(), record, Log::Write(journal)))
    }

    /// Opens the directory for reading. Changes nothing, so this is safe during a run. A trial with a table file that is missing or has the
    /// wrong size counts as [failed](crate::reason::ReasonCode::Damaged) and has no rows.
    ///
    /// # Errors
    /// The path is not a results directory, or `run.json`, the journal or the resolved plan is damaged or cannot be read.
    pub fn open(path: &Path) -> Result<Self> {
        let (record, digest, mut state) = read_records(path)?;
        check_record(path, (&record, &digest), &state)?;
        if let Some(what) = damage::of_plan(path, &state) {
            return Err(StoreError::Damaged {
                path: path.to_path_buf(),
                file: RESOLVED_PLAN,
                what,
            });
        }
        damage::mark(path, &mut state, Depth::Sizes, |_| true, &Observer::default());
        let version = record.sessions.last().map(|s| s.ccbench_version.clone());
        Ok(Self::with(path.to_path_buf(), version.unwrap_or_default(), record, Log::Read(state)))
    }

    /// As [`RunDir::open`], and reports the progress of operations that read all trials to the observer.
    ///
    /// # Errors
    /// As [`RunDir::open`].
    pub fn open_observed(path: &Path, observer: &Observer) -> Result<Self> {
        let mut run = Self::open(path)?;
        run.observer = observer.clone();
        Ok(run)
    }

    /// Opens the directory to continue the run: takes the lock, cuts off a torn journal line, removes files of uncommitted trials, and
    /// rejects another plan. [`RunDir::notes`] lists the repairs. The tables of every trial are compared with their digests; damaged trials
    /// count as failed.
    ///
    /// # Errors
    /// The directory cannot be opened (see [`RunDir::open`]) or written, another process is writing to it, or the plan or one of its
    /// files differs.
    pub fn resume(path: &Path, info: &RunInfo) -> Result<Self> {
        let utc = info.started_utc.to_string();
        let (mut record, mut journal) =
            reopen(path, &info.plan_sha256, &copies(info), &utc, Depth::Digests)?;
        record.sessions.push(RunSession::new(info));
        record.status = RunStatus::Running;
        record.planned_trials = None;
        record.decisions.clear();
        start(&mut journal, path, info, &record, Digests::new())?;
        let version = info.ccbench_version.clone();
        Ok(Self::with(path.to_path_buf(), version, record, Log::Write(journal)))
    }

    /// Opens the directory to [finish](RunDir::finish) a run that has all trials, but no recorded end: ccbench was killed after the last
    /// trial, or an error ended it there. Unlike [`RunDir::resume`], begins no session and compares no digests (see [`RunDir::check`]).
    /// `utc` is the current time for the notes.
    ///
    /// # Errors
    /// As [`RunDir::resume`].
    pub fn reopen(path: &Path, plan_sha256: &str, utc: jiff::Timestamp) -> Result<Self> {
        let (record, journal) = reopen(path, plan_sha256, &[], &utc.to_string(), Depth::Sizes)?;
        let version = record.sessions.last().map(|session| session.ccbench_version.clone());
        let path = path.to_path_buf();
        Ok(Self::with(path, version.unwrap_or_default(), record, Log::Write(journal)))
    }

    fn with(path: PathBuf, ccbench_version: String, record: RunRecord, log: Log) -> Self {
        let plan_sha256 = record.plan_sha256.clone();
        let state = Mutex::new(State { record, log });
        let row_group_rows = part::ROW_GROUP_ROWS;
        let shared = OpenRun { path, plan_sha256, ccbench_version, row_group_rows, state };
        let (plan, trace_capacities) = (OnceLock::new(), OnceLock::new());
        let (metadata, observer) = (SharedMetadata::default(), Observer::default());
        Self { shared, plan, trace_capacities, metadata, is_verified: false, observer }
    }

    /// Returns the directory's path.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Returns the directory's own name, even if the path is `.` or a symbolic link to it.
    pub fn name(&self) -> String {
        let path = self.path().canonicalize().unwrap_or_else(|_| self.path().to_path_buf());
        path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Returns the run's notes, oldest first: why the plan cannot be read or traces are left out, and repairs when the run was resumed.
    pub fn notes(&self) -> Vec<String> {
        let mended = self.shared.state().record.notes.clone();
        self.stored_plan().notes.iter().cloned().chain(mended).collect()
    }

    /// Compares these tables of all trials with their digests, which reads their files. Afterwards, damaged trials count as failed.
    pub fn check(&self, tables: impl Fn(&str) -> bool + Sync) {
        if self.is_verified {
            return;
        }
        let mut state = self.shared.state();
        let (path, observer) = (&self.shared.path, &self.observer);
        damage::mark(path, state.log.state_mut(), Depth::Digests, tables, observer);
    }

    /// Compares one file of a trial with its digest, if it has one.
    ///
    /// # Errors
    /// The file differs from the one that was committed.
    pub(crate) fn check_file(&self, end: &TrialEnd, file: &Path) -> Result<(), FileError> {
        let state = self.shared.state();
        let digests = state.log.state().digests.get(&(end.point_id, end.trial));
        let name = file.strip_prefix(&self.shared.path).unwrap_or(file).to_string_lossy();
        let Some(expected) = digests.and_then(|digests| digests.get(&*name)) else { return Ok(()) };
        match damage::compare_with_digest(file, Some(expected), Depth::Digests) {
            Some(what) => Err(FileError::Damaged { path: file.to_path_buf(), what }),
            None => Ok(()),
        }
    }

    /// Returns the size of all files that have a digest in the journal. Needs only the journal and `run.json`, so the other files may be
    /// missing because they have not been copied yet.
    ///
    /// # Errors
    /// The path is not a results directory, or `run.json` or the journal is damaged or cannot be read.
    pub fn recorded_bytes(path: &Path) -> Result<u64> {
        let (_, _, journal) = read_records(path)?;
        let of_trials = journal.digests.values().flat_map(Digests::values);
        let files = of_trials.chain(journal.run_files.values());
        Ok(files.fold(0, |sum: u64, file| sum.saturating_add(file.bytes)))
    }

    /// Returns the ccbench version of the last session.
    pub fn ccbench_version(&self) -> &str {
        &self.shared.ccbench_version
    }

    /// Returns the command line of the first session.
    pub fn command_line(&self) -> Vec<String> {
        self.command_lines().into_iter().next().unwrap_or_default()
    }

    /// Returns the command line of each session, the first one first.
    pub fn command_lines(&self) -> Vec<Vec<String>> {
        let state = self.shared.state();
        let sessions = state.record.sessions.iter();
        sessions.map(|session| session.command_line.clone()).collect()
    }

    /// Returns where the trials took place.
    pub fn backend(&self) -> RunBackend {
        self.shared.state().record.backend()
    }

    /// Returns the status in `run.json`, or the journal's if `run.json` could not be replaced at the end of the run. A run whose controller
    /// is gone is not [`RunStatus::Running`].
    pub fn status(&self) -> RunStatus {
        let state = self.shared.state();
        match (state.status(), &state.log) {
            (RunStatus::Running, Log::Read(_)) if !journal::is_written(self.path()) => {
                RunStatus::Killed
            }
            (status, _) => status,
        }
    }

    /// Returns whether `run.json` records the end of a complete run and the journal has no torn line, which [reopening](RunDir::reopen)
    /// would remove. Compacted runs are not reopened.
    pub fn is_complete(&self) -> bool {
        let state = self.shared.state();
        let journal = state.log.state();
        let is_torn = journal.torn_bytes > 0 && !journal.is_compacted();
        state.record.status == RunStatus::Complete && !is_torn
    }

    /// Returns the trials that a resumed run does not [repeat](TrialEnd::needs_repeat).
    pub fn finished(&self) -> BTreeSet<(u32, u16)> {
        let state = self.shared.state();
        let committed = state.log.state().committed.values();
        let finished = committed.filter(|end| !end.needs_repeat());
        finished.map(|end| (end.point_id, end.trial)).collect()
    }

    /// Returns the trials committed as failed, including those that could not be prepared. [Beginning](RunDir::begin_trial) such a trial
    /// again replaces its files.
    pub fn failed(&self) -> BTreeSet<(u32, u16)> {
        let state = self.shared.state();
        let committed = state.log.state().committed.values();
        let failed = committed.filter(|end| end.status == TrialStatus::Failed);
        failed.map(|end| (end.point_id, end.trial)).collect()
    }

    /// Returns how many committed trials of all sessions are ok, degraded and failed. Aborted trials are not counted.
    pub fn counts(&self) -> (u32, u32, u32) {
        let state = self.shared.state();
        let count = |status| {
            let committed = state.log.state().committed.values();
            committed.filter(|end| end.status == status).count() as u32
        };
        (count(TrialStatus::Ok), count(TrialStatus::Degraded), count(TrialStatus::Failed))
    }

    /// Returns every committed trial with its verdict, including aborted ones, in the order of point and repetition.
    pub fn trials(&self) -> Vec<TrialEnd> {
        self.shared.state().log.state().committed.values().cloned().collect()
    }

    /// Returns a committed trial.
    pub fn trial(&self, point_id: u32, trial: u16) -> Option<TrialEnd> {
        self.shared.state().log.state().committed.get(&(point_id, trial)).cloned()
    }

    /// Returns the plan of the run; `None` if it cannot be read, or nothing was planned.
    pub fn plan(&self) -> Option<&CheckedPlan> {
        self.stored_plan().plan.as_ref()
    }

    /// Returns whether the run has a plan that cannot be read.
    pub(crate) fn plan_is_unread(&self) -> bool {
        self.stored_plan().is_unread
    }

    fn stored_plan(&self) -> &StoredPlan {
        self.plan.get_or_init(|| {
            let digests = self.shared.state().log.state().run_files.clone();
            StoredPlan::read(self.path(), &digests, self.ccbench_version())
        })
    }

    /// Returns the capacity curves of the stored traces.
    pub(super) fn trace_capacities(&self) -> &TraceCapacities {
        self.trace_capacities.get_or_init(|| {
            let stored = self.path().join(stored::FOLDER).is_dir();
            self.plan()
                .filter(|_| stored)
                .map_or_else(TraceCapacities::default, TraceCapacities::from_plan)
        })
    }

    /// Returns the number of trials in the plan.
    pub fn planned(&self) -> u32 {
        self.shared.state().record.planned()
    }

    /// Returns the epoch for the next trial, which is higher than any in the journal.
    pub fn next_epoch(&self) -> u64 {
        self.shared.state().log.state().last_epoch.saturating_add(1)
    }

    /// Returns the names of the factors, and every point's id and levels.
    pub fn points(&self) -> (Vec<String>, BTreeMap<u32, Levels>) {
        let state = self.shared.state();
        let points = state.record.points.iter().map(|p| (p.point_id, p.levels.clone()));
        (state.record.factors.clone(), points.collect())
    }

    /// Returns the first file of one table of one trial, whether or not it exists.
    pub fn part(&self, table: &str, point_id: u32, trial: u16) -> PathBuf {
        part::file(&self.trial_dir_of(table, point_id, trial), 0)
    }

    /// Returns whether trials share files: see [`Merge::compacted`](super::merge::Merge::compacted).
    pub fn is_compacted(&self) -> bool {
        self.shared.state().log.state().is_compacted()
    }

    /// Returns all files of one table of a committed trial, in the order in which they were written, whether or not they exist. Not for
    /// compacted runs.
    pub fn files(&self, end: &TrialEnd, table: &str) -> Vec<PathBuf> {
        table_files(&self.shared.path, end, table)
    }

    fn trial_dir_of(&self, table: &str, point_id: u32, trial: u16) -> PathBuf {
        trial_dir(&self.shared.path.join("tables").join(table), point_id, trial)
    }

    /// Returns the directory of one trial's raw files, whether or not it exists.
    pub fn raw(&self, point_id: u32, trial: u16) -> PathBuf {
        trial_dir(&self.shared.path.join("raw"), point_id, trial)
    }

    /// Begins a trial. Removes what an aborted or failed attempt at it left.
    ///
    /// # Errors
    /// The directory cannot be written, or is open for reading only.
    pub fn begin_trial(
        &self,
        run: TrialKey,
        phases: &[PhaseSpan],
        clocks: BTreeMap<String, NodeClock>,
    ) -> Result<TrialWriter<'_>, TrialError> {
        self.announce_trial(run)?;
        self.begin_announced(run, phases, clocks)
    }

    /// Performs the part of [`RunDir::begin_trial`] that waits for the disk. Call it before the trial's start time is chosen.
    ///
    /// # Errors
    /// As [`RunDir::begin_trial`].
    pub fn announce_trial(&self, run: TrialKey) -> Result<(), TrialError> {
        TrialWriter::announce(&self.shared, run)
    }

    /// Performs the rest of [`RunDir::begin_trial`], once the clocks are known.
    ///
    /// # Errors
    /// As [`RunDir::begin_trial`].
    pub fn begin_announced(
        &self,
        run: TrialKey,
        phases: &[PhaseSpan],
        clocks: BTreeMap<String, NodeClock>,
    ) -> Result<TrialWriter<'_>, TrialError> {
        TrialWriter::begin(&self.shared, run, phases, clocks)
    }

    /// Commits a trial that could not be prepared: it is failed for this reason (with code `not_run`) and has no rows. Removes what an
    /// earlier attempt at it left.
    ///
    /// # Errors
    /// The directory cannot be written, or is open for reading only.
    pub fn record_not_run(&self, run: TrialKey, reason: &Reason) -> Result<()> {
        let TrialKey { point_id, trial, seed, epoch } = run;
        self.shared.append(Entry::TrialBegin { point_id, trial, seed, epoch })?;
        self.shared.clear(point_id, trial)?;
        let end =
            TrialEnd { reasons: vec![reason.clone()], ..TrialEnd::new(run, TrialStatus::Failed) };
        Ok(self.shared.append(Entry::TrialEnd(end))?)
    }

    /// Records a decided rule in the journal. A resumed run finds the decisions of earlier sessions again, and records only those that
    /// differ.
    ///
    /// # Errors
    /// The directory cannot be written, or is open for reading only.
    pub fn record_decision(&self, decision: &Decision) -> Result<()> {
        let is_known = {
            let state = self.shared.state();
            state.log.state().decisions.iter().any(|known| known.repeats(decision))
        };
        if is_known {
            return Ok(());
        }
        Ok(self.shared.append(Entry::Decision(decision.clone()))?)
    }

    /// Keeps the decisions that follow from the trials, for [`RunDir::finish`], and records those that the journal lacks. The journal may
    /// differ: a run can end between a trial and the line of its decision, and a trial can be repeated.
    ///
    /// # Errors
    /// The directory cannot be written, or is open for reading only.
    pub fn set_decisions(&self, decisions: Vec<Decision>) -> Result<()> {
        for decision in &decisions {
            self.record_decision(decision)?;
        }
        self.shared.state().record.decisions = decisions;
        Ok(())
    }

    /// Keeps the number of trials that remain after the plan's rules, for [`RunDir::finish`].
    pub fn set_planned(&self, trials: u32) {
        self.shared.state().record.planned_trials = Some(trials);
    }

    /// Writes the run's status, and the committed trials with their clocks and congestion controls, to `run.json`.
    ///
    /// # Errors
    /// The directory cannot be written, or is open for reading only.
    pub fn finish(&self, status: RunStatus) -> Result<()> {
        let (bytes, digest) = {
            let mut state = self.shared.state();
            state.record.status = status;
            state.record.trials = state.log.state().committed.values().cloned().collect();
            state.record.encoded(&self.shared.path)?
        };
        let status = status.as_str().to_owned();
        self.shared.append(Entry::RunEnd { status, record: Some(digest) })?;
        Ok(replace(&self.shared.path, record::FILE_NAME, &bytes)?)
    }
}

/// Reads `run.json`, with its digest, and then the journal.
fn read_records(path: &Path) -> Result<(RunRecord, FileDigest, RunState)> {
    let (record, digest) = RunRecord::read(path)?;
    let file = path.join(journal::FILE_NAME);
    let bytes = input::read(&file, &input::RECORD).map_err(io_error("read", &file))?;
    Ok((record, digest, journal::read(&bytes, &file)?))
}

/// Refuses `run.json` if it is none of the versions that the run wrote: points, levels and settings of the run would be wrong.
fn check_record(
    path: &Path,
    (record, found): (&RunRecord, &FileDigest),
    state: &RunState,
) -> Result<()> {
    let Some(what) = damage::of_record(found, state) else { return Ok(()) };
    refuse_lost(path, record, state)?;
    let (path, what) = (path.to_path_buf(), what.to_owned());
    Err(StoreError::Damaged { path, file: record::FILE_NAME, what })
}

/// Refuses the journal of a complete run if it lacks a trial of the run.
fn refuse_lost(path: &Path, record: &RunRecord, state: &RunState) -> Result<()> {
    match record.lost(state).into_iter().next() {
        None => Ok(()),
        Some((point_id, trial)) => {
            Err(StoreError::LostTrial { path: path.to_path_buf(), point_id, trial })
        }
    }
}

/// Writes the start of a session to the journal, and `run.json`.
fn start(
    journal: &mut Journal,
    path: &Path,
    info: &RunInfo,
    record: &RunRecord,
    files: Digests,
) -> Result<()> {
    let (bytes, digest) = record.encoded(path)?;
    journal.append(Entry::RunStart {
        plan_sha256: info.plan_sha256.clone(),
        started_utc: info.started_utc.to_string(),
        files,
        record: Some(digest),
    })?;
    Ok(replace(path, record::FILE_NAME, &bytes)?)
}

/// Returns the digests of those files of a new run that never change.
fn run_files(path: &Path, info: &RunInfo) -> Result<Digests, FileError> {
    let copies = copies(info).into_iter().map(|(file, _)| file);
    let names = RUN_FILES.iter().map(PathBuf::from).chain(copies);
    let digest = |name: PathBuf| {
        let file = path.join(&name);
        let digest = FileDigest::of_file(&file).map_err(io_error("read", &file))?;
        Ok((name.to_string_lossy().into_owned(), digest))
    };
    names.map(digest).collect()
}

/// A copy of a file of the plan: its path in the results directory, and its content.
type FileCopy<'a> = (PathBuf, &'a [u8]);

/// Returns the copies of the plan's files.
fn copies(info: &RunInfo) -> Vec<FileCopy<'_>> {
    let mut copies = Vec::new();
    for (folder, files) in [(stored::FOLDER, &info.traces), (stored::CC_FOLDER, &info.ccs)] {
        copies.extend(files.iter().map(|(name, bytes)| (Path::new(folder).join(name), &bytes[..])));
    }
    copies
}

/// Writes a copy of a file of the plan.
fn keep_copy(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    std::fs::create_dir_all(dir).map_err(io_error("create", dir))?;
    replace(dir, &name.to_string_lossy(), bytes)
}

/// Returns `<plan>-<utc>-<shorthash>` for a run that began at this RFC 3339 time.
pub(crate) fn directory_name(plan_name: &str, started_utc: &str, plan_sha256: &str) -> String {
    let started: jiff::Timestamp = started_utc.parse().unwrap_or_default();
    let utc = started.strftime("%Y%m%dT%H%M%SZ");
    let hash = plan_sha256.get(..8).unwrap_or(plan_sha256);
    format!("{plan_name}-{utc}-{hash}")
}

/// Creates `root/<name>`, or adds a number if the name is taken. `make` must fail if its path exists; `op` names what it does.
pub(crate) fn make_unique(
    root: &Path,
    name: &str,
    op: &'static str,
    make: impl Fn(&Path) -> std::io::Result<()>,
) -> Result<PathBuf, FileError> {
    const MAX_ATTEMPTS: u32 = 1000;
    for attempt in 1..=MAX_ATTEMPTS {
        let path = match attempt {
            1 => root.join(name),
            n => root.join(format!("{name}-{n}")),
        };
        match make(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && attempt < MAX_ATTEMPTS => {}
            made => return made.map(|()| path.clone()).map_err(io_error(op, &path)),
        }
    }
    unreachable!("the last attempt returns")
}
