//! The trace files of a plan: found beside it (or in the results directory that is gone on with), read, understood,
//! and kept for the nodes and for the results.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use ccbench_proto::plan::check::{TraceFacts, TraceFiles};
use ccbench_proto::plan::digest_bytes;
use ccbench_proto::trace::{self, TraceError};
use ccbench_proto::wire::MESSAGE_LIMIT;

use crate::source::Embedded;

/// Where results directories keep them.
pub const FOLDER: &str = "traces";
/// The plan that a results directory goes on with.
const RESOLVED: &str = "plan.resolved.toml";
/// Largest trace file, in bytes: it must fit into a message beside the plan.
const MAX_BYTES: u64 = MESSAGE_LIMIT as u64 - (8 << 20);

/// A plan's trace files, by the name that the plan gives them.
#[derive(Debug, Default)]
pub struct Traces {
    /// What the plan's check needs to know.
    pub facts: TraceFiles,
    /// Their contents, as they are.
    pub contents: BTreeMap<String, Vec<u8>>,
    /// Files that cannot be understood, and what is wrong with them.
    pub wrong: Vec<(PathBuf, TraceError)>,
}

/// Reads these files of the plan at `plan`; those that are `embedded` are not looked for.
pub fn read(plan: &Path, files: &BTreeSet<String>, embedded: Embedded) -> Traces {
    let folder = plan.parent().unwrap_or(Path::new(""));
    let resumed = plan.file_name().is_some_and(|name| name == RESOLVED);
    let stored = stored_names(files);
    let mut traces = Traces::default();
    for file in files.iter().filter(|file| !file.is_empty()) {
        let copy = stored.get(file).map(|name| folder.join(FOLDER).join(name));
        let copy = copy.filter(|copy| resumed && copy.is_file());
        let path = copy.unwrap_or_else(|| folder.join(file));
        let brought = embedded.iter().find(|(name, _)| name == file);
        let bytes = match brought.map_or_else(|| content(&path), |(_, bytes)| Ok(bytes.to_vec())) {
            Ok(bytes) => bytes,
            Err(why) => {
                traces.facts.insert(file.clone(), Err(why));
                continue;
            }
        };
        match understood(file, &bytes) {
            Ok(facts) => {
                traces.facts.insert(file.clone(), Ok(facts));
                traces.contents.insert(file.clone(), bytes);
            }
            Err(error) => traces.wrong.push((path, error)),
        }
    }
    traces
}

/// What is stored in a results directory of these files of its plan, and why the others are left out.
pub fn stored(results: &Path, files: &BTreeSet<String>) -> (TraceFiles, Vec<String>) {
    let (mut found, mut left_out) = (TraceFiles::new(), vec![]);
    for (file, name) in stored_names(files) {
        let path = results.join(FOLDER).join(name);
        let read = || -> Result<TraceFacts, String> {
            let bytes = std::fs::read(&path).map_err(|error| error.to_string())?;
            understood(&file, &bytes).map_err(|error| error.to_string())
        };
        match read() {
            Ok(facts) => drop(found.insert(file, Ok(facts))),
            Err(why) => left_out.push(format!("cannot read {}: {why}", path.display())),
        }
    }
    (found, left_out)
}

/// What a file of this name and content tells.
fn understood(file: &str, bytes: &[u8]) -> Result<TraceFacts, TraceError> {
    let trace = Arc::new(trace::parse(file, bytes)?);
    Ok(TraceFacts { sha256: digest_bytes(bytes), trace })
}

/// A file's content, or why there is none.
fn content(path: &Path) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let cannot = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!("there is no file {shown}; a trace's path is relative to the plan's folder")
        }
        _ => format!("cannot read {shown}: {error}"),
    };
    let length = std::fs::metadata(path).map_err(cannot)?.len();
    if length > MAX_BYTES {
        return Err(format!(
            "{shown} is {} MiB long; {} MiB are allowed",
            length >> 20,
            MAX_BYTES >> 20
        ));
    }
    std::fs::read(path).map_err(cannot)
}

/// What each file is called in the results directory: its last name, or its whole path where that is not enough.
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
    fn names_in_the_results_are_short_and_never_the_same() {
        let files = ["traces/a.csv", "../other/b.csv", "/x/b.csv"].map(str::to_owned).into();
        let names = stored_names(&files);
        assert_eq!(names["traces/a.csv"], Path::new("a.csv"));
        assert_eq!(names["../other/b.csv"], Path::new("_up/other/b.csv"));
        assert_eq!(names["/x/b.csv"], Path::new("_root/x/b.csv"));
    }

    #[test]
    fn a_file_that_is_not_there_is_a_problem_of_the_plan() {
        let dir = tempfile::tempdir().unwrap();
        let files = ["none.csv".to_owned()].into();
        let traces = read(&dir.path().join("plan.toml"), &files, &[]);
        let why = traces.facts["none.csv"].clone().unwrap_err();
        assert!(why.contains("relative to the plan's folder"), "{why}");
        assert!(traces.contents.is_empty() && traces.wrong.is_empty());
    }

    #[test]
    fn a_results_directory_goes_on_with_its_own_copies() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join(FOLDER)).unwrap();
        std::fs::write(dir.path().join(FOLDER).join("a.csv"), "1,2\n").unwrap();
        let files = ["elsewhere/a.csv".to_owned()].into();
        assert!(read(&dir.path().join(RESOLVED), &files, &[]).facts["elsewhere/a.csv"].is_ok());
        assert!(read(&dir.path().join("plan.toml"), &files, &[]).facts["elsewhere/a.csv"].is_err());
    }
}
