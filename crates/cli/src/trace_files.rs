//! Reads the trace files of a plan: from the binary, from beside the plan file (from the working directory for a plan in the binary), or
//! from the results directory of a resumed run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ccbench_io::input::{self, Limit};
use ccbench_proto::plan::check::{TraceFiles, UnreadableTrace};
use ccbench_proto::trace::TraceError;
use ccbench_proto::wire::MAX_FILES_BYTES;
use ccbench_results::trace::stored::{FOLDER, facts, stored_names};

use crate::file::is_missing;

/// Files embedded in the binary: names as in plans, and contents.
pub type Embedded = &'static [(&'static str, &'static [u8])];

/// The plan file of a results directory, for a resumed run.
pub const RESOLVED: &str = "plan.resolved.toml";
/// The limit is that of all traces of a trial together, which a node holds in memory.
const LIMIT: Limit =
    Limit { max_bytes: MAX_FILES_BYTES as u64, fix: "use a trace with fewer, longer rows" };

/// A plan's trace files, by the name that the plan gives them.
#[derive(Debug, Default)]
pub struct TraceContents {
    /// Facts about the traces that the check of the plan needs.
    pub facts: TraceFiles,
    /// The unmodified contents of the files.
    pub contents: BTreeMap<String, Vec<u8>>,
    /// Files that cannot be parsed, with their problems.
    pub invalid: Vec<(PathBuf, TraceError)>,
}

/// Why a trace file cannot be read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(
        "there is no file {}; a trace's path is relative to the plan's directory, or to the working directory for a plan of ccbench's own",
        .0.display()
    )]
    NotFound(PathBuf),
    #[error("cannot read {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
}

/// Reads the trace files of the plan at `plan`, except `embedded` files.
pub fn read(plan: &Path, files: &BTreeSet<String>, embedded: Embedded) -> TraceContents {
    let folder = plan.parent().unwrap_or(Path::new(""));
    let resumed = plan.file_name().is_some_and(|name| name == RESOLVED);
    let stored = stored_names(files);
    let mut traces = TraceContents::default();
    for file in files.iter().filter(|file| !file.is_empty()) {
        let copy = stored.get(file).map(|name| folder.join(FOLDER).join(name));
        let copy = copy.filter(|copy| resumed && !is_missing(copy));
        let path = copy.unwrap_or_else(|| folder.join(file));
        let in_binary = embedded.iter().find(|(name, _)| name == file);
        let bytes = in_binary.map_or_else(|| content(&path), |(_, bytes)| Ok(bytes.to_vec()));
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(error) => {
                let error = UnreadableTrace { reason: error.to_string() };
                traces.facts.insert(file.clone(), Err(error));
                continue;
            }
        };
        match facts(file, &bytes) {
            Ok(facts) => {
                traces.facts.insert(file.clone(), Ok(facts));
                traces.contents.insert(file.clone(), bytes);
            }
            Err(error) => traces.invalid.push((path, error)),
        }
    }
    traces
}

fn content(path: &Path) -> Result<Vec<u8>, ReadError> {
    let failed = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::NotFound => ReadError::NotFound(path.to_owned()),
        _ => ReadError::Io { path: path.to_owned(), source },
    };
    input::read(path, &LIMIT).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_trace_file_is_a_problem_of_the_plan() {
        let dir = tempfile::tempdir().unwrap();
        let files = ["none.csv".to_owned()].into();
        let traces = read(&dir.path().join("plan.toml"), &files, &[]);
        let reason = traces.facts["none.csv"].clone().unwrap_err().to_string();
        assert!(reason.contains("relative to the plan's directory"), "{reason}");
        assert!(traces.contents.is_empty() && traces.invalid.is_empty());
    }

    #[test]
    fn resumed_run_reads_traces_from_its_results_directory() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join(FOLDER)).unwrap();
        std::fs::write(dir.path().join(FOLDER).join("a.csv"), "1,2\n").unwrap();
        let files = ["elsewhere/a.csv".to_owned()].into();
        assert!(read(&dir.path().join(RESOLVED), &files, &[]).facts["elsewhere/a.csv"].is_ok());
        assert!(read(&dir.path().join("plan.toml"), &files, &[]).facts["elsewhere/a.csv"].is_err());
    }

    #[test]
    fn a_copy_that_cannot_be_read_is_not_replaced_by_another_file() {
        let dir = tempfile::tempdir().unwrap();
        for folder in [FOLDER, "elsewhere"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        std::fs::write(dir.path().join("elsewhere/a.csv"), "1,2\n").unwrap();
        // Reading it fails with ELOOP.
        std::os::unix::fs::symlink("a.csv", dir.path().join(FOLDER).join("a.csv")).unwrap();
        let files = ["elsewhere/a.csv".to_owned()].into();
        let traces = read(&dir.path().join(RESOLVED), &files, &[]);
        let reason = traces.facts["elsewhere/a.csv"].clone().unwrap_err().to_string();
        assert!(reason.starts_with("cannot read ") && traces.contents.is_empty(), "{reason}");
    }
}
