//! CPU steal: the share of CPU time that the hypervisor gave to other virtual machines during a trial.

use std::collections::BTreeMap;

use polars::prelude::*;

use super::query::{batches, collect, number, samples, scan, sum};
use crate::error::Result;
use crate::journal::TrialEnd;
use crate::store::RunDir;

const TABLE: &str = "host_samples";

/// Returns whether one of the trial's reasons points to a lack of CPU time.
pub(crate) fn lacks_cpu(end: &TrialEnd) -> bool {
    end.reasons.iter().any(|reason| reason.code.indicates_cpu_shortage())
}

/// Returns the mean steal of each trial in percent of all CPUs, weighted by the length of the samples. For several machines, this is the
/// largest. Trials without host samples are missing. Source: `cpu` in /proc/stat (proc(5)).
pub(super) fn steal_pct(run: &RunDir, trials: &[&TrialEnd]) -> Result<BTreeMap<(u32, u16), f64>> {
    let mut found: BTreeMap<(u32, u16), f64> = BTreeMap::new();
    for batch in batches(trials) {
        let Some(rows) = scan(run, TABLE, batch)? else { continue };
        let keys = || ["point_id", "trial", "node"].map(col);
        let weighted = number("cpu_steal_pct") * number("gap_ns");
        let rows = rows
            .filter(number("t_s").gt_eq(lit(0.0)))
            .group_by(keys())
            .agg([samples(weighted, "stolen"), sum("gap_ns")])
            .sort_by_exprs(keys(), SortMultipleOptions::default())
            .with_columns(["point_id", "trial"].map(number));
        let lines = collect(run, TABLE, rows)?;
        for line in 0..lines.len() {
            let stolen: f64 = lines.samples("stolen", line).iter().sum();
            if let Some(time) = lines.number("gap_ns", line).filter(|time| *time > 0.0) {
                let largest = found.entry(lines.trial(line)).or_insert(0.0);
                *largest = largest.max(stolen / time);
            }
        }
    }
    Ok(found)
}
