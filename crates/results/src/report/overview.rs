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
/// Rows of the summary in a report. With more, it has only those of [`SHOWN`]; with more of these, only [`MAIN_METRICS`] of groups.
const MAX_ROWS: usize = 60_000;
/// What the report's tables show, and the net's use of the network and its fairness.
const SHOWN: [(Scope, &str, &str); 29] = [
    (Scope::Group, "throughput_sum", "mean"),
    (Scope::Group, "throughput_per_flow_mean", "mean"),
    (Scope::Group, "srtt", "mean"),
    (Scope::Group, "srtt", "p95"),
    (Scope::Group, "one_way_delay", "p50"),
    (Scope::Group, "one_way_delay", "p95"),
    (Scope::Group, "one_way_delay", "p99"),
    (Scope::Group, "retransmissions", "sum"),
    (Scope::Group, "jain_fairness_of_mean", "mean"),
    (Scope::Net, "throughput_sum", "mean"),
    (Scope::Net, "bandwidth_utilisation", "sum"),
    (Scope::Net, "jain_fairness_of_mean", "mean"),
    (Scope::Net, "jain_fairness", "mean"),
    (Scope::Net, "max_min_fair_share", "min"),
    (Scope::Net, "convergence_time", "mean"),
    (Scope::Net, "convergence_time", "undefined"),
    (Scope::Link, "utilisation", "mean"),
    (Scope::Link, "queue_delay", "mean"),
    (Scope::Link, "queue_delay", "p95"),
    (Scope::Link, "drops", "sum"),
    (Scope::Probe, "loss_share", "mean"),
    (Scope::Probe, "rtt", "mean"),
    (Scope::Probe, "rtt", "median"),
    (Scope::Probe, "rtt", "p95"),
    (Scope::Probe, "fetch_time", "mean"),
    (Scope::Probe, "fetch_time", "km_median"),
    (Scope::Probe, "fetch_time", "p95"),
    (Scope::Probe, "unfinished_fetches", "sum"),
    (Scope::Probe, "rpm", "mean"),
];
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
    at_most(MAX_ROWS, &summary.point_rows)
}

/// All rows if there are no more than this, or those that matter most.
fn at_most(most: usize, rows: &[PointRow]) -> Vec<&PointRow> {
    if rows.len() <= most {
        return rows.iter().collect();
    }
    let is_shown = |row: &&PointRow| SHOWN.contains(&(row.scope, row.metric, row.stat));
    let shown: Vec<&PointRow> = rows.iter().filter(is_shown).collect();
    if shown.len() <= most {
        return shown;
    }
    let is_main = |row: &&PointRow| {
        row.scope == Scope::Group && MAIN_METRICS.contains(&(row.metric, row.stat))
    };
    rows.iter().filter(is_main).collect()
}

#[cfg(test)]
mod tests {
    use ccbench_proto::metric::find;

    use super::*;

    fn row(scope: Scope, metric: &'static str, stat: &'static str) -> PointRow {
        PointRow {
            point_id: 0,
            phase: "p".to_owned(),
            scope,
            subject: "a".to_owned(),
            metric,
            unit: "1",
            stat,
            value: 1.0,
            n: 1,
            interval: None,
            n_trials: 1,
            median: 1.0,
            sd: None,
            bootstrap: None,
        }
    }

    #[test]
    fn rows_beyond_the_limit_are_the_least_important() {
        let all = [
            row(Scope::Group, "srtt", "mean"),
            row(Scope::Group, "srtt", "max"),
            row(Scope::Flow, "srtt", "mean"),
            row(Scope::Link, "drops", "sum"),
        ];
        let metrics = |most| -> Vec<(Scope, &str)> {
            at_most(most, &all).into_iter().map(|row| (row.scope, row.stat)).collect()
        };
        assert_eq!(metrics(4).len(), 4);
        let (group, link) = ((Scope::Group, "mean"), (Scope::Link, "sum"));
        assert_eq!((metrics(3), metrics(2)), (vec![group, link], vec![group, link]));
        assert_eq!(metrics(1), [group]);
    }

    #[test]
    fn shown_metrics_exist() {
        let main = MAIN_METRICS.map(|(metric, stat)| (Scope::Group, metric, stat));
        assert!(main.iter().all(|known| SHOWN.contains(known)));
        for (scope, metric, stat) in SHOWN {
            let known = find(metric, scope).unwrap_or_else(|| panic!("{metric} of {scope:?}"));
            assert!(known.name == metric && known.stats.contains(&stat), "{metric} {stat}");
        }
    }
}
