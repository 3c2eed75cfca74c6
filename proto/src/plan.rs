//! The plan as its author writes it: one serde type per table; unknown keys are errors. [`check`] checks keys against each other;
//! [`crate::resolve`] and [`crate::schedule`] compute what follows from the plan.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::units::{Bytes, Micros, Rate};
use text::Name;

pub use capture::Capture;
pub use cc::{Cc, Via};
pub use design::{Design, DesignKind};
pub use ecn::Ecn;
pub use expect::Expect;
pub use impair::{
    AckAggregation, BurstLoss, Distribution, EcnRewrite, Jitter, OnEnd, Policer, Reorder, Slot,
    Tbf, TraceStart, TraceUse,
};
pub use lab::{Engine, LabUse, Series};
pub use link::{Backend, Class, Link, Match, PathPreset, Shaper};
pub use node::{Node, SysctlValue};
pub use probe::{Probe, ProbeKind, Repeat};
pub use queue::*;
pub use repeat::{AdaptiveRepeat, Better, Compare, Repetitions, Until};
pub use sample::{Acks, Sample};
pub use timeline::{Change, Pause, Phase, Setting, When};

pub mod capture;
pub mod cc;
pub mod check;
pub(crate) mod checked;
pub mod design;
pub mod ecn;
pub mod expect;
pub mod impair;
pub mod lab;
pub mod link;
pub mod node;
pub mod parse;
pub mod probe;
pub(crate) mod problem;
pub mod qdiscs;
pub mod queue;
pub mod reference;
pub mod repeat;
pub mod sample;
pub mod schema;
mod text;
pub mod timeline;

/// Keys above the first table, and all tables.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Part of the results directory's name; up to 64 letters, digits, `-` and `_`.
    #[schemars(regex(pattern = text::PLAN_NAME))]
    pub name: String,
    /// Description, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// Trials of every point; with 1 there is no confidence interval. A table instead of a number repeats each point until its
    /// rules are decided.
    #[serde(default = "default_repeat")]
    pub repeat: Repetitions,
    /// Pause between two trials.
    #[serde(default)]
    #[schemars(extend("x-to" = "24h"))]
    pub gap: Micros,
    /// Seed of the trial order and of all random decisions in trials; the same seed gives the same order on every
    /// machine.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// Order of the trials.
    #[serde(default)]
    pub order: Order,
    /// Sampling intervals.
    #[serde(default)]
    pub sample: Sample,
    /// Keep all CPUs of the nodes' machines from idling during a trial, so that timers are precise on virtual machines. One
    /// idle-priority thread per CPU runs while nothing else does. Recorded in the results, whose CPU utilisation excludes these
    /// threads.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("default" = false))]
    pub keep_awake: bool,
    /// Settings of the lab.
    #[serde(default, skip_serializing_if = "LabUse::is_empty")]
    pub lab: LabUse,
    /// The machines, or namespaces if no agent is given.
    pub nodes: BTreeMap<String, Node>,
    /// Cabling between namespaces: each key is a name, its value a chain of nodes. Ignored for nodes with agents.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, Vec<Name>>")]
    pub wires: BTreeMap<String, Vec<String>>,
    /// Named path characteristics that links use with `path = "NAME"`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub path: BTreeMap<String, PathPreset>,
    /// Emulated links, each for one direction of one interface.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub links: BTreeMap<String, Link>,
    /// Instances of congestion controls, loaded before a trial and unloaded after it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cc: BTreeMap<String, Cc>,
    /// Named groups of TCP flows.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub flows: BTreeMap<String, Flow>,
    /// Active measurements in parallel to the flows.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub probes: BTreeMap<String, Probe>,
    /// Packet captures.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub capture: BTreeMap<String, Capture>,
    /// The timeline.
    pub phases: Vec<Phase>,
    /// Changes of link settings during a trial.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
    /// Factors: every combination of their levels is a point, unless a design selects some.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub matrix: BTreeMap<String, Factor>,
    /// Selects points of the matrix; absent: every combination.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub design: Option<Design>,
    /// Claims about the results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect: Vec<Expect>,
    /// Comparisons of two points.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compare: Vec<Compare>,
    /// Overrides, key = value, that `--quick` applies like `--set`.
    // Never written, because a plan that has been read does not need it.
    #[serde(default, skip_serializing)]
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub quick: BTreeMap<String, toml::Value>,
}

impl Plan {
    /// An empty plan with this name and every default.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            about: None,
            repeat: default_repeat(),
            gap: Micros::default(),
            seed: default_seed(),
            order: Order::default(),
            sample: Sample::default(),
            keep_awake: false,
            lab: LabUse::default(),
            nodes: BTreeMap::new(),
            wires: BTreeMap::new(),
            path: BTreeMap::new(),
            links: BTreeMap::new(),
            cc: BTreeMap::new(),
            flows: BTreeMap::new(),
            probes: BTreeMap::new(),
            capture: BTreeMap::new(),
            phases: Vec::new(),
            changes: Vec::new(),
            matrix: BTreeMap::new(),
            design: None,
            expect: Vec::new(),
            compare: Vec::new(),
            quick: BTreeMap::new(),
        }
    }
}

/// The sha256 of a resolved plan's text, in hexadecimal.
pub fn digest(text: &str) -> String {
    digest_bytes(text.as_bytes())
}

/// The sha256 of a file's content, in hexadecimal.
pub fn digest_bytes(bytes: &[u8]) -> String {
    digest_chunks([bytes])
}

/// The sha256 of a file in parts, in hexadecimal.
pub fn digest_chunks<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    chunks.into_iter().for_each(|chunk| hash.update(chunk));
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn default_count() -> u32 {
    1
}
fn default_repeat() -> Repetitions {
    Repetitions::Times(1)
}
fn default_seed() -> u64 {
    1
}
fn yes() -> bool {
    true
}

/// Order in which trials run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Shuffled within each repetition by the plan's seed, so that drift of the machine is not confounded with a
    /// factor.
    #[default]
    Random,
    /// Point by point as written.
    AsWritten,
}

/// A named group of TCP flows, started and stopped together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// Node that connects, and sends unless `reverse`.
    #[schemars(with = "Name")]
    pub from: String,
    /// Node that listens.
    #[schemars(with = "Name")]
    pub to: String,
    /// The sender's congestion control: the kernel's, or a `[cc.NAME]`; absent: the kernel's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cc: Option<String>,
    /// Parallel sockets of one process.
    #[serde(default = "default_count")]
    #[schemars(range(min = 1, max = 128))]
    pub count: u32,
    /// The listener sends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("default" = false))]
    pub reverse: bool,
    /// Rate limit of the application, per socket; absent: as fast as possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Total that the application writes to each socket, which stays open until the flow stops. Needs `tool = "ccbench"`; absent:
    /// no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-from" = "100B"))]
    pub bytes: Option<Bytes>,
    /// Idle time of the application; needs a `rate` and `tool = "ccbench"`; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    /// Start time, from the start of the trial; absent: with the first phase that lists it, or with `stop`
    /// alone at the start of the trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Micros>,
    /// Maximum random delay of the start, drawn from the trial's seed; absent: none, in the lab and the simulator `10ms`, at
    /// most a tenth of the group's time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_jitter: Option<Micros>,
    /// When it stops; absent: at the end of the last phase that lists it, or with `start` alone at the end of the
    /// trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Micros>,
    /// Traffic generator; absent: `iperf3`, in the lab and the simulator `ccbench`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<Tool>,
    /// Interval of the tool's reports.
    #[serde(default = "default_interval")]
    #[schemars(extend("x-from" = "100ms", "x-to" = "60s"))]
    pub interval: Micros,
}

impl Flow {
    /// One flow between these nodes, with every default.
    pub fn new(from: impl Into<String>, to: impl Into<String>) -> Self {
        Self {
            from: from.into(),
            to: to.into(),
            cc: None,
            count: default_count(),
            reverse: false,
            rate: None,
            bytes: None,
            pause: None,
            start: None,
            start_jitter: None,
            stop: None,
            tool: None,
            interval: default_interval(),
        }
    }

    /// The traffic generator.
    pub fn tool(&self) -> Tool {
        self.tool.unwrap_or(Tool::Iperf3)
    }
}

/// A traffic generator.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Tool {
    /// iperf3, as installed on the node.
    Iperf3,
    /// ccbench's own. It makes few system calls and sets the congestion control before the handshake.
    Ccbench,
}

impl std::fmt::Display for Tool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Iperf3 => "iperf3",
            Self::Ccbench => "ccbench",
        })
    }
}

fn default_interval() -> Micros {
    Micros::from_millis(100)
}

/// A factor of the matrix. Its name is the table's key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(title = "list of values, or table of levels")]
pub enum Factor {
    /// The factor's name is a plan key, and these are its values.
    Values(#[schemars(with = "Vec<serde_json::Value>")] Vec<toml::Value>),
    /// Named levels, each setting any number of plan keys.
    Levels(
        #[schemars(with = "BTreeMap<String, BTreeMap<String, serde_json::Value>>")]
        BTreeMap<String, BTreeMap<String, toml::Value>>,
    ),
}
