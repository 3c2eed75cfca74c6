//! Merges several files about the same connections into the rows of one trial. Pure.
//!
//! A flow is a connection, identified by the client's and the server's address and port, which `ss` and iperf3 both print.
//! Connections to one server are a group. iperf3's control connection is the one that iperf3 does not list as a stream, otherwise
//! the one that its process opened first, otherwise one that carries next to nothing while others carry data. flent and qlog files
//! have no addresses, but name their flows.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

use super::found::Found;
use super::iperf3::{Connection, IntervalValues};
use super::iperf3_text::Test;
use super::ping;
use super::ss::{Endpoint, Row, Socket, address};
use crate::event::{Import, Kind, NoData};
use crate::wire::{self, Role, SampleSource, Side, run_event::Payload};

mod named;
mod roles;

use roles::{ConnectionNames, Connections};
pub use roles::{Key, Names};

/// A file that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// Its name without directory and extension.
    pub stem: String,
    /// Where it was written.
    pub node: String,
    /// Its contents.
    pub found: Found,
}

/// The rows of one trial. Clocks are UTC: a row's `at_ns` is nanoseconds since 1970.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MergedFiles {
    /// The earliest time in the files; one second after 1970-01-01 if there is none.
    pub begin_ns: u64,
    /// The latest.
    pub end_ns: u64,
    /// Every node's rows.
    pub rows: Vec<(String, Payload)>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

const SECOND_NS: u64 = 1_000_000_000;
/// The group and flow of samples of unknown sockets.
const UNKNOWN: &str = "unknown";

/// Merges the files. `names` maps a server's port, or its address and port, to a group's name.
pub fn gather<S: Borrow<Source>>(sources: &[S], names: &Names) -> MergedFiles {
    let sources: Vec<&Source> = sources.iter().map(Borrow::borrow).collect();
    let connections = Connections::new(&sources, names);
    let named = connections.named(names);
    let mut out = MergedFiles { begin_ns: begin_ns(&sources), ..Default::default() };
    let mut flows: BTreeMap<(String, Key, Side), wire::Flow> = BTreeMap::new();
    let mut named_flows = named::Flows::new();
    let has_several =
        |tool: &str| sources.iter().filter(|source| source.found.named.tool == tool).count() > 1;
    let several = named::SeveralFiles { flents: has_several("flent"), qlogs: has_several("qlog") };
    for source in sources {
        out.notes.extend(timeless(source));
        let mut last: BTreeMap<(Key, Side), u64> = BTreeMap::new();
        for row in &source.found.sockets {
            let end = row.socket.as_ref().map(|socket| {
                let key = connections.key(socket);
                (key, connections.side(key, socket.local))
            });
            let sample = sample(row, end, &named, &mut last);
            if let Some((key, side)) = end {
                let flow = flow(&mut flows, &named, &connections, source, key, side);
                take_sample(flow, &sample, out.begin_ns);
            }
            out.put(&source.node, sample.at_ns, Payload::FlowSample(sample));
        }
        for (number, test) in source.found.tests.iter().enumerate() {
            let place = Place { source, number, named: &named, connections: &connections };
            place.test(test, &mut flows, &mut out);
        }
        pings(source, &mut out);
        named::rows(source, several, &mut named_flows, &mut out);
        let event = event(source);
        out.rows.push((source.node.clone(), event));
    }
    out.rows.extend(flows.into_iter().map(|((node, _, _), flow)| (node, Payload::Flow(flow))));
    out.rows
        .extend(named_flows.into_iter().map(|((node, _, _), flow)| (node, Payload::Flow(flow))));
    out
}

impl MergedFiles {
    fn put(&mut self, node: &str, at_ns: u64, row: Payload) {
        self.end_ns = self.end_ns.max(at_ns);
        self.rows.push((node.to_owned(), row));
    }
}

/// The earliest instant of all.
fn begin_ns(sources: &[&Source]) -> u64 {
    let nanos = |seconds: f64| (seconds.max(0.0) * 1e9) as u64;
    let of = |source: &Source| {
        let sockets = source.found.sockets.iter().filter_map(|row| row.at_ns).min();
        let tests = source.found.tests.iter().filter_map(|test| test.zero_s().map(nanos)).min();
        let pings = source.found.pings.iter().filter_map(ping_begin).min();
        let named = source.found.named.rows.iter().filter_map(named::begin_ns).min();
        [sockets, tests, pings, named].into_iter().flatten().min()
    };
    sources.iter().filter_map(|source| of(source)).min().unwrap_or(SECOND_NS)
}

/// The note about samples without a time.
fn timeless(source: &Source) -> Option<String> {
    let count = source.found.sockets.iter().filter(|row| row.at_ns.is_none()).count();
    (count > 0).then(|| {
        format!(
            "{}: {count} of {} samples of ss have no timestamp, so they count in no phase and in no phase's mean \
             (next time, run ss ... | ts '%.s')",
            source.stem,
            source.found.sockets.len()
        )
    })
}

fn sample(
    row: &Row,
    end: Option<(Key, Side)>,
    named: &BTreeMap<Key, ConnectionNames>,
    last: &mut BTreeMap<(Key, Side), u64>,
) -> wire::FlowSample {
    let mut sample = row.info.sample.clone();
    sample.at_ns = row.at_ns.unwrap_or(0);
    sample.set_sample_src(SampleSource::Ss);
    let name = end.and_then(|(key, _)| named.get(&key));
    let unknown = || UNKNOWN.to_owned();
    sample.flow_id = name.map_or_else(unknown, |name| name.flow_id.clone());
    sample.group = name.map_or_else(unknown, |name| name.group.clone());
    sample.set_role(name.map_or(Role::Unknown, |name| name.role));
    if let (Some(end), Some(socket)) = (end, &row.socket) {
        sample.set_side(end.1);
        sample.state = Some(socket.state);
        (sample.sport, sample.dport) = (socket.local.port.into(), socket.peer.port.into());
        let before = last.insert(end, sample.at_ns);
        sample.gap_ns = before.map_or(0, |before| sample.at_ns.saturating_sub(before));
    }
    sample
}

/// The row of a connection on one node, created at its first appearance.
fn flow<'a>(
    flows: &'a mut BTreeMap<(String, Key, Side), wire::Flow>,
    named: &BTreeMap<Key, ConnectionNames>,
    connections: &Connections,
    source: &Source,
    key: Key,
    side: Side,
) -> &'a mut wire::Flow {
    flows.entry((source.node.clone(), key, side)).or_insert_with(|| {
        let name = named.get(&key);
        let text = |pick: fn(&ConnectionNames) -> &str| name.map_or(UNKNOWN, pick).to_owned();
        wire::Flow {
            flow_id: text(|name| &name.flow_id),
            group: text(|name| &name.group),
            role: name.map_or(Role::Unknown, |name| name.role).into(),
            node_src: connections.node(key.client),
            node_dst: connections.node(key.server),
            src_ip: key.client.ip.to_string(),
            dst_ip: key.server.ip.to_string(),
            sport: key.client.port.into(),
            dport: key.server.port.into(),
            side: side.into(),
            tool: "ss".to_owned(),
            ..Default::default()
        }
    })
}

fn take_sample(flow: &mut wire::Flow, sample: &wire::FlowSample, begin_ns: u64) {
    let bytes =
        if flow.side() == Side::Sender { sample.bytes_acked } else { sample.bytes_received };
    flow.bytes = flow.bytes.max(bytes.unwrap_or(0));
    if flow.side() == Side::Sender && !sample.cc.is_empty() {
        flow.cc_actual.clone_from(&sample.cc);
    }
    if sample.at_ns > 0 {
        let at_s = (sample.at_ns as f64 - begin_ns as f64) / 1e9;
        seen(flow, at_s, at_s);
    }
}

fn seen(flow: &mut wire::Flow, from_s: f64, to_s: f64) {
    flow.start_s = Some(flow.start_s.map_or(from_s, |s| s.min(from_s)));
    flow.stop_s = Some(flow.stop_s.map_or(to_s, |s| s.max(to_s)));
}

/// Where a test's rows belong.
struct Place<'a> {
    source: &'a Source,
    /// The test's number in the file.
    number: usize,
    named: &'a BTreeMap<Key, ConnectionNames>,
    connections: &'a Connections,
}

impl Place<'_> {
    fn test(
        &self,
        test: &Test,
        flows: &mut BTreeMap<(String, Key, Side), wire::Flow>,
        out: &mut MergedFiles,
    ) {
        let zero_ns = match test.zero_s() {
            Some(seconds) => (seconds.max(0.0) * 1e9) as u64,
            None => {
                out.notes.push(format!(
                    "{}: an iperf3 test does not say when it began; it is placed at the trial's beginning",
                    self.source.stem
                ));
                out.begin_ns
            }
        };
        let mut parts: BTreeMap<u32, Part> = BTreeMap::new();
        for (stream, side, values) in intervals(test) {
            parts.entry(stream).or_default().sides.insert(side);
            let at_ns = zero_ns + (values.end.max(0.0) * 1e9) as u64;
            let key = test.report.streams.get(&stream).and_then(|c| stream_key(c, test.listens()));
            let (flow_id, group) = match key.and_then(|key| self.named.get(&key)) {
                Some(name) => (name.flow_id.clone(), name.group.clone()),
                None => self.nameless(stream),
            };
            let mut row = values.row(&group, side, stream, at_ns);
            row.flow_id = flow_id;
            out.put(&self.source.node, at_ns, Payload::Interval(row));
        }
        for interval in &test.report.intervals {
            let part = parts.entry(interval.stream).or_default();
            part.moved_bytes += interval.values.bytes;
            part.end_s = Some(interval.values.end);
        }
        let begin_s = (zero_ns as f64 - out.begin_ns as f64) / 1e9;
        for (stream, connection) in &test.report.streams {
            let Some(key) = stream_key(connection, test.listens()) else { continue };
            let mut part = parts.remove(stream).unwrap_or_default();
            if part.sides.is_empty() {
                part.sides.insert(own_side(test));
            }
            for &side in &part.sides {
                let flow = flow(flows, self.named, self.connections, self.source, key, side);
                take_stream(flow, test, *stream, &part, begin_s);
            }
        }
        if let Some(error) = &test.report.error {
            let row = wire::Event {
                at_ns: zero_ns,
                subject: self.source.stem.clone(),
                message: error.clone(),
                kind: Some(Kind::Iperf3Error(NoData {})),
            };
            // This is not a `flow_error`: many tests end by an interruption.
            out.rows.push((self.source.node.clone(), Payload::Event(row)));
        }
    }

    /// Names a stream whose addresses are in a missing part of the text.
    fn nameless(&self, stream: u32) -> (String, String) {
        let group = match self.number {
            0 => self.source.stem.clone(),
            n => format!("{}-{}", self.source.stem, n + 1),
        };
        (format!("{group}/{stream}"), group)
    }
}

/// The connection of a stream.
fn stream_key(connection: &Connection, listens: bool) -> Option<Key> {
    let local = Endpoint { ip: address(&connection.local_host)?, port: connection.local_port };
    let remote = Endpoint { ip: address(&connection.remote_host)?, port: connection.remote_port };
    let (client, server) = if listens { (remote, local) } else { (local, remote) };
    Some(Key { client, server })
}

/// All intervals of a test with their side. The totals of a stream without intervals count as one interval.
fn intervals(test: &Test) -> Vec<(u32, Side, IntervalValues)> {
    let own = own_side(test);
    let side = |values: &IntervalValues| values.sender.map_or(own, side_of);
    let mut all: Vec<_> = test
        .report
        .intervals
        .iter()
        .map(|i| (i.stream, side(&i.values), i.values.clone()))
        .collect();
    let with: BTreeSet<u32> = all.iter().map(|(stream, _, _)| *stream).collect();
    for (stream, sender, values) in &test.totals {
        if !with.contains(stream) && values.bytes > 0.0 {
            all.push((*stream, side_of(*sender), values.clone()));
        }
    }
    if test.totals.is_empty() {
        for (&stream, totals) in test.report.totals.iter().filter(|(s, _)| !with.contains(s)) {
            for (side, bytes) in
                [(Side::Sender, totals.sent_bytes), (Side::Receiver, totals.received_bytes)]
            {
                let (end, seconds) = (totals.end_s, totals.end_s);
                let values =
                    IntervalValues { end, seconds, bytes: bytes as f64, ..Default::default() };
                if bytes > 0 {
                    all.push((stream, side, values));
                }
            }
        }
    }
    all
}

fn side_of(sender: bool) -> Side {
    if sender { Side::Sender } else { Side::Receiver }
}

/// The side, sender or receiver, of the end that wrote the report.
fn own_side(test: &Test) -> Side {
    side_of(test.listens() == test.report.reverse.unwrap_or(false))
}

/// A test's intervals of one stream.
#[derive(Default)]
struct Part {
    sides: BTreeSet<Side>,
    moved_bytes: f64,
    /// The end of its last interval.
    end_s: Option<f64>,
}

fn take_stream(flow: &mut wire::Flow, test: &Test, stream: u32, part: &Part, begin_s: f64) {
    let report = &test.report;
    let totals = report.totals.get(&stream).copied().unwrap_or_default();
    let end_s = part.end_s.map_or(totals.end_s, |end_s| end_s.max(totals.end_s));
    let known = [totals.received_bytes, flow.bytes, totals.sent_bytes, part.moved_bytes as u64];
    flow.bytes = known.into_iter().find(|&bytes| bytes > 0).unwrap_or(0);
    if flow.side() == Side::Sender && flow.cc_actual.is_empty() {
        flow.cc_actual = report.sender_cc.clone().unwrap_or_default();
    }
    flow.tool = match report.version.as_str() {
        "" => "iperf3".to_owned(),
        version => version.replacen("iperf ", "iperf3 ", 1),
    };
    seen(flow, begin_s, begin_s + end_s);
}

/// Limit of rows of unanswered requests per file, because one line can report millions of requests.
const MAX_LOST: usize = 1 << 17;

/// Start of a run of ping, if a line has it.
fn ping_begin(session: &ping::PingRun) -> Option<u64> {
    let (seq, at_ns, rtt_us) =
        session.replies.iter().find_map(|(seq, r)| Some((*seq, r.at_ns?, r.rtt_us?)))?;
    let before_ns = u64::from(seq.saturating_sub(session.first())) * session.interval_ns();
    Some(at_ns.saturating_sub((rtt_us * 1e3) as u64).saturating_sub(before_ns))
}

fn pings(source: &Source, out: &mut MergedFiles) {
    let mut lost_left = MAX_LOST;
    for (number, session) in source.found.pings.iter().enumerate() {
        let probe_id = match number {
            0 => source.stem.clone(),
            n => format!("{}-{}", source.stem, n + 1),
        };
        if session.replies.is_empty() {
            if let Some(summary) = session.summary_ms {
                out.notes.push(format!(
                    "{}: {probe_id} has only ping's summary (mean {} ms), which makes no rows",
                    source.stem, summary[1]
                ));
            }
            continue;
        }
        let begin_ns = ping_begin(session).unwrap_or_else(|| {
            out.notes.push(format!(
                "{probe_id}: ping's lines have no timestamps; its requests are placed at the trial's beginning, {} ms apart",
                session.interval_ns() / 1_000_000
            ));
            out.begin_ns
        });
        let mut lost = session.unanswered();
        if lost.len() > lost_left {
            let what = "unanswered requests of this file become rows; the others are left out";
            out.notes.push(format!("{probe_id}: only {MAX_LOST} {what}"));
            lost.truncate(lost_left);
        }
        lost_left -= lost.len();
        let lost = lost.into_iter().map(|seq| (seq, ping::Reply::default()));
        for (seq, reply) in session.replies.iter().map(|(seq, r)| (*seq, *r)).chain(lost) {
            let rtt_ns = reply.rtt_us.map_or(0, |us| (us * 1e3) as u64);
            let after_ns = u64::from(seq.saturating_sub(session.first())) * session.interval_ns();
            let at_ns = reply.at_ns.map_or(begin_ns + after_ns, |at| at.saturating_sub(rtt_ns));
            let row = wire::Probe {
                at_ns,
                probe_id: probe_id.clone(),
                kind: wire::ProbeKind::Ping.into(),
                seq,
                rtt_us: reply.rtt_us,
                lost: reply.rtt_us.is_none(),
                ..Default::default()
            };
            out.put(&source.node, at_ns, Payload::Probe(row));
        }
    }
}

/// How much of a file was read and how much was not, for table `events`.
fn event(source: &Source) -> Payload {
    const MAX_LINES: usize = 10_000;
    let Found { lines, unread, .. } = &source.found;
    let numbers: Vec<u64> = unread.iter().map(|u| u.line).take(MAX_LINES).collect();
    let unread = source.found.unread_count();
    let data = Import { lines: *lines, unread, unread_lines: numbers };
    Payload::Event(wire::Event {
        at_ns: 0,
        subject: source.stem.clone(),
        message: format!("{unread} of {lines} lines were read only in part or not at all"),
        kind: Some(Kind::Import(data)),
    })
}

/// Client and server of a socket: the local end is the server if it listens, otherwise the client.
fn ends(socket: &Socket, local_listens: bool) -> Key {
    match local_listens {
        true => Key { client: socket.peer, server: socket.local },
        false => Key { client: socket.local, server: socket.peer },
    }
}

#[cfg(test)]
mod tests;
