//! Tests rules that end the repetition of points, and comparisons.

use std::path::PathBuf;
use std::sync::LazyLock;

use ccbench_tests::run_files::{KeptRun, assert_equal, edit_record, tables, tables_and_summaries};
use ccbench_tests::{Bench, csv, text};
use serde_json::Value;

use super::PLAN;

/// The spread of these trials is always below this.
pub const LOOSE: &str = r#"repeat = { at_least = 5, at_most = 8, until = [{ metric = "throughput", group = "f", within = "90%" }] }"#;
/// Part of a line of the journal.
const DECISION: &str = "\"event\":\"decision\"";
/// A difference is never within this margin.
pub const COMPARED: &str = r#"
[[compare]]
a = { "flows.f.cc" = "bbr" }
b = { "flows.f.cc" = "cubic" }
metric = "throughput"
group = "f"
better = "higher"
margin = "1bit"
"#;

/// Makes a run with these rules.
fn run(repeat: &str, rest: &str, arguments: &[&str]) -> Bench {
    let bench = Bench::new();
    let plan = PLAN.replace("seed = 1", &format!("seed = 1\n{repeat}")) + rest;
    let plan = bench.write("plan.toml", &plan).display().to_string();
    let done = bench.run(&[&["run", &plan, "--sim"], arguments].concat());
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    bench
}

/// One run with [`LOOSE`] rules, for all tests that need only its results.
static LOOSE_RUN: LazyLock<KeptRun> =
    LazyLock::new(|| KeptRun::of(&run(LOOSE, "", &["--jobs", "1"])));
/// The same with a comparison.
static COMPARED_RUN: LazyLock<KeptRun> =
    LazyLock::new(|| KeptRun::of(&run(LOOSE, COMPARED, &["--jobs", "1"])));

/// `run.json`.
pub fn record(bench: &Bench) -> Value {
    let record = std::fs::read(bench.results().join("run.json")).unwrap();
    serde_json::from_slice(&record).unwrap()
}

fn journal(bench: &Bench) -> PathBuf {
    bench.results().join("journal.ndjson")
}

/// Resumes the run to its end.
fn resume(bench: &Bench) {
    let dir = bench.results().display().to_string();
    let resumed = bench.run(&["run", "--resume", &dir]);
    assert_eq!(resumed.status.code(), Some(0), "{}", text(&resumed));
}

/// Returns the number of trials of each of the two points.
fn trials(bench: &Bench) -> [usize; 2] {
    let trials = csv(&bench.results().join("trials.csv"));
    ["0", "1"].map(|point| trials.iter().filter(|trial| trial["point_id"] == point).count())
}

#[test]
fn points_are_repeated_until_their_rules_are_decided() {
    let bench = LOOSE_RUN.copy();
    assert_eq!(trials(&bench), [5, 5]);
    let record = record(&bench);
    assert_eq!(record["status"], "complete");
    let decisions = record["decisions"].as_array().unwrap();
    assert_eq!(decisions.len(), 2);
    assert!(decisions.iter().all(|it| it["after"] == 5 && it["outcome"] == "known"), "{record}");
    let journal = std::fs::read_to_string(journal(&bench)).unwrap();
    assert_eq!(journal.matches(DECISION).count(), 2);
    let dir = bench.results().display().to_string();
    let again = bench.run(&["run", "--resume", &dir, "--sim"]);
    assert_eq!(again.status.code(), Some(0), "{}", text(&again));
    assert!(text(&again).contains("nothing is left to run"), "{}", text(&again));
    let summary = text(&bench.run(&["summarize", &dir]));
    assert!(
        summary.contains("2 of 2 rules decided") && !summary.contains("of 16 trials"),
        "{summary}"
    );
}

#[test]
fn the_same_trials_run_for_any_number_of_jobs() {
    let files = |bench: Bench| {
        let counts = trials(&bench);
        // Both points are repeated for the comparison.
        assert_eq!(counts[0], counts[1]);
        let record = record(&bench);
        let decisions = record["decisions"].as_array().unwrap().clone();
        let after = |it: &Value| it["after"].as_u64().unwrap() as usize;
        let compared = decisions.iter().find(|it| it["rule"] == "compare.0").map(after);
        assert_eq!(counts[0], compared.unwrap_or(8));
        let mut decisions: Vec<String> = decisions.iter().map(Value::to_string).collect();
        decisions.sort();
        (tables_and_summaries(&bench), decisions)
    };
    let one = files(COMPARED_RUN.copy());
    for jobs in ["2", "5"] {
        let other = files(run(LOOSE, COMPARED, &["--jobs", jobs]));
        assert_equal(&one.0, &other.0);
        assert_eq!(one.1, other.1);
    }
}

/// A kill leaves the first lines of the journal: in the middle of the repetitions, or between a trial and the decision after it.
#[test]
fn a_killed_run_is_resumed_with_the_same_trials_and_decisions() {
    let whole = COMPARED_RUN.copy();
    let decisions = record(&whole)["decisions"].clone();
    assert!(decisions.as_array().is_some_and(|all| all.len() >= 2), "{decisions}");
    let lines = std::fs::read_to_string(journal(&whole)).unwrap();
    let ends = |line: &str| line.contains("\"event\":\"trial_end\"");
    let after = lines.lines().zip(1..).filter(|(line, _)| ends(line)).map(|(_, number)| number);
    let after: Vec<usize> = after.collect();
    let before_decision = lines.lines().position(|line| line.contains(DECISION)).unwrap();
    // The seventh trial belongs to the fourth repetition or a later one.
    for kept in [after[6], before_decision] {
        let killed = COMPARED_RUN.copy();
        let lines = std::fs::read_to_string(journal(&killed)).unwrap();
        let first: String = lines.split_inclusive('\n').take(kept).collect();
        std::fs::write(journal(&killed), first).unwrap();
        edit_record(&killed.results(), |record| record["status"] = "running".into());
        resume(&killed);
        assert_equal(&tables(&killed), &tables(&whole));
        assert_eq!(record(&killed)["decisions"], decisions);
        let lines = std::fs::read_to_string(journal(&killed)).unwrap();
        assert_eq!(lines.matches(DECISION).count(), decisions.as_array().unwrap().len());
    }
}

/// A kill between the last trial and the end of the run leaves a run that lacks nothing but was not ended.
#[test]
fn a_run_that_was_killed_after_its_last_trial_is_ended() {
    for finished in [&LOOSE_RUN, &COMPARED_RUN] {
        let bench = finished.copy();
        let (whole, record_of_whole) = (tables_and_summaries(&bench), record(&bench));
        edit_record(&bench.results(), |record| {
            record["status"] = "running".into();
            for known_at_the_end in ["decisions", "planned_trials"] {
                assert!(record.as_object_mut().unwrap().remove(known_at_the_end).is_some());
            }
        });
        let lines = std::fs::read_to_string(journal(&bench)).unwrap();
        let last = lines.lines().next_back().unwrap();
        assert!(last.contains("\"event\":\"run_end\""), "{last}");
        std::fs::write(journal(&bench), lines.strip_suffix(&format!("{last}\n")).unwrap()).unwrap();
        let dir = bench.results().display().to_string();
        let packed = bench.path("run.tar").display().to_string();
        let pack = bench.run(&["artifact", "pack", &dir, "-o", &packed]);
        assert!(
            text(&pack).contains("`ccbench run --resume` runs the missing trials and ends it"),
            "{}",
            text(&pack)
        );
        resume(&bench);
        assert_eq!(record(&bench), record_of_whole);
        assert_equal(&tables_and_summaries(&bench), &whole);
        let verified = bench.run(&["verify", &dir]);
        assert_eq!(verified.status.code(), Some(0), "{}", text(&verified));
        let sessions =
            std::fs::read_to_string(journal(&bench)).unwrap().matches("\"run_start\"").count();
        assert_eq!(sessions, 1, "nothing ran");
    }
}

/// A disk that loses the end of the journal's last line leaves a run that looks complete.
#[test]
fn a_complete_run_with_a_torn_journal_is_mended() {
    let bench = LOOSE_RUN.copy();
    let whole = tables_and_summaries(&bench);
    let bytes = std::fs::read(journal(&bench)).unwrap();
    std::fs::write(journal(&bench), &bytes[..bytes.len() - 2]).unwrap();
    let dir = bench.results().display().to_string();
    let verified = bench.run(&["verify", &dir]);
    assert_eq!(verified.status.code(), Some(1), "{}", text(&verified));
    resume(&bench);
    assert_equal(&tables_and_summaries(&bench), &whole);
    assert!(
        record(&bench)["notes"]
            .to_string()
            .contains("of an unfinished line from the end of the journal")
    );
    let verified = bench.run(&["verify", &dir]);
    assert_eq!(verified.status.code(), Some(0), "{}", text(&verified));
}

/// Because the run's rules need them, the tables of the trials are read before the run goes on.
#[test]
fn a_damaged_trial_of_a_run_with_rules_is_repeated() {
    let bench = LOOSE_RUN.copy();
    let (whole, decisions) = (tables(&bench), record(&bench)["decisions"].clone());
    let file = bench.results().join("tables/intervals/point=0/trial-01/part-0.parquet");
    let length = std::fs::read(&file).unwrap().len();
    std::fs::write(&file, vec![0_u8; length]).unwrap();
    resume(&bench);
    assert_equal(&tables(&bench), &whole);
    assert_eq!(record(&bench)["decisions"], decisions);
}
