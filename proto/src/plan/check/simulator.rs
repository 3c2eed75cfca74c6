//! Checks whether the simulator can run a plan: anything without a model is an error, a key without effect a warning.

use crate::cc::{self, SIMULATED_BUILTINS};
use crate::plan::{Backend, Cc, Plan, ProbeKind, Queue, Shaper, SysctlValue, Tool, Via};
use crate::topology::Topology;

use super::lab;
use super::problems::Problems;

/// Sysctls that the simulator knows, and those without effect there, because its hosts have no queues, no sockets that set their
/// buffers, and no cache of earlier connections.
const SYSCTLS: &[&str] = &[
    "net.core.default_qdisc",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.ipv4.tcp_no_metrics_save",
    // Another rule rejects this one.
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_ecn",
    "net.ipv4.tcp_ecn_fallback",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_wmem",
];

/// Sysctls for which the simulator supports only the value 1.
const ALWAYS_ONE: &[&str] =
    &["net.ipv4.tcp_recovery", "net.ipv4.tcp_sack", "net.ipv4.tcp_timestamps"];

/// Checks the rules of the simulator. `normalized` is the plan with its presets merged.
pub(super) fn check(
    (plan, normalized): (&Plan, &Plan),
    topology: &Topology,
    problems: &mut Problems,
) {
    without_kernels(plan, problems);
    nodes(plan, problems);
    links(plan, normalized, problems);
    for (name, cc) in &plan.cc {
        instance(name, cc, problems);
    }
    flows((plan, normalized), topology, problems);
    probes(plan, problems);
    for name in plan.capture.keys() {
        let why = "simulated packets have no payload to capture: remove it, or run without --sim";
        problems.error(&["capture", name], why);
    }
}

/// Rejects a plan that names a kernel, because its subject is that kernel. An engine is only a way to run one.
fn without_kernels(plan: &Plan, problems: &mut Problems) {
    for (kernel, path) in lab::kernels(plan) {
        let why = format!(
            "the simulator runs no kernel, so it cannot run {kernel}: remove the key, or run without --sim"
        );
        problems.error(&path, why);
    }
    if plan.lab.engine.is_some() {
        let why = "has no effect with --sim, which runs no engine of the lab";
        problems.warning(&["lab", "engine"], why);
    }
    if plan.keep_awake {
        let why = "has no effect with --sim, whose results do not depend on this machine's CPUs";
        problems.warning(&["keep_awake"], why);
    }
}

fn nodes(plan: &Plan, problems: &mut Problems) {
    for (name, node) in &plan.nodes {
        if node.agent.is_some() {
            let why = "the simulator creates its own nodes: remove `agent` and `address` and write [wires], or run \
                       without --sim";
            problems.error(&["nodes", name, "agent"], why);
        }
        if node.offloads {
            let why = "simulated links get single segments, never super-packets; with --sim, this only makes senders \
                       send several segments at once";
            problems.warning(&["nodes", name, "offloads"], why);
        }
        for (key, value) in &node.sysctl {
            sysctl(&["nodes", name, "sysctl", key], key, value, problems);
        }
    }
}

fn sysctl(path: &[&str], key: &str, value: &SysctlValue, problems: &mut Problems) {
    if ALWAYS_ONE.contains(&key) {
        if value.to_string().trim() != "1" {
            let why = format!(
                "the simulator's TCP always has `{key} = 1`, not {value}: leave it out, or run the plan without --sim"
            );
            problems.error(path, why);
        }
    } else if key == "net.ipv4.tcp_ecn"
        && !matches!(value.to_string().trim(), "0" | "1" | "2" | "3" | "4" | "5")
    {
        let why = format!(
            "the simulator supports 0 to 5, not {value}: use one of them, or run without --sim"
        );
        problems.error(path, why);
    } else if !SYSCTLS.contains(&key) {
        problems.warning(path, format!("`{key}` has no effect in the simulator"));
    }
}

fn links(plan: &Plan, normalized: &Plan, problems: &mut Problems) {
    for (name, link) in &plan.links {
        if link.backend == Backend::Kernel {
            let why = "the simulator has no kernel qdiscs: the link is simulated as with `backend = \"userspace\"`";
            problems.warning(&["links", name, "backend"], why);
        }
        if link.shaper != Shaper::default() {
            let why = "has no effect with --sim, which has no kernel qdiscs";
            problems.warning(&["links", name, "shaper"], why);
        }
    }
    // Queues may come from a preset.
    for (name, link) in &normalized.links {
        if let Some((key, why)) = unmodelled(link.queue.as_ref()) {
            let reads: &[&[&str]] =
                &[&["links", name, "queue"], &["links", name, "path"], &["path"]];
            let mut place = vec!["links", name.as_str(), "queue"];
            place.extend(key);
            problems.error_from(&place, reads, why);
        }
        for (class, config) in &link.classes {
            if let Some((key, why)) = unmodelled(config.queue.as_ref()) {
                let mut place = vec!["links", name.as_str(), "classes", class.as_str(), "queue"];
                place.extend(key);
                problems.error(&place, why);
            }
        }
    }
}

/// The part of a queue that the simulator does not model: its key (`None` for the whole queue), and the problem.
fn unmodelled(queue: Option<&Queue>) -> Option<(Option<&'static str>, String)> {
    let queue = queue?;
    let (key, remedy) = queue.parameters().kernel_only()?;
    let (key, what) = match key {
        "kind" => (None, "this kind of queue".to_owned()),
        _ => (Some(key), format!("`{key}`")),
    };
    Some((key, format!("the simulator does not model {what}: {remedy}, or run without --sim")))
}

fn instance(name: &str, cc: &Cc, problems: &mut Problems) {
    // Another rule reports its problems.
    if cc::resolve(cc).is_err() {
        return;
    }
    if let Some((_, via)) = cc.supplied() {
        let key = if via == Via::Module { "module" } else { "file" };
        let why = "the simulator runs no kernel code; run the plan without --sim, or with --lab if it is BPF";
        problems.error_from(&["cc", name, key], &[&["cc", name]], why);
        return;
    }
    if cc::is_kernel_algorithm(cc) {
        let algorithm = cc.algorithm.as_str();
        if !SIMULATED_BUILTINS.contains(&algorithm) {
            let why = unknown(algorithm);
            problems.error_from(&["cc", name, "algorithm"], &[&["cc", name]], why);
        } else if !cc.params.is_empty() {
            let why = format!(
                "the simulator's {algorithm} has no module parameters: leave them out, or run the plan without --sim"
            );
            problems.error_from(&["cc", name, "params"], &[&["cc", name]], why);
        }
    }
    if matches!(cc.via, Via::Bpf | Via::Module) {
        let why = "has no effect with --sim, which calls the algorithm's C core itself";
        problems.warning(&["cc", name, "via"], why);
    }
}

fn flows((plan, normalized): (&Plan, &Plan), topology: &Topology, problems: &mut Problems) {
    for (name, flow) in &plan.flows {
        if flow.tool == Some(Tool::Iperf3) {
            let why =
                "has no effect with --sim, which generates traffic as the tool `ccbench` does";
            problems.warning(&["flows", name, "tool"], why);
        }
        congestion_control(plan, &["flows", name, "cc"], flow.cc.as_deref(), problems);
    }
    let why = "simulated hosts are infinitely fast, so the flow would never end";
    let remedy = ", or run the plan without --sim";
    lab::unlimited_flows((normalized, topology), &[], (why, remedy), problems);
}

fn probes(plan: &Plan, problems: &mut Problems) {
    for (name, probe) in &plan.probes {
        // Another rule rejects the key at probes of other kinds.
        if probe.kind != ProbeKind::Http {
            continue;
        }
        congestion_control(plan, &["probes", name, "cc"], probe.cc.as_deref(), problems);
        if probe.host.is_some() {
            let why = "simulated nodes resolve no names: remove it, or run without --sim";
            problems.error(&["probes", name, "host"], why);
        }
    }
}

/// Rejects the name, at `path`, of a kernel's congestion control that has no model.
fn congestion_control(plan: &Plan, path: &[&str], cc: Option<&str>, problems: &mut Problems) {
    if let Some(cc) = cc
        && !plan.cc.contains_key(cc)
        && !SIMULATED_BUILTINS.contains(&cc)
    {
        problems.error_from(path, &[path, &["cc"]], unknown(cc));
    }
}

/// Why the simulator does not have this congestion control of a kernel.
fn unknown(algorithm: &str) -> String {
    let known = SIMULATED_BUILTINS.join(", ");
    let remedy = if cc::scheme(algorithm).is_some() {
        let instance = if cc::BUILTINS.contains(&algorithm) {
            format!("my_{algorithm}")
        } else {
            algorithm.to_owned()
        };
        format!(
            "for ccbench's own `{algorithm}`, write `[cc.{instance}]` with `algorithm = \"{algorithm}\"`, without \
             `via = \"builtin\"`, and use it with `cc = \"{instance}\"`"
        )
    } else {
        "use one of these, or run the plan without --sim".to_owned()
    };
    format!(
        "the simulator has no model of the kernel's `{algorithm}`, only of {known} and ccbench's own: {remedy}"
    )
}
