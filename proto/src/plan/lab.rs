//! `[lab]`: which kernel the lab boots for a plan's trials.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Plan;

/// Settings of the lab. A plan that selects a kernel runs in the lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LabUse {
    /// Kernel of all nodes; the plan then runs in the lab.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Series>,
}

impl LabUse {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The name of no kernel of the lab.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no kernel `{text}`; write {}", Series::ALL.map(Series::name).join(", "))]
pub struct UnknownKernel {
    /// The name.
    pub text: String,
}

/// A kernel that the lab can boot, by the series of its releases.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Serialize,
    Deserialize,
    JsonSchema,
)]
pub enum Series {
    /// The lab's own, with every qdisc and congestion control, byte-for-byte repeatable.
    #[default]
    #[serde(rename = "own")]
    Own,
    /// Stock Debian 12.
    #[serde(rename = "6.1")]
    Debian61,
    /// Stock Debian 13, from Debian 12's backports.
    #[serde(rename = "6.12")]
    Debian612,
    /// Stock Debian 13's newest backport.
    #[serde(rename = "7.2")]
    Debian72,
}

impl Series {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Own, Self::Debian61, Self::Debian612, Self::Debian72];

    /// As it is written in plans and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Debian61 => "6.1",
            Self::Debian612 => "6.12",
            Self::Debian72 => "7.2",
        }
    }
}

impl std::fmt::Display for Series {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Series {
    type Err = UnknownKernel;

    fn from_str(text: &str) -> Result<Self, UnknownKernel> {
        let found = Self::ALL.into_iter().find(|kernel| kernel.name() == text);
        found.ok_or_else(|| UnknownKernel { text: text.to_owned() })
    }
}

impl Plan {
    /// The kernel that the plan names; `None`: it runs on any, here or in the lab. At a point: a plan with a
    /// matrix may name others.
    pub fn kernel(&self) -> Option<Series> {
        self.lab.kernel.or_else(|| self.nodes.values().find_map(|node| node.kernel))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_name_parses_back() {
        for kernel in Series::ALL {
            assert_eq!(kernel.to_string().parse(), Ok(kernel));
            let table = toml::Table::try_from(LabUse { kernel: Some(kernel) }).unwrap();
            assert_eq!(table["kernel"].as_str(), Some(kernel.name()));
        }
        let wrong = "5.10".parse::<Series>().unwrap_err().to_string();
        assert_eq!(wrong, "there is no kernel `5.10`; write own, 6.1, 6.12, 7.2");
    }
}
