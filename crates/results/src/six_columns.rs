//! The six columns of the coexistence study: per trial, a group's mean throughput in each phase and its mean smoothed RTT in each phase. If
//! a group has several flows, the study's scripts print the mean over the flows; here, the sum and the mean per flow have different names.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::csv::quoted;
use super::model::level_of;
use super::summary::{PhaseRow, Summary};
use crate::error::ErrorClass;
use ccbench_proto::metric::Scope;

/// No counted trial has this flow group.
#[derive(Debug, thiserror::Error)]
#[error("no committed trial has a flow group `{group}`; there are: {known}")]
pub struct UnknownGroup {
    /// The group as given.
    pub group: String,
    /// The groups that exist.
    pub known: String,
}

impl UnknownGroup {
    /// Returns [`ErrorClass::Usage`]: the command names the group.
    pub const fn class(&self) -> ErrorClass {
        ErrorClass::Usage
    }
}

/// Column, metric, and the size of the column's unit in units of the metric.
const COLUMNS: [(&str, &str, f64); 3] = [
    ("throughput_sum_mbit_s", "throughput_sum", 1e6),
    ("throughput_per_flow_mean_mbit_s", "throughput_per_flow_mean", 1e6),
    ("srtt_mean_ms", "srtt", 1e3),
];

/// Returns the six columns of one flow group as CSV, one line per counted trial: `throughput_sum_mbit_s.<phase>`, then
/// `throughput_per_flow_mean_mbit_s.<phase>`, then `srtt_mean_ms.<phase>`. The fields of a phase in which the group does not run are empty.
pub fn csv(summary: &Summary, group: &str) -> Result<String, UnknownGroup> {
    let of_group = |row: &&PhaseRow| {
        (row.scope, row.subject.as_str(), row.stat) == (Scope::Group, group, "mean")
            && summary.phases.contains(&row.phase)
    };
    let rows: Vec<&PhaseRow> = summary.phase_rows.iter().filter(of_group).collect();
    if rows.is_empty() {
        let known = summary.groups().join(", ");
        let known = if known.is_empty() { "none".to_owned() } else { known };
        return Err(UnknownGroup { group: group.to_owned(), known });
    }
    let mut names = vec!["point_id".to_owned()];
    names.extend(summary.factors.iter().map(|factor| quoted(factor)));
    names.extend(["trial".to_owned(), "status".to_owned()]);
    for (column, _, _) in COLUMNS {
        names.extend(summary.phases.iter().map(|phase| quoted(&format!("{column}.{phase}"))));
    }
    let mut out = names.join(",") + "\n";
    let key = |r: &&PhaseRow| (r.point_id, r.trial, r.metric, r.phase.clone());
    let values: BTreeMap<_, f64> = rows.iter().map(|r| (key(r), r.value)).collect();
    let counted: BTreeSet<_> = rows.iter().map(|r| (r.point_id, r.trial)).collect();
    for end in summary.trials.iter().filter(|end| counted.contains(&(end.point_id, end.trial))) {
        let levels = summary.points.get(&end.point_id);
        let level = |factor: &String| {
            levels.and_then(|levels| level_of(levels, factor)).map_or(String::new(), quoted)
        };
        let mut fields = vec![end.point_id.to_string()];
        fields.extend(summary.factors.iter().map(level));
        fields.extend([end.trial.to_string(), end.status.to_string()]);
        for (_, metric, scale) in COLUMNS {
            for phase in &summary.phases {
                let value = values.get(&(end.point_id, end.trial, metric, phase.clone()));
                fields.push(value.map_or(String::new(), |value| format!("{:.3}", value / scale)));
            }
        }
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{}", fields.join(","));
    }
    Ok(out)
}
