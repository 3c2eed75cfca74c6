//! The overview in a report of a matrix: heatmaps of all points, which `figure/heatmap/` draws, and limits that keep the page small.

use std::collections::{BTreeMap, BTreeSet};

use super::{escape_html, json_script};
use crate::figure;
use crate::journal::TrialEnd;
use crate::model::{THROUGHPUT_SHARE, TrialStatus};
use crate::summary::{PointRow, Summary};
use ccbench_proto::metric::{Scope, UNDEFINED};

/// Minimum number of points for an overview if two factors have several levels each, so that a heatmap has rows and columns.
const MIN_POINTS_OF_TWO_FACTORS: usize = 4;
/// Minimum number of points for an overview of any matrix.
const MANY_POINTS: usize = 50;
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

/// Returns whether the report begins with an overview.
pub(super) fn is_needed(summary: &Summary) -> bool {
    has_many_points(summary) || is_grid(&summary.points)
}

/// Returns whether the run has too many points for a list of the reasons of each of them.
pub(super) fn has_many_points(summary: &Summary) -> bool {
    summary.points.len() >= MANY_POINTS
}

/// Returns whether at least two factors of the points have several levels each.
fn is_grid(points: &BTreeMap<u32, Vec<(String, String)>>) -> bool {
    let mut levels: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (factor, level) in points.values().flatten() {
        levels.entry(factor).or_default().insert(level);
    }
    let varying = levels.values().filter(|levels| levels.len() > 1).count();
    points.len() >= MIN_POINTS_OF_TWO_FACTORS && varying > 1
}

/// Returns the heatmaps as HTML, each with its data for the page's script; empty if no overview is needed.
pub(super) fn html(summary: &Summary) -> String {
    if !is_needed(summary) {
        return String::new();
    }
    let figures = match figure::draw_heatmaps(summary) {
        Ok(figures) => figures,
        // A run of probes, or one whose trials all failed. The table of points follows in any case.
        Err(error) if !has_many_points(summary) && is_without_values(&error) => {
            return String::new();
        }
        // The report has tables even without heatmaps.
        Err(error) => {
            return format!("<p class=\"note\">{}</p>\n", escape_html(&error.to_string()));
        }
    };
    let of = |(one, nth): (&figure::Figure, u32)| {
        let data = serde_json::json!({ "stem": one.stem, "csv": one.csv });
        let data = json_script(&format!("figure-{nth}"), &data);
        format!("<figure>{}{}{data}</figure>\n", one.svg, caption(&one.csv))
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

/// Returns whether a heatmap of the default metric has nothing to show. The user has chosen no metric and no phase.
const fn is_without_values(error: &figure::FigureError) -> bool {
    use figure::FigureError::{NoData, UnknownMetric, Where};
    matches!(error, NoData { .. } | UnknownMetric { .. } | Where { .. })
}

/// Returns the caption of a heatmap with this data, which leads to the definition of its metric; empty if there is no metric.
fn caption(csv: &str) -> String {
    let link = |metric: &str| format!("<a href=\"#definition-{metric}\">{metric}</a>");
    let text = match metric_of(csv) {
        Some(THROUGHPUT_SHARE) => {
            format!("Share: {} of the group over that of all groups.", link("throughput_sum"))
        }
        Some(metric) => format!("Definition: {}", link(metric)),
        None => return String::new(),
    };
    format!("<figcaption>{text}</figcaption>")
}

/// Returns the metric in the data of a heatmap. Names of factors and levels, which may contain commas, are left of it.
fn metric_of(csv: &str) -> Option<&str> {
    let mut lines = csv.lines();
    let nth = lines.next()?.rsplit(',').position(|column| column == "metric")?;
    lines.next()?.rsplit(',').nth(nth)
}

/// Returns the trials whose curves the report has. If there are too many trials, one trial of each point comes first, so that each cell of a
/// heatmap opens curves; then those that are not ok, then others. The result has at most `most_curves` curves (a trial has `curves_of`), but
/// at least one trial.
pub(super) fn with_curves(
    trials: &[TrialEnd],
    most_curves: u32,
    curves_of: impl Fn(&TrialEnd) -> u32,
) -> Vec<&TrialEnd> {
    let first = first_of_points(trials);
    let rank = |nth: usize| match (first.contains(&nth), trials[nth].status) {
        (true, _) => 0,
        (false, TrialStatus::Degraded | TrialStatus::Failed | TrialStatus::Aborted) => 1,
        (false, TrialStatus::Ok) => 2,
    };
    let mut order: Vec<usize> = (0..trials.len()).collect();
    order.sort_by_key(|nth| rank(*nth));
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

/// Returns the index of a trial of each point: the first one that is ok or degraded, because means are of these, or else the first one.
fn first_of_points(trials: &[TrialEnd]) -> BTreeSet<usize> {
    let is_counted = |end: &TrialEnd| matches!(end.status, TrialStatus::Ok | TrialStatus::Degraded);
    let mut first: BTreeMap<u32, usize> = BTreeMap::new();
    for (nth, end) in trials.iter().enumerate() {
        let known = first.entry(end.point_id).or_insert(nth);
        if is_counted(end) && !is_counted(&trials[*known]) {
            *known = nth;
        }
    }
    first.into_values().collect()
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
    fn curves_are_those_of_each_point_and_then_of_trials_that_are_not_ok() {
        let trials = [
            (0, 1, TrialStatus::Ok),
            (0, 2, TrialStatus::Ok),
            (0, 3, TrialStatus::Failed),
            (1, 1, TrialStatus::Failed),
            (1, 2, TrialStatus::Degraded),
            (2, 1, TrialStatus::Aborted),
        ];
        let trials = trials.map(|(point_id, trial, status)| {
            TrialEnd::new(TrialKey { point_id, trial, seed: 1, epoch: 1 }, status)
        });
        let chosen = |most_curves| -> Vec<(u32, u16)> {
            let chosen = with_curves(&trials, most_curves, |_| 10);
            chosen.into_iter().map(|end| (end.point_id, end.trial)).collect()
        };
        assert_eq!(chosen(60), [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (2, 1)]);
        assert_eq!(chosen(50), [(0, 1), (0, 3), (1, 1), (1, 2), (2, 1)]);
        assert_eq!(chosen(39), [(0, 1), (1, 2), (2, 1)]);
        assert_eq!(chosen(20), [(0, 1), (1, 2)]);
        assert_eq!(chosen(5), [(0, 1)]);
        assert_eq!(with_curves(&[], 5, |_| 10), Vec::<&TrialEnd>::new());
        let key = |trial| TrialKey { point_id: 0, trial, seed: 1, epoch: 1 };
        let many: Vec<TrialEnd> =
            (1..=1000).map(|trial| TrialEnd::new(key(trial), TrialStatus::Ok)).collect();
        assert_eq!(with_curves(&many, u32::MAX, |_| 10).len(), MAX_TRIALS_WITH_CURVES);
    }

    /// As many trials as fit are degraded, and the only ok trial comes last.
    #[test]
    fn degraded_trials_do_not_take_the_curves_of_other_points() {
        let of = |point_id, trial, status| {
            TrialEnd::new(TrialKey { point_id, trial, seed: 1, epoch: 1 }, status)
        };
        let degraded = (1..=200).map(|trial| of(0, trial, TrialStatus::Degraded));
        let trials: Vec<TrialEnd> = degraded.chain([of(1, 1, TrialStatus::Ok)]).collect();
        let chosen = with_curves(&trials, u32::MAX, |_| 10);
        assert_eq!(chosen.len(), MAX_TRIALS_WITH_CURVES);
        assert!(chosen.iter().any(|end| end.point_id == 1), "the ok trial has curves");
    }

    #[test]
    fn a_grid_has_several_levels_of_two_factors() {
        let is_grid = |levels: &[[&str; 2]]| {
            let point = |[row, column]: &[&str; 2]| {
                [("row", row), ("column", column)]
                    .map(|(factor, level)| (factor.to_owned(), (*level).to_owned()))
                    .to_vec()
            };
            super::is_grid(&(0..).zip(levels.iter().map(point)).collect())
        };
        assert!(is_grid(&[["1", "1"], ["1", "2"], ["2", "1"], ["2", "2"]]));
        assert!(!is_grid(&[["1", "1"], ["1", "2"], ["2", "1"]]), "too few points");
        assert!(!is_grid(&[["1", "1"], ["1", "2"], ["1", "3"], ["1", "4"]]), "one row");
        assert!(!is_grid(&[]));
    }

    #[test]
    fn captions_lead_to_the_definition_of_the_metric() {
        let csv = |metric: &str| {
            format!(
                "point_id,\"a,metric\",phase,subject,metric,stat,unit,mean,trials,status\n\
                 0,\"x,y\",p,\"g,h\",{metric},mean,bit/s,1,1,ok\n"
            )
        };
        assert_eq!(
            caption(&csv("throughput_sum")),
            "<figcaption>Definition: <a href=\"#definition-throughput_sum\">throughput_sum</a></figcaption>"
        );
        let share = caption(&csv(THROUGHPUT_SHARE));
        assert!(
            share.contains("#definition-throughput_sum\"") && share.contains("Share"),
            "{share}"
        );
        assert_eq!(caption(""), "");
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
