//! Compares every file of a results directory with the digests in its journal (`damage::compare_with_digest`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ccbench_io::input;

use super::backend::RunBackend;
use super::damage::{Depth, compare_with_digest};
use super::digest::{Digests, FileDigest};
use super::journal::{self, RunState, TrialEnd};
use super::layout::{DIGESTS_FILE, RUN_FILES, is_inside, leftovers, list, table_files, trial_dir};
use super::model::TrialStatus;
use super::parallel::in_parallel;
use super::record::{self, RunRecord};
use super::store::{RunDir, StoreError};
use crate::error::io_error;

/// The result of reading a results directory.
type Result<T, E = StoreError> = std::result::Result<T, E>;

/// The result of [`verify`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verification {
    /// Number of unchanged files.
    pub intact: usize,
    /// Size of these files.
    pub intact_bytes: u64,
    /// Digests of the intact files that were read, without the journal and `run.json`.
    pub(crate) digests: Digests,
    /// Number of committed trials.
    pub trials: usize,
    /// Number of committed trials that were not interrupted.
    pub finished: usize,
    /// Number of trials that the run needs; 0 if it is unknown.
    pub planned: usize,
    /// Changed files: the path relative to the results directory, and what is wrong.
    pub damaged: Vec<(String, String)>,
    /// Files without a digest: written by a version without digests, derived from other files, or written by other programs.
    pub not_covered: Vec<String>,
    /// Directories of trials that were not committed.
    pub uncommitted: Vec<String>,
}

/// A file to compare.
struct Wanted {
    name: String,
    expected: Option<FileDigest>,
}

/// Compares every file of a results directory with the journal: tables and raw files of committed trials, the plan, traces,
/// `points.parquet`, `run.json` and the summary's files. Every line of the journal has its own checksum. Lists all other files. Changes
/// nothing.
///
/// # Errors
/// The path is not a results directory, or a folder cannot be listed.
pub fn verify(dir: &Path) -> Result<Verification> {
    let mut found = Verification::default();
    // A session that begins or ends meanwhile writes to the journal first. The error says what is wrong if this is no results directory.
    let record = RunRecord::read(dir);
    let path = dir.join(journal::FILE_NAME);
    let bytes = match input::read(&path, &input::RECORD) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            record?;
            found.damaged.push((journal::FILE_NAME.to_owned(), "missing".to_owned()));
            return Ok(found);
        }
        Err(error) => return Err(io_error("read", &path)(error).into()),
    };
    // If the record cannot be read, `check_record` reports it.
    let (record, digest) = record.ok().unzip();
    let state = read_journal(record.as_ref(), &bytes, &mut found);
    found.trials = state.committed.len();
    let is_finished = |end: &&TrialEnd| end.status != TrialStatus::Aborted;
    found.finished = state.committed.values().filter(is_finished).count();
    found.planned = record.as_ref().map_or(0, planned);
    let mut wanted = run_files(&state);
    for end in state.committed.values() {
        trial_files(dir, &state, end, &mut wanted);
    }
    wanted.extend(summary_files(dir, &mut found));
    compare(dir, &wanted, &mut found);
    check_record(dir, digest.as_ref(), &state, &mut found);
    let uncommitted = leftovers(dir, &state)?;
    other_files(dir, &state, &wanted, &uncommitted, &mut found)?;
    found.uncommitted = uncommitted.iter().map(|path| relative(dir, path)).collect();
    found.damaged.sort();
    found.not_covered.sort();
    Ok(found)
}

impl RunDir {
    /// [Verifies](verify) every file. If all are intact, [`RunDir::check`] reads none again.
    ///
    /// # Errors
    /// As [`verify`].
    pub(crate) fn verify(&mut self) -> Result<Verification> {
        let found = verify(self.path())?;
        self.is_verified = found.damaged.is_empty();
        Ok(found)
    }
}

/// Returns the number of trials that a run needs; 0 if its rows were imported.
fn planned(record: &RunRecord) -> usize {
    if record.backend() == RunBackend::Import { 0 } else { record.planned() as usize }
}

/// Returns the state according to the intact lines.
fn read_journal(record: Option<&RunRecord>, bytes: &[u8], found: &mut Verification) -> RunState {
    let (state, bad_lines) = journal::read_intact(bytes);
    let lost = record.map(|record| record.lost(&state)).unwrap_or_default();
    let mut add = |what: String| found.damaged.push((journal::FILE_NAME.to_owned(), what));
    let is_whole = bad_lines.is_empty() && lost.is_empty();
    for (line, what) in bad_lines {
        add(format!("line {line} {what}"));
    }
    for (point_id, trial) in lost {
        add(format!("it lacks trial {trial} of point {point_id}, which run.json has"));
    }
    if state.plan_sha256.is_none() {
        add("it does not begin with the start of a run".to_owned());
    } else if is_whole {
        found.intact += 1;
        found.intact_bytes += bytes.len() as u64;
    }
    state
}

/// Returns the files of the run that never change.
fn run_files(state: &RunState) -> Vec<Wanted> {
    let expected = |(name, digest): (&String, &FileDigest)| Wanted {
        name: name.clone(),
        expected: Some(digest.clone()),
    };
    let mut files: Vec<Wanted> = state.run_files.iter().map(expected).collect();
    if files.is_empty() {
        let names = RUN_FILES.iter();
        files.extend(names.map(|name| Wanted { name: (*name).to_owned(), expected: None }));
    }
    files
}

/// Adds the files with which a trial was committed to `wanted`.
fn trial_files(dir: &Path, state: &RunState, end: &TrialEnd, wanted: &mut Vec<Wanted>) {
    if let Some(digests) = state.digests.get(&(end.point_id, end.trial)) {
        wanted.extend(
            digests.iter().map(|(name, digest)| Wanted {
                name: name.clone(),
                expected: Some(digest.clone()),
            }),
        );
        return;
    }
    // Shared files count as files of the run.
    let own = end.rows.keys().filter(|table| !end.shared.contains_key(*table));
    let tables = own.flat_map(|table| table_files(dir, end, table));
    let raw = trial_dir(&dir.join("raw"), end.point_id, end.trial);
    let files = tables.chain(files_below(&raw).unwrap_or_default());
    wanted.extend(files.map(|file| Wanted { name: relative(dir, &file), expected: None }));
}

/// Returns the files of the summary, whose list has the format of `sha256sum`.
fn summary_files(dir: &Path, found: &mut Verification) -> Vec<Wanted> {
    let bytes = match input::read(&dir.join(DIGESTS_FILE), &input::RECORD) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return vec![],
        Err(error) => {
            found.damaged.push((DIGESTS_FILE.to_owned(), format!("cannot be read: {error}")));
            return vec![];
        }
    };
    let text = String::from_utf8_lossy(&bytes);
    let mut files = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let is_digest = |digest: &str| {
            digest.len() == 64 && digest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        match line.split_once("  ").filter(|(digest, _)| is_digest(digest)) {
            Some((sha256, name)) => {
                // The list has no sizes, so expect the current one.
                let bytes = dir.join(name).metadata().map_or(0, |found| found.len());
                let expected = Some(FileDigest { bytes, sha256: sha256.to_owned() });
                files.push(Wanted { name: name.to_owned(), expected });
            }
            None => {
                let what =
                    format!("line {number} is damaged; `ccbench summarize` rewrites the file");
                found.damaged.push((DIGESTS_FILE.to_owned(), what));
            }
        }
    }
    files
}

fn compare(dir: &Path, wanted: &[Wanted], found: &mut Verification) {
    let results = in_parallel(wanted, |file| {
        // The directory may come from someone else, and the path must not lead to a device.
        if !is_inside(&file.name) {
            return Some("outside the results directory".to_owned());
        }
        compare_with_digest(&dir.join(&file.name), file.expected.as_ref(), Depth::Digests)
    });
    for (file, problem) in wanted.iter().zip(results) {
        match (problem, &file.expected) {
            (Some(what), _) => found.damaged.push((file.name.clone(), what)),
            (None, Some(digest)) => {
                found.intact += 1;
                found.intact_bytes += digest.bytes;
                found.digests.insert(file.name.clone(), digest.clone());
            }
            (None, None) => found.not_covered.push(file.name.clone()),
        }
    }
}

/// Checks `run.json`, which is replaced whenever the run's status changes, after its digest is in the journal. `digest` is `None` if it
/// cannot be read.
fn check_record(
    dir: &Path,
    digest: Option<&FileDigest>,
    state: &RunState,
    found: &mut Verification,
) {
    let name = record::FILE_NAME.to_owned();
    // The last version, or the one before it if ccbench was killed between the two writes.
    let is_last = |digest: &FileDigest| state.records.iter().rev().take(2).any(|it| it == digest);
    if let Some(intact) = digest.filter(|digest| is_last(digest)) {
        found.intact += 1;
        found.intact_bytes += intact.bytes;
        return;
    }
    let expected = state.records.last().filter(|_| digest.is_none() || !state.has_unrecorded);
    match compare_with_digest(&dir.join(&name), expected, Depth::Digests) {
        Some(what) => found.damaged.push((name, what)),
        None => found.not_covered.push(name),
    }
}

/// Lists the files that neither the journal nor the summary mentions. An extra file of a committed trial or of a table is damage, because
/// readers would take it for rows.
fn other_files(
    dir: &Path,
    state: &RunState,
    wanted: &[Wanted],
    uncommitted: &[PathBuf],
    found: &mut Verification,
) -> Result<()> {
    let own = [journal::FILE_NAME, record::FILE_NAME, DIGESTS_FILE];
    let known: BTreeSet<&str> = wanted.iter().map(|file| file.name.as_str()).chain(own).collect();
    let uncommitted: BTreeSet<&Path> = uncommitted.iter().map(PathBuf::as_path).collect();
    let committed = state.committed.keys();
    let committed: BTreeSet<PathBuf> =
        committed.map(|(point_id, trial)| trial_dir(Path::new(""), *point_id, *trial)).collect();
    for file in files_below(dir)? {
        let name = relative(dir, &file);
        let is_left = || file.ancestors().any(|folder| uncommitted.contains(folder));
        if known.contains(name.as_str()) || is_left() {
            continue;
        }
        if trial_of(&name).is_some_and(|trial| committed.contains(Path::new(trial))) {
            let what = "unexpected: the trial was committed without it";
            found.damaged.push((name, what.to_owned()));
        } else if name.starts_with("tables/") && name.ends_with(".parquet") {
            found.damaged.push((name, "unexpected: no trial has rows in it".to_owned()));
        } else {
            found.not_covered.push(name);
        }
    }
    Ok(())
}

/// Returns `point=<id>/trial-<nn>` for a file below such a folder of a table or of raw files.
fn trial_of(name: &str) -> Option<&str> {
    let below = match name.split_once('/')? {
        ("raw", below) => below,
        ("tables", below) => below.split_once('/')?.1,
        _ => return None,
    };
    let (end, _) = below.match_indices('/').nth(1)?;
    below.get(..end)
}

/// Returns every file below a directory. Symbolic links to folders are not followed, because they may lead anywhere.
fn files_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in list(dir)? {
        if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}

fn relative(dir: &Path, file: &Path) -> String {
    file.strip_prefix(dir).unwrap_or(file).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests;
