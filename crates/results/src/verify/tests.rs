//! Tests every kind of damage in a small results directory.

use std::path::PathBuf;

use super::*;
use crate::journal::{Entry, line};
use crate::model::{RunInfo, RunStatus, TrialFilter};
use crate::store::RunDir;
use crate::summarize::{RunSummary, summarize};
use crate::trial::tests::{filled, good, info};

fn traced() -> RunInfo {
    RunInfo { traces: [(PathBuf::from("cell.csv"), b"t_us,rate_bps\n".to_vec())].into(), ..info() }
}

/// Creates a finished run of three trials with its summary.
fn finished_run(root: &Path) -> PathBuf {
    let run = RunDir::create(root, &traced()).unwrap();
    (1..=3).for_each(|trial| filled(&run, trial).commit(&good()).unwrap());
    run.finish(RunStatus::Complete).unwrap();
    summarize(run.path(), TrialFilter::default()).unwrap().written.unwrap();
    run.path().to_path_buf()
}

fn part(run: &Path, trial: u16) -> PathBuf {
    run.join(format!("tables/flow_samples/point=0/trial-{trial:02}/part-0.parquet"))
}

/// Returns the damaged files of a run.
fn damaged(run: &Path) -> Vec<String> {
    verify(run).unwrap().damaged.into_iter().map(|(name, _)| name).collect()
}

fn cut(file: &Path, bytes: u64) {
    std::fs::File::options().write(true).open(file).unwrap().set_len(bytes).unwrap();
}

/// Returns the codes of all reasons, by trial.
fn reasons(summary: &RunSummary) -> Vec<Vec<&str>> {
    let trials = summary.summary.trials.iter();
    trials.map(|end| end.reasons.iter().map(|reason| reason.code.as_str()).collect()).collect()
}

#[test]
fn whole_run_is_intact_and_covered() {
    let root = tempfile::tempdir().unwrap();
    let run = finished_run(root.path());
    let found = verify(&run).unwrap();
    assert_eq!((found.trials, &found.damaged, &found.not_covered), (3, &vec![], &vec![]));
    assert_eq!(found.intact, files_below(&run).unwrap().len() - 1, "all but summary.sha256");
    assert_eq!(found.planned, info().points.len() * info().repeat as usize);
    drop(RunDir::resume(&run, &traced()).unwrap());
    assert_eq!(damaged(&run), [""; 0], "run.json is another one");
}

#[test]
fn a_phase_that_no_trial_can_have_is_found() {
    use std::io::Write as _;

    use ccbench_proto::plan::timeline::MAX_TRIAL;

    let root = tempfile::tempdir().unwrap();
    let run = finished_run(root.path());
    let path = run.join(journal::FILE_NAME);
    let before = std::fs::read(&path).unwrap();
    let (state, _) = journal::read_intact(&before);
    let mut end = state.committed[&(0, 1)].clone();
    end.digests = state.digests[&(0, 1)].clone();
    let begin = Entry::TrialBegin { point_id: 0, trial: 1, seed: end.seed, epoch: end.epoch };
    let late = |end_us| {
        let mut end = end.clone();
        end.phases[0].end_us = end_us;
        std::fs::write(&path, &before).unwrap();
        let mut journal = std::fs::File::options().append(true).open(&path).unwrap();
        for entry in [&begin, &Entry::TrialEnd(end)] {
            journal.write_all(line(entry).unwrap().as_bytes()).unwrap();
        }
        verify(&run).unwrap().damaged
    };
    let longest = late(MAX_TRIAL.get());
    assert!(longest.is_empty(), "{longest:?}");
    let found = late(MAX_TRIAL.get() + 1);
    let number = before.split_inclusive(|byte| *byte == b'\n').count() + 2;
    let what = format!("line {number} has a phase that ends later than a trial can last (a week)");
    assert_eq!(found, [(journal::FILE_NAME.to_owned(), what)]);
    assert!(RunDir::open(&run).is_err(), "other readers refuse it, too");
}

/// The lists of files may come from someone else.
#[test]
fn files_outside_of_the_directory_are_not_read() {
    let root = tempfile::tempdir().unwrap();
    let run = finished_run(root.path());
    std::fs::write(root.path().join("secret"), "x").unwrap();
    let sums = run.join(DIGESTS_FILE);
    let digest = FileDigest::of(b"x").sha256;
    let lines = std::fs::read_to_string(&sums).unwrap();
    let absolute = root.path().join("secret").display().to_string();
    std::fs::write(&sums, format!("{lines}{digest}  ../secret\n{digest}  {absolute}\n")).unwrap();
    let what = "outside the results directory".to_owned();
    let expected = [("../secret".to_owned(), what.clone()), (absolute, what)];
    assert_eq!(verify(&run).unwrap().damaged, expected);
}

#[test]
fn every_flipped_bit_of_every_file_is_found() {
    let root = tempfile::tempdir().unwrap();
    let run = finished_run(root.path());
    let files = files_below(&run).unwrap();
    assert!(files.len() > 25, "{files:?}");
    for file in files {
        let whole = std::fs::read(&file).unwrap();
        let name = relative(&run, &file);
        for at in [0, whole.len() / 3, whole.len() / 2, whole.len() - 1] {
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                std::fs::write(&file, &flipped).unwrap();
                let damaged = damaged(&run);
                // A flipped bit in the list of digests may name another file.
                let named =
                    damaged.contains(&name) || (name == DIGESTS_FILE && !damaged.is_empty());
                assert!(named, "{name}: bit {bit} of byte {at}: {damaged:?}");
            }
        }
        std::fs::write(&file, &whole).unwrap();
    }
    assert_eq!(damaged(&run), [""; 0]);
}

#[test]
fn missing_truncated_and_unexpected_files_are_found() {
    let root = tempfile::tempdir().unwrap();
    let run = finished_run(root.path());
    std::fs::remove_file(part(&run, 1)).unwrap();
    cut(&part(&run, 2), 100);
    let extra = part(&run, 3).with_file_name("part-1.parquet");
    std::fs::write(&extra, "copy").unwrap();
    std::fs::remove_file(run.join("raw/point=0/trial-03/src/agent.log")).unwrap();
    std::fs::write(run.join("report.html"), "<p>").unwrap();
    let left = run.join("tables/flow_samples/point=0/trial-09");
    std::fs::create_dir(&left).unwrap();
    let found = verify(&run).unwrap();
    let expected = [
        ("raw/point=0/trial-03/src/agent.log", "missing"),
        ("tables/flow_samples/point=0/trial-01/part-0.parquet", "missing"),
        ("tables/flow_samples/point=0/trial-02/part-0.parquet", "truncated: it has 100 bytes "),
        ("tables/flow_samples/point=0/trial-03/part-1.parquet", "unexpected: "),
    ];
    assert_eq!(found.damaged.len(), expected.len(), "{found:?}");
    for ((name, what), (expected_name, begin)) in found.damaged.iter().zip(expected) {
        assert!(name == expected_name && what.starts_with(begin), "{name}: {what}");
    }
    assert_eq!(found.not_covered, ["report.html"]);
    assert_eq!(found.uncommitted, [relative(&run, &left)]);
}

#[test]
fn stray_files_stop_nothing() {
    let root = tempfile::tempdir().unwrap();
    let run = finished_run(root.path());
    let strays = [
        "cc/old.o",
        "figures/old/strips.svg",
        "raw/point=7",
        "tables/.DS_Store",
        "tables/flow_samples/.DS_Store",
        "traces/other.csv",
    ];
    for stray in strays {
        let file = run.join(stray);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "").unwrap();
    }
    let found = verify(&run).unwrap();
    assert_eq!((found.trials, &found.damaged), (3, &vec![]));
    assert_eq!(found.not_covered, strays, "all are listed");
    // Readers of a whole table would take these for rows.
    let rows = "tables/flow_samples/copy/part-0.parquet";
    std::fs::create_dir(run.join(rows).parent().unwrap()).unwrap();
    std::fs::copy(part(&run, 1), run.join(rows)).unwrap();
    assert_eq!(damaged(&run), [rows]);
    std::fs::remove_file(run.join(rows)).unwrap();
    std::os::unix::fs::symlink("/", run.join("root")).unwrap();
    assert!(verify(&run).unwrap().not_covered.contains(&"root".to_owned()), "it is not read");
    drop(RunDir::resume(&run, &traced()).unwrap());
}

#[test]
fn damaged_table_blocks_no_other_trial_and_is_repeated() {
    let root = tempfile::tempdir().unwrap();
    let run = finished_run(root.path());
    cut(&part(&run, 1), 100);
    let mut bytes = std::fs::read(part(&run, 3)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(part(&run, 3), bytes).unwrap();
    for include_failed in [false, true] {
        let filter = TrialFilter { include_failed, ..TrialFilter::default() };
        let summary = summarize(&run, filter).unwrap();
        assert_eq!(reasons(&summary), [vec!["damaged"], vec![], vec!["damaged"]]);
        summary.written.unwrap();
    }
    let trials = std::fs::read_to_string(run.join("trials.csv")).unwrap();
    let expected =
        "0,1,failed,damaged: tables/flow_samples/point=0/trial-01/part-0.parquet: truncated";
    assert!(trials.contains(expected), "{trials}");

    let dir = RunDir::resume(&run, &traced()).unwrap();
    assert_eq!(dir.finished().into_iter().collect::<Vec<_>>(), [(0, 2)]);
    filled(&dir, 1).commit(&good()).unwrap();
    filled(&dir, 3).commit(&good()).unwrap();
    dir.finish(RunStatus::Complete).unwrap();
    drop(dir);
    let summary = summarize(&run, TrialFilter::default()).unwrap();
    assert_eq!(reasons(&summary), [[""; 0]; 3]);
    assert_eq!(damaged(&run), [""; 0]);
}

/// Each line of the journal has its own checksum, but a line may be missing or in the wrong place.
#[test]
fn a_lost_trial_and_an_impossible_order_are_found() {
    let root = tempfile::tempdir().unwrap();
    let run = finished_run(root.path());
    let path = run.join(journal::FILE_NAME);
    let whole = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    let problems = |lines: Vec<&str>| {
        std::fs::write(&path, lines.concat()).unwrap();
        let found = verify(&run).unwrap();
        let of_journal = found.damaged.iter().filter(|(name, _)| name == journal::FILE_NAME);
        of_journal.map(|(_, what)| what.clone()).collect::<Vec<_>>()
    };
    let without = |number: usize| [&lines[..number - 1], &lines[number..]].concat();
    let is = |number: usize, event: &str| lines[number - 1].contains(&format!("\"{event}\""));
    assert!(is(4, "trial_begin") && is(5, "trial_end"), "{whole}");
    let lost = "it lacks trial 2 of point 0, which run.json has";
    assert_eq!(problems(without(5)), [lost]);
    let torn = without(5).concat() + "{\"event\":\"trial_e";
    std::fs::write(&path, &torn).unwrap();
    let refused = RunDir::resume(&run, &traced()).unwrap_err();
    assert!(matches!(refused, StoreError::LostTrial { point_id: 0, trial: 2, .. }), "{refused}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), torn, "what is left of a line stays");
    assert!(part(&run, 2).is_file(), "its data stay");
    assert_eq!(
        problems(without(4)),
        ["line 4 ends a trial that has not begun, or has ended before"]
    );
    let reversed = problems(lines.iter().rev().copied().collect());
    assert_eq!(reversed[0], "it lacks trial 1 of point 0, which run.json has");
    assert!(reversed.contains(&"line 1 comes before the start of the run".to_owned()));
    assert_eq!(problems(lines.clone()), [""; 0]);
}

/// Turns the journal into one written by a version without digests.
fn without_digests(run: &Path) {
    let path = run.join(journal::FILE_NAME);
    let text = std::fs::read_to_string(&path).unwrap();
    let old = text.lines().map(|text| {
        let mut value: serde_json::Value = serde_json::from_str(text).unwrap();
        for key in ["digests", "files", "record", "crc32"] {
            value.as_object_mut().unwrap().remove(key);
        }
        let entry: Entry = serde_json::from_value(value).unwrap();
        line(&entry).unwrap()
    });
    std::fs::write(&path, old.collect::<String>()).unwrap();
}

#[test]
fn run_without_digests_is_not_covered_but_incomplete_tables_are_found() {
    let root = tempfile::tempdir().unwrap();
    let run = finished_run(root.path());
    without_digests(&run);
    std::fs::remove_file(run.join(DIGESTS_FILE)).unwrap();
    let found = verify(&run).unwrap();
    assert_eq!((&found.damaged, found.intact), (&vec![], 1), "the journal has its own checksums");
    assert_eq!(found.not_covered.len(), files_below(&run).unwrap().len() - 1, "{found:?}");
    cut(&part(&run, 2), 1000);
    assert_eq!(damaged(&run), [relative(&run, &part(&run, 2))]);
    let summary = summarize(&run, TrialFilter::default()).unwrap();
    assert_eq!(reasons(&summary), [vec![], vec!["damaged"], vec![]]);
}

#[test]
fn a_changed_plan_is_refused_by_readers() {
    let root = tempfile::tempdir().unwrap();
    let run = finished_run(root.path());
    std::fs::write(run.join("plan.resolved.toml"), "# crush: there is no plan\n").unwrap();
    let error = summarize(&run, TrialFilter::default()).unwrap_err().to_string();
    let expected = "plan.resolved.toml is damaged (changed: its SHA-256 differs)";
    assert!(error.contains(expected) && error.contains("`ccbench verify "), "{error}");
    assert!(matches!(RunDir::open(&run), Err(StoreError::Damaged { .. })));
    without_digests(&run);
    RunDir::open(&run).unwrap();
}

#[test]
fn a_changed_record_that_can_be_parsed_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let run = finished_run(root.path());
    let file = run.join("run.json");
    let whole = std::fs::read_to_string(&file).unwrap();
    let changed = whole.replacen("\"repeat\": ", "\"repeat\": 1", 1);
    assert_ne!(changed, whole);
    std::fs::write(&file, changed).unwrap();
    let expected = "run.json is damaged (its SHA-256 is not in journal.ndjson";
    let error = RunDir::open(&run).unwrap_err().to_string();
    assert!(error.contains(expected) && error.contains("`ccbench verify "), "{error}");
    let error = RunDir::resume(&run, &info()).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
    assert_eq!(damaged(&run), ["run.json"]);
    // A copy of a remote run is verified after its files were counted.
    assert!(RunDir::recorded_bytes(&run).unwrap() > 0);
    std::fs::write(&file, whole).unwrap();
    RunDir::open(&run).unwrap();
    // The record is intact, but the journal lost its last lines.
    let journal = run.join(journal::FILE_NAME);
    let lines = std::fs::read_to_string(&journal).unwrap();
    let first = lines.lines().next().unwrap();
    std::fs::write(&journal, format!("{first}\n")).unwrap();
    assert!(matches!(RunDir::open(&run), Err(StoreError::LostTrial { .. })));
}

#[test]
fn a_record_without_a_digest_is_accepted_after_a_killed_start_of_a_session() {
    let root = tempfile::tempdir().unwrap();
    let run = finished_run(root.path());
    without_digests(&run);
    let file = run.join("run.json");
    let old = std::fs::read(&file).unwrap();
    drop(RunDir::resume(&run, &traced()).unwrap());
    std::fs::write(&file, old).unwrap();
    RunDir::open(&run).unwrap();
    let found = verify(&run).unwrap();
    assert!(found.damaged.is_empty(), "{found:?}");
    assert!(found.not_covered.contains(&"run.json".to_owned()), "{found:?}");
}

#[test]
fn a_missing_plan_is_refused_by_readers() {
    let root = tempfile::tempdir().unwrap();
    let run = finished_run(root.path());
    std::fs::remove_file(run.join("plan.resolved.toml")).unwrap();
    let error = summarize(&run, TrialFilter::default()).unwrap_err().to_string();
    assert!(error.contains("plan.resolved.toml is damaged (missing)"), "{error}");
    assert!(matches!(RunDir::open(&run), Err(StoreError::Damaged { .. })));
    // The size is known before the files of a run are copied.
    assert!(RunDir::recorded_bytes(&run).unwrap() > 0);
    // Runs of early versions have no such file.
    without_digests(&run);
    assert_eq!(RunDir::open(&run).unwrap().notes(), [""; 0]);
}

#[test]
fn other_directories_are_refused() {
    let root = tempfile::tempdir().unwrap();
    assert!(matches!(verify(root.path()), Err(StoreError::NotResults { .. })));
    let run = finished_run(root.path());
    std::fs::remove_file(run.join(journal::FILE_NAME)).unwrap();
    assert_eq!(damaged(&run), [journal::FILE_NAME]);
}
