//! Time series of one trial. Curves are downsampled to the minimum and maximum of each time bin, so that spikes stay visible. Each table is
//! read once.

use polars::prelude::*;
use serde::Serialize;

use super::journal::TrialEnd;
use super::store::RunDir;
use super::summary::query::{
    Lines, collect, link_instants, number, scan, sender, srtt_ms, whole_intervals,
};
use crate::error::{Result, polars_error};
use crate::in_flight::in_flight;

/// A diagram over the time of one trial.
#[derive(Debug, Serialize)]
pub(crate) struct Panel {
    /// What the panel shows.
    pub(crate) title: String,
    /// Unit of the values.
    pub(crate) unit: String,
    /// Number of samples before downsampling.
    pub(crate) samples: u64,
    pub(crate) curves: Vec<Curve>,
}

/// One line of a panel.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Curve {
    /// The flow, probe or link.
    pub(crate) name: String,
    /// Seconds since the start of the trial, ascending.
    pub(crate) t_s: Vec<f64>,
    /// Values, in the panel's unit.
    pub(crate) value: Vec<f64>,
}

/// How finely curves are drawn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Detail {
    /// Number of time bins of the trial. Each curve has at most two points per bin.
    pub(crate) bins: u32,
    /// Whether times and values keep all digits. More digits than a screen shows would only enlarge a report.
    pub(crate) is_exact: bool,
}

/// An expression over a table's rows, with its title and unit.
struct Value {
    title: &'static str,
    unit: &'static str,
    of: Expr,
}

/// The source of panels: a table, a row filter, the column that names a curve, and the values.
struct PanelSource {
    table: &'static str,
    subject: &'static str,
    filter: Expr,
    values: Vec<Value>,
}

/// Panel titles, for callers that select panels.
pub(crate) const THROUGHPUT: &str = "Throughput";
pub(crate) const SRTT: &str = "Smoothed RTT";
pub(crate) const CWND: &str = "Congestion window";
pub(crate) const IN_FLIGHT: &str = "In flight";
pub(crate) const RETRANSMISSIONS: &str = "Retransmissions so far";
pub(crate) const PROBE_RTT: &str = "Probe RTT";
pub(crate) const QUEUE: &str = "Queue";
pub(crate) const RATE: &str = "Link rate";

fn sources() -> [PanelSource; 3] {
    let value = |title, unit, of| Value { title, unit, of };
    [
        PanelSource {
            table: "intervals",
            subject: "flow_id",
            filter: whole_intervals(),
            values: vec![value(THROUGHPUT, "Mbit/s", number("bits_per_second") / lit(1e6))],
        },
        PanelSource {
            table: "flow_samples",
            subject: "flow_id",
            filter: sender(),
            values: vec![
                value(SRTT, "ms", srtt_ms()),
                value(CWND, "packets", number("snd_cwnd_pkts")),
                value(IN_FLIGHT, "packets", in_flight()),
                value(RETRANSMISSIONS, "packets", number("total_retrans_pkts")),
            ],
        },
        PanelSource {
            table: "probes",
            subject: "probe_id",
            filter: lit(true),
            values: vec![value(PROBE_RTT, "ms", number("rtt_us") / lit(1e3))],
        },
    ]
}

/// Returns the panels of one trial whose titles `wanted` accepts, without those of [`cc_state_panels`]. Panels without samples are left out;
/// unwanted values are not read.
pub(crate) fn panels(
    run: &RunDir,
    end: &TrialEnd,
    detail: Detail,
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<Panel>> {
    let scale = (bin_width_s(end, detail.bins), detail.is_exact);
    let trial = &[end];
    let mut panels = Vec::new();
    for mut source in sources() {
        source.values.retain(|value| wanted(value.title));
        if source.values.is_empty() {
            continue;
        }
        let Some(rows) = scan(run, source.table, trial)? else { continue };
        let rows = rows.filter(source.filter);
        panels.extend(build_panels(
            run,
            source.table,
            source.subject,
            rows,
            &source.values,
            scale,
        )?);
    }
    let mut values = vec![
        Value { title: QUEUE, unit: "kB", of: col("backlog_bytes") / lit(1e3) },
        Value { title: RATE, unit: "Mbit/s", of: col("rate_bps") / lit(1e6) },
    ];
    values.retain(|value| wanted(value.title));
    if !values.is_empty()
        // Bytes of a queue are as its counters count them, without the link's overhead.
        && let Some(rows) = link_instants(run, trial, None)?
    {
        panels.extend(build_panels(run, "qdisc_samples", "link", rows, &values, scale)?);
    }
    Ok(panels)
}

/// Returns the width of a time bin in seconds.
fn bin_width_s(end: &TrialEnd, bins: u32) -> f64 {
    (end.length_s() / f64::from(bins)).max(1e-6)
}

/// Returns one panel for each variable of the congestion controls' internal state.
pub(crate) fn cc_state_panels(run: &RunDir, end: &TrialEnd, detail: Detail) -> Result<Vec<Panel>> {
    const TABLE: &str = "cc_state";
    let scale = (bin_width_s(end, detail.bins), detail.is_exact);
    let Some(rows) = scan(run, TABLE, &[end])? else { return Ok(vec![]) };
    let columns = ["cc", "variable", "unit", "flow_id", "t_s", "value"].map(col);
    let rows = rows.select(columns).collect().map_err(polars_error("read", run.path()))?.lazy();
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
        let rows = rows.clone().filter(of("cc", &cc).and(of("variable", &variable)));
        let value = Value { title: "", unit: "", of: number("value") };
        let found = build_panels(run, TABLE, "flow_id", rows, &[value], scale)?;
        let title = format!("{cc}: {variable}");
        panels.extend(found.into_iter().map(|panel| Panel {
            title: title.clone(),
            unit: unit.clone(),
            ..panel
        }));
    }
    Ok(panels)
}

/// Returns one panel for each value of a table, for bins of this width; see [`Detail::is_exact`].
fn build_panels(
    run: &RunDir,
    table: &str,
    subject: &str,
    rows: LazyFrame,
    values: &[Value],
    (bin_s, is_exact): (f64, bool),
) -> Result<Vec<Panel>> {
    let named =
        values.iter().zip(0..).map(|(value, nth)| value.of.clone().alias(name("value", nth)));
    let columns: Vec<Expr> =
        [col(subject).alias("subject"), col("t_s")].into_iter().chain(named).collect();
    let found = downsampled(run, table, rows.select(columns), values.len(), bin_s)?;
    let panels =
        values.iter().zip(0..).filter_map(|(value, nth)| panel(value, nth, &found, is_exact));
    Ok(panels.collect())
}

/// Returns the column name of an aggregate of the nth value.
fn name(what: &str, nth: usize) -> String {
    format!("{what}.{nth}")
}

/// Returns the minimum and maximum of every value per subject and time bin, with their times. Columns: `subject`, and for the nth value
/// `low.n`, `low_t_s.n`, `high.n`, `high_t_s.n`, `count.n`, in time order.
fn downsampled(
    run: &RunDir,
    table: &str,
    rows: LazyFrame,
    values: usize,
    bin_s: f64,
) -> Result<Lines> {
    let bin = (col("t_s") / lit(bin_s)).cast(DataType::Int64).alias("bin");
    let first_at = |value: &Expr, extreme: Expr| col("t_s").filter(value.clone().eq(extreme)).min();
    let mut aggregates = Vec::new();
    for nth in 0..values {
        let value = col(name("value", nth));
        aggregates.extend([
            value.clone().min().alias(name("low", nth)),
            value.clone().max().alias(name("high", nth)),
            first_at(&value, value.clone().min()).alias(name("low_t_s", nth)),
            first_at(&value, value.clone().max()).alias(name("high_t_s", nth)),
            value.count().cast(DataType::Float64).alias(name("count", nth)),
        ]);
    }
    let rows = rows
        .filter(col("t_s").is_not_null())
        .group_by([col("subject"), bin])
        .agg(aggregates)
        .sort(["subject", "bin"], SortMultipleOptions::default());
    collect(run, table, rows)
}

/// Returns the panel of a value; `None` without samples.
fn panel(value: &Value, nth: usize, found: &Lines, is_exact: bool) -> Option<Panel> {
    let mut panel = Panel {
        title: value.title.to_owned(),
        unit: value.unit.to_owned(),
        samples: 0,
        curves: vec![],
    };
    for line in 0..found.len() {
        let number = |what: &str, digits| {
            let number = found.number(&name(what, nth), line)?;
            Some(if is_exact { number } else { round_significant(number, digits) })
        };
        let point = |what: &str, at: &str| Some((number(at, 6)?, number(what, 5)?));
        let (Some(low), Some(high)) = (point("low", "low_t_s"), point("high", "high_t_s")) else {
            continue;
        };
        panel.samples += u64::from(found.count(&name("count", nth), line));
        let subject = found.text("subject", line);
        if panel.curves.last().is_none_or(|curve| curve.name != subject) {
            panel.curves.push(Curve { name: subject, t_s: vec![], value: vec![] });
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

/// Rounds to significant digits, but not the integer part: zeros in it would take as much space.
fn round_significant(value: f64, digits: i32) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let unit = 10_f64.powi((digits - 1 - value.abs().log10().floor() as i32).max(0));
    (value * unit).round() / unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_to_significant_digits() {
        assert_eq!(round_significant(12_345.678, 5), 12_346.0);
        assert_eq!(round_significant(-0.001_234_567, 3), -0.001_23);
        assert_eq!(round_significant(0.0, 5), 0.0);
        assert_eq!(round_significant(1_234_567.0, 5), 1_234_567.0);
        assert_eq!(round_significant(4_294_967_295.4, 5), 4_294_967_295.0);
    }

    #[test]
    fn exact_panels_keep_all_digits() {
        let rows = df!(
            "subject" => ["f/0"],
            "low.0" => [1_234_567.25],
            "low_t_s.0" => [1_234.567_891],
            "high.0" => [4_294_967_295.0],
            "high_t_s.0" => [1_234.567_892],
            "count.0" => [7.0],
        );
        let found = Lines::new(rows.unwrap());
        let value = Value { title: "", unit: "", of: col("value") };
        let curve = |is_exact| {
            let Curve { t_s, value, .. } =
                panel(&value, 0, &found, is_exact).unwrap().curves.remove(0);
            (t_s, value)
        };
        let exact = (vec![1_234.567_891, 1_234.567_892], vec![1_234_567.25, 4_294_967_295.0]);
        assert_eq!(curve(true), exact);
        let rounded = (vec![1234.57, 1234.57], vec![1_234_567.0, 4_294_967_295.0]);
        assert_eq!(curve(false), rounded);
    }
}
