//! The congestion control of each group's senders, as reported by the kernel.

use std::collections::{BTreeMap, BTreeSet};

use super::rows::each_slice;
use crate::error::Result;
use crate::journal::TrialEnd;
use crate::parallel::in_parallel;
use crate::store::RunDir;

/// Returns names by point and group. Several names of one group are joined with `+`.
pub(crate) fn sender_ccs(
    run: &RunDir,
    trials: &[&TrialEnd],
) -> Result<BTreeMap<(u32, String), String>> {
    let mut seen: BTreeMap<(u32, String), BTreeSet<String>> = BTreeMap::new();
    for (end, found) in trials.iter().zip(in_parallel(trials, |end| trial_ccs(run, end))) {
        for (group, cc) in found? {
            seen.entry((end.point_id, group)).or_default().insert(cc);
        }
    }
    let joined = |ccs: BTreeSet<String>| ccs.into_iter().collect::<Vec<_>>().join("+");
    Ok(seen.into_iter().map(|(of, ccs)| (of, joined(ccs))).collect())
}

/// Returns every group with the congestion controls of its senders.
fn trial_ccs(run: &RunDir, end: &TrialEnd) -> Result<BTreeSet<(String, String)>> {
    let mut seen = BTreeSet::new();
    each_slice(run, "flows", end, &["group", "role", "side", "cc_actual"], |slice| {
        let [group, role, side, cc] =
            ["group", "role", "side", "cc_actual"].map(|name| slice.texts(name));
        for row in 0..slice.len() {
            let sends = role.get(row) == Some("data") && side.get(row) == Some("snd");
            if let Some((group, cc)) = group.get(row).zip(cc.get(row)).filter(|_| sends) {
                seen.insert((group.to_owned(), cc.to_owned()));
            }
        }
    })?;
    Ok(seen)
}
