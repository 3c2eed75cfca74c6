//! The only module of the controller that reads a clock.
#![expect(clippy::disallowed_methods, reason = "the module that reads clocks")]

use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use ccbench_proto::wire::NodeInfo;
use jiff::Timestamp;
use jiff::civil::Date;
use tokio::time::Instant;

pub use ccbench_results::clock::{realtime_ns, utc_minus_monotonic_ns};

use crate::virtual_network;

/// Returns CLOCK_MONOTONIC in nanoseconds, or the clock of a simulation.
pub fn monotonic_ns() -> u64 {
    virtual_network::now_ns().unwrap_or_else(ccbench_results::clock::monotonic_ns)
}

/// Returns the runtime's clock (CLOCK_MONOTONIC), for time limits.
pub fn now() -> Instant {
    Instant::now()
}

/// Returns the time since an instant of [`now`].
pub fn since(instant: Instant) -> Duration {
    now().saturating_duration_since(instant)
}

/// Returns whether a node reads the same clocks as this process: same machine, same boot, same time namespace.
pub fn is_shared(node: &NodeInfo) -> bool {
    // Kernels without time namespaces do not have the file.
    let inode = std::fs::metadata("/proc/self/ns/time").map_or(0, |file| file.ino());
    is_this_boot(node) && node.time_ns_inode == inode
}

/// Returns whether a node is on this machine, in any time namespace.
pub fn is_this_boot(node: &NodeInfo) -> bool {
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let boot_id = boot_id.trim();
    !boot_id.is_empty() && node.boot_id.trim() == boot_id
}

/// Returns the time of day in UTC.
pub fn utc() -> Timestamp {
    Timestamp::now()
}

/// Returns today's date in the local time zone.
pub fn today() -> Date {
    jiff::Zoned::now().date()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_in_another_time_namespace_is_on_this_machine() {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let node = NodeInfo { boot_id, time_ns_inode: u64::MAX, ..NodeInfo::default() };
        assert!(is_this_boot(&node) && !is_shared(&node));
        assert!(!is_this_boot(&NodeInfo { boot_id: "another".to_owned(), ..node }));
        assert!(!is_this_boot(&NodeInfo::default()), "an agent that has no /proc");
    }
}
