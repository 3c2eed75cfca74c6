//! Tests the export of flent data files.

use std::collections::BTreeSet;

use flate2::read::GzDecoder;
use serde_json::{Value, json};

use super::*;

/// Exports a trial with two probes and with these flows: group, node that connects, node that sends. The Nth flow has N Mbit/s.
fn exported(flows: &[(&str, &str, &str)]) -> Value {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    let mut writer = begin(&run, 0, 1);
    let other = |node: &str| if node == "src" { "dst" } else { "src" };
    let at_ns = |node: &str, step: u64| {
        T0_NS.iter().find(|(name, _)| *name == node).unwrap().1 + step * STEP_NS
    };
    for (&(group, connects, sends), mbit) in flows.iter().zip(1_u64..) {
        let receives = other(sends);
        for step in 1..=20 {
            let interval = wire::Interval {
                at_ns: at_ns(receives, step),
                flow_id: format!("{group}/0"),
                group: group.into(),
                side: Side::Receiver.into(),
                seconds: 0.1,
                bytes: 12_500 * mbit,
                ..Default::default()
            };
            push(&mut writer, receives, Payload::Interval(interval));
        }
        for (node, side) in [(sends, Side::Sender), (receives, Side::Receiver)] {
            let flow = wire::Flow {
                flow_id: format!("{group}/0"),
                group: group.into(),
                node_src: connects.into(),
                node_dst: other(connects).into(),
                role: Role::Data.into(),
                side: side.into(),
                ..Default::default()
            };
            push(&mut writer, node, Payload::Flow(flow));
        }
    }
    for (probe_id, rtt_us) in [("ping", 10_000.0), ("udp", 20_000.0)] {
        for seq in 0..20_u32 {
            let probe = wire::Probe {
                at_ns: at_ns("src", seq.into()),
                probe_id: probe_id.into(),
                kind: wire::ProbeKind::Ping.into(),
                seq,
                rtt_us: Some(rtt_us),
                ..Default::default()
            };
            push(&mut writer, "src", Payload::Probe(probe));
        }
    }
    writer.commit(&verdict(Status::Ok, &[])).unwrap();
    run.finish(RunStatus::Complete).unwrap();
    let written = export::flent(run.path(), &root.path().join("flent")).unwrap();
    let file = std::fs::File::open(&written[0]).unwrap();
    serde_json::from_reader(GzDecoder::new(file)).unwrap()
}

#[test]
fn both_directions_are_a_test_with_uploads_and_downloads() {
    // Two downloads: one from the listening node, one by a connection from the other node.
    let file = exported(&[("a", "src", "src"), ("b", "src", "dst"), ("c", "dst", "dst")]);
    assert_eq!(file["metadata"]["NAME"], "rrul_be_nflows");
    assert_eq!(file["metadata"]["LOCAL_HOST"], "src");
    let streams = json!({ "download_streams": "2", "upload_streams": "1" });
    assert_eq!(file["metadata"]["TEST_PARAMETERS"], streams);
    assert_eq!(file["metadata"]["SERIES_META"]["TCP download BE::2"]["FLOW"], "c/0");
    for (name, wanted) in [
        ("TCP upload BE::1", 1.0),
        ("TCP download BE::1", 2.0),
        ("TCP download BE::2", 3.0),
        ("TCP upload sum", 1.0),
        ("TCP download sum", 5.0),
        ("TCP download avg", 2.5),
        ("TCP totals", 6.0),
        ("Ping (ms) ICMP", 10.0),
        ("Ping (ms)::udp", 20.0),
        ("Ping (ms) avg", 15.0),
    ] {
        // At 1 s.
        let found = file["results"][name][5].as_f64().unwrap_or(f64::NAN);
        assert!((found - wanted).abs() < 1e-6, "{name}: {found}");
    }
}

#[test]
fn one_direction_is_a_test_of_uploads_or_of_downloads() {
    for (sends, test, direction) in [("src", "tcp_nup", "upload"), ("dst", "tcp_ndown", "download")]
    {
        let file = exported(&[("a", "src", sends), ("b", "src", sends)]);
        assert_eq!(file["metadata"]["NAME"], test);
        let found: BTreeSet<&str> =
            file["results"].as_object().unwrap().keys().map(String::as_str).collect();
        let of_flows = ["::1", "::2", " sum", " avg"].map(|end| format!("TCP {direction}{end}"));
        let mut wanted: BTreeSet<&str> = of_flows.iter().map(String::as_str).collect();
        wanted.extend(["Ping (ms) ICMP", "Ping (ms)::udp"]);
        assert_eq!(found, wanted, "{test}");
    }
}
