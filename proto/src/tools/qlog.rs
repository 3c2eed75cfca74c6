//! Reads qlog files: JSON and JSON text sequences of the main schema from 0.3 on (draft-ietf-quic-qlog-main-schema), with the recovery
//! events of draft-ietf-quic-qlog-quic-events. Pure.
//!
//! The vantage point is the sender if it sends more bytes in packets than it receives, or if the file has no packets.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::found::MAX_ROWS;
use super::named::{
    BoundedList, Lenient, Number, RECORD_SEPARATOR, Reading, Text, bytes, count, nanos_of_ms, plain,
};
use super::stamp::{self, BaseDate};
use super::{MAX_COUNT, truncate};
use crate::wire::{self, Role, SampleSource, Side, TcpEventKind, run_event::Payload};

/// The smallest maximum datagram size that QUIC permits (RFC 9000, section 14), for files that do not give theirs.
const DATAGRAM_BYTES: f64 = 1200.0;
/// Length of the rows of `intervals`, in milliseconds.
const INTERVAL_MS: f64 = 100.0;
/// States of loss recovery that ccbench exports, as Linux numbers them (`enum tcp_ca_state`), and those of RFC 9002.
const CA_STATES: [(&str, u32); 8] = [
    ("open", 0),
    ("disorder", 1),
    ("cwr", 2),
    ("recovery", 3),
    ("loss", 4),
    ("slow_start", 0),
    ("congestion_avoidance", 0),
    ("application_limited", 0),
];
/// The group of traces that do not name their connection.
pub(super) const NO_CONNECTION: &str = "qlog";
/// The beginning of traces that do not give it: one second after 1970 began.
const NO_REFERENCE_MS: f64 = 1000.0;

#[derive(Deserialize, Default)]
#[serde(default)]
struct File {
    traces: BoundedList<Trace>,
    /// The trace of a JSON text sequence, whose events follow.
    trace: Trace,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Trace {
    title: Text,
    common_fields: Lenient<Common>,
    events: BoundedList<Event>,
}

#[derive(Deserialize, Default, Clone, Debug)]
#[serde(default)]
struct Common {
    time_format: Text,
    reference_time: Lenient<Reference>,
    group_id: Text,
    #[serde(rename = "ODCID")]
    odcid: Text,
}

/// Milliseconds since 1970. From draft 10 on, an epoch in RFC 3339 form, 1970 by default; or `unknown` for a monotonic clock, with
/// the wall-clock time of the reference.
#[derive(Deserialize, Clone, Debug)]
#[serde(untagged)]
enum Reference {
    Number(f64),
    Text(String),
    Epoch { epoch: Option<String>, wall_clock_time: Option<String> },
}

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
struct Event {
    /// Milliseconds.
    time: Number,
    name: Text,
    data: Lenient<Box<Data>>,
}

/// The fields that are read of any event.
#[derive(Deserialize, Default, Clone, Debug)]
#[serde(default)]
struct Data {
    min_rtt: OptionalNumber,
    smoothed_rtt: OptionalNumber,
    rtt_variance: OptionalNumber,
    pto_count: OptionalNumber,
    congestion_window: OptionalNumber,
    ssthresh: OptionalNumber,
    bytes_in_flight: OptionalNumber,
    packets_in_flight: OptionalNumber,
    pacing_rate: OptionalNumber,
    max_datagram_size: OptionalNumber,
    new: Text,
    event_type: Text,
    timer_type: Text,
    raw: Lenient<RawInfo>,
}

#[derive(Deserialize, Default, Clone, Debug)]
#[serde(default)]
struct RawInfo {
    length: OptionalNumber,
}

/// A number that an event may lack. If the event has it, it is a value or unreadable.
type OptionalNumber = Option<Number>;

fn value(given: &OptionalNumber) -> Option<f64> {
    given.as_ref()?.value()
}

/// Takes a given value. If the column cannot hold it, it is unknown, and its name is recorded.
fn take<T>(
    column: &mut Option<T>,
    (name, given): (&'static str, &OptionalNumber),
    of: impl Fn(f64) -> Option<T>,
    wrong: &mut Vec<&'static str>,
) {
    let Some(given) = given else { return };
    *column = given.value().and_then(of);
    if column.is_none() {
        wrong.push(name);
    }
}

/// The kinds of events that make rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Metrics,
    State,
    Lost,
    Timer,
    Parameters,
    Sent,
    Received,
}

/// `recovery:metrics_updated` in draft 07 is `quic:recovery_metrics_updated` in later drafts.
fn kind(name: &str) -> Option<Kind> {
    let name = name.rsplit(':').next().unwrap_or(name);
    Some(match name.strip_prefix("recovery_").unwrap_or(name) {
        "metrics_updated" => Kind::Metrics,
        "congestion_state_updated" => Kind::State,
        "packet_lost" => Kind::Lost,
        "loss_timer_updated" => Kind::Timer,
        "parameters_set" => Kind::Parameters,
        "packet_sent" => Kind::Sent,
        "packet_received" => Kind::Received,
        _ => return None,
    })
}

/// Reads a file.
pub(super) fn read(text: &[u8]) -> Reading {
    let mut out = Reading::new("qlog");
    let file = match text.first() {
        Some(&RECORD_SEPARATOR) => sequence(text, &mut out),
        _ => serde_json::from_slice::<File>(text),
    };
    let traces = match file {
        Ok(file) if file.traces.items.is_empty() => vec![file.trace],
        Ok(file) => file.traces.items,
        Err(error) => {
            out.unread(&format!("not a qlog file: {error}"));
            return out;
        }
    };
    for (nth, trace) in traces.into_iter().enumerate() {
        out.leave_out(trace.events.more);
        Flow::read(nth, &trace, &mut out);
    }
    out
}

/// A JSON text sequence (RFC 7464): the header, and an event per record. The last record of an interrupted writer is incomplete.
fn sequence(text: &[u8], out: &mut Reading) -> serde_json::Result<File> {
    let records = text.split(|&byte| byte == RECORD_SEPARATOR);
    let mut records = records.filter(|record| !record.trim_ascii().is_empty());
    let mut file: File = serde_json::from_slice(records.next().unwrap_or_default())?;
    for (nth, record) in records.enumerate() {
        let events = &mut file.trace.events;
        match serde_json::from_slice::<Event>(record) {
            Ok(event) if events.items.len() < MAX_ROWS => events.items.push(event),
            Ok(_) => events.more += 1,
            Err(error) => out.unread(&format!("event {nth}: {error}")),
        }
    }
    Ok(file)
}

/// Times of a trace as milliseconds since 1970.
struct Times {
    reference_ms: f64,
    is_delta: bool,
    last_ms: f64,
}

impl Times {
    /// Also returns whether the trace says when it began.
    fn from_common_fields(common: &Common) -> (Self, bool) {
        let reference = common.reference_time.get();
        let default = match reference {
            Some(Reference::Epoch { .. }) => "relative_to_epoch",
            _ => "absolute",
        };
        let format = common.time_format.text().unwrap_or(default);
        let ms = |text: &str| stamp::strip(text, BaseDate::default()).map(|at| at.0 as f64 / 1e6);
        let reference_ms = match reference {
            Some(Reference::Number(ms)) => Some(*ms),
            Some(Reference::Text(text)) => text.parse().ok(),
            Some(Reference::Epoch { epoch: None, .. }) => Some(0.0),
            Some(Reference::Epoch { epoch: Some(epoch), wall_clock_time }) => {
                ms(epoch).or_else(|| ms(wall_clock_time.as_deref()?))
            }
            None => None,
        };
        let reference_ms = match format {
            "absolute" => Some(0.0),
            _ => reference_ms.filter(|ms| ms.is_finite()),
        };
        let is_known = reference_ms.is_some();
        let reference_ms = reference_ms.unwrap_or(NO_REFERENCE_MS);
        let is_delta = ["delta", "relative_to_previous_event"].contains(&format);
        (Self { reference_ms, is_delta, last_ms: reference_ms }, is_known)
    }

    fn at_ms(&mut self, time_ms: f64) -> f64 {
        let from_ms = if self.is_delta { self.last_ms } else { self.reference_ms };
        self.last_ms = from_ms + time_ms;
        self.last_ms
    }
}

/// The flow of a trace.
struct Flow {
    group: String,
    flow_id: String,
    side: Side,
    cc: String,
    datagram_bytes: f64,
    /// The metrics that were updated last.
    sample: wire::FlowSample,
    lost_pkts: u32,
    ca_state: u32,
    /// Bytes of packets by interval, since `first_ms`.
    moved: BTreeMap<u64, f64>,
    first_ms: Option<f64>,
}

impl Flow {
    fn read(nth: usize, trace: &Trace, out: &mut Reading) {
        let common = trace.common_fields.get().cloned().unwrap_or_default();
        let (mut times, is_known) = Times::from_common_fields(&common);
        let mut flow = Self::new(nth, trace, &common);
        if !is_known {
            let id = &flow.flow_id;
            out.named.notes.push(format!(
                "{id}: the trace does not say when it began; it is placed at the start of 1970"
            ));
        }
        let mut others: BTreeMap<&str, u64> = BTreeMap::new();
        for (number, event) in trace.events.items.iter().enumerate() {
            let name = event.name.text().unwrap_or_default();
            let Some(time_ms) = event.time.value() else {
                out.unread(&format!("event {number} ({name}) has no time"));
                continue;
            };
            let at_ms = times.at_ms(time_ms);
            let Some(kind) = kind(name) else {
                *others.entry(name).or_default() += 1;
                continue;
            };
            let Some(at_ns) = nanos_of_ms(at_ms) else {
                out.unread(&format!("event {number} ({name}): its time is not from 1970 to 2199"));
                continue;
            };
            match event.data.get() {
                Some(data) => flow.event(kind, (at_ms, at_ns), data, out),
                None => out.unread(&format!("event {number} ({name}) has no data")),
            }
        }
        flow.intervals(out);
        if !others.is_empty() {
            let total: u64 = others.values().sum();
            let names: Vec<&str> = others.keys().copied().take(10).collect();
            let names = truncate(&names.join(", "));
            out.named.notes.push(format!(
                "{}: {total} events of {} kinds that have no table: {names}",
                flow.flow_id,
                others.len()
            ));
        }
    }

    fn new(nth: usize, trace: &Trace, common: &Common) -> Self {
        let id = common.group_id.text().or_else(|| common.odcid.text()).unwrap_or(NO_CONNECTION);
        // ccbench's export writes the flow id; other tools write the connection's id.
        let (group, flow_id) = match id.split_once('/') {
            Some((group, number)) => (plain(group), format!("{}/{}", plain(group), plain(number))),
            None => {
                (plain(id), format!("{}/{}", plain(id), if id == NO_CONNECTION { nth } else { 0 }))
            }
        };
        // In ccbench's export, the title is the flow's id and its congestion control.
        let title = trace.title.text().unwrap_or_default();
        let cc = title.strip_prefix(id).map(str::trim).filter(|cc| !cc.contains(' '));
        let all = || trace.events.items.iter();
        let moved = |wanted| -> f64 {
            all()
                .filter(|event| event.name.text().and_then(kind) == Some(wanted))
                .filter_map(|event| length(event.data.get()?))
                .sum()
        };
        let receives = moved(Kind::Received) > moved(Kind::Sent);
        let own_bytes = all().find_map(|event| datagram_size(event.data.get()?));
        let ratio = |event: &Event| {
            let data = event.data.get()?;
            let (bytes, packets) = (value(&data.bytes_in_flight)?, value(&data.packets_in_flight)?);
            (packets >= 1.0).then(|| bytes / packets)
        };
        let largest = || all().filter_map(ratio).filter(|bytes| *bytes > 0.0).reduce(f64::max);
        let datagram_bytes = own_bytes.or_else(largest).unwrap_or(DATAGRAM_BYTES);
        Self {
            side: if receives { Side::Receiver } else { Side::Sender },
            cc: truncate(cc.unwrap_or_default()),
            datagram_bytes: datagram_bytes.clamp(1.0, 65_535.0),
            sample: wire::FlowSample::default(),
            lost_pkts: 0,
            ca_state: 0,
            moved: BTreeMap::new(),
            first_ms: None,
            group,
            flow_id,
        }
    }

    fn event(&mut self, kind: Kind, at: (f64, u64), data: &Data, out: &mut Reading) {
        let (at_ms, at_ns) = at;
        match kind {
            Kind::Metrics => self.metrics(at, data, out),
            Kind::State => {
                let new = data.new.text();
                let known = CA_STATES.iter().find(|(name, _)| Some(*name) == new);
                let Some((_, state)) = known.filter(|(_, state)| *state != self.ca_state) else {
                    return;
                };
                let before = std::mem::replace(&mut self.ca_state, *state);
                let row = self.tcp_event(at_ns, TcpEventKind::CaState, 0);
                let ca_state_before = Some(before);
                out.put(tcp_events(wire::TcpEvent { ca_state_before, ..row }));
            }
            Kind::Lost => {
                self.lost_pkts = self.lost_pkts.saturating_add(1);
                out.put(tcp_events(self.tcp_event(at_ns, TcpEventKind::Retransmit, 1)));
            }
            Kind::Timer => {
                let expired = data.event_type.text() == Some("expired");
                if expired && data.timer_type.text() != Some("ack") {
                    out.put(tcp_events(self.tcp_event(at_ns, TcpEventKind::Rto, 1)));
                }
            }
            Kind::Parameters => {
                if data.max_datagram_size.is_some() && datagram_size(data).is_none() {
                    let id = &self.flow_id;
                    out.unread(&format!(
                        "{id}: `max_datagram_size` at {at_ms} ms is not a valid size"
                    ));
                }
            }
            Kind::Sent | Kind::Received => {
                let is_own = (kind == Kind::Received) == (self.side == Side::Receiver);
                let first_ms = *self.first_ms.get_or_insert(at_ms);
                if !is_own || data.raw.get().is_none_or(|raw| raw.length.is_none()) {
                    return;
                }
                let Some(length) = length(data) else {
                    let id = &self.flow_id;
                    return out.unread(&format!(
                        "{id}: the `length` of a packet at {at_ms} ms is not a valid length"
                    ));
                };
                let after_ms = at_ms - first_ms;
                if after_ms < -INTERVAL_MS {
                    out.unread(&format!("a packet {} ms before the first one", -after_ms));
                    return;
                }
                // Writers may swap two events: a slightly earlier one belongs to the first interval.
                let interval = (after_ms.max(0.0) / INTERVAL_MS) as u64;
                *self.moved.entry(interval).or_default() += length;
            }
        }
    }

    /// Adds a sample with the updated metrics and the last values of the others.
    fn metrics(&mut self, (at_ms, at_ns): (f64, u64), data: &Data, out: &mut Reading) {
        let datagram = self.datagram_bytes;
        let micros = |ms: f64| count(ms * 1e3);
        let packets = |bytes: f64| count(bytes / datagram);
        let sample = &mut self.sample;
        let mut wrong = Vec::new();
        let mut set = |column: &mut Option<u32>,
                       given: (&'static str, &OptionalNumber),
                       of: &dyn Fn(f64) -> Option<u32>| {
            take(column, given, of, &mut wrong);
        };
        set(&mut sample.rtt_us, ("smoothed_rtt", &data.smoothed_rtt), &micros);
        set(&mut sample.rttvar_us, ("rtt_variance", &data.rtt_variance), &micros);
        set(&mut sample.min_rtt_us, ("min_rtt", &data.min_rtt), &micros);
        set(&mut sample.backoff, ("pto_count", &data.pto_count), &count);
        set(&mut sample.snd_cwnd_pkts, ("congestion_window", &data.congestion_window), &packets);
        // Before the first loss, writers use the largest number of their type.
        if value(&data.ssthresh).is_some_and(|bytes| bytes > MAX_COUNT) {
            sample.snd_ssthresh_pkts = None;
        } else {
            set(&mut sample.snd_ssthresh_pkts, ("ssthresh", &data.ssthresh), &packets);
        }
        set(&mut sample.unacked_pkts, ("bytes_in_flight", &data.bytes_in_flight), &packets);
        set(&mut sample.unacked_pkts, ("packets_in_flight", &data.packets_in_flight), &count);
        let pacing_rate = ("pacing_rate", &data.pacing_rate);
        let per_second = |bits: f64| bytes(bits / 8.0);
        take(&mut sample.pacing_rate_bytes_per_s, pacing_rate, per_second, &mut wrong);
        if !wrong.is_empty() {
            let (id, names) = (&self.flow_id, wrong.join("`, `"));
            out.unread(&format!(
                "{id}: impossible values at {at_ms} ms: `{names}`; the rest is kept"
            ));
        }
        let gap_ns = match sample.at_ns {
            0 => 0,
            before => at_ns.saturating_sub(before),
        };
        (sample.at_ns, sample.gap_ns) = (at_ns, gap_ns);
        out.put(Payload::FlowSample(wire::FlowSample {
            flow_id: self.flow_id.clone(),
            group: self.group.clone(),
            side: self.side.into(),
            role: Role::Data.into(),
            cc: self.cc.clone(),
            sample_src: SampleSource::Qlog.into(),
            snd_mss_bytes: count(datagram),
            ca_state: Some(self.ca_state),
            total_retrans_pkts: Some(self.lost_pkts),
            ..sample.clone()
        }));
    }

    fn tcp_event(&self, at_ns: u64, kind: TcpEventKind, count: u32) -> wire::TcpEvent {
        wire::TcpEvent {
            at_ns,
            flow_id: self.flow_id.clone(),
            group: self.group.clone(),
            cc: self.cc.clone(),
            count,
            kind: kind.into(),
            ca_state: self.ca_state,
            snd_cwnd_pkts: self.sample.snd_cwnd_pkts.unwrap_or(0),
            snd_ssthresh_pkts: self.sample.snd_ssthresh_pkts,
            rtt_us: self.sample.rtt_us.unwrap_or(0),
            unacked_pkts: self.sample.unacked_pkts.unwrap_or(0),
            total_retrans_pkts: self.lost_pkts,
            side: self.side.into(),
            role: Role::Data.into(),
            ..Default::default()
        }
    }

    /// Adds the bytes in packets per interval. A time without packets is one interval, whatever its length.
    fn intervals(&self, out: &mut Reading) {
        let Some(first_ms) = self.first_ms else { return };
        let mut next = 0;
        for (&interval, &moved) in &self.moved {
            if interval > next {
                self.interval(first_ms, (next, interval), 0.0, out);
            }
            next = interval + 1;
            self.interval(first_ms, (interval, next), moved, out);
        }
    }

    fn interval(&self, first_ms: f64, (from, to): (u64, u64), moved: f64, out: &mut Reading) {
        let [start_s, end_s] = [from, to].map(|at| at as f64 * INTERVAL_MS / 1e3);
        let (Some(at_ns), Some(moved)) = (nanos_of_ms(first_ms + end_s * 1e3), bytes(moved)) else {
            out.unread(&format!("{moved} bytes of packets until {end_s} s"));
            return;
        };
        let seconds = end_s - start_s;
        out.put(Payload::Interval(wire::Interval {
            flow_id: self.flow_id.clone(),
            group: self.group.clone(),
            side: self.side.into(),
            at_ns,
            start_s,
            end_s,
            seconds,
            bytes: moved,
            bits_per_second: moved as f64 * 8.0 / seconds,
            ..Default::default()
        }));
    }
}

fn length(data: &Data) -> Option<f64> {
    value(&data.raw.get()?.length).filter(|length| *length >= 0.0)
}

fn datagram_size(data: &Data) -> Option<f64> {
    value(&data.max_datagram_size).filter(|bytes| (1.0..=65_535.0).contains(bytes))
}

/// Wraps one event.
fn tcp_events(row: wire::TcpEvent) -> Payload {
    Payload::TcpEvents(wire::TcpEvents { events: vec![row] })
}

#[cfg(test)]
mod tests;
