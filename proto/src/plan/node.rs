//! `[nodes]`: the machines of an experiment and their settings.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Series;
use super::text::Address;

/// Whether the address `host:port` of an agent is on this machine. Other connections need certificates.
pub fn is_loopback(agent: &str) -> bool {
    let host = agent.rsplit_once(':').map_or(agent, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// One machine of the experiment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Node {
    /// `host:port` of a running `ccbench-agent`; absent: a namespace on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The node's address in the experiment's network. For nodes with an agent, required for the ends of flows and
    /// probes and for nodes that a link is `toward`; absent: chosen by ccbench.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Address>")]
    pub address: Option<std::net::IpAddr>,
    /// Settings below `net.`, name to number or text, for the duration of a trial; restored afterwards: `sysctl = {
    /// "net.ipv4.tcp_ecn" = 1 }`. `net.ipv4.tcp_congestion_control` is rejected: use a flow's `cc`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctl: BTreeMap<String, SysctlValue>,
    /// Same as `lab.kernel`; all nodes that set it must agree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Series>,
    /// Release of an installed kernel, as `uname -r` prints it on the node. If the node runs another one, ccbench reboots it into
    /// this one before a trial, for one boot; its agent must allow that (`--allow-reboot`). For nodes with an agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_release: Option<String>,
    /// Keep TSO, GSO and GRO enabled; otherwise they are disabled on interfaces with links, and on all interfaces of
    /// namespaces.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("default" = false))]
    pub offloads: bool,
}

/// A sysctl's value: a number or text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum SysctlValue {
    /// A number.
    Number(i64),
    /// Text, several numbers for example.
    Text(String),
}

impl std::fmt::Display for SysctlValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(n) => n.fmt(f),
            Self::Text(t) => t.fmt(f),
        }
    }
}
