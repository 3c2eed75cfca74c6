//! Reads iperf3's JSON (3.1 to 3.21, `-J` and `--json-stream`). Pure.
//!
//! The output is read member by member, not as one document, because a killed process leaves half a document. Every complete
//! interval counts.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::truncate;
use crate::wire::{self, Side};

mod limits;

pub(super) use limits::MAX_STREAMS;
use limits::{
    MAX_ELEMENT_BYTES, MAX_INTERVALS, MAX_MEMBER_BYTES, is_duration, is_instant, is_size,
};
pub use limits::{UnreadPart, UnreadReason};

/// Numbers the group's data connections by port: a server may not accept them in the order in which they were opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbering {
    /// Data connection `i` has client port `client_port + i`.
    pub client_port: u16,
    /// Number of data connections.
    pub count: u32,
    /// The report comes from the listening end.
    pub listens: bool,
}

/// Report of one end.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// "iperf 3.12".
    pub version: String,
    /// Stream number to its connection.
    pub streams: BTreeMap<u32, Connection>,
    /// Client port of the control connection, if reported (by the listening end).
    pub control_port: Option<u16>,
    /// In the order of time.
    pub intervals: Vec<StreamInterval>,
    /// Stream number to its totals.
    pub totals: BTreeMap<u32, Totals>,
    /// Congestion control of the sending end, if reported.
    pub sender_cc: Option<String>,
    /// Congestion control of the receiving end, if reported.
    pub receiver_cc: Option<String>,
    /// iperf3's error message.
    pub error: Option<String>,
    /// The report is complete, not truncated.
    pub complete: bool,
    /// When the test began, in seconds since 1970 on that end's clock (resolution: a millisecond from 3.20 on, before a second).
    pub began_s: Option<f64>,
    /// Time zero on that end's CLOCK_MONOTONIC, which only ccbench's generator reports.
    pub zero_ns: Option<u64>,
    /// Whether the listening end sends, if reported.
    pub reverse: Option<bool>,
    /// Whether the report is known to be the listening end's.
    pub listens: bool,
    /// Parts that were not read, in the order of the document.
    pub unread: Vec<UnreadPart>,
    sockets: BTreeMap<i64, u32>,
}

/// Local address and port, remote address and port.
pub(super) type Addresses = (String, u16, String, u16);

/// Addresses and ports of a data connection, as this end sees them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Connection {
    /// iperf3's file descriptor: only a label within one report.
    pub socket: i64,
    /// This end's address.
    pub local_host: String,
    /// This end's port.
    pub local_port: u16,
    /// The other end's address.
    pub remote_host: String,
    /// The other end's port.
    pub remote_port: u16,
}

/// One interval of one stream.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StreamInterval {
    /// Stream number.
    pub stream: u32,
    /// The numbers.
    pub values: IntervalValues,
}

/// An interval's numbers, named as iperf3 names them; times in seconds since the stream's start.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct IntervalValues {
    /// iperf3's file descriptor: only a label within one report.
    pub socket: i64,
    /// Start.
    #[serde(default = "missing")]
    pub start: f64,
    /// End.
    #[serde(default = "missing")]
    pub end: f64,
    /// Actual length, seconds.
    #[serde(default = "missing")]
    pub seconds: f64,
    /// Bytes moved in it.
    #[serde(default = "missing")]
    pub bytes: f64,
    /// Retransmissions in it.
    pub retransmits: Option<f64>,
    /// Bytes.
    pub snd_cwnd: Option<f64>,
    /// Bytes.
    pub snd_wnd: Option<f64>,
    /// Microseconds.
    pub rtt: Option<f64>,
    /// Microseconds.
    pub rttvar: Option<f64>,
    /// Bytes.
    pub pmtu: Option<f64>,
    /// Packets.
    pub reorder: Option<f64>,
    /// Milliseconds (UDP).
    pub jitter_ms: Option<f64>,
    /// UDP.
    pub lost_packets: Option<f64>,
    /// UDP.
    pub packets: Option<f64>,
    /// It belongs to the omitted start of the test (`--omit`).
    pub omitted: bool,
    /// Whether this end sent it, if reported (3.7 and newer).
    pub sender: Option<bool>,
}

/// The placeholder of a missing field that every version of iperf3 writes. It is out of every range.
fn missing() -> f64 {
    f64::NAN
}

impl IntervalValues {
    /// A row of table `intervals`, of stream `stream` of a flow group.
    pub fn row(&self, group: &str, side: Side, stream: u32, at_ns: u64) -> wire::Interval {
        let whole = |value: Option<f64>| value.map(|v| v as u64);
        let small = |value: Option<f64>| value.map(|v| v as u32);
        wire::Interval {
            flow_id: format!("{group}/{stream}"),
            group: group.to_owned(),
            side: side.into(),
            stream,
            at_ns,
            start_s: self.start,
            end_s: self.end,
            seconds: self.seconds,
            bytes: self.bytes as u64,
            // An interval of less than a nanosecond has no rate.
            bits_per_second: if self.seconds >= 1e-9 {
                self.bytes * 8.0 / self.seconds
            } else {
                0.0
            },
            retransmits: small(self.retransmits),
            snd_cwnd_bytes: whole(self.snd_cwnd),
            snd_wnd_bytes: whole(self.snd_wnd),
            rtt_us: small(self.rtt),
            rttvar_us: small(self.rttvar),
            pmtu_bytes: small(self.pmtu),
            reorder_pkts: small(self.reorder),
            jitter_ms: self.jitter_ms,
            lost_packets: whole(self.lost_packets),
            packets: whole(self.packets),
            omitted: self.omitted,
        }
    }
}

/// A stream's totals.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Totals {
    /// Written by the sender, if this end knows.
    pub sent_bytes: u64,
    /// Read by the receiver, if this end knows.
    pub received_bytes: u64,
    /// The stream's end, seconds since its start.
    pub end_s: f64,
    /// When the last byte of a finite flow was read, seconds since its start; only ccbench's generator reports it.
    pub completed_s: Option<f64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Start {
    connected: Vec<Connection>,
    version: String,
    timestamp: Timestamp,
    monotonic_ns: Option<u64>,
    accepted_connection: Peer,
    test_start: TestStart,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Timestamp {
    timesecs: Option<f64>,
    timemillisecs: Option<f64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct TestStart {
    reverse: Option<u8>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Peer {
    port: Option<u16>,
}

#[derive(Deserialize)]
struct Interval {
    streams: Vec<IntervalValues>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct EndReport {
    streams: Vec<EndStream>,
    sender_tcp_congestion: Option<String>,
    receiver_tcp_congestion: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct EndStream {
    sender: EndSide,
    receiver: EndSide,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct EndSide {
    socket: i64,
    #[serde(default = "missing")]
    end: f64,
    #[serde(default = "missing")]
    bytes: f64,
    completed: Option<f64>,
}

#[derive(Deserialize)]
struct StreamLine {
    event: String,
    #[serde(default)]
    data: serde_json::Value,
}

impl Report {
    /// Reads the output of `-J`: whole, cut anywhere, or with text around it. Never fails; parts that cannot be read are missing
    /// and listed in [`Report::unread`].
    pub fn from_json(text: &[u8], numbering: Numbering) -> Self {
        let mut report = Self::default();
        let Some(open) = text.iter().position(|&b| b == b'{') else {
            return report;
        };
        for member in members(&text[open + 1..]) {
            let at = open + 1 + member.at;
            match (member.key, member.complete) {
                (b"start", true) => match decode(member.value, MAX_MEMBER_BYTES) {
                    Some(start) => report.on_start(start, at, numbering),
                    None => report.mark_unread(at, UnreadReason::Member("start")),
                },
                (b"intervals", _) => {
                    for (after, element) in elements(member.value) {
                        match decode(element, MAX_ELEMENT_BYTES) {
                            Some(interval) => report.on_interval(interval, at + after),
                            None => report.mark_unread(at + after, UnreadReason::Interval),
                        }
                    }
                }
                (b"end", true) => match decode(member.value, MAX_MEMBER_BYTES) {
                    Some(end) => report.on_end(end, at),
                    None => report.mark_unread(at, UnreadReason::Member("end")),
                },
                (b"error", true) => match decode::<String>(member.value, MAX_MEMBER_BYTES) {
                    // An end that has failed may report more errors while it exits: the first one is the cause.
                    Some(error) => report.error = report.error.or_else(|| Some(truncate(&error))),
                    None => report.mark_unread(at, UnreadReason::Member("error")),
                },
                _ => {}
            }
        }
        report
    }

    /// Reads one line of `--json-stream`; returns how many intervals it added, or `None` if the line or a value in it
    /// cannot be read. The other values are kept.
    pub fn on_line(&mut self, line: &[u8], numbering: Numbering) -> Option<usize> {
        let line = decode::<StreamLine>(line, MAX_ELEMENT_BYTES)?;
        let (before, unread) = (self.intervals.len(), self.unread.len());
        match line.event.as_str() {
            "start" => self.on_start(serde_json::from_value(line.data).ok()?, 0, numbering),
            "interval" => self.on_interval(serde_json::from_value(line.data).ok()?, 0),
            "end" => self.on_end(serde_json::from_value(line.data).ok()?, 0),
            "error" => self.error = Some(truncate(line.data.as_str()?)),
            _ => {}
        }
        let whole = self.unread.len() == unread;
        // The caller counts the line.
        self.unread.truncate(unread);
        whole.then(|| self.intervals.len() - before)
    }

    fn mark_unread(&mut self, at: usize, reason: UnreadReason) {
        self.unread.push(UnreadPart { at, reason });
    }

    fn on_start(&mut self, start: Start, at: usize, numbering: Numbering) {
        self.version = truncate(&start.version);
        let millis = start.timestamp.timemillisecs.map(|ms| ms / 1e3);
        let began_s = millis.or(start.timestamp.timesecs);
        self.began_s = began_s.filter(|&s| is_instant(s));
        // CLOCK_MONOTONIC counts from the boot.
        self.zero_ns = start.monotonic_ns.filter(|&ns| is_instant(ns as f64 / 1e9));
        if (self.began_s, self.zero_ns) != (began_s, start.monotonic_ns) {
            self.mark_unread(at, UnreadReason::TestTime);
        }
        if start.connected.len() > MAX_STREAMS {
            self.mark_unread(at, UnreadReason::TooManyStreams);
        }
        self.reverse = start.test_start.reverse.map(|reverse| reverse != 0);
        self.listens = start.accepted_connection.port.is_some();
        self.control_port = start.accepted_connection.port;
        let connected = start.connected.into_iter().take(MAX_STREAMS).map(Connection::limited);
        for (position, connection) in connected.enumerate() {
            let port =
                if numbering.listens { connection.remote_port } else { connection.local_port };
            let stream = match u32::from(port).checked_sub(u32::from(numbering.client_port)) {
                Some(offset) if offset < numbering.count => offset,
                _ => u32::try_from(position).unwrap_or(u32::MAX),
            };
            self.sockets.insert(connection.socket, stream);
            self.streams.insert(stream, connection);
        }
    }

    fn stream_of(&self, socket: i64, position: usize) -> u32 {
        let fallback = u32::try_from(position).unwrap_or(u32::MAX);
        self.sockets.get(&socket).copied().unwrap_or(fallback)
    }

    fn on_interval(&mut self, interval: Interval, at: usize) {
        if interval.streams.len() > MAX_STREAMS {
            self.mark_unread(at, UnreadReason::TooManyStreams);
        }
        for (position, values) in interval.streams.into_iter().take(MAX_STREAMS).enumerate() {
            let stream = self.stream_of(values.socket, position);
            if let Some(reason) = self.add(stream, values) {
                self.mark_unread(at, reason);
            }
        }
    }

    /// Adds an interval. Returns why it, or a value of it, was not read.
    pub(super) fn add(&mut self, stream: u32, mut values: IntervalValues) -> Option<UnreadReason> {
        let wrong = match values.limit() {
            Ok(wrong) => wrong,
            Err(wrong) => return Some(wrong),
        };
        if self.intervals.len() >= MAX_INTERVALS {
            return Some(UnreadReason::TooManyIntervals);
        }
        // An end that the other end has terminated prints its last interval twice. With `--bidir`, each stream has one direction.
        let last = self.intervals.iter().rev().find(|i| i.stream == stream);
        if last.is_none_or(|i| i.values.end < values.end || i.values.start < values.start) {
            self.intervals.push(StreamInterval { stream, values });
        }
        wrong
    }

    /// Sets a stream's addresses and ports, from a text report.
    pub(super) fn connect(&mut self, stream: u32, (local, from, remote, to): Addresses) {
        let connection = Connection {
            socket: 0,
            local_host: local,
            local_port: from,
            remote_host: remote,
            remote_port: to,
        };
        self.streams.insert(stream, connection);
    }

    /// Adds the time after the last whole interval, up to `end_s` on the report's own clock. An end that the other end has
    /// terminated reports this time in its totals, but not in its intervals.
    pub fn add_rest(&mut self, sends: bool, end_s: f64) {
        for (&stream, totals) in &self.totals {
            let total = if sends { totals.sent_bytes } else { totals.received_bytes };
            let own = || self.intervals.iter().filter(|i| i.stream == stream);
            let bytes = total as f64 - own().map(|i| i.values.bytes).sum::<f64>();
            let start = own().next_back().map_or(0.0, |i| i.values.end);
            if bytes > 0.0 && start < end_s {
                let seconds = end_s - start;
                let values =
                    IntervalValues { start, end: end_s, seconds, bytes, ..Default::default() };
                self.intervals.push(StreamInterval { stream, values });
            }
        }
    }

    fn on_end(&mut self, end: EndReport, at: usize) {
        self.complete = true;
        self.sender_cc = end.sender_tcp_congestion.as_deref().map(truncate);
        self.receiver_cc = end.receiver_tcp_congestion.as_deref().map(truncate);
        if end.streams.len() > MAX_STREAMS {
            self.mark_unread(at, UnreadReason::TooManyStreams);
        }
        for (position, stream) in end.streams.into_iter().take(MAX_STREAMS).enumerate() {
            let sides = [&stream.sender, &stream.receiver];
            let is_valid = |side: &EndSide| {
                let times = [Some(side.end), side.completed];
                is_size(side.bytes) && times.into_iter().flatten().all(is_duration)
            };
            if !sides.into_iter().all(is_valid) {
                self.mark_unread(at, UnreadReason::StreamTotal);
                continue;
            }
            let number = self.stream_of(stream.sender.socket, position);
            let totals = Totals {
                sent_bytes: stream.sender.bytes as u64,
                received_bytes: stream.receiver.bytes as u64,
                end_s: stream.sender.end.max(stream.receiver.end),
                completed_s: stream.receiver.completed,
            };
            self.totals.insert(number, totals);
        }
    }
}

/// Reads a value of at most this length. Numbers in JSON are always finite.
fn decode<T: DeserializeOwned>(text: &[u8], max_bytes: usize) -> Option<T> {
    (text.len() <= max_bytes).then(|| serde_json::from_slice(text).ok())?
}

/// Length of the JSON value at the beginning of `text`, and whether all of it is there.
pub(super) fn document(text: &[u8]) -> (usize, bool) {
    let (value, whole) = value_at(text);
    (value.len(), whole)
}

/// A member of the document's outermost object.
struct Member<'a> {
    /// Offset of its value, in bytes after the opening brace.
    at: usize,
    key: &'a [u8],
    value: &'a [u8],
    complete: bool,
}

/// The members of an object whose opening brace is already read; the last one may be cut.
fn members(text: &[u8]) -> Vec<Member<'_>> {
    let mut found = Vec::new();
    let mut rest = text;
    loop {
        rest = skip(rest, b", \t\r\n");
        if rest.first() != Some(&b'"') {
            return found;
        }
        let (key, whole) = value_at(rest);
        let after = skip(&rest[key.len()..], b" \t\r\n");
        if !whole || key.len() < 2 || after.first() != Some(&b':') {
            return found;
        }
        let after = skip(&after[1..], b" \t\r\n");
        let (value, complete) = value_at(after);
        let at = text.len() - after.len();
        found.push(Member { at, key: &key[1..key.len() - 1], value, complete });
        if !complete {
            return found;
        }
        rest = &after[value.len()..];
    }
}

/// The complete elements of an array that may be cut, and where each begins.
fn elements(array: &[u8]) -> Vec<(usize, &[u8])> {
    let mut found = Vec::new();
    let Some((b'[', mut rest)) = array.split_first() else {
        return found;
    };
    loop {
        rest = skip(rest, b", \t\r\n");
        if rest.first() != Some(&b'{') {
            return found;
        }
        let (element, complete) = value_at(rest);
        if !complete {
            return found;
        }
        found.push((array.len() - rest.len(), element));
        rest = &rest[element.len()..];
    }
}

fn skip<'a>(text: &'a [u8], what: &[u8]) -> &'a [u8] {
    &text[text.iter().position(|b| !what.contains(b)).unwrap_or(text.len())..]
}

/// The JSON value at the beginning of `text`, and whether all of it is there. A bare number or word at
/// the very end counts as cut.
fn value_at(text: &[u8]) -> (&[u8], bool) {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for (at, &byte) in text.iter().enumerate() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => {
                    in_string = false;
                    if depth == 0 {
                        return (&text[..=at], true);
                    }
                }
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth <= 1 => {
                // Depth 0: a bare value ended by its container's bracket.
                return if depth == 0 { (&text[..at], at > 0) } else { (&text[..=at], true) };
            }
            b'}' | b']' => depth -= 1,
            b',' | b' ' | b'\t' | b'\r' | b'\n' if depth == 0 => return (&text[..at], at > 0),
            _ => {}
        }
    }
    (text, false)
}

#[cfg(test)]
mod tests;
