//! `[cc.NAME]`: an instance of a congestion control, loaded before a trial and unloaded after it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::SysctlValue;

/// A congestion control with parameters. Flows select it by its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cc {
    /// One of ccbench's own (`vegas`, `ta`, `ta_grad`, `ta_per`, `cx`, `cx_rttvar`, `cx_shadow`, `cx15`, `cx15_rttvar`, `cx15_shadow`,
    /// `dctcp`, `prague`, `bbr2`, `bbr3`) or of the kernel (`cubic`, `bbr` …). With `file` or `module`, its name in that file; absent: the
    /// only one of the object, or the module's name without `tcp_`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub algorithm: String,
    /// A congestion control of your own in BPF (`struct_ops`): the path of the object, `NAME.bpf.o`, relative to the plan's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// A congestion control of your own as a kernel module: the path of `NAME.ko`, relative to the plan's directory, built for the
    /// nodes' kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// SHA-256 of `file` or `module`, in hexadecimal; filled in by ccbench. If given, a file with another digest is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = super::text::SHA256))]
    pub sha256: Option<String>,
    /// Parameters, by name, that differ from the algorithm's defaults. For the kernel's own and for `module`, these are parameters
    /// of the module; for `file`, its numbers declared `const volatile`. Unknown parameters and values out of range are errors.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, SysctlValue>,
    /// How it is loaded.
    #[serde(default)]
    pub via: Via,
    /// Send data as ECT(1), which L4S queues classify as L4S, or as ECT(0). For algorithms that count marks (`dctcp`, `prague`,
    /// `bbr2` and `bbr3` with `ecn_enable`); many L4S studies use `dctcp` with `ect1 = true`; absent: the algorithm's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ect1: Option<bool>,
}

impl Cc {
    /// This algorithm with its own parameters.
    pub fn new(algorithm: impl Into<String>) -> Self {
        Self {
            algorithm: algorithm.into(),
            file: None,
            module: None,
            sha256: None,
            params: BTreeMap::new(),
            via: Via::default(),
            ect1: None,
        }
    }

    /// The path of a supplied file, and how it is loaded; `None` for ccbench's and the kernel's own.
    pub fn supplied(&self) -> Option<(&str, Via)> {
        let module = self.module.as_deref().map(|path| (path, Via::Module));
        self.file.as_deref().map(|path| (path, Via::Bpf)).or(module)
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
