//! Compares the means of the flow groups of two runs, for plans without a measured claim.

use std::collections::BTreeSet;

use ccbench_proto::metric::Scope;

use super::super::Result;
use super::{Agreement, Item, agreement, overlap};
use crate::compare::{self, CompareError, Compared};
use crate::expect::mean_text;
use crate::model::TrialFilter;
use crate::observer::Observer;
use crate::summary::Summary;
use crate::summary::statistics::Mean;

/// Metrics of a flow group whose means are compared: those that every run with flows has.
const METRICS: [&str; 2] = ["throughput_sum", "srtt"];

/// Point, phase, group and metric.
type Key<'a> = (u32, &'a str, &'a str, &'static str);

/// Compares each mean of both runs. They agree if their 95 % confidence intervals overlap, or if that of their difference contains zero.
/// Without intervals, they are not compared. A mean that only one run has is a difference.
pub(super) fn numbers(a: &Summary, b: &Summary) -> Result<Vec<Item>> {
    let with = compare::Comparison::Run(&b.run_dir);
    let filter = TrialFilter::default();
    let compared = compare::compare(&a.run_dir, &with, &[], &[], filter, &Observer::default());
    let rows = match compared {
        Ok(differences) => differences.rows,
        // At most one run has numbers.
        Err(CompareError::Unpaired { .. } | CompareError::UnknownMetric { .. }) => Vec::new(),
        Err(CompareError::File(error)) => return Err(error.into()),
        Err(CompareError::Store(error)) => return Err(error.into()),
    };
    let in_both = rows.iter().filter(|row| is_compared(row.scope, row.metric, row.stat));
    let mut items: Vec<Item> = in_both.map(item).collect();
    let (of_a, of_b) = (keys(a), keys(b));
    items.extend(of_a.difference(&of_b).map(|key| lone(a, key, "artifact")));
    items.extend(of_b.difference(&of_a).map(|key| lone(b, key, "rerun")));
    Ok(items)
}

fn is_compared(scope: Scope, metric: &str, stat: &str) -> bool {
    scope == Scope::Group && stat == "mean" && METRICS.contains(&metric)
}

/// Compares a mean that both runs have.
fn item(row: &Compared) -> Item {
    let numbers = &row.numbers;
    let [of_a, of_b] = numbers.intervals;
    let mean = |value, interval| mean_text(Mean { value, interval }, row.unit);
    let mut details =
        format!("artifact {}; rerun {}", mean(numbers.means.0, of_a), mean(numbers.means.1, of_b));
    if numbers.left_out > 0 {
        details += &format!("; trials without a counterpart, left out: {}", numbers.left_out);
    }
    let agreement = match of_a.zip(of_b) {
        Some((a, b)) => agreement(overlap(a, b) || numbers.differs() == Some(false)),
        None => {
            details += "; not compared: one trial has no interval";
            Agreement::NotCompared
        }
    };
    Item { name: name(row.metric, &row.subject, &row.phase, &row.point), agreement, details }
}

/// Returns the means of a run that are compared.
fn keys(summary: &Summary) -> BTreeSet<Key<'_>> {
    let rows = summary.point_rows.iter();
    let rows = rows.filter(|row| is_compared(row.scope, row.metric, row.stat));
    rows.map(|row| (row.point_id, row.phase.as_str(), row.subject.as_str(), row.metric)).collect()
}

/// Returns the item of a mean that only one of the runs has.
fn lone(summary: &Summary, (point, phase, group, metric): &Key<'_>, run: &str) -> Item {
    let levels = summary.points.get(point).into_iter().flatten();
    let levels: Vec<&str> = levels.map(|(_, level)| level.as_str()).collect();
    Item {
        name: name(metric, group, phase, &levels.join(", ")),
        agreement: Agreement::Differs,
        details: format!("only the {run} has it"),
    }
}

fn name(metric: &str, group: &str, phase: &str, point: &str) -> String {
    let point = if point.is_empty() { String::new() } else { format!(" ({point})") };
    format!("{metric} of group {group} in {phase}{point}")
}
