//! Combines the trials of all shards into one results directory, as if one machine had run them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use ccbench_io::input;
use ccbench_proto::plan::check::{self, CheckedPlan};
use ccbench_proto::schedule::{self, ScheduledTrial, Shard};
use tempfile::TempDir;

use super::compact::compact;
use super::damage::{Depth, compare_with_digest};
use super::digest::{Digests, FileDigest};
use super::journal::{self, Entry, TrialEnd};
use super::layout::{RESOLVED_PLAN, RUN_FILES, STAGING, is_inside, rename_new};
use super::model::RunStatus;
use super::record::{self, RunRecord, RunSession, replace};
use super::shard::{Commit, Session, ShardError};
use super::stopping::StoppingRules;
use super::store::{directory_name, make_unique};
use crate::error::{ErrorClass, FileError, io_error};
use crate::part::sync;
use crate::trace::stored;

/// Shards cannot be combined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A commit or a session cannot be read.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// An object has a name that ccbench does not use.
    #[error("{key} is damaged; remove it, and run its shard again")]
    Damaged {
        /// The object.
        key: String,
    },
    /// A file of a trial differs from the committed one.
    #[error("{key} is damaged ({what}); remove {commit}, and run shard {shard} again")]
    DamagedFile {
        /// The file.
        key: String,
        /// What is wrong.
        what: String,
        /// The commit of the file's trial.
        commit: String,
        /// The trial's shard.
        shard: String,
    },
    /// An object belongs to another plan.
    #[error(
        "{key} belongs to another plan (its resolved plan has sha256 {found}, that of the shard store {expected}); give each plan \
         its own shard store"
    )]
    OtherPlan {
        /// The object.
        key: String,
        /// SHA-256 of the object's plan.
        found: String,
        /// SHA-256 of the plan in the store.
        expected: String,
    },
    /// The plan in the store cannot be used.
    #[error("the shards' plan cannot be read: {reason}; use the version of ccbench that ran them")]
    Plan {
        /// Why.
        reason: String,
    },
    /// No shard has started.
    #[error("no shard has started; `ccbench run PLAN --shard I/N --out …` starts one")]
    NoSession,
    /// Shards ran on different backends, or versions of one, so their trials are not repetitions of one point.
    #[error(
        "the attempts {one} and {other} ran on different backends, backend versions or dilations of the lab (see `backend` in their \
         sessions); run all shards again into a new shard store, on one backend, in the lab with the same --dilation"
    )]
    OtherBackend {
        /// An attempt.
        one: String,
        /// Another attempt.
        other: String,
    },
    /// A trial's attempt has no description, so its backend is unknown.
    #[error(
        "{session} is missing, so the backend on which attempt {attempt} of shard {shard} ran {commit} is unknown; put {session} back, or \
         remove {commit} and run shard {shard} again"
    )]
    NoSessionOf {
        /// The trial's commit.
        commit: String,
        /// The trial's attempt.
        attempt: String,
        /// The attempt's shard.
        shard: String,
        /// The description of the attempt.
        session: String,
    },
    /// A file of a results directory in a bucket differs from the committed one.
    #[error(
        "{key} is damaged ({what}); remove the run from the bucket and upload it again, or read its shards"
    )]
    DamagedCopy {
        /// The file.
        key: String,
        /// What is wrong.
        what: String,
    },
    /// The plan does not have this trial.
    #[error("{key} is not a trial of the plan, or has another seed; remove it")]
    NotPlanned {
        /// The trial's commit.
        key: String,
    },
}

impl MergeError {
    /// Returns who has to act.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::NoSession => ErrorClass::Usage,
            Self::File(error) => error.class(),
            Self::Shard(error) => error.class(),
            Self::Damaged { .. }
            | Self::DamagedFile { .. }
            | Self::DamagedCopy { .. }
            | Self::OtherPlan { .. }
            | Self::Plan { .. }
            | Self::OtherBackend { .. }
            | Self::NoSessionOf { .. }
            | Self::NotPlanned { .. } => ErrorClass::Run,
        }
    }
}

type Result<T, E = MergeError> = std::result::Result<T, E>;

/// The directory in which a run is assembled. Removed unless the run is [finished](Merge::finish).
#[derive(Debug)]
pub struct Staging {
    dir: TempDir,
    root: PathBuf,
}

impl Staging {
    /// Creates a hidden directory in `root`.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn new(root: &Path) -> Result<Self> {
        std::fs::create_dir_all(root).map_err(io_error("create", root))?;
        let mut builder = tempfile::Builder::new();
        // This becomes the results directory, so the umask decides who may read it.
        builder.prefix(STAGING).permissions(Permissions::from_mode(0o777));
        let dir = builder.tempdir_in(root).map_err(io_error("create a directory in", root))?;
        for folder in ["tables", "raw"] {
            let folder = dir.path().join(folder);
            std::fs::create_dir(&folder).map_err(io_error("create", &folder))?;
        }
        Ok(Self { dir, root: root.to_path_buf() })
    }

    /// Returns the directory's path.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the path of a file of the run, and creates the file's folder.
    ///
    /// # Errors
    /// The name leads out of the directory, or the folder cannot be created.
    pub fn file(&self, name: &str) -> Result<PathBuf> {
        if !is_inside(name) {
            return Err(MergeError::Damaged { key: name.to_owned() });
        }
        let path = self.dir.path().join(name);
        let folder = path.parent().unwrap_or(self.dir.path());
        std::fs::create_dir_all(folder).map_err(io_error("create", folder))?;
        Ok(path)
    }
}

/// Trials that no attempt has committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The shard that should run them; `None` if the shards were not all of one partition.
    pub shard: Option<Shard>,
    /// Point and repetition.
    pub trials: Vec<(u32, u16)>,
}

/// A trial that several attempts ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duplicate {
    /// Point and repetition.
    pub trial: (u32, u16),
    /// The attempt whose trial is used.
    pub used: String,
    /// The attempt whose trial is discarded.
    pub discarded: String,
    /// Whether the tables of both are equal.
    pub equal: bool,
}

/// The trials of all shards of a run.
#[derive(Debug)]
pub struct Merge {
    staging: Staging,
    plan: CheckedPlan,
    plan_sha256: String,
    planned: Vec<ScheduledTrial>,
    sessions: Vec<Session>,
    commits: BTreeMap<(u32, u16), Commit>,
    duplicates: Vec<Duplicate>,
    /// The rules after all commits.
    rules: StoppingRules,
    is_compacted: bool,
}

impl Merge {
    /// Checks that everything belongs to the plan in `staging`.
    ///
    /// # Errors
    /// Something belongs to another plan, or the backends differ.
    pub fn new(
        staging: Staging,
        mut sessions: Vec<Session>,
        commits: Vec<Commit>,
        duplicates: &[Commit],
    ) -> Result<Self> {
        let path = staging.file(RESOLVED_PLAN)?;
        let text = input::read_to_string(&path, &input::RECORD).map_err(io_error("read", &path))?;
        let plan = read_plan(staging.dir.path(), &text)?;
        let plan_sha256 = ccbench_proto::plan::digest(&text);
        let same_plan = |key: String, found: &str| {
            let (found, expected) = (found.to_owned(), plan_sha256.clone());
            if found == expected {
                Ok(())
            } else {
                Err(MergeError::OtherPlan { key, found, expected })
            }
        };
        for session in &sessions {
            same_plan(session.attempt.key(), &session.record.plan_sha256)?;
        }
        let planned = schedule::trials(&plan);
        let seeds: BTreeMap<(u32, u16), u64> =
            planned.iter().map(|trial| ((trial.point_id, trial.trial), trial.seed)).collect();
        let of_sessions: BTreeSet<&str> =
            sessions.iter().map(|session| session.attempt.id.as_str()).collect();
        let mut committed = BTreeMap::new();
        for commit in commits {
            same_plan(commit.key(), &commit.plan_sha256)?;
            let trial = (commit.trial.point_id, commit.trial.trial);
            check_commit(&commit, seeds.get(&trial), &of_sessions)?;
            committed.insert(trial, commit);
        }
        // Attempts without a trial do not count. If there is no trial at all, all attempts describe the run.
        let of_trials: BTreeSet<&str> =
            committed.values().map(|commit| commit.attempt.id.as_str()).collect();
        sessions.retain(|it| of_trials.is_empty() || of_trials.contains(it.attempt.id.as_str()));
        sessions.sort_by(|a, b| started(a).cmp(&started(b)));
        let first = sessions.first().ok_or(MergeError::NoSession)?;
        if let Some(other) = sessions.iter().find(|session| !session.has_backend_of(first)) {
            let (one, other) = (first.attempt.id.clone(), other.attempt.id.clone());
            return Err(MergeError::OtherBackend { one, other });
        }
        let duplicates = duplicates.iter().filter_map(|other| duplicate(&committed, other));
        let duplicates = duplicates.collect();
        let mut rules = StoppingRules::new(&plan);
        for ((point_id, trial), commit) in &committed {
            rules.trial_ended(*point_id, *trial, commit.values());
        }
        let (commits, is_compacted) = (committed, false);
        Ok(Self {
            staging,
            plan,
            plan_sha256,
            planned,
            sessions,
            commits,
            duplicates,
            rules,
            is_compacted,
        })
    }

    /// Returns the same merge, but [`Self::finish`] puts the rows of all trials into a few large files for each table. Such a run is
    /// read-only.
    #[must_use]
    pub fn compacted(self) -> Self {
        Self { is_compacted: true, ..self }
    }

    /// Returns the trials that several attempts ran.
    pub fn duplicates(&self) -> &[Duplicate] {
        &self.duplicates
    }

    /// Returns whether equal plans and seeds give equal tables. If so, a machine is faulty if the tables of a duplicate differ.
    pub fn is_repeatable(&self) -> bool {
        self.sessions.iter().all(|session| session.record.backend().has_virtual_clock())
    }

    /// Returns the trials that no attempt has committed, by shard, without those that the plan's rules make unnecessary.
    pub fn missing(&self) -> Vec<Missing> {
        let counts: BTreeSet<u32> =
            self.sessions.iter().map(|session| session.attempt.shards).collect();
        let count = counts.first().copied().filter(|_| counts.len() == 1);
        let numbers = count.map(|count| schedule::partition(&self.plan, count));
        let mut missing: BTreeMap<Option<Shard>, Vec<(u32, u16)>> = BTreeMap::new();
        for (index, trial) in self.planned.iter().enumerate() {
            let key = (trial.point_id, trial.trial);
            if !self.commits.contains_key(&key) && self.rules.is_needed(key.0, key.1) {
                let number = numbers.as_ref().and_then(|numbers| numbers.get(index).copied());
                let shard = number.zip(count).and_then(|(number, count)| Shard::new(number, count));
                missing.entry(shard).or_default().push(key);
            }
        }
        missing.into_iter().map(|(shard, trials)| Missing { shard, trials }).collect()
    }

    /// Returns every file of a committed trial: its key in the store, and its destination.
    ///
    /// # Errors
    /// As [`Staging::file`].
    pub fn files(&self, commit: &Commit) -> Result<Vec<(String, PathBuf)>> {
        let names = commit.trial.digests.keys();
        names
            .map(|name| {
                let of_trial = name.starts_with("tables/") || name.starts_with("raw/");
                let key = commit.attempt.file_key(name);
                if !of_trial || !is_inside(&key) {
                    return Err(MergeError::Damaged { key: commit.key() });
                }
                Ok((key, self.staging.file(name)?))
            })
            .collect()
    }

    /// Returns the committed trials, in the order of the plan.
    pub fn commits(&self) -> impl Iterator<Item = &Commit> {
        let keys = self.planned.iter().map(|trial| (trial.point_id, trial.trial));
        keys.filter_map(|key| self.commits.get(&key))
    }

    /// Returns the size of the files of all committed trials.
    pub fn bytes(&self) -> u64 {
        let digests = self.commits.values().flat_map(|commit| commit.trial.digests.values());
        digests.map(|digest| digest.bytes).fold(0, u64::saturating_add)
    }

    /// Links the files of a trial from another directory of the run, if that directory has them unchanged since the commit.
    ///
    /// # Errors
    /// As [`Staging::file`].
    pub fn link_from(&self, other: &Path, commit: &Commit) -> Result<()> {
        for (name, expected) in &commit.trial.digests {
            let (path, known) = (self.staging.file(name)?, other.join(name));
            if difference(&known, expected).is_none() {
                // If the file system has no hard links, the file is copied from the store.
                let _ = std::fs::hard_link(&known, &path);
            }
        }
        Ok(())
    }

    /// Compares the files of a trial with its commit.
    ///
    /// # Errors
    /// A file is missing or differs.
    pub fn check(&self, commit: &Commit) -> Result<()> {
        for (name, expected) in &commit.trial.digests {
            let path = self.staging.file(name)?;
            if let Some(what) = compare_with_digest(&path, Some(expected), Depth::Digests) {
                return Err(MergeError::DamagedFile {
                    key: commit.attempt.file_key(name),
                    what,
                    commit: commit.key(),
                    shard: commit.attempt.shard_text(),
                });
            }
        }
        Ok(())
    }

    /// Writes the journal and `run.json`, renames the directory, and returns its path. The run is complete if no trial is missing. Call
    /// this outside the asynchronous runtime for a [compacted](Self::compacted) run: Polars has its own runtime.
    ///
    /// # Errors
    /// The run cannot be written.
    pub fn finish(self, note: String) -> Result<PathBuf> {
        let is_complete = self.missing().is_empty();
        let status = if is_complete { RunStatus::Complete } else { RunStatus::Interrupted };
        let dir = self.staging.dir.path();
        let mut ends: Vec<TrialEnd> = self
            .planned
            .iter()
            .filter_map(|trial| {
                let commit = self.commits.get(&(trial.point_id, trial.trial))?;
                // The epoch that one machine would have used.
                let epoch = u64::from(trial.index) + 1;
                Some(TrialEnd { epoch, ..commit.trial.clone() })
            })
            .collect();
        let mut files = run_files(dir)?;
        if self.is_compacted {
            files.extend(compact(dir, &mut ends)?);
        }
        let record = self.record(&ends, status, note)?;
        let (bytes, digest) = record.encoded(dir)?;
        let started_utc = record.sessions.first().map(|session| session.started_utc.clone());
        let started_utc = started_utc.unwrap_or_default();
        let mut entries = vec![Entry::RunStart {
            plan_sha256: self.plan_sha256.clone(),
            started_utc: started_utc.clone(),
            files,
            record: None,
        }];
        for end in ends {
            let TrialEnd { point_id, trial, seed, epoch, .. } = end;
            entries.push(Entry::TrialBegin { point_id, trial, seed, epoch });
            entries.push(Entry::TrialEnd(end));
        }
        entries.extend(self.rules.decisions().into_iter().map(Entry::Decision));
        entries.push(Entry::RunEnd { status: status.as_str().to_owned(), record: Some(digest) });
        let lines: Result<String, serde_json::Error> = entries.iter().map(journal::line).collect();
        let path = dir.join(journal::FILE_NAME);
        let lines =
            lines.map_err(|source| FileError::Json { op: "write a line of", path, source })?;
        // The journal has the digests of the files, so one call syncs all files first.
        let folder = File::open(dir).map_err(io_error("open", dir))?;
        rustix::fs::syncfs(&folder).map_err(|error| io_error("make durable", dir)(error.into()))?;
        replace(dir, journal::FILE_NAME, lines.as_bytes())?;
        replace(dir, record::FILE_NAME, &bytes)?;
        let name = directory_name(&record.plan_name, &started_utc, &self.plan_sha256);
        self.staging.publish(&name)
    }

    /// Returns the content of `run.json`: that of the first attempt, with the sessions and notes of all attempts.
    fn record(&self, ends: &[TrialEnd], status: RunStatus, note: String) -> Result<RunRecord> {
        let first = self.sessions.first().ok_or(MergeError::NoSession)?;
        let mut merged = first.record.clone();
        let (mut sessions, mut notes): (Vec<RunSession>, Vec<String>) = (vec![], vec![]);
        for Session { attempt, record } in &self.sessions {
            sessions.extend(
                record
                    .sessions
                    .iter()
                    .cloned()
                    .map(|session| RunSession { attempt: Some(attempt.clone()), ..session }),
            );
            for note in &record.notes {
                if !notes.contains(note) {
                    notes.push(note.clone());
                }
            }
        }
        notes.push(note);
        // As in a finished run: by point and repetition, and with the digests only in the journal.
        let without_digests = |end: &TrialEnd| TrialEnd { digests: Digests::new(), ..end.clone() };
        merged.trials = ends.iter().map(without_digests).collect();
        merged.trials.sort_by_key(|end| (end.point_id, end.trial));
        (merged.status, merged.sessions, merged.notes) = (status, sessions, notes);
        // The directory's name contains the plan's name, and nothing checks the one in a session.
        merged.plan_name.clone_from(&self.plan.plan().name);
        merged.decisions = self.rules.decisions();
        if self.plan.plan().repeat.adaptive().is_some() {
            let needed =
                self.planned.iter().filter(|it| self.rules.is_needed(it.point_id, it.trial));
            merged.planned_trials = u32::try_from(needed.count()).ok();
        }
        Ok(merged)
    }
}

/// Returns what is wrong with a copy of a file; `None` if it is as it was committed.
pub fn difference(path: &Path, expected: &FileDigest) -> Option<String> {
    compare_with_digest(path, Some(expected), Depth::Digests)
}

impl Staging {
    /// Renames the directory, and adds a number if the name is taken.
    ///
    /// # Errors
    /// The directory cannot be renamed.
    pub fn publish(self, name: &str) -> Result<PathBuf> {
        let Self { dir, root } = self;
        let path = make_unique(&root, name, "rename to", |path| rename_new(dir.path(), path))?;
        // Nothing is at the temporary path any more, so do not remove it.
        let _ = dir.keep();
        sync(&root)?;
        Ok(path)
    }
}

/// Checks that a commit is of a planned trial with this seed, and of one of these attempts.
fn check_commit(commit: &Commit, seed: Option<&u64>, attempts: &BTreeSet<&str>) -> Result<()> {
    let Commit { attempt, trial, .. } = commit;
    if seed != Some(&trial.seed) {
        return Err(MergeError::NotPlanned { key: commit.key() });
    }
    if !has_own_tables(trial) {
        return Err(MergeError::Damaged { key: commit.key() });
    }
    if attempts.contains(attempt.id.as_str()) {
        return Ok(());
    }
    Err(MergeError::NoSessionOf {
        commit: commit.key(),
        attempt: attempt.id.clone(),
        shard: attempt.shard_text(),
        session: attempt.key(),
    })
}

/// Returns whether all tables of a trial have files of their own, and plain names, which become names of folders.
fn has_own_tables(end: &TrialEnd) -> bool {
    let mut tables = end.rows.keys().chain(end.files.keys());
    end.shared.is_empty() && tables.all(|table| is_inside(table) && !table.contains('/'))
}

/// Reads the plan of a results directory, with its traces.
fn read_plan(dir: &Path, text: &str) -> Result<CheckedPlan> {
    // The digests of a merged run are those of the files here.
    let (traces, _) = stored::read_stored(dir, &check::trace_files(text, &[]), &Digests::new());
    let read = check::read_with(text, &[], traces);
    read.map(|(plan, _)| plan).map_err(|problems| MergeError::Plan {
        reason: problems.first().map(ToString::to_string).unwrap_or_default(),
    })
}

/// Returns when an attempt began, and its name, which breaks ties.
fn started(session: &Session) -> (&str, &str) {
    let first = session.record.sessions.first();
    (first.map_or("", |first| first.started_utc.as_str()), session.attempt.id.as_str())
}

/// Describes a trial that came second after the committed one.
fn duplicate(committed: &BTreeMap<(u32, u16), Commit>, other: &Commit) -> Option<Duplicate> {
    let trial = (other.trial.point_id, other.trial.trial);
    let used = committed.get(&trial).filter(|used| used.attempt.id != other.attempt.id)?;
    let tables = |commit: &Commit| -> Digests {
        let of_tables = commit.trial.digests.iter();
        let of_tables = of_tables.filter(|(name, _)| name.starts_with("tables/"));
        of_tables.map(|(name, digest)| (name.clone(), digest.clone())).collect()
    };
    Some(Duplicate {
        trial,
        used: used.attempt.id.clone(),
        discarded: other.attempt.id.clone(),
        equal: tables(used) == tables(other),
    })
}

/// Returns the digests of the run's files that never change.
fn run_files(dir: &Path) -> Result<Digests> {
    let mut found = Digests::new();
    let digest = |path: &Path| FileDigest::of_file(path).map_err(io_error("read", path));
    for name in RUN_FILES {
        found.insert(name.to_owned(), digest(&dir.join(name))?);
    }
    let mut folders = vec![dir.join(stored::FOLDER), dir.join(stored::CC_FOLDER)];
    while let Some(folder) = folders.pop() {
        for path in super::layout::list(&folder)? {
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(dir).unwrap_or(&path).to_string_lossy().into_owned();
                found.insert(name, digest(&path)?);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
