//! The reasons that fail a trial, and whether a resumed run repeats it because of them.

use crate::journal::TrialEnd;
use crate::model::TrialStatus;

/// What failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A node, ccbench itself, or a file: the trial did not take place, or its data cannot be used. `--resume` repeats it.
    Infrastructure,
    /// The trial took place and did not do what the plan specifies, so it may fail again. Only `--retry-failed` repeats it.
    Trial,
}

/// Reason of a committed trial whose files are not those that were committed.
pub const DAMAGED: &str = "damaged";

/// Every reason code that can fail a trial.
pub const FAILING: [(&str, Cause); 11] = [
    ("cc_not_in_force", Cause::Trial),
    ("cc_state_missing", Cause::Trial),
    (DAMAGED, Cause::Infrastructure),
    ("error", Cause::Infrastructure),
    ("flow_dead", Cause::Trial),
    ("flow_error", Cause::Trial),
    ("lab_busy", Cause::Trial),
    ("link_late", Cause::Trial),
    ("node_lost", Cause::Infrastructure),
    ("not_run", Cause::Infrastructure),
    ("trace_late", Cause::Trial),
];

/// What failed according to a reason of a failed trial; for codes of later versions, the trial.
pub fn cause(code: &str) -> Cause {
    let known = FAILING.iter().find(|(known, _)| *known == code);
    known.map_or(Cause::Trial, |(_, cause)| *cause)
}

impl TrialEnd {
    /// Whether a resumed run repeats the trial without being asked for it: it was aborted, or the infrastructure failed.
    pub fn needs_repeat(&self) -> bool {
        let infrastructure = |code: &str| cause(code) == Cause::Infrastructure;
        match self.status {
            TrialStatus::Aborted => true,
            TrialStatus::Failed => self.reasons.iter().any(|reason| infrastructure(&reason.code)),
            TrialStatus::Ok | TrialStatus::Degraded => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn manual_lists_the_reasons_that_fail_a_trial() {
        let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results.md");
        let manual = std::fs::read_to_string(manual).unwrap();
        let rows = manual.lines().filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            let (codes, verdict) = (cells.next()?, cells.next()?);
            verdict.split(", ").any(|status| status == "failed").then_some(codes)
        });
        let listed: BTreeSet<&str> = rows.flat_map(|codes| codes.split(", ")).collect();
        let known: BTreeSet<&str> = FAILING.iter().map(|(code, _)| *code).collect();
        assert_eq!(listed, known);
        let repeated = FAILING.iter().filter(|(_, cause)| *cause == Cause::Infrastructure);
        let repeated: Vec<String> = repeated.map(|(code, _)| format!("`{code}`")).collect();
        let sentence = format!("({})", repeated.join(", "));
        assert!(manual.contains(&sentence), "docs/results.md lacks {sentence}");
    }
}
