//! Bounds that several rules share, and sentences about them.

use crate::plan::Plan;
use crate::plan::parse::suggest::hint;
use crate::units::{Micros, Rate};

use super::Problems;

/// Longest trial.
pub(super) const MAX_TRIAL: Micros = Micros::from_secs(7 * 24 * 3600);
/// Longest pause between trials.
pub(super) const MAX_GAP: Micros = Micros::from_secs(24 * 3600);
/// Fastest link.
pub(super) const MAX_RATE: Rate = Rate::from_bits_per_sec(1_000_000_000_000);
/// Longest sampling or probing interval.
pub(super) const MAX_INTERVAL: Micros = Micros::from_secs(3600);
/// Longest constant delay of a link.
pub(super) const MAX_DELAY: Micros = Micros::from_secs(60);
/// Most phases of a plan.
pub(super) const MAX_PHASES: usize = 1_000;
/// Most nodes of a plan.
pub(super) const MAX_NODES: usize = 200;
/// Most classes of a link.
pub(super) const MAX_CLASSES: usize = 128;
/// Most trials of an experiment.
pub(super) const MAX_TRIALS: usize = 100_000;

/// Reports a word that names no node.
pub(super) fn known_node(plan: &Plan, path: &[&str], name: &str, problems: &mut Problems) -> bool {
    if plan.nodes.contains_key(name) {
        return true;
    }
    let names: Vec<&str> = plan.nodes.keys().map(String::as_str).collect();
    problems.error(path, format!("there is no node `{name}`{}", hint(name, &names, "nodes")));
    false
}

/// Reports a word that names no flow group.
pub(super) fn known_flow(plan: &Plan, path: &[&str], name: &str, problems: &mut Problems) -> bool {
    if plan.flows.contains_key(name) {
        return true;
    }
    let names: Vec<&str> = plan.flows.keys().map(String::as_str).collect();
    problems.error(
        path,
        format!("there is no flow group `{name}`{}", hint(name, &names, "flow groups")),
    );
    false
}

/// Whether all nodes are namespaces that ccbench makes.
pub(super) fn all_ours(plan: &Plan) -> bool {
    plan.nodes.values().all(|node| node.agent.is_none())
}
