//! `[cc.NAME]`: an instance of a congestion control, loaded before a trial and gone after it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::SysctlValue;

/// A congestion control with its parameters. Flows name it by its table's key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cc {
    /// One of ccbench's own (`vegas`, `ta`, `prague` ...) or of the kernel (`cubic`, `bbr` ...).
    pub algorithm: String,
    /// Parameters that differ from their defaults. For the kernel's own: its module's parameters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, SysctlValue>,
    /// How it gets into the kernel.
    #[serde(default)]
    pub via: Via,
    /// Data as ECT(1) (L4S) or as ECT(0), of a congestion control that counts marks. Left out: as the algorithm does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ect1: Option<bool>,
}

/// How a congestion control gets into the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Via {
    /// The kernel's own if ccbench has none of that name; otherwise BPF where the kernel can, else the module.
    #[default]
    Auto,
    /// A BPF `struct_ops` program.
    Bpf,
    /// An out-of-tree kernel module, installed beforehand.
    Module,
    /// The kernel's own, in its image or as one of its modules.
    Builtin,
}
