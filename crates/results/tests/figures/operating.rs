//! Tests operating points.

use super::*;

#[test]
fn joint_operating_point_is_the_net_of_the_summary() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    let mut writer = begin(&run, 0, 1);
    // In the phase from 1 to 5 s, one flow has the link for the first three seconds, and the other for the last.
    for (group, steps) in [("under_test", 0..30_u64), ("cross", 30..40)] {
        for step in steps {
            let at = |node: usize, ms: u64| T0_NS[node].1 + (1000 + step * 100 + ms) * 1_000_000;
            let interval = wire::Interval {
                at_ns: at(1, 99),
                flow_id: format!("{group}/0"),
                group: group.to_owned(),
                side: Side::Receiver.into(),
                seconds: 0.099,
                bytes: 250_000,
                ..Default::default()
            };
            push(&mut writer, "dst", Payload::Interval(interval));
            let sample = sender_sample(group, at(0, 50), 24_000, 40);
            // More packets have left the network than were sent: the sample has no number of packets in flight.
            let torn = wire::FlowSample { lost_pkts: Some(90), ..sample.clone() };
            push(&mut writer, "src", Payload::FlowSample(if step == 5 { torn } else { sample }));
        }
    }
    writer.commit(&verdict(Status::Ok, &[])).unwrap();
    run.finish(RunStatus::Complete).unwrap();
    let kind = Kind::OperatingPoint;
    let figure = figure::draw(run.path(), &request(kind, &[("phase", "alone")])).unwrap().remove(0);
    let all = RunSummary::compute(run.path(), TrialFilter::default()).unwrap().summary;
    let net = |metric, stat| all.find(0, "alone", Scope::Net, "all", metric, stat).unwrap().value;
    let joint = |column| number(&figure, &[("subject", "joint")], column);
    let mbit_per_s = net("throughput_sum", "mean") / 1e6;
    assert!((mbit_per_s - 20.0).abs() < 1e-6, "40 intervals of 250 kB in 4 s: {mbit_per_s}");
    assert_eq!(joint("throughput_mbit_s"), mbit_per_s);
    assert_eq!(joint("in_flight_pkts"), net("in_flight", "sum"));
    let flow = all.find(0, "alone", Scope::Flow, "under_test/0", "in_flight", "mean").unwrap();
    let drawn = number(&figure, &[("subject", "under_test/0")], "in_flight_pkts");
    assert!((drawn - 40.0).abs() < 1e-9 && (drawn - flow.value).abs() < 1e-9);
    assert!((joint("srtt_ms") - 24.0).abs() < 1e-9);
}

#[test]
fn each_group_has_the_base_rtt_of_its_path() {
    let root = tempfile::tempdir().unwrap();
    let run = run_with_unequal_intervals_of(root.path(), &["under_test", "cross"]);
    let draw = |kind, plan: &str| {
        put_plan(&run, plan);
        figure::draw(&run, &request(kind, &[("phase", "alone")])).unwrap().remove(0)
    };
    // `cross` has a longer path to the bottleneck.
    let plan = plan_with_slow_access_link().replace("rate = \"10mbit\"", "delay = \"9ms\"");
    let (point, bars) = (draw(Kind::OperatingPoint, &plan), draw(Kind::Phases, &plan));
    for (group, rtt_ms) in [("under_test", 1.0), ("cross", 10.0)] {
        let optimum = format!("optimum of {group}");
        let best = |column| number(&point, &[("subject", optimum.as_str())], column);
        let packets = 1e9 * rtt_ms / 1e3 / 8.0 / 1514.0;
        for (column, wanted) in [
            ("srtt_ms", rtt_ms),
            ("in_flight_pkts", packets),
            ("throughput_mbit_s", 1000.0 * PAYLOAD),
        ] {
            let found = best(column);
            assert!((found - wanted).abs() < 1e-6 * wanted, "{group}: {column}: {found}");
        }
        // 100 kB at 1 Gbit/s.
        let rtt = [("metric", "Mean sRTT (ms)"), ("group", group)];
        let full_queue_ms = number(&bars, &rtt, "full_queue");
        assert!((full_queue_ms - (rtt_ms + 0.8)).abs() < 1e-6, "{group}: {full_queue_ms}");
    }
    let change = "[[changes]]\nat = \"3s\"\nset = { \"links.access.delay\" = \"20ms\" }\n";
    let point = draw(Kind::OperatingPoint, &(plan + change));
    assert_eq!(cells(&point, &[("subject", "optimum")], "srtt_ms"), ["1"], "{}", point.csv);
    assert!(!point.csv.contains("optimum of"), "{}", point.csv);
}

#[test]
fn optima_of_several_points_and_groups_have_both_names() {
    let root = tempfile::tempdir().unwrap();
    let run = made_up(root.path());
    let plan = plan_with_slow_access_link().replace("rate = \"10mbit\"", "delay = \"5ms\"");
    put_plan(&run, &plan);
    let wide = Request { width_mm: Some(175.0), ..request(Kind::Plane, &[("phase", "compete")]) };
    let svg = figure::draw(&run, &wide).unwrap().remove(0).svg;
    for group in ["under_test", "cross"] {
        assert!(svg.contains(&format!("fill=\"#c2185b\">cubic, 20: {group}</text>")), "{svg}");
    }
}
