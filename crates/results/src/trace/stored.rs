//! The copies of a plan's trace files in a results directory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use ccbench_io::input;
use ccbench_proto::plan::check::{TraceFacts, TraceFiles};
use ccbench_proto::plan::digest_bytes;
use ccbench_proto::trace::{self, TraceError};

use crate::digest::{Digests, FileDigest};

/// Name of the folder in a results directory.
pub const FOLDER: &str = "traces";

/// Name of the folder with the user's congestion controls.
pub const CC_FOLDER: &str = "cc";

/// A stored trace cannot be read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error("it has changed since the run began: its SHA-256 differs")]
    Changed,
}

/// Reads the stored copies of these trace files, and compares them with their digests as far as those are known. The second value has a
/// message for each file that cannot be read or has changed.
pub(crate) fn read_stored(
    results: &Path,
    files: &BTreeSet<String>,
    digests: &Digests,
) -> (TraceFiles, Vec<String>) {
    let (mut found, mut errors) = (TraceFiles::new(), vec![]);
    for (file, name) in stored_names(files) {
        let name = Path::new(FOLDER).join(name);
        let path = results.join(&name);
        let read = || -> Result<TraceFacts, ReadError> {
            let bytes = input::read(&path, &input::RECORD)?;
            let expected = digests.get(&*name.to_string_lossy());
            if expected.is_some_and(|expected| FileDigest::of(&bytes) != *expected) {
                return Err(ReadError::Changed);
            }
            Ok(facts(&file, &bytes)?)
        };
        match read() {
            Ok(facts) => drop(found.insert(file, Ok(facts))),
            Err(why) => errors.push(format!("cannot read {}: {why}", path.display())),
        }
    }
    (found, errors)
}

/// Parses a trace file. The file's name determines the format.
///
/// # Errors
/// The file is not a trace of that format.
pub fn facts(file: &str, bytes: &[u8]) -> Result<TraceFacts, TraceError> {
    let trace = Arc::new(trace::parse(file, bytes)?);
    Ok(TraceFacts { sha256: digest_bytes(bytes), trace })
}

/// Returns the name of each file in the results directory: the file's name, or its whole path if several files have the same name.
pub fn stored_names(files: &BTreeSet<String>) -> BTreeMap<String, PathBuf> {
    let last = |file: &str| Path::new(file).file_name().map(PathBuf::from);
    let mut times: BTreeMap<Option<PathBuf>, u32> = BTreeMap::new();
    for file in files {
        *times.entry(last(file)).or_default() += 1;
    }
    let whole = |file: &str| -> PathBuf {
        let parts = Path::new(file).components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_os_string()),
            Component::ParentDir => Some("_up".into()),
            Component::RootDir => Some("_root".into()),
            Component::CurDir | Component::Prefix(_) => None,
        });
        parts.collect()
    };
    let name = |file: &String| {
        let last = last(file);
        let alone = times.get(&last) == Some(&1);
        (file.clone(), last.filter(|_| alone).unwrap_or_else(|| whole(file)))
    };
    files.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_names_are_short_and_unique() {
        let files = ["traces/a.csv", "../other/b.csv", "/x/b.csv"].map(str::to_owned).into();
        let names = stored_names(&files);
        assert_eq!(names["traces/a.csv"], Path::new("a.csv"));
        assert_eq!(names["../other/b.csv"], Path::new("_up/other/b.csv"));
        assert_eq!(names["/x/b.csv"], Path::new("_root/x/b.csv"));
    }
}
