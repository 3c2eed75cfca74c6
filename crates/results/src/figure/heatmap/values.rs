//! The value of each point: a metric of the summary, or a group's share of the throughput.

use std::collections::{BTreeMap, BTreeSet};

use ccbench_proto::metric::{Metric, Scope, UNDEFINED, WHOLE_TRIAL, find};

use crate::csv::{Cell, Table, quoted};
use crate::display::readable;
use crate::figure::data::{Selection, comma_separated, group_of};
use crate::figure::error::{FigureError, Result};
use crate::figure::phases::titled;
use crate::figure::request::Kind;
use crate::model::name_and_stat;
use crate::summary::statistics::mean_with_interval;
use crate::summary::{PointRow, Summary};

pub(super) use crate::model::THROUGHPUT_SHARE as SHARE;

/// The values of a heatmap or of lines.
pub(super) struct Values {
    /// What the values are, with the unit.
    pub(super) title: String,
    pub(super) phase: String,
    pub(super) subject: String,
    pub(super) metric: String,
    pub(super) stat: &'static str,
    /// The unit in the CSV.
    pub(super) unit: &'static str,
    /// The divisor from values in the CSV to numbers in the figure.
    pub(super) scale: f64,
    pub(super) points: BTreeMap<u32, Value>,
    /// The group whose share is shown, and its competitors.
    pub(super) groups: Option<(String, Vec<String>)>,
}

/// The value of one point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Value {
    pub(super) mean: f64,
    pub(super) interval: Option<(f64, f64)>,
    pub(super) trials: u32,
    /// The share if all flows got the same throughput.
    pub(super) equal: Option<f64>,
}

impl Values {
    /// Returns the values of the requested metric. By default, these are throughputs, or throughput shares if there are several `panels`.
    pub(super) fn from_selection(
        data: &Selection,
        summary: &Summary,
        panels: bool,
    ) -> Result<Option<Self>> {
        let requested = data.request.metrics.first().map(String::as_str);
        match requested {
            Some(SHARE) => shares(data, summary).map(Some),
            None if panels => shares(data, summary).or_else(|_| metric(data, summary)).map(Some),
            _ => metric_if_any(data, summary),
        }
    }

    /// Returns a CSV table of points: their levels, with the factors `first` before the others; what the values are; the value with its
    /// interval and trials; and further columns.
    pub(super) fn csv<const N: usize>(
        &self,
        data: &Selection,
        (factors, first): (&[&str], [&str; 2]),
        further: [&str; N],
        rows: impl Iterator<Item = (u32, Option<Value>, [Cell; N])>,
    ) -> String {
        let mut factors = factors.to_vec();
        factors.sort_by_key(|factor| (*factor != first[0], *factor != first[1]));
        let names: Vec<String> = factors.iter().map(|factor| quoted(factor)).collect();
        let of_values = ["phase", "subject", "metric", "stat", "unit"];
        let numbers = ["mean", "ci95_low", "ci95_high", "trials"];
        let columns = ["point_id"].into_iter().chain(names.iter().map(String::as_str));
        let columns = columns.chain(of_values).chain(numbers).chain(further);
        let mut csv = Table::new(&columns.collect::<Vec<_>>());
        let Self { phase, subject, metric, stat, unit, .. } = self;
        for (point, value, more) in rows {
            let mut row: Vec<Cell> = vec![f64::from(point).into()];
            let level = |factor: &&str| data.level(point, factor).unwrap_or_default().into();
            row.extend(factors.iter().map(level));
            row.extend([phase.as_str(), subject, metric, stat, unit].map(Cell::from));
            let interval = value.and_then(|value| value.interval);
            row.extend([
                value.map(|value| value.mean).into(),
                interval.map(|interval| interval.0).into(),
                interval.map(|interval| interval.1).into(),
                value.map(|value| f64::from(value.trials)).into(),
            ]);
            row.extend(more);
            csv.row(&row);
        }
        csv.finish()
    }
}

fn metric(data: &Selection, summary: &Summary) -> Result<Values> {
    metric_if_any(data, summary)?.ok_or_else(|| data.no_data("no point has a value"))
}

fn metric_if_any(data: &Selection, summary: &Summary) -> Result<Option<Values>> {
    let rows = rows(data, summary)?;
    let Some(first) = rows.first() else { return Ok(None) };
    let (scale, unit) = readable(first.unit);
    let value = |row: &PointRow| Value {
        mean: row.value,
        interval: row.interval,
        trials: row.n_trials,
        equal: None,
    };
    Ok(Some(Values {
        title: format!(
            "{} of {}, {}{}",
            titled(first.metric, first.stat),
            if first.scope == Scope::Net { "all flows" } else { &first.subject },
            phase_text(&first.phase),
            if unit == "1" { String::new() } else { format!(" ({unit})") }
        ),
        phase: first.phase.clone(),
        subject: first.subject.clone(),
        metric: first.metric.to_owned(),
        stat: first.stat,
        unit: first.unit,
        scale,
        points: rows.iter().map(|row| (row.point_id, value(row))).collect(),
        groups: None,
    }))
}

fn phase_text(phase: &str) -> String {
    if phase == WHOLE_TRIAL { "whole trials".to_owned() } else { format!("phase “{phase}”") }
}

/// Returns the share of the group under test in the throughput of all groups, in the phase in which most flows run.
fn shares(data: &Selection, summary: &Summary) -> Result<Values> {
    let phase = data.points().first().and_then(|id| data.busiest_phase(*id));
    let phase = phase.map_or(String::new(), |phase| phase.name);
    // Bits per second of each group, by point and trial.
    let mut trials: BTreeMap<(u32, u16), BTreeMap<&str, f64>> = BTreeMap::new();
    let is_throughput = |row: &&crate::summary::PhaseRow| {
        (row.metric, row.stat, row.scope) == ("throughput_sum", "mean", Scope::Group)
            && row.phase == phase
    };
    for row in summary.phase_rows.iter().filter(is_throughput) {
        trials.entry((row.point_id, row.trial)).or_default().insert(&row.subject, row.value);
    }
    let groups: BTreeSet<&str> = trials.values().flat_map(|trial| trial.keys().copied()).collect();
    let names: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
    let subject = data.group_under_test(&names).filter(|_| names.len() > 1).ok_or_else(|| {
        data.no_data(&format!(
            "a share of the throughput needs two flow groups in {}",
            phase_text(&phase)
        ))
    })?;
    let mut per_point: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for ((point, _), trial) in &trials {
        let all: f64 = trial.values().sum();
        let own = trial.get(subject.as_str()).filter(|_| trial.len() > 1 && all > 0.0);
        per_point.entry(*point).or_default().extend(own.map(|own| own / all));
    }
    let value = |(point, shares): (u32, Vec<f64>)| {
        let mean = mean_with_interval(&shares)?;
        let running = data.running_groups(point, &phase);
        let flows: u32 = running.values().sum();
        let own = running.get(subject.as_str()).copied().unwrap_or(0);
        let equal = if flows > 0 { f64::from(own) / f64::from(flows) } else { 0.5 };
        let trials = shares.len() as u32;
        Some((
            point,
            Value { mean: mean.value, interval: mean.interval, trials, equal: Some(equal) },
        ))
    };
    let others = names.into_iter().filter(|name| *name != subject).collect();
    let points = per_point.into_iter().filter_map(value).collect();
    Ok(Values {
        title: format!("Share of {subject} in the throughput, {} (%)", phase_text(&phase)),
        phase,
        metric: SHARE.to_owned(),
        stat: "mean",
        unit: "1",
        scale: 0.01,
        points,
        groups: Some((subject.clone(), others)),
        subject,
    })
}

/// Returns the rows of the requested metric, one per point: from the selected phase or the one with most flows, and of the selected group,
/// or of all flows together if there is such a row. The default metric of heatmaps is that of the group under test.
fn rows(data: &Selection, summary: &Summary) -> Result<Vec<PointRow>> {
    let requested = data.request.metrics.first().map_or("throughput_sum", String::as_str);
    let (name, stat) = name_and_stat(requested);
    let phase = data.points().first().and_then(|id| data.busiest_phase(*id));
    let phase = phase.map_or(String::new(), |phase| phase.name);
    let fits = |row: &&PointRow| row.metric == name && stat.is_none_or(|stat| row.stat == stat);
    let mut anywhere: Vec<&PointRow> = summary.point_rows.iter().filter(fits).collect();
    let is_defined = |row: &&PointRow| row.stat != UNDEFINED;
    // If the metric is undefined in the first trial, the number of undefined values is its first statistic.
    if stat.is_none() && anywhere.iter().any(is_defined) {
        anywhere.retain(is_defined);
    }
    // Some metrics cover whole trials; settling times exist only in the phase in which a flow starts or stops.
    let phases: BTreeSet<&str> = anywhere.iter().map(|row| row.phase.as_str()).collect();
    let only = phases.first().filter(|_| phases.len() == 1);
    let only = only.filter(|only| **only == WHOLE_TRIAL || data.wanted("phase").is_none());
    let phase = only.map_or(phase, |only| (*only).to_owned());
    let of_metric: Vec<&PointRow> =
        anywhere.iter().copied().filter(|row| row.phase == phase).collect();
    if of_metric.is_empty() && !anywhere.is_empty() {
        let phases: Vec<&str> = phases.into_iter().collect();
        let reason = format!(
            "`{requested}` has no value in this phase; it has values in {}",
            phases.join(", ")
        );
        return Err(FigureError::Where { column: "phase".to_owned(), value: phase, reason });
    }
    if of_metric.is_empty() {
        return Err(FigureError::UnknownMetric {
            metric: requested.to_owned(),
            hint: "; this run has no values for it".to_owned(),
        });
    }
    let subject = |row: &PointRow| (row.scope, row.subject.clone());
    let wanted = ["flow_id", "link", "group"].into_iter().find_map(|c| Some((c, data.wanted(c)?)));
    let chosen = match wanted {
        Some((column, value)) => {
            let found = of_metric.iter().find(|row| of_wanted(data, row));
            Some(found.ok_or_else(|| {
                let subjects: BTreeSet<&String> =
                    of_metric.iter().map(|row| &row.subject).collect();
                let reason = format!(
                    "`{requested}` has no value with this filter; it has values for {}",
                    comma_separated(subjects)
                );
                FigureError::Where { column: column.to_owned(), value: value.to_owned(), reason }
            })?)
        }
        None => {
            let group = data.group_under_test(&summary.groups());
            let of_group = |row: &&&PointRow| {
                row.scope == Scope::Group && Some(&row.subject) == group.as_ref()
            };
            // As in `[[expect]]`, a metric without a subject is that of all flows.
            let is_default = data.request.kind == Kind::Heatmap && data.request.metrics.is_empty();
            let of_all = of_metric.iter().find(|row| row.scope == Scope::Net && !is_default);
            let of_all_or_group = of_all.or_else(|| of_metric.iter().find(of_group));
            of_all_or_group.or_else(|| of_metric.iter().min_by_key(|row| subject(row)))
        }
    };
    let Some(chosen) = chosen else { return Ok(vec![]) };
    let of = subject(chosen);
    let of_subject: Vec<&PointRow> =
        of_metric.iter().copied().filter(|row| subject(row) == of).collect();
    Ok(of_statistic(&of_subject, name, chosen))
}

/// Returns the rows with the default statistic of a metric, as in `[[expect]]`. If no point has that, they are those with the statistic of
/// the chosen row.
fn of_statistic(rows: &[&PointRow], name: &str, chosen: &PointRow) -> Vec<PointRow> {
    let default = find(name, chosen.scope).map(Metric::default_stat);
    let default = default.filter(|stat| rows.iter().any(|row| row.stat == *stat));
    let stat = default.unwrap_or(chosen.stat);
    rows.iter().filter(|row| row.stat == stat).map(|row| (*row).clone()).collect()
}

/// Returns whether the filters accept a row's group, flow or link.
fn of_wanted(data: &Selection, row: &PointRow) -> bool {
    let is = |column: &str, scope: Scope| {
        data.wanted(column).is_none_or(|name| row.scope == scope && row.subject == name)
    };
    let of_group = data.wanted("group").is_none_or(|group| match row.scope {
        Scope::Net => data.wants_all_flows(),
        Scope::Group => row.subject == group,
        Scope::Flow => data.wanted("flow_id").is_some() && group_of(&row.subject) == group,
        _ => false,
    });
    is("flow_id", Scope::Flow) && is("link", Scope::Link) && of_group
}
