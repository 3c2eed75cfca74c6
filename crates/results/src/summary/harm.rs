//! Harm that competing groups do to a group (Ware et al., HotNets 2019): 0 if the group performs as well as alone, 1 if nothing is left.
//! For metrics where more is better, harm is (alone - competing) / alone; where less is better, it is (competing - alone) / competing. The
//! reference is the first measured phase in which no other group runs.

use std::collections::{BTreeMap, BTreeSet};

use ccbench_proto::metric::Scope;

use super::tables::PhaseRow;

/// Computes harm from the value alone and the value with competing groups.
type Harm = fn(f64, f64) -> f64;
const HARMS: [(&str, &str, Harm); 2] = [
    ("throughput_sum", "harm_throughput", |alone, competing| (alone - competing) / alone),
    ("srtt", "harm_srtt", |alone, competing| (competing - alone) / competing),
];

/// Returns the harm to every group in every phase with competing groups. `position` is the position of a row's phase in the trial. A group
/// that never runs alone has no row.
pub(super) fn harm(
    rows: &[PhaseRow],
    position: impl Fn(&PhaseRow) -> Option<usize>,
) -> Vec<PhaseRow> {
    let mut trials: BTreeMap<(u32, u16), Vec<&PhaseRow>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.scope == Scope::Group && row.stat == "mean") {
        trials.entry((row.point_id, row.trial)).or_default().push(row);
    }
    for rows in trials.values_mut() {
        rows.sort_by_key(|row| position(row));
    }
    trials.values().flat_map(|rows| trial_rows(rows)).collect()
}

fn trial_rows(rows: &[&PhaseRow]) -> Vec<PhaseRow> {
    let mut running: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.metric == "throughput_sum") {
        running.entry(&row.phase).or_default().insert(&row.subject);
    }
    let alone =
        |row: &PhaseRow| running.get(row.phase.as_str()).is_some_and(|groups| groups.len() == 1);
    let mut found = Vec::new();
    for (metric, name, harm) in HARMS {
        let of_metric = || rows.iter().filter(move |row| row.metric == metric);
        for row in of_metric().filter(|row| running.contains_key(row.phase.as_str()) && !alone(row))
        {
            let solo = of_metric().find(|other| other.subject == row.subject && alone(other));
            let value =
                solo.map(|solo| harm(solo.value, row.value)).filter(|value| value.is_finite());
            let harmed = |value| PhaseRow { metric: name, unit: "1", value, ..(*row).clone() };
            found.extend(value.map(harmed));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(phase: &str, subject: &str, metric: &'static str, value: f64) -> PhaseRow {
        PhaseRow {
            point_id: 0,
            trial: 1,
            phase: phase.to_owned(),
            scope: Scope::Group,
            subject: subject.to_owned(),
            metric,
            unit: "bit/s",
            stat: "mean",
            value,
            n: 1,
        }
    }

    #[test]
    fn harm_matches_the_published_examples() {
        // Ware et al.: 15 Mbit/s alone, 2 with competitors is 0.86; 40 ms alone, 200 ms with competitors is 0.8.
        let rows = [
            row("alone", "a", "throughput_sum", 15e6),
            row("alone", "a", "srtt", 40_000.0),
            row("both", "a", "throughput_sum", 2e6),
            row("both", "a", "srtt", 200_000.0),
            row("both", "b", "throughput_sum", 13e6),
            row("again", "a", "throughput_sum", 12e6),
        ];
        let order = ["alone", "both", "again"];
        let position = |row: &PhaseRow| order.iter().position(|phase| *phase == row.phase);
        let harms = harm(&rows, position);
        let of = |metric: &str| {
            let found: Vec<f64> =
                harms.iter().filter(|r| r.metric == metric).map(|r| r.value).collect();
            assert_eq!(found.len(), 1, "{harms:?}");
            found[0]
        };
        assert!((of("harm_throughput") - 13.0 / 15.0).abs() < 1e-12);
        assert!((of("harm_srtt") - 0.8).abs() < 1e-12);
        assert!(harms.iter().all(|r| r.phase == "both" && r.subject == "a"), "b is never alone");
    }

    #[test]
    fn gain_is_negative_harm_and_scale_does_not_matter() {
        let at = |scale: f64| {
            let rows = [
                row("alone", "a", "throughput_sum", 10.0 * scale),
                row("both", "a", "throughput_sum", 12.0 * scale),
                row("both", "b", "throughput_sum", 1.0 * scale),
            ];
            harm(&rows, |_| None)[0].value
        };
        assert!((at(1.0) + 0.2).abs() < 1e-12 && (at(1.0) - at(1e6)).abs() < 1e-12);
        assert!(harm(&[row("both", "a", "throughput_sum", 1.0)], |_| None).is_empty());
    }
}
