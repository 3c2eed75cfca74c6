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
            push(&mut writer, "dst", Of::Interval(interval));
            let sample = sender_sample(group, at(0, 50), 24_000, 40);
            // More packets have left the network than were sent: the sample has no number of packets in flight.
            let torn = wire::FlowSample { lost_pkts: Some(90), ..sample.clone() };
            push(&mut writer, "src", Of::FlowSample(if step == 5 { torn } else { sample }));
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
