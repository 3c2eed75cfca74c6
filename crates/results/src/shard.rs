//! Keys and records of what a run's shards put into their shared store.
//!
//! ```text
//! run/plan.toml  run/plan.resolved.toml  run/points.parquet  run/traces/<file>  run/cc/<file>  run/backend.json
//! sessions/<attempt>.json
//! files/<attempt>/tables/<table>/point=<id>/trial-<nn>/part-0.parquet
//! files/<attempt>/raw/point=<id>/trial-<nn>/<node>/<file>
//! commits/point=<id>/trial-<nn>.json
//! duplicates/point=<id>/trial-<nn>/<attempt>.json
//! ```
//!
//! A trial exists when its object in `commits` does. This object is written last, by one attempt only, and has the digest of every file.
//! Records are lines as in the [journal](super::journal), each with its CRC-32.

use ccbench_proto::sealed_line::{seal, unseal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::backend::RunBackend;
use super::error::ErrorClass;
use super::journal::TrialEnd;
use super::record::RunRecord;
use super::store::{RunDir, StoreError};

pub use super::model::attempt::{Attempt, SchedulerJob};

/// The folder with the run's files that never change.
pub const RUN_FOLDER: &str = "run";
/// The resolved plan, which decides whether a shard belongs to this store.
pub const PLAN_KEY: &str = "run/plan.resolved.toml";
/// The backend of the attempt that began first, which all others must have. Not a file of the run.
pub const BACKEND_KEY: &str = "run/backend.json";
/// The folder with the attempts' descriptions.
pub const SESSIONS: &str = "sessions";
/// The folder with the committed trials.
pub const COMMITS: &str = "commits";
/// The folder with trials that another attempt had committed before.
pub const DUPLICATES: &str = "duplicates";

/// A record in the shared store cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// The record fails its checksum.
    #[error("{key} is damaged; remove it, and run its shard again")]
    Damaged {
        /// The object.
        key: String,
    },
    /// The record has content that this version does not write.
    #[error(
        "cannot read or write {key} as JSON: {source}; use the version of ccbench that ran the shards"
    )]
    Json {
        /// The object.
        key: String,
        /// Why.
        source: serde_json::Error,
    },
}

impl ShardError {
    /// Returns who has to act.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::Damaged { .. } | Self::Json { .. } => ErrorClass::Run,
        }
    }
}

impl Attempt {
    /// Returns the key of the attempt's description.
    pub fn key(&self) -> String {
        format!("{SESSIONS}/{}.json", self.id)
    }

    /// Returns the attempt's shard, for example `2/3`.
    pub fn shard_text(&self) -> String {
        format!("{}/{}", self.shard, self.shards)
    }

    /// Returns the key of one of the attempt's files, given the file's path in the results directory.
    pub fn file_key(&self, name: &str) -> String {
        format!("files/{}/{name}", self.id)
    }
}

/// The description of an attempt: `run.json` as it was when the attempt began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// The attempt.
    pub attempt: Attempt,
    pub(crate) record: RunRecord,
}

/// The backend of the attempt that began first.
#[derive(Serialize, Deserialize)]
struct FirstBackend {
    attempt: String,
    backend: RunBackend,
}

/// A trial that an attempt has committed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Commit {
    /// SHA-256 of the resolved plan.
    pub plan_sha256: String,
    /// The attempt that wrote the files.
    pub attempt: Attempt,
    /// The trial, with the digests of its files.
    pub trial: TrialEnd,
    /// The [values](Commit::values) as IEEE 754 bits: some readers round decimal numbers in JSON.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    value_bits: Vec<Option<u64>>,
}

/// Returns the key of a trial's commit.
pub fn commit_key(point_id: u32, trial: u16) -> String {
    format!("{COMMITS}/point={point_id}/trial-{trial:02}.json")
}

/// Returns the trial of a commit's key; `None` if this is not such a key.
pub fn trial_of_key(key: &str) -> Option<(u32, u16)> {
    let rest = key.strip_prefix(COMMITS)?.strip_prefix("/point=")?.strip_suffix(".json")?;
    let (point_id, trial) = rest.split_once("/trial-")?;
    Some((point_id.parse().ok()?, trial.parse().ok()?))
}

impl Commit {
    /// Returns the commit's key.
    pub fn key(&self) -> String {
        commit_key(self.trial.point_id, self.trial.trial)
    }

    /// Returns the same commit with these [values](Commit::values).
    #[must_use]
    pub fn with_values(self, values: &[Option<f64>]) -> Self {
        let value_bits = values.iter().map(|value| value.map(f64::to_bits)).collect();
        Self { value_bits, ..self }
    }

    /// Returns the trial's values that the plan's rules need ([`StoppingRules::numbers`](super::stopping::StoppingRules::numbers)); empty
    /// without rules.
    pub fn values(&self) -> Vec<Option<f64>> {
        self.value_bits.iter().map(|bits| bits.map(f64::from_bits)).collect()
    }

    /// Returns the key for this trial if another attempt has committed it.
    pub fn duplicate_key(&self) -> String {
        let (TrialEnd { point_id, trial, .. }, id) = (&self.trial, &self.attempt.id);
        format!("{DUPLICATES}/point={point_id}/trial-{trial:02}/{id}.json")
    }

    /// Returns the content of the commit's object.
    ///
    /// # Errors
    /// The commit cannot be written as JSON.
    pub fn encode(&self) -> Result<Vec<u8>, ShardError> {
        encode(&self.key(), self)
    }

    /// Parses the object of a commit.
    ///
    /// # Errors
    /// The object is damaged.
    pub fn decode(key: &str, content: &[u8]) -> Result<Self, ShardError> {
        decode(key, content)
    }
}

impl Session {
    /// Returns whether both ran on one backend, so that their trials are repetitions of the same point.
    pub fn has_backend_of(&self, other: &Self) -> bool {
        self.record.backend() == other.record.backend()
    }

    /// Returns the content of the object at [`BACKEND_KEY`] that this attempt creates if it is the first.
    ///
    /// # Errors
    /// The backend cannot be written as JSON.
    pub fn encode_backend(&self) -> Result<Vec<u8>, ShardError> {
        let (attempt, backend) = (self.attempt.id.clone(), self.record.backend());
        encode(BACKEND_KEY, &FirstBackend { attempt, backend })
    }

    /// Compares the backend with the object at [`BACKEND_KEY`]. Returns the attempt that created this object if its backend is another
    /// one.
    ///
    /// # Errors
    /// The object is damaged.
    pub fn other_backend(&self, content: &[u8]) -> Result<Option<String>, ShardError> {
        let first: FirstBackend = decode(BACKEND_KEY, content)?;
        Ok((first.backend != self.record.backend()).then_some(first.attempt))
    }

    /// Returns the content of the session's object.
    ///
    /// # Errors
    /// The session cannot be written as JSON.
    pub fn encode(&self) -> Result<Vec<u8>, ShardError> {
        encode(&self.attempt.key(), self)
    }

    /// Parses the object of a session.
    ///
    /// # Errors
    /// The object is damaged.
    pub fn decode(key: &str, content: &[u8]) -> Result<Self, ShardError> {
        decode(key, content)
    }
}

fn encode(key: &str, record: &impl Serialize) -> Result<Vec<u8>, ShardError> {
    let text = serde_json::to_string(record);
    let text = text.map_err(|source| ShardError::Json { key: key.to_owned(), source })?;
    Ok(seal(&text).into_bytes())
}

fn decode<T: DeserializeOwned>(key: &str, content: &[u8]) -> Result<T, ShardError> {
    let damaged = || ShardError::Damaged { key: key.to_owned() };
    let line = content.strip_suffix(b"\n").and_then(unseal).ok_or_else(damaged)?;
    serde_json::from_slice(&line).map_err(|source| ShardError::Json { key: key.to_owned(), source })
}

impl RunDir {
    /// Returns the paths of the run's files that never change.
    pub fn run_files(&self) -> Vec<String> {
        self.shared.state().log.state().run_files.keys().cloned().collect()
    }

    /// Returns the description of an attempt that writes to this directory.
    pub fn session(&self, attempt: &Attempt) -> Session {
        Session { attempt: attempt.clone(), record: self.shared.state().record.clone() }
    }

    /// Returns a committed trial as the commit of an attempt.
    pub fn commit_of(&self, attempt: &Attempt, point_id: u32, trial: u16) -> Option<Commit> {
        let state = self.shared.state();
        let journal = state.log.state();
        let digests = journal.digests.get(&(point_id, trial)).cloned().unwrap_or_default();
        let end = journal.committed.get(&(point_id, trial))?.clone();
        Some(Commit {
            plan_sha256: self.shared.plan_sha256.clone(),
            attempt: attempt.clone(),
            trial: TrialEnd { digests, ..end },
            value_bits: vec![],
        })
    }

    /// Removes the files of a trial that is already in the store, to limit this directory's size. The journal keeps the trial.
    ///
    /// # Errors
    /// The files cannot be removed.
    pub fn discard_files(&self, point_id: u32, trial: u16) -> Result<(), StoreError> {
        Ok(self.shared.clear(point_id, trial)?)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::trial::tests::{filled, good, info};

    pub(crate) fn attempt(id: &str, shard: u32, shards: u32) -> Attempt {
        let job = SchedulerJob { scheduler: "slurm".into(), id: "7_1".into(), epoch: Some(2) };
        Attempt { id: id.into(), shard, shards, host: "n1".into(), job: Some(job) }
    }

    #[test]
    fn records_are_read_back_and_damage_is_found() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), &info()).unwrap();
        filled(&run, 2).commit(&good()).unwrap();
        let attempt = attempt("a", 1, 3);
        assert_eq!(run.commit_of(&attempt, 0, 1), None);
        let commit = run.commit_of(&attempt, 0, 2).unwrap();
        assert_eq!(commit.key(), "commits/point=0/trial-02.json");
        assert_eq!(trial_of_key(&commit.key()), Some((0, 2)));
        assert_eq!(trial_of_key("commits/point=0/x.json"), None);
        assert!(commit.trial.digests.keys().all(|name| run.path().join(name).is_file()));
        assert!(commit.trial.digests.len() >= 4, "tables and a raw file");
        assert!(commit.values().is_empty());
        let values = [Some(0.1 + 0.2), None, Some(f64::MIN_POSITIVE)];
        let commit = commit.with_values(&values);
        let mut content = commit.encode().unwrap();
        assert_eq!(Commit::decode("k", &content).unwrap(), commit);
        assert_eq!(Commit::decode("k", &content).unwrap().values(), values);
        let session = run.session(&attempt);
        let decoded = Session::decode("k", &session.encode().unwrap()).unwrap();
        assert_eq!(decoded, session);
        let first = session.encode_backend().unwrap();
        assert_eq!(session.other_backend(&first).unwrap(), None);
        let mut other = serde_json::to_value(&session).unwrap();
        other["record"]["backend"] = serde_json::json!({ "kind": "import" });
        let other: Session = serde_json::from_value(other).unwrap();
        assert_eq!(other.other_backend(&first).unwrap(), Some("a".to_owned()));
        let error = session.other_backend(&first[1..]).unwrap_err().to_string();
        assert!(error.starts_with("run/backend.json is damaged"), "{error}");
        content[20] ^= 1;
        let error = Commit::decode("k", &content).unwrap_err().to_string();
        assert!(error.starts_with("k is damaged"), "{error}");
        run.discard_files(0, 2).unwrap();
        assert!(!commit.trial.digests.keys().any(|name| run.path().join(name).exists()));
        assert_eq!(run.counts(), (1, 0, 0), "the journal keeps the trial");
    }
}
