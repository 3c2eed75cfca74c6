//! `[nodes]`: the machines of an experiment and their settings.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Series;

/// One machine of the experiment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Node {
    /// `host:port` of a running `ccbench-agent`; without it ccbench makes a namespace on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Address that the experiment's traffic uses to reach this node; needed for flows to a node with an agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<std::net::IpAddr>,
    /// Kernel settings for the length of a trial, restored afterwards.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctl: BTreeMap<String, SysctlValue>,
    /// The kernel that the lab boots. One machine holds all nodes: those that name one name the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Series>,
    /// Leave TSO, GSO and GRO on (default: off on every shaped interface, or everywhere in namespaces).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub offloads: bool,
}

/// A sysctl's value: a number or text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
