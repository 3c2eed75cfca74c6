//! Curves over the time of one trial. However many samples there are, a curve keeps the least and the largest of every
//! stretch of time, so that no spike is lost. Each table is read once.

use polars::prelude::*;
use serde::Serialize;

use super::journal::TrialEnd;
use super::store::RunDir;
use super::summary::query::{
    Lines, collect, in_flight, link_instants, number, scan, sender, whole_intervals,
};
use crate::error::{Result, polars_error};

/// A diagram over the time of one trial.
#[derive(Debug, Serialize)]
pub(crate) struct Panel {
    /// What is shown.
    pub(crate) title: String,
    /// Of every value.
    pub(crate) unit: String,
    /// Samples that the curves stand for.
    pub(crate) samples: u64,
    pub(crate) curves: Vec<Curve>,
}

/// One line of a diagram.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Curve {
    /// The flow, probe or link.
    pub(crate) name: String,
    /// Seconds since the trial's beginning, rising.
    pub(crate) t_s: Vec<f64>,
    /// In the panel's unit.
    pub(crate) value: Vec<f64>,
}

/// A value of a table's rows, and what it is called.
struct Value {
    title: &'static str,
    unit: &'static str,
    of: Expr,
}

/// What panels are made of: a table, which rows of it, whose they are, and which values.
struct Source {
    table: &'static str,
    subject: &'static str,
    filter: Expr,
    values: Vec<Value>,
}

/// Titles of panels, for those who ask for some of them.
pub(crate) const THROUGHPUT: &str = "Throughput";
pub(crate) const SRTT: &str = "Smoothed RTT";
pub(crate) const CWND: &str = "Congestion window";
pub(crate) const IN_FLIGHT: &str = "In flight";
pub(crate) const RETRANSMISSIONS: &str = "Retransmissions so far";
pub(crate) const PROBE_RTT: &str = "Probe RTT";
pub(crate) const QUEUE: &str = "Queue";
pub(crate) const RATE: &str = "Link rate";

fn sources() -> [Source; 3] {
    let value = |title, unit, of| Value { title, unit, of };
    [
        Source {
            table: "intervals",
            subject: "flow_id",
            filter: whole_intervals(),
            values: vec![value(THROUGHPUT, "Mbit/s", number("bits_per_second") / lit(1e6))],
        },
        Source {
            table: "flow_samples",
            subject: "flow_id",
            filter: sender(),
            values: vec![
                value(SRTT, "ms", number("rtt_us") / lit(1e3)),
                value(CWND, "packets", number("snd_cwnd_pkts")),
                value(IN_FLIGHT, "packets", in_flight()),
                value(RETRANSMISSIONS, "packets", number("total_retrans_pkts")),
            ],
        },
        Source {
            table: "probes",
            subject: "probe_id",
            filter: lit(true),
            values: vec![value(PROBE_RTT, "ms", number("rtt_us") / lit(1e3))],
        },
    ]
}

/// The panels of one trial that are wanted, by their titles, without those of [`inner_states`]; each curve has at most
/// `2 * stretches` points. What has no samples has no panel; what nobody wants is not read.
pub(crate) fn panels(
    run: &RunDir,
    end: &TrialEnd,
    stretches: u32,
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<Panel>> {
    let stretch_s = stretch_s(end, stretches);
    let trial = &[end];
    let mut panels = Vec::new();
    for mut source in sources() {
        source.values.retain(|value| wanted(value.title));
        if source.values.is_empty() {
            continue;
        }
        let Some(rows) = scan(run, source.table, trial)? else { continue };
        let rows = rows.filter(source.filter);
        panels.extend(drawn(run, source.table, source.subject, rows, &source.values, stretch_s)?);
    }
    let mut values = vec![
        Value { title: QUEUE, unit: "kB", of: col("backlog_bytes") / lit(1e3) },
        Value { title: RATE, unit: "Mbit/s", of: col("rate_bps") / lit(1e6) },
    ];
    values.retain(|value| wanted(value.title));
    if !values.is_empty()
        && let Some(rows) = link_instants(run, trial)?
    {
        panels.extend(drawn(run, "qdisc_samples", "link", rows, &values, stretch_s)?);
    }
    Ok(panels)
}

/// How long a stretch of a trial is.
fn stretch_s(end: &TrialEnd, stretches: u32) -> f64 {
    (end.length_s() / f64::from(stretches)).max(1e-6)
}

/// A panel per variable of the congestion controls' inner state.
pub(crate) fn inner_states(run: &RunDir, end: &TrialEnd, stretches: u32) -> Result<Vec<Panel>> {
    const TABLE: &str = "cc_state";
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
        let found = drawn(run, TABLE, "flow_id", rows, &[value], stretch_s(end, stretches))?;
        let title = format!("{cc}: {variable}");
        panels.extend(found.into_iter().map(|panel| Panel {
            title: title.clone(),
            unit: unit.clone(),
            ..panel
        }));
    }
    Ok(panels)
}

/// A panel for each of these values of a table's rows.
fn drawn(
    run: &RunDir,
    table: &str,
    subject: &str,
    rows: LazyFrame,
    values: &[Value],
    stretch_s: f64,
) -> Result<Vec<Panel>> {
    let named =
        values.iter().zip(0..).map(|(value, nth)| value.of.clone().alias(name("value", nth)));
    let columns: Vec<Expr> =
        [col(subject).alias("subject"), col("t_s")].into_iter().chain(named).collect();
    let found = thinned(run, table, rows.select(columns), values.len(), stretch_s)?;
    let panels = values.iter().zip(0..).filter_map(|(value, nth)| panel(value, nth, &found));
    Ok(panels.collect())
}

/// Name of what belongs to the nth value.
fn name(what: &str, nth: usize) -> String {
    format!("{what}.{nth}")
}

/// The least and the largest of every value of every subject and stretch, with their times: columns `subject`, and for
/// the nth value `low.n`, `low_t_s.n`, `high.n`, `high_t_s.n`, `count.n`, in order of time.
fn thinned(
    run: &RunDir,
    table: &str,
    rows: LazyFrame,
    values: usize,
    stretch_s: f64,
) -> Result<Lines> {
    let stretch = (col("t_s") / lit(stretch_s)).cast(DataType::Int64).alias("stretch");
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
        .group_by([col("subject"), stretch])
        .agg(aggregates)
        .sort(["subject", "stretch"], SortMultipleOptions::default());
    collect(run, table, rows)
}

/// `None` where nothing was found.
fn panel(value: &Value, nth: usize, found: &Lines) -> Option<Panel> {
    let mut panel = Panel {
        title: value.title.to_owned(),
        unit: value.unit.to_owned(),
        samples: 0,
        curves: vec![],
    };
    for line in 0..found.len() {
        let number =
            |what: &str, digits| Some(rounded(found.number(&name(what, nth), line)?, digits));
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
