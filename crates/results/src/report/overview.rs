//! Overview of a report of many points: heatmaps of the whole matrix, and limits that keep the page small.

use std::collections::BTreeSet;

use super::escape_html;
use crate::figure;
use crate::journal::TrialEnd;
use crate::model::TrialStatus;
use crate::summary::{PointRow, Summary};
use ccbench_proto::metric::Scope;

/// From so many points on, a report has an overview.
const MIN_POINTS: usize = 50;
/// Heatmaps in a report.
const MAX_FIGURES: usize = 12;
/// Trials with curves in a report of many points.
const MAX_TRIALS_WITH_CURVES: usize = 60;
/// Rows of the summary in a report; with more, it has only those of [`MAIN_METRICS`] of groups.
const MAX_ROWS: usize = 60_000;
const MAIN_METRICS: [(&str, &str); 5] = [
    ("throughput_sum", "mean"),
    ("srtt", "mean"),
    ("srtt", "p95"),
    ("retransmissions", "sum"),
    ("jain_fairness_of_mean", "mean"),
];

/// Whether a run has so many points that its report begins with an overview.
pub(super) fn is_needed(summary: &Summary) -> bool {
    summary.points.len() >= MIN_POINTS
}

/// The heatmaps as HTML; empty if it is not needed.
pub(super) fn html(summary: &Summary) -> String {
    if !is_needed(summary) {
        return String::new();
    }
    let figures = match figure::draw_heatmaps(summary) {
        Ok(figures) => figures,
        // The report has tables, too.
        Err(error) => {
            return format!("<p class=\"note\">{}</p>\n", escape_html(&error.to_string()));
        }
    };
    let of = |one: &figure::Figure| format!("<figure>{}</figure>\n", one.svg);
    let mut html: String = figures.iter().take(MAX_FIGURES).map(of).collect();
    if figures.len() > MAX_FIGURES {
        html += &format!(
            "<p class=\"note\">The first {MAX_FIGURES} of {} figures; <code>ccbench plot RUN --kind heatmap</code> writes all.</p>\n",
            figures.len()
        );
    }
    html
}

/// The trials whose curves the report has: all, or of a run with many points those that are not ok, and the first ones.
pub(super) fn with_curves(summary: &Summary) -> Vec<&TrialEnd> {
    let all = || summary.trials.iter();
    if !is_needed(summary) {
        return all().collect();
    }
    let is_ok = |end: &&TrialEnd| end.status == TrialStatus::Ok;
    let key = |end: &TrialEnd| (end.point_id, end.trial);
    let chosen = all().filter(|end| !is_ok(end)).chain(all().filter(is_ok));
    let chosen: BTreeSet<_> = chosen.take(MAX_TRIALS_WITH_CURVES).map(key).collect();
    all().filter(|end| chosen.contains(&key(end))).collect()
}

/// The rows of the summary that the report has.
pub(super) fn rows(summary: &Summary) -> Vec<&PointRow> {
    let is_main = |row: &&PointRow| {
        row.scope == Scope::Group && MAIN_METRICS.contains(&(row.metric, row.stat))
    };
    let is_small = summary.point_rows.len() <= MAX_ROWS;
    summary.point_rows.iter().filter(|row| is_small || is_main(row)).collect()
}
