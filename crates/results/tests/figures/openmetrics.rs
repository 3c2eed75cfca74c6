//! Tests the export of OpenMetrics files.

use super::*;

#[test]
fn every_trial_has_a_file_with_its_machines_and_its_verdict() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    for (trial, status) in [(1, Status::Ok), (2, Status::Failed)] {
        let mut writer = begin(&run, 0, trial);
        for (nth, dropped) in [(1, 2), (2, 3)] {
            let sample = wire::HostSample {
                at_ns: T0_NS[0].1 + nth * STEP_NS,
                cpu_steal_pct: 25.0,
                softnet_dropped: dropped,
                ..Default::default()
            };
            push(&mut writer, "src", Payload::HostSample(sample));
        }
        let reasons: &[(&str, &str)] = match status {
            Status::Failed => &[("node_lost", "src")],
            _ => &[],
        };
        writer.commit(&verdict(status, reasons)).unwrap();
    }
    run.finish(RunStatus::Complete).unwrap();
    let folder = root.path().join("metrics");
    let written = export::openmetrics(run.path(), &folder).unwrap();
    let names = [1, 2].map(|trial| folder.join(format!("point-0-trial-{trial:02}.openmetrics")));
    assert_eq!(written, names);
    let [ok, failed] = names.map(|path| std::fs::read_to_string(path).unwrap());
    let values = |text: &str, parts: &[&str]| -> Vec<f64> {
        let lines = text.lines().filter(|line| parts.iter().all(|part| line.contains(part)));
        let value = |line: &str| line.rsplit_once("} ")?.1.split(' ').next()?.parse().ok();
        lines.filter_map(value).collect()
    };
    let dropped = ["ccbench_node_dropped_packets_total{", "node=\"src\"", "at=\"softnet\""];
    assert_eq!(values(&ok, &dropped), [2.0, 5.0], "from 0 in each trial");
    assert_eq!(values(&failed, &dropped), [2.0, 5.0]);
    assert_eq!(values(&ok, &["ccbench_node_cpu_ratio{", "mode=\"steal\""]), [0.25, 0.25]);
    let state = |status: &str| ["ccbench_trial_status{".to_owned(), format!("status=\"{status}\"")];
    let is_set = |text: &str, status: &str| {
        let parts = state(status);
        values(text, &parts.each_ref().map(String::as_str)) == [1.0]
    };
    assert!(is_set(&ok, "ok") && is_set(&failed, "failed") && !is_set(&failed, "ok"));
    assert_eq!(values(&failed, &["ccbench_trial_reasons{", "code=\"node_lost\""]), [1.0]);
    // Times are in seconds since 1970, on the controller's axis.
    let time = ok.lines().find(|line| line.starts_with("ccbench_node_cpu_ratio{")).unwrap();
    let time_s: f64 = time.rsplit(' ').next().unwrap().parse().unwrap();
    assert!((1_700_000_000.0..1_700_000_001.0).contains(&time_s), "{time}");
    let name = run.path().file_name().unwrap().to_str().unwrap();
    assert!(ok.contains(&format!("run=\"{name}\"")), "{ok}");
    // By any path to the directory, such as `.` inside it.
    let link = root.path().join("link");
    std::os::unix::fs::symlink(run.path(), &link).unwrap();
    for path in [run.path().join("tables/.."), link] {
        export::openmetrics(&path, &folder).unwrap();
        assert_eq!(std::fs::read_to_string(&written[0]).unwrap(), ok, "{}", path.display());
        let summary = RunSummary::compute(&path, TrialFilter::default()).unwrap();
        let page = ccbench_results::report::html(&summary).unwrap();
        assert!(page.contains(&format!("run = \\\"{name}\\\"")), "{}", path.display());
    }
    assert!(ok.ends_with("# EOF\n") && failed.ends_with("# EOF\n"));
}
