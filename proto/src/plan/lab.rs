//! `[lab]`: the kernel of a plan's trials, and the engine that runs it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Plan;

/// Settings of the lab. A plan that selects a kernel or an engine runs in the lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LabUse {
    /// Kernel of all nodes; the plan then runs in the lab.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Series>,
    /// Engine of the lab; the plan then runs there; absent: `--engine`, or `uml` where it can run the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<Engine>,
}

impl LabUse {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Text that is not the name of a kernel or of an engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no {kind} `{text}`; write {choices}")]
pub struct UnknownName {
    /// `kernel` or `engine`.
    pub kind: &'static str,
    /// The text.
    pub text: String,
    /// The names, with commas.
    pub choices: String,
}

/// Implements the names of an enum. Serde reads and writes the same names (a test compares them).
macro_rules! names {
    ($enum:ident, $kind:literal { $($value:ident => $name:literal),+ $(,)? }) => {
        impl $enum {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$value),+];

            /// Its name in plans and on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)+
                }
            }
        }

        impl std::fmt::Display for $enum {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $enum {
            type Err = UnknownName;

            fn from_str(text: &str) -> Result<Self, UnknownName> {
                match text {
                    $($name => Ok(Self::$value),)+
                    _ => Err(UnknownName {
                        kind: $kind,
                        text: text.to_owned(),
                        choices: [$($name),+].join(", "),
                    }),
                }
            }
        }
    };
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

names!(Series, "kernel" {
    Own => "own",
    Debian61 => "6.1",
    Debian612 => "6.12",
    Debian72 => "7.2",
});

/// Engines of the lab.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum Engine {
    /// A QEMU machine whose clock counts instructions. It runs every kernel.
    #[serde(rename = "qemu")]
    Qemu,
    /// User-Mode Linux: the kernel `own` as a process of the host, several times faster. Its clock advances only while every
    /// process waits, so the CPU is infinitely fast.
    #[serde(rename = "uml")]
    Uml,
}

names!(Engine, "engine" { Qemu => "qemu", Uml => "uml" });

impl Engine {
    /// Whether it can run this kernel.
    pub fn runs(self, kernel: Series) -> bool {
        self == Self::Qemu || kernel == Series::Own
    }

    /// Whether its CPU takes time to execute instructions. Otherwise, CPU utilisation has no meaning.
    pub fn has_cpu_time(self) -> bool {
        self == Self::Qemu
    }
}

impl Plan {
    /// The kernel that the plan names; `None` if it runs on any kernel, here or in the lab. Valid at a point: factors may name
    /// other kernels.
    pub fn kernel(&self) -> Option<Series> {
        self.lab.kernel.or_else(|| self.nodes.values().find_map(|node| node.kernel))
    }

    /// Whether the plan itself selects the lab, by a kernel or an engine. Valid at a point, as [`Self::kernel`].
    pub fn in_lab(&self) -> bool {
        self.lab.engine.is_some() || self.kernel().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_name_parses_back() {
        for &kernel in Series::ALL {
            assert_eq!(kernel.to_string().parse(), Ok(kernel));
            let in_plan = LabUse { kernel: Some(kernel), engine: None };
            let table = toml::Table::try_from(in_plan).unwrap();
            assert_eq!(table["kernel"].as_str(), Some(kernel.name()));
        }
        let wrong = "5.10".parse::<Series>().unwrap_err().to_string();
        assert_eq!(wrong, "there is no kernel `5.10`; write own, 6.1, 6.12, 7.2");
    }

    #[test]
    fn engine_name_parses_back() {
        for &engine in Engine::ALL {
            assert_eq!(engine.to_string().parse(), Ok(engine));
            let in_plan = LabUse { kernel: None, engine: Some(engine) };
            let table = toml::Table::try_from(in_plan).unwrap();
            assert_eq!(table["engine"].as_str(), Some(engine.name()));
        }
        let wrong = "kvm".parse::<Engine>().unwrap_err().to_string();
        assert_eq!(wrong, "there is no engine `kvm`; write qemu, uml");
    }
}
