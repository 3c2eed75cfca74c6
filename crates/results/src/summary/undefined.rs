//! The statistic `undefined`: how many values of a metric a trial does not have. A trial that has all of them has no row of it, but counts
//! as 0 in a mean over trials.

use std::collections::BTreeMap;

use ccbench_proto::metric::{self, Scope, UNDEFINED};

use super::PhaseRow;

/// Returns the unit of a statistic of a metric with this unit: `undefined` is a count.
pub(super) fn unit(stat: &str, unit: &'static str) -> &'static str {
    if stat == UNDEFINED { "1" } else { unit }
}

/// Returns whether a metric has the statistic.
pub(crate) fn is_counted(name: &str, scope: Scope) -> bool {
    metric::find(name, scope).is_some_and(|metric| metric.stats.contains(&UNDEFINED))
}

/// Returns the number of undefined values, and that of all values, in each trial. `others` has the rows of the metric's other statistics.
pub(super) fn of_trials<'a>(
    undefined: &[&'a PhaseRow],
    others: impl Iterator<Item = &'a PhaseRow>,
) -> BTreeMap<u16, (f64, u32)> {
    let mut found: BTreeMap<u16, (f64, u32)> = BTreeMap::new();
    for row in others {
        let (_, n) = found.entry(row.trial).or_default();
        *n = row.n.max(*n);
    }
    found.extend(undefined.iter().map(|row| (row.trial, (row.value, row.n))));
    found
}
