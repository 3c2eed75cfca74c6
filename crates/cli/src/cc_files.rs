//! Reads the supplied congestion controls that a plan names: from beside the plan file, or from the results directory of a
//! resumed run.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use ccbench_io::input;
use ccbench_proto::cc::supplied::{CcFiles, UnreadableCc, facts};
use ccbench_results::trace::stored::{CC_FOLDER, stored_names};

use crate::file::is_missing;
use crate::trace_files::RESOLVED;

/// The files, by the name that the plan gives them.
#[derive(Debug, Default)]
pub struct CcContents {
    /// Facts about the files that the check of the plan needs.
    pub facts: CcFiles,
    /// The unmodified contents of the files.
    pub contents: BTreeMap<String, Vec<u8>>,
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(
        "there is no such file; the path is relative to the plan's directory, or to the working directory for a plan of ccbench's own; {}",
        COMPILE
    )]
    NotFound,
    #[error("cannot read it: {0}")]
    Io(io::Error),
}

/// How to build a file, for error messages.
const COMPILE: &str =
    "`clang -O2 -g -target bpf -c NAME.bpf.c -o NAME.bpf.o` compiles a BPF object";

/// Reads the files of the plan at `plan`.
pub fn read(plan: &Path, files: &BTreeSet<String>) -> CcContents {
    let folder = plan.parent().unwrap_or(Path::new(""));
    let resumed = plan.file_name().is_some_and(|name| name == RESOLVED);
    let stored = stored_names(files);
    let mut ccs = CcContents::default();
    for file in files.iter().filter(|file| !file.is_empty()) {
        let copy = stored.get(file).map(|name| folder.join(CC_FOLDER).join(name));
        let copy = copy.filter(|copy| resumed && !is_missing(copy));
        let unreadable = |reason: String| Err(UnreadableCc { reason });
        let read = match content(&copy.unwrap_or_else(|| folder.join(file))) {
            Ok(bytes) => {
                let read = facts(&bytes).map(Arc::new).or_else(|why| unreadable(why.to_string()));
                ccs.contents.insert(file.clone(), bytes);
                read
            }
            Err(why) => unreadable(why.to_string()),
        };
        ccs.facts.insert(file.clone(), read);
    }
    ccs
}

fn content(path: &Path) -> Result<Vec<u8>, ReadError> {
    input::read(path, &input::CONGESTION_CONTROL).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => ReadError::NotFound,
        _ => ReadError::Io(source),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_cannot_be_used_are_problems_of_the_plan() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("text.o"), "no object").unwrap();
        let files = ["none.bpf.o", "text.o"].map(str::to_owned).into();
        let read = read(&dir.path().join("plan.toml"), &files);
        let why = |file: &str| read.facts[file].clone().unwrap_err().to_string();
        assert!(why("none.bpf.o").contains("-target bpf"), "{}", why("none.bpf.o"));
        assert!(why("text.o").contains("not an intact 64-bit ELF file"), "{}", why("text.o"));
        assert!(!read.contents.contains_key("none.bpf.o"));
    }

    #[test]
    fn a_resumed_run_reads_its_own_copy() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join(CC_FOLDER)).unwrap();
        std::fs::write(dir.path().join(CC_FOLDER).join("a.o"), "copy").unwrap();
        let files = ["elsewhere/a.o".to_owned()].into();
        assert_eq!(read(&dir.path().join(RESOLVED), &files).contents["elsewhere/a.o"], b"copy");
        assert!(read(&dir.path().join("plan.toml"), &files).contents.is_empty());
    }

    #[test]
    fn a_copy_that_cannot_be_read_is_not_replaced_by_another_file() {
        let dir = tempfile::tempdir().unwrap();
        for folder in [CC_FOLDER, "elsewhere"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        std::fs::write(dir.path().join("elsewhere/a.o"), "other").unwrap();
        // Reading it fails with ELOOP.
        std::os::unix::fs::symlink("a.o", dir.path().join(CC_FOLDER).join("a.o")).unwrap();
        let files = ["elsewhere/a.o".to_owned()].into();
        let read = read(&dir.path().join(RESOLVED), &files);
        let why = read.facts["elsewhere/a.o"].clone().unwrap_err().to_string();
        assert!(why.contains("cannot read it") && read.contents.is_empty(), "{why}");
    }
}
