//! The byte counts of a group in a phase: from its receivers or, without them, from its senders.

use std::collections::{BTreeMap, BTreeSet};

use super::super::flows::{Transferred, covered_s};
use super::{GroupKey, GroupPhase};
use crate::journal::PhaseRecord;

/// Without a plan, a group that covers this share of a phase runs in it.
const RUNNING_SHARE: f64 = 0.5;
/// Without a plan, a group that covers this share with at least [`MIN_INTERVALS`] runs in the phase, too.
const RUNNING_SHARE_WITH_INTERVALS: f64 = 0.1;
const MIN_INTERVALS: u32 = 3;

impl GroupPhase {
    /// Returns the best available byte counts, with a caveat for the reader unless receivers reported them.
    pub(super) fn transferred(&self) -> (&BTreeMap<String, Transferred>, Option<&'static str>) {
        if !self.received.is_empty() {
            let caveat = "in part what senders reported: some receivers reported no intervals";
            (&self.received, self.has_senders.then_some(caveat))
        } else if self.acked.values().any(|c| c.bytes > 0.0) {
            (&self.acked, Some("bytes acknowledged to the senders: no receiver reported intervals"))
        } else {
            (&self.sent, Some("bytes that senders passed to the kernel: nothing else was reported"))
        }
    }

    /// Returns whether a flow has intervals or samples in this phase.
    pub(super) fn has(&self, flow: &str) -> bool {
        [&self.received, &self.sent, &self.acked].iter().any(|of| of.contains_key(flow))
    }

    /// Returns the seconds that the group's intervals cover; `None` if it does not run in this phase. `allowed` is from the plan.
    pub(super) fn covered_s(&self, phase: &PhaseRecord, allowed: Option<bool>) -> Option<f64> {
        let (transferred, _) = self.transferred();
        let seconds = covered_s(transferred.values());
        let intervals = transferred.values().map(|c| c.intervals).max().unwrap_or(0);
        let share = seconds / phase.seconds();
        let probably = share >= RUNNING_SHARE
            || (share >= RUNNING_SHARE_WITH_INTERVALS && intervals >= MIN_INTERVALS);
        (allowed.unwrap_or(probably) && seconds > 0.0).then_some(seconds)
    }
}

/// Adds flows of an imported trial of which only the sender reported anything to the receivers' reports of the same group. In a run, every
/// flow has a receiver, and one without intervals received nothing.
pub(super) fn add_senders(groups: &mut BTreeMap<GroupKey, GroupPhase>) {
    let received: BTreeSet<String> =
        groups.values().flat_map(|data| data.received.keys().cloned()).collect();
    for data in groups.values_mut() {
        let moved = |(_, transferred): &(&String, &Transferred)| transferred.bytes > 0.0;
        let acked: BTreeSet<String> =
            data.acked.iter().filter(moved).map(|(flow, _)| flow.clone()).collect();
        if !acked.is_empty() {
            let others = data.sent.iter().filter(|(flow, _)| !acked.contains(*flow));
            data.acked.extend(others.map(|(flow, sent)| (flow.clone(), *sent)));
        }
        if !data.received.is_empty() {
            let senders = if acked.is_empty() { &data.sent } else { &data.acked };
            let others = senders.iter().filter(moved).filter(|(flow, _)| !received.contains(*flow));
            let others: Vec<_> = others.map(|(flow, sent)| (flow.clone(), *sent)).collect();
            data.has_senders = !others.is_empty();
            data.received.extend(others);
        }
    }
}
