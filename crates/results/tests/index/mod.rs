//! Tests the index of a folder of runs.

use std::os::unix::fs::MetadataExt as _;

use ccbench_results::figure::{self, Format, Kind};
use ccbench_results::report::{self, Index, REPORT_FILE};
use ccbench_results::{ReportError, export};
use serde_json::{Value, json};

use super::figures::request;
use super::*;

/// Creates two runs, one that cannot be read, and a directory that is not a run.
pub fn folder(root: &Path) -> PathBuf {
    let run = made_up(root);
    std::fs::write(run.join(REPORT_FILE), "a report").unwrap();
    let later = jiff::Timestamp::from_second(1_800_000_000).unwrap();
    let backend = RunBackend::Simulator { model_version: 7 };
    let info = RunInfo { plan_name: "later <run>".into(), started_utc: later, backend, ..info() };
    RunDir::create_at(&root.join("a #1 of 100%"), &info).unwrap();
    for name in ["damaged", "other"] {
        std::fs::create_dir(root.join(name)).unwrap();
    }
    std::fs::write(root.join("damaged/run.json"), "{").unwrap();
    root.to_path_buf()
}

/// Returns the data of the page.
fn data(index: &Index) -> Value {
    let page = index.html();
    let element = page.split_once("id=\"index\">").unwrap().1.split_once('<').unwrap().0;
    serde_json::from_str(element).unwrap()
}

#[test]
fn an_index_has_every_run_with_its_verdicts() {
    let root = tempfile::tempdir().unwrap();
    let index = Index::read(&folder(root.path())).unwrap();
    let found = data(&index);
    let runs = found["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    let later = json!({
        "directory": "a #1 of 100%", "plan": "later <run>", "started_utc": "2027-01-15T08:00:00Z",
        "backend": "simulator, model 7", "status": "killed", "points": 2, "planned": 4, "trials": 0,
        "ok": 0, "degraded": 0, "failed": 0, "aborted": 0, "has_report": false,
    });
    assert_eq!(runs[0], later, "the newest first");
    let first = &runs[1];
    assert_eq!((&first["plan"], &first["backend"]), (&json!("made-up"), &json!("testbed")));
    assert_eq!((&first["status"], &first["has_report"]), (&json!("complete"), &json!(true)));
    let count = |name: &str| first[name].as_u64().unwrap();
    let names = ["planned", "trials", "ok", "degraded", "failed", "aborted"];
    assert_eq!(names.map(count), [4, 4, 2, 1, 1, 0]);
    assert_eq!(found["others"], 1);
    let unreadable = found["unreadable"].as_array().unwrap();
    assert_eq!((unreadable.len(), &unreadable[0]["directory"]), (1, &json!("damaged")));
    let error = unreadable[0]["error"].as_str().unwrap();
    assert!(error.contains("run.json"), "{error}");
    assert_eq!(index.write().unwrap(), root.path().join("index.html"));
    // An unfinished import.
    let hidden = root.path().join(".old.ccbench-filling");
    std::fs::create_dir(&hidden).unwrap();
    std::fs::write(hidden.join("run.json"), "{").unwrap();
    let again = data(&Index::read(root.path()).unwrap());
    assert_eq!((&again["runs"], &again["unreadable"]), (&found["runs"], &found["unreadable"]));
}

#[test]
fn runs_that_have_ended_lack_a_report() {
    let root = tempfile::tempdir().unwrap();
    folder(root.path());
    let lacking = || Index::read(root.path()).unwrap().without_report();
    let killed = root.path().join("a #1 of 100%");
    assert_eq!(lacking(), [killed.as_path()], "the other one has it");
    let run = data(&Index::read(root.path()).unwrap())["runs"][1]["directory"].clone();
    let run = root.path().join(run.as_str().unwrap());
    // An earlier version wrote this when the disk was full.
    std::fs::write(run.join(REPORT_FILE), "").unwrap();
    assert_eq!(lacking(), [killed.as_path(), run.as_path()]);
    std::fs::remove_file(run.join(REPORT_FILE)).unwrap();
    assert_eq!(lacking(), [killed, run]);
}

#[test]
fn a_killed_run_is_not_running() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("run");
    let run = RunDir::create_at(&path, &info()).unwrap();
    let seen = || {
        let index = Index::read(root.path()).unwrap();
        let status = data(&index)["runs"][0]["status"].clone();
        let summary = RunSummary::compute(&path, TrialFilter::default()).unwrap();
        let printed = table::text(&summary, 100);
        (
            status,
            index.without_report().len(),
            printed.lines().next().unwrap_or_default().to_owned(),
        )
    };
    assert_eq!(seen(), (json!("running"), 0, "0 of 4 trials; the run is running".to_owned()));
    drop(run);
    let line = "0 of 4 trials; the run was killed; `ccbench run --resume DIR` continues it";
    assert_eq!(seen(), (json!("killed"), 1, line.to_owned()));
}

/// A file that is written in place is empty or cut off if the disk is full.
#[test]
fn reports_figures_exports_and_indexes_are_replaced_as_a_whole() {
    let root = tempfile::tempdir().unwrap();
    let run = made_up(root.path());
    let out = root.path().join("out");
    let write = || {
        let figures = figure::draw(&run, &request(Kind::Strips, &[("phase", "alone")])).unwrap();
        let mut written = figure::write(&figures, &out, &[Format::Svg, Format::Png]).unwrap();
        let tools = [export::flent, export::openmetrics, export::perfetto, export::qlog];
        let exports = tools.map(|tool| tool(&run, &out).unwrap());
        written.extend(exports.into_iter().flatten());
        written.extend(export::csv(&run, &[], &out).unwrap());
        let summary = RunSummary::compute(&run, TrialFilter::default()).unwrap();
        written.push(out.join(REPORT_FILE));
        report::write(&summary, &out.join(REPORT_FILE)).unwrap();
        written.push(Index::read(root.path()).unwrap().write().unwrap());
        written
    };
    let old = root.path().join("old");
    std::fs::create_dir(&old).unwrap();
    let first = write();
    // While a file has a name, its inode is not reused.
    for (nth, path) in first.iter().enumerate() {
        std::fs::hard_link(path, old.join(nth.to_string())).unwrap();
    }
    assert_eq!(write(), first);
    for (nth, path) in first.iter().enumerate() {
        let inode = |path: &Path| path.metadata().unwrap().ino();
        assert_ne!(inode(path), inode(&old.join(nth.to_string())), "{}", path.display());
    }
}

#[test]
fn a_directory_without_runs_has_no_index() {
    let root = tempfile::tempdir().unwrap();
    let run = made_up(root.path());
    let refused = |path: &Path| {
        let error: ReportError = Index::read(path).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Usage);
        error.to_string()
    };
    assert!(refused(&run).contains("is a results directory"));
    assert!(refused(&run.join("tables")).contains("has no results directories"));
    assert!(refused(&root.path().join("nosuch")).contains("has no results directories"));
}
