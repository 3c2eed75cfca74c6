//! The trace files of a plan: read from beside the plan, or from the results directory of a resumed run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ccbench_proto::plan::check::TraceFiles;
use ccbench_proto::trace::TraceError;
use ccbench_proto::wire::MESSAGE_LIMIT;
use ccbench_results::trace::stored::{FOLDER, facts, stored_names};

use crate::source::Embedded;

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
        match facts(file, &bytes) {
            Ok(facts) => {
                traces.facts.insert(file.clone(), Ok(facts));
                traces.contents.insert(file.clone(), bytes);
            }
            Err(error) => traces.wrong.push((path, error)),
        }
    }
    traces
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

#[cfg(test)]
mod tests {
    use super::*;

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
