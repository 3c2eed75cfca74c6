//! The trials of each side that are not ok.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Reason, TrialFilter, TrialStatus};
use crate::summary::Summary;

/// The trials of a side, by their verdicts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SideTrials {
    /// Number of trials of the side's points.
    total: usize,
    /// The trials that are not ok.
    not_ok: BTreeMap<TrialStatus, NotOk>,
}

/// Trials with the same status.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct NotOk {
    count: usize,
    is_excluded: bool,
    /// Number of trials with each reason's code.
    codes: BTreeMap<String, usize>,
}

impl SideTrials {
    /// Counts the trials of these points of a run.
    pub(super) fn new(summary: &Summary, points: &BTreeSet<u32>) -> Self {
        let ends = points.iter().flat_map(|point| summary.trials_of(*point));
        Self::counted(ends.map(|end| (end.status, &end.reasons[..])), summary.trial_filter)
    }

    fn counted<'a>(
        ends: impl Iterator<Item = (TrialStatus, &'a [Reason])>,
        filter: TrialFilter,
    ) -> Self {
        let mut side = Self::default();
        for (status, reasons) in ends {
            side.total += 1;
            if status == TrialStatus::Ok {
                continue;
            }
            let not_ok = side.not_ok.entry(status).or_default();
            not_ok.count += 1;
            not_ok.is_excluded = !filter.includes(status);
            let codes: BTreeSet<String> = reasons.iter().map(|one| one.code.to_string()).collect();
            for code in codes {
                *not_ok.codes.entry(code).or_default() += 1;
            }
        }
        side
    }

    /// Returns a line about the trials; empty if all are ok.
    pub(super) fn line(&self, side: &str) -> String {
        if self.not_ok.is_empty() {
            return String::new();
        }
        let part = |(status, not_ok): (&TrialStatus, &NotOk)| {
            let excluded = if not_ok.is_excluded { ", excluded" } else { "" };
            let mut codes: Vec<(&String, &usize)> = not_ok.codes.iter().collect();
            codes.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
            let codes = codes.iter().map(|(code, count)| format!("{code} in {count}"));
            let codes = match codes.collect::<Vec<_>>().join(", ") {
                none if none.is_empty() => none,
                codes => format!(" ({codes})"),
            };
            format!("{} of {} {status}{excluded}{codes}", not_ok.count, self.total)
        };
        let parts: Vec<String> = self.not_ok.iter().map(part).collect();
        format!("trials of {side}: {}\n", parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason::ReasonCode;

    #[test]
    fn trials_that_are_not_ok_are_counted_with_their_reasons() {
        let reason = |code| Reason::new(code, "why");
        let degraded = [
            vec![reason(ReasonCode::CpuBound), reason(ReasonCode::CpuBound)],
            vec![reason(ReasonCode::LinkLate), reason(ReasonCode::CpuBound)],
        ];
        let dead = [reason(ReasonCode::FlowDead)];
        let ends: [(TrialStatus, &[Reason]); 5] = [
            (TrialStatus::Ok, &[]),
            (TrialStatus::Degraded, &degraded[0][..]),
            (TrialStatus::Degraded, &degraded[1][..]),
            (TrialStatus::Failed, &dead[..]),
            (TrialStatus::Aborted, &[]),
        ];
        let line =
            |count, filter| SideTrials::counted(ends.iter().copied().take(count), filter).line("A");
        assert_eq!(line(1, TrialFilter::default()), "");
        assert_eq!(
            line(5, TrialFilter::default()),
            "trials of A: 2 of 5 degraded (cpu_bound in 2, link_late in 1); 1 of 5 failed, excluded (flow_dead in 1); \
             1 of 5 aborted, excluded\n"
        );
        let all = TrialFilter { include_failed: true, ..<_>::default() };
        assert!(line(5, all).contains("; 1 of 5 failed (flow_dead in 1); "), "{}", line(5, all));
    }
}
