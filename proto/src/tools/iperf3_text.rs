//! Reads iperf3's text into the same report as its JSON. Pure.
//!
//! Text is rounded to three digits; bytes come from "Transfer". A new report begins with each test, so one file may hold several.
//! If lines have time stamps (ts(1)), time zero is the earliest that they allow: iperf3 may have buffered a line, but never prints
//! it before the end of its interval.

use super::iperf3::{Addresses, Connection, IntervalValues, MAX_STREAMS, Report};
use super::ss::address;
use super::{stamp, truncate};

/// Tests, in the order of the file.
#[derive(Debug, Default)]
pub struct Tests {
    tests: Vec<Test>,
    /// A total whose "sender" or "receiver" is on the next line, where a text was wrapped; and its own line.
    wrapped: Option<(u64, u32, IntervalValues)>,
    /// Lines of totals without "sender" or "receiver".
    endless: Vec<u64>,
    /// The previous line was a separator: between intervals of several streams, or between intervals and the summary, which has a
    /// heading.
    separated: bool,
}

/// One test.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Test {
    /// Its first line, from 1.
    pub line: u64,
    /// The report; streams are numbered in their order.
    pub report: Report,
    /// Port of the server, if the text has it.
    server_port: Option<u16>,
    /// iperf3's numbers of the streams, in order.
    ids: Vec<u32>,
    in_summary: bool,
    /// Totals of the two ends: stream, `true` for the sender's, values.
    pub totals: Vec<(u32, bool, IntervalValues)>,
    /// The latest time zero that the lines' time stamps allow, in seconds since 1970; `report.began_s` is the test's own value.
    pub stamped_s: Option<f64>,
}

/// Lines of iperf3 that contain nothing for a table.
const KNOWN: [&str; 21] = [
    "- - - -",
    "-----",
    "[ ID]",
    "[ID]",
    "[SUM]",
    "iperf Done.",
    "Linux ",
    "Control connection MSS",
    "Cookie:",
    "Starting Test:",
    "Test Complete.",
    "CPU Utilization:",
    "Target Bitrate:",
    "TCP MSS:",
    "Reverse mode,",
    "Server output:",
    "Server JSON output:",
    "iperf3: getsockopt",
    "warning:",
    "WARNING:",
    "Session ended",
];

impl Tests {
    /// Takes a line without its time stamp; `false` if iperf3 did not write it.
    pub fn take(&mut self, number: u64, at_ns: Option<u64>, text: &str) -> bool {
        let line = text.trim();
        let separated = std::mem::take(&mut self.separated);
        if let Some((at, stream, values)) = self.wrapped.take() {
            if let Some(sender) = end(line) {
                self.test(number).total(stream, sender, values);
                return true;
            }
            self.endless.push(at);
        }
        if let Some(port) = new_test(line) {
            // Server and client both print more than one such line before the first stream.
            if self.tests.last().is_none_or(|test| !test.ids.is_empty() || test.is_over()) {
                self.tests.push(Test { line: number, ..Default::default() });
            }
            let listens = !line.starts_with("Connecting");
            let test = self.test(number);
            test.report.listens |= listens;
            test.server_port = port.or(test.server_port);
            return true;
        }
        if let Some(version) = line.strip_prefix("iperf 3") {
            self.test(number).report.version = truncate(&format!("iperf 3{version}"));
            return true;
        }
        if let Some(rest) = line.strip_prefix('[')
            && let Some((id, rest)) = rest.split_once(']')
            && let Ok(id) = id.trim().parse::<u32>()
        {
            return self.stream_line(number, at_ns, id, rest);
        }
        self.other(number, line, separated)
    }

    fn other(&mut self, number: u64, line: &str, separated: bool) -> bool {
        let after = |key: &str| line.strip_prefix(key).map(|rest| truncate(rest.trim()));
        if let Some(error) = after("iperf3: error - ").or_else(|| after("iperf3: interrupt - ")) {
            let report = &mut self.test(number).report;
            report.error = report.error.take().or(Some(error));
        } else if let Some(cc) = after("snd_tcp_congestion ") {
            self.test(number).report.sender_cc = Some(cc);
        } else if let Some(cc) = after("rcv_tcp_congestion ") {
            self.test(number).report.receiver_cc = Some(cc);
        } else if let Some(at) = after("Time: ").and_then(|date| stamp::of_date(&date)) {
            self.test(number).report.began_s = Some(at as f64 / 1e9);
        } else {
            if line.starts_with("- - - -") {
                // An excerpt may hold the last lines of several tests.
                if self.test(number).is_over() {
                    self.tests.push(Test { line: number, ..Default::default() });
                }
                self.separated = true;
            }
            if separated && (line.starts_with("[ ID]") || line.starts_with("[ID]")) {
                self.test(number).in_summary = true;
            }
            if line.starts_with("Reverse mode") {
                self.test(number).report.reverse = Some(true);
            }
            return KNOWN.iter().any(|known| line.starts_with(known.trim()));
        }
        true
    }

    fn test(&mut self, number: u64) -> &mut Test {
        if self.tests.is_empty() {
            self.tests.push(Test { line: number, ..Default::default() });
        }
        let last = self.tests.len() - 1;
        &mut self.tests[last]
    }

    /// Takes a line that begins with a stream's number.
    fn stream_line(&mut self, number: u64, at_ns: Option<u64>, id: u32, rest: &str) -> bool {
        if let Some(connection) = connection(rest) {
            // A new connection after results begins a server's next test.
            if self.test(number).is_over() {
                self.tests.push(Test { line: number, ..Default::default() });
            }
            let test = self.test(number);
            let Some(stream) = test.stream(id) else { return false };
            let (local_port, remote_port) = (connection.1, connection.3);
            test.report.connect(stream, connection);
            if test.server_port.is_none() {
                test.server_port = Some(if test.report.listens { local_port } else { remote_port });
            }
            return true;
        }
        let Some(read) = interval(rest) else { return false };
        let test = self.test(number);
        let Some(stream) = test.stream(id) else { return false };
        match read.end {
            Some(sender) => test.total(stream, sender, read.values),
            None if test.in_summary => self.wrapped = Some((number, stream, read.values)),
            None => {
                test.stamp(at_ns, read.values.end);
                return test.report.add(stream, read.values).is_none();
            }
        }
        true
    }

    /// All tests that are not empty, and the lines of totals without "sender" or "receiver".
    pub fn finish(mut self) -> (Vec<Test>, Vec<u64>) {
        self.endless.extend(self.wrapped.map(|(at, ..)| at));
        let holds = |test: &Test| !test.ids.is_empty() || test.report.error.is_some();
        (self.tests.into_iter().filter(holds).collect(), self.endless)
    }
}

impl Test {
    /// A test whose report is not text.
    pub(super) fn new(line: u64, report: Report) -> Self {
        Self { line, report, ..Default::default() }
    }

    /// Records the time stamp of a line about an interval that ends this many seconds after time zero. The stamp may be later than
    /// the interval's end, but never earlier.
    pub(super) fn stamp(&mut self, at_ns: Option<u64>, end_s: f64) {
        if let Some(at_ns) = at_ns {
            let zero_s = at_ns as f64 / 1e9 - end_s;
            self.stamped_s = Some(self.stamped_s.map_or(zero_s, |s| s.min(zero_s)));
        }
    }

    /// Time zero in seconds since 1970: from the time stamps, otherwise from the report.
    pub fn zero_s(&self) -> Option<f64> {
        self.stamped_s.or(self.report.began_s)
    }

    /// Whether the listening end wrote it.
    pub fn listens(&self) -> bool {
        self.report.listens
    }

    /// Port of the server, if it is known.
    pub fn server_port(&self) -> Option<u16> {
        let first = self.report.streams.values().next();
        let port = |c: &Connection| if self.report.listens { c.local_port } else { c.remote_port };
        self.server_port.or_else(|| first.map(port))
    }

    fn is_over(&self) -> bool {
        !self.totals.is_empty()
    }

    /// The number of the stream with this id; `None` if the test has too many streams.
    fn stream(&mut self, id: u32) -> Option<u32> {
        let at = self.ids.iter().position(|known| *known == id).or_else(|| {
            self.ids.push(id);
            (self.ids.len() <= MAX_STREAMS).then_some(self.ids.len() - 1)
        });
        self.ids.truncate(MAX_STREAMS);
        at.map(|at| at as u32)
    }

    fn total(&mut self, stream: u32, sender: bool, values: IntervalValues) {
        let totals = self.report.totals.entry(stream).or_default();
        totals.end_s = totals.end_s.max(values.end);
        let bytes = values.bytes as u64;
        if sender {
            totals.sent_bytes = bytes;
        } else {
            totals.received_bytes = bytes;
        }
        self.report.complete = true;
        self.totals.push((stream, sender, values));
    }
}

/// The server's port in the line that begins a test, if present.
fn new_test(line: &str) -> Option<Option<u16>> {
    let port = |rest: &str| rest.rsplit("port ").next()?.split([' ', ',']).next()?.parse().ok();
    if let Some(rest) = line.strip_prefix("Connecting to host ") {
        return Some(port(rest));
    }
    if let Some(rest) = line.strip_prefix("Server listening on ") {
        return Some(rest.split([' ', ',']).next().and_then(|port| port.parse().ok()));
    }
    line.starts_with("Accepted connection from ").then_some(None)
}

/// ` local 10.0.5.1 port 55042 connected to 10.201.1.1 port 5201`.
fn connection(rest: &str) -> Option<Addresses> {
    let words: Vec<&str> = rest.split_whitespace().collect();
    let [_, from, _, from_port, _, _, to, _, to_port, ..] = words[..] else { return None };
    let right = words[0] == "local" && words[2] == "port" && words[4..6] == ["connected", "to"];
    let ends = right.then(|| Some((address(from)?, address(to)?)))??;
    Some((ends.0.to_string(), from_port.parse().ok()?, ends.1.to_string(), to_port.parse().ok()?))
}

struct Read {
    values: IntervalValues,
    /// The line is a total, of the sender or the receiver.
    end: Option<bool>,
}

fn end(line: &str) -> Option<bool> {
    match line {
        "sender" => Some(true),
        "receiver" => Some(false),
        _ => None,
    }
}

/// An interval or a total whose values are in range: `   0.00-0.10   sec  1.25 MBytes   104 Mbits/sec    0    212 KBytes`.
fn interval(rest: &str) -> Option<Read> {
    let (role, rest) = match rest.strip_prefix('[') {
        Some(rest) => {
            let (role, rest) = rest.split_once(']')?;
            (Some(role.starts_with("TX")), rest)
        }
        None => (None, rest),
    };
    let mut words: Vec<&str> = rest.split_whitespace().collect();
    let mut read =
        Read { values: IntervalValues { sender: role, ..Default::default() }, end: None };
    if words.last() == Some(&"(omitted)") {
        words.pop();
        read.values.omitted = true;
    }
    if let Some(sender) = words.last().and_then(|last| end(last)) {
        words.pop();
        read.end = Some(sender);
    }
    let ["sec", bytes, unit, _, rate, more @ ..] = words.get(1..)? else { return None };
    let (start, stop) = words[0].split_once('-')?;
    let values = &mut read.values;
    (values.start, values.end) = (number(start)?, number(stop)?);
    values.seconds = values.end - values.start;
    values.bytes = number(bytes)? * unit_bytes(unit)?;
    if !(rate.ends_with("bits/sec") || rate.ends_with("Bytes/sec")) || values.seconds < 0.0 {
        return None;
    }
    rest_of_interval(values, more)?;
    matches!(values.limit(), Ok(None)).then_some(read)
}

/// Reads the fields after the rate: retransmissions and window of a TCP sender, jitter and losses of UDP.
fn rest_of_interval(values: &mut IntervalValues, more: &[&str]) -> Option<()> {
    match more {
        [] => {}
        [count] => {
            // Retransmissions of a TCP sender, or datagrams of a UDP sender: both are counts.
            values.retransmits = Some(number(count)?);
        }
        [jitter, "ms", lost_of_all, ..] => {
            let (lost, all) = lost_of_all.split_once('/')?;
            values.jitter_ms = Some(number(jitter)?);
            (values.lost_packets, values.packets) = (Some(number(lost)?), Some(number(all)?));
        }
        [count, window, unit, ..] => {
            values.retransmits = Some(number(count)?);
            values.snd_cwnd = Some(number(window)? * unit_bytes(unit)?);
        }
        _ => return None,
    }
    Some(())
}

fn unit_bytes(unit: &str) -> Option<f64> {
    Some(match unit {
        "Bytes" => 1.0,
        "KBytes" => 1024.0,
        "MBytes" => 1_048_576.0,
        "GBytes" => 1_073_741_824.0,
        "TBytes" => 1_099_511_627_776.0,
        _ => return None,
    })
}

fn number(text: &str) -> Option<f64> {
    let right = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    right.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests;
