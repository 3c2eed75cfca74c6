//! Compares rows before and after compaction.

use std::collections::BTreeMap;

use super::*;
use crate::damage::{Depth, mark};
use crate::digest::FileDigest;
use crate::journal::RunState;
use crate::layout::table_rows;
use crate::model::TrialStatus;
use crate::observer::Observer;
use crate::parquet_file::open;
use crate::part::write_parquet;
use crate::store::RunDir;
use crate::trial::tests::{filled, good, info};

/// Returns the rows of every table of every trial.
fn rows(run: &Path, ends: &[TrialEnd]) -> BTreeMap<(u16, String), DataFrame> {
    let mut found = BTreeMap::new();
    for end in ends {
        for table in end.rows.keys() {
            let frames = table_rows(run, end, table).into_iter().map(|part| {
                let reader = open(&part.path, None).unwrap().with_slice(part.range);
                reader.read_parallel(ParallelStrategy::None).finish().unwrap()
            });
            let frame = frames.reduce(|mut all, more| {
                all.vstack_mut(&more).unwrap();
                all
            });
            found.insert((end.trial, table.clone()), frame.unwrap());
        }
    }
    found
}

#[test]
fn rows_are_the_same_in_shared_files() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    for trial in 1..=3 {
        filled(&run, trial).commit(&good()).unwrap();
    }
    let (path, mut ends) = (run.path(), run.trials());
    let before = rows(path, &ends);
    assert!(before.keys().any(|(_, table)| table == "probes"), "{:?}", before.keys());
    // In the order of a merged run.
    ends.reverse();
    let limits = Limits { row_group_rows: 4, file_row_groups: 4 };
    let digests = compact_within(path, &mut ends, limits).unwrap();
    ends.reverse();
    let after = rows(path, &ends);
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    for (key, frame) in &before {
        assert!(frame.equals_missing(&after[key]), "{key:?}: {frame} {}", after[key]);
    }
    // A trial has 10 rows, so the first file ends after the second trial.
    let shared = |end: &TrialEnd| {
        let SharedRows { file, first_row } = end.shared["flow_samples"].clone();
        (file, first_row)
    };
    let (first, second) =
        ("tables/flow_samples/part-0.parquet", "tables/flow_samples/part-1.parquet");
    let wanted = [(first.to_owned(), 0), (first.to_owned(), 10), (second.to_owned(), 0)];
    assert_eq!(ends.iter().map(shared).collect::<Vec<_>>(), wanted);
    for (name, digest) in &digests {
        assert_eq!(FileDigest::of_file(&path.join(name)).unwrap(), *digest, "{name}");
    }
    let of_table = list(&path.join("tables/flow_samples")).unwrap();
    assert_eq!(of_table, [path.join(first), path.join(second)], "the trials' own files are gone");
}

/// Shards of different versions of ccbench can be merged.
#[test]
fn trials_with_other_columns_have_another_file() {
    // When the columns change, the buffer is empty with 10 rows, but not with 7.
    for row_group_rows in [7, 10] {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), &info()).unwrap();
        for trial in 1..=3 {
            filled(&run, trial).commit(&good()).unwrap();
        }
        let (path, mut ends) = (run.path(), run.trials());
        let file = table_files(path, &ends[1], "flow_samples").remove(0);
        let all = open(&file, None).unwrap().finish().unwrap();
        write_parquet(&all.drop("flow_id").unwrap(), &file).unwrap();
        let before = rows(path, &ends);
        let limits = Limits { row_group_rows, ..LIMITS };
        compact_within(path, &mut ends, limits).unwrap();
        for (key, frame) in rows(path, &ends) {
            assert!(frame.equals_missing(&before[&key]), "{key:?}: {frame} {}", before[&key]);
        }
        let shared = ends.iter().map(|end| end.shared["flow_samples"].clone());
        let wanted = [0, 1, 2].map(|number| SharedRows {
            file: format!("tables/flow_samples/part-{number}.parquet"),
            first_row: 0,
        });
        assert_eq!(shared.collect::<Vec<_>>(), wanted);
    }
}

#[test]
fn a_file_with_fewer_rows_than_its_trial_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    filled(&run, 1).commit(&good()).unwrap();
    let mut ends = run.trials();
    *ends[0].rows.get_mut("flow_samples").unwrap() += 1;
    let error = compact(run.path(), &mut ends).unwrap_err().to_string();
    assert!(error.contains("it has 10 rows instead of 11"), "{error}");
}

/// A results directory may come from someone else.
#[test]
fn files_outside_of_the_results_directory_are_not_read() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    filled(&run, 1).commit(&good()).unwrap();
    let mut ends = run.trials();
    let digests = compact(run.path(), &mut ends).unwrap();
    let mut end = ends.remove(0);
    let marked = |end: &TrialEnd, files: Digests| {
        let mut state = RunState { run_files: files, ..RunState::default() };
        state.committed.insert((end.point_id, end.trial), end.clone());
        mark(run.path(), &mut state, Depth::Digests, |_| true, &Observer::default());
        state.committed.remove(&(end.point_id, end.trial)).unwrap()
    };
    assert_eq!(marked(&end, digests.clone()), end);
    let outside = root.path().join("outside.parquet");
    let shared = end.shared.get_mut("flow_samples").unwrap();
    std::fs::copy(run.path().join(&shared.file), &outside).unwrap();
    shared.file = "../outside.parquet".to_owned();
    let known = FileDigest::of_file(&outside).unwrap();
    let files = digests.into_iter().chain([(shared.file.clone(), known)]).collect();
    let failed = marked(&end, files);
    assert_eq!((failed.status, failed.rows.len()), (TrialStatus::Failed, 0));
    let message = &failed.reasons[0].message;
    assert!(message.starts_with("../outside.parquet: not in the journal"), "{message}");
    assert!(message.ends_with("merge the shards again"), "{message}");
}
