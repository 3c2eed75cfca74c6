//! A run for commands that read it: a results directory, or a local copy of a run in a bucket or a shard store.

use std::path::{Path, PathBuf};

use ccbench_results::digest::FileDigest;
use ccbench_results::journal::FILE_NAME as JOURNAL;
use ccbench_results::merge::{Merge, MergeError, Staging, difference};
use ccbench_results::model::TrialFilter;
use ccbench_results::shard::{PLAN_KEY, SESSIONS};
use ccbench_results::store::RunDir;
use ccbench_results::summarize::summarize;
use ccbench_results::verify::{Verification, verify};
use ccbench_store::{ObjectError, ShardStore};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use crate::collect::{CollectError, Collected, collect, copy_files, digest_of, download_all};
use crate::console::message;
use crate::exit::{ExitCode, from_results, of_results};
use crate::file::{FileError, exists};
use crate::run_cache::{CacheEntry, RunCache, RunCacheError};
use crate::runtime::{RuntimeError, block_on};

/// The first uploaded file of a run.
pub const RUN_RECORD: &str = "run.json";
/// Number of trial files that are compared at the same time.
const COMPARED: usize = 4;

/// A run cannot be read, or its files cannot be written beside it.
#[derive(Debug, thiserror::Error)]
pub enum ReadableRunError {
    /// There is no run in the store.
    #[error(
        "{location} has no run; `ccbench run PLAN --shard I/N --out {location}` puts shards there, and `ccbench merge SHARDS --out \
         {location}` makes a results directory there"
    )]
    NoRun {
        /// The store.
        location: String,
    },
    /// The store lacks a file that every run has.
    #[error(
        "{location} has no {name}, so its upload is incomplete; wait for the command that uploads it, or upload it again"
    )]
    Incomplete {
        /// The store.
        location: String,
        /// The file.
        name: &'static str,
    },
    /// A file was to be written beside a run that is not on this machine.
    #[error(
        "{location} is not a results directory on this machine, so {name} cannot be written there; add --output {name}"
    )]
    NotHere {
        /// Where the run is.
        location: String,
        /// The file.
        name: String,
    },
    /// The store cannot be read.
    #[error(transparent)]
    Collect(#[from] CollectError),
    /// The run cannot be copied to the cache.
    #[error(transparent)]
    RunCache(#[from] RunCacheError),
    /// The run cannot be read, or its summary cannot be written.
    #[error(transparent)]
    Results(#[from] ccbench_results::Error),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The asynchronous runtime is not available.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

from_results!(ReadableRunError: MergeError, StoreError, SummaryError);

impl From<ObjectError> for ReadableRunError {
    fn from(error: ObjectError) -> Self {
        CollectError::from(error).into()
    }
}

impl ReadableRunError {
    /// Returns the process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::NoRun { .. } | Self::Incomplete { .. } | Self::NotHere { .. } => ExitCode::Usage,
            Self::Collect(error) => error.exit_code(),
            Self::RunCache(error) => error.exit_code(),
            Self::Results(error) => of_results(error),
            Self::File(_) | Self::Runtime(_) => ExitCode::Failure,
        }
    }
}

type Result<T, E = ReadableRunError> = std::result::Result<T, E>;

/// A run to read.
#[derive(Debug)]
pub struct ReadableRun {
    path: PathBuf,
    /// The location and the locked copy; `None` if the directory itself is read.
    copied: Option<(String, CacheEntry)>,
}

impl ReadableRun {
    /// Opens a results directory, or copies the run at a URL or in a directory of shards to the run cache.
    ///
    /// # Errors
    /// There is no run, it cannot be read, or a file differs from the committed one.
    pub fn open(run: &Path) -> Result<Self> {
        match remote(run)? {
            Some(location) => block_on(copy(&location)),
            None => Ok(Self { path: run.to_path_buf(), copied: None }),
        }
    }

    /// Returns the results directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether it is a copy. Nothing is written beside a copy.
    pub fn is_copy(&self) -> bool {
        self.copied.is_some()
    }

    /// Returns a line about a copy: later commands may remove it, and where the run stays. `None` for a results directory.
    pub fn about_copy(&self) -> Option<String> {
        let (location, _) = self.copied.as_ref()?;
        Some(format!(
            "  (read from a copy in the run cache, which removes copies when it needs room; the run stays at {location}, and `ccbench merge` \
             makes a results directory of shards)\n"
        ))
    }

    /// Adds the summary files to a copy, which a results directory has since the end of its run.
    ///
    /// # Errors
    /// The summary cannot be computed or written.
    pub fn complete(&self) -> Result<()> {
        if self.is_copy() && !exists(&self.path.join("summary_point.csv"))? {
            summarize(&self.path, TrialFilter::default())?.written?;
        }
        Ok(())
    }

    /// Returns where to write: the given path, or a path beside the run.
    ///
    /// # Errors
    /// No path is given and the run is a copy.
    pub fn output(&self, given: Option<&PathBuf>, name: &str) -> Result<PathBuf> {
        match (given, &self.copied) {
            (Some(path), _) => Ok(path.clone()),
            (None, None) => Ok(self.path.join(name)),
            (None, Some((location, _))) => {
                let (location, name) = (location.clone(), name.to_owned());
                Err(ReadableRunError::NotHere { location, name })
            }
        }
    }
}

/// Returns the location of a run that has to be copied; `None` for results directories.
///
/// # Errors
/// It is not known whether the directory has the files of a run.
fn remote(run: &Path) -> Result<Option<String>, FileError> {
    let location = run.to_string_lossy();
    let is_remote = ccbench_store::is_url(&location)
        || (run.join(PLAN_KEY).is_file()
            && run.join(SESSIONS).is_dir()
            && !exists(&run.join(RUN_RECORD))?);
    Ok(is_remote.then(|| location.into_owned()))
}

/// Returns whether a store has shards rather than a results directory.
async fn has_shards(store: &dyn ShardStore) -> Result<bool> {
    if store.exists(PLAN_KEY).await? {
        return Ok(true);
    }
    if store.exists(RUN_RECORD).await? {
        return Ok(false);
    }
    Err(ReadableRunError::NoRun { location: store.location().to_owned() })
}

/// Copies a run to the cache unless the cache already has it.
async fn copy(location: &str) -> Result<ReadableRun> {
    let store = ccbench_store::open(location)?;
    let store = &*store;
    let cache = RunCache::open(store.location())?;
    let building = cache.building()?;
    let (entry, path) = if has_shards(store).await? {
        copy_shards(store, &cache, &building).await?
    } else {
        copy_results(store, &cache, &building).await?
    };
    drop(building);
    cache.remove_others(&entry);
    Ok(ReadableRun { path, copied: Some((location.to_owned(), entry)) })
}

/// Returns the cache entry for a shard store and the copy in it, which is made if it does not exist.
async fn copy_shards(
    store: &dyn ShardStore,
    cache: &RunCache,
    building: &CacheEntry,
) -> Result<(CacheEntry, PathBuf)> {
    let Collected { merge, sha256 } = collect(store, Staging::new(building.folder())?).await?;
    warn_about(&merge, store.location());
    let entry = cache.entry(&sha256)?;
    if let Some(path) = entry.run() {
        return Ok((entry, path));
    }
    if let Some(latest) = cache.latest() {
        for commit in merge.commits() {
            merge.link_from(&latest, commit)?;
        }
    }
    cache.make_room(merge.bytes())?;
    for commit in merge.commits() {
        copy_files(store, &merge, commit).await?;
    }
    let note = format!("merged from the shards in {}", store.location());
    let path = entry.take(&merge.finish(note)?)?;
    Ok((entry, path))
}

/// Prints a warning about the shards. `ccbench merge` prints the details.
fn warn_about(merge: &Merge, location: &str) {
    let missing: usize = merge.missing().iter().map(|missing| missing.trials.len()).sum();
    if missing > 0 {
        let committed = merge.commits().count();
        message(format_args!(
            "{location}: {committed} trials are committed, and {missing} are missing; `ccbench merge {location}` names them"
        ));
    }
    let differing = merge.duplicates().iter().filter(|duplicate| !duplicate.equal).count();
    if merge.is_repeatable() && differing > 0 {
        message(format_args!(
            "{location}: {differing} trials were run twice with different tables; `ccbench merge {location}` names them"
        ));
    }
}

/// Like [`copy_shards`], for a results directory in a bucket.
async fn copy_results(
    store: &dyn ShardStore,
    cache: &RunCache,
    building: &CacheEntry,
) -> Result<(CacheEntry, PathBuf)> {
    let staging = Staging::new(building.folder())?;
    let sha256 = download_records(store, &staging).await?;
    let entry = cache.entry(&sha256)?;
    if let Some(path) = entry.run() {
        return Ok((entry, path));
    }
    download_rest(store, cache, &staging).await?;
    let found = verify_copy(&staging)?;
    if let Some((name, what)) = found.damaged.into_iter().next() {
        let key = format!("{}/{name}", store.location());
        return Err(MergeError::DamagedCopy { key, what }.into());
    }
    let path = entry.take(&staging.publish(name_of(store.location()))?)?;
    Ok((entry, path))
}

/// Returns the name of the copy of a results directory. It must not be hidden, because hidden directories are unfinished copies.
fn name_of(location: &str) -> &str {
    match location.rsplit('/').next().unwrap_or_default().trim_start_matches('.') {
        "" => "run",
        name => name,
    }
}

/// Downloads `run.json` and the journal, which has the digests of all files and is uploaded last. Returns the digest of both.
async fn download_records(store: &dyn ShardStore, staging: &Staging) -> Result<String> {
    let mut read = String::new();
    for name in [RUN_RECORD, JOURNAL] {
        let path = staging.file(name)?;
        match store.download(name, &path).await {
            Err(error) if error.is_absent() => {
                let location = store.location().to_owned();
                return Err(ReadableRunError::Incomplete { location, name });
            }
            downloaded => downloaded?,
        }
        read += &digest_of(&path)?.sha256;
    }
    Ok(FileDigest::of(read.as_bytes()).sha256)
}

/// Downloads all other files of a results directory.
async fn download_rest(store: &dyn ShardStore, cache: &RunCache, staging: &Staging) -> Result<()> {
    cache.make_room(RunDir::recorded_bytes(staging.path())?)?;
    let mut files = Vec::new();
    for key in store.list("").await? {
        if key != JOURNAL && key != RUN_RECORD {
            let path = staging.file(&key)?;
            files.push((key, path));
        }
    }
    Ok(download_all(store, files).await?)
}

fn verify_copy(staging: &Staging) -> Result<Verification> {
    Ok(verify(staging.path())?)
}

/// Compares every file of a run with its digest. Reads the files of a remote run again instead of a cached copy.
///
/// # Errors
/// There is no run, or it cannot be read.
pub fn verify_at(run: &Path) -> Result<Verification> {
    match remote(run)? {
        Some(location) => block_on(verify_remote(&location)),
        None => Ok(verify(run)?),
    }
}

async fn verify_remote(location: &str) -> Result<Verification> {
    let store = ccbench_store::open(location)?;
    let store = &*store;
    let cache = RunCache::open(store.location())?;
    let building = cache.building()?;
    let staging = Staging::new(building.folder())?;
    if !has_shards(store).await? {
        download_records(store, &staging).await?;
        download_rest(store, &cache, &staging).await?;
        return verify_copy(&staging);
    }
    let Collected { merge, .. } = collect(store, staging).await?;
    let mut found = Verification::default();
    for commit in merge.commits() {
        found.trials += 1;
        let files = merge.files(commit)?.into_iter().zip(commit.trial.digests.values());
        // Removes each file as soon as it is compared, because the run may be larger than the disk.
        let compared = files.map(|((key, path), expected)| async move {
            let what = match store.download(&key, &path).await {
                Err(error) if error.is_absent() => Some("missing".to_owned()),
                downloaded => {
                    downloaded?;
                    difference(&path, expected)
                }
            };
            // The staging directory is removed with all its files anyway.
            let _ = std::fs::remove_file(&path);
            Ok::<_, ObjectError>((key, expected.bytes, what))
        });
        let compared: Vec<(String, u64, Option<String>)> =
            stream::iter(compared).buffered(COMPARED).try_collect().await?;
        for (key, bytes, what) in compared {
            match what {
                Some(what) => found.damaged.push((key, what)),
                None => {
                    found.intact += 1;
                    found.intact_bytes += bytes;
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_copy_is_hidden() {
        let urls =
            ["s3://bucket/results/sweep-1", "s3://bucket", "s3://bucket/.sweep", "s3://b/..."];
        assert_eq!(urls.map(name_of), ["sweep-1", "bucket", "sweep", "run"]);
    }
}
