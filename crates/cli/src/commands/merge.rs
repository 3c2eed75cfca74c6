//! `ccbench merge`: merges the trials of all shards into one run.

use std::path::{Path, PathBuf};

use ccbench_results::journal::FILE_NAME as JOURNAL;
use ccbench_results::merge::{Duplicate, Merge, Missing, Staging};
use ccbench_results::shard::PLAN_KEY;
use ccbench_results::store::RunDir;
use ccbench_store::{Creation, ShardStore, check_creation};
use serde_json::json;
use tempfile::TempDir;

use self::error::MergeUsageError;
use super::run::{Tables, summarize_run};
use crate::args::shard::MergeArgs;
use crate::collect::{Collected, collect, copy_files};
use crate::console::{message, print_json};
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::file::FileError;
use crate::readable_run::RUN_RECORD;
use crate::runtime::block_on;

pub mod error;

/// Maximum number of trials that a message names.
const NAMED_TRIALS: usize = 10;

/// Runs the command.
///
/// # Errors
/// The store cannot be read, an object is damaged or belongs to another plan, or the results cannot be written.
pub fn run(args: &MergeArgs) -> Result<ExitCode, CliError> {
    let out = args.out.to_string_lossy();
    let place = Place::new(&out)?;
    let Some(collected) = block_on(merge(args, place.root()))? else {
        return Ok(ExitCode::Failure);
    };
    let is_sound = collected.is_sound;
    let dir = RunDir::open(&collected.finish(args)?)?;
    if let Place::Directory(_) = place {
        message(format_args!("results: {}", dir.path().display()));
    }
    let code = summarize_run(&dir, Tables::All, args.json, args.strict)?.exit_code;
    if let Place::Bucket(_) = place {
        let name = dir.path().file_name().unwrap_or_default().to_string_lossy();
        let url = format!("{}/{name}", out.trim_end_matches('/'));
        block_on(publish(dir.path(), &url))?;
        if args.json {
            print_json(&json!({ "event": "uploaded", "results": url }));
        }
        message(format_args!("results: {url}"));
    }
    Ok(if is_sound { code } else { ExitCode::Failure })
}

/// The destination of the merged run.
enum Place {
    /// A parent directory.
    Directory(PathBuf),
    /// A bucket. The run is assembled in this temporary directory first.
    Bucket(TempDir),
}

impl Place {
    fn new(out: &str) -> Result<Self, CliError> {
        if !ccbench_store::is_url(out) {
            return Ok(Self::Directory(out.into()));
        }
        // Reports a wrong URL before the work begins.
        ccbench_store::open(out)?;
        let dir = tempfile::Builder::new().prefix("ccbench-merge-").tempdir();
        let root = std::env::temp_dir();
        Ok(Self::Bucket(dir.map_err(FileError::io("create a directory in", &root))?))
    }

    fn root(&self) -> &Path {
        match self {
            Self::Directory(path) => path,
            Self::Bucket(dir) => dir.path(),
        }
    }
}

/// Shards whose files have been copied.
struct Copied {
    merge: Merge,
    /// Whether no trial is missing and no machines disagree.
    is_sound: bool,
}

impl Copied {
    /// Writes the results directory. Must be called outside the asynchronous runtime, because Polars has its own.
    fn finish(self, args: &MergeArgs) -> Result<PathBuf, CliError> {
        let merge = if args.compact { self.merge.compacted() } else { self.merge };
        Ok(merge.finish(format!("merged from the shards in {}", args.shards))?)
    }
}

/// Copies the trials of the shards. If trials are missing, prints them and returns `None`.
async fn merge(args: &MergeArgs, root: &Path) -> Result<Option<Copied>, CliError> {
    let location = &args.shards;
    if !ccbench_store::is_url(location) && !Path::new(location).is_dir() {
        return Err(MergeUsageError::NotADirectory { location: location.clone() }.into());
    }
    let store = ccbench_store::open(location)?;
    let store = &*store;
    if !store.exists(PLAN_KEY).await? {
        return Err(MergeUsageError::NoShards { location: location.clone() }.into());
    }
    let Collected { merge, .. } = collect(store, Staging::new(root)?).await?;
    let missing = merge.missing();
    missing.iter().for_each(print_missing);
    for duplicate in merge.duplicates() {
        print_duplicate(duplicate, merge.is_repeatable());
    }
    if !missing.is_empty() && !args.partial {
        message("nothing was merged; run these shards again, or add --partial");
        return Ok(None);
    }
    for commit in merge.commits() {
        copy_files(store, &merge, commit).await?;
    }
    let disagree = merge.is_repeatable() && merge.duplicates().iter().any(|found| !found.equal);
    Ok(Some(Copied { merge, is_sound: missing.is_empty() && !disagree }))
}

/// Uploads a results directory to a bucket. Creates `run.json` first, which fails if it exists: only one of several runs with
/// this URL uploads its files. The journal comes last, so that a reader sees the whole run or nothing.
async fn publish(dir: &Path, url: &str) -> Result<(), CliError> {
    let store = ccbench_store::open(url)?;
    let store = &*store;
    let content = |name: &str| {
        let path = dir.join(name);
        std::fs::read(&path).map_err(FileError::io("read", &path))
    };
    let (record, journal) = (content(RUN_RECORD)?, content(JOURNAL)?);
    match store.read(JOURNAL).await? {
        Some(found) if found == journal => return Ok(()),
        Some(_) => return Err(other_run(store).into()),
        None => check_creation(store, &probe_key(dir)).await?,
    }
    create(store, RUN_RECORD, record).await?;
    for (key, file) in files_below(dir, dir)? {
        if ![RUN_RECORD, JOURNAL].contains(&key.as_str()) {
            store.upload(&key, &file).await?;
        }
    }
    create(store, JOURNAL, journal).await
}

/// Returns the key of a test object. It has the random name of the temporary directory of the run, because process IDs are equal in
/// containers: two commands with one key would remove each other's object and refuse the bucket.
fn probe_key(run: &Path) -> String {
    let folder = run.parent().and_then(Path::file_name).unwrap_or_default();
    format!("probes/{}", folder.to_string_lossy())
}

/// Creates an object. Succeeds if it already exists with the same contents.
async fn create(store: &dyn ShardStore, key: &str, content: Vec<u8>) -> Result<(), CliError> {
    let is_first = store.create(key, content.clone()).await? == Creation::New;
    // The answer to an earlier request may have been lost.
    let is_own = is_first || store.read(key).await?.is_some_and(|found| found == content);
    if is_own { Ok(()) } else { Err(other_run(store).into()) }
}

fn other_run(store: &dyn ShardStore) -> MergeUsageError {
    MergeUsageError::OtherRun { url: store.location().to_owned() }
}

/// Returns every file below a folder of `root`, with its path relative to `root`.
fn files_below(root: &Path, folder: &Path) -> Result<Vec<(String, PathBuf)>, FileError> {
    let failed = FileError::io("list", folder);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(&failed)? {
        let path = entry.map_err(&failed)?.path();
        if path.is_dir() {
            found.extend(files_below(root, &path)?);
        } else {
            let key = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            found.push((key, path));
        }
    }
    Ok(found)
}

/// Formats trials as `point 3 repetition 2, point 4 repetition 1 and 5 more`.
fn named(trials: &[(u32, u16)]) -> String {
    let first = trials.iter().take(NAMED_TRIALS);
    let names: Vec<String> =
        first.map(|(point, trial)| format!("point {point} repetition {trial}")).collect();
    let more = match trials.len().saturating_sub(NAMED_TRIALS) {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    names.join(", ") + &more
}

fn print_missing(missing: &Missing) {
    let (count, names) = (missing.trials.len(), named(&missing.trials));
    match missing.shard {
        Some(shard) => {
            message(format_args!("missing: shard {shard} lacks {count} trials: {names}"));
        }
        None => message(format_args!(
            "missing: {count} trials: {names} (some shards were run with another number of shards)"
        )),
    }
}

fn print_duplicate(duplicate: &Duplicate, is_repeatable: bool) {
    let Duplicate { trial, used, discarded, equal } = duplicate;
    let comparison = match (equal, is_repeatable) {
        (true, _) => "their tables are equal",
        (false, false) => "only its tables are in the run",
        (false, true) => {
            "their tables differ, although trials of this backend are repeatable: a machine or a program is faulty"
        }
    };
    message(format_args!(
        "duplicate: {}: attempts {used} and {discarded} both ran it, and the trial of {used} is used; {comparison}",
        named(&[*trial])
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_commands_test_a_bucket_with_objects_of_their_own() {
        let [one, other] = [(), ()].map(|()| Place::new("s3://results").unwrap());
        let key = |place: &Place| probe_key(&place.root().join("sweep-1"));
        assert!(key(&one).starts_with("probes/ccbench-merge-"), "{}", key(&one));
        assert_ne!(key(&one), key(&other));
    }

    #[test]
    fn messages_name_some_trials_and_count_the_others() {
        assert_eq!(named(&[(3, 2)]), "point 3 repetition 2");
        let many: Vec<(u32, u16)> = (0..13).map(|point| (point, 1)).collect();
        let text = named(&many);
        assert!(text.ends_with("point 9 repetition 1 and 3 more"), "{text}");
    }
}
