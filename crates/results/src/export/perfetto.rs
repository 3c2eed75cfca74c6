//! Exports traces for Perfetto's viewer and trace processor: counters over time, and phases and states as slices.
//!
//! The messages are the parts that ccbench uses of Perfetto's `trace.proto`, `trace_packet.proto`, `track_event.proto`,
//! `track_descriptor.proto` and `counter_descriptor.proto`. The numbers of fields never change.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use prost::Message as _;

use super::error::Result;
use super::qlog::{States, states};
use super::trials::{named_trials, not_empty};
use crate::error::io_error;
use crate::journal::PhaseRecord;
use crate::part::write_file;
use crate::series::{self, Curve, Detail, Panel};
use crate::store::RunDir;

/// For each part of the trial, a counter has at most two values: the lowest and the highest.
const DETAIL: Detail = Detail { bins: 10_000, is_exact: true };
/// The sequence of all packets.
const SEQUENCE: u32 = 1;
/// The track of the phases. The uuids of the other tracks follow.
const PHASES_UUID: u64 = 1;
/// `TrackEvent.Type`.
const SLICE_BEGIN: i32 = 1;
const SLICE_END: i32 = 2;
const COUNTER: i32 = 4;

#[derive(Clone, PartialEq, prost::Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct TracePacket {
    /// Nanoseconds after the trial's beginning.
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct TrackEvent {
    #[prost(int32, optional, tag = "9")]
    r#type: Option<i32>,
    #[prost(uint64, optional, tag = "11")]
    track_uuid: Option<u64>,
    #[prost(string, optional, tag = "23")]
    name: Option<String>,
    #[prost(double, optional, tag = "44")]
    double_counter_value: Option<f64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
    #[prost(uint64, optional, tag = "5")]
    parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    counter: Option<CounterDescriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CounterDescriptor {
    #[prost(string, optional, tag = "6")]
    unit_name: Option<String>,
}

/// Writes one file per trial into a folder: as slices, the phases and, for each sender, the states of loss recovery and of its congestion
/// control; and a counter for each flow, probe and link of every panel of the report. Returns the paths written.
///
/// # Errors
/// No trial has samples, or a file cannot be written.
pub fn perfetto(run_dir: &Path, output: &Path) -> Result<Vec<PathBuf>> {
    let run = RunDir::open(run_dir)?;
    run.check(|_| true);
    let mut written = Vec::new();
    for (end, trial) in named_trials(&run) {
        let mut panels = series::panels(&run, &end, DETAIL, |_| true)?;
        panels.extend(series::cc_state_panels(&run, &end, DETAIL)?);
        if panels.is_empty() {
            continue;
        }
        let states = states(&run, &end)?;
        std::fs::create_dir_all(output).map_err(io_error("make the directory", output))?;
        let to = output.join(format!("{trial}.perfetto-trace"));
        write_file(&to, |out| {
            let done = write_trace(out, &end.phases, end.length_s(), &states, &panels);
            done.map_err(io_error("write", &to))
        })?;
        written.push(to);
    }
    not_empty(written, run_dir, "no trial has samples of flows, probes or links")
}

/// Writes a trace of this many seconds in pieces, because concatenated messages are one message. States are in the order of their kinds.
fn write_trace(
    out: &mut impl Write,
    phases: &[PhaseRecord],
    length_s: f64,
    states: &[States],
    panels: &[Panel],
) -> io::Result<()> {
    let mut put = |packet| out.write_all(&Trace { packet }.encode_to_vec());
    put(phase_packets(phases))?;
    let mut uuid = PHASES_UUID;
    for of_kind in states.chunk_by(|a, b| a.kind == b.kind) {
        uuid += 1;
        let parent_uuid = uuid;
        put(of_kind.iter().take(1).map(|one| track(parent_uuid, &one.kind, None, None)).collect())?;
        for of_flow in of_kind {
            uuid += 1;
            let mut packets = vec![track(uuid, &of_flow.flow_id, Some(parent_uuid), None)];
            packets.extend(state_packets(uuid, of_flow, length_s));
            put(packets)?;
        }
    }
    for panel in panels {
        uuid += 1;
        let parent_uuid = uuid;
        put(vec![track(parent_uuid, &panel.title, None, None)])?;
        for curve in &panel.curves {
            uuid += 1;
            let mut packets = vec![track(uuid, &curve.name, Some(parent_uuid), Some(&panel.unit))];
            packets.extend(counter_packets(uuid, curve));
            put(packets)?;
        }
    }
    Ok(())
}

/// Returns a slice for each state, which ends with the next state or the trial. Slices of a track do not overlap, so each ends before the
/// next begins.
fn state_packets(uuid: u64, states: &States, length_s: f64) -> Vec<TracePacket> {
    let ends_ms = states.changes.iter().skip(1).map(|(time_ms, _)| *time_ms);
    let mut packets = Vec::new();
    for ((from_ms, state), to_ms) in states.changes.iter().zip(ends_ms.chain([length_s * 1e3])) {
        let [from_ns, to_ns] = [*from_ms, to_ms].map(|ms| (ms.max(0.0) * 1e6).round() as u64);
        if from_ns < to_ns {
            let name = Some((*state).to_owned());
            packets.push(at(from_ns, TrackEvent { name, ..event(SLICE_BEGIN, uuid) }));
            packets.push(at(to_ns, event(SLICE_END, uuid)));
        }
    }
    packets
}

fn phase_packets(phases: &[PhaseRecord]) -> Vec<TracePacket> {
    let mut packets = vec![track(PHASES_UUID, "phases", None, None)];
    for phase in phases {
        let name = Some(phase.name.clone());
        let begin = event(SLICE_BEGIN, PHASES_UUID);
        packets.push(at(phase.start_us.saturating_mul(1000), TrackEvent { name, ..begin }));
        packets.push(at(phase.end_us.saturating_mul(1000), event(SLICE_END, PHASES_UUID)));
    }
    packets
}

/// Returns the samples from the trial's beginning on.
fn counter_packets(uuid: u64, curve: &Curve) -> impl Iterator<Item = TracePacket> {
    let samples = curve.t_s.iter().zip(&curve.value).filter(|(t_s, _)| **t_s >= 0.0);
    samples.map(move |(t_s, value)| {
        let double_counter_value = Some(*value);
        at((t_s * 1e9).round() as u64, TrackEvent { double_counter_value, ..event(COUNTER, uuid) })
    })
}

fn event(r#type: i32, uuid: u64) -> TrackEvent {
    TrackEvent { r#type: Some(r#type), track_uuid: Some(uuid), ..Default::default() }
}

fn at(timestamp_ns: u64, event: TrackEvent) -> TracePacket {
    TracePacket {
        timestamp: Some(timestamp_ns),
        trusted_packet_sequence_id: Some(SEQUENCE),
        track_event: Some(event),
        track_descriptor: None,
    }
}

/// Returns the description of a track; a track with a unit is a counter.
fn track(uuid: u64, name: &str, parent_uuid: Option<u64>, unit: Option<&str>) -> TracePacket {
    let counter = unit.map(|unit| CounterDescriptor { unit_name: Some(unit.to_owned()) });
    let name = Some(name.to_owned());
    let descriptor = TrackDescriptor { uuid: Some(uuid), name, parent_uuid, counter };
    TracePacket {
        timestamp: None,
        trusted_packet_sequence_id: Some(SEQUENCE),
        track_event: None,
        track_descriptor: Some(descriptor),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(name: &str, start_us: u64, end_us: u64) -> PhaseRecord {
        PhaseRecord { name: name.to_owned(), start_us, end_us, measure: true }
    }

    #[test]
    fn phases_are_slices_and_curves_are_counters() {
        let curve = |name: &str, t_s: &[f64], value: &[f64]| Curve {
            name: name.to_owned(),
            t_s: t_s.to_vec(),
            value: value.to_vec(),
        };
        let curves =
            vec![curve("f/0", &[-0.1, 0.5, 1.0], &[1.0, 2.5, 3.0]), curve("f/1", &[0.25], &[4.0])];
        let panel = Panel { title: "Smoothed RTT".into(), unit: "ms".into(), samples: 4, curves };
        let phases = [phase("alone", 0, 1_000_000), phase("both", 1_000_000, 2_500_000)];
        let mut bytes = Vec::new();
        write_trace(&mut bytes, &phases, 2.5, &[], &[panel]).unwrap();
        let trace = Trace::decode(&bytes[..]).unwrap();
        let tracks = trace.packet.iter().filter_map(|packet| packet.track_descriptor.clone());
        let tracks: Vec<TrackDescriptor> = tracks.collect();
        let names: Vec<&str> = tracks.iter().filter_map(|track| track.name.as_deref()).collect();
        assert_eq!(names, ["phases", "Smoothed RTT", "f/0", "f/1"]);
        assert_eq!(tracks[3].parent_uuid, tracks[1].uuid);
        let unit = tracks[2].counter.clone().unwrap().unit_name;
        assert_eq!(unit.as_deref(), Some("ms"));
        let events: Vec<_> = trace
            .packet
            .iter()
            .filter_map(|packet| {
                let event = packet.track_event.clone()?;
                let TrackEvent { r#type, track_uuid, double_counter_value, .. } = event;
                Some((packet.timestamp?, r#type?, track_uuid?, double_counter_value))
            })
            .collect();
        assert_eq!(
            events,
            [
                (0, SLICE_BEGIN, 1, None),
                (1_000_000_000, SLICE_END, 1, None),
                (1_000_000_000, SLICE_BEGIN, 1, None),
                (2_500_000_000, SLICE_END, 1, None),
                (500_000_000, COUNTER, 3, Some(2.5)),
                (1_000_000_000, COUNTER, 3, Some(3.0)),
                (250_000_000, COUNTER, 4, Some(4.0)),
            ]
        );
    }

    #[test]
    fn states_are_slices_of_a_track_per_flow() {
        let states = |kind: &str, flow_id: &str, changes: &[(f64, &'static str)]| States {
            kind: kind.to_owned(),
            flow_id: flow_id.to_owned(),
            changes: changes.to_vec(),
        };
        let all = [
            states("Loss recovery", "f/0", &[(-5.0, "open"), (1500.0, "recovery")]),
            states("bbr3: mode", "f/0", &[(-9.0, "STARTUP"), (-5.0, "DRAIN"), (10.5, "PROBE_BW")]),
            states("bbr3: mode", "f/1", &[(0.0, "STARTUP"), (2500.0, "DRAIN")]),
        ];
        let mut bytes = Vec::new();
        write_trace(&mut bytes, &[], 2.5, &all, &[]).unwrap();
        let trace = Trace::decode(&bytes[..]).unwrap();
        let tracks = trace.packet.iter().filter_map(|packet| packet.track_descriptor.as_ref());
        let tracks: Vec<_> =
            tracks.map(|track| (track.name.as_deref().unwrap(), track.parent_uuid)).collect();
        let expected = [
            ("phases", None),
            ("Loss recovery", None),
            ("f/0", Some(2)),
            ("bbr3: mode", None),
            ("f/0", Some(4)),
            ("f/1", Some(4)),
        ];
        assert_eq!(tracks, expected);
        let events = trace.packet.iter().filter_map(|packet| {
            let event = packet.track_event.as_ref()?;
            Some((packet.timestamp?, event.track_uuid?, event.name.as_deref().unwrap_or("end")))
        });
        let expected = [
            (0, 3, "open"),
            (1_500_000_000, 3, "end"),
            (1_500_000_000, 3, "recovery"),
            (2_500_000_000, 3, "end"),
            (0, 5, "DRAIN"),
            (10_500_000, 5, "end"),
            (10_500_000, 5, "PROBE_BW"),
            (2_500_000_000, 5, "end"),
            (0, 6, "STARTUP"),
            (2_500_000_000, 6, "end"),
        ];
        assert_eq!(events.collect::<Vec<_>>(), expected);
    }

    /// Perfetto's field numbers: packet 1; timestamp 8, sequence 10, event 11; type 9, track 11, double value 44.
    #[test]
    fn a_counter_has_the_wire_format_of_perfetto() {
        let packet = at(5, TrackEvent { double_counter_value: Some(1.0), ..event(COUNTER, 2) });
        let bytes = Trace { packet: vec![packet] }.encode_to_vec();
        let event = [0x48_u8, 4, 0x58, 2, 0xe1, 2, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f];
        let head = [0x0a_u8, 20, 0x40, 5, 0x50, 1, 0x5a, 14];
        assert_eq!(bytes, [&head[..], &event[..]].concat());
    }
}
