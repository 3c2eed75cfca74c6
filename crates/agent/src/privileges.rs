//! Privileges of this process on this machine.

use ccbench_proto::wire::Privileges;

/// Returns the privileges of this process.
pub(crate) fn privileges() -> Privileges {
    if !rustix::process::geteuid().is_root() {
        return Privileges::Unprivileged;
    }
    if in_initial_user_namespace() { Privileges::Root } else { Privileges::UserNamespace }
}

/// Whether every user of this machine has a UID in this process's user namespace.
pub(crate) fn in_initial_user_namespace() -> bool {
    maps_all_uids(&std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default())
}

/// Whether the map is that of the initial user namespace, which maps every UID to itself.
fn maps_all_uids(uid_map: &str) -> bool {
    let numbers: Vec<u64> = uid_map.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    numbers == [0, 0, u64::from(u32::MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_initial_user_namespace_maps_everybody() {
        assert!(maps_all_uids("         0          0 4294967295\n"));
        assert!(!maps_all_uids("         0       1000          1\n"));
        assert!(!maps_all_uids(""));
    }
}
