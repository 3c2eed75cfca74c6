//! Collects the problems of a plan.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::plan::checked::PlanFiles;
use crate::plan::parse::set::join_key;
use crate::plan::parse::unread_keys::UnreadKeys;
use crate::plan::problem::{PlanProblem, Severity};
use crate::plan::timeline::is_scheduled;
use crate::plan::{Flow, Plan};

use super::Target;

/// The problems found so far, and the keys that cannot be checked.
#[derive(Debug, Default)]
pub(super) struct Problems {
    pub(super) found: Vec<PlanProblem>,
    pub(super) unread_keys: UnreadKeys,
    pub(super) files: Arc<PlanFiles>,
    pub(super) target: Target,
    /// The flow groups that run at some point, if factors decide when groups run.
    pub(super) running: Option<Arc<BTreeSet<String>>>,
}

impl Problems {
    /// Reports an error that depends on the values at and below the path.
    pub(super) fn error(&mut self, path: &[&str], reason: impl Into<String>) {
        self.error_from(path, &[path], reason);
    }

    /// Reports an error that depends on the values at these places.
    pub(super) fn error_from(
        &mut self,
        path: &[&str],
        reads: &[&[&str]],
        reason: impl Into<String>,
    ) {
        self.add(path, reads, reason.into(), Severity::Error);
    }

    /// Reports a warning that depends on the values at and below the path.
    pub(super) fn warning(&mut self, path: &[&str], reason: impl Into<String>) {
        self.warning_from(path, &[path], reason);
    }

    /// Reports a warning that depends on the values at these places.
    pub(super) fn warning_from(
        &mut self,
        path: &[&str],
        reads: &[&[&str]],
        reason: impl Into<String>,
    ) {
        self.add(path, reads, reason.into(), Severity::Warning);
    }

    /// Whether a key at, above or below one of these places could not be read.
    pub(super) fn is_unread(&self, reads: &[&[&str]]) -> bool {
        reads.iter().any(|place| self.unread_keys.touches(place))
    }

    /// Whether a group runs at some point, though perhaps not at the checked one.
    pub(super) fn runs_at_a_point(&self, group: &str) -> bool {
        self.running.as_ref().is_some_and(|running| running.contains(group))
    }

    /// Whether a group runs at another point but not at the checked one, whose plan this is. It does not exist there.
    pub(super) fn runs_only_at_other_points(&self, plan: &Plan, group: &str, flow: &Flow) -> bool {
        !is_scheduled(plan, group, flow) && self.runs_at_a_point(group)
    }

    /// Ignores the value at the path from now on.
    pub(super) fn mark_uncertain(&mut self, path: &[&str]) {
        self.unread_keys.mark_uncertain(owned(path));
    }

    fn add(&mut self, path: &[&str], reads: &[&[&str]], reason: String, severity: Severity) {
        let place = owned(path);
        if self.unread_keys.covers(&place) || self.is_unread(reads) {
            return;
        }
        self.found.push(PlanProblem { path: join_key(path), reason, severity, line: None, place });
    }
}

fn owned(path: &[&str]) -> Vec<String> {
    path.iter().map(|segment| (*segment).to_owned()).collect()
}
