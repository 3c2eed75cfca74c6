//! Input of `ccbench-agent testbed`, and the lines of JSON that it prints for the process that started it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The line that ends the plan.
pub const PLAN_END: &str = "---END---";

/// Input of the testbed: the plan and the line that ends it.
#[must_use]
pub fn request(plan_toml: &str) -> String {
    format!("{plan_toml}\n{PLAN_END}\n")
}

/// The first line of output: all agents listen, or the reason why they do not.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ready {
    /// Whether all agents listen.
    pub ready: bool,
    /// Why they do not; empty if they do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// The testbed is in a user namespace.
    #[serde(default)]
    pub rootless: bool,
    /// Limitations of this machine, each with its reason.
    #[serde(default)]
    pub notes: Vec<String>,
    /// The nodes by name; empty if the agents do not listen.
    #[serde(default)]
    pub nodes: BTreeMap<String, ReadyNode>,
}

impl Ready {
    /// The line of a testbed that could not be built.
    #[must_use]
    pub fn failed(error: String) -> Self {
        Self { error, ..Self::default() }
    }
}

/// A node of a testbed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyNode {
    /// Its agent's process.
    pub pid: u32,
    /// When the process started, in clock ticks since boot.
    pub starttime: u64,
    /// Where its agent listens.
    pub socket: PathBuf,
    /// The address its peers use; loopback for a node without wires.
    pub address: IpAddr,
    /// Inode of its network namespace.
    pub netns_inode: u64,
}

/// Any later line of output: an agent has died.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentDied {
    /// Its node.
    #[serde(rename = "agent_died")]
    pub node: String,
    /// Its exit status and the end of its log.
    pub status: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_socket_is_an_error() {
        let line = r#"{"ready":true,"nodes":{"a":{"pid":1,"starttime":2,"address":"10.0.0.1","netns_inode":3}}}"#;
        let error = serde_json::from_str::<Ready>(line).unwrap_err().to_string();
        assert!(error.contains("missing field `socket`"), "{error}");
    }

    #[test]
    fn a_failure_round_trips() {
        let failed = Ready::failed("no namespaces".to_owned());
        let line = serde_json::to_string(&failed).unwrap();
        assert!(line.starts_with(r#"{"ready":false,"error":"no namespaces","#), "{line}");
        assert_eq!(serde_json::from_str::<Ready>(&line).unwrap(), failed);
    }
}
