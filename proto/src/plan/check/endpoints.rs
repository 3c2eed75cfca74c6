//! The nodes at both ends of a flow group or a probe.

use crate::plan::Plan;
use crate::topology::Topology;

use super::limits::{AGENTS, has_only_namespaces, known_node};
use super::links::needs_address;
use super::problems::Problems;

/// Checks the two ends of a flow group or a probe: they must be known, different, connected, and have addresses.
pub(super) fn ends(
    plan: &Plan,
    topology: &Topology,
    at: [&str; 2],
    (from, to): (&str, &str),
    problems: &mut Problems,
) {
    let [table, name] = at;
    let from_known = known_node(plan, &[table, name, "from"], from, problems);
    let to_known = known_node(plan, &[table, name, "to"], to, problems);
    if !from_known || !to_known {
        return;
    }
    if from == to {
        problems.error_from(
            &[table, name, "to"],
            &[],
            format!("`{to}` is both `from` and `to`; name another node"),
        );
        return;
    }
    let because = format!("`{table}.{name}` runs between `{from}` and `{to}`");
    needs_address(plan, from, &because, problems);
    needs_address(plan, to, &because, problems);
    if has_only_namespaces(plan) && !plan.wires.is_empty() && topology.path(from, to).is_none() {
        problems.error_from(
            &[table, name],
            &[&["wires"], AGENTS],
            format!("no wires lead from `{from}` to `{to}`; join them under [wires]"),
        );
    }
    let address = |node: &str| plan.nodes.get(node).and_then(|n| n.address);
    if let (Some(a), Some(b)) = (address(from), address(to))
        && a.is_ipv4() != b.is_ipv4()
    {
        problems.error_from(
            &[table, name],
            &[],
            format!("`{from}` has {a} and `{to}` has {b}: one is IPv4, the other IPv6; use the same version for both"),
        );
    }
}
