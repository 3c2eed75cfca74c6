//! Queue disciplines of links and classes: one struct per `kind`, with its keys and their checks.
//!
//! To add a discipline, add a struct to `aqm`, its `Parameters`, a variant of [`Queue`], and its limits to `Queue::limits_mut`. The
//! rest is in `crates/shaper/src/discipline.rs`. The checks of a plan, the results and the tests ask [`Queue`] what a discipline does.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::timeline::Setting;
use crate::units::{Limit, Micros};

mod aqm;

pub(super) use aqm::DUALPI2_RENAMED;
pub use aqm::{Cake, Codel, Dualpi2, Fq, FqCodel, Pie, Red};

/// The queue of a link or of a class. The keys are those of `tc`, with the kernel's defaults.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[schemars(extend("x-absent" = "the kernel's"))]
#[expect(missing_docs, reason = "the structs have the documentation, which the schema takes over")]
pub enum Queue {
    Pfifo(Pfifo),
    Bfifo(Bfifo),
    PfifoHeadDrop(PfifoHeadDrop),
    BfifoHeadDrop(BfifoHeadDrop),
    Pie(Pie),
    Red(Red),
    Fq(Fq),
    Codel(Codel),
    FqCodel(FqCodel),
    Cake(Cake),
    Dualpi2(Dualpi2),
}

/// Unit of a FIFO's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FifoUnit {
    /// Packets, as `pfifo`.
    Packets,
    /// Bytes of frames, as `bfifo`.
    Bytes,
}

/// The unit in which a discipline counts a limit. Sizes, times and bandwidth-delay products are converted to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitUnit {
    /// Packets, at least one.
    Packets,
    /// Bytes of frames, at least one full frame.
    Bytes,
    /// Bytes of memory, at least one full frame. The kernel has 32 bits for it.
    Memory,
    /// Bytes of an average queue, which [`Parameters::check_limits`] compares.
    Threshold,
}

/// How a discipline keeps the packets of flows apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowIsolation {
    /// All packets wait in one queue.
    None,
    /// L4S packets have a queue of their own (RFC 9331); all others share one.
    L4s,
    /// A hash of addresses, protocol and ports selects one of several queues.
    Hash,
}

/// A key, its value, and its unit.
pub(crate) type LimitKey = (&'static str, Limit, LimitUnit);

impl Queue {
    /// The replacement of a deprecated key of this kind of queue; `None` for all other keys.
    pub fn replacement(kind: &str, key: &str) -> Option<&'static str> {
        let renamed = DUALPI2_RENAMED.iter().find(|(old, _)| kind == "dualpi2" && *old == key);
        renamed.map(|(_, new)| *new)
    }

    /// A `pfifo` with this limit.
    pub fn pfifo(limit: Limit) -> Self {
        Self::Pfifo(Pfifo { limit })
    }

    /// A `bfifo` with this limit.
    pub fn bfifo(limit: Limit) -> Self {
        Self::Bfifo(Bfifo { limit })
    }

    /// The limit of a FIFO and its unit; `None` for every other discipline.
    pub fn fifo_limit(&self) -> Option<(Limit, FifoUnit)> {
        match self {
            Self::Pfifo(Pfifo { limit }) | Self::PfifoHeadDrop(PfifoHeadDrop { limit }) => {
                Some((*limit, FifoUnit::Packets))
            }
            Self::Bfifo(Bfifo { limit }) | Self::BfifoHeadDrop(BfifoHeadDrop { limit }) => {
                Some((*limit, FifoUnit::Bytes))
            }
            _ => None,
        }
    }

    /// Every limit that is given.
    pub(crate) fn limits(&self) -> Vec<LimitKey> {
        let mut copy = self.clone();
        copy.limits_mut().into_iter().map(|(key, limit, unit)| (key, *limit, unit)).collect()
    }

    /// As [`Self::limits`], mutable.
    pub(crate) fn limits_mut(&mut self) -> Vec<(&'static str, &mut Limit, LimitUnit)> {
        use LimitUnit::{Bytes, Memory, Packets, Threshold};
        let keys = match self {
            Self::Pfifo(Pfifo { limit }) | Self::PfifoHeadDrop(PfifoHeadDrop { limit }) => {
                vec![("limit", Some(limit), Packets)]
            }
            Self::Bfifo(Bfifo { limit }) | Self::BfifoHeadDrop(BfifoHeadDrop { limit }) => {
                vec![("limit", Some(limit), Bytes)]
            }
            Self::Pie(Pie { limit, .. }) | Self::Codel(Codel { limit, .. }) => {
                vec![("limit", limit.as_mut(), Packets)]
            }
            Self::Red(Red { limit, min, max, .. }) => vec![
                ("limit", Some(limit), Threshold),
                ("min", Some(min), Threshold),
                ("max", Some(max), Threshold),
            ],
            Self::Fq(Fq { limit, flow_limit, .. }) => vec![
                ("limit", limit.as_mut(), Packets),
                ("flow_limit", flow_limit.as_mut(), Packets),
            ],
            Self::FqCodel(FqCodel { limit, memory_limit, .. })
            | Self::Dualpi2(Dualpi2 { limit, memory_limit, .. }) => vec![
                ("limit", limit.as_mut(), Packets),
                ("memory_limit", memory_limit.as_mut(), Memory),
            ],
            Self::Cake(Cake { memory_limit, .. }) => {
                vec![("memory_limit", memory_limit.as_mut(), Memory)]
            }
        };
        keys.into_iter().filter_map(|(key, limit, unit)| Some((key, limit?, unit))).collect()
    }

    /// This queue with another value of a key.
    ///
    /// # Errors
    /// The kind does not have the key, or the key does not accept the value.
    pub(crate) fn with(&self, key: &str, value: &Setting) -> Result<Self, toml::de::Error> {
        let value = match value {
            Setting::Flag(flag) => toml::Value::Boolean(*flag),
            Setting::Number(number) => toml::Value::Integer(*number),
            text => toml::Value::String(text.to_string()),
        };
        let mut table = toml::Table::try_from(self).unwrap_or_default();
        table.insert(key.to_owned(), value);
        Self::deserialize(toml::Value::Table(table))
    }

    /// Whether a key is given.
    pub(crate) fn has(&self, key: &str) -> bool {
        toml::Table::try_from(self).is_ok_and(|table| table.contains_key(key))
    }

    /// Whether only the kernel's qdisc supports everything that is given.
    pub fn needs_kernel(&self) -> bool {
        self.parameters().kernel_only().is_some()
    }

    /// How the flows of this queue are kept apart.
    pub fn flow_isolation(&self) -> FlowIsolation {
        self.parameters().flow_isolation()
    }

    /// Whether packets may wait although the line behind the queue is free.
    pub fn paces(&self) -> bool {
        self.parameters().paces()
    }

    /// The parameters, for checks and warnings.
    pub(crate) fn parameters(&self) -> &dyn Parameters {
        match self {
            Self::Pfifo(queue) => queue,
            Self::Bfifo(queue) => queue,
            Self::PfifoHeadDrop(queue) => queue,
            Self::BfifoHeadDrop(queue) => queue,
            Self::Pie(queue) => queue,
            Self::Red(queue) => queue,
            Self::Fq(queue) => queue,
            Self::Codel(queue) => queue,
            Self::FqCodel(queue) => queue,
            Self::Cake(queue) => queue,
            Self::Dualpi2(queue) => queue,
        }
    }
}

/// A key, its value, and whether zero is valid.
pub(crate) type TimeKey = (&'static str, Option<Micros>, bool);
const ZERO_IS_VALID: bool = true;
const NONZERO: bool = false;

/// Prints only the parameters: `Pfifo { limit: … }`.
impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.parameters().fmt(f)
    }
}

/// What the checks of a plan need to know about a discipline's parameters.
pub(crate) trait Parameters: std::fmt::Debug {
    /// Keys that are times.
    fn times(&self) -> Vec<TimeKey> {
        Vec::new()
    }
    /// Reports other keys whose values the kernel would refuse or misread.
    fn check(&self, _error: &mut dyn FnMut(&'static str, String)) {}
    /// Reports limits that contradict each other. All are in bytes or packets.
    fn check_limits(&self, _error: &mut dyn FnMut(&'static str, String)) {}
    /// The first key that only the kernel's qdisc has, with a remedy.
    fn kernel_only(&self) -> Option<(&'static str, &'static str)> {
        None
    }
    /// The key and value of the sojourn time above which packets are marked.
    fn mark_threshold(&self) -> Option<(&'static str, Micros)> {
        None
    }
    /// Keys that determine the number of queues, which no qdisc changes while it holds packets.
    fn fixed_keys(&self) -> &'static [&'static str] {
        &[]
    }
    /// How the flows are kept apart.
    fn flow_isolation(&self) -> FlowIsolation {
        FlowIsolation::None
    }
    /// Whether packets may wait although the line behind the queue is free.
    fn paces(&self) -> bool {
        false
    }
}

// The limits of FIFOs depend on the link's rate: `check::queues`.
impl Parameters for Pfifo {}
impl Parameters for Bfifo {}
impl Parameters for PfifoHeadDrop {}
impl Parameters for BfifoHeadDrop {}

/// First in, first out, limited in packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pfifo {
    /// Capacity; other units than packets are rounded up to full frames of 1514 bytes.
    pub limit: Limit,
}

/// First in, first out, limited in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bfifo {
    /// Capacity.
    pub limit: Limit,
}

/// First in, first out, limited in packets; drops the oldest packet when full.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PfifoHeadDrop {
    /// Capacity; other units than packets are rounded up to full frames of 1514 bytes.
    pub limit: Limit,
}

/// First in, first out, limited in bytes; drops the oldest packets when full. Userspace only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BfifoHeadDrop {
    /// Capacity.
    pub limit: Limit,
}
