//! Curves for the screen. However many samples there are, a curve keeps the least and the largest of every stretch of
//! time, so that no spike is lost.

use polars::prelude::*;
use serde::Serialize;

use crate::results::Result;
use crate::results::journal::TrialEnd;
use crate::results::store::RunDir;
use crate::results::summary::query::{Lines, collect, link_instants, scan};

/// A diagram over the time of one trial.
#[derive(Debug, Serialize)]
pub(super) struct Panel {
    /// What is shown.
    title: String,
    /// Of every value.
    unit: String,
    /// Samples that the curves stand for.
    samples: u64,
    curves: Vec<Curve>,
}

/// One line of a diagram.
#[derive(Debug, Serialize)]
struct Curve {
    /// The flow, probe or link.
    name: String,
    /// Seconds since the trial's beginning, rising.
    t_s: Vec<f64>,
    /// In the panel's unit.
    value: Vec<f64>,
}

/// What a panel is made of: a table, which rows of it, and which value.
struct Source {
    title: &'static str,
    unit: &'static str,
    table: &'static str,
    subject: &'static str,
    value: Expr,
    filter: Expr,
}

fn sources() -> [Source; 6] {
    let number = |name: &str| col(name).cast(DataType::Float64);
    let data = || col("side").eq(lit("snd")).and(col("role").eq(lit("data")));
    let samples = |title, unit, value, filter| Source {
        title,
        unit,
        table: "flow_samples",
        subject: "flow_id",
        value,
        filter,
    };
    [
        Source {
            title: "Throughput",
            unit: "Mbit/s",
            table: "intervals",
            subject: "flow_id",
            value: number("bits_per_second") / lit(1e6),
            filter: col("side").eq(lit("rcv")).and(col("omitted").not()),
        },
        samples("Smoothed RTT", "ms", number("rtt_us") / lit(1e3), data()),
        samples("Congestion window", "packets", number("snd_cwnd_pkts"), data()),
        // RFC 6675's pipe, as tcp_packets_in_flight has it.
        samples(
            "In flight",
            "packets",
            number("unacked_pkts") - number("sacked_pkts") - number("lost_pkts")
                + number("retrans_pkts"),
            data(),
        ),
        samples("Retransmissions so far", "packets", number("total_retrans_pkts"), data()),
        Source {
            title: "Probe RTT",
            unit: "ms",
            table: "probes",
            subject: "probe_id",
            value: number("rtt_us") / lit(1e3),
            filter: lit(true),
        },
    ]
}

/// All panels of one trial; each curve has at most `2 * stretches` points. What has no samples has no panel.
pub(super) fn panels(run: &RunDir, end: &TrialEnd, stretches: u32) -> Result<Vec<Panel>> {
    let length_s = end.phases.iter().map(|phase| phase.end_us).max().unwrap_or(0) as f64 / 1e6;
    let stretch_s = (length_s / f64::from(stretches)).max(1e-6);
    let trial = &[end];
    let mut panels = Vec::new();
    for source in sources() {
        let Some(rows) = scan(run, source.table, trial)? else { continue };
        let rows = rows.filter(source.filter).select([
            col(source.subject).alias("subject"),
            col("t_s"),
            source.value.alias("value"),
        ]);
        let found = thinned(run, source.table, rows, stretch_s)?;
        panels.extend(panel(source.title, source.unit, &found));
    }
    if let Some(rows) = link_instants(run, trial)? {
        let queued = col("backlog_bytes") / lit(1e3);
        let rows = rows.select([col("link").alias("subject"), col("t_s"), queued.alias("value")]);
        let found = thinned(run, "qdisc_samples", rows, stretch_s)?;
        panels.extend(panel("Queue", "kB", &found));
    }
    panels.extend(inner_states(run, trial, stretch_s)?);
    Ok(panels)
}

/// A panel per variable of the congestion controls' inner state.
fn inner_states(run: &RunDir, trial: &[&TrialEnd], stretch_s: f64) -> Result<Vec<Panel>> {
    const TABLE: &str = "cc_state";
    let Some(rows) = scan(run, TABLE, trial)? else { return Ok(vec![]) };
    let keys = ["cc", "variable", "unit"].map(col);
    let kinds = rows
        .clone()
        .group_by(&keys)
        .agg([col("value").count()])
        .sort_by_exprs(&keys, SortMultipleOptions::default());
    let kinds = collect(run, TABLE, kinds)?;
    let mut panels = Vec::new();
    for line in 0..kinds.len() {
        let [cc, variable, unit] = ["cc", "variable", "unit"].map(|name| kinds.text(name, line));
        let of = |name: &str, wanted: &str| col(name).eq(lit(wanted.to_owned()));
        let rows = rows.clone().filter(of("cc", &cc).and(of("variable", &variable))).select([
            col("flow_id").alias("subject"),
            col("t_s"),
            col("value").cast(DataType::Float64),
        ]);
        let found = thinned(run, TABLE, rows, stretch_s)?;
        panels.extend(panel(&format!("{cc}: {variable}"), &unit, &found));
    }
    Ok(panels)
}

/// The least and the largest value of every subject and stretch, with their times: columns `subject`, `low`,
/// `low_t_s`, `high`, `high_t_s`, `n`, in order of time.
fn thinned(run: &RunDir, table: &str, rows: LazyFrame, stretch_s: f64) -> Result<Lines> {
    let stretch = (col("t_s") / lit(stretch_s)).cast(DataType::Int64).alias("stretch");
    let first_at = |extreme: Expr| col("t_s").filter(col("value").eq(extreme)).min();
    let rows = rows
        .filter(col("t_s").is_not_null().and(col("value").is_not_null()))
        .group_by([col("subject"), stretch])
        .agg([
            col("value").min().alias("low"),
            col("value").max().alias("high"),
            first_at(col("value").min()).alias("low_t_s"),
            first_at(col("value").max()).alias("high_t_s"),
            col("value").count().cast(DataType::Float64).alias("n"),
        ])
        .sort(["subject", "stretch"], SortMultipleOptions::default());
    collect(run, table, rows)
}

/// `None` where nothing was found.
fn panel(title: &str, unit: &str, found: &Lines) -> Option<Panel> {
    let mut panel =
        Panel { title: title.to_owned(), unit: unit.to_owned(), samples: 0, curves: vec![] };
    for line in 0..found.len() {
        let point = |value: &str, at: &str| {
            Some((rounded(found.number(at, line)?, 6), rounded(found.number(value, line)?, 5)))
        };
        let (Some(low), Some(high)) = (point("low", "low_t_s"), point("high", "high_t_s")) else {
            continue;
        };
        panel.samples += u64::from(found.count("n", line));
        let name = found.text("subject", line);
        if panel.curves.last().is_none_or(|curve| curve.name != name) {
            panel.curves.push(Curve { name, t_s: vec![], value: vec![] });
        }
        let Some(curve) = panel.curves.last_mut() else { continue };
        let mut both = if low.0 <= high.0 { vec![low, high] } else { vec![high, low] };
        both.dedup();
        for (t_s, value) in both {
            curve.t_s.push(t_s);
            curve.value.push(value);
        }
    }
    (!panel.curves.is_empty()).then_some(panel)
}

/// To so many significant digits: what a screen can show.
fn rounded(value: f64, digits: i32) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let unit = 10_f64.powi(digits - 1 - value.abs().log10().floor() as i32);
    (value * unit).round() / unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_that_a_screen_can_show() {
        assert_eq!(rounded(12_345.678, 5), 12_346.0);
        assert_eq!(rounded(-0.001_234_567, 3), -0.001_23);
        assert_eq!(rounded(0.0, 5), 0.0);
    }
}
