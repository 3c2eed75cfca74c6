//! Exports flent data files (format 4), which flent's plots and GUI open as tests of type `tcp_nup`, `tcp_ndown` or `rrul_be_nflows`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::{Compression, write::GzEncoder};
use polars::prelude::*;
use serde_json::{Value, json};

use super::error::Result;
use super::trials::{named_trials, not_empty};
use crate::error::io_error;
use crate::journal::TrialEnd;
use crate::part::write_file;
use crate::store::RunDir;
use crate::summary::query::{collect, number, scan, sender, srtt_ms, whole_intervals_of};

/// flent's step size, because all series share one time axis.
const STEP_S: f64 = 0.2;
const VERSION: u32 = 4;

/// Seconds since 1970, and the values of one series at that time.
type Samples = Vec<(f64, BTreeMap<&'static str, f64>)>;

/// Writes one file per trial into a folder. The series are `TCP upload::N` and `TCP download::N` (goodput in Mbit/s; the raw values include
/// `tcp_cwnd`, `tcp_rtt` and `tcp_delivery_rate`), the sum and mean of each direction, `Ping (ms) ICMP` of the first probe, or the first
/// flow's sRTT if the plan has no probe, and `Ping (ms)::PROBE` of the other probes. With both directions the series are those of
/// `rrul_be_nflows` (`TCP upload BE::N`). If a flow's receiver did not report, its rate is the sender's, and `SIDE` in its metadata is
/// `snd`. Returns the paths written.
///
/// # Errors
/// No trial has intervals, or a file cannot be written.
pub fn flent(run_dir: &Path, output: &Path) -> Result<Vec<PathBuf>> {
    let run = RunDir::open(run_dir)?;
    run.check(|table| ["intervals", "flow_samples", "probes"].contains(&table));
    let mut written = Vec::new();
    for (end, trial) in named_trials(&run) {
        let Some(object) = flent_document(&run, &end)? else { continue };
        std::fs::create_dir_all(output).map_err(io_error("make the directory", output))?;
        let to = output.join(format!("{trial}.flent.gz"));
        write_file(&to, |file| {
            let mut packed = GzEncoder::new(file, Compression::default());
            let done = packed
                .write_all(object.to_string().as_bytes())
                .and_then(|()| packed.finish().map(drop));
            done.map_err(io_error("write", &to))
        })?;
        written.push(to);
    }
    not_empty(written, run_dir, "no trial has flow intervals")
}

/// Returns the samples of each subject in time order. `values` has names and columns.
fn samples(
    run: &RunDir,
    table: &str,
    end: &TrialEnd,
    filter: Expr,
    subject: &str,
    values: &[(&'static str, Expr)],
) -> Result<BTreeMap<String, Samples>> {
    let mut found: BTreeMap<String, Samples> = BTreeMap::new();
    let Some(rows) = scan(run, table, &[end])? else { return Ok(found) };
    let columns = values.iter().map(|(name, of)| of.clone().alias(*name));
    let columns: Vec<Expr> =
        [col(subject), (number("t_ns") / lit(1e9)).alias("t")].into_iter().chain(columns).collect();
    let rows = rows
        .filter(filter.and(col("t_ns").is_not_null()))
        .select(columns)
        .sort_by_exprs([col(subject), col("t")], SortMultipleOptions::default());
    let lines = collect(run, table, rows)?;
    for line in 0..lines.len() {
        let Some(t) = lines.number("t", line) else { continue };
        let value = |(name, _): &(&'static str, Expr)| Some((*name, lines.number(name, line)?));
        let values: BTreeMap<&'static str, f64> = values.iter().filter_map(value).collect();
        found.entry(lines.text(subject, line)).or_default().push((t, values));
    }
    Ok(found)
}

/// Returns the content of the file; `None` for a trial without intervals.
fn flent_document(run: &RunDir, end: &TrialEnd) -> Result<Option<Value>> {
    let rate = [("val", number("bytes") * lit(8e-6) / col("seconds"))];
    let of = |side| samples(run, "intervals", end, whole_intervals_of(side), "flow_id", &rate);
    let mut flows = of("rcv")?;
    let mut sent = of("snd")?;
    sent.retain(|flow, _| !flows.contains_key(flow));
    let only_sent: BTreeSet<String> = sent.keys().cloned().collect();
    flows.extend(sent);
    if flows.is_empty() {
        return Ok(None);
    }
    let of_socket = [
        ("tcp_cwnd", number("snd_cwnd_pkts")),
        ("tcp_rtt", srtt_ms()),
        ("tcp_delivery_rate", number("delivery_rate_bytes_per_s") * lit(8e-6)),
    ];
    let sockets = samples(run, "flow_samples", end, sender(), "flow_id", &of_socket)?;
    let answered = [("val", number("rtt_us") / lit(1e3))];
    let pings = samples(run, "probes", end, col("rtt_us").is_not_null(), "probe_id", &answered)?;
    // Without rows of flows, use the first and the last node.
    let node = |name: Option<&String>| name.cloned().unwrap_or_default();
    let nodes = || (node(end.clocks.keys().next()), node(end.clocks.keys().next_back()));
    let ends = ends(run, end)?.unwrap_or_else(nodes);
    let downloads = downloads(run, end, &ends.0)?;
    let first_s =
        flows.values().chain(pings.values()).filter_map(|samples| Some(samples.first()?.0));
    let t0_s = end
        .clocks
        .values()
        .next()
        .map(|clock| {
            (clock.t0_ns.cast_signed().saturating_add(clock.realtime_offset_ns)) as f64 / 1e9
        })
        .unwrap_or_else(|| first_s.fold(f64::INFINITY, f64::min));
    let sets = [&only_sent, &downloads];
    Ok(Some(assemble(run, end, t0_s, &ends, [&flows, &sockets, &pings], sets)))
}

/// Returns the source and destination nodes of the first flow.
fn ends(run: &RunDir, end: &TrialEnd) -> Result<Option<(String, String)>> {
    let Some(rows) = scan(run, "flows", &[end])? else { return Ok(None) };
    let nodes = [col("node_src"), col("node_dst")];
    let rows = rows
        .filter(col("role").eq(lit("data")))
        .sort_by_exprs([col("flow_id")], SortMultipleOptions::default())
        .select(nodes)
        .limit(1);
    let lines = collect(run, "flows", rows)?;
    let named = |name| lines.text(name, 0);
    Ok((lines.len() > 0).then(|| (named("node_src"), named("node_dst"))))
}

/// Returns the flows whose data the node `local` receives. Of flows between other nodes, returns those whose data the connecting node
/// receives.
fn downloads(run: &RunDir, end: &TrialEnd, local: &str) -> Result<BTreeSet<String>> {
    let Some(rows) = scan(run, "flows", &[end])? else { return Ok(BTreeSet::new()) };
    let columns = ["flow_id", "side", "node", "node_src", "node_dst"];
    let rows = rows
        .filter(col("role").eq(lit("data")))
        .select(columns.map(|name| col(name).cast(DataType::String)))
        .sort_by_exprs([col("side")], SortMultipleOptions::default());
    let lines = collect(run, "flows", rows)?;
    // Senders are last: their rows count if an imported file has both sides of a flow on one node.
    let mut is_download = BTreeMap::new();
    for line in 0..lines.len() {
        let [flow, side, node, src, dst] = columns.map(|name| lines.text(name, line));
        if src.is_empty() || dst.is_empty() {
            continue;
        }
        let other = if node == src { &dst } else { &src };
        let (from, to) = if side == "snd" { (&node, other) } else { (other, &node) };
        is_download.insert(flow, to == local || (from != local && *to == src));
    }
    is_download.retain(|_, is_download| *is_download);
    Ok(is_download.into_keys().collect())
}

/// The series of a file, by name.
struct Series {
    x: Vec<f64>,
    t0_s: f64,
    results: BTreeMap<String, Vec<Option<f64>>>,
    raw: BTreeMap<String, Vec<Value>>,
    meta: BTreeMap<String, Value>,
}

impl Series {
    fn add(&mut self, name: &str, samples: &Samples, socket: Option<&Samples>, meta: Value) {
        self.results.insert(name.to_owned(), on_grid(samples, self.t0_s, &self.x));
        self.raw.insert(name.to_owned(), raw_values(samples, socket));
        self.meta.insert(name.to_owned(), meta);
    }

    /// Adds a series of the known values of all series whose names have this beginning. `of` gets their sum and their number.
    fn combine(&mut self, name: &str, begin: &str, of: fn(f64, f64) -> f64) {
        let of_begin = self.results.iter().filter(|(name, _)| name.starts_with(begin));
        let all: Vec<&Vec<Option<f64>>> = of_begin.map(|(_, values)| values).collect();
        let at = |nth: usize| {
            let known: Vec<f64> = all.iter().filter_map(|values| values[nth]).collect();
            (!known.is_empty()).then(|| of(known.iter().sum(), known.len() as f64))
        };
        let combined = (0..self.x.len()).map(at).collect();
        self.results.insert(name.to_owned(), combined);
    }
}

fn assemble(
    run: &RunDir,
    end: &TrialEnd,
    t0_s: f64,
    ends: &(String, String),
    [flows, sockets, pings]: [&BTreeMap<String, Samples>; 3],
    [only_sent, downloads]: [&BTreeSet<String>; 2],
) -> Value {
    let length_s = end.length_s();
    let steps = (length_s / STEP_S).ceil() as usize;
    let x: Vec<f64> = (0..=steps).map(|nth| nth as f64 * STEP_S).collect();
    let (results, raw, meta) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut series = Series { x, t0_s, results, raw, meta };
    let down = flows.keys().filter(|flow| downloads.contains(*flow)).count();
    // flent's test of both directions has the traffic class in the names of flows.
    let (test, class) = match down {
        0 => ("tcp_nup", ""),
        _ if down == flows.len() => ("tcp_ndown", ""),
        _ => ("rrul_be_nflows", " BE"),
    };
    let mut directions: BTreeMap<&str, usize> = BTreeMap::new();
    for (flow, samples) in flows {
        let direction = if downloads.contains(flow) { "download" } else { "upload" };
        let number = directions.entry(direction).or_default();
        *number += 1;
        let side = if only_sent.contains(flow) { "snd" } else { "rcv" };
        let meta = json!({ "UNITS": "Mbits/s", "FLOW": flow, "SIDE": side, "RUNNER": "ccbench" });
        let name = format!("TCP {direction}{class}::{number}");
        series.add(&name, samples, sockets.get(flow), meta);
    }
    for (name, samples) in round_trips(pings, sockets) {
        series.add(&name, &samples, None, json!({ "UNITS": "ms", "RUNNER": "ccbench" }));
    }
    let both = directions.len() > 1;
    if both {
        series.combine("TCP totals", "TCP ", |sum, _| sum);
        series.combine("Ping (ms) avg", "Ping (ms)", |sum, n| sum / n);
    }
    for direction in directions.keys() {
        let begin = format!("TCP {direction}{class}::");
        series.combine(&format!("TCP {direction} sum"), &begin, |sum, _| sum);
        series.combine(&format!("TCP {direction} avg"), &begin, |sum, n| sum / n);
    }
    let streams: BTreeMap<String, String> =
        directions.iter().map(|(of, count)| (format!("{of}_streams"), count.to_string())).collect();
    let mut metadata = metadata_json(run, end, (t0_s, length_s), ends);
    metadata["NAME"] = json!(test);
    metadata["TEST_PARAMETERS"] = json!(streams);
    metadata["SERIES_META"] = json!(series.meta);
    json!({
        "version": VERSION,
        "x_values": series.x,
        "results": series.results,
        "raw_values": series.raw,
        "metadata": metadata,
    })
}

/// Returns the round-trip times with flent's names: those of the probes or, without any, of the first socket.
fn round_trips(
    pings: &BTreeMap<String, Samples>,
    sockets: &BTreeMap<String, Samples>,
) -> Vec<(String, Samples)> {
    let first = "Ping (ms) ICMP".to_owned();
    if pings.is_empty() {
        let rtt = |(t, values): &(f64, BTreeMap<&'static str, f64>)| {
            Some((*t, BTreeMap::from([("val", *values.get("tcp_rtt")?)])))
        };
        let of_socket =
            |samples: &Samples| (first.clone(), samples.iter().filter_map(rtt).collect());
        return sockets.values().next().map(of_socket).into_iter().collect();
    }
    let name = |(nth, probe): (usize, &String)| match nth {
        0 => first.clone(),
        _ => format!("Ping (ms)::{probe}"),
    };
    pings.keys().enumerate().map(name).zip(pings.values().cloned()).collect()
}

/// Returns flent's metadata of a file, except for the test.
fn metadata_json(
    run: &RunDir,
    end: &TrialEnd,
    (t0_s, length_s): (f64, f64),
    (from, to): &(String, String),
) -> Value {
    let stamp = jiff::Timestamp::from_microsecond((t0_s * 1e6) as i64).unwrap_or_default();
    let (factors, points) = run.points();
    let levels: BTreeMap<String, String> =
        points.get(&end.point_id).cloned().unwrap_or_default().into_iter().collect();
    let title = factors
        .iter()
        .filter_map(|factor| levels.get(factor))
        .cloned()
        .collect::<Vec<_>>()
        .join(" ");
    let directory = run.name();
    json!({
        "TITLE": format!("{title} trial {}", end.trial).trim(),
        "DATA_FILENAME": format!("point-{}-trial-{:02}.flent.gz", end.point_id, end.trial),
        "TIME": stamp.to_string(),
        "T0": stamp.to_string(),
        "LENGTH": length_s,
        "TOTAL_LENGTH": length_s,
        "STEP_SIZE": STEP_S,
        "DELAY": 0,
        "LOCAL_HOST": from,
        "HOST": to,
        "HOSTS": end.clocks.keys().collect::<Vec<_>>(),
        "IP_VERSION": 4,
        "NOTE": format!("exported from ccbench {directory}"),
        "CCBENCH_LEVELS": levels,
        "CCBENCH_STATUS": end.status.as_str(),
    })
}

/// Returns the values on the common time axis, linearly interpolated; `None` outside the samples.
fn on_grid(samples: &Samples, t0_s: f64, x: &[f64]) -> Vec<Option<f64>> {
    let known: Vec<(f64, f64)> =
        samples.iter().filter_map(|(t, values)| Some((t - t0_s, *values.get("val")?))).collect();
    let mut after = 0;
    x.iter()
        .map(|at| {
            while after < known.len() && known[after].0 < *at {
                after += 1;
            }
            let (t1, v1) = *known.get(after)?;
            let (t0, v0) = *known.get(after.checked_sub(1).unwrap_or(after))?;
            match t1 > t0 {
                true => Some(v0 + (v1 - v0) * (at - t0) / (t1 - t0)),
                false => ((t1 - at).abs() < STEP_S / 2.0).then_some(v1),
            }
        })
        .collect()
}

/// Returns flent's raw values, one object per sample, with samples of the socket between the rates.
fn raw_values(samples: &Samples, socket: Option<&Samples>) -> Vec<Value> {
    let mut all: Vec<(f64, Value)> = Vec::new();
    for (t, values) in samples.iter().chain(socket.into_iter().flatten()) {
        let mut object = json!(values);
        object["t"] = json!(t);
        all.push((*t, object));
    }
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all.into_iter().map(|(_, object)| object).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpolates_between_samples_only() {
        let sample = |t: f64, value: f64| (t, BTreeMap::from([("val", value)]));
        let samples = vec![sample(100.2, 10.0), sample(100.6, 30.0), sample(100.8, 30.0)];
        let grid = on_grid(&samples, 100.0, &[0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
        let close =
            |found: Option<f64>, wanted: f64| found.is_some_and(|v| (v - wanted).abs() < 1e-6);
        assert!(grid[0].is_none() && grid[5].is_none(), "{grid:?}");
        assert!(close(grid[1], 10.0) && close(grid[2], 20.0) && close(grid[3], 30.0), "{grid:?}");
    }
}
