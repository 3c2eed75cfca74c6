//! Reads data files of flent (`flent/resultset.py`), versions 2 to 4, and those that ccbench exports. Pure.
//!
//! Of each series, the raw values are read, as flent measured them, or the values on the common time axis if it has no raw ones.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::LONGEST_S;
use super::named::{BoundedList, Lenient, Number, Reading, Text, bytes, count, nanos, plain};
use super::stamp::{self, BaseDate};
use crate::wire::{self, ProbeKind, Role, SampleSource, Side, run_event::Payload};

/// Limit of rows of missing replies per file, because a sequence number can be a million above the previous one.
const MAX_LOST: u32 = 1 << 14;
/// Series that flent computes from others; they have no raw values.
const COMPUTED: [&str; 4] = [" sum", " avg", " totals", " mean"];

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    version: Number,
    #[serde(default)]
    metadata: Lenient<Metadata>,
    #[serde(default)]
    x_values: BoundedList<Number>,
    #[serde(default)]
    results: BTreeMap<String, BoundedList<Number>>,
    #[serde(default)]
    raw_values: BTreeMap<String, BoundedList<Raw>>,
}

#[derive(Deserialize, Default, Clone, Debug)]
#[serde(default, rename_all = "UPPERCASE")]
struct Metadata {
    t0: Text,
    time: Text,
    series_meta: Lenient<BTreeMap<String, Lenient<SeriesMeta>>>,
}

#[derive(Deserialize, Default, Clone, Debug)]
#[serde(default, rename_all = "UPPERCASE")]
struct SeriesMeta {
    units: Text,
}

/// A raw value; those of a TCP flow may have fields of `ss`.
#[derive(Deserialize, Default, Clone, Debug)]
#[serde(default)]
struct Raw {
    /// Seconds since 1970, at its end.
    t: Number,
    val: Number,
    /// Length of the interval in seconds.
    dur: Number,
    seq: Number,
    tcp_cwnd: Number,
    /// Milliseconds.
    tcp_rtt: Number,
    tcp_rtt_var: Number,
    /// Mbit/s.
    tcp_delivery_rate: Number,
    tcp_pacing_rate: Number,
}

/// The quantity of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quantity {
    /// Mbit/s of a flow.
    Rate,
    /// Milliseconds of a probe.
    RoundTrip,
}

/// Reads a document.
pub(super) fn read(text: &[u8]) -> Reading {
    let mut out = Reading::new("flent");
    let document: Document = match serde_json::from_slice(text) {
        Ok(document) => document,
        Err(error) => {
            out.unread(&format!("not a data file of flent: {error}"));
            return out;
        }
    };
    let metadata = document.metadata.get().cloned().unwrap_or_default();
    let t0 = [&metadata.t0, &metadata.time].into_iter().find_map(Text::text);
    let t0_s = t0.and_then(|t0| Some(stamp::strip(t0, BaseDate::default())?.0 as f64 / 1e9));
    let is_computed = |name: &str| COMPUTED.iter().any(|end| name.ends_with(end));
    let mut raw_values = document.raw_values;
    raw_values.retain(|name, raw| !raw.items.is_empty() && !is_computed(name));
    if document.version.value().is_none_or(|version| version < 4.0) {
        raw_values.iter_mut().for_each(|(name, raw)| convert(name, &mut raw.items));
    }
    for (name, result) in document.results {
        if raw_values.contains_key(&name) || is_computed(&name) {
            continue;
        }
        match t0_s {
            Some(t0_s) => {
                raw_values.insert(name, on_axis(&document.x_values, &result, t0_s));
            }
            None => out.unread(&format!("{name}: no raw values, and no time T0 in the metadata")),
        }
    }
    let units = metadata.series_meta.get().cloned().unwrap_or_default();
    let mut lost_left = MAX_LOST;
    for (name, raw) in raw_values {
        out.leave_out(raw.more);
        let units = units.get(&name).and_then(Lenient::get).and_then(|meta| meta.units.text());
        match quantity(&name, units) {
            Some(Quantity::Rate) => rates(&name, &raw.items, &mut out),
            Some(Quantity::RoundTrip) => round_trips(&name, &raw.items, &mut lost_left, &mut out),
            None => {
                let units = units.unwrap_or("unknown");
                out.named.notes.push(format!(
                    "series `{name}` (unit {units}) is neither a flow's rate nor a round-trip time, so it makes no rows"
                ));
            }
        }
    }
    out
}

/// Converts raw values of netperf's UDP_RR, which are transactions per second before version 4. flent's `unserialise_compat`
/// recognises them by the same signs.
fn convert(name: &str, raw: &mut [Raw]) {
    if !name.contains("UDP") {
        return;
    }
    for raw in raw.iter_mut().filter(|raw| raw.dur.value().is_some()) {
        if let Some(per_second) = raw.val.value() {
            raw.val = match per_second > 0.0 {
                true => Lenient::Valid(1e3 / per_second),
                false => Lenient::default(),
            };
        }
    }
}

/// Converts values on the common axis to raw ones.
fn on_axis(
    x_values: &BoundedList<Number>,
    result: &BoundedList<Number>,
    t0_s: f64,
) -> BoundedList<Raw> {
    let raw = |(x, value): (&Number, &Number)| {
        let (x, value) = (x.value()?, value.value()?);
        Some(Raw { t: Lenient::Valid(t0_s + x), val: Lenient::Valid(value), ..Default::default() })
    };
    let items = x_values.items.iter().zip(&result.items).filter_map(raw).collect();
    BoundedList { items, more: result.more }
}

fn quantity(name: &str, units: Option<&str>) -> Option<Quantity> {
    let is_ping = name.to_ascii_lowercase().contains("ping");
    let is_flow = ["TCP", "UDP"].iter().any(|begin| name.starts_with(begin));
    match units {
        Some("ms") | None if is_ping => Some(Quantity::RoundTrip),
        None if is_flow => Some(Quantity::Rate),
        Some(unit) if is_flow && unit.starts_with("Mbit") => Some(Quantity::Rate),
        _ => None,
    }
}

/// Group and flow of a series: `TCP upload::2` is the flow `TCP-upload/2`.
fn flow(name: &str) -> (String, String) {
    let (group, number) = name.split_once("::").unwrap_or((name, "0"));
    let group = plain(group);
    let flow_id = format!("{group}/{}", plain(number));
    (group, flow_id)
}

/// The values that have this field, with their times, in order of time.
fn timed<'a>(raw: &'a [Raw], field: fn(&Raw) -> &Number) -> Vec<(f64, f64, &'a Raw)> {
    let value = |raw: &'a Raw| Some((raw.t.value()?, field(raw).value()?, raw));
    let mut all: Vec<_> = raw.iter().filter_map(value).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all
}

fn rates(name: &str, raw: &[Raw], out: &mut Reading) {
    let (group, flow_id) = flow(name);
    let values = timed(raw, |raw| &raw.val);
    let gaps: Vec<f64> = values.windows(2).map(|two| two[1].0 - two[0].0).collect();
    let mut begin_s = None;
    for (nth, (t_s, mbps, raw)) in values.iter().enumerate() {
        // No value precedes the first one, so it gets the duration of the next one.
        let gap_s = gaps.get(nth.saturating_sub(1)).copied();
        let seconds =
            raw.dur.value().or(gap_s).filter(|seconds| *seconds > 0.0 && *seconds <= LONGEST_S);
        let moved = seconds.and_then(|seconds| bytes(mbps * 1e6 / 8.0 * seconds));
        let (Some(at_ns), Some(seconds), Some(moved)) = (nanos(*t_s), seconds, moved) else {
            out.unread(&format!("{name}: {mbps} Mbit/s at {t_s}"));
            continue;
        };
        let begin_s = *begin_s.get_or_insert(t_s - seconds);
        out.put(Payload::Interval(wire::Interval {
            flow_id: flow_id.clone(),
            group: group.clone(),
            // netperf and iperf report the data that their side has moved; flent plots them as goodput.
            side: Side::Receiver.into(),
            at_ns,
            start_s: t_s - seconds - begin_s,
            end_s: t_s - begin_s,
            seconds,
            bytes: moved,
            bits_per_second: mbps * 1e6,
            ..Default::default()
        }));
    }
    for row in raw {
        if let Some(sample) = socket(row, &group, &flow_id) {
            out.put(Payload::FlowSample(sample));
        }
    }
}

/// The sample of the flow's socket from the `ss` fields of a raw value; `None` if it has none of them.
fn socket(raw: &Raw, group: &str, flow_id: &str) -> Option<wire::FlowSample> {
    let at_ns = nanos(raw.t.value()?)?;
    let micros = |ms: &Number| count(ms.value()? * 1e3);
    let rate = |mbps: &Number| bytes(mbps.value()? * 1e6 / 8.0);
    let sample = wire::FlowSample {
        at_ns,
        flow_id: flow_id.to_owned(),
        group: group.to_owned(),
        side: Side::Sender.into(),
        role: Role::Data.into(),
        sample_src: SampleSource::Ss.into(),
        snd_cwnd_pkts: raw.tcp_cwnd.value().and_then(count),
        rtt_us: micros(&raw.tcp_rtt),
        rttvar_us: micros(&raw.tcp_rtt_var),
        delivery_rate_bytes_per_s: rate(&raw.tcp_delivery_rate),
        pacing_rate_bytes_per_s: rate(&raw.tcp_pacing_rate),
        ..Default::default()
    };
    let counts = [sample.snd_cwnd_pkts, sample.rtt_us, sample.rttvar_us];
    let rates = [sample.delivery_rate_bytes_per_s, sample.pacing_rate_bytes_per_s];
    let has_any = counts.iter().any(Option::is_some) || rates.iter().any(Option::is_some);
    has_any.then_some(sample)
}

fn round_trips(name: &str, raw: &[Raw], lost_left: &mut u32, out: &mut Reading) {
    let probe_id = plain(name);
    let kind = if name.contains("UDP") { ProbeKind::Udp } else { ProbeKind::Ping };
    let mut before: Option<(u32, u64)> = None;
    for (nth, (t_s, ms, raw)) in timed(raw, |raw| &raw.val).into_iter().enumerate() {
        // flent's time is that of the reply.
        let Some(at_ns) = nanos(t_s - ms / 1e3).filter(|_| (0.0..1e9).contains(&ms)) else {
            out.unread(&format!("{name}: {ms} ms at {t_s}"));
            continue;
        };
        let seq = raw.seq.value().and_then(count).unwrap_or(nth as u32);
        let row = |at_ns, seq, rtt_us: Option<f64>| {
            let (probe_id, lost) = (probe_id.clone(), rtt_us.is_none());
            let kind = kind.into();
            Payload::Probe(wire::Probe {
                at_ns,
                probe_id,
                kind,
                seq,
                rtt_us,
                lost,
                ..Default::default()
            })
        };
        if let Some((seq_before, ns_before)) = before {
            // Sequence numbers between two replies are requests without a reply, at even intervals.
            let missing = seq.saturating_sub(seq_before).saturating_sub(1);
            let step_ns = at_ns.saturating_sub(ns_before) / u64::from(missing + 1);
            for nth in 1..=missing.min(*lost_left) {
                let at_ns = ns_before.saturating_add(step_ns * u64::from(nth));
                out.put(row(at_ns, seq_before + nth, None));
            }
            if missing > *lost_left {
                out.unread(&format!("{name}: unanswered requests beyond {MAX_LOST}"));
            }
            *lost_left = lost_left.saturating_sub(missing);
        }
        out.put(row(at_ns, seq, Some(ms * 1e3)));
        before = Some((seq, at_ns));
    }
}

#[cfg(test)]
mod tests;
