//! The overview in a report of many points: heatmaps of the whole matrix, which `figure/heatmap/` draws, and limits that keep the page
//! small.

use std::collections::BTreeSet;

use super::{escape_html, json_script};
use crate::figure;
use crate::journal::TrialEnd;
use crate::model::TrialStatus;
use crate::summary::{PointRow, Summary};
use ccbench_proto::metric::{Scope, UNDEFINED};

/// Minimum number of points for an overview.
const MIN_POINTS: usize = 50;
/// Maximum number of heatmaps in a report.
const MAX_FIGURES: usize = 12;
/// Maximum number of trials with curves in a report; the number of curves may limit it further.
const MAX_TRIALS_WITH_CURVES: usize = 200;
/// Maximum number of summary rows in a report. If there are more, the report has only those of [`SHOWN`]; if these are too many, only
/// [`MAIN_METRICS`] of groups.
const MAX_ROWS: usize = 60_000;
/// What the report's tables show, and the net's use of the network and its fairness.
const SHOWN: [(Scope, &str, &str); 30] = [
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
    (Scope::Net, "convergence_time", UNDEFINED),
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
    (Scope::Probe, "foreign_responsiveness", "mean"),
];
const MAIN_METRICS: [(&str, &str); 6] = [
    ("throughput_sum", "mean"),
    ("throughput_per_flow_mean", "mean"),
    ("srtt", "mean"),
    ("srtt", "p95"),
    ("retransmissions", "sum"),
    ("jain_fairness_of_mean", "mean"),
];

/// Returns whether a run has enough points for its report to begin with an overview.
pub(super) fn is_needed(summary: &Summary) -> bool {
    summary.points.len() >= MIN_POINTS
}

/// Returns the heatmaps as HTML, each with its data for the page's script; empty if no overview is needed.
pub(super) fn html(summary: &Summary) -> String {
    if !is_needed(summary) {
        return String::new();
    }
    let figures = match figure::draw_heatmaps(summary) {
        Ok(figures) => figures,
        // The report has tables even without heatmaps.
        Err(error) => {
            return format!("<p class=\"note\">{}</p>\n", escape_html(&error.to_string()));
        }
    };
    let of = |(one, nth): (&figure::Figure, u32)| {
        let data = serde_json::json!({ "stem": one.stem, "csv": one.csv });
        format!("<figure>{}{}</figure>\n", one.svg, json_script(&format!("figure-{nth}"), &data))
    };
    let mut html: String = figures.iter().take(MAX_FIGURES).zip(0..).map(of).collect();
    if figures.len() > MAX_FIGURES {
        html += &format!(
            "<p class=\"note\">The first {MAX_FIGURES} of {} figures; <code>ccbench plot RUN --kind heatmap</code> writes all.</p>\n",
            figures.len()
        );
    }
    html
}

/// Returns the trials whose curves the report has. If there are too many trials, those that are not ok come first, then the first trial of
/// each point, then others. The result has at most `most_curves` curves (a trial has `curves_of`), but at least one trial.
pub(super) fn with_curves(
    trials: &[TrialEnd],
    most_curves: u32,
    curves_of: impl Fn(&TrialEnd) -> u32,
) -> Vec<&TrialEnd> {
    let mut seen = BTreeSet::new();
    let rank = |end: &TrialEnd| match (seen.insert(end.point_id), end.status) {
        (_, TrialStatus::Degraded | TrialStatus::Failed | TrialStatus::Aborted) => 0,
        (true, TrialStatus::Ok) => 1,
        (false, TrialStatus::Ok) => 2,
    };
    let ranks: Vec<u8> = trials.iter().map(rank).collect();
    let mut order: Vec<usize> = (0..ranks.len()).collect();
    order.sort_by_key(|nth| ranks[*nth]);
    let mut curves = 0_u32;
    let fits = |nth: &usize| {
        let is_first = curves == 0;
        curves = curves.saturating_add(curves_of(&trials[*nth]));
        is_first || curves <= most_curves
    };
    let mut chosen: Vec<usize> =
        order.into_iter().take(MAX_TRIALS_WITH_CURVES).take_while(fits).collect();
    chosen.sort_unstable();
    chosen.into_iter().map(|nth| &trials[nth]).collect()
}

/// Returns the summary rows that the report has.
pub(super) fn rows(summary: &Summary) -> Vec<&PointRow> {
    at_most(MAX_ROWS, &summary.point_rows)
}

/// Returns all rows if there are at most `most`, otherwise those that matter most.
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
    use crate::model::TrialKey;

    #[test]
    fn curves_are_those_of_trials_that_are_not_ok_and_of_each_point() {
        let trials = [
            (0, 1, TrialStatus::Ok),
            (0, 2, TrialStatus::Ok),
            (0, 3, TrialStatus::Failed),
            (1, 1, TrialStatus::Ok),
            (1, 2, TrialStatus::Ok),
        ];
        let trials = trials.map(|(point_id, trial, status)| {
            TrialEnd::new(TrialKey { point_id, trial, seed: 1, epoch: 1 }, status)
        });
        let chosen = |most_curves| -> Vec<(u32, u16)> {
            let chosen = with_curves(&trials, most_curves, |_| 10);
            chosen.into_iter().map(|end| (end.point_id, end.trial)).collect()
        };
        assert_eq!(chosen(50), [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)]);
        assert_eq!(chosen(39), [(0, 1), (0, 3), (1, 1)]);
        assert_eq!(chosen(20), [(0, 1), (0, 3)]);
        assert_eq!(chosen(5), [(0, 3)]);
        assert_eq!(with_curves(&[], 5, |_| 10), Vec::<&TrialEnd>::new());
        let key = |trial| TrialKey { point_id: 0, trial, seed: 1, epoch: 1 };
        let many: Vec<TrialEnd> =
            (1..=1000).map(|trial| TrialEnd::new(key(trial), TrialStatus::Ok)).collect();
        assert_eq!(with_curves(&many, u32::MAX, |_| 10).len(), MAX_TRIALS_WITH_CURVES);
    }

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
