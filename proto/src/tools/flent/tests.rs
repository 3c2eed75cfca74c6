use super::*;
use crate::tools::gather::{Source, gather};
use crate::tools::text::{self, Found};

/// Ten seconds after a whole hour.
const T0_S: f64 = 1_725_876_010.0;

fn document(raw_values: &str) -> String {
    format!(
        "{{\"version\": 4, \"metadata\": {{\"NAME\": \"rrul\", \"T0\": \"2024-09-09T10:00:10.000000Z\", \"SERIES_META\": {{
          \"TCP upload BE\": {{\"UNITS\": \"Mbits/s\"}}, \"Ping (ms) ICMP\": {{\"UNITS\": \"ms\"}},
          \"cpu_stats_localhost::load\": {{\"UNITS\": \"load\"}} }} }},
          \"x_values\": [0, 0.2, 0.4], \"results\": {{\"TCP upload BE\": [1, 2, 3], \"TCP upload sum\": [1, 2, 3],
          \"TCP download BE\": [8, null, 16] }}, \"raw_values\": {raw_values} }}"
    )
}

fn found(raw_values: &str) -> Found {
    text::read(document(raw_values).as_bytes(), BaseDate::default())
}

fn rows<T>(found: &Found, pick: fn(&Payload) -> Option<T>) -> Vec<T> {
    found.named.rows.iter().filter_map(pick).collect()
}

fn interval(row: &Payload) -> Option<(String, f64, f64, u64)> {
    match row {
        Payload::Interval(row) => Some((row.flow_id.clone(), row.start_s, row.seconds, row.bytes)),
        _ => None,
    }
}

#[test]
fn raw_values_are_intervals_samples_and_probes() {
    let found = found(&format!(
        "{{\"TCP upload BE\": [{{\"t\": {}, \"val\": 8, \"dur\": 0.5, \"tcp_cwnd\": 20, \"tcp_rtt\": 12.5}},
           {{\"t\": {}, \"val\": 16, \"tcp_delivery_rate\": 8.0}}, {{\"t\": {}, \"tcp_cwnd\": 21}}],
           \"Ping (ms) ICMP\": [{{\"t\": {}, \"val\": 100, \"seq\": 1}}, {{\"t\": {}, \"val\": 50.0, \"seq\": 4}}],
           \"cpu_stats_localhost::load\": [{{\"t\": {T0_S}, \"val\": 0.5}}] }}",
        T0_S + 0.5,
        T0_S + 1.5,
        T0_S + 1.6,
        T0_S + 0.1,
        T0_S + 3.05,
    ));
    assert!(found.unread.is_empty(), "{:?}", found.unread);
    let own: Vec<_> =
        rows(&found, interval).into_iter().filter(|row| row.0 == "TCP-upload-BE/0").collect();
    let name = || "TCP-upload-BE/0".to_owned();
    assert_eq!(own, [(name(), 0.0, 0.5, 500_000), (name(), 0.5, 1.0, 2_000_000)]);
    let samples = rows(&found, |row| match row {
        Payload::FlowSample(row) => {
            Some((row.snd_cwnd_pkts, row.rtt_us, row.delivery_rate_bytes_per_s))
        }
        _ => None,
    });
    assert_eq!(
        samples,
        [(Some(20), Some(12_500), None), (None, None, Some(1_000_000)), (Some(21), None, None)]
    );
    let probes = rows(&found, |row| match row {
        Payload::Probe(row) => Some((row.probe_id.clone(), row.seq, row.rtt_us)),
        _ => None,
    });
    let probe = |seq, rtt_us| ("Ping-ms-ICMP".to_owned(), seq, rtt_us);
    let expected = [probe(1, Some(1e5)), probe(2, None), probe(3, None), probe(4, Some(5e4))];
    assert_eq!(probes, expected);
    assert!(found.named.notes[0].contains("cpu_stats_localhost::load"), "{:?}", found.named.notes);
}

#[test]
fn series_without_raw_values_are_read_from_the_common_axis() {
    let found = found("{}");
    let mut all = rows(&found, interval);
    all.retain(|row| row.0 == "TCP-download-BE/0");
    assert_eq!(all.len(), 2, "one of three values is missing");
    assert_eq!(all[1].3, 800_000, "16 Mbit/s for 0.4 s");
    assert!(rows(&found, interval).iter().all(|row| !row.0.contains("sum")), "computed series");
}

#[test]
fn values_out_of_range_are_counted() {
    let found = found("{\"TCP upload BE\": [{\"t\": 1e300, \"val\": 8, \"dur\": 1}, {\"t\": 5, \"val\": -1, \"dur\": 1}],
                        \"Ping (ms) ICMP\": [{\"t\": 1725876010, \"val\": -3}]}");
    assert_eq!(found.unread_count(), 3);
}

#[test]
fn flows_of_two_files_are_told_apart() {
    let raw = format!("{{\"TCP upload::1\": [{{\"t\": {}, \"val\": 8, \"dur\": 1}}]}}", T0_S + 1.0);
    let source =
        |stem: &str| Source { stem: stem.to_owned(), node: "src".to_owned(), found: found(&raw) };
    let names = |sources: &[Source]| {
        let gathered = gather(sources, &BTreeMap::new());
        let flow = |(_, row): &(String, Payload)| match row {
            Payload::Flow(row) => Some((row.flow_id.clone(), row.bytes, row.tool.clone())),
            _ => None,
        };
        gathered.rows.iter().filter_map(flow).collect::<Vec<_>>()
    };
    let one = names(&[source("a")]);
    let upload = one.iter().find(|row| row.0 == "TCP-upload/1").unwrap();
    assert_eq!((upload.1, upload.2.as_str()), (1_000_000, "flent"));
    let two: Vec<String> =
        names(&[source("a"), source("b")]).into_iter().map(|row| row.0).collect();
    assert!(
        two.contains(&"a-TCP-upload/1".to_owned()) && two.contains(&"b-TCP-upload/1".to_owned()),
        "{two:?}"
    );
}

#[test]
fn transactions_of_early_versions_are_round_trips() {
    let raw =
        format!("{{\"Ping (ms) UDP BE\": [{{\"t\": {}, \"val\": 50, \"dur\": 1}}]}}", T0_S + 1.0);
    let rtt_us = |text: &str| {
        let found = text::read(text.as_bytes(), BaseDate::default());
        rows(&found, |row| match row {
            Payload::Probe(row) => Some((row.kind(), row.rtt_us)),
            _ => None,
        })
    };
    let early = document(&raw).replace("\"version\": 4", "\"version\": 3");
    assert_eq!(rtt_us(&early), [(ProbeKind::Udp, Some(2e4))], "50 transactions in a second");
    assert_eq!(rtt_us(&document(&raw)), [(ProbeKind::Udp, Some(5e4))]);
}
