//! What this node is and can do. Changes nothing.

use ccbench_proto::wire;

/// Describes the node: the kernel's part from the collector and the shaper, the rest from here.
pub async fn describe() -> wire::NodeInfo {
    wire::NodeInfo { agent_version: env!("CARGO_PKG_VERSION").to_owned(), ..Default::default() }
}
