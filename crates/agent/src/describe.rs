//! Describes this node and its capabilities. Changes nothing.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::OnceLock;

use ccbench_proto::wire;

use crate::error::AgentError;
use crate::flow::process::Generators;
use crate::guest;
use crate::launch;
use crate::privileges::privileges;
use crate::sockets::capabilities::capabilities;

/// Cached, because probing the qdiscs creates a namespace.
static QDISCS: OnceLock<Vec<String>> = OnceLock::new();

/// Describes the node. The collector supplies the kernel's part, the shaper interfaces and qdiscs; tools and privileges
/// are found here. `notes` are the findings at startup.
pub async fn describe(generators: &Generators, notes: &[String]) -> wire::NodeInfo {
    let mut info = wire::NodeInfo {
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        privileges: privileges().into(),
        notes: notes.to_vec(),
        ..Default::default()
    };
    ccbench_collector::describe(&mut info);
    match launch::traffic_user() {
        Ok(user) => info.traffic_user = user.unwrap_or_default(),
        Err(error) => {
            info.notes.push(format!("no traffic can start: {}: {error}", launch::USER_VARIABLE));
        }
    }
    info.can_userspace_link = info.privileges() != wire::Privileges::Unprivileged;
    info.qdiscs = QDISCS.get_or_init(ccbench_shaper::probe::supported_qdiscs).clone();
    match ccbench_shaper::route::interfaces() {
        Ok(interfaces) => info.interfaces = interfaces,
        Err(error) => info.notes.push(error.to_string()),
    }
    info.ecn = capabilities().modes().into_iter().map(str::to_owned).collect();
    match generators.iperf3_version().await {
        Ok(version) => {
            info.iperf3_version = version.to_string();
            info.iperf3_json_stream = version.has_json_stream();
        }
        // The lab's guest has it only if a flow uses it.
        Err(AgentError::NoIperf3 { source })
            if source.kind() == ErrorKind::NotFound && Path::new(guest::TASK).exists() => {}
        Err(error) => info.notes.push(error.to_string()),
    }
    info
}
