//! Prints the tables of probes, fetches and finite flows.

use std::fmt::Write as _;

use super::{Extent, Line, plain, render, with_interval};
use crate::summary::{PointRow, Summary};
use ccbench_proto::metric::Scope;

/// Printed instead of a time that is less than the error bounds of the clocks of two nodes.
const UNRESOLVED: &str = "unresolved";

/// Returns the loss rows of fetches, or of all other probes.
fn loss_rows(summary: &Summary, fetches: bool) -> impl Iterator<Item = &PointRow> {
    let lost =
        summary.point_rows.iter().filter(|r| r.scope == Scope::Probe && r.metric == "loss_share");
    let is_fetch =
        move |row: &PointRow| probe_stat(summary, row, "unfinished_fetches", "sum").is_some();
    lost.filter(move |row| is_fetch(row) == fetches)
}

/// Returns another metric of the same probe and phase.
fn probe_stat<'a>(
    summary: &'a Summary,
    row: &PointRow,
    metric: &str,
    stat: &str,
) -> Option<&'a PointRow> {
    summary.find(row.point_id, &row.phase, Scope::Probe, &row.subject, metric, stat)
}

pub(super) fn probe_rows(summary: &Summary) -> Vec<Line> {
    loss_rows(summary, false).map(|lost| probe_line(summary, lost, "rtt", "median")).collect()
}

/// Writes the table of fetches, if there are any.
pub(super) fn write_fetches(out: &mut String, summary: &Summary, extent: Extent) {
    let fetches = fetch_rows(summary);
    if fetches.is_empty() {
        return;
    }
    let times = ["total ms", "KM median", "p95", "first byte ms"];
    let header = [&["phase", "fetch"][..], &times, &["failed %", "unfinished"]].concat();
    let _ = write!(out, "\n{}", render(summary, &header, fetches, extent));
    out.push_str(
        "\ntotal, p95: of completed fetches. KM median: Kaplan-Meier estimate that includes unfinished fetches (failed, timed\n\
         out or cut off).\n",
    );
}

/// Returns rows for fetches from a web server.
fn fetch_rows(summary: &Summary) -> Vec<Line> {
    let line = |lost: &PointRow| {
        let (point_id, mut cells) = probe_line(summary, lost, "fetch_time", "km_median");
        let first_byte = plain(probe_stat(summary, lost, "first_byte_time", "mean"), 1e3);
        cells.insert(cells.len() - 1, first_byte);
        let unfinished = probe_stat(summary, lost, "unfinished_fetches", "sum");
        cells.push(unfinished.map_or("-".to_owned(), |row| {
            format!("{:.0} of {}", row.value * f64::from(row.n_trials), row.n)
        }));
        (point_id, cells)
    };
    loss_rows(summary, true).map(line).collect()
}

/// Writes the table of finite flows, if there are any.
pub(super) fn write_completions(out: &mut String, summary: &Summary, extent: Extent) {
    let unfinished = summary.point_rows.iter().filter(|row| row.metric == "unfinished_flows");
    let lines: Vec<Line> = unfinished.map(|row| completion_line(summary, row)).collect();
    if lines.is_empty() {
        return;
    }
    let has_unresolved = lines.iter().any(|(_, cells)| cells.iter().any(|cell| cell == UNRESOLVED));
    let header = ["flows", "completion ms", "KM median", "p95", "p99", "unfinished"];
    let _ = write!(out, "\n{}", render(summary, &header, lines, extent));
    out.push_str("\ncompletion, p95, p99: of completed flows. KM median: Kaplan-Meier estimate that includes unfinished flows.\n");
    if has_unresolved {
        out.push_str("unresolved: less than the error bounds of the clocks of both ends together, in the worst trial (table clock).\n");
    }
}

/// Returns the completion times of a group of finite flows.
fn completion_line(summary: &Summary, unfinished: &PointRow) -> Line {
    let PointRow { point_id, phase, scope, subject, .. } = unfinished;
    let bound_us = summary.completion_bounds_us.get(&(*point_id, subject.clone()));
    let time = |stat, text: fn(Option<&PointRow>, f64) -> String| {
        let row = summary.find(*point_id, phase, *scope, subject, "flow_completion_time", stat);
        match row.zip(bound_us) {
            Some((row, bound_us)) if row.value.abs() < *bound_us => UNRESOLVED.to_owned(),
            _ => text(row, 1e3),
        }
    };
    let cells = vec![
        subject.clone(),
        time("mean", with_interval),
        time("km_median", plain),
        time("p95", plain),
        time("p99", plain),
        format!("{:.0} of {}", unfinished.value * f64::from(unfinished.n_trials), unfinished.n),
    ];
    (*point_id, cells)
}

/// Returns the mean, median and 95th percentile of a probe's times, and its loss.
fn probe_line(summary: &Summary, lost: &PointRow, time: &str, median: &str) -> Line {
    let find = |stat| probe_stat(summary, lost, time, stat);
    let cells = vec![
        lost.phase.clone(),
        lost.subject.clone(),
        with_interval(find("mean"), 1e3),
        plain(find(median), 1e3),
        plain(find("p95"), 1e3),
        format!("{:.1}", lost.value * 100.0),
    ];
    (lost.point_id, cells)
}
