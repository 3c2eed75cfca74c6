//! Writes the rows of a trial and commits them.
//!
//! # The commit
//!
//! A trial has one directory per table and one for raw files, so no single rename can publish it. The steps are:
//!
//! 1. `trial_begin` in the journal: older files in the trial's directories are now invalid.
//! 2. All files are written to `.tmp-<epoch>/` in the results directory and synced to disk.
//! 3. Each directory is renamed to its final path, which must not exist; then the new parents are synced.
//! 4. `trial_end` in the journal, synced to disk. **This line is the commit**: it lists the tables with their row counts, and
//!    the size and SHA-256 of every file, computed while the file was written.
//!
//! Readers use only trials whose last line is a `trial_end`. If ccbench or the machine stops before step 4, the trial does not exist, and
//! `RunDir::resume` removes the files of steps 2 and 3. An [aborted](TrialWriter::abandon) trial is committed in the same way, with its
//! status in the `trial_end` line, so its rows stay readable.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use ccbench_proto::column_text::ColumnText as _;
use ccbench_proto::event::{Kind, NodeCongestionControl};
use ccbench_proto::schedule::PhaseSpan;
use ccbench_proto::wire::{self, run_event::Payload};

use super::cells::TimeAxis;
use super::columns::ClockRow;
use super::digest::Digests;
use super::journal::{CcRecord, Entry, NodeBoot, PhaseRecord, TrialEnd};
use super::layout::{STAGING, rename_new, trial_dir};
use super::model::{NodeClock, Reason, SCHEMA_VERSION, TrialKey, TrialStatus, Verdict};
use super::open_run::OpenRun;
use super::part::{self, Metadata, sync};
use super::reason::ReasonCode;
use super::writer_thread::{Files, Job, JobKind, WriterThread, Written};
use crate::error::io_error;

mod error;

pub use error::TrialError;

/// Result of writing a trial.
type Result<T, E = TrialError> = std::result::Result<T, E>;

/// Maximum number of raw files of one trial.
pub const MAX_RAW_FILES: usize = 4096;

/// The node name in the controller's own events.
pub const CONTROLLER: &str = "controller";

/// Writes one trial in a separate thread. If it is dropped before the commit, resuming the run removes the trial's files.
pub struct TrialWriter<'a> {
    run: &'a OpenRun,
    key: TrialKey,
    phases: Vec<PhaseRecord>,
    clocks: BTreeMap<String, NodeClock>,
    clocks_written: bool,
    boots: BTreeMap<String, NodeBoot>,
    congestion_controls: Vec<CcRecord>,
    staging: PathBuf,
    writer: WriterThread,
    /// Nodes and names of the raw files so far.
    raw: BTreeSet<(String, String)>,
    /// UTC of the lab's virtual machine. If `None`, events have the time of the controller's clock.
    machine_utc_ns: Option<u64>,
}

impl<'a> TrialWriter<'a> {
    /// Writes `trial_begin` and clears the trial's directories. Separate from [`Self::begin`] because it waits for the disk.
    pub(super) fn announce(run: &OpenRun, key: TrialKey) -> Result<()> {
        let TrialKey { point_id, trial, seed, epoch } = key;
        run.append(Entry::TrialBegin { point_id, trial, seed, epoch })?;
        Ok(run.clear(point_id, trial)?)
    }

    pub(super) fn begin(
        run: &'a OpenRun,
        key: TrialKey,
        phases: &[PhaseSpan],
        clocks: BTreeMap<String, NodeClock>,
    ) -> Result<Self> {
        let staging = run.path.join(format!("{STAGING}{}", key.epoch));
        std::fs::create_dir(&staging).map_err(io_error("create", &staging))?;
        let axis = |t0_ns, realtime_offset_ns, drift_ppb| {
            let phases = phases.to_vec();
            TimeAxis { t0_ns, realtime_offset_ns, drift_ppb, phases }
        };
        let of = |clock: &NodeClock| axis(clock.t0_ns, clock.realtime_offset_ns, clock.drift_ppb);
        let t0_utc_ns = clocks.values().next().map_or(0, |clock| of(clock).utc_ns(clock.t0_ns));
        let axes = clocks.iter().map(|(node, clock)| (node.clone(), of(clock)));
        let files = Files::new(
            (key.point_id, key.trial),
            axes.collect(),
            axis(t0_utc_ns.unsigned_abs(), 0, 0),
            metadata(run),
            (staging.clone(), run.row_group_rows),
        );
        Ok(Self {
            key,
            phases: phases.iter().map(PhaseRecord::from).collect(),
            writer: WriterThread::start(files)?,
            raw: BTreeSet::new(),
            machine_utc_ns: None,
            clocks,
            clocks_written: false,
            boots: BTreeMap::new(),
            congestion_controls: vec![],
            staging,
            run,
        })
    }

    /// Returns each node's clock, to set bounds that are known only after the trial. The mapping of rows does not change.
    pub fn clocks_mut(&mut self) -> &mut BTreeMap<String, NodeClock> {
        &mut self.clocks
    }

    /// Records which boot and kernel each machine runs during the trial.
    pub fn set_boots(&mut self, boots: BTreeMap<String, NodeBoot>) {
        self.boots = boots;
    }

    /// Writes table `clock`, once.
    fn write_clocks(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.clocks_written, true) {
            return Ok(());
        }
        for (node, clock) in &self.clocks {
            let row = ClockRow {
                at_ns: clock.t0_ns,
                monotonic_t0_ns: clock.t0_ns,
                offset_ns: clock.realtime_offset_ns,
                drift_ppb: clock.drift_ppb,
                error_bound_ns: clock.error_bound_ns,
                error_bound_after_ns: clock.error_bound_after_ns,
                rtt_ns: clock.rtt_ns,
                source: clock.source.as_str().to_owned(),
            };
            self.writer.push(Job { node: node.clone(), what: JobKind::Clock(row) })?;
        }
        Ok(())
    }

    /// Waits until [`TrialWriter::push`] does not block.
    pub async fn wait_for_room(&self) {
        self.writer.wait_for_room().await;
    }

    /// Returns whether [`TrialWriter::push`] would not block.
    pub fn has_room(&self) -> bool {
        self.writer.has_room()
    }

    /// Waits until all rows are written and the files are synced. After an error it returns at once; [`TrialWriter::commit`] and
    /// [`TrialWriter::abandon`] return the error. Nothing can be pushed afterwards.
    pub async fn finished(&mut self) {
        self.writer.wait_for_room().await;
        // `commit` returns the error.
        let _ = self.write_clocks();
        self.writer.finished().await;
    }

    /// Sets the time of the controller's next events. The lab uses the virtual machine's clock.
    pub fn set_time(&mut self, utc_ns: u64) {
        self.machine_utc_ns = Some(utc_ns);
    }

    /// Returns the controller's UTC in nanoseconds since 1970.
    fn now_ns(&self) -> u64 {
        self.machine_utc_ns.unwrap_or_else(|| crate::clock::realtime_ns().unsigned_abs())
    }

    /// Queues one message of a node's stream for writing. Raw data is appended to the node's raw files; `Done` becomes an event
    /// `stream_end` with the controller's time. Blocks while the queue is full.
    ///
    /// # Errors
    /// The node is unknown, or an earlier message could not be written.
    pub fn push(&mut self, node: &str, event: wire::RunEvent) -> Result<()> {
        if !self.clocks.contains_key(node) {
            return Err(TrialError::UnknownNode { node: node.to_owned() });
        }
        let Some(payload) = event.payload else {
            let message = "a message of a type that this version does not know".to_owned();
            let row = wire::Event { at_ns: self.now_ns(), message, ..wire::Event::default() };
            return Ok(self
                .writer
                .push(Job { node: node.to_owned(), what: JobKind::Note(row) })?);
        };
        let what = match payload {
            Payload::Done(done) => JobKind::Note(stream_end(&done, self.now_ns())),
            Payload::Raw(raw) => {
                self.admit_raw(node, &raw.name)?;
                JobKind::Row(Payload::Raw(raw))
            }
            payload => JobKind::Row(payload),
        };
        Ok(self.writer.push(Job { node: node.to_owned(), what })?)
    }

    /// Writes an event of the controller, with the current time.
    pub fn note(&mut self, kind: Kind, subject: &str, message: &str) -> Result<()> {
        let row = wire::Event {
            at_ns: self.now_ns(),
            subject: subject.to_owned(),
            message: message.to_owned(),
            kind: Some(kind),
        };
        Ok(self.writer.push(Job { node: CONTROLLER.to_owned(), what: JobKind::Note(row) })?)
    }

    /// Records a congestion control that a node loaded, in the journal and as an event.
    pub fn congestion_control(&mut self, node: &str, cc: wire::CongestionControl) -> Result<()> {
        let via = cc.via();
        let message = format!(
            "{node}: {} as {} by {} ({})",
            cc.algorithm,
            cc.kernel_name,
            via.as_text(),
            cc.reason_text()
        );
        let data = NodeCongestionControl { node: node.to_owned(), cc: Some(cc.clone()) };
        self.note(Kind::CongestionControl(data), &cc.name, &message)?;
        self.congestion_controls.push(CcRecord {
            reason: cc.reason_text(),
            node: node.to_owned(),
            name: cc.name,
            algorithm: cc.algorithm,
            kernel_name: cc.kernel_name,
            via,
            params: cc.params.into_iter().collect(),
            sha256: cc.sha256,
        });
        Ok(())
    }

    /// Commits the trial with its verdict.
    pub fn commit(self, verdict: &Verdict) -> Result<()> {
        self.stage(verdict.status.into(), &verdict.reasons)?.publish()
    }

    /// Commits the rows of a trial that was stopped early. Its status is `aborted`.
    pub fn abandon(self, reason: &str) -> Result<()> {
        self.stage(TrialStatus::Aborted, &[Reason::new(ReasonCode::Aborted, reason)])?.publish()
    }

    /// Step 2 of the commit.
    fn stage(mut self, status: TrialStatus, reasons: &[Reason]) -> Result<Staged<'a>> {
        let TrialKey { point_id, trial, .. } = self.key;
        let clocks = self.write_clocks();
        let written = self.writer.finish();
        // If the directory is gone, report this rather than the write error that follows from it.
        self.run.check_place()?;
        let written = written?;
        clocks?;
        let digests = digests(&written, point_id, trial);
        let tables = &written.tables;
        let rows: BTreeMap<_, _> = tables.iter().map(|w| (w.table.to_owned(), w.rows)).collect();
        let several = tables.iter().filter(|w| w.files.len() > 1);
        let files = several.map(|w| (w.table.to_owned(), w.files.len())).collect();
        let place = |table: &String| {
            let parent = self.run.path.join("tables").join(table);
            (self.staging.join(table), trial_dir(&parent, point_id, trial))
        };
        let mut moves: Vec<(PathBuf, PathBuf)> = rows.keys().map(place).collect();
        if !self.raw.is_empty() {
            let to = trial_dir(&self.run.path.join("raw"), point_id, trial);
            moves.push((self.staging.join("raw"), to));
        }
        let end = TrialEnd {
            reasons: reasons.to_vec(),
            rows,
            files,
            digests,
            phases: self.phases,
            clocks: self.clocks,
            boots: self.boots,
            congestion_controls: self.congestion_controls,
            ..TrialEnd::new(self.key, status)
        };
        Ok(Staged { run: self.run, key: self.key, staging: self.staging, moves, end })
    }

    /// Checks the name of a raw file and registers new files.
    fn admit_raw(&mut self, node: &str, name: &str) -> Result<()> {
        let invalid =
            |reason| TrialError::RawFile { node: node.to_owned(), name: name.to_owned(), reason };
        for part in [node, name] {
            if part.is_empty() || part.starts_with('.') || part.contains(['/', '\0']) {
                return Err(invalid(
                    "a name is not empty, does not begin with a dot and holds no slash",
                ));
            }
        }
        let key = (node.to_owned(), name.to_owned());
        if !self.raw.contains(&key) {
            if self.raw.len() >= MAX_RAW_FILES {
                return Err(invalid("too many raw files in one trial"));
            }
            self.raw.insert(key);
        }
        Ok(())
    }
}

/// A trial whose files are written and synced but not committed.
struct Staged<'a> {
    run: &'a OpenRun,
    key: TrialKey,
    staging: PathBuf,
    /// Directories in `staging` with their final paths.
    moves: Vec<(PathBuf, PathBuf)>,
    end: TrialEnd,
}

impl Staged<'_> {
    /// Steps 3 and 4 of the commit.
    fn publish(self) -> Result<()> {
        // The renames would otherwise recreate parts of a removed directory.
        self.run.check_place()?;
        self.rename_first(self.moves.len())?;
        self.run.append(Entry::TrialEnd(self.end))?;
        // The trial is committed, so what stays of its staging directory must not count as its failure. Resuming the run removes it.
        if let Err(error) = std::fs::remove_dir_all(&self.staging) {
            let error = io_error("remove", &self.staging)(error);
            self.run.state().record.notes.push(format!("{error}; remove it by hand"));
        }
        Ok(())
    }

    /// Renames the first `count` directories, then syncs each new parent once. The syncs come after all renames because the first sync
    /// makes most file systems write all of them.
    fn rename_first(&self, count: usize) -> Result<()> {
        let (moves, root) = (self.moves.iter().take(count), &self.run.path);
        let mut parents = BTreeSet::new();
        for (from, to) in moves {
            publish_dir(from, to, self.key, root)?;
            parents.extend(to.ancestors().skip(1).take_while(|dir| dir.starts_with(root)));
        }
        Ok(parents.into_iter().try_for_each(sync)?)
    }
}

/// Returns the digests of the written files, by their final paths relative to the results directory.
fn digests(written: &Written, point_id: u32, trial: u16) -> Digests {
    let name = |path: PathBuf| path.to_string_lossy().into_owned();
    let mut digests = Digests::new();
    for table in &written.tables {
        let dir = trial_dir(&Path::new("tables").join(table.table), point_id, trial);
        for (number, digest) in table.files.iter().enumerate() {
            digests.insert(name(part::file(&dir, number)), digest.clone());
        }
    }
    let dir = trial_dir(Path::new("raw"), point_id, trial);
    for ((node, file), digest) in &written.raw {
        digests.insert(name(dir.join(node).join(file)), digest.clone());
    }
    digests
}

fn stream_end(done: &wire::Done, at_ns: u64) -> wire::Event {
    wire::Event { at_ns, kind: Some(Kind::StreamEnd(*done)), ..wire::Event::default() }
}

fn metadata(run: &OpenRun) -> Metadata {
    Metadata(vec![
        ("ccbench.schema_version".to_owned(), SCHEMA_VERSION.to_string()),
        ("ccbench.version".to_owned(), run.ccbench_version.clone()),
        ("ccbench.plan_sha256".to_owned(), run.plan_sha256.clone()),
    ])
}

/// Renames a directory to a path that does not exist, and creates missing parents. The journal's lock keeps other writers out.
fn publish_dir(from: &Path, to: &Path, key: TrialKey, root: &Path) -> Result<()> {
    let parent = to.parent().unwrap_or(root);
    std::fs::create_dir_all(parent).map_err(io_error("create", parent))?;
    rename_new(from, to).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            let TrialKey { point_id, trial, .. } = key;
            TrialError::Exists { path: to.to_path_buf(), point_id, trial }
        }
        _ => io_error("rename to", to)(error).into(),
    })
}

#[cfg(test)]
pub(crate) mod tests;
