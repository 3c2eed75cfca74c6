//! One shard of a run (`ccbench run --shard`): which trials it has, and how they reach the shard store.
//!
//! As in any run, trials are recorded in a results directory, inside the scratch directory of the process. A finished trial is
//! copied to the store, then its commit object is created. Only one attempt can create that object; a later attempt records its
//! trial as a duplicate. The trial's files are then removed from the scratch directory, so it never holds more than the running
//! trials.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::Path;

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::schedule::{self, ScheduledTrial, Shard};
use ccbench_results::shard::{
    Attempt, BACKEND_KEY, COMMITS, Commit, PLAN_KEY, RUN_FOLDER, SchedulerJob, Session, commit_key,
    trial_of_key,
};
use ccbench_results::stopping::StoppingRules;
use ccbench_results::store::RunDir;
use ccbench_store::{Creation, ObjectError, ShardStore, check_creation};
use tempfile::TempDir;

use crate::args::shard::ShardChoice;
use crate::clock;
use crate::collect::read_all;
use crate::console::message;
use crate::exit::{ExitCode, from_results, of_store};
use crate::experiment::Experiment;

/// How often an object is created at most: a store may refuse conflicting requests and have no object afterwards.
const MAX_REQUESTS: u32 = 5;

/// The environment does not identify the shard.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// `auto` was given outside a Slurm job array.
    #[error(
        "--shard auto needs SLURM_ARRAY_TASK_ID, _MIN, _MAX and _COUNT, which Slurm sets in job arrays; give --shard I/N, or --shard \
         auto/N in HyperQueue and Kubernetes"
    )]
    NoArray,
    /// The tasks of the array are not consecutive.
    #[error(
        "--shard auto: the array {first} to {last} has {count} tasks, so it is not one range; give --shard $SLURM_ARRAY_TASK_ID/N"
    )]
    Gaps {
        /// The first task.
        first: u32,
        /// The last task.
        last: u32,
        /// The number of tasks.
        count: u32,
    },
    /// `auto/N` was given without a scheduler.
    #[error(
        "--shard auto/{count} needs SLURM_ARRAY_TASK_ID, HQ_TASK_ID or JOB_COMPLETION_INDEX; give --shard I/{count}"
    )]
    NoTask {
        /// The number of shards.
        count: u32,
    },
    /// The number of a task is not that of a shard.
    #[error(
        "--shard auto/{count}: the task {task} is outside 1 to {count}; use an array 1-{count}"
    )]
    Outside {
        /// The number of shards.
        count: u32,
        /// The task, from 1.
        task: u32,
    },
}

/// A shard cannot run, or its trials cannot be stored.
#[derive(Debug, thiserror::Error)]
pub enum ShardRunError {
    /// The command line and the scheduler do not say which shard this is.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] ObjectError),
    /// The scratch directory or a record cannot be read or written.
    #[error(transparent)]
    Results(#[from] ccbench_results::Error),
    /// The scratch directory cannot be made.
    #[error(
        "cannot create a directory in {path}: {source}; set TMPDIR to a directory with space for the running trials"
    )]
    Scratch {
        /// The directory for temporary files.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The store holds another plan.
    #[error(
        "{location} has shards of another plan, or of this one with other overrides; give each plan a place of its own (--out), and in \
         the lab give all shards the same --engine"
    )]
    OtherPlan {
        /// The store.
        location: String,
    },
    /// The store holds another trace or another supplied congestion control.
    #[error(
        "{location}/{key} differs from the file on this machine; give all machines the same files, or give these shards a place of \
         their own (--out)"
    )]
    OtherFile {
        /// The store.
        location: String,
        /// The file.
        key: String,
    },
    /// Another attempt at the run has another backend.
    #[error(
        "attempt {attempt} in {location} ran on another backend, on another version of it, or with another dilation of the \
         lab; run all shards with the same programs and options (in the lab also --engine and --dilation), or give these shards a place \
         of their own (--out)"
    )]
    OtherBackend {
        /// The store.
        location: String,
        /// The other attempt.
        attempt: String,
    },
    /// The store is inconsistent: it says both that an object exists and that it does not.
    #[error("{location} refused to create {key}, but has no such object; run the shard again")]
    Inconsistent {
        /// The store.
        location: String,
        /// The object.
        key: String,
    },
}

from_results!(ShardRunError: StoreError, ShardError);

impl ShardRunError {
    /// Returns the process's exit code: 2 if the same command would fail again.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Store(error) => of_store(error),
            Self::Task(_)
            | Self::OtherPlan { .. }
            | Self::OtherFile { .. }
            | Self::OtherBackend { .. } => ExitCode::Usage,
            Self::Results(_) | Self::Scratch { .. } | Self::Inconsistent { .. } => {
                ExitCode::Failure
            }
        }
    }
}

/// Returns the rules of a plan after these committed trials.
///
/// # Errors
/// The store cannot be read, or a commit is damaged.
pub async fn rules_after(
    store: &dyn ShardStore,
    plan: &CheckedPlan,
    committed: &BTreeSet<(u32, u16)>,
) -> Result<StoppingRules, ShardRunError> {
    let mut rules = StoppingRules::new(plan);
    if rules.is_empty() {
        return Ok(rules);
    }
    let keys = committed.iter().map(|(point_id, trial)| commit_key(*point_id, *trial)).collect();
    for (key, content) in read_all(store, keys).await? {
        let commit = Commit::decode(&key, &content)?;
        rules.trial_ended(commit.trial.point_id, commit.trial.trial, commit.values());
    }
    Ok(rules)
}

/// A running shard.
pub struct ShardRun {
    shard: Shard,
    attempt: Attempt,
    store: Box<dyn ShardStore>,
    scratch: TempDir,
    /// The shard's trials.
    planned: BTreeSet<(u32, u16)>,
    /// The trials in the store, from this attempt and others.
    committed: RefCell<BTreeSet<(u32, u16)>>,
    /// The plan's rules, applied to these trials. Rules about a point of the shard need no other trials.
    rules: RefCell<StoppingRules>,
    /// Trials that another attempt committed while this one ran them.
    duplicates: Cell<u32>,
}

impl ShardRun {
    /// Looks up in the store which trials of the shard are left. Refuses a store with another plan.
    ///
    /// # Errors
    /// The plan cannot be divided into shards, or the store cannot be read.
    pub async fn open(
        choice: ShardChoice,
        out: &Path,
        experiment: &Experiment,
    ) -> Result<Self, ShardRunError> {
        let variable = |name: &str| std::env::var(name).ok();
        let shard = shard_of(choice, &variable)?;
        let store = ccbench_store::open(&out.to_string_lossy())?;
        let scratch = tempfile::Builder::new().prefix("ccbench-shard-").tempdir();
        let scratch = scratch.map_err(|source| ShardRunError::Scratch {
            path: std::env::temp_dir().display().to_string(),
            source,
        })?;
        let attempt = Attempt {
            id: attempt_id(scratch.path()),
            shard: shard.number(),
            shards: shard.count(),
            host: host_name(),
            job: scheduler_job(&variable),
        };
        let trials = schedule::shard_trials(&experiment.plan, shard).into_iter();
        let planned: BTreeSet<(u32, u16)> =
            trials.map(|trial| (trial.point_id, trial.trial)).collect();
        let found = store.read(PLAN_KEY).await?;
        if found.is_some_and(|found| found != experiment.resolved.as_bytes()) {
            let location = store.location().to_owned();
            return Err(ShardRunError::OtherPlan { location });
        }
        let keys = store.list(COMMITS).await?;
        let committed: BTreeSet<(u32, u16)> =
            keys.iter().filter_map(|key| trial_of_key(key)).collect();
        let own = planned.intersection(&committed).copied().collect();
        let rules = RefCell::new(rules_after(&*store, &experiment.plan, &own).await?);
        let (committed, duplicates) = (RefCell::new(committed), Cell::new(0));
        Ok(Self { shard, attempt, store, scratch, planned, committed, rules, duplicates })
    }

    /// Returns the parent of the results directory of this process.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Returns whether a trial is the shard's, is not in the store, and is needed as far as is known.
    pub fn needs(&self, trial: &ScheduledTrial) -> bool {
        let key = (trial.point_id, trial.trial);
        self.planned.contains(&key) && self.is_left(key)
    }

    /// Returns whether a trial is not in the store but needed by the plan's rules, as far as is known.
    fn is_left(&self, trial: (u32, u16)) -> bool {
        let is_committed = self.committed.borrow().contains(&trial);
        !is_committed && self.rules.borrow().is_needed(trial.0, trial.1)
    }

    /// Returns whether all needed trials of the shard are in the store.
    pub fn is_complete(&self) -> bool {
        !self.planned.iter().any(|trial| self.is_left(*trial))
    }

    /// Returns the plan's rules, applied to the shard's trials in the store.
    pub fn rules(&self) -> StoppingRules {
        self.rules.borrow().clone()
    }

    /// Puts the files of the run and the description of this attempt into the store.
    ///
    /// # Errors
    /// The store cannot be written, does not refuse to create an object twice, meanwhile has another plan, or has shards of
    /// another backend.
    pub async fn begin(&self, dir: &RunDir) -> Result<(), ShardRunError> {
        check_creation(&*self.store, &format!("probes/{}", self.attempt.id)).await?;
        let mut names = dir.run_files();
        // The plan is first, because it decides whether the other files belong here.
        names.sort_by_key(|name| !PLAN_KEY.ends_with(name.as_str()));
        for name in names {
            let key = format!("{RUN_FOLDER}/{name}");
            let path = dir.path().join(&name);
            let content = std::fs::read(&path).map_err(|source| {
                let error = ccbench_results::FileError::Io { op: "read", path, source };
                ccbench_results::Error::from(error)
            })?;
            let found = self.create_or_read(&key, &content).await?;
            // Other files may differ: the author's text of the plan in comments, and the table of points follows from the plan.
            // Files that are factors must be compared, because the plan does not contain their digests.
            let decides = key == PLAN_KEY || name.contains('/');
            if decides && found.is_some_and(|found| found != content) {
                let location = self.store.location().to_owned();
                return Err(match key == PLAN_KEY {
                    true => ShardRunError::OtherPlan { location },
                    false => ShardRunError::OtherFile { location, key },
                });
            }
        }
        let session = dir.session(&self.attempt);
        self.check_committed_backend(&session).await?;
        self.claim_backend(&session).await?;
        self.store.create(&self.attempt.key(), session.encode()?).await?;
        Ok(())
    }

    /// Records the backend of the run unless an attempt has done so, and compares it with the recorded one: trials of different backends
    /// cannot be merged. A scheduler may start all shards at once, when no trial is committed yet.
    async fn claim_backend(&self, session: &Session) -> Result<(), ShardRunError> {
        let found = self.create_or_read(BACKEND_KEY, &session.encode_backend()?).await?;
        let other = found.map(|found| session.other_backend(&found)).transpose()?.flatten();
        match other {
            Some(attempt) => {
                let location = self.store.location().to_owned();
                Err(ShardRunError::OtherBackend { location, attempt })
            }
            None => Ok(()),
        }
    }

    /// Creates an object. Returns the content of the one that the store already has. This may be the same: if the answer to an earlier
    /// request was lost, the object is ours.
    async fn create_or_read(
        &self,
        key: &str,
        content: &[u8],
    ) -> Result<Option<Vec<u8>>, ShardRunError> {
        for _ in 0..MAX_REQUESTS {
            if self.store.create(key, content.to_vec()).await? == Creation::New {
                return Ok(None);
            }
            if let Some(found) = self.store.read(key).await? {
                return Ok(Some(found));
            }
        }
        let location = self.store.location().to_owned();
        Err(ShardRunError::Inconsistent { location, key: key.to_owned() })
    }

    /// Compares the backend with that of a committed trial, for stores of versions that did not record the backend of the run.
    async fn check_committed_backend(&self, session: &Session) -> Result<(), ShardRunError> {
        let first = self.committed.borrow().first().copied();
        let Some((point_id, trial)) = first else { return Ok(()) };
        let key = commit_key(point_id, trial);
        let Some(found) = self.store.read(&key).await? else { return Ok(()) };
        let other = Commit::decode(&key, &found)?.attempt;
        let key = other.key();
        let Some(found) = self.store.read(&key).await? else { return Ok(()) };
        if Session::decode(&key, &found)?.has_backend_of(session) {
            return Ok(());
        }
        let location = self.store.location().to_owned();
        Err(ShardRunError::OtherBackend { location, attempt: other.id })
    }

    /// Puts a finished trial into the store, unless it has to be repeated by a later attempt. Returns the values of the committed
    /// trial for the plan's rules: those of this trial, or of the attempt that committed it first.
    ///
    /// # Errors
    /// The store cannot be written.
    pub async fn publish(
        &self,
        dir: &RunDir,
        trial: &ScheduledTrial,
        mut values: Vec<Option<f64>>,
    ) -> Result<Vec<Option<f64>>, ShardRunError> {
        let ScheduledTrial { point_id, trial, .. } = *trial;
        let commit = dir.commit_of(&self.attempt, point_id, trial);
        let Some(commit) = commit.filter(|commit| !commit.trial.needs_repeat()) else {
            dir.discard_files(point_id, trial)?;
            return Ok(values);
        };
        let commit = commit.with_values(&values);
        for name in commit.trial.digests.keys() {
            self.store.upload(&self.attempt.file_key(name), &dir.path().join(name)).await?;
        }
        if let Some(winner) = self.commit(&commit).await? {
            values = winner.values();
            let winner = winner.attempt.id;
            self.duplicates.set(self.duplicates.get() + 1);
            message(format_args!(
                "point {point_id}, repetition {trial}: attempt {winner} has committed this trial, so that of this attempt is \
                 discarded"
            ));
            self.store.create(&commit.duplicate_key(), commit.encode()?).await?;
            for name in commit.trial.digests.keys() {
                self.store.remove(&self.attempt.file_key(name)).await?;
            }
        }
        self.committed.borrow_mut().insert((point_id, trial));
        self.rules.borrow_mut().trial_ended(point_id, trial, values.clone());
        dir.discard_files(point_id, trial)?;
        Ok(values)
    }

    /// Commits a trial. Returns the commit of another attempt if that was first.
    async fn commit(&self, commit: &Commit) -> Result<Option<Commit>, ShardRunError> {
        let key = commit.key();
        let Some(found) = self.create_or_read(&key, &commit.encode()?).await? else {
            return Ok(None);
        };
        let winner = Commit::decode(&key, &found)?;
        Ok(Some(winner).filter(|winner| winner.attempt.id != self.attempt.id))
    }

    /// Returns the progress of the shard.
    pub fn progress(&self) -> ShardProgress {
        let committed = self.planned.intersection(&self.committed.borrow()).count();
        let left = self.planned.iter().filter(|trial| self.is_left(**trial)).count();
        ShardProgress {
            shard: self.shard,
            planned: committed + left,
            committed,
            duplicates: self.duplicates.get(),
        }
    }
}

/// The progress of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardProgress {
    /// The shard.
    pub shard: Shard,
    /// The number of its trials, without those that the plan's rules make unnecessary.
    pub planned: usize,
    /// The number of its trials in the store.
    pub committed: usize,
    /// The number of trials of this attempt that another attempt had committed before.
    pub duplicates: u32,
}

/// Returns the name of this machine.
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns an ID that sorts by time. It is unique among machines because the name of the scratch directory is random.
fn attempt_id(scratch: &Path) -> String {
    let now = clock::utc().strftime("%Y%m%dT%H%M%SZ");
    let scratch = scratch.file_name().unwrap_or_default().to_string_lossy();
    let random = scratch.rsplit('-').next().unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    format!("{now}-{}-{random}", host_name()).chars().map(plain).collect()
}

/// Returns the shard that the command line or the scheduler gives. `variable` reads the environment.
fn shard_of(
    choice: ShardChoice,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Shard, TaskError> {
    let number = |name: &str| variable(name)?.parse::<u32>().ok();
    let slurm = number("SLURM_ARRAY_TASK_ID");
    match choice {
        ShardChoice::Given(shard) => Ok(shard),
        ShardChoice::Auto => {
            let array =
                ["MIN", "MAX", "COUNT"].map(|end| number(&format!("SLURM_ARRAY_TASK_{end}")));
            let (Some(task), [Some(first), Some(last), Some(count)]) = (slurm, array) else {
                return Err(TaskError::NoArray);
            };
            let span = last.checked_sub(first).and_then(|span| span.checked_add(1));
            let index = task.checked_sub(first).filter(|_| span == Some(count));
            index
                .and_then(|index| Shard::new(index.checked_add(1)?, count))
                .ok_or(TaskError::Gaps { first, last, count })
        }
        ShardChoice::AutoOf(count) => {
            // Slurm and HyperQueue use the user's task numbers. Kubernetes counts completions from 0.
            let index = || number("JOB_COMPLETION_INDEX").and_then(|index| index.checked_add(1));
            let task = slurm.or_else(|| number("HQ_TASK_ID")).or_else(index);
            let task = task.ok_or(TaskError::NoTask { count })?;
            Shard::new(task, count).ok_or(TaskError::Outside { count, task })
        }
    }
}

/// Returns the scheduler's job of this process, with the number of its restarts.
fn scheduler_job(variable: &dyn Fn(&str) -> Option<String>) -> Option<SchedulerJob> {
    let number = |name: &str| variable(name)?.parse::<u64>().ok();
    let job = |scheduler: &str, id: String, epoch| {
        Some(SchedulerJob { scheduler: scheduler.to_owned(), id, epoch })
    };
    let with_task = |id: String, task: Option<String>| match task {
        Some(task) => format!("{id}_{task}"),
        None => id,
    };
    if let Some(id) = variable("SLURM_ARRAY_JOB_ID").or_else(|| variable("SLURM_JOB_ID")) {
        // Slurm sets the count only from the first restart on.
        let epoch = number("SLURM_RESTART_COUNT").unwrap_or(0);
        return job("slurm", with_task(id, variable("SLURM_ARRAY_TASK_ID")), Some(epoch));
    }
    if let Some(id) = variable("HQ_JOB_ID") {
        return job("hyperqueue", with_task(id, variable("HQ_TASK_ID")), number("HQ_INSTANCE_ID"));
    }
    let index = variable("JOB_COMPLETION_INDEX")?;
    job("kubernetes", index, None)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn in_environment<T>(
        variables: &[(&str, &str)],
        f: impl FnOnce(&dyn Fn(&str) -> Option<String>) -> T,
    ) -> T {
        let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
        f(&|name| variables.get(name).map(|value| (*value).to_owned()))
    }

    #[test]
    fn schedulers_number_the_shards() {
        let of = |choice: &str, variables: &[(&str, &str)]| {
            let choice: ShardChoice = choice.parse().unwrap();
            in_environment(variables, |variable| shard_of(choice, variable))
        };
        let shard = |number, count| Ok(Shard::new(number, count).unwrap());
        let array = |task, first, last, count| {
            [
                ("SLURM_ARRAY_TASK_ID", task),
                ("SLURM_ARRAY_TASK_MIN", first),
                ("SLURM_ARRAY_TASK_MAX", last),
                ("SLURM_ARRAY_TASK_COUNT", count),
            ]
        };
        assert_eq!(of("2/3", &[]), shard(2, 3));
        assert_eq!(of("auto", &array("0", "0", "4", "5")), shard(1, 5));
        assert_eq!(of("auto", &array("5", "1", "5", "5")), shard(5, 5));
        // Only a part of the array was submitted again.
        let gaps = TaskError::Gaps { first: 2, last: 5, count: 2 };
        assert_eq!(of("auto", &array("5", "2", "5", "2")), Err(gaps));
        assert_eq!(of("auto", &[("HQ_TASK_ID", "1")]), Err(TaskError::NoArray));
        assert_eq!(of("auto/7", &array("5", "2", "5", "2")), shard(5, 7));
        assert_eq!(of("auto/7", &[("HQ_TASK_ID", "7")]), shard(7, 7));
        assert_eq!(of("auto/7", &[("JOB_COMPLETION_INDEX", "0")]), shard(1, 7));
        let outside = TaskError::Outside { count: 7, task: 8 };
        assert_eq!(of("auto/7", &[("JOB_COMPLETION_INDEX", "7")]), Err(outside));
        assert_eq!(of("auto/7", &[]), Err(TaskError::NoTask { count: 7 }));
        for text in ["auto/0", "auto/x", "auto/", "3"] {
            assert!(text.parse::<ShardChoice>().is_err(), "{text}");
        }
    }

    #[test]
    fn restarts_of_a_job_are_its_epoch() {
        let job = |variables: &[(&str, &str)]| {
            let found = in_environment(variables, scheduler_job);
            found.map(|job| (job.scheduler, job.id, job.epoch))
        };
        let slurm =
            [("SLURM_ARRAY_JOB_ID", "12"), ("SLURM_JOB_ID", "15"), ("SLURM_ARRAY_TASK_ID", "3")];
        assert_eq!(job(&slurm), Some(("slurm".into(), "12_3".into(), Some(0))));
        let restarted = [&slurm[..], &[("SLURM_RESTART_COUNT", "2")]].concat();
        assert_eq!(job(&restarted), Some(("slurm".into(), "12_3".into(), Some(2))));
        let hq = [("HQ_JOB_ID", "4"), ("HQ_TASK_ID", "9"), ("HQ_INSTANCE_ID", "1")];
        assert_eq!(job(&hq), Some(("hyperqueue".into(), "4_9".into(), Some(1))));
        let pod = [("JOB_COMPLETION_INDEX", "6")];
        assert_eq!(job(&pod), Some(("kubernetes".into(), "6".into(), None)));
        assert_eq!(job(&[]), None);
    }
}
