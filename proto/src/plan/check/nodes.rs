//! Nodes, their settings, and the wires between them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::plan::{Node, Plan, SysctlValue};
use crate::topology::MAX_SEGMENTS;

use super::limits::{AGENTS, MAX_NODES, has_only_namespaces, known_node};
use super::matrix;
use super::problems::Problems;

const KERNEL_RELEASE: &str = "kernel_release";

pub(super) fn check(plan: &Plan, problems: &mut Problems) {
    if plan.nodes.is_empty() {
        problems.error(&["nodes"], "there are none; write a line for each, like `src = {}`");
    }
    if plan.nodes.len() > MAX_NODES {
        let why = format!("there are {}; {MAX_NODES} are allowed", plan.nodes.len());
        problems.error_from(&["nodes"], &[], why);
    }
    mixture(plan, problems);
    let mut agents: BTreeMap<&str, &str> = BTreeMap::new();
    let mut addresses: BTreeMap<IpAddr, &str> = BTreeMap::new();
    for (name, node) in &plan.nodes {
        if let Some(agent) = &node.agent {
            let path = ["nodes", name, "agent"];
            if let Some(why) = refuse_agent(agent) {
                problems.error(&path, why);
            } else if let Some(other) = agents.insert(agent, name) {
                problems.error(
                    &path,
                    format!(
                        "`{agent}` is already the agent of `{other}`; every node needs its own"
                    ),
                );
            }
        }
        if let Some(address) = node.address {
            address_of(name, node, address, &mut addresses, problems);
        }
    }
    if has_only_namespaces(plan) && !problems.is_unread(&[AGENTS]) {
        wires(plan, problems);
    }
}

/// Checks the settings of nodes that may differ from point to point.
pub(super) fn check_settings(plan: &Plan, problems: &mut Problems) {
    for (name, node) in &plan.nodes {
        for (key, value) in &node.sysctl {
            sysctl(&["nodes", name, "sysctl", key], key, value, problems);
        }
    }
}

/// The nodes for which the plan names a kernel release at one or more points.
pub(super) fn with_kernel_release(plan: &Plan) -> BTreeSet<String> {
    let written = plan.nodes.iter().filter(|(_, node)| node.kernel_release.is_some());
    let varied = matrix::varied_keys(plan).into_iter().filter_map(|key| match &key[..] {
        [first, name, last] if first == "nodes" && last == KERNEL_RELEASE => Some(name.clone()),
        _ => None,
    });
    written.map(|(name, _)| name.clone()).chain(varied).collect()
}

/// Checks the kernels of a point's nodes. `named` are the nodes for which the plan names a kernel at one or more points.
pub(super) fn check_kernel_releases(
    plan: &Plan,
    named: &BTreeSet<String>,
    problems: &mut Problems,
) {
    for (name, node) in plan.nodes.iter().filter(|(name, _)| named.contains(*name)) {
        let path = ["nodes", name, KERNEL_RELEASE];
        let Some(release) = &node.kernel_release else {
            let why = "is set at some points only, so at the others the node would keep the kernel of the point \
                       before; set it at every point";
            problems.error_from(&path, &[&["matrix"]], why);
            continue;
        };
        if node.agent.is_none() {
            let why = "only a machine with an agent can be rebooted; name the node's `agent`, or choose a kernel of the lab with \
                       `lab.kernel`";
            problems.error_from(&path, &[&path, &["nodes", name, "agent"]], why);
        }
        if let Some(why) = refuse_kernel_release(release) {
            problems.error(&path, why);
        }
    }
}

/// Why `uname -r` cannot print this; `None` if it can.
fn refuse_kernel_release(release: &str) -> Option<String> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '+' | '~');
    // The length in `struct new_utsname`, without the final NUL.
    let length_ok = (1..=64).contains(&release.len());
    if length_ok && release.starts_with(|c: char| c.is_ascii_digit()) && release.chars().all(good) {
        return None;
    }
    Some(format!(
        "`{}` is not a kernel release; write it as `uname -r` prints it on the node, like \"6.12.94+deb13-amd64\"",
        release.escape_debug()
    ))
}

fn mixture(plan: &Plan, problems: &mut Problems) {
    let with = plan.nodes.values().filter(|node| node.agent.is_some()).count();
    let without: Vec<&str> = plan
        .nodes
        .iter()
        .filter(|(_, n)| n.agent.is_none())
        .map(|(name, _)| name.as_str())
        .collect();
    if with > 0
        && let Some(first) = without.first()
    {
        problems.error_from(
            &["nodes", first, "agent"],
            &[AGENTS],
            format!(
                "is missing, while {with} of {} nodes have one: give every node an agent (`agent = \"host:7700\"`), or none",
                plan.nodes.len()
            ),
        );
    }
}

/// Why this is not a valid `host:port` of an agent; `None` if it is.
fn refuse_agent(agent: &str) -> Option<String> {
    let good =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']' | '%');
    let (host, port) = agent.rsplit_once(':').unwrap_or((agent, ""));
    let bracketed = host.starts_with('[') && host.ends_with(']');
    let host_ok = !host.is_empty()
        && !host.starts_with('-')
        && host.chars().all(good)
        && (bracketed || !host.contains([':', '[', ']']));
    let port_ok = port.parse::<u16>().is_ok_and(|port| port > 0);
    if host_ok && port_ok && agent.len() <= 255 {
        return None;
    }
    Some(format!(
        "`{}` is not an agent's address; write it like \"node1.example:7700\" or \"[2001:db8::1]:7700\"",
        agent.escape_debug()
    ))
}

fn address_of<'p>(
    name: &'p str,
    node: &Node,
    address: IpAddr,
    seen: &mut BTreeMap<IpAddr, &'p str>,
    problems: &mut Problems,
) {
    let path = ["nodes", name, "address"];
    if node.agent.is_none() {
        problems.error_from(
            &path,
            &[&["nodes", name, "agent"]],
            "ccbench chooses the addresses of the namespaces it makes: leave it out, or name the node's `agent`",
        );
    }
    if address.is_unspecified() || address.is_multicast() {
        problems.error(&path, format!("`{address}` is not the address of one host; write the node's own, like \"10.0.1.1\""));
    }
    if let Some(other) = seen.insert(address, name) {
        problems.error(
            &path,
            format!("`{address}` is already the address of `{other}`; every node needs its own"),
        );
    }
}

fn sysctl(path: &[&str], key: &str, value: &SysctlValue, problems: &mut Problems) {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let segments_ok = key.split('.').all(|s| !s.is_empty());
    if !key.starts_with("net.") {
        problems
            .error(path, "only settings below `net.` may be changed, like \"net.ipv4.tcp_ecn\"");
    } else if key.len() > 128 || !key.chars().all(good) || !segments_ok {
        problems.error(path, "is not a sysctl's name; write it like \"net.ipv4.tcp_ecn\"");
    } else if key == "net.ipv4.tcp_congestion_control" {
        problems.error(
            path,
            "set the congestion control with `cc` of a flow group: in a namespace the kernel may refuse this setting and keep a reference \
             to the algorithm until the next boot",
        );
    }
    if let SysctlValue::Text(text) = value
        && (text.is_empty()
            || text.len() > 1024
            || text.chars().any(|c| c.is_control() && c != '\t'))
    {
        problems.error(
            path,
            "the value is empty, longer than 1024 characters, or holds a control character; write it like \"4096 131072 6291456\"",
        );
    } else if matches!(key, "net.ipv4.tcp_rmem" | "net.ipv4.tcp_wmem") && !are_buffers(value) {
        problems.error(
            path,
            "must be three numbers of bytes from 1 to 2147483647 in ascending order (minimum, default and maximum), like \
             \"4096 131072 6291456\"",
        );
    }
}

/// Whether it is a valid value of `tcp_rmem` and `tcp_wmem`.
fn are_buffers(value: &SysctlValue) -> bool {
    let numbers: Result<Vec<i32>, _> =
        value.to_string().split_whitespace().map(str::parse).collect();
    numbers.is_ok_and(|numbers| numbers.len() == 3 && numbers[0] > 0 && numbers.is_sorted())
}

fn wires(plan: &Plan, problems: &mut Problems) {
    let mut wired: Vec<&str> = Vec::new();
    let mut segments = 0;
    for (name, chain) in &plan.wires {
        if chain.len() < 2 {
            problems.error(
                &["wires", name],
                format!(
                    "a wire joins two nodes or more, not {}; write it like `[\"src\", \"dst\"]`",
                    chain.len()
                ),
            );
        }
        for (index, node) in chain.iter().enumerate() {
            let path = ["wires", name, &index.to_string()];
            known_node(plan, &path, node, problems);
            wired.push(node);
            if index > 0 && chain[index - 1] == *node {
                let why = format!("`{node}` is wired to itself; name it only once in a row");
                problems.error_from(&path, &[&["wires", name, &(index - 1).to_string()]], why);
            }
        }
        segments += chain.len().saturating_sub(1);
    }
    if segments > MAX_SEGMENTS {
        problems.error_from(
            &["wires"],
            &[],
            format!("there are {segments} segments between nodes; {MAX_SEGMENTS} are allowed"),
        );
    }
    if plan.wires.is_empty() && plan.nodes.len() > 1 {
        problems.error(
            &["wires"],
            "is missing: ccbench makes these nodes and must know how they are joined; write it like `path = [\"src\", \"router\", \"dst\"]`",
        );
        return;
    }
    for name in plan.nodes.keys().filter(|n| plan.nodes.len() > 1 && !wired.contains(&n.as_str())) {
        let why = "no wire reaches this node; name it in a chain under [wires], or leave it out";
        problems.warning_from(&["nodes", name], &[&["wires"]], why);
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::check::read;

    /// Two machines, and a matrix with these lines.
    fn problems(nodes: &str, matrix: &str) -> String {
        let text = format!(
            "name = \"t\"\n[nodes]\nsrc = {{ agent = \"n1:7700\", address = \"10.0.0.1\"{nodes} }}\n\
             dst = {{ agent = \"n2:7700\", address = \"10.0.0.2\" }}\n[flows.f]\nfrom = \"src\"\nto = \"dst\"\n\
             [[phases]]\nname = \"p\"\nlength = \"1s\"\nflows = [\"f\"]\n{matrix}"
        );
        let found = read(&text, &[]).err().unwrap_or_default();
        found.iter().map(|problem| format!("{problem}\n")).collect()
    }

    #[test]
    fn a_matrix_names_a_kernel_at_each_point_or_at_none() {
        let two = "[matrix]\n\"nodes.src.kernel_release\" = [\"6.1.0-50-amd64\", \"6.12.94+deb13-amd64\"]\n";
        assert_eq!(problems("", two), "");
        let some = "[matrix.kernel]\nany = {}\nold = { \"nodes.src.kernel_release\" = \"6.1.0-50-amd64\" }\n";
        let found = problems("", some);
        assert!(
            found.contains("nodes.src.kernel_release") && found.contains("some points only"),
            "{found}"
        );
        assert_eq!(problems(", kernel_release = \"6.12.94+deb13-amd64\"", some), "");
    }

    #[test]
    fn a_kernel_release_is_what_uname_prints() {
        for release in ["6.12.94+deb13-amd64", "6.1.0-50-cloud-amd64", "7.0.0-rc1_x~2"] {
            assert_eq!(problems(&format!(", kernel_release = \"{release}\""), ""), "");
        }
        for bad in ["", "vmlinuz-6.12", "6.12 (own)", "../6.12", &"6".repeat(65)] {
            let found = problems(&format!(", kernel_release = \"{bad}\""), "");
            assert!(found.contains("as `uname -r` prints it"), "{bad}: {found}");
        }
    }
}
