//! Groups that begin or end at other times than planned.

use super::*;

#[test]
fn draining_after_a_groups_stop_is_not_a_phase() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &RunInfo { resolved_text: ENDS_EARLY.into(), ..info() })
        .unwrap();
    let mut writer = begin(&run, 0, 1);
    fill(&mut writer, 0.0);
    writer.commit(&verdict(Status::Ok, &[])).unwrap();
    let summary = summarize::summarize(run.path(), TrialFilter::default()).unwrap();
    let has = |group| {
        summary.summary.find(0, "compete", Scope::Group, group, "throughput_sum", "mean").is_some()
    };
    assert!(has("under_test") && !has("cross"));
    let net =
        summary.summary.find(0, "compete", Scope::Net, "all", "throughput_sum", "mean").unwrap();
    // The last 30 ms of the interval before are at 90 Mbit/s.
    assert!((net.value - (0.03 * 90e6 + 3.97 * 30e6) / 4.0).abs() < 1.0, "{net:?}");
}

/// As [`ENDS_EARLY`], but that `cross` must begin where the made-up one is a second late.
#[test]
fn late_group_is_marked_and_net_metrics_stay_within_the_phase() {
    let root = tempfile::tempdir().unwrap();
    let text = ENDS_EARLY.replace("[\"under_test\"]", "[\"under_test\", \"cross\"]");
    let run = RunDir::create(root.path(), &RunInfo { resolved_text: text, ..info() }).unwrap();
    let mut writer = begin(&run, 0, 1);
    for mut flow in flows(0.0) {
        if flow.group == "cross" {
            flow.start_s = 7.0;
        }
        flow.push(&mut writer, true);
    }
    writer.commit(&verdict(Status::Ok, &[])).unwrap();
    let summary = summarize::summarize(run.path(), TrialFilter::default()).unwrap();
    let value = |scope, subject, metric| {
        let row = summary.summary.find(0, "compete", scope, subject, metric, "mean").unwrap();
        (row.value * 1e3).round() / 1e3
    };
    assert_eq!(value(Scope::Group, "cross", "throughput_sum"), 60e6);
    assert_eq!(value(Scope::Group, "cross", "coverage_share"), 0.5);
    assert_eq!(value(Scope::Group, "under_test", "coverage_share"), 1.0);
    assert_eq!(
        value(Scope::Net, "all", "throughput_sum"),
        60e6,
        "about 30 throughout and 60 for half"
    );
    let fairness = value(Scope::Net, "all", "jain_fairness_of_mean");
    let bits: [f64; 3] = [81.2, 40.6, 1.97 * 60.0];
    let squares: f64 = bits.iter().map(|bits| bits * bits).sum();
    assert!((fairness - 240.0 * 240.0 / (3.0 * squares)).abs() < 1e-3, "{fairness}");
    let printed = table::text(&summary, 120);
    assert!(printed.contains("60.00*"), "{printed}");
    assert!(printed.contains("* point 0, compete, cross: data covers only 50 %"), "{printed}");
    assert!(!printed.contains("under_test: data was"), "{printed}");
}
