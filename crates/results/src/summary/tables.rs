//! Rows and data frames of the tables `summary_phase` and `summary_point`.

use polars::prelude::*;

use super::statistics;
use ccbench_proto::metric::Scope;

/// One metric of one trial: a row of `summary_phase`.
#[derive(Debug, Clone, PartialEq)]
pub struct PhaseRow {
    /// The point.
    pub point_id: u32,
    /// The repetition.
    pub trial: u16,
    /// The phase's name.
    pub phase: String,
    /// What `subject` is.
    pub scope: Scope,
    /// Name of the group, flow, probe or link; `all` for all flows.
    pub subject: String,
    /// Name of the metric.
    pub metric: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// The statistic over the phase.
    pub stat: &'static str,
    /// The value; an undefined value has no row.
    pub value: f64,
    /// Number of samples, intervals or flows.
    pub n: u32,
}

/// One metric of one point over its trials: a row of `summary_point`.
#[derive(Debug, Clone, PartialEq)]
pub struct PointRow {
    /// The point.
    pub point_id: u32,
    /// The phase's name.
    pub phase: String,
    /// What `subject` is.
    pub scope: Scope,
    /// The subject, as in [`PhaseRow`].
    pub subject: String,
    /// Name of the metric.
    pub metric: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// The statistic over the phase of one trial; `value` is always the mean over trials.
    pub stat: &'static str,
    /// The mean over trials.
    pub value: f64,
    /// Number of samples, intervals or flows in all trials.
    pub n: u32,
    /// Ends of the 95 % confidence interval; `None` with fewer than two trials.
    pub interval: Option<(f64, f64)>,
    /// Number of trials.
    pub n_trials: u32,
    /// Median over trials.
    pub median: f64,
    /// Sample standard deviation over trials; `None` with fewer than two trials.
    pub sd: Option<f64>,
    /// Ends of the 95 % percentile bootstrap interval.
    pub bootstrap: Option<(f64, f64)>,
}

/// Returns the table `summary_phase`.
pub(crate) fn phase_frame(rows: &[PhaseRow]) -> PolarsResult<DataFrame> {
    DataFrame::new_infer_height(vec![
        numbers("point_id", rows, |r| r.point_id),
        numbers("trial", rows, |r| u32::from(r.trial)).cast(&DataType::UInt16)?,
        text("phase", rows, |r| r.phase.clone()),
        text("scope", rows, |r| r.scope.as_str().to_owned()),
        text("subject", rows, |r| r.subject.clone()),
        text("metric", rows, |r| r.metric.to_owned()),
        text("unit", rows, |r| r.unit.to_owned()),
        text("stat", rows, |r| r.stat.to_owned()),
        numbers("value", rows, |r| r.value),
        numbers("n", rows, |r| r.n),
    ])
}

/// Returns the table `summary_point`.
pub(crate) fn point_frame(rows: &[PointRow]) -> PolarsResult<DataFrame> {
    let ends = |of: fn(&PointRow) -> Option<(f64, f64)>, pick: fn((f64, f64)) -> f64| {
        rows.iter().map(|r| of(r).map(pick)).collect::<Vec<_>>()
    };
    let end = |pick| ends(|r| r.interval, pick);
    let boot = |pick| ends(|r| r.bootstrap, pick);
    DataFrame::new_infer_height(vec![
        numbers("point_id", rows, |r| r.point_id),
        text("phase", rows, |r| r.phase.clone()),
        text("scope", rows, |r| r.scope.as_str().to_owned()),
        text("subject", rows, |r| r.subject.clone()),
        text("metric", rows, |r| r.metric.to_owned()),
        text("unit", rows, |r| r.unit.to_owned()),
        text("stat", rows, |r| r.stat.to_owned()),
        numbers("value", rows, |r| r.value),
        numbers("n", rows, |r| r.n),
        Column::new("ci_low".into(), end(|(low, _)| low)),
        Column::new("ci_high".into(), end(|(_, high)| high)),
        numbers("n_trials", rows, |r| r.n_trials),
        text("method", rows, |_| statistics::METHOD.to_owned()),
        numbers("median", rows, |r| r.median),
        Column::new("sd".into(), rows.iter().map(|r| r.sd).collect::<Vec<_>>()),
        Column::new("boot_low".into(), boot(|(low, _)| low)),
        Column::new("boot_high".into(), boot(|(_, high)| high)),
        text("boot_method", rows, |_| statistics::BOOTSTRAP_METHOD.to_owned()),
    ])
}

pub(crate) fn text<T>(name: &str, rows: &[T], value: impl Fn(&T) -> String) -> Column {
    Column::new(name.into(), rows.iter().map(value).collect::<Vec<_>>())
}

pub(crate) fn numbers<T, N>(name: &str, rows: &[T], value: impl Fn(&T) -> N) -> Column
where
    Series: NamedFrom<Vec<N>, [N]>,
{
    Column::new(name.into(), rows.iter().map(value).collect::<Vec<N>>())
}
