//! Tests groups that begin or end earlier or later than planned.

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
    // The last 30 ms of the previous interval are at 90 Mbit/s.
    assert!((net.value - (0.03 * 90e6 + 3.97 * 30e6) / 4.0).abs() < 1.0, "{net:?}");
}

/// As [`ENDS_EARLY`], but the plan has `cross` in every phase, and the made-up flow begins 2 s after the start of `compete`.
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
    assert!(printed.contains("* point 0, compete, cross: data covers only 50.0 %"), "{printed}");
    let cause =
        "(in the worst trial, 1; it started late or ended early within the limits of the verdict,";
    assert!(printed.contains(cause), "{printed}");
    assert!(!printed.contains("under_test: data covers"), "{printed}");
}

/// Pushes counters of a queue with this number of drops and of marks.
fn push_queue(writer: &mut TrialWriter<'_>, at_s: f64, count: u64) {
    let counters = wire::QdiscSample {
        at_ns: T0_NS[0].1 + (at_s * 1e9).round() as u64,
        link: "bottleneck".into(),
        iface: "to-dst".into(),
        handle: "1:".into(),
        parent: "root".into(),
        kind: "userspace".into(),
        sent_bytes: count * 1000,
        drops_pkts: count,
        ecn_mark_pkts: Some(count),
        ..Default::default()
    };
    push(writer, "src", Payload::QdiscSample(counters));
}

/// Pushes counters of a queue and of the sender of `under_test/0`, with a drop, a mark and a retransmission in each tenth of a second.
fn push_counters(writer: &mut TrialWriter<'_>, at_s: f64) {
    let (at_ns, count) = (T0_NS[0].1 + (at_s * 1e9).round() as u64, (at_s * 10.0).round() as u64);
    push_queue(writer, at_s, count);
    let sample = wire::FlowSample {
        at_ns,
        flow_id: "under_test/0".into(),
        group: "under_test".into(),
        side: Side::Sender.into(),
        role: Role::Data.into(),
        rtt_us: Some(10_000),
        total_retrans_pkts: Some(count as u32),
        data_segs_out_pkts: Some(count as u32 * 100),
        ..Default::default()
    };
    push(writer, "src", Payload::FlowSample(sample));
}

/// The sample at the end of a phase belongs to the next phase, or to none at the end of the trial. It may come late.
#[test]
fn the_sample_at_its_end_closes_the_counters_of_a_phase() {
    let root = tempfile::tempdir().unwrap();
    for (nth, end_s) in [9.0, 9.03].into_iter().enumerate() {
        let path = root.path().join(nth.to_string());
        let run = RunDir::create(&path, &RunInfo { points: vec![(0, vec![])], ..info() }).unwrap();
        let mut writer = begin(&run, 0, 1);
        for step in 0..90 {
            let interval = wire::Interval {
                at_ns: T0_NS[1].1 + (step + 1) * STEP_NS,
                flow_id: "under_test/0".into(),
                group: "under_test".into(),
                side: Side::Receiver.into(),
                seconds: 0.1,
                bytes: 1000,
                ..Default::default()
            };
            push(&mut writer, "dst", Payload::Interval(interval));
        }
        // Every 2 s, then at the end of the trial: 5.5 s is the first sample after the end of `alone`.
        for at_s in [0.0, 1.5, 3.5, 5.5, 7.5, end_s] {
            push_counters(&mut writer, at_s);
        }
        writer.commit(&verdict(Status::Ok, &[])).unwrap();
        let summary = summarize::summarize(run.path(), TrialFilter::default()).unwrap();
        let sum = |phase, scope, subject, metric| {
            summary.summary.find(0, phase, scope, subject, metric, "sum").map(|row| row.value)
        };
        for (phase, wanted) in [("alone", 40.0), ("compete", 35.0)] {
            for metric in ["drops", "marks"] {
                let found = sum(phase, Scope::Link, "bottleneck", metric);
                assert_eq!(found, Some(wanted), "{metric} in {phase}");
            }
            let found = sum(phase, Scope::Flow, "under_test/0", "retransmissions");
            assert_eq!(found, Some(wanted), "{phase}");
        }
        let share = summary.summary.find(
            0,
            "compete",
            Scope::Group,
            "under_test",
            "retransmission_share",
            "mean",
        );
        assert_eq!(share.map(|row| row.value), Some(0.01));
        // A rate covers the samples in the phase.
        let rate =
            summary.summary.find(0, "compete", Scope::Link, "bottleneck", "throughput", "mean");
        assert_eq!(rate.map(|row| row.value), Some(20.0 * 1000.0 * 8.0 / 2.0));
    }
}

/// A link exists before the trial, and pings pass it. The simulator's begins with the trial.
#[test]
fn drops_and_marks_before_the_trial_do_not_count() {
    let root = tempfile::tempdir().unwrap();
    let simulator = RunBackend::Simulator { model_version: 1 };
    let cases = [
        (RunBackend::Testbed, 0.0, 18.0),
        (RunBackend::Testbed, 0.02, 18.0),
        // Without a sample at the start, what came before it is not known.
        (RunBackend::Testbed, 0.5, 25.0),
        (simulator, 0.0, 25.0),
    ];
    for (nth, (backend, first_s, wanted)) in cases.into_iter().enumerate() {
        let path = root.path().join(nth.to_string());
        let run = RunDir::create(&path, &RunInfo { backend, points: vec![(0, vec![])], ..info() })
            .unwrap();
        let key = TrialKey { point_id: 0, trial: 1, seed: 3, epoch: run.next_epoch() };
        let phases = [phase("one", 0, 4, true), phase("two", 4, 9, true)];
        let mut writer = run.begin_trial(key, &phases, clocks()).unwrap();
        for (at_s, count) in [(first_s, 7), (1.5, 12), (3.5, 20), (4.0, 25), (9.0, 31)] {
            push_queue(&mut writer, at_s, count);
        }
        writer.commit(&verdict(Status::Ok, &[])).unwrap();
        let summary = summarize::summarize(run.path(), TrialFilter::default()).unwrap();
        for (phase, wanted) in [("one", wanted), ("two", 6.0)] {
            for metric in ["drops", "marks"] {
                let found =
                    summary.summary.find(0, phase, Scope::Link, "bottleneck", metric, "sum");
                let found = found.map(|row| row.value);
                assert_eq!(found, Some(wanted), "{metric} in {phase} of case {nth}");
            }
        }
    }
}
