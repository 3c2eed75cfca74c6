//! What this node is and can do. Changes nothing.

use std::sync::OnceLock;

use ccbench_proto::wire;

use crate::flow::process::Iperf3;

/// Trying them makes a namespace, so it is done once.
static QDISCS: OnceLock<Vec<String>> = OnceLock::new();

/// Describes the node: the kernel's part from the collector, interfaces and qdiscs from the shaper, tools
/// and rights from here; `notes` are what was found out at the start.
pub async fn describe(iperf3: &Iperf3, notes: &[String]) -> wire::NodeInfo {
    let mut info = wire::NodeInfo {
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        privileges: privileges().to_owned(),
        notes: notes.to_vec(),
        ..Default::default()
    };
    ccbench_collector::describe(&mut info);
    info.can_userspace_link = info.privileges != "unprivileged";
    info.qdiscs = QDISCS.get_or_init(ccbench_shaper::probe::supported_qdiscs).clone();
    match ccbench_shaper::route::interfaces() {
        Ok(interfaces) => info.interfaces = interfaces,
        Err(error) => info.notes.push(error.to_string()),
    }
    info.ecn = crate::ecn::probe::capabilities().modes().into_iter().map(str::to_owned).collect();
    match iperf3.version().await {
        Ok(version) => {
            info.iperf3_version = version.to_string();
            info.iperf3_json_stream = version.has_json_stream();
        }
        Err(error) => info.notes.push(error.to_string()),
    }
    info
}

/// "root", "user-namespace" (root there, nobody outside) or "unprivileged".
pub(crate) fn privileges() -> &'static str {
    if !rustix::process::geteuid().is_root() {
        return "unprivileged";
    }
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    if whole_machine(&map) { "root" } else { "user-namespace" }
}

/// The initial user namespace maps every uid to itself.
fn whole_machine(uid_map: &str) -> bool {
    let numbers: Vec<u64> = uid_map.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    numbers == [0, 0, u64::from(u32::MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_initial_user_namespace_maps_everybody() {
        assert!(whole_machine("         0          0 4294967295\n"));
        assert!(!whole_machine("         0       1000          1\n"));
        assert!(!whole_machine(""));
    }
}
