//! Tests that qvis opens exported files and draws their values.
//!
//! qvis is a page for browsers, in no package, so its rules are written down here, from commit 72c8c4b of quiclog/qvis: how it chooses a
//! reader for a file (`FileLoader.ts`), the versions that it reads (`QlogSchema02.ts`), how it finds events (`QlogLoaderV2.ts`,
//! `Connection.ts`), and what its congestion graph draws (`CongestionGraphD3Renderer.ts`).

use super::*;

/// The versions with the events of "0.3".
const VERSIONS: [&str; 4] = ["draft-02", "draft-02-RC1", "qlog-03-WIP", "0.3"];
/// The values of `recovery:metrics_updated` that the graph draws.
const DRAWN: [&str; 5] =
    ["bytes_in_flight", "congestion_window", "min_rtt", "smoothed_rtt", "latest_rtt"];
/// The time that the graph shows after the last packet.
const MARGIN_MS: f64 = 10.0;

/// What qvis shows of a trace.
#[derive(Debug, Default, PartialEq)]
struct Shown {
    /// Events by category and type.
    events: BTreeMap<(String, String), usize>,
    /// The bytes that were sent, on the vertical axis.
    sent_bytes: u64,
    /// Values inside of the graph, and those after its end, by name.
    drawn: BTreeMap<&'static str, usize>,
    hidden: BTreeMap<&'static str, usize>,
}

/// Reads a file as qvis does.
///
/// # Errors
/// qvis does not open the file, or shows an alert.
fn shown(text: &str) -> Result<Vec<Shown>, String> {
    let begin: String = text.chars().take(1024).collect();
    let is_json = begin.contains("qlog_format") && begin.contains("JSON");
    if !begin.contains("qlog_version") || !is_json {
        return Err("no JSON file by its first 1024 characters".into());
    }
    if let Some(other) = ["NDJSON", "JSON-SEQ"].iter().find(|other| begin.contains(**other)) {
        return Err(format!("read as {other}"));
    }
    let file: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let version = file["qlog_version"].as_str().unwrap_or_default();
    if !VERSIONS.contains(&version) {
        return Err(format!("unknown version {version}"));
    }
    let traces = file["traces"].as_array().ok_or("no traces")?;
    traces.iter().map(shown_of).collect()
}

fn shown_of(trace: &Value) -> Result<Shown, String> {
    let common = &trace["common_fields"];
    if common["time_format"] != "relative" || !common["reference_time"].is_number() {
        return Err("relative times without a number as the reference".into());
    }
    let events = trace["events"].as_array().ok_or("no events")?;
    let time = |event: &Value| event["time"].as_f64().unwrap_or_default();
    if events.is_empty() {
        return Err("a trace without events".into());
    }
    if !events.iter().map(time).is_sorted() {
        return Err("an alert: times go back".into());
    }
    let mut shown = Shown::default();
    let mut end_ms = 0.0_f64;
    for event in events {
        let (category, kind) =
            event["name"].as_str().and_then(|name| name.split_once(':')).ok_or("no category")?;
        *shown.events.entry((category.to_owned(), kind.to_owned())).or_default() += 1;
        let length = event["data"]["raw"]["length"].as_u64().unwrap_or(0);
        if (category, kind) == ("transport", "packet_sent") && length > 0 {
            shown.sent_bytes += length;
            end_ms = end_ms.max(time(event));
        }
    }
    for event in events.iter().filter(|event| event["name"] == "recovery:metrics_updated") {
        let is_inside = time(event) <= end_ms + MARGIN_MS;
        let counts = if is_inside { &mut shown.drawn } else { &mut shown.hidden };
        // The graph leaves out zeros.
        let has = |name: &&str| event["data"][*name].as_f64().is_some_and(|value| value != 0.0);
        for name in DRAWN.into_iter().filter(has) {
            *counts.entry(name).or_default() += 1;
        }
    }
    Ok(shown)
}

/// Returns an exported file with `up/0` of [`two_flows`].
fn exported(root: &Path) -> String {
    let folder = root.join("qlog");
    let written = export::qlog(&two_flows(root), &folder).unwrap();
    std::fs::read_to_string(&written[1]).unwrap()
}

#[test]
fn qvis_opens_a_file_and_draws_every_value() {
    let root = tempfile::tempdir().unwrap();
    let text = exported(root.path());
    let traces = shown(&text).unwrap();
    let events = [
        ("recovery", "congestion_state_updated", 3),
        ("recovery", "loss_timer_updated", 1),
        ("recovery", "metrics_updated", 4),
        ("recovery", "packet_lost", 3),
        ("transport", "packet_sent", 3),
    ];
    let owned = |(category, kind, count): (&str, &str, usize)| {
        ((category.to_owned(), kind.to_owned()), count)
    };
    let drawn =
        [("bytes_in_flight", 1), ("congestion_window", 4), ("min_rtt", 1), ("smoothed_rtt", 1)];
    let expected = Shown {
        events: BTreeMap::from(events.map(owned)),
        sent_bytes: 43_440,
        drawn: BTreeMap::from(drawn),
        hidden: BTreeMap::new(),
    };
    assert_eq!(traces, [expected]);
    let file: Value = serde_json::from_str(&text).unwrap();
    let count: usize = traces[0].events.values().sum();
    assert_eq!(file["traces"][0]["events"].as_array().unwrap().len(), count);
}

#[test]
fn qvis_does_not_open_the_next_version() {
    let root = tempfile::tempdir().unwrap();
    let text = exported(root.path());
    let next = text.replace("\"qlog_version\":\"0.3\"", "\"qlog_version\":\"0.4\"");
    assert_eq!(shown(&next), Err("unknown version 0.4".to_owned()));
}

#[test]
fn qvis_hides_values_after_the_last_packet() {
    let root = tempfile::tempdir().unwrap();
    let text = exported(root.path()).replace("transport:packet_sent", "transport:packet_dropped");
    let trace = shown(&text).unwrap().remove(0);
    assert_eq!((trace.drawn["congestion_window"], trace.hidden["congestion_window"]), (1, 3));
}
