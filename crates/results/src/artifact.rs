//! Artifacts: a finished run as one archive, which a reviewer unpacks, runs again and compares.
//!
//! ```text
//! <run>/README.md  artifact.json  SHA256SUMS  run/<the results directory>
//! ```
//!
//! An archive is gzip over tar, and depends only on the run. `ccbench artifact rerun` adds `<run>/rerun/<results directory>`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ccbench_io::input;
use ccbench_proto::plan::check;
use serde::Deserialize;

use super::backend::RunBackend;
use super::digest::{Digests, FileDigest};
use super::layout::list;
use super::model::RunStatus;
use super::parallel::in_parallel;
use super::store::RunDir;
use super::trace::stored;
use super::verify::Verification;
use crate::error::{FileError, io_error};

mod compare;
mod error;
mod manifest;
mod pack;
mod readme;
pub mod tar;
mod unpack;

pub use compare::{Agreement, Comparison, Item, Reproduction, compare, compare_claim, text};
pub use error::ArtifactError;
pub use pack::{Packed, pack};
pub use tar::{Limits, TarError};
pub use unpack::unpack;

/// The result of working with artifacts.
type Result<T, E = ArtifactError> = std::result::Result<T, E>;

/// The description of the artifact for programs.
const MANIFEST: &str = "artifact.json";
/// The folder with the run's results directory.
const RUN: &str = "run";
/// The folder with the results directories of later runs.
pub const RERUN: &str = "rerun";
/// Version of the archive's layout.
const FORMAT_VERSION: u32 = 1;

/// The part of [`MANIFEST`] that ccbench reads.
#[derive(Debug, Deserialize)]
struct Format {
    format_version: u32,
}

/// An unpacked artifact whose files are unchanged since it was packed.
#[derive(Debug)]
pub struct Artifact {
    path: PathBuf,
    run: RunDir,
    /// Digests of the run's files that were compared with the journal, by their paths in its directory.
    digests: Digests,
}

impl Artifact {
    /// Opens an unpacked artifact and [verifies](super::verify::verify) its run.
    ///
    /// # Errors
    /// The directory is not an artifact, a file is damaged or missing, or the run cannot be repeated.
    pub fn open(path: &Path) -> Result<Self> {
        let not_one =
            |reason: String| ArtifactError::NotAnArtifact { path: path.to_path_buf(), reason };
        let manifest = input::read(&path.join(MANIFEST), &input::RECORD)
            .map_err(|error| not_one(format!("it has no readable {MANIFEST}: {error}")))?;
        let format: Format = serde_json::from_slice(&manifest)
            .map_err(|error| not_one(format!("{MANIFEST}: {error}")))?;
        if format.format_version != FORMAT_VERSION {
            let found = format.format_version;
            return Err(not_one(format!(
                "it has format {found}, but this ccbench reads format {FORMAT_VERSION}; use the version of ccbench that packed it"
            )));
        }
        let (run, digests) = open_intact(&path.join(RUN))?;
        Ok(Self { path: path.to_path_buf(), run, digests })
    }

    /// Returns the artifact's run.
    pub fn run(&self) -> &RunDir {
        &self.run
    }

    /// Returns the path of the resolved plan, which has its traces beside it.
    pub fn plan(&self) -> PathBuf {
        self.run.path().join("plan.resolved.toml")
    }

    /// Returns the parent directory of the results of later runs.
    pub fn rerun_parent(&self) -> PathBuf {
        self.path.join(RERUN)
    }

    /// Returns whether the run was in a user namespace although its user was root.
    pub fn was_rootless(&self) -> bool {
        self.run.command_line().iter().any(|argument| argument == "--rootless")
    }

    /// Returns the last complete results directory of `ccbench artifact rerun`.
    ///
    /// # Errors
    /// There is none.
    pub fn last_rerun(&self) -> Result<PathBuf> {
        let parent = self.rerun_parent();
        // All names begin with the plan's name, followed by the time, so they sort by time.
        let is_complete = |path: &PathBuf| {
            RunDir::open(path).is_ok_and(|run| run.status() == RunStatus::Complete)
        };
        let last = list(&parent)?.into_iter().rev().find(is_complete);
        last.ok_or(ArtifactError::NoRerun { path: self.path.clone() })
    }
}

/// Opens a finished run that can be repeated from its results directory alone. Also returns the digests of its intact files, so that no
/// file is read twice.
fn open_intact(path: &Path) -> Result<(RunDir, Digests)> {
    let mut run = RunDir::open(path)?;
    let unfit = |reason| ArtifactError::Unfit { path: path.to_path_buf(), reason };
    if run.backend() == RunBackend::Import {
        return Err(unfit("its rows were imported, so there is nothing to run again"));
    }
    if run.status() != RunStatus::Complete {
        return Err(unfit(
            "it is not complete; `ccbench run --resume` runs the missing trials and ends it",
        ));
    }
    if run.is_compacted() {
        return Err(unfit(
            "it is compacted, but a rerun is compared file by file; merge its shards without --compact",
        ));
    }
    let Verification { damaged, digests, .. } = run.verify()?;
    if let Some((name, what)) = damaged.first() {
        let (count, first) = (damaged.len(), format!("{name}: {what}"));
        return Err(ArtifactError::Damaged { path: path.to_path_buf(), count, first });
    }
    let missing = missing_files(path)?;
    if let Some(first) = missing.first() {
        let (count, first) = (missing.len(), format!("{}: missing", first.display()));
        return Err(ArtifactError::Damaged { path: path.to_path_buf(), count, first });
    }
    Ok((run, digests))
}

/// Returns the digest of each file, by its path in the results directory. Files with a known digest are not read.
fn digests_of(
    run: &Path,
    files: &[PathBuf],
    known: &Digests,
) -> Result<Vec<(String, FileDigest)>, FileError> {
    let name = |file: &Path| file.strip_prefix(run).unwrap_or(file).display().to_string();
    let digests = in_parallel(files, |file| match known.get(&name(file)) {
        Some(digest) => Ok(digest.clone()),
        None => FileDigest::of_file(file),
    });
    let with_name = |(file, digest): (&PathBuf, std::io::Result<FileDigest>)| {
        digest.map(|digest| (name(file), digest)).map_err(io_error("read", file))
    };
    files.iter().zip(digests).map(with_name).collect()
}

/// Returns traces and congestion controls that the plan names and the results directory lacks. A plan must not read other files of this
/// machine.
fn missing_files(run: &Path) -> Result<Vec<PathBuf>, FileError> {
    let path = run.join("plan.resolved.toml");
    let plan = input::read_to_string(&path, &input::RECORD).map_err(io_error("read", &path))?;
    let names = |folder: &'static str, files: BTreeSet<String>| {
        let files = files.into_iter().filter(|file| !file.is_empty()).collect();
        let names = stored::stored_names(&files).into_values();
        names.map(move |name| Path::new(folder).join(name))
    };
    let traces = names(stored::FOLDER, check::trace_files(&plan, &[]));
    let ccs = names(stored::CC_FOLDER, check::cc_files(&plan, &[]));
    Ok(traces.chain(ccs).filter(|name| !run.join(name).is_file()).collect())
}

#[cfg(test)]
mod tests;
