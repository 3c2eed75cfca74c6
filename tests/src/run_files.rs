//! The files of a run that depend only on its trials, to compare two runs byte for byte.

use std::collections::BTreeMap;
use std::path::Path;

use crate::Bench;

/// Contents of files by path.
pub type Contents = BTreeMap<String, Vec<u8>>;

/// Every table's bytes, by path below `tables`.
///
/// # Panics
/// When there is not exactly one run, or it cannot be read.
pub fn tables(bench: &Bench) -> Contents {
    let root = bench.results().join("tables");
    let mut found = Contents::new();
    walk(&root, &root, &mut found);
    found
}

/// Adds all files in a folder of `root`.
#[expect(clippy::unwrap_used, reason = "a test may panic")]
fn walk(root: &Path, dir: &Path, found: &mut Contents) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(root, &path, found);
        } else {
            let name = path.strip_prefix(root).unwrap().display().to_string();
            found.insert(name, std::fs::read(&path).unwrap());
        }
    }
}

/// All tables and summaries, by path.
///
/// # Panics
/// As [`tables`].
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
/// When they differ.
#[track_caller]
pub fn assert_equal(one: &Contents, other: &Contents) {
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    for (name, bytes) in one {
        assert!(other.get(name) == Some(bytes), "{name} differs");
    }
}
