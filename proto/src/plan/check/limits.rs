//! Bounds and messages that several rules share.

use crate::plan::parse::suggest::hint;
use crate::plan::{Flow, Plan};
use crate::units::{Micros, Rate};

use super::problems::Problems;

/// Longest pause between trials.
pub(super) const MAX_GAP: Micros = Micros::from_secs(24 * 3600);
/// Fastest link.
pub(super) const MAX_RATE: Rate = Rate::from_bits_per_sec(1_000_000_000_000);
/// Longest sampling or probing interval.
pub(super) const MAX_INTERVAL: Micros = Micros::from_secs(3600);
/// Longest constant delay of a link.
pub(super) const MAX_DELAY: Micros = Micros::from_secs(60);
/// Most nodes of a plan.
pub(super) const MAX_NODES: usize = 200;
/// Most classes of a link.
pub(super) const MAX_CLASSES: usize = 128;
/// Last priority of a class, as in the kernel's HTB.
pub(super) const MAX_PRIORITY: u8 = 7;
/// Most trials of an experiment.
pub(super) const MAX_TRIALS: usize = 100_000;

/// The key that decides who creates a node.
pub(super) const AGENTS: &[&str] = &["nodes", "*", "agent"];
/// The lengths of the phases; their sum is the length of a trial.
pub(super) const LENGTHS: &[&str] = &["phases", "*", "length"];
/// The groups that run in a phase.
pub(super) const PHASE_FLOWS: &[&str] = &["phases", "*", "flows"];
/// The keys that decide which groups run.
pub(super) const SCHEDULE: [&[&str]; 3] =
    [PHASE_FLOWS, &["flows", "*", "start"], &["flows", "*", "stop"]];
/// The keys that decide how many connections the groups have that run.
pub(super) const SOCKETS: [&[&str]; 4] =
    [SCHEDULE[0], SCHEDULE[1], SCHEDULE[2], &["flows", "*", "count"]];

/// The flow groups without those that run only at other points.
pub(super) fn groups_here<'p>(
    plan: &'p Plan,
    problems: &Problems,
) -> impl Iterator<Item = &'p Flow> {
    let groups = plan.flows.iter();
    let here =
        groups.filter(move |(name, flow)| !problems.runs_only_at_other_points(plan, name, flow));
    here.map(|(_, flow)| flow)
}

/// The number of connections of these groups.
pub(super) fn sockets_here(plan: &Plan, problems: &Problems) -> u64 {
    groups_here(plan, problems).map(|flow| u64::from(flow.count)).sum()
}

/// Whether `name` is a node; otherwise reports the problem.
pub(super) fn known_node(plan: &Plan, path: &[&str], name: &str, problems: &mut Problems) -> bool {
    let what = ("nodes", "node");
    known(plan.nodes.keys(), what, path, name, problems)
}

/// Whether `name` is a flow group; otherwise reports the problem.
pub(super) fn known_flow(plan: &Plan, path: &[&str], name: &str, problems: &mut Problems) -> bool {
    let what = ("flows", "flow group");
    if !known(plan.flows.keys(), what, path, name, problems) {
        return false;
    }
    if plan.flows.get(name).is_some_and(|flow| problems.runs_only_at_other_points(plan, name, flow))
    {
        let reads: &[&[&str]] = &[path, &["flows", name], PHASE_FLOWS];
        let why = format!(
            "`{name}` runs in no phase of this point, so the group does not exist there; let the factor that sets the \
             phases set this key too"
        );
        problems.error_from(path, reads, why);
        return false;
    }
    true
}

fn known<'p>(
    mut names: impl Iterator<Item = &'p String> + Clone,
    (table, what): (&str, &str),
    path: &[&str],
    name: &str,
    problems: &mut Problems,
) -> bool {
    let known: Vec<&str> = names.clone().map(String::as_str).collect();
    if names.any(|known| known == name) {
        return !problems.is_unread(&[path]);
    }
    problems.error_from(
        path,
        &[path, &[table, name]],
        format!("there is no {what} `{name}`{}", hint(name, &known, &format!("{what}s"))),
    );
    problems.mark_uncertain(path);
    false
}

/// Whether a node is a namespace that ccbench makes.
pub(super) fn is_ours(plan: &Plan, node: &str) -> bool {
    plan.nodes.get(node).is_some_and(|node| node.agent.is_none())
}

/// Whether all nodes are namespaces that ccbench makes.
pub(super) fn has_only_namespaces(plan: &Plan) -> bool {
    plan.nodes.values().all(|node| node.agent.is_none())
}
