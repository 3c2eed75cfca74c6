//! Time-sequence graphs, like those of tcptrace: what a sender has sent, and what was acknowledged, over time.
//!
//! The data comes from `acks`, with a row per segment that reached the sender. A flow without such rows uses `flow_samples`.

use std::collections::BTreeMap;

use polars::prelude::*;

use super::data::Selection;
use super::error::{FigureError, Result};
use crate::journal::TrialEnd;
use crate::series::{Curve, Panel};
use crate::summary::query::{Lines, collect, number, scan, sender};

/// The curve drawn as marks: each shows the acknowledged sequence number at the time of a retransmission.
pub(super) const RETRANSMITTED: &str = "retransmitted";
/// Curves, by the name of their metric; the default ones come first.
const CURVES: [&str; 5] = ["acknowledged", "sent", RETRANSMITTED, "cwnd", "window"];
const DEFAULT_COUNT: usize = 3;
/// Maximum number of flows without an explicit selection.
const MAX_FLOWS: usize = 6;
/// Number of parts of the time axis, each of which has at most two points of a curve: finer than a printer's resolution.
const BINS: f64 = 2000.0;
const TABLES: [&str; 2] = ["acks", "flow_samples"];

/// A point per row, by curve: seconds and bytes.
type Points = BTreeMap<&'static str, Vec<(f64, f64)>>;

/// Returns a panel for each of the first selected flows, in megabytes since the first acknowledgement in this time.
pub(super) fn panels(
    data: &Selection,
    end: &TrialEnd,
    (from_s, to_s): (f64, f64),
) -> Result<Vec<Panel>> {
    let requested = &data.request.metrics;
    if let Some(metric) = requested.iter().find(|metric| !CURVES.contains(&metric.as_str())) {
        let known = CURVES.join(", ");
        let hint = format!("; there are: {known}");
        return Err(FigureError::UnknownMetric { metric: metric.clone(), hint });
    }
    let is_wanted = |name: &str| match requested.is_empty() {
        true => CURVES[..DEFAULT_COUNT].contains(&name),
        false => requested.iter().any(|metric| metric == name),
    };
    let mut flows: BTreeMap<String, Points> = BTreeMap::new();
    for table in TABLES {
        let Some(rows) = rows(data, end, table, (from_s, to_s))? else { continue };
        let mut of_table: BTreeMap<String, Points> = BTreeMap::new();
        for line in 0..rows.len() {
            take(&rows, line, of_table.entry(rows.text("flow_id", line)).or_default());
        }
        for (flow, points) in of_table {
            flows.entry(flow).or_insert(points);
        }
    }
    flows.retain(|flow, points| data.accepts_flow(flow) && points.contains_key(CURVES[0]));
    let panel = |(flow, points): (String, Points)| {
        let first = points.get(CURVES[0]).and_then(|acknowledged| acknowledged.first());
        let base = first.map_or(0.0, |(_, bytes)| *bytes);
        let names = CURVES.into_iter().filter(|name| is_wanted(name));
        let curves = names.filter_map(|name| Some((name, points.get(name)?)));
        let curves = curves.map(|(name, points)| curve(name, points, base, (from_s, to_s)));
        let curves: Vec<Curve> = curves.filter(|curve| !curve.t_s.is_empty()).collect();
        let samples = points.get(CURVES[0]).map_or(0, Vec::len) as u64;
        Panel { title: flow, unit: "MB".to_owned(), samples, curves }
    };
    let mut panels: Vec<Panel> = flows.into_iter().take(MAX_FLOWS).map(panel).collect();
    panels.retain(|panel| !panel.curves.is_empty());
    Ok(panels)
}

/// Returns the rows of all senders in this time, by flow and in time order.
fn rows(
    data: &Selection,
    end: &TrialEnd,
    table: &str,
    (from_s, to_s): (f64, f64),
) -> Result<Option<Lines>> {
    let Some(rows) = scan(&data.run, table, &[end])? else { return Ok(None) };
    let acknowledged = || number("bytes_acked");
    let window = number("snd_cwnd_pkts") * number("snd_mss_bytes");
    let inside = col("t_s").gt_eq(lit(from_s)).and(col("t_s").lt_eq(lit(to_s)));
    let rows = rows
        .filter(sender().and(inside))
        .select([
            col("flow_id").cast(DataType::String),
            number("t_s"),
            acknowledged().alias("acknowledged"),
            // The highest sequence number sent.
            (number("bytes_sent") - number("bytes_retrans")).alias("sent"),
            number("bytes_retrans").alias(RETRANSMITTED),
            (acknowledged() + window).alias("cwnd"),
            (acknowledged() + number("snd_wnd_bytes")).alias("window"),
        ])
        .sort_by_exprs(["flow_id", "t_s"].map(col), SortMultipleOptions::default());
    Ok(Some(collect(&data.run, table, rows)?))
}

/// Adds a row to the points of its flow, and a mark if the counter of retransmitted bytes has grown.
fn take(rows: &Lines, line: usize, points: &mut Points) {
    let Some(t_s) = rows.number("t_s", line) else { return };
    let acknowledged = rows.number("acknowledged", line);
    for name in CURVES.into_iter().filter(|name| *name != RETRANSMITTED) {
        if let Some(bytes) = rows.number(name, line) {
            points.entry(name).or_default().push((t_s, bytes));
        }
    }
    let Some(before) = line.checked_sub(1) else { return };
    let [counted, counted_before] = [line, before].map(|line| rows.number(RETRANSMITTED, line));
    let is_same_flow = rows.text("flow_id", before) == rows.text("flow_id", line);
    let has_grown = counted.zip(counted_before).is_some_and(|(now, before)| now > before);
    if let Some(bytes) = acknowledged.filter(|_| is_same_flow && has_grown) {
        points.entry(RETRANSMITTED).or_default().push((t_s, bytes));
    }
}

/// Keeps the first and the last point of each bin. They are the lowest and the highest, because sequence numbers never decrease.
fn curve(name: &str, points: &[(f64, f64)], base: f64, (from_s, to_s): (f64, f64)) -> Curve {
    let bin = |t_s: f64| ((t_s - from_s) / (to_s - from_s) * BINS) as u64;
    let is_kept = |nth: usize| {
        let own = bin(points[nth].0);
        let differs = |other: Option<&(f64, f64)>| other.is_none_or(|(t_s, _)| bin(*t_s) != own);
        differs(nth.checked_sub(1).and_then(|before| points.get(before)))
            || differs(points.get(nth + 1))
    };
    let kept = (0..points.len()).filter(|nth| is_kept(*nth)).map(|nth| points[nth]);
    let (t_s, value) = kept.map(|(t_s, bytes)| (t_s, (bytes - base) / 1e6)).unzip();
    Curve { name: name.to_owned(), t_s, value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bin_has_its_first_and_its_last_point() {
        let step = 1.0 / (BINS * 10.0);
        let points: Vec<(f64, f64)> =
            (0..25).map(|nth| ((f64::from(nth) + 0.5) * step, f64::from(nth) * 1e6)).collect();
        let curve = curve("sent", &points, 1e6, (0.0, 1.0));
        assert_eq!(curve.value, [-1.0, 8.0, 9.0, 18.0, 19.0, 23.0]);
    }

    #[test]
    fn marks_are_where_the_counter_has_grown() {
        let frame = df!(
            "flow_id" => ["a/0", "a/0", "a/0", "b/0"],
            "t_s" => [0.0, 1.0, 2.0, 0.0],
            "acknowledged" => [0.0, 5.0, 9.0, 0.0],
            "retransmitted" => [7.0, 7.0, 8.0, 99.0],
        );
        let rows = Lines::new(frame.unwrap());
        let mut points = Points::new();
        (0..4).for_each(|line| take(&rows, line, &mut points));
        assert_eq!(points[RETRANSMITTED], [(2.0, 9.0)]);
        assert_eq!(points["acknowledged"].len(), 4);
    }
}
