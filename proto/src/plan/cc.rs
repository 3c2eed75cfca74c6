//! `[cc.NAME]`: an instance of a congestion control, loaded before a trial and unloaded after it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::SysctlValue;

/// A congestion control with parameters. Flows select it by its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cc {
    /// One of ccbench's own (`vegas`, `ta`, `ta_grad`, `ta_per`, `cx`, `cx_rttvar`, `cx_shadow`, `dctcp`,
    /// `prague`, `bbr2`, `bbr3`) or of the kernel (`cubic`, `bbr` …).
    pub algorithm: String,
    /// Parameters that differ from the algorithm's, by name; for the kernel's own those of its module. Unknown
    /// parameters and values out of range are errors.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, SysctlValue>,
    /// How it is loaded.
    #[serde(default)]
    pub via: Via,
    /// Send data as ECT(1), which L4S queues classify as L4S, or as ECT(0); for algorithms that count marks (`dctcp`,
    /// `prague`, `bbr2` and `bbr3` with `ecn_enable`): `dctcp` with `ect1 = true` is what many L4S studies use; absent:
    /// the algorithm's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ect1: Option<bool>,
}

impl Cc {
    /// This algorithm with its own parameters.
    pub fn new(algorithm: impl Into<String>) -> Self {
        Self {
            algorithm: algorithm.into(),
            params: BTreeMap::new(),
            via: Via::default(),
            ect1: None,
        }
    }
}

/// How a congestion control gets into the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Via {
    /// The kernel's own if ccbench has none of that name; otherwise BPF if the kernel supports it, else the module.
    #[default]
    Auto,
    /// A BPF `struct_ops` program.
    Bpf,
    /// An out-of-tree kernel module, installed beforehand.
    Module,
    /// The kernel's own, in its image or as one of its modules.
    Builtin,
}
