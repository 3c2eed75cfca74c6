//! Rules about the lab: one kernel for all nodes, and what an engine cannot run.

use std::collections::BTreeSet;

use crate::cc;
use crate::plan::{Engine, Link, Plan, Series, Via};
use crate::resolve::{drain_rate, path_links_in};
use crate::topology::Topology;

use super::limits::AGENTS;
use super::problems::Problems;
use super::traces;

/// The keys that decide whether a flow passes a rate limit.
const RATES: &[&[&str]] = &[
    &["wires"],
    &["path"],
    &["links", "*", "node"],
    &["links", "*", "toward"],
    &["links", "*", "dev"],
    &["links", "*", "path"],
    &["links", "*", "rate"],
    &["links", "*", "trace"],
    &["flows", "*", "from"],
    &["flows", "*", "to"],
    &["flows", "*", "rate"],
];

const ENGINE: &[&str] = &["lab", "engine"];

/// Checks the rules of the lab. `normalized` is the plan with its presets merged.
pub(super) fn check(
    (plan, normalized): (&Plan, &Plan),
    topology: &Topology,
    problems: &mut Problems,
) {
    let kernels = kernels(plan);
    if let Some((first, at)) = kernels.first() {
        for (other, path) in kernels.iter().filter(|(other, _)| other != first) {
            let why = format!(
                "is {other}, but `{}` is {first}: the lab is one machine with one kernel; name the same kernel \
                 everywhere, or compare kernels in the matrix: `\"lab.kernel\" = [\"{first}\", \"{other}\"]`",
                at.join(".")
            );
            problems.error_from(path, &[path, at], why);
        }
        without_agents(plan, at, "a kernel", problems);
        without_modules(plan, at, &kernels, problems);
    } else if plan.lab.engine.is_some() {
        without_agents(plan, ENGINE, "an engine", problems);
        without_modules(plan, ENGINE, &kernels, problems);
    }
    if plan.lab.engine == Some(Engine::Uml) {
        uml((plan, normalized), topology, &kernels, problems);
    }
}

/// The kernels that the plan names, and where.
pub(super) fn kernels(plan: &Plan) -> Vec<(Series, Vec<&str>)> {
    let of_lab = plan.lab.kernel.map(|kernel| (kernel, vec!["lab", "kernel"]));
    let of_nodes = plan.nodes.iter().filter_map(|(name, node)| {
        node.kernel.map(|kernel| (kernel, vec!["nodes", name, "kernel"]))
    });
    of_lab.into_iter().chain(of_nodes).collect()
}

fn without_agents(plan: &Plan, at: &[&str], what: &str, problems: &mut Problems) {
    if let Some((node, _)) = plan.nodes.iter().find(|(_, node)| node.agent.is_some()) {
        let why = format!(
            "a plan that names {what} runs in the lab, which creates its own nodes, but node `{node}` has an agent: \
             leave out one of them"
        );
        problems.error_from(at, &[at, AGENTS], why);
    }
}

/// Rejects ccbench's modules on stock kernels: they are built for the kernel `own`, and stock kernels have only Debian's modules.
fn without_modules(
    plan: &Plan,
    at: &[&str],
    kernels: &[(Series, Vec<&str>)],
    problems: &mut Problems,
) {
    for (name, _) in plan.cc.iter().filter(|(_, cc)| cc.module.is_some()) {
        let why = "the lab's kernels cannot load your modules; write the congestion control in BPF, and name it with `file`";
        problems.error_from(&["cc", name, "module"], &[&["cc", name], at], why);
    }
    let Some((stock, _)) = kernels.iter().find(|(series, _)| *series != Series::Own) else {
        return;
    };
    for (name, cc) in plan.cc.iter().filter(|(_, cc)| cc.via == Via::Module && cc::is_own(cc)) {
        let why = format!(
            "the lab's kernel {stock} has none of ccbench's modules; use the kernel `own`, or leave out `via` to load `{}` as BPF",
            cc.algorithm
        );
        problems.error_from(&["cc", name, "via"], &[&["cc", name], at], why);
    }
}

/// Rejects plans that User-Mode Linux cannot run: its clock stands still while a process computes.
fn uml(
    (plan, normalized): (&Plan, &Plan),
    topology: &Topology,
    kernels: &[(Series, Vec<&str>)],
    problems: &mut Problems,
) {
    for (kernel, path) in kernels.iter().filter(|(kernel, _)| !Engine::Uml.runs(*kernel)) {
        let why = format!(
            "the engine `uml` runs only the kernel `own`, not {kernel}; leave out the kernel, or use the engine `qemu`"
        );
        problems.error_from(path, &[path, ENGINE], why);
    }
    if plan.keep_awake {
        let why = "is not needed with the engine `uml`, and its busy threads would stop the engine's clock; leave it out";
        problems.error_from(&["keep_awake"], &[ENGINE], why);
    }
    let why = "the CPU of the engine `uml` is infinitely fast, so the flow would never end";
    unlimited_flows(
        (normalized, topology),
        &[ENGINE],
        (why, ", or use the engine `qemu`"),
        problems,
    );
}

/// Rejects flows of a normalized plan that nothing limits if computing takes no time. `why` is the reason, and `remedy` a further
/// remedy.
pub(super) fn unlimited_flows(
    (normalized, topology): (&Plan, &Topology),
    reads: &[&[&str]],
    (why, remedy): (&str, &str),
    problems: &mut Problems,
) {
    // A trace has either rates or only delays and losses. A trace that has not been read may be of either kind.
    let is_limit = |(_, link): &(&String, &Link)| {
        drain_rate(link).is_some() || link.trace.is_some() && !traces::is_known(link, problems)
    };
    let limits: BTreeSet<&str> =
        normalized.links.iter().filter(is_limit).map(|(name, _)| name.as_str()).collect();
    for (name, flow) in normalized.flows.iter().filter(|(_, flow)| flow.rate.is_none()) {
        let limited =
            path_links_in(normalized, topology, name).iter().any(|(link, _)| limits.contains(link));
        if !limited && !problems.is_unread(RATES) {
            let (from, to) =
                if flow.reverse { (&flow.to, &flow.from) } else { (&flow.from, &flow.to) };
            let why = format!(
                "no link from {from} to {to} has a rate, and {why}: give a link a `rate`, or the flow one (`rate = \"1gbit\"`)\
                 {remedy}"
            );
            problems.error_from(&["flows", name], reads, why);
        }
    }
}
