//! Compares files with their digests in the journal; [`verify`](super::verify) does so for every file of the directory. [`mark`] finds
//! committed trials whose table files have changed since the commit. Readers treat such a trial as failed and without rows, so that one
//! damaged file does not block the other trials.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use super::digest::FileDigest;
use super::journal::{RunState, TrialEnd};
use super::layout::{RESOLVED_PLAN, is_inside, table_files};
use super::model::{Reason, TrialStatus};
use super::observer::Observer;
use super::parallel::in_parallel;
use super::reason::ReasonCode;

/// How thoroughly files are compared with the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Compare sizes: one system call per file.
    Sizes,
    /// Compare digests: every file is read.
    Digests,
}

/// Compares a file with its digest in the journal, and describes the difference if there is one. If a file has no digest, checks only its
/// beginning and end, which show whether it is a complete Parquet file.
pub(crate) fn compare_with_digest(
    path: &Path,
    expected: Option<&FileDigest>,
    depth: Depth,
) -> Option<String> {
    let found = match path.metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Some("missing".to_owned());
        }
        Err(error) => return Some(format!("cannot be read: {error}")),
        Ok(found) => found,
    };
    if !found.is_file() {
        return Some("not a file".to_owned());
    }
    let Some(expected) = expected else {
        let is_parquet = path.extension().is_some_and(|ending| ending == "parquet");
        let incomplete = is_parquet && !has_parquet_ends(path).unwrap_or(false);
        return incomplete.then(|| "not a complete Parquet file".to_owned());
    };
    if found.len() != expected.bytes {
        let verb = if found.len() < expected.bytes { "truncated" } else { "changed" };
        return Some(format!("{verb}: it has {} bytes instead of {}", found.len(), expected.bytes));
    }
    if depth == Depth::Sizes {
        return None;
    }
    match FileDigest::of_file(path) {
        Ok(digest) if digest == *expected => None,
        Ok(_) => Some("changed: its SHA-256 differs".to_owned()),
        Err(error) => Some(format!("cannot be read: {error}")),
    }
}

/// Returns whether a file begins and ends with Parquet's magic number, and has a footer that fits into the file.
fn has_parquet_ends(path: &Path) -> std::io::Result<bool> {
    const MAGIC: &[u8] = b"PAR1";
    let mut file = File::open(path)?;
    let mut head = [0; 4];
    file.read_exact(&mut head)?;
    let bytes = file.seek(SeekFrom::End(-8))? + 8;
    let (mut footer, mut tail) = ([0; 4], [0; 4]);
    file.read_exact(&mut footer)?;
    file.read_exact(&mut tail)?;
    let fits = u64::from(u32::from_le_bytes(footer)) + 12 <= bytes;
    Ok(head == MAGIC && tail == MAGIC && fits)
}

/// Returns what is wrong with the resolved plan, also if it is missing. A plan without a digest is no damage.
pub(crate) fn of_plan(run: &Path, state: &RunState) -> Option<String> {
    let expected = state.run_files.get(RESOLVED_PLAN)?;
    compare_with_digest(&run.join(RESOLVED_PLAN), Some(expected), Depth::Digests)
}

/// Returns what is wrong with `run.json`, which has this digest. It may be any version that the journal names, if the journal is read after
/// it; an unfinished last line may have named it. Early versions of ccbench recorded no digests.
pub(crate) fn of_record(found: &FileDigest, state: &RunState) -> Option<&'static str> {
    let may_lack = state.records.is_empty() || state.has_unrecorded || state.torn_bytes > 0;
    (!may_lack && !state.records.contains(found))
        .then_some("its SHA-256 is not in journal.ndjson, so one of the two has changed")
}

/// Marks every trial in the state with a damaged file in one of these tables.
pub(crate) fn mark(
    path: &Path,
    state: &mut RunState,
    depth: Depth,
    tables: impl Fn(&str) -> bool + Sync,
    observer: &Observer,
) {
    let trials: Vec<&TrialEnd> = state.committed.values().collect();
    let shared = damaged_shared(path, state, depth, &tables);
    let step = observer.begin("comparing digests", trials.len());
    let damaged_files = |end: &TrialEnd| -> Vec<String> {
        let key = (end.point_id, end.trial);
        let digests = state.digests.get(&key);
        let of_shared = end.shared.values().filter_map(|rows| shared.get(rows.file.as_str()));
        let tables =
            end.rows.keys().filter(|table| tables(table) && !end.shared.contains_key(*table));
        let files = tables.flat_map(|table| table_files(path, end, table));
        let damaged = files.filter_map(|file| {
            let name = file.strip_prefix(path).unwrap_or(&file).to_string_lossy().into_owned();
            let expected = digests.and_then(|digests| digests.get(&name));
            if expected.is_none() && digests.is_some() {
                return Some(format!("{name}: not in the journal"));
            }
            Some(format!("{name}: {}", compare_with_digest(&file, expected, depth)?))
        });
        of_shared.cloned().chain(damaged).collect()
    };
    let found =
        in_parallel(&trials, |end| ((end.point_id, end.trial), step.trial(|| damaged_files(end))));
    for (key, damaged) in found {
        let Some(end) = state.committed.get_mut(&key).filter(|_| !damaged.is_empty()) else {
            continue;
        };
        let more = match damaged.len() {
            0 | 1 => String::new(),
            count => format!(" (and {} more files)", count - 1),
        };
        let first = damaged.into_iter().next().unwrap_or_default();
        // A compacted run cannot be resumed.
        let remedy = match end.shared.is_empty() {
            true => "`ccbench run --resume` repeats the trial",
            false => "merge the shards again",
        };
        let message = format!("{first}{more}; `ccbench verify` lists every damaged file; {remedy}");
        end.status = TrialStatus::Failed;
        end.reasons.insert(0, Reason::new(ReasonCode::Damaged, message));
        end.rows.clear();
        end.files.clear();
        end.shared.clear();
    }
}

/// Returns what is wrong with shared files of these tables, by file name. Each file is read once.
fn damaged_shared(
    path: &Path,
    state: &RunState,
    depth: Depth,
    tables: impl Fn(&str) -> bool,
) -> BTreeMap<String, String> {
    let shared = state.committed.values().flat_map(|end| &end.shared);
    let names = shared.filter(|(table, _)| tables(table)).map(|(_, rows)| rows.file.as_str());
    let names: Vec<&str> = names.collect::<BTreeSet<_>>().into_iter().collect();
    let problems = in_parallel(&names, |name| match state.run_files.get(*name) {
        // The directory may come from someone else.
        Some(expected) if is_inside(name) => {
            compare_with_digest(&path.join(name), Some(expected), depth)
        }
        _ => Some("not in the journal".to_owned()),
    });
    let damaged = names.into_iter().zip(problems);
    damaged
        .filter_map(|(name, what)| Some((name.to_owned(), format!("{name}: {}", what?))))
        .collect()
}
