//! Tests of times between the clocks of two nodes.

use super::*;

/// The error bounds of both clocks together.
const BOUND_US: f64 = 300.0;

/// Returns the completion time in us of a flow that takes this time, and the line of its group in the printed table. The clock of `dst`
/// drifts by 30 ppm.
fn measured(us: f64) -> (f64, Vec<String>) {
    const DRIFT_PPB: i64 = 30_000;
    let root = tempfile::tempdir().unwrap();
    let finite = "start = \"10s\"\nstop = \"12s\"\ntool = \"ccbench\"\nbytes = \"1MB\"\n";
    let plan = PLAN.replace("start = \"2s\"\nstop = \"12s\"\n", finite);
    let info = RunInfo { resolved_text: plan, points: vec![(0, vec![])], repeat: 1, ..info() };
    let run = RunDir::create(root.path(), &info).unwrap();
    let key = TrialKey { point_id: 0, trial: 1, seed: 3, epoch: run.next_epoch() };
    let mut clocks = clocks();
    for (node, error_bound_ns, drift_ppb) in [("src", 100_000, 0), ("dst", 200_000, DRIFT_PPB)] {
        let clock = clocks.get_mut(node).unwrap();
        (clock.error_bound_ns, clock.drift_ppb) = (error_bound_ns, drift_ppb);
    }
    let mut writer = run.begin_trial(key, &[phase("both", 0, 12, true)], clocks).unwrap();
    push_flow(&mut writer, "first", 0.0);
    for (node, side) in [("src", Side::Sender), ("dst", Side::Receiver)] {
        let is_receiver = side == Side::Receiver;
        let on_clock = |s: f64| if is_receiver { s * (1.0 + DRIFT_PPB as f64 / 1e9) } else { s };
        let flow = wire::Flow {
            flow_id: "late/0".into(),
            group: "late".into(),
            role: Role::Data.into(),
            side: side.into(),
            start_s: Some(on_clock(10.0)),
            stop_s: Some(on_clock(12.0)),
            completed_s: is_receiver.then(|| on_clock(10.0 + us / 1e6)),
            ..Default::default()
        };
        push(&mut writer, node, Payload::Flow(flow));
    }
    writer.commit(&verdict(Status::Ok, &[])).unwrap();
    run.finish(RunStatus::Complete).unwrap();
    let summary = RunSummary::compute(run.path(), TrialFilter::default()).unwrap();
    let metric = "flow_completion_time";
    let found = summary.summary.find(0, WHOLE_TRIAL, Scope::Group, "late", metric, "mean");
    let printed = table::text(&summary, 120);
    let has_remark = printed
        .contains("unresolved: less than the error bounds of the clocks of both ends together, in the worst trial");
    assert_eq!(has_remark, us < BOUND_US, "{printed}");
    let line = printed.lines().skip_while(|line| !line.contains("completion ms")).nth(2);
    let cells = line.unwrap_or(&printed).split_whitespace().map(str::to_owned).collect();
    (found.unwrap().value, cells)
}

#[test]
fn a_completion_time_is_corrected_for_the_drift_of_clocks() {
    let (us, cells) = measured(500.0);
    assert_eq!(us, 500.0, "not 800");
    assert_eq!(cells, ["late", "0.50", "0.50", "0.50", "0.50", "0", "of", "1"]);
}

#[test]
fn a_completion_time_below_the_bound_of_both_clocks_is_unresolved() {
    let (us, cells) = measured(250.0);
    assert_eq!(us, 250.0, "the files have it");
    let time = "unresolved";
    assert_eq!(cells, ["late", time, time, time, time, "0", "of", "1"]);
}
