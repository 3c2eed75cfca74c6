//! Exports qlog files: what QUIC's recovery events say about a TCP sender, for qvis and other qlog tools.
//!
//! The files have the schema "0.3" of draft-ietf-quic-qlog-main-schema-05 (`QlogFile`, `Trace`, `Event`), and events of
//! draft-ietf-quic-qlog-quic-events-04. TCP has no packet numbers, so `packet_lost` has no header; the kernel does not keep the latest
//! RTT, so `metrics_updated` does not have it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use ccbench_proto::cc;
use ccbench_proto::plan::Cc;
use polars::prelude::*;
use serde::Serialize;
use serde_json::{Value, json};

use super::error::Result;
use super::trials::{named_trials, not_empty};
use crate::error::io_error;
use crate::in_flight::in_flight;
use crate::journal::TrialEnd;
use crate::model::Levels;
use crate::part::write_file;
use crate::store::RunDir;
use crate::summary::query::{Lines, collect, number, scan, sender, srtt_ms};

mod sent;
mod states;

use sent::sent_packets;
pub(super) use states::{States, states};

/// `QlogFile.qlog_version`: the newest version that qvis reads.
const VERSION: &str = "0.3";
/// States of loss recovery (`enum tcp_ca_state`, include/uapi/linux/tcp.h).
const CA_STATES: [&str; 5] = ["open", "disorder", "cwr", "recovery", "loss"];

/// A field of `RecoveryMetricsUpdated`, its value from the columns that `acks` and `flow_samples` share, and whether the schema requires an
/// integer.
type Metric = (&'static str, fn() -> Expr, bool);

const METRICS: [Metric; 9] = [
    ("smoothed_rtt", srtt_ms, false),
    ("rtt_variance", || number("rttvar_us") / lit(1e3), false),
    ("min_rtt", || number("min_rtt_us") / lit(1e3), false),
    // Consecutive RTOs, each of which doubles the timer.
    ("pto_count", || number("backoff"), true),
    ("congestion_window", || number("snd_cwnd_pkts") * number("snd_mss_bytes"), true),
    ("ssthresh", || number("snd_ssthresh_pkts") * number("snd_mss_bytes"), true),
    ("packets_in_flight", in_flight, true),
    ("bytes_in_flight", || in_flight() * number("snd_mss_bytes"), true),
    ("pacing_rate", || number("pacing_rate_bytes_per_s") * lit(8.0), true),
];

/// The schema's `QlogFile`. Version and format come first, because they should be in the first 256 bytes.
#[derive(Serialize)]
struct QlogFile {
    qlog_version: &'static str,
    qlog_format: &'static str,
    title: String,
    traces: [Trace; 1],
}

#[derive(Serialize)]
struct Trace {
    title: String,
    common_fields: CommonFields,
    vantage_point: VantagePoint,
    events: Vec<Event>,
}

#[derive(Serialize)]
struct CommonFields {
    time_format: &'static str,
    /// The trial's beginning in milliseconds since 1970.
    reference_time: f64,
    protocol_type: [&'static str; 1],
    group_id: String,
}

#[derive(Serialize)]
struct VantagePoint {
    name: String,
    r#type: &'static str,
}

/// An event. `time` is in milliseconds after `reference_time`.
#[derive(Debug, PartialEq, Serialize)]
struct Event {
    time: f64,
    name: &'static str,
    data: BTreeMap<&'static str, Value>,
}

impl Event {
    fn new<const N: usize>(
        time: f64,
        name: &'static str,
        data: [(&'static str, Value); N],
    ) -> Self {
        Self { time, name, data: data.into() }
    }

    /// Returns a change of state; for the first one, `old` is unknown.
    fn state(time: f64, old: Option<&str>, new: &str) -> Self {
        let mut event = Self::new(time, "recovery:congestion_state_updated", [("new", json!(new))]);
        if let Some(old) = old {
            event.data.insert("old", json!(old));
        }
        event
    }
}

/// A sender.
struct Sender {
    flow_id: String,
    node: String,
    cc: String,
    /// The node that connects, if known.
    connects: Option<String>,
}

/// The socket's values at one time.
struct Sample {
    time_ms: f64,
    metrics: [Option<f64>; METRICS.len()],
    /// Bytes sent so far, with retransmissions.
    sent_bytes: Option<f64>,
    ca_state: Option<usize>,
}

/// A row of `tcp_events`.
struct SocketEvent {
    time_ms: f64,
    kind: String,
    count: usize,
    ca_state: Option<usize>,
    ca_state_before: Option<usize>,
}

/// A variable of a congestion control with named values.
struct NamedValue {
    time_ms: f64,
    variable: &'static str,
    name: &'static str,
}

/// Writes one file per trial and sender into a folder. Returns the paths written.
///
/// # Errors
/// No trial has samples of senders, or a file cannot be written.
pub fn qlog(run_dir: &Path, output: &Path) -> Result<Vec<PathBuf>> {
    let run = RunDir::open(run_dir)?;
    run.check(|table| ["flow_samples", "acks", "tcp_events", "cc_state", "flows"].contains(&table));
    let (_, points) = run.points();
    let mut written = Vec::new();
    for (end, trial) in named_trials(&run) {
        let title = title(&run, &end, &points);
        let mut names = BTreeSet::new();
        let senders = senders(&run, &end)?;
        let tables = Tables::read(&run, &end, &senders)?;
        for sender in senders {
            let mut name = format!("{trial}-{}", file_part(&sender.flow_id));
            while !names.insert(name.clone()) {
                name.push('_');
            }
            let document = document(&end, &sender, &tables, &title);
            // qvis refuses a trace without events.
            if document.traces.iter().all(|trace| trace.events.is_empty()) {
                continue;
            }
            std::fs::create_dir_all(output).map_err(io_error("make the directory", output))?;
            let to = output.join(format!("{name}.qlog"));
            write_file(&to, |out| {
                let done = serde_json::to_writer(out, &document).map_err(std::io::Error::from);
                done.map_err(io_error("write", &to))
            })?;
            written.push(to);
        }
    }
    not_empty(written, run_dir, "no trial has samples of senders")
}

/// Returns a flow's id as part of a file name.
fn file_part(flow_id: &str) -> String {
    let plain = |c: char| match c {
        '/' => '-',
        c if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') => c,
        _ => '_',
    };
    flow_id.chars().map(plain).collect()
}

/// Returns a text column, which may be categorical.
fn text(name: &str) -> Expr {
    col(name).cast(DataType::String)
}

/// The rows of a table that have a time, by flow and in time order.
#[derive(Default)]
struct Rows {
    lines: Option<Lines>,
    flows: BTreeMap<String, Range<usize>>,
}

impl Rows {
    /// Reads these columns, and the time in milliseconds as `time`.
    fn read(
        run: &RunDir,
        end: &TrialEnd,
        table: &str,
        filter: Expr,
        columns: Vec<Expr>,
    ) -> Result<Self> {
        let Some(rows) = scan(run, table, &[end])? else { return Ok(Self::default()) };
        let time = (number("t_s") * lit(1e3)).alias("time");
        let order = SortMultipleOptions::default().with_maintain_order(true);
        let rows = rows
            .filter(filter.and(col("t_s").is_not_null()))
            .select([vec![text("flow_id"), time], columns].concat())
            .sort_by_exprs(["flow_id", "time"].map(col), order);
        let lines = collect(run, table, rows)?;
        let flows = lines.ranges("flow_id");
        Ok(Self { lines: Some(lines), flows })
    }

    /// Returns the rows of a flow, converted by `read_row`.
    fn of_flow<T>(
        &self,
        flow_id: &str,
        mut read_row: impl FnMut(&Lines, usize) -> Option<T>,
    ) -> Vec<T> {
        let Some((lines, own)) = self.lines.as_ref().zip(self.flows.get(flow_id)) else {
            return vec![];
        };
        own.clone().filter_map(|line| read_row(lines, line)).collect()
    }
}

/// The tables of a trial. Each is read once for all senders, because a run may have thousands of flows.
struct Tables {
    acks: Rows,
    /// `flow_samples`; empty if every sender has rows in `acks`.
    polled: Rows,
    socket_events: Rows,
    states: Rows,
}

impl Tables {
    fn read(run: &RunDir, end: &TrialEnd, senders: &[Sender]) -> Result<Self> {
        let samples = |table| {
            let metrics = METRICS.into_iter().map(|(name, of, _)| of().alias(name));
            let others = ["bytes_sent", "ca_state"].map(number);
            Rows::read(run, end, table, sender(), metrics.chain(others).collect())
        };
        let acks = samples("acks")?;
        let needs_polled = senders.iter().any(|sender| !acks.flows.contains_key(&sender.flow_id));
        let polled = if needs_polled { samples("flow_samples")? } else { Rows::default() };
        let numbers = ["count", "ca_state", "ca_state_before"].map(number);
        let columns = [vec![text("kind")], numbers.to_vec()].concat();
        let socket_events = Rows::read(run, end, "tcp_events", sender(), columns)?;
        let columns = vec![text("algorithm"), text("variable"), number("value")];
        let of_flows = col("flow_id").is_not_null();
        let states = Rows::read(run, end, "cc_state", of_flows, columns)?;
        Ok(Self { acks, polled, socket_events, states })
    }

    /// Returns the samples of a sender: those at its ACKs or, if there are none, the polled ones.
    fn samples(&self, flow_id: &str) -> Vec<Sample> {
        let at_acks = samples(&self.acks, flow_id);
        if at_acks.is_empty() { samples(&self.polled, flow_id) } else { at_acks }
    }
}

/// Returns the senders of a trial with the last congestion control of each.
fn senders(run: &RunDir, end: &TrialEnd) -> Result<Vec<Sender>> {
    let Some(rows) = scan(run, "flow_samples", &[end])? else { return Ok(vec![]) };
    let connecting = connecting(run, end)?;
    let keys = ["flow_id", "node"].map(text);
    let rows = rows
        .filter(sender().and(col("t_s").is_not_null()))
        .group_by(&keys)
        .agg([text("cc").last().alias("cc")])
        .sort_by_exprs(["flow_id", "node"].map(col), SortMultipleOptions::default());
    let lines = collect(run, "flow_samples", rows)?;
    let sender = |line| {
        let flow_id = lines.text("flow_id", line);
        let connects = connecting.get(&flow_id).cloned();
        Sender { node: lines.text("node", line), cc: lines.text("cc", line), connects, flow_id }
    };
    Ok((0..lines.len()).map(sender).collect())
}

/// Returns the node that connects, for each flow.
fn connecting(run: &RunDir, end: &TrialEnd) -> Result<BTreeMap<String, String>> {
    let Some(rows) = scan(run, "flows", &[end])? else { return Ok(BTreeMap::new()) };
    let columns = ["flow_id", "node_src"].map(text);
    let lines = collect(run, "flows", rows.filter(sender()).select(columns))?;
    let of_line = |line| (lines.text("flow_id", line), lines.text("node_src", line));
    Ok((0..lines.len()).map(of_line).filter(|(_, node)| !node.is_empty()).collect())
}

/// Returns the title of a trial: its run, its point with the levels, and its number.
fn title(run: &RunDir, end: &TrialEnd, points: &BTreeMap<u32, Levels>) -> String {
    let levels = points.get(&end.point_id).into_iter().flatten();
    let levels: String = levels.map(|(factor, level)| format!(" {factor}={level}")).collect();
    let directory = run.name();
    format!("ccbench {directory} point {}{levels} trial {}", end.point_id, end.trial)
}

fn document(end: &TrialEnd, sender: &Sender, tables: &Tables, title: &str) -> QlogFile {
    let Sender { flow_id, node, cc, connects } = sender;
    let samples = tables.samples(flow_id);
    let socket = socket_events(&tables.socket_events, flow_id);
    let states = named_values(&tables.states, flow_id);
    let clock = end.clocks.get(node).or_else(|| end.clocks.values().next());
    let begin_ns =
        clock.map_or(0, |clock| clock.t0_ns.cast_signed().saturating_add(clock.realtime_offset_ns));
    let vantage = match connects {
        Some(connects) if connects == node => "client",
        Some(_) => "server",
        None => "unknown",
    };
    QlogFile {
        qlog_version: VERSION,
        qlog_format: "JSON",
        title: title.to_owned(),
        traces: [Trace {
            title: format!("{flow_id} {cc}"),
            common_fields: CommonFields {
                time_format: "relative",
                reference_time: begin_ns as f64 / 1e6,
                protocol_type: ["TCP"],
                group_id: flow_id.clone(),
            },
            vantage_point: VantagePoint { name: node.clone(), r#type: vantage },
            events: events(&samples, &socket, &states),
        }],
    }
}

fn samples(rows: &Rows, flow_id: &str) -> Vec<Sample> {
    rows.of_flow(flow_id, |lines, line| {
        Some(Sample {
            time_ms: lines.number("time", line)?,
            metrics: METRICS.map(|(name, ..)| lines.number(name, line)),
            sent_bytes: lines.number("bytes_sent", line),
            ca_state: lines.number("ca_state", line).map(|state| state as usize),
        })
    })
}

fn socket_events(rows: &Rows, flow_id: &str) -> Vec<SocketEvent> {
    rows.of_flow(flow_id, |lines, line| {
        let state = |name| lines.number(name, line).map(|state| state as usize);
        Some(SocketEvent {
            time_ms: lines.number("time", line)?,
            kind: lines.text("kind", line),
            count: lines.count("count", line) as usize,
            ca_state: state("ca_state"),
            ca_state_before: state("ca_state_before"),
        })
    })
}

fn named_values(rows: &Rows, flow_id: &str) -> Vec<NamedValue> {
    let mut known = BTreeMap::new();
    rows.of_flow(flow_id, |lines, line| {
        let (algorithm, variable) = (lines.text("algorithm", line), lines.text("variable", line));
        let states =
            known.entry(algorithm).or_insert_with_key(|name| cc::states(&Cc::new(name.as_str())));
        let value = lines.number("value", line)?;
        let state = states
            .iter()
            .find(|state| state.variable == variable && f64::from(state.number) == value)?;
        let time_ms = lines.number("time", line)?;
        Some(NamedValue { time_ms, variable: state.variable, name: state.name })
    })
}

/// Returns all events in time order, as the schema requires.
fn events(samples: &[Sample], socket: &[SocketEvent], states: &[NamedValue]) -> Vec<Event> {
    let mut events = metric_updates(samples);
    events.extend(sent_packets(samples));
    // Every watched socket has a row that names its congestion control.
    match socket.is_empty() {
        true => events.extend(sampled_states(samples)),
        false => events.extend(socket.iter().flat_map(of_socket_event)),
    }
    events.extend(named_states(states));
    events.sort_by(|a, b| a.time.total_cmp(&b.time));
    events
}

/// Returns the metrics of each sample that differ from the last known ones.
fn metric_updates(samples: &[Sample]) -> Vec<Event> {
    let mut last = [None; METRICS.len()];
    let mut events = Vec::new();
    for sample in samples {
        let mut data = BTreeMap::new();
        for (((name, _, is_whole), value), last) in
            METRICS.into_iter().zip(sample.metrics).zip(&mut last)
        {
            let Some(value) = value.filter(|value| *last != Some(*value)) else { continue };
            *last = Some(value);
            data.insert(name, if is_whole { json!(value.round() as u64) } else { json!(value) });
        }
        if !data.is_empty() {
            events.push(Event { time: sample.time_ms, name: "recovery:metrics_updated", data });
        }
    }
    events
}

/// Returns changes of the state of loss recovery between samples.
fn sampled_states(samples: &[Sample]) -> Vec<Event> {
    let known = |sample: &Sample| Some((sample.time_ms, ca_state(sample.ca_state)?));
    changes(samples.iter().filter_map(known))
}

fn named_states(states: &[NamedValue]) -> Vec<Event> {
    let variables: BTreeSet<&str> = states.iter().map(|state| state.variable).collect();
    let of_variable = |variable| {
        let own = states.iter().filter(move |state| state.variable == variable);
        changes(own.map(|state| (state.time_ms, state.name)))
    };
    variables.into_iter().flat_map(of_variable).collect()
}

fn changes(states: impl Iterator<Item = (f64, &'static str)>) -> Vec<Event> {
    let mut last = None;
    let changed = states.filter_map(|(time, new)| {
        let old = last.replace(new);
        (old != Some(new)).then(|| Event::state(time, old, new))
    });
    changed.collect()
}

fn ca_state(number: Option<usize>) -> Option<&'static str> {
    CA_STATES.get(number?).copied()
}

/// Returns the events of a row: one for each retransmitted packet, which the sender considers lost.
fn of_socket_event(row: &SocketEvent) -> Vec<Event> {
    let time = row.time_ms;
    match row.kind.as_str() {
        "retransmit" => {
            (0..row.count).map(|_| Event::new(time, "recovery:packet_lost", [])).collect()
        }
        "rto" => {
            let data = [("timer_type", json!("pto")), ("event_type", json!("expired"))];
            vec![Event::new(time, "recovery:loss_timer_updated", data)]
        }
        "ca_state" => {
            let new = ca_state(row.ca_state);
            new.map(|new| Event::state(time, ca_state(row.ca_state_before), new))
                .into_iter()
                .collect()
        }
        _ => vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::tests::{filled, good, info};

    #[test]
    fn a_table_is_read_once_for_all_flows() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), &info()).unwrap();
        filled(&run, 2).commit(&good()).unwrap();
        let end = run.trials().remove(0);
        let of_flows = col("flow_id").is_not_null();
        let rows = Rows::read(&run, &end, "flow_samples", of_flows, vec![]).unwrap();
        std::fs::remove_dir_all(run.path().join("tables")).unwrap();
        let time = |lines: &Lines, line| lines.number("time", line);
        let times: Vec<Vec<f64>> =
            (0..10).map(|nth| rows.of_flow(&format!("main/{nth}"), time)).collect();
        // main/9 has the first sample, main/0 the last one.
        assert!(times.iter().all(|times| times.len() == 1), "{times:?}");
        assert!(times.is_sorted_by(|one, other| one[0] > other[0]), "{times:?}");
        assert_eq!(rows.of_flow("main/10", time), [0.0; 0]);
    }

    fn sample(time_ms: f64, srtt_ms: f64, in_flight: f64, ca_state: usize) -> Sample {
        let of = |(name, ..): Metric| match name {
            "smoothed_rtt" => Some(srtt_ms),
            "packets_in_flight" => Some(in_flight),
            _ => None,
        };
        let metrics = METRICS.map(of);
        Sample { time_ms, metrics, sent_bytes: None, ca_state: Some(ca_state) }
    }

    fn shown(events: &[Event]) -> Vec<(f64, &str, String)> {
        let of = |event: &Event| {
            let name = event.name.strip_prefix("recovery:").unwrap();
            let data: Vec<String> =
                event.data.iter().map(|(name, value)| format!("{name} {value}")).collect();
            (event.time, name, data.join(" "))
        };
        events.iter().map(of).collect()
    }

    #[test]
    fn only_changes_of_samples_are_events() {
        let samples = [
            sample(1.0, 10.5, 4.0, 0),
            sample(2.0, 10.5, 4.0, 0),
            sample(3.0, 10.5, 5.0, 3),
            sample(4.0, 11.0, 5.0, 3),
        ];
        let expected = [
            (1.0, "metrics_updated", "packets_in_flight 4 smoothed_rtt 10.5"),
            (1.0, "congestion_state_updated", "new \"open\""),
            (3.0, "metrics_updated", "packets_in_flight 5"),
            (3.0, "congestion_state_updated", "new \"recovery\" old \"open\""),
            (4.0, "metrics_updated", "smoothed_rtt 11.0"),
        ];
        let expected = expected.map(|(time, name, data)| (time, name, data.to_owned()));
        assert_eq!(shown(&events(&samples, &[], &[])), expected);
    }

    #[test]
    fn rows_of_sockets_replace_sampled_states() {
        let row = |time_ms, kind: &str, count, before, after| SocketEvent {
            time_ms,
            kind: kind.to_owned(),
            count,
            ca_state: after,
            ca_state_before: before,
        };
        let socket = [
            row(0.5, "cc", 0, None, Some(0)),
            row(2.5, "ca_state", 0, Some(0), Some(4)),
            row(2.5, "rto", 1, None, Some(4)),
            row(2.5, "retransmit", 2, None, Some(4)),
            row(3.0, "ca_state", 0, Some(9), Some(9)),
        ];
        let named = |time_ms, name| NamedValue { time_ms, variable: "mode", name };
        let states = [named(1.0, "STARTUP"), named(2.0, "STARTUP"), named(4.0, "DRAIN")];
        let expected = [
            (1.0, "congestion_state_updated", "new \"STARTUP\""),
            (2.5, "congestion_state_updated", "new \"loss\" old \"open\""),
            (2.5, "loss_timer_updated", "event_type \"expired\" timer_type \"pto\""),
            (2.5, "packet_lost", ""),
            (2.5, "packet_lost", ""),
            (4.0, "congestion_state_updated", "new \"DRAIN\" old \"STARTUP\""),
        ];
        let expected = expected.map(|(time, name, data)| (time, name, data.to_owned()));
        let of_states = [Sample { metrics: [None; METRICS.len()], ..sample(1.0, 1.0, 1.0, 3) }];
        assert_eq!(shown(&events(&of_states, &socket, &states)), expected);
    }

    #[test]
    fn file_names_have_no_directories() {
        assert_eq!(file_part("bulk/0"), "bulk-0");
        assert_eq!(file_part("../a b/1"), "..-a_b-1");
    }
}
