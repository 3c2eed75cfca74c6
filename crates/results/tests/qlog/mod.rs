//! Tests the export of qlog files against the CDDL schemas in draft-ietf-quic-qlog-main-schema-05 and draft-ietf-quic-qlog-quic-events-04,
//! and against what qvis reads and draws.
//!
//! The schemas are tables here: no package has the CDDL of these drafts.

use ccbench_proto::wire::TcpEventKind;
use ccbench_results::export;
use serde_json::Value;

use super::*;

mod qvis;
mod readers;

/// A CDDL type.
enum Type {
    Text,
    /// `float32`, `float64`: any number.
    Float,
    /// `uint64`.
    Uint,
    /// `uint16`.
    Uint16,
    OneOf(&'static [&'static str]),
    /// `[+ text]`.
    Texts,
    Object,
    /// An object with these fields.
    Fields(&'static [Field]),
    Array,
}

/// Name, whether it is required, and type.
type Field = (&'static str, bool, Type);

impl Type {
    fn takes(&self, value: &Value) -> bool {
        match self {
            Self::Text => value.is_string(),
            Self::Float => value.is_number(),
            Self::Uint => value.is_u64(),
            Self::Uint16 => value.as_u64().is_some_and(|number| number <= 0xffff),
            Self::OneOf(texts) => value.as_str().is_some_and(|text| texts.contains(&text)),
            Self::Texts => value
                .as_array()
                .is_some_and(|all| !all.is_empty() && all.iter().all(Value::is_string)),
            Self::Object => value.is_object(),
            Self::Fields(fields) => violations("", value, fields).is_empty(),
            Self::Array => value.is_array(),
        }
    }
}

/// `QlogFile`, which requires at least one trace.
const FILE: &[Field] = &[
    ("qlog_version", true, Type::OneOf(&["0.3"])),
    // The schema permits omitting it, but qvis requires it.
    ("qlog_format", true, Type::OneOf(&["JSON"])),
    ("title", false, Type::Text),
    ("description", false, Type::Text),
    ("traces", true, Type::Array),
];
/// `Trace`. qvis names a trace by its title and its vantage point, and adds the reference time in `common_fields`.
const TRACE: &[Field] = &[
    ("title", true, Type::Text),
    ("description", false, Type::Text),
    ("common_fields", true, Type::Object),
    ("vantage_point", true, Type::Object),
    ("events", true, Type::Array),
];
const VANTAGE_POINT: &[Field] = &[
    ("name", false, Type::Text),
    ("type", true, Type::OneOf(&["client", "server", "network", "unknown"])),
    ("flow", false, Type::OneOf(&["client", "server", "network", "unknown"])),
];
/// `CommonFields`. Relative times need a reference.
const COMMON_FIELDS: &[Field] = &[
    ("path", false, Type::Text),
    ("time_format", true, Type::OneOf(&["relative"])),
    ("reference_time", true, Type::Float),
    ("protocol_type", false, Type::Texts),
    ("group_id", false, Type::Text),
];
const EVENT: &[Field] =
    &[("time", true, Type::Float), ("name", true, Type::Text), ("data", true, Type::Object)];
/// `PacketHeader`, for packets without a number.
const HEADER: &[Field] = &[(
    "packet_type",
    true,
    Type::OneOf(&["retry", "version_negotiation", "stateless_reset", "unknown"]),
)];
/// `RawInfo`.
const RAW: &[Field] = &[
    ("length", false, Type::Uint),
    ("payload_length", false, Type::Uint),
    ("data", false, Type::Text),
];
/// `TransportPacketSent`, `RecoveryMetricsUpdated`, `RecoveryCongestionStateUpdated`, `RecoveryLossTimerUpdated`, `RecoveryPacketLost`.
const DATA: &[(&str, &[Field])] = &[
    (
        "transport:packet_sent",
        &[("header", true, Type::Fields(HEADER)), ("raw", false, Type::Fields(RAW))],
    ),
    (
        "recovery:metrics_updated",
        &[
            ("min_rtt", false, Type::Float),
            ("smoothed_rtt", false, Type::Float),
            ("latest_rtt", false, Type::Float),
            ("rtt_variance", false, Type::Float),
            ("pto_count", false, Type::Uint16),
            ("congestion_window", false, Type::Uint),
            ("bytes_in_flight", false, Type::Uint),
            ("ssthresh", false, Type::Uint),
            ("packets_in_flight", false, Type::Uint),
            ("pacing_rate", false, Type::Uint),
        ],
    ),
    (
        "recovery:congestion_state_updated",
        &[
            ("old", false, Type::Text),
            ("new", true, Type::Text),
            ("trigger", false, Type::OneOf(&["persistent_congestion", "ECN"])),
        ],
    ),
    (
        "recovery:loss_timer_updated",
        &[
            ("timer_type", false, Type::OneOf(&["ack", "pto"])),
            ("event_type", true, Type::OneOf(&["set", "expired", "cancelled"])),
            ("delta", false, Type::Float),
        ],
    ),
    (
        "recovery:packet_lost",
        &[(
            "trigger",
            false,
            Type::OneOf(&["reordering_threshold", "time_threshold", "pto_expired"]),
        )],
    ),
];

/// Returns every violation of these fields, with its location.
fn violations(at: &str, value: &Value, fields: &[Field]) -> Vec<String> {
    let Some(object) = value.as_object() else { return vec![format!("{at} is no object")] };
    let mut found = vec![];
    for (name, required, of) in fields {
        match object.get(*name) {
            None if *required => found.push(format!("{at} has no {name}")),
            Some(value) if !of.takes(value) => found.push(format!("{at}.{name} is {value}")),
            _ => {}
        }
    }
    let unknown = object.keys().filter(|key| fields.iter().all(|(name, ..)| name != key));
    found.extend(unknown.map(|key| format!("{at} has the unknown {key}")));
    found
}

/// Returns every violation in a file.
fn violations_of(file: &Value) -> Vec<String> {
    let mut found = violations("file", file, FILE);
    let traces = file["traces"].as_array().cloned().unwrap_or_default();
    if traces.is_empty() {
        found.push("no trace".to_owned());
    }
    for trace in &traces {
        found.extend(violations("trace", trace, TRACE));
        found.extend(violations("vantage_point", &trace["vantage_point"], VANTAGE_POINT));
        found.extend(violations("common_fields", &trace["common_fields"], COMMON_FIELDS));
        let events = trace["events"].as_array().cloned().unwrap_or_default();
        if events.is_empty() {
            found.push("no event, on which qvis fails".to_owned());
        }
        for event in &events {
            found.extend(violations("event", event, EVENT));
            let name = event["name"].as_str().unwrap_or_default();
            match DATA.iter().find(|(known, _)| *known == name) {
                Some((_, fields)) => found.extend(violations(name, &event["data"], fields)),
                None => found.push(format!("the unknown event {name}")),
            }
        }
        // Otherwise qvis sorts the trace and shows an alert.
        let times = events.iter().filter_map(|event| event["time"].as_f64());
        if !times.is_sorted() {
            found.push("times go back".to_owned());
        }
    }
    found
}

fn read(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap();
    // "SHOULD be in the first 256 characters".
    assert!(text[..256].contains("\"qlog_version\"") && text[..256].contains("\"qlog_format\""));
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_check_finds_violations() {
    let file = serde_json::json!({
        "qlog_version": "0.4", "traces": [{
            "title": "f/0", "vantage_point": { "name": "src" },
            "common_fields": { "time_format": "relative", "reference_time": 1.5 },
            "events": [
                { "time": 2, "name": "recovery:metrics_updated", "data": { "pto_count": 65536, "ssthresh": 1.5, "cwnd": 1 } },
                { "time": 1, "name": "recovery:congestion_state_updated", "data": { "old": "open" } },
                { "time": 3, "name": "transport:packet_lost", "data": {} },
                { "time": 4, "name": "transport:packet_sent", "data": { "header": { "packet_type": "TCP" }, "raw": {} } },
            ],
        }],
    });
    let expected = [
        "file.qlog_version is \"0.4\"",
        "file has no qlog_format",
        "vantage_point has no type",
        "recovery:metrics_updated.pto_count is 65536",
        "recovery:metrics_updated.ssthresh is 1.5",
        "recovery:metrics_updated has the unknown cwnd",
        "recovery:congestion_state_updated has no new",
        "the unknown event transport:packet_lost",
        "transport:packet_sent.header is {\"packet_type\":\"TCP\"}",
        "times go back",
    ];
    assert_eq!(violations_of(&file), expected);
}

/// Pushes a loss of three packets of `up/0` after a timeout, and the flow's states.
fn push_events(writer: &mut TrialWriter<'_>) {
    let event = |nth: u64, kind: TcpEventKind, before, after, count| wire::TcpEvent {
        at_ns: T0_NS[0].1 + nth * STEP_NS,
        flow_id: "up/0".into(),
        group: "up".into(),
        side: Side::Sender.into(),
        role: Role::Data.into(),
        kind: kind.into(),
        ca_state: after,
        ca_state_before: before,
        count,
        ..Default::default()
    };
    let events = vec![
        event(0, TcpEventKind::Cc, None, 0, 0),
        event(1, TcpEventKind::CaState, Some(0), 4, 0),
        event(1, TcpEventKind::Rto, None, 4, 1),
        event(1, TcpEventKind::Retransmit, None, 4, 3),
    ];
    push(writer, "src", Payload::TcpEvents(wire::TcpEvents { events }));
    for (round, mode) in [(1, 0.0), (2, 0.0), (3, 1.0)] {
        let state = wire::CcState {
            at_ns: T0_NS[0].1 + round * STEP_NS,
            flow_id: "up/0".into(),
            group: "up".into(),
            cc: "bbr3".into(),
            algorithm: "bbr3".into(),
            round,
            variable: "mode".into(),
            value: mode,
            ..Default::default()
        };
        push(writer, "src", Payload::CcState(state));
    }
}

/// Creates a trial with two flows: `up/0` with samples, socket events and states, and `down/0`, sent by the listening node, with samples.
fn two_flows(root: &Path) -> PathBuf {
    let run = RunDir::create(root, &info()).unwrap();
    let mut writer = begin(&run, 0, 1);
    let flows = [("up", "src", T0_NS[0].1), ("down", "dst", T0_NS[1].1)];
    for (group, node, t0_ns) in flows {
        for (nth, ca_state) in [(0, 0), (1, 0), (2, 3), (3, 0)] {
            let sample = wire::FlowSample {
                at_ns: t0_ns + nth * STEP_NS,
                flow_id: format!("{group}/0"),
                group: group.into(),
                side: Side::Sender.into(),
                role: Role::Data.into(),
                cc: "bbr3".into(),
                ca_state: Some(ca_state),
                rtt_us: Some(10_250),
                min_rtt_us: Some(10_000),
                snd_mss_bytes: Some(1448),
                snd_cwnd_pkts: Some(10 + nth as u32),
                snd_ssthresh_pkts: (nth > 1).then_some(7),
                unacked_pkts: Some(9),
                sacked_pkts: Some(3),
                // More than were sent: the second sample has no number of packets in flight.
                lost_pkts: Some(if nth == 1 { 20 } else { 2 }),
                retrans_pkts: Some(1),
                pacing_rate_bytes_per_s: Some(1_000_000),
                bytes_sent: Some(nth * 14_480),
                ..Default::default()
            };
            push(&mut writer, node, Payload::FlowSample(sample));
        }
        let flow = wire::Flow {
            flow_id: format!("{group}/0"),
            group: group.into(),
            node_src: "src".into(),
            node_dst: "dst".into(),
            role: Role::Data.into(),
            side: Side::Sender.into(),
            ..Default::default()
        };
        push(&mut writer, node, Payload::Flow(flow));
    }
    push_events(&mut writer);
    writer.commit(&verdict(Status::Ok, &[])).unwrap();
    run.finish(RunStatus::Complete).unwrap();
    run.path().to_path_buf()
}

/// Returns the values of a field in the events of this name, in order.
fn values(file: &Value, name: &str, field: &str) -> Vec<Value> {
    let events = file["traces"][0]["events"].as_array().unwrap();
    let own = events.iter().filter(|event| event["name"] == name);
    own.filter_map(|event| event["data"].get(field).cloned()).collect()
}

#[test]
fn a_sender_has_a_file_with_its_metrics_states_and_losses() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("qlog");
    let written = export::qlog(&two_flows(root.path()), &folder).unwrap();
    let names = ["point-0-trial-01-down-0.qlog", "point-0-trial-01-up-0.qlog"];
    assert_eq!(written, names.map(|name| folder.join(name)));
    let [down, up] = [0, 1].map(|nth| read(&written[nth]));
    for file in [&down, &up] {
        assert_eq!(violations_of(file), [""; 0]);
        let trace = &file["traces"][0];
        assert_eq!(trace["common_fields"]["reference_time"], 1_700_000_000_000.0);
        let metrics = |field| values(file, "recovery:metrics_updated", field);
        assert_eq!(metrics("smoothed_rtt"), [10.25]);
        assert_eq!(metrics("min_rtt"), [10.0]);
        assert_eq!(metrics("congestion_window"), [14_480, 15_928, 17_376, 18_824]);
        assert_eq!(metrics("ssthresh"), [10_136]);
        assert_eq!(metrics("packets_in_flight"), [5]);
        assert_eq!(metrics("bytes_in_flight"), [7240]);
        assert_eq!(metrics("pacing_rate"), [8_000_000]);
        assert_eq!(metrics("latest_rtt"), [0; 0], "the kernel has none");
        let sent = vec![serde_json::json!({ "length": 14_480 }); 3];
        assert_eq!(values(file, "transport:packet_sent", "raw"), sent);
    }
    assert_eq!(up["traces"][0]["title"], "up/0 bbr3");
    assert_eq!(up["traces"][0]["vantage_point"]["type"], "client");
    assert_eq!(down["traces"][0]["vantage_point"]["type"], "server");
    let states = |file: &Value| values(file, "recovery:congestion_state_updated", "new");
    assert_eq!(states(&down), ["open", "recovery", "open"], "of the samples");
    let all = ["loss", "STARTUP", "DRAIN"];
    let mut found: Vec<Value> = states(&up);
    found.sort_by_key(|state| all.iter().position(|name| state == name));
    assert_eq!(found, all, "of the socket and of the congestion control");
    let events = up["traces"][0]["events"].as_array().unwrap();
    let count = |name: &str| events.iter().filter(|event| event["name"] == name).count();
    assert_eq!((count("recovery:packet_lost"), count("recovery:loss_timer_updated")), (3, 1));
    let times: Vec<f64> = events.iter().filter_map(|event| event["time"].as_f64()).collect();
    assert!(times[0].abs() < 1e-6 && (times.last().unwrap() - 300.0).abs() < 1e-6, "{times:?}");
}

#[test]
fn every_sender_of_the_made_up_run_has_a_file() {
    let root = tempfile::tempdir().unwrap();
    let written = export::qlog(&made_up(root.path()), &root.path().join("qlog")).unwrap();
    // Three flows in each of four trials, without control connections.
    assert_eq!(written.len(), 12, "{written:?}");
    for path in written {
        assert_eq!(violations_of(&read(&path)), [""; 0], "{}", path.display());
    }
}
