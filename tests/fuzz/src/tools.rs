//! Fuzzes the output of other tools, and the generator's report, which the same parser reads.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use ccbench_agent::fuzzing::{Connection, report_lines};
use ccbench_proto::tools::gather::{Source, gather};
use ccbench_proto::tools::iperf3::{Numbering, Report};
use ccbench_proto::tools::stamp::BaseDate;
use ccbench_proto::tools::text::{self, Found, MAX_ROWS, MAX_UNREAD};
use ccbench_proto::wire::{FlowSample, Side};
use prost::Message as _;

/// Separates files about the same connections.
const NEXT_FILE: u8 = 0;

/// Files of ss, iperf3, ping and flent, and qlog files.
pub fn files(data: &[u8]) {
    let source = |(number, bytes): (usize, &[u8])| Source {
        stem: format!("file-{number}"),
        node: format!("node-{}", number % 2),
        found: found(bytes),
    };
    let files = data.split(|&byte| byte == NEXT_FILE).take(4);
    let sources: Vec<Source> = files.enumerate().map(source).collect();
    let gathered = gather(&sources, &BTreeMap::from([("5201".to_owned(), "bulk".to_owned())]));
    let samples: usize = sources.iter().map(|source| source.found.sockets.len()).sum();
    assert!(
        gathered.rows.len() >= samples + sources.len(),
        "a sample of each row, an event of each file"
    );
}

fn found(bytes: &[u8]) -> Found {
    let found = text::read(bytes, BaseDate::default());
    let lines = bytes.split(|&byte| byte == b'\n').count() as u64;
    assert!(found.unread.len() <= MAX_UNREAD);
    assert!(found.unread.iter().all(|unread| (1..=lines).contains(&unread.line)));
    assert!(found.unread.is_sorted_by_key(|unread| unread.line));
    assert!(found.sockets.iter().all(|row| (1..=lines).contains(&row.line)));
    assert!(found.sockets.len() <= MAX_ROWS.min(bytes.len()));
    let intervals: usize = found.tests.iter().map(|test| test.report.intervals.len()).sum();
    assert!(intervals <= 2 * bytes.len());
    let answers: usize = found.pings.iter().map(|ping| ping.replies.len()).sum();
    assert!(answers <= bytes.len());
    found
}

/// A report of `iperf3 -J`.
pub fn iperf3(data: &[u8]) {
    for listens in [false, true] {
        let numbering = Numbering { client_port: 10_000, count: 4, listens };
        let report = Report::from_json(data, numbering);
        assert!(report.unread.iter().all(|part| part.at < data.len()));
        assert!(report.unread.is_sorted_by_key(|part| part.at));
        use_report(report, data.len());
    }
}

/// Lines of `iperf3 --json-stream`.
pub fn iperf3_lines(data: &[u8]) {
    let numbering = Numbering { client_port: 10_000, count: 4, listens: false };
    let mut report = Report::default();
    for line in data.split(|&byte| byte == b'\n') {
        let before = report.intervals.len();
        let added = report.on_line(line, numbering);
        assert!(added.is_none_or(|added| report.intervals.len() - before == added));
    }
    use_report(report, data.len());
}

fn use_report(mut report: Report, bytes: usize) {
    assert!(report.intervals.len() <= bytes);
    report.add_rest(true, 10.0);
    for interval in &report.intervals {
        let values = &interval.values;
        assert!(
            [values.start, values.end, values.seconds, values.bytes].iter().all(|v| v.is_finite())
        );
        let _ = values.row("bulk", Side::Sender, interval.stream, u64::MAX);
    }
}

/// The report of ccbench's generator about connections with arbitrary counters, all of which the controller must read. Input: samples, each
/// of which follows its length.
pub fn generator_report(mut data: &[u8]) {
    let mut samples = Vec::new();
    while let Ok(sample) = FlowSample::decode_length_delimited(&mut data) {
        samples.push(sample);
        if samples.len() == 8 {
            break;
        }
    }
    let address = |port| SocketAddr::from(([10, 0, 0, 1], port));
    let connections: Vec<Connection> = samples
        .chunks(4)
        .zip(10_000..)
        .map(|(samples, port)| (address(port), address(5201), samples.to_vec()))
        .collect();
    let numbering = Numbering { client_port: 10_000, count: 2, listens: false };
    let mut report = Report::default();
    for line in report_lines(&connections, (false, true), 1_000, 100_000_000) {
        // A counter of the kernel may exceed what is read from iperf3. Such a line counts as unread.
        let _ = report.on_line(line.as_bytes(), numbering);
    }
    assert_eq!(report.streams.len(), connections.len());
    use_report(report, 1 << 20);
}
