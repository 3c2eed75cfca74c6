//! The files of a run that depend only on its trials, for comparing two runs byte for byte.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use ccbench_proto::sealed_line::{seal, unseal};
use serde_json::Value;

use crate::Bench;

/// Contents of files by path.
pub type Contents = BTreeMap<String, Vec<u8>>;

/// Returns the bytes of every table, by path below `tables`.
///
/// # Panics
/// Panics if there is not exactly one run, or if it cannot be read.
pub fn tables(bench: &Bench) -> Contents {
    let root = bench.results().join("tables");
    let mut found = Entries::new();
    walk(&root, &root, &mut found);
    found.into_iter().filter_map(|(name, bytes)| Some((name, bytes?))).collect()
}

/// Contents of files by path; `None` for a folder.
type Entries = BTreeMap<String, Option<Vec<u8>>>;

/// Adds all files and folders in a folder of `root`.
#[expect(clippy::unwrap_used, reason = "a test may panic")]
fn walk(root: &Path, dir: &Path, found: &mut Entries) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(root).unwrap().display().to_string();
        if path.is_dir() {
            found.insert(name, None);
            walk(root, &path, found);
        } else {
            found.insert(name, Some(std::fs::read(&path).unwrap()));
        }
    }
}

/// Changes `run.json` of a results directory, and removes its digests from the journal, as if an earlier version of ccbench had written
/// both.
///
/// # Panics
/// Panics if a file cannot be read or written, or if a line of the journal is damaged.
#[expect(clippy::unwrap_used, reason = "a test may panic")]
pub fn edit_record(results: &Path, edit: impl FnOnce(&mut Value)) {
    let (file, journal) = (results.join("run.json"), results.join("journal.ndjson"));
    let mut record = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    edit(&mut record);
    let lines = std::fs::read_to_string(&journal).unwrap();
    let without_digest = |line: &str| {
        let mut entry: Value = serde_json::from_slice(&unseal(line.as_bytes()).unwrap()).unwrap();
        entry.as_object_mut().unwrap().remove("record");
        seal(&entry.to_string())
    };
    let lines: String = lines.lines().map(without_digest).collect();
    for (path, content) in [(file, record.to_string()), (journal, lines)] {
        // The file may be a symbolic link to that of another run.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(path, content).unwrap();
    }
}

/// Renames a factor in `run.json` with [`edit_record`].
///
/// # Panics
/// As [`edit_record`], or if there is no such factor.
#[expect(clippy::unwrap_used, reason = "a test may panic")]
pub fn rename_factor(results: &Path, from: &str, to: &str) {
    let [from, to] = [from, to].map(|name| Value::from(name).to_string());
    edit_record(results, |record| {
        let renamed = record.to_string().replace(&from, &to);
        assert_ne!(renamed, record.to_string());
        *record = serde_json::from_str(&renamed).unwrap();
    });
}

/// The results directory of a run, in memory, because several tests change copies of it.
pub struct KeptRun {
    name: OsString,
    entries: Entries,
}

impl KeptRun {
    /// Reads the only run of a directory.
    ///
    /// # Panics
    /// Panics if there is not exactly one run, or if it cannot be read.
    pub fn of(bench: &Bench) -> Self {
        let root = bench.results();
        let mut entries = Entries::new();
        walk(&root, &root, &mut entries);
        Self { name: root.file_name().unwrap_or_default().to_owned(), entries }
    }

    /// Writes the same run to a new directory.
    ///
    /// # Panics
    /// Panics if it cannot be written.
    #[expect(clippy::unwrap_used, reason = "a test may panic")]
    pub fn copy(&self) -> Bench {
        let bench = Bench::new();
        let root = bench.path("results").join(&self.name);
        std::fs::create_dir_all(&root).unwrap();
        // In order of paths, so that a folder comes before its contents.
        for (name, bytes) in &self.entries {
            let path = root.join(name);
            match bytes {
                Some(bytes) => std::fs::write(path, bytes).unwrap(),
                None => std::fs::create_dir(path).unwrap(),
            }
        }
        bench
    }
}

/// Returns all tables and summaries, by path.
///
/// # Panics
/// Panics like [`tables`].
#[expect(clippy::unwrap_used, reason = "a test may panic")]
pub fn tables_and_summaries(bench: &Bench) -> Contents {
    let mut found = tables(bench);
    for name in ["trials", "points", "summary_phase", "summary_point"] {
        for ending in ["csv", "parquet"] {
            let file = format!("{name}.{ending}");
            let bytes = std::fs::read(bench.results().join(&file)).unwrap();
            found.insert(file, bytes);
        }
    }
    found
}

/// Compares the files of two runs.
///
/// # Panics
/// Panics if they differ, or if there are no files.
#[track_caller]
pub fn assert_equal(one: &Contents, other: &Contents) {
    assert!(!one.is_empty(), "there are no files");
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    for (name, bytes) in one {
        assert!(other.get(name) == Some(bytes), "{name} differs");
    }
}
