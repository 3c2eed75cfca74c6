//! Tests points without a number.

use ccbench_results::figure::{self, Kind, Request};
use ccbench_results::report;

use super::figures::{cells, request};
use super::*;

/// Creates a run in which point 0 failed twice.
pub fn half_failed(root: &Path) -> PathBuf {
    let dead = || verdict(Status::Failed, &[("flow_dead", "flows.cross: not one byte of data")]);
    let ok = verdict(Status::Ok, &[]);
    made_of(root, [(0, 1, 0.0, dead()), (0, 2, 0.0, dead()), (1, 1, 0.0, ok)])
}

#[test]
fn a_point_whose_trials_all_failed_has_a_line() {
    let root = tempfile::tempdir().unwrap();
    let path = half_failed(root.path());
    let printed = table::text(&RunSummary::compute(&path, TrialFilter::default()).unwrap(), 120);
    let line = printed.lines().find(|line| line.contains("all 2 failed")).unwrap_or(&printed);
    assert!(line.starts_with(" cubic") && line.ends_with("0/0/2"), "{printed}");
    let filter = TrialFilter { include_failed: true, ..TrialFilter::default() };
    let printed = table::text(&RunSummary::compute(&path, filter).unwrap(), 120);
    assert!(!printed.contains("all 2 failed"), "{printed}");
}

#[test]
fn an_interrupted_trial_is_not_printed_as_failed() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    let mut writer = begin(&run, 0, 1);
    fill(&mut writer, 0.0);
    writer.abandon("interrupted").unwrap();
    let mut writer = begin(&run, 1, 1);
    fill(&mut writer, 0.0);
    writer.commit(&verdict(Status::Ok, &[])).unwrap();
    run.finish(RunStatus::Interrupted).unwrap();
    let summary = RunSummary::compute(run.path(), TrialFilter::default()).unwrap();
    let printed = table::text(&summary, 140);
    let line = printed.lines().find(|line| line.contains("all 1 interrupted")).unwrap_or(&printed);
    assert!(line.starts_with(" cubic") && line.ends_with("0/0/0/1"), "{printed}");
    assert!(printed.contains("trials: ok/degraded/failed/interrupted; "), "{printed}");
    assert!(
        printed.contains("\ninterrupted [point 0 scheme=cubic buffer=20, trial 1]\n"),
        "{printed}"
    );
    assert!(!printed.contains("aborted") && !printed.contains("failed:"), "{printed}");
}

/// Creates 5 by 10 points. The trial of point 0 failed, that of point 1 is ok; point 2 has a failed trial and one without rows.
pub fn sweep(root: &Path) -> PathBuf {
    let level = |factor: &str, nth: u32| (factor.to_owned(), nth.to_string());
    let points = (0..50).map(|id| (id, vec![level("row", id / 10), level("column", id % 10)]));
    let run = RunDir::create(root, &RunInfo { points: points.collect(), ..info() }).unwrap();
    let dead = verdict(Status::Failed, &[("flow_dead", "flows.cross: not one byte of data")]);
    let ok = verdict(Status::Ok, &[]);
    let trials = [(0, 1, &dead, true), (1, 1, &ok, true), (2, 1, &dead, false), (2, 2, &ok, false)];
    for (point_id, trial, verdict, has_rows) in trials {
        let mut writer = begin(&run, point_id, trial);
        if has_rows {
            fill(&mut writer, 0.0);
        }
        writer.commit(verdict).unwrap();
    }
    run.finish(RunStatus::Complete).unwrap();
    run.path().to_path_buf()
}

#[test]
fn only_a_point_whose_trials_all_failed_is_hatched() {
    let root = tempfile::tempdir().unwrap();
    let heatmap = Request {
        metrics: vec!["throughput_sum".to_owned()],
        ..request(Kind::Heatmap, &[("phase", "alone"), ("group", "under_test")])
    };
    let figure = figure::draw(&sweep(root.path()), &heatmap).unwrap().remove(0);
    let status = |point: &str| cells(&figure, &[("point_id", point)], "status");
    assert_eq!(
        ["0", "1", "2", "3"].map(status),
        ["failed", "ok", "missing", "missing"].map(|s| [s])
    );
}

#[test]
fn heatmaps_and_tables_of_a_report_include_the_same_trials() {
    let root = tempfile::tempdir().unwrap();
    let run = sweep(root.path());
    let page = |include_failed| {
        let filter = TrialFilter { include_failed, ..TrialFilter::default() };
        report::html(&RunSummary::compute(&run, filter).unwrap()).unwrap()
    };
    let excluded = page(false);
    assert!(excluded.contains("failed and aborted trials are excluded."));
    assert!(excluded.contains("(hatched)"));
    let included = page(true);
    assert!(included.contains("failed and aborted trials are included (<code>--include-failed"));
    assert!(included.contains("<figure>") && !included.contains("(hatched)"));
}

/// Creates a matrix of `rows` by `columns` points. Each has a trial with a ping, and with this verdict.
fn pinged(root: &Path, (rows, columns): (u32, u32), verdict: &Verdict) -> PathBuf {
    let level = |factor: &str, nth: u32| (factor.to_owned(), nth.to_string());
    let levels = |id| vec![level("row", id / columns), level("column", id % columns)];
    let points = (0..rows * columns).map(|id| (id, levels(id))).collect();
    let run = RunDir::create(root, &RunInfo { points, ..info() }).unwrap();
    for point_id in 0..rows * columns {
        let mut writer = begin(&run, point_id, 1);
        let ping = wire::Probe {
            at_ns: T0_NS[0].1 + 2_000_000_000,
            probe_id: "ping".into(),
            kind: wire::ProbeKind::Ping.into(),
            seq: 1,
            rtt_us: Some(20_000.0),
            ..Default::default()
        };
        push(&mut writer, "src", Payload::Probe(ping));
        writer.commit(verdict).unwrap();
    }
    run.finish(RunStatus::Complete).unwrap();
    run.path().to_path_buf()
}

#[test]
fn a_small_matrix_without_throughput_has_an_overview_without_an_error() {
    let dead = verdict(Status::Failed, &[("flow_dead", "flows.cross: not one byte of data")]);
    for (verdict, error) in [
        (verdict(Status::Ok, &[]), "there is no metric `throughput_sum` here"),
        (dead, "no heatmap figure of "),
    ] {
        let page = |size| {
            let root = tempfile::tempdir().unwrap();
            let run = pinged(root.path(), size, &verdict);
            report::html(&RunSummary::compute(&run, TrialFilter::default()).unwrap()).unwrap()
        };
        let small = page((2, 2));
        assert!(small.contains("\"overview\":true"), "the table of points is shown");
        assert!(!small.contains(error), "{error}");
        assert!(page((5, 10)).contains(error), "a large matrix has a reason: {error}");
    }
}
