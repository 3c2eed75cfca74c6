//! Tests time-sequence graphs.

use super::*;

#[test]
fn time_sequence_graph_has_sent_acknowledged_and_retransmitted_bytes() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    let mut writer = begin(&run, 0, 1);
    for (nth, bytes_retrans) in [(0, 0), (1, 0), (2, 1448), (3, 1448)] {
        let acked = 1_000_000 * nth;
        let sample = wire::FlowSample {
            at_ns: T0_NS[0].1 + (nth + 1) * STEP_NS,
            flow_id: "up/0".into(),
            group: "up".into(),
            side: Side::Sender.into(),
            role: Role::Data.into(),
            bytes_acked: Some(acked),
            bytes_sent: Some(acked + 500_000 + bytes_retrans),
            bytes_retrans: Some(bytes_retrans),
            snd_cwnd_pkts: Some(1000),
            snd_mss_bytes: Some(1000),
            ..Default::default()
        };
        push(&mut writer, "src", Payload::FlowSample(sample));
    }
    writer.commit(&verdict(Status::Ok, &[])).unwrap();
    run.finish(RunStatus::Complete).unwrap();
    let request = request(Kind::TimeSequence, &[]);
    let figures = figure::draw(run.path(), &request).unwrap();
    let values = |subject| cells(&figures[0], &[("panel", "up/0"), ("subject", subject)], "value");
    assert_eq!(values("acknowledged"), ["0", "1", "2", "3"]);
    assert_eq!(values("sent"), ["0.5", "1.5", "2.5", "3.5"]);
    assert_eq!(values("retransmitted"), ["2"]);
    assert_eq!(values("cwnd"), [""; 0], "not asked for");
    assert!(figures[0].svg.contains(">up/0 (MB)<"), "{}", figures[0].svg);
    let metrics = |name: &str| Request { metrics: vec![name.to_owned()], ..request.clone() };
    let cwnd = figure::draw(run.path(), &metrics("cwnd")).unwrap();
    assert_eq!(cells(&cwnd[0], &[("subject", "cwnd")], "value"), ["1", "2", "3", "4"]);
    let error = figure::draw(run.path(), &metrics("srtt")).unwrap_err().to_string();
    assert!(error.contains("acknowledged, sent"), "{error}");
}
