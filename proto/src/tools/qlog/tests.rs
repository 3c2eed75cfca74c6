use super::*;
use crate::tools::gather::{Source, gather};
use crate::tools::text::{self, Found};

const EPOCH_MS: u64 = 1_725_876_010_000;

fn found(text: &str) -> Found {
    text::read(text.as_bytes(), BaseDate::default())
}

fn samples(found: &Found) -> Vec<&wire::FlowSample> {
    let rows = found.named.rows.iter();
    rows.filter_map(|row| match row {
        Payload::FlowSample(sample) => Some(sample),
        _ => None,
    })
    .collect()
}

fn contained(common: &str, events: &str) -> String {
    format!(
        "{{\"qlog_version\": \"0.4\", \"qlog_format\": \"JSON\", \"traces\": [{{\"title\": \"bulk/0 cubic\",
          \"common_fields\": {{\"group_id\": \"bulk/0\", {common}}}, \"vantage_point\": {{\"type\": \"client\"}},
          \"events\": [{events}]}}]}}"
    )
}

/// What `ccbench export qlog` writes.
const EXPORTED: &str = "
    {\"time\": 0, \"name\": \"recovery:metrics_updated\", \"data\": {\"smoothed_rtt\": 10.25, \"congestion_window\": 14480,
      \"packets_in_flight\": 5, \"bytes_in_flight\": 7240, \"pacing_rate\": 8000000, \"pto_count\": 0}},
    {\"time\": 0, \"name\": \"recovery:congestion_state_updated\", \"data\": {\"new\": \"open\"}},
    {\"time\": 100, \"name\": \"recovery:congestion_state_updated\", \"data\": {\"old\": \"open\", \"new\": \"recovery\"}},
    {\"time\": 100, \"name\": \"recovery:packet_lost\", \"data\": {}},
    {\"time\": 150.5, \"name\": \"recovery:metrics_updated\", \"data\": {\"congestion_window\": 7240}},
    {\"time\": 150.5, \"name\": \"transport:packet_sent\", \"data\": {\"header\": {\"packet_type\": \"unknown\"}, \"raw\": {\"length\": 14480}}},
    {\"time\": 200, \"name\": \"recovery:loss_timer_updated\", \"data\": {\"timer_type\": \"pto\", \"event_type\": \"expired\"}},
    {\"time\": 200, \"name\": \"recovery:congestion_state_updated\", \"data\": {\"new\": \"STARTUP\"}}";

#[test]
fn the_export_is_read_back() {
    let common = format!("\"time_format\": \"relative\", \"reference_time\": {EPOCH_MS}.0");
    let found = found(&contained(&common, EXPORTED));
    assert!(found.unread.is_empty() && found.named.tool == "qlog", "{:?}", found.unread);
    let samples = samples(&found);
    let first = samples[0];
    assert_eq!(
        (first.flow_id.as_str(), first.group.as_str(), first.cc.as_str()),
        ("bulk/0", "bulk", "cubic")
    );
    assert_eq!(first.at_ns, EPOCH_MS * 1_000_000);
    assert_eq!(
        (first.rtt_us, first.snd_mss_bytes, first.snd_cwnd_pkts),
        (Some(10_250), Some(1448), Some(10))
    );
    assert_eq!((first.unacked_pkts, first.pacing_rate_bytes_per_s), (Some(5), Some(1_000_000)));
    let second = samples[1];
    assert_eq!(
        (second.gap_ns, second.snd_cwnd_pkts, second.rtt_us),
        (150_500_000, Some(5), Some(10_250))
    );
    assert_eq!((second.ca_state, second.total_retrans_pkts), (Some(3), Some(1)));
    let events = found.named.rows.iter().flat_map(|row| match row {
        Payload::TcpEvents(rows) => &rows.events[..],
        _ => &[],
    });
    let events = events.map(|row| (row.kind(), row.ca_state, row.ca_state_before, row.count));
    let expected = [
        (TcpEventKind::CaState, 3, Some(0), 0),
        (TcpEventKind::Retransmit, 3, None, 1),
        (TcpEventKind::Rto, 3, None, 1),
    ];
    assert_eq!(events.collect::<Vec<_>>(), expected);
    let intervals = found.named.rows.iter().filter_map(|row| match row {
        Payload::Interval(row) => Some((row.side(), row.bytes)),
        _ => None,
    });
    assert_eq!(intervals.collect::<Vec<_>>(), [(Side::Sender, 14_480)]);
}

#[test]
fn the_versions_of_exports_are_read_alike() {
    let common = format!("\"time_format\": \"relative\", \"reference_time\": {EPOCH_MS}.0");
    let before = contained(&common, EXPORTED);
    let now = before.replace("\"qlog_version\": \"0.4\"", "\"qlog_version\": \"0.3\"");
    assert_ne!(now, before);
    assert_eq!(found(&now).named.rows, found(&before).named.rows);
}

#[test]
fn times_have_the_format_of_the_trace() {
    let event = |time: &str| {
        format!(
            "{{\"time\": {time}, \"name\": \"quic:recovery_metrics_updated\", \"data\": {{\"min_rtt\": 1}}}}"
        )
    };
    let events = format!("{}, {}", event("5"), event("7"));
    let at_ms = |common: &str| -> Vec<u64> {
        let found = found(&contained(common, &events));
        samples(&found).iter().map(|sample| sample.at_ns / 1_000_000).collect()
    };
    assert_eq!(
        at_ms("\"time_format\": \"delta\", \"reference_time\": \"1725876010000\""),
        [EPOCH_MS + 5, EPOCH_MS + 12]
    );
    let epoch = "\"time_format\": \"relative_to_epoch\", \"reference_time\": {\"clock_type\": \"system\", \"epoch\": \"2024-09-09T10:00:10Z\"}";
    assert_eq!(at_ms(epoch), [EPOCH_MS + 5, EPOCH_MS + 7]);
    let by_default = epoch.replace("\"time_format\": \"relative_to_epoch\", ", "");
    assert_eq!(at_ms(&by_default), [EPOCH_MS + 5, EPOCH_MS + 7]);
    let monotonic = by_default.replace("\"epoch\"", "\"epoch\": \"unknown\", \"wall_clock_time\"");
    assert_eq!(at_ms(&monotonic), [EPOCH_MS + 5, EPOCH_MS + 7]);
    assert_eq!(at_ms("\"reference_time\": {\"clock_type\": \"system\"}"), [5, 7], "since 1970");
    assert_eq!(at_ms("\"protocol_type\": [\"QUIC\"]"), [5, 7], "absolute");
    let unknown = found(&contained("\"time_format\": \"relative\"", &events));
    assert!(
        unknown.named.notes[0].contains("does not say when it began"),
        "{:?}",
        unknown.named.notes
    );
}

/// A JSON text sequence of a QUIC receiver, whose last record is incomplete.
#[test]
fn a_sequence_of_a_receiver_has_intervals() {
    let header = format!(
        "\u{1e}{{\"qlog_version\": \"0.3\", \"qlog_format\": \"JSON-SEQ\", \"trace\": {{\"common_fields\": {{\"ODCID\": \"ab12\",
          \"time_format\": \"relative\", \"reference_time\": {EPOCH_MS}}}, \"vantage_point\": {{\"type\": \"client\"}}}}}}\n"
    );
    let packet = |time: u32, name: &str, length: u32| {
        format!(
            "\u{1e}{{\"time\": {time}, \"name\": \"transport:{name}\", \"data\": {{\"raw\": {{\"length\": {length}}}}}}}\n"
        )
    };
    let records = [
        header,
        packet(0, "packet_sent", 50),
        packet(10, "packet_received", 1200),
        packet(90, "packet_received", 1200),
        packet(100, "packet_sent", 50),
        packet(350, "packet_received", 1300),
        "\u{1e}{\"time\": 1, \"name\": \"http:frame_created\", \"data\": {}}\n".to_owned(),
        "\u{1e}{\"time\": 400, \"na".to_owned(),
    ];
    let found = found(&records.concat());
    assert_eq!(found.unread_count(), 1, "{:?}", found.unread);
    let intervals = found.named.rows.iter().filter_map(|row| match row {
        Payload::Interval(row) => Some((row.flow_id.as_str(), row.side(), row.end_s, row.bytes)),
        _ => None,
    });
    let row = |end_s, bytes| ("ab12/0", Side::Receiver, end_s, bytes);
    assert_eq!(intervals.collect::<Vec<_>>(), [row(0.1, 2400), row(0.3, 0), row(0.4, 1300)]);
    assert!(found.named.notes[0].contains("http:frame_created"), "{:?}", found.named.notes);
    let source = Source { stem: "client".into(), node: "dst".into(), found };
    let gathered = gather(&[source], &BTreeMap::new());
    assert_eq!(gathered.begin_ns, EPOCH_MS * 1_000_000);
    let flow = gathered.rows.iter().find_map(|(_, row)| match row {
        Payload::Flow(flow) => Some((flow.node_dst.as_str(), flow.bytes, flow.side())),
        _ => None,
    });
    assert_eq!(flow, Some(("dst", 3700, Side::Receiver)));
}

#[test]
fn events_that_cannot_be_read_are_counted() {
    let events = "{\"name\": \"recovery:packet_lost\", \"data\": {}}, {\"time\": 1e300, \"name\": \"recovery:packet_lost\", \"data\": {}},
                  {\"time\": 1, \"name\": \"recovery:packet_lost\", \"data\": 3}";
    let found = found(&contained("\"time_format\": \"absolute\"", events));
    assert_eq!(found.unread_count(), 3, "{:?}", found.unread);
    assert!(found.named.rows.is_empty());
}

#[test]
fn traces_without_a_connection_are_told_apart_by_their_files() {
    let whole = contained("\"time_format\": \"absolute\"", EXPORTED);
    let nameless = whole.replace("\"group_id\": \"bulk/0\", ", "");
    let flows = |text: &str, stems: &[&str]| {
        let source = |stem: &&str| Source {
            stem: (*stem).to_owned(),
            node: "src".to_owned(),
            found: found(text),
        };
        let sources: Vec<Source> = stems.iter().map(source).collect();
        let gathered = gather(&sources, &BTreeMap::new());
        let flow = |(_, row): &(String, Payload)| match row {
            Payload::Flow(flow) => Some((flow.flow_id.clone(), flow.group.clone())),
            _ => None,
        };
        gathered.rows.iter().filter_map(flow).collect::<Vec<_>>()
    };
    let pair = |id: &str, group: &str| (id.to_owned(), group.to_owned());
    assert_eq!(flows(&nameless, &["a"]), [pair("qlog/0", "qlog")]);
    let two = [pair("a-qlog/0", "a-qlog"), pair("b-qlog/0", "b-qlog")];
    assert_eq!(flows(&nameless, &["a", "b"]), two);
    assert_eq!(flows(&whole, &["a", "b"]), [pair("bulk/0", "bulk")], "one connection");
}

#[test]
fn packets_before_the_first_one_are_counted() {
    let packet = |time: u32| {
        format!(
            "{{\"time\": {time}, \"name\": \"transport:packet_sent\", \"data\": {{\"raw\": {{\"length\": 1000}}}}}}"
        )
    };
    let events = [500, 490, 520, 100].map(packet).join(", ");
    let found = found(&contained("\"time_format\": \"absolute\"", &events));
    let bytes = found.named.rows.iter().filter_map(|row| match row {
        Payload::Interval(row) => Some(row.bytes),
        _ => None,
    });
    assert_eq!(bytes.collect::<Vec<_>>(), [3000]);
    assert_eq!(found.unread_count(), 1, "{:?}", found.unread);
    assert!(found.unread[0].reason.contains("400 ms before the first one"), "{:?}", found.unread);
}

#[test]
fn values_that_cannot_be_are_counted_and_unknown() {
    let metrics = |time: u32, data: &str| {
        format!(
            "{{\"time\": {time}, \"name\": \"recovery:metrics_updated\", \"data\": {{{data}}}}}"
        )
    };
    let good = "\"smoothed_rtt\": 10, \"congestion_window\": 12000, \"pacing_rate\": 8000000";
    let read = |data: &str| {
        let events = [metrics(0, good), metrics(10, data), metrics(20, "")].join(", ");
        found(&contained("\"time_format\": \"absolute\"", &events))
    };
    let values = |found: &Found| -> Vec<_> {
        let of =
            |row: &&wire::FlowSample| (row.rtt_us, row.snd_cwnd_pkts, row.pacing_rate_bytes_per_s);
        samples(found).iter().map(of).collect()
    };
    let known = (Some(10_000), Some(10), Some(1_000_000));
    let (_, cwnd, pacing) = known;
    for (data, expected) in [
        ("\"smoothed_rtt\": -1", (None, cwnd, pacing)),
        ("\"smoothed_rtt\": 1e12", (None, cwnd, pacing)),
        ("\"smoothed_rtt\": \"12\"", (None, cwnd, pacing)),
        ("\"congestion_window\": 1e40", (Some(10_000), None, pacing)),
        ("\"congestion_window\": [], \"pacing_rate\": -8", (Some(10_000), None, None)),
    ] {
        let found = read(data);
        assert_eq!(found.unread_count(), 1, "{data}: {:?}", found.unread);
        let name = data.split('"').nth(1).unwrap();
        assert!(found.unread[0].reason.contains(name), "{data}: {:?}", found.unread);
        assert_eq!(values(&found), [known, expected, expected], "{data}");
    }
    // What an event does not have is as it was; without a loss there is no threshold.
    for data in ["", "\"smoothed_rtt\": null", "\"ssthresh\": 18446744073709551615"] {
        let found = read(data);
        assert_eq!((found.unread_count(), values(&found)), (0, vec![known; 3]), "{data}");
    }
    let size = "{\"time\": 0, \"name\": \"recovery:parameters_set\", \"data\": {\"max_datagram_size\": 1e40}}";
    let length =
        "{\"time\": 0, \"name\": \"transport:packet_sent\", \"data\": {\"raw\": {\"length\": -1}}}";
    for event in [size, length] {
        let found = found(&contained("\"time_format\": \"absolute\"", event));
        assert_eq!(found.unread_count(), 1, "{event}: {:?}", found.unread);
    }
}
