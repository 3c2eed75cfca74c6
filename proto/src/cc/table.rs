//! The types of `kmod/schemes.json`. Nothing else is here, because the build script parses the file with this module too.

use std::collections::BTreeMap;

use serde::Deserialize;

/// All of ccbench's own congestion controls.
#[derive(Debug, Default, Deserialize)]
pub struct Table {
    /// The C cores.
    pub cores: Vec<Core>,
    /// The names that a plan's `algorithm` may have: a core and the parameters that make the scheme.
    pub schemes: Vec<Scheme>,
}

/// One C core: `kmod/core/NAME.h`, module `ccb_NAME`, BPF object `ccb_NAME`.
#[derive(Debug, Deserialize)]
pub struct Core {
    /// Its name.
    pub name: String,
    /// It sets the window itself at every ACK, and paces.
    pub owns_cwnd: bool,
    /// It needs ECN with one echo per mark, so both ends must have it before they connect.
    pub wants_ecn: bool,
    /// It needs this only with the parameter `ecn_enable`.
    pub may_want_ecn: bool,
    /// It needs ECT(1) on its data.
    pub wants_ect1: bool,
    /// It needs pacing.
    pub wants_pacing: bool,
    /// In the order of the kernel's structure.
    pub params: Vec<Param>,
    /// Relations that parameters must satisfy.
    pub rules: Vec<Rule>,
    /// Inner state, in the order of its rows.
    pub stats: Vec<Stat>,
}

/// A parameter of a core.
#[derive(Debug, Deserialize)]
pub struct Param {
    /// Its name, if possible that of the study.
    pub name: String,
    /// "us", "%", "rounds", "flag" ...
    pub unit: String,
    /// The core's default; a scheme may have another.
    pub default: u32,
    /// Lowest value.
    pub min: u32,
    /// Highest value.
    pub max: u32,
    /// One line.
    pub doc: String,
}

/// `left relation right` must hold, if the parameter `when` is not zero.
#[derive(Debug, Deserialize)]
pub struct Rule {
    /// The parameter that the error names.
    pub param: String,
    /// Always, if none.
    pub when: Option<String>,
    /// A parameter or a number.
    pub left: Operand,
    /// `<`, `<=`, `>`, `>=`, `==` or `!=`.
    pub relation: String,
    /// A parameter or a number.
    pub right: Operand,
    /// Error message if it does not hold.
    pub message: String,
}

/// A side of a rule.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Operand {
    /// A number.
    Number(u32),
    /// A parameter's name.
    Param(String),
}

/// A variable of a core's inner state.
#[derive(Debug, Deserialize)]
pub struct Stat {
    /// Its name.
    pub name: String,
    /// "us", "1/256", "pkts" ...
    pub unit: String,
}

/// A named scheme: a core with parameters.
#[derive(Debug, Deserialize)]
pub struct Scheme {
    /// Value of `algorithm` in a plan.
    pub name: String,
    /// The core.
    pub core: String,
    /// Preset parameters.
    pub params: BTreeMap<String, u32>,
}
