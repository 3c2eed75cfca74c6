//! Queue disciplines of links and classes: one struct per `kind`, with its keys and their checks.
//!
//! A new discipline is a struct here, its `Parameters` and a variant of [`Queue`]; the rest of it is in
//! `crates/shaper/src/discipline.rs`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{Bytes, FRAME_BYTES, Limit, Micros, Packets, Ppm};

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

impl Queue {
    /// Every `kind`, in the order of the variants.
    pub fn kinds() -> &'static [&'static str] {
        super::parse::queue_kinds()
    }

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

    /// The limit of a FIFO and what it counts; `None` for every other discipline.
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

    /// As [`Self::fifo_limit`], to change the limit.
    pub(crate) fn fifo_limit_mut(&mut self) -> Option<(&mut Limit, FifoUnit)> {
        match self {
            Self::Pfifo(Pfifo { limit }) | Self::PfifoHeadDrop(PfifoHeadDrop { limit }) => {
                Some((limit, FifoUnit::Packets))
            }
            Self::Bfifo(Bfifo { limit }) | Self::BfifoHeadDrop(BfifoHeadDrop { limit }) => {
                Some((limit, FifoUnit::Bytes))
            }
            _ => None,
        }
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

/// As its parameters: `Pfifo { limit: … }`.
impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.parameters().fmt(f)
    }
}

/// What the checks of a plan need to know about a discipline's parameters.
pub(crate) trait Parameters: std::fmt::Debug {
    /// Keys in packets, which must not be zero.
    fn packets(&self) -> Vec<(&'static str, Option<Packets>)> {
        Vec::new()
    }
    /// Keys that are times.
    fn times(&self) -> Vec<TimeKey> {
        Vec::new()
    }
    /// `memory_limit`, which the kernel has in 32 bits.
    fn memory_limit(&self) -> Option<Bytes> {
        None
    }
    /// Reports other keys whose values the kernel would refuse or misread.
    fn check(&self, _error: &mut dyn FnMut(&'static str, String)) {}
    /// The key and value of the sojourn time above which packets are marked.
    fn mark_threshold(&self) -> Option<(&'static str, Micros)> {
        None
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

/// Proportional integral controller enhanced (RFC 8033).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pie {
    /// Capacity in packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Packets>,
    /// Target delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Micros>,
    /// Time between two updates of the probability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tupdate: Option<Micros>,
    /// Integral gain, in sixteenths of a hertz, as in `tc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 32))]
    pub alpha: Option<u32>,
    /// Proportional gain, in sixteenths of a hertz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 32))]
    pub beta: Option<u32>,
    /// Mark instead of dropping while the probability is low.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecn: Option<bool>,
    /// Count bytes: small packets are dropped less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytemode: Option<bool>,
}

impl Parameters for Pie {
    fn packets(&self) -> Vec<(&'static str, Option<Packets>)> {
        vec![("limit", self.limit)]
    }
    fn times(&self) -> Vec<TimeKey> {
        vec![("target", self.target, NONZERO), ("tupdate", self.tupdate, NONZERO)]
    }
    fn check(&self, error: &mut dyn FnMut(&'static str, String)) {
        for (key, gain) in [("alpha", self.alpha), ("beta", self.beta)] {
            if gain.is_some_and(|gain| gain > 32) {
                error(key, "must be from 0 to 32, in sixteenths of a hertz".to_owned());
            }
        }
    }
}

/// Random early detection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Red {
    /// Capacity.
    pub limit: Bytes,
    /// Average queue from which packets are dropped or marked.
    pub min: Bytes,
    /// Average queue at which the probability is `probability`.
    pub max: Bytes,
    /// Probability at `max`; absent: `"2%"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<Ppm>,
    /// Average packet size, to convert idle time into packets; absent: `"1000B"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avpkt: Option<Bytes>,
    /// Burst size in packets; absent: (2 min + max) / (3 avpkt).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// Mark instead of dropping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecn: Option<bool>,
    /// Always drop above `max`, even packets that could be marked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub harddrop: Option<bool>,
    /// Adapt the probability (Floyd's adaptive RED).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adaptive: Option<bool>,
}

impl Parameters for Red {
    /// Reports what `tc` refuses, and thresholds that never drop a packet.
    fn check(&self, error: &mut dyn FnMut(&'static str, String)) {
        let Self { limit, min, max, probability, avpkt, burst, .. } = self;
        let largest = Bytes::new(u64::from(u32::MAX));
        let packet = avpkt.unwrap_or(Bytes::new(1000)).get();
        if limit.get() < FRAME_BYTES || *limit > largest {
            error("limit", format!("must be from {FRAME_BYTES}B (a full frame) to {largest}"));
        }
        if packet == 0 || packet > 65_535 {
            return error("avpkt", "must be from 1B to 65535B".to_owned());
        }
        if min.get() == 0 || min >= max {
            return error("min", "must be more than zero and less than `max`".to_owned());
        }
        if max > limit {
            let why =
                format!("is above the queue's `limit` of {limit}, so it would never be reached");
            error("max", why);
        }
        if probability.is_some_and(|share| share.get() == 0) {
            error(
                "probability",
                "is zero: nothing would be dropped before `max`; raise it".to_owned(),
            );
        }
        // `tc` chooses the weight of the average (Wlog) such that a burst of this size stays below `min`.
        let default_burst = (2 * min.get() + max.get()) / (3 * packet);
        let min_burst = min.get().div_ceil(packet);
        if burst.map_or(default_burst, u64::from) < min_burst {
            let key = if burst.is_some() { "burst" } else { "avpkt" };
            error(
                key,
                format!("leaves no weight for the average: `burst` must be {min_burst} or more"),
            );
        }
    }
}

/// Fair queueing with pacing (`sch_fq`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fq {
    /// Packets in all queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Packets>,
    /// Packets in one queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_limit: Option<Packets>,
    /// Number of buckets, a power of two. 1 is a single queue for forwarded packets: since the kernel requires at
    /// least two, it gets `orphan_mask = 0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 262_144))]
    pub buckets: Option<u32>,
    /// Mark ECT packets CE above this sojourn time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ce_threshold: Option<Micros>,
    /// Mask of the hash for packets without a local socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orphan_mask: Option<u32>,
}

impl Parameters for Fq {
    fn packets(&self) -> Vec<(&'static str, Option<Packets>)> {
        vec![("limit", self.limit), ("flow_limit", self.flow_limit)]
    }
    fn times(&self) -> Vec<TimeKey> {
        vec![("ce_threshold", self.ce_threshold, ZERO_IS_VALID)]
    }
    fn check(&self, error: &mut dyn FnMut(&'static str, String)) {
        if self.buckets.is_some_and(|n| !n.is_power_of_two() || n > 262_144) {
            error("buckets", "must be a power of two from 1 to 262144".to_owned());
        }
    }
    fn mark_threshold(&self) -> Option<(&'static str, Micros)> {
        Some(("ce_threshold", self.ce_threshold?))
    }
}

/// Controlled delay (RFC 8289).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Codel {
    /// Capacity in packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Packets>,
    /// Acceptable standing delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Micros>,
    /// Width of the moving time window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Micros>,
    /// Mark instead of dropping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecn: Option<bool>,
    /// Mark ECT packets CE above this sojourn time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ce_threshold: Option<Micros>,
}

impl Parameters for Codel {
    fn packets(&self) -> Vec<(&'static str, Option<Packets>)> {
        vec![("limit", self.limit)]
    }
    fn times(&self) -> Vec<TimeKey> {
        vec![
            ("target", self.target, NONZERO),
            ("interval", self.interval, NONZERO),
            ("ce_threshold", self.ce_threshold, ZERO_IS_VALID),
        ]
    }
    fn mark_threshold(&self) -> Option<(&'static str, Micros)> {
        Some(("ce_threshold", self.ce_threshold?))
    }
}

/// CoDel per flow (RFC 8290).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FqCodel {
    /// Capacity in packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Packets>,
    /// Number of queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_536))]
    pub flows: Option<u32>,
    /// Acceptable standing delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Micros>,
    /// Width of the moving time window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Micros>,
    /// Bytes that a queue may send per round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantum: Option<Bytes>,
    /// Mark instead of dropping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecn: Option<bool>,
    /// Mark ECT packets CE above this sojourn time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ce_threshold: Option<Micros>,
    /// Memory limit of all queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<Bytes>,
}

impl Parameters for FqCodel {
    fn packets(&self) -> Vec<(&'static str, Option<Packets>)> {
        vec![("limit", self.limit)]
    }
    fn times(&self) -> Vec<TimeKey> {
        vec![
            ("target", self.target, NONZERO),
            ("interval", self.interval, NONZERO),
            ("ce_threshold", self.ce_threshold, ZERO_IS_VALID),
        ]
    }
    fn memory_limit(&self) -> Option<Bytes> {
        self.memory_limit
    }
    fn check(&self, error: &mut dyn FnMut(&'static str, String)) {
        if self.flows.is_some_and(|n| n == 0 || n > 65_536) {
            error("flows", "must be from 1 to 65536".to_owned());
        }
        if self.quantum.is_some_and(|q| q.get() < 256 || q.get() > 1 << 20) {
            error("quantum", "must be from 256B to 1048576B".to_owned());
        }
    }
    fn mark_threshold(&self) -> Option<(&'static str, Micros)> {
        Some(("ce_threshold", self.ce_threshold?))
    }
}

/// Common applications kept enhanced; the rate stays with the link's shaper.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cake {
    /// Round-trip time for which the AQM is tuned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt: Option<Micros>,
    /// Memory of the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<Bytes>,
}

impl Parameters for Cake {
    fn times(&self) -> Vec<TimeKey> {
        vec![("rtt", self.rtt, NONZERO)]
    }
    fn memory_limit(&self) -> Option<Bytes> {
        self.memory_limit
    }
}

/// Former names of keys of `dualpi2`, and those of `tc`.
pub(super) const DUALPI2_RENAMED: &[(&str, &str)] =
    &[("step", "step_thresh"), ("coupling", "coupling_factor")];

/// Dual-queue coupled AQM for L4S (RFC 9332).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Dualpi2 {
    /// Capacity in packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Packets>,
    /// Target delay of the classic queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Micros>,
    /// Time between two updates of the probability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tupdate: Option<Micros>,
    /// Integral gain in Hz, as text (`"0.15625"`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alpha: Option<String>,
    /// Proportional gain in Hz, as text (`"3.195312"`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beta: Option<String>,
    /// Step marking threshold of the low-latency queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_thresh: Option<Micros>,
    /// Coupling factor k.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 255))]
    pub coupling_factor: Option<u32>,
    /// Drop on overload (`true`) or overflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drop_on_overload: Option<bool>,
    /// Drop at dequeue (`true`) or at enqueue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drop_dequeue: Option<bool>,
    /// Split super-packets on enqueue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split_gso: Option<bool>,
    /// Share reserved for the classic queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classic_protection: Option<Ppm>,
}

impl Parameters for Dualpi2 {
    fn packets(&self) -> Vec<(&'static str, Option<Packets>)> {
        vec![("limit", self.limit)]
    }
    fn times(&self) -> Vec<TimeKey> {
        vec![
            ("target", self.target, NONZERO),
            ("tupdate", self.tupdate, NONZERO),
            ("step_thresh", self.step_thresh, ZERO_IS_VALID),
        ]
    }
    fn check(&self, error: &mut dyn FnMut(&'static str, String)) {
        let gains = [("alpha", &self.alpha, "0.15625"), ("beta", &self.beta, "3.195312")];
        for (key, gain, example) in gains {
            if gain.as_deref().is_some_and(|gain| !is_gain(gain)) {
                error(key, format!("must be a number from 0 to 256 as text, like \"{example}\""));
            }
        }
        if self.coupling_factor.is_some_and(|k| k == 0 || k > 255) {
            error("coupling_factor", "must be from 1 to 255".to_owned());
        }
    }
    fn mark_threshold(&self) -> Option<(&'static str, Micros)> {
        Some(("step_thresh", self.step_thresh?))
    }
}

/// Whether `text` is a decimal number from 0 to 256.
fn is_gain(text: &str) -> bool {
    text.len() <= 16
        && text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_digit() || c == '.')
        && text.parse::<f64>().is_ok_and(|gain| gain <= 256.0)
}
