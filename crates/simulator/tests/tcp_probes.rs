//! Tests the probes `tcp_connect` and `http`: their times over paths with known delay and rate, failures, sequences of measurements, and
//! conservation of bytes.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use ccbench_proto::event::Kind;
use ccbench_proto::http;
use ccbench_proto::wire::run_event::Payload;
use ccbench_proto::wire::{Probe, ProbeKind, RunEvent, Side};
use ccbench_simulator::T0_NS;

mod support;

use support::{one_link_plan, rows};

/// Payload of a full segment, and the size of its frame.
const MSS_BYTES: u64 = 1448;
const FRAME_BITS: f64 = 1514.0 * 8.0;
/// Frame of a SYN or SYN-ACK.
const SYN_BITS: f64 = 74.0 * 8.0;
/// Each link delays by half of this.
const RTT_US: f64 = 20_000.0;
/// The table of the probe with its ends.
const PROBE: &str = "[probes.p]\nfrom = \"src\"\nto = \"dst\"\n";

/// Returns a trial of 4 s with a probe from `src` to `dst`, 10 ms each way. `there` and `back` are more keys of the links, `more` has more
/// tables.
fn plan(probe: &str, there: &str, back: &str, more: &str) -> String {
    let link = format!("delay = \"10ms\"\n{there}");
    let rest = format!(
        r#"
[links.back]
node = "router"
toward = "src"
delay = "10ms"
{back}
{PROBE}{probe}
{more}
[[phases]]
name = "only"
length = "4s"
"#
    );
    one_link_plan("tcp-probes", &link, &rest)
}

/// Returns the keys of a link with this rate, whose queue drops nothing.
fn line(rate: &str) -> String {
    format!("rate = \"{rate}\"\nqueue = {{ kind = \"pfifo\", limit = \"1000p\" }}")
}

/// Returns a fetch of a file of this length with NewReno.
fn page(bytes: u64, more: &str) -> String {
    format!("kind = \"http\"\nbytes = \"{bytes}B\"\ncc = \"reno\"\n{more}")
}

/// Returns the probe's rows.
fn measured(rows: &[(String, RunEvent)]) -> Vec<Probe> {
    let probe = |(node, event): &(String, RunEvent)| match &event.payload {
        Some(Payload::Probe(row)) => {
            assert_eq!((node.as_str(), row.probe_id.as_str()), ("src", "p"));
            Some(row.clone())
        }
        _ => None,
    };
    rows.iter().filter_map(probe).collect()
}

fn run(text: &str) -> Vec<Probe> {
    measured(&rows(text, 1).unwrap())
}

/// Returns the messages of the events `probe_unfinished`.
fn unfinished(rows: &[(String, RunEvent)]) -> Vec<String> {
    let event = |(node, event): &(String, RunEvent)| match &event.payload {
        Some(Payload::Event(event)) if matches!(event.kind, Some(Kind::ProbeUnfinished(_))) => {
            assert_eq!((node.as_str(), event.subject.as_str()), ("src", "p"));
            Some(event.message.clone())
        }
        _ => None,
    };
    rows.iter().filter_map(event).collect()
}

/// Returns when the measurements began, in seconds after the beginning of the trial.
fn begins_s(probes: &[Probe]) -> Vec<f64> {
    probes.iter().map(|row| (row.at_ns - T0_NS) as f64 / 1e9).collect()
}

#[test]
fn connect_takes_one_rtt() {
    let connect = "kind = \"tcp_connect\"\nevery = \"500ms\"\nstart = \"100ms\"\ntos = 184";
    let probes = run(&plan(connect, "", "", ""));
    assert_eq!(begins_s(&probes), [0.1, 0.6, 1.1, 1.6, 2.1, 2.6, 3.1, 3.6]);
    for (row, seq) in probes.iter().zip(0..) {
        let expected = Probe {
            at_ns: row.at_ns,
            probe_id: "p".to_owned(),
            kind: ProbeKind::TcpConnect.into(),
            seq,
            tos: 184,
            rtt_us: Some(RTT_US),
            connect_us: Some(RTT_US),
            ..Probe::default()
        };
        assert_eq!(*row, expected);
    }
    // SYN and SYN-ACK also need time on the line.
    let rate = "rate = \"1mbit\"";
    for row in run(&plan(connect, rate, rate, "")) {
        let difference_us = row.rtt_us.unwrap() - RTT_US - 2.0 * SYN_BITS;
        assert!(difference_us.abs() < 1.0, "{difference_us} us: {row:?}");
    }
}

#[test]
fn a_path_without_links_takes_no_time() {
    let text = |probe: &str| {
        let text = plan(probe, "", "", "");
        let (head, links) = text.split_once("[links.there]").unwrap();
        let (_, tail) = links.split_once(PROBE).unwrap();
        format!("{head}{PROBE}{tail}")
    };
    let connects = run(&text("kind = \"tcp_connect\"\nrepeat = \"back-to-back\""));
    // Back to back, but with a pause.
    assert_eq!(connects.len(), 4000);
    assert!(connects.iter().all(|row| row.rtt_us == Some(0.0)));
    let pages = run(&text(&page(177_669, "every = \"1s\"")));
    assert_eq!(pages.len(), 4);
    assert!(pages.iter().all(|row| (row.total_us, row.bytes) == (Some(0.0), Some(177_669))));
}

/// Returns the length of a file that fills this number of segments together with the head.
fn file_bytes(segments: u64) -> u64 {
    let all_bytes = segments * MSS_BYTES;
    let fits = |bytes: &u64| bytes + http::response(200, *bytes).len() as u64 == all_bytes;
    (all_bytes - 300..all_bytes).find(fits).unwrap()
}

#[test]
fn a_fetch_takes_handshake_request_and_rounds_of_slow_start() {
    let rate_bps = 100e6;
    // The initial window is 10 segments, and it doubles in every round.
    for (segments, rounds) in [(1, 1), (10, 1), (11, 2), (30, 2), (31, 3), (70, 3)] {
        let page = page(file_bytes(segments), "repeat = \"once\"");
        let text = plan(&page, "", &line("100mbit"), "");
        let rows = run(&text);
        let [row] = &rows[..] else { panic!("{rows:?}") };
        let connect_us = RTT_US + SYN_BITS * 1e6 / rate_bps;
        assert!((row.connect_us.unwrap() - connect_us).abs() < 1.0, "{row:?}");
        // The acknowledgement of the request precedes the first segment.
        let segment_us = FRAME_BITS * 1e6 / rate_bps;
        let first_us = row.ttfb_us.unwrap() - connect_us - RTT_US;
        assert!((0.0..segment_us + 10.0).contains(&first_us), "{segments}: {first_us} us: {row:?}");
        let rest_us = row.total_us.unwrap() - connect_us - f64::from(rounds) * RTT_US;
        let line_us = (segments + 1) as f64 * segment_us;
        assert!((0.0..line_us).contains(&rest_us), "{segments}: {rest_us} us: {row:?}");
        assert_eq!((row.status, row.bytes), (Some(200), Some(file_bytes(segments))));
        assert_eq!((row.lost, row.rtt_us, row.dns_us), (false, None, None));
    }
}

#[test]
fn a_large_file_takes_the_time_of_its_bytes_on_the_line() {
    // The first window takes longer on the line than the RTT.
    let text = plan(&page(177_669, "repeat = \"once\""), "", &line("1.5mbit"), "");
    let rows = run(&text);
    let [row] = &rows[..] else { panic!("{rows:?}") };
    let payload = 177_669 + http::response(200, 177_669).len() as u64;
    let headers = payload.div_ceil(MSS_BYTES) * 66;
    let line_us = (payload + headers) as f64 * 8.0 / 1.5;
    let rest_us = row.total_us.unwrap() - 2.0 * RTT_US - line_us;
    // Plus a SYN-ACK and an acknowledgement.
    assert!((0.0..1000.0).contains(&rest_us), "{rest_us} us: {row:?}");
}

#[test]
fn fetches_follow_each_other_on_new_connections() {
    let text = plan(&page(50_000, "repeat = \"back-to-back\""), "", &line("10mbit"), "");
    let all = rows(&text, 1).unwrap();
    let probes = measured(&all);
    assert!(probes.len() > 20, "{}", probes.len());
    for (seq, row) in (0..).zip(&probes) {
        assert_eq!((row.seq, row.lost, row.bytes), (seq, false, Some(50_000)));
        // None inherits anything from the previous measurement.
        assert_eq!((row.connect_us, row.ttfb_us), (probes[0].connect_us, probes[0].ttfb_us));
        assert_eq!(row.total_us, probes[0].total_us);
    }
    for two in probes.windows(2) {
        let end_ns = two[0].at_ns + (two[0].total_us.unwrap() * 1e3).round() as u64;
        assert_eq!(two[1].at_ns, end_ns);
    }
    let why = "unfinished measurements at the end of the trial: 1; they have no row and count neither as measured nor as lost";
    assert_eq!(unfinished(&all), [why]);
}

#[test]
fn a_measurement_longer_than_the_interval_skips_the_missed_ones() {
    // 50 000 bytes at 0.8 Mbit/s take half a second.
    let probes = run(&plan(&page(50_000, "every = \"200ms\""), "", &line("0.8mbit"), ""));
    assert_eq!(begins_s(&probes), [0.0, 0.6, 1.2, 1.8, 2.4, 3.0]);
}

#[test]
fn a_dead_path_gives_losses_or_nothing() {
    let connect = |timeout: &str| format!("kind = \"tcp_connect\"\n{timeout}");
    let dead = "loss = \"99.99%\"";
    let all = rows(&plan(&connect("timeout = \"1500ms\""), dead, "", ""), 1).unwrap();
    let probes = measured(&all);
    assert_eq!(begins_s(&probes), [0.0, 2.0]);
    for row in &probes {
        assert!(row.lost && row.error.starts_with("connect to 10."), "{row:?}");
        assert!(row.error.ends_with(": timed out"), "{row:?}");
        assert_eq!((row.rtt_us, row.connect_us), (None, None));
    }
    assert!(unfinished(&all).is_empty());
    let all = rows(&plan(&connect(""), dead, "", ""), 1).unwrap();
    assert_eq!((measured(&all).len(), unfinished(&all).len()), (0, 1));
}

#[test]
fn connect_gives_up_after_its_attempts() {
    let connect = "kind = \"tcp_connect\"\nrepeat = \"once\"\ntimeout = \"200s\"";
    // Five timeouts of a second, then six that double.
    for (length, ended) in [("130s", 0), ("145s", 1)] {
        let text = plan(connect, "loss = \"99.99%\"", "", "").replace("4s", length);
        let all = rows(&text, 1).unwrap();
        let probes = measured(&all);
        assert_eq!((probes.len(), unfinished(&all).len()), (ended, 1 - ended), "{length}");
        let refused = |row: &Probe| row.error.ends_with(": Connection timed out (os error 110)");
        assert!(probes.iter().all(refused), "{probes:?}");
    }
}

#[test]
fn a_lost_syn_is_sent_again() {
    let change = "[[changes]]\nat = \"500ms\"\nset = { \"links.there.loss\" = \"0%\" }\n";
    let connect = "kind = \"tcp_connect\"\nrepeat = \"once\"";
    let probes = run(&plan(connect, "loss = \"99.99%\"", "", change));
    let [row] = &probes[..] else { panic!("{probes:?}") };
    // One timeout, which the kernel's timer wheel rounds up by as much as 64 ms.
    let timeout_us = row.rtt_us.unwrap() - RTT_US;
    assert!((1.0e6..1.065e6).contains(&timeout_us), "{timeout_us} us");
}

#[test]
fn a_fetch_that_fails_keeps_what_it_measured() {
    let page = |bytes| page(bytes, "repeat = \"once\"\ntimeout = \"500ms\"");
    // The path fails after the handshake and before the response.
    let change = "[[changes]]\nat = \"25ms\"\nset = { \"links.back.loss\" = \"99.99%\" }\n";
    let rows = run(&plan(&page(1000), "", "", change));
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert!(row.lost && row.error.starts_with("fetch from 10."), "{row:?}");
    assert!(row.error.ends_with(": timed out"), "{row:?}");
    assert_eq!((row.connect_us, row.ttfb_us, row.total_us), (Some(RTT_US), None, None));
    assert_eq!((row.bytes, row.status), (None, None));
    // Half of the file arrives in time.
    let rows = run(&plan(&page(100_000), "", &line("0.8mbit"), ""));
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert!(row.lost && row.ttfb_us.is_some() && row.total_us.is_none(), "{row:?}");
    assert_eq!(row.status, Some(200));
    let bytes = row.bytes.unwrap();
    assert!((40_000..50_000).contains(&bytes), "{bytes}");
}

#[test]
fn every_congestion_control_delivers_the_file_over_a_lossy_path() {
    for (cc, seed) in ["cubic", "reno", "bbr", "x"].into_iter().zip(1..) {
        let more = if cc == "x" { "[cc.x]\nalgorithm = \"prague\"\n" } else { "" };
        let page = format!(
            "kind = \"http\"\nbytes = \"30000B\"\ncc = \"{cc}\"\nrepeat = \"back-to-back\"\ntimeout = \"3s\""
        );
        let back = line("10mbit") + "\nloss = \"3%\"";
        let text = plan(&page, "loss = \"3%\"", &back, more);
        let all = rows(&text, seed).unwrap();
        let probes = measured(&all);
        assert!(probes.len() > 3, "{cc}: {}", probes.len());
        let is_whole = |row: &Probe| !row.lost && row.bytes == Some(30_000);
        assert!(probes.iter().all(is_whole), "{cc}: {probes:?}");
        let total_us = || probes.iter().filter_map(|row| row.total_us);
        let (least_us, most_us) = (total_us().reduce(f64::min), total_us().reduce(f64::max));
        assert!(most_us.unwrap() > 1.5 * least_us.unwrap(), "{cc}: losses cost time: {probes:?}");
        assert_eq!(all, rows(&text, seed).unwrap(), "{cc}");
        assert_ne!(probes, measured(&rows(&text, seed + 100).unwrap()), "{cc}");
    }
}

#[test]
fn flow_and_fetches_share_the_line() {
    let flow = "[flows.f]\nfrom = \"dst\"\nto = \"src\"\ncc = \"reno\"\n";
    let back = "rate = \"10mbit\"\nqueue = { kind = \"fq_codel\" }";
    let text = plan(&page(200_000, "repeat = \"back-to-back\""), "", back, flow)
        .replace("length = \"4s\"", "length = \"4s\"\nflows = [\"f\"]");
    let all = rows(&text, 1).unwrap();
    let fetched: u64 = measured(&all).iter().filter_map(|row| row.bytes).sum();
    let (mut received, mut sent_pkts) = (0, 0);
    for (_, event) in &all {
        match event.payload.as_ref().unwrap() {
            Payload::FlowSample(row) if row.side() == Side::Receiver => {
                received = row.bytes_received.unwrap();
            }
            Payload::QdiscSample(row) if row.link == "back" => sent_pkts = row.sent_pkts,
            _ => {}
        }
    }
    let capacity_bytes = 10e6 * 4.0 / 8.0 * MSS_BYTES as f64 / 1514.0;
    let (fetched_share, flow_share) =
        (fetched as f64 / capacity_bytes, received as f64 / capacity_bytes);
    assert!(fetched_share > 0.2 && flow_share > 0.4, "{fetched_share} and {flow_share}");
    assert!(fetched_share + flow_share <= 1.0, "{fetched_share} and {flow_share}");
    // Every byte that arrived was in a packet of the link.
    assert!(sent_pkts >= (fetched + received) / MSS_BYTES, "{sent_pkts} packets");
}
