use super::*;
use proptest::prelude::*;

macro_rules! captured {
    ($name:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/iperf3/", $name))
    };
}

fn numbering(client_port: u16, count: u32, listens: bool) -> Numbering {
    Numbering { client_port, count, listens }
}

#[test]
fn one_stream_gives_its_intervals_and_totals() {
    let report = Report::from_json(captured!("3.12-client-p1.json"), numbering(10_000, 1, false));
    assert_eq!(report.version, "iperf 3.12");
    assert!(report.complete);
    assert_eq!(report.error, None);
    assert_eq!(report.sender_cc.as_deref(), Some("reno"));
    assert_eq!(report.streams[&0].local_port, 10_000);
    assert_eq!(report.intervals.len(), 10);
    let first = &report.intervals[0].values;
    assert_eq!((first.bytes, first.end, first.retransmits), (709_099_520.0, 0.100125, Some(4.0)));
    let sum: f64 = report.intervals.iter().map(|i| i.values.bytes).sum();
    assert_eq!(report.totals[&0].sent_bytes, sum as u64);
    assert!(report.totals[&0].received_bytes > 0);
}

#[test]
fn five_streams_are_numbered_by_port_on_both_ends() {
    let client = Report::from_json(captured!("3.12-client-p5.json"), numbering(10_010, 5, false));
    let server = Report::from_json(captured!("3.12-server-p5.json"), numbering(10_010, 5, true));
    for stream in 0..5 {
        let port = 10_010 + stream as u16;
        assert_eq!(client.streams[&stream].local_port, port);
        assert_eq!(server.streams[&stream].remote_port, port);
        assert!(client.intervals.iter().any(|i| i.stream == stream));
        assert_eq!(
            client.totals[&stream].received_bytes, server.totals[&stream].received_bytes,
            "the total that the receiver sent to the sender"
        );
    }
    assert!(server.control_port.is_some());
}

#[test]
fn server_is_the_sender_in_reverse_mode() {
    let client =
        Report::from_json(captured!("3.12-client-reverse.json"), numbering(10_020, 2, false));
    let server =
        Report::from_json(captured!("3.12-server-reverse.json"), numbering(10_020, 2, true));
    assert!(client.intervals.iter().all(|i| i.values.snd_cwnd.is_none()));
    assert!(server.intervals.iter().all(|i| i.values.snd_cwnd.is_some()));
    assert_eq!(server.sender_cc.as_deref(), Some("reno"));
}

#[test]
fn what_every_version_writes_is_not_taken_for_zero() {
    let whole = "\"start\":0,\"end\":1,\"seconds\":1,\"bytes\":8";
    let report = |values: &str| {
        let text = format!(
            "{{\"start\":{{}},\"intervals\":[{{\"streams\":[{{{values}}}]}}],\"end\":{{}}}}"
        );
        Report::from_json(text.as_bytes(), numbering(1, 1, false))
    };
    // UDP has no window, TCP no jitter.
    let found = report(whole);
    assert!(found.unread.is_empty() && found.intervals[0].values.bytes == 8.0, "{found:?}");
    for name in ["start", "end", "seconds", "bytes"] {
        let found = report(&whole.replace(&format!("\"{name}\""), "\"other\""));
        assert!(found.intervals.is_empty() && found.unread.len() == 1, "{name}: {found:?}");
        assert!(found.unread[0].reason.to_string().contains("missing"), "{name}: {found:?}");
    }
    let mut lines = Report::default();
    let line = format!(
        "{{\"event\":\"interval\",\"data\":{{\"streams\":[{{{whole}}},{{\"start\":1}}]}}}}"
    );
    assert_eq!(lines.on_line(line.as_bytes(), numbering(1, 2, false)), None);
    assert_eq!(lines.intervals.len(), 1, "what can be read is kept");
    // The end of a UDP test has neither side.
    let text = "{\"start\":{},\"intervals\":[],\"end\":{\"streams\":[{\"udp\":{\"bytes\":1}}]}}";
    assert!(Report::from_json(text.as_bytes(), numbering(1, 1, false)).unread.is_empty());
}

#[test]
fn unread_parts_have_a_reason_and_a_place() {
    let report = |values: &str, members: &str| {
        let text = format!("{{\"intervals\":[{{\"streams\":[{{{values}}}]}}]{members}}}");
        let unread = Report::from_json(text.as_bytes(), numbering(1, 1, false)).unread;
        assert_eq!(unread.len(), 1, "{unread:?}");
        assert!(text.as_bytes()[unread[0].at..].starts_with(b"{"), "{unread:?}");
        (unread[0].reason, unread[0].reason.to_string())
    };
    let whole = "\"start\":0,\"end\":1,\"seconds\":1,\"bytes\":8";
    let rtt = report(&format!("{whole},\"rtt\":-5"), "");
    assert_eq!(rtt, (UnreadReason::Value("rtt"), "`rtt` is out of range".to_owned()));
    let end = report(whole, ",\"end\":{\"streams\":0}");
    assert_eq!(end, (UnreadReason::Member("end"), "`end` cannot be read".to_owned()));
}

#[test]
fn an_interrupted_flow_keeps_its_rows() {
    let client =
        Report::from_json(captured!("3.12-client-interrupted.json"), numbering(10_040, 1, false));
    assert_eq!(client.error.as_deref(), Some("interrupt - the client has terminated"));
    assert_eq!(client.intervals.len(), 3, "two of 0.5 s and the rest");
    let server =
        Report::from_json(captured!("3.12-server-interrupted.json"), numbering(10_040, 1, true));
    assert_eq!(server.error.as_deref(), Some("the client has terminated"));
    assert!(!server.intervals.is_empty());
}

#[test]
fn interrupted_server_gets_the_rest_of_its_total_once() {
    let text = captured!("3.12-server-interrupted.json");
    let mut server = Report::from_json(text, numbering(10_040, 1, true));
    let times: Vec<(f64, f64)> =
        server.intervals.iter().map(|i| (i.values.start, i.values.end)).collect();
    assert!(times.windows(2).all(|w| w[0].1 <= w[1].0), "{times:?}");
    let (count, total) = (times.len(), server.totals[&0].received_bytes);
    let own: f64 = server.intervals.iter().map(|i| i.values.bytes).sum();
    assert!(own < total as f64, "{own} of {total}");
    server.add_rest(false, 1.25);
    assert_eq!(server.intervals.len(), count + 1);
    let rest = &server.intervals[count].values;
    assert_eq!((rest.start, rest.end), (times[count - 1].1, 1.25));
    assert_eq!(own + rest.bytes, total as f64);
    server.add_rest(false, 2.0);
    assert_eq!(server.intervals.len(), count + 1, "nothing is missing any more");
}

#[test]
fn keeps_the_error_message_of_the_report() {
    let error = |text: &[u8]| Report::from_json(text, numbering(10_030, 1, false)).error;
    assert_eq!(
        error(captured!("3.12-client-refused.json")).as_deref(),
        Some("unable to connect to server: Connection refused")
    );
    assert!(error(captured!("3.12-client-no-such-cc.json")).unwrap().contains("TCP_CONGESTION"));
    assert!(error(captured!("3.12-client-port-taken.json")).unwrap().contains("in use"));
    assert_eq!(
        error(captured!("3.12-server-client-killed.json")).as_deref(),
        Some("the client has unexpectedly closed the connection")
    );
    assert_eq!(error(br#"{"error": "first", "error": "second"}"#).as_deref(), Some("first"));
}

#[test]
fn reads_json_stream() {
    let mut report = Report::default();
    let added: Vec<Option<usize>> = captured!("3.17-json-stream.jsonl")
        .split(|&b| b == b'\n')
        .map(|line| report.on_line(line, numbering(10_000, 2, false)))
        .collect();
    assert_eq!(added, [Some(0), Some(2), Some(0), Some(0), None], "the last line is empty");
    assert_eq!(report.intervals[1].stream, 1);
    assert_eq!(report.intervals[1].values.reorder, Some(2.0));
    assert_eq!(report.totals[&1].received_bytes, 1_200_000);
    assert_eq!(report.error.as_deref(), Some("interrupt - the client has terminated"));
}

#[test]
fn truncated_report_keeps_complete_intervals() {
    let text = captured!("3.12-client-p1.json");
    let whole = Report::from_json(text, numbering(10_000, 1, false));
    let mut most = 0;
    for cut in 0..text.len() {
        let report = Report::from_json(&text[..cut], numbering(10_000, 1, false));
        assert!(report.intervals.len() >= most, "cut at {cut} lost rows that were complete");
        most = report.intervals.len();
        assert_eq!(report.intervals[..], whole.intervals[..most], "cut at {cut}");
    }
    assert_eq!(most, whole.intervals.len());
}

#[test]
fn text_around_the_document_does_not_matter() {
    let mut text = b"warning: something\n".to_vec();
    text.extend_from_slice(captured!("3.12-client-p1.json"));
    text.extend_from_slice(b"\niperf3: exiting\n{\"x\": [");
    let report = Report::from_json(&text, numbering(10_000, 1, false));
    assert_eq!(report.intervals.len(), 10);
    assert!(report.complete);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Report::from_json(&bytes, numbering(1, 1, true));
        let _ = Report::default().on_line(&bytes, numbering(1, 1, true));
    }

    #[test]
    fn no_damage_makes_it_panic(
        at in 0usize..8000, byte in any::<u8>(), jsonish in "[\\[\\]{}\",:0-9a-z\\\\ ]{0,60}"
    ) {
        let mut text = captured!("3.12-client-p1.json").to_vec();
        let at = at % text.len();
        text[at] = byte;
        let _ = Report::from_json(&text, numbering(10_000, 1, false));
        let _ = Report::from_json(jsonish.as_bytes(), numbering(10_000, 1, false));
    }
}
