//! What links do to packets in addition to rate, delay and queue: loss, jitter, reordering, bursts, policing, ECN; and traces.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Ecn;
use crate::units::{Bytes, Micros, Packets, Ppm, Rate};

/// Random delay around a link's constant `delay`. Packets keep their order unless `reorder` is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Jitter {
    /// Half the width (uniform), the standard deviation (normal), or the mean of the additional delay (Pareto).
    pub spread: Micros,
    /// Distribution.
    #[serde(default)]
    pub distribution: Distribution,
    /// Correlation of a packet's draw with the previous one's; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation: Option<Ppm>,
    /// Packets with less delay may overtake; otherwise the order is kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("default" = false))]
    pub reorder: bool,
    /// A draw holds for all packets that arrive within this time, like the delay of a radio link; absent: each packet has its own
    /// draw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Micros>,
}

/// Shape of a random delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// From `delay - spread` to `delay + spread`, each equally likely.
    Uniform,
    /// Mean `delay`, standard deviation `spread`; never below zero.
    #[default]
    Normal,
    /// `delay` plus a Pareto (Lomax) variate of shape 3 and mean `spread`: never earlier, with a long tail.
    Pareto,
}

/// Loss in bursts: the Gilbert-Elliott model, one step per packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BurstLoss {
    /// Probability of going from the good state to the bad one.
    pub enter: Ppm,
    /// Probability of going back; its inverse is the mean burst length in packets.
    pub leave: Ppm,
    /// Loss in the bad state; absent: `"100%"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bad: Option<Ppm>,
    /// Loss in the good state; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub good: Option<Ppm>,
}

/// Packets that overtake, or are overtaken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reorder {
    /// Share of packets that skip the delay or, with `late`, leave it later.
    pub share: Ppm,
    /// How much later these packets leave the delay, while others overtake them; absent: they skip the delay and overtake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<Micros>,
}

impl Reorder {
    /// Reordering in which this share of the packets skips the delay.
    pub const fn new(share: Ppm) -> Self {
        Self { share, late: None }
    }
}

/// Rewrites the IP header's ECN field of arriving packets, before the delay and the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EcnRewrite {
    /// The field that ECT(1) becomes; absent: unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ect1: Option<Ecn>,
    /// The field that ECT(0) becomes; absent: unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ect0: Option<Ecn>,
    /// The field that CE becomes; absent: unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ce: Option<Ecn>,
    /// Share of these packets that are rewritten; absent: `"100%"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Ppm>,
}

impl EcnRewrite {
    /// The replacement of this field; `None` if it stays.
    pub fn of(&self, ecn: Ecn) -> Option<Ecn> {
        match ecn {
            Ecn::NotEct => None,
            Ecn::Ect1 => self.ect1,
            Ecn::Ect0 => self.ect0,
            Ecn::Ce => self.ce,
        }
    }
}

/// Token bucket that drops arriving packets above a rate, instead of queueing them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Policer {
    /// Rate at which the bucket fills.
    pub rate: Rate,
    /// Size of the bucket, which is full at the beginning.
    pub burst: Bytes,
}

/// Holds pure TCP acknowledgements back and releases them together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AckAggregation {
    /// How long the first one waits; all that arrive meanwhile leave with it.
    pub hold: Micros,
    /// They leave as soon as this many wait; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<Packets>,
}

/// Times at which the line begins to transmit, like Wi-Fi's transmit opportunities, DOCSIS grants and LTE subframes. The packets
/// that are then in the queue leave as one burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Slot {
    /// Time from one slot to the next; with `max`, the minimum.
    pub every: Micros,
    /// Maximum time from one slot to the next; all times from `every` to this are equally likely; absent: `every`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Micros>,
    /// Maximum number of packets in a slot; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<Packets>,
    /// A slot's last packet is the one that reaches this size; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bytes>,
}

/// Shapes the link's rate with a token bucket, like the qdisc tbf: a burst of packets leaves at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tbf {
    /// Size of the bucket, which is full at the beginning and fills at the link's `rate`.
    pub burst: Bytes,
    /// Highest rate within a burst; absent: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peakrate: Option<Rate>,
    /// Size of the bucket that enforces `peakrate`; absent: one full frame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Bytes>,
}

/// The link's rate, delay or loss follows a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceUse {
    /// The file, relative to the plan's directory.
    pub file: String,
    /// sha256 of the file, 64 hexadecimal digits; verified if given; absent: filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = super::text::SHA256))]
    pub sha256: Option<String>,
    /// The trace's mean rate. Queue limits in `bdp` and in time, and the default queue, refer to it; absent: filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_rate: Option<Rate>,
    /// Behaviour after its last row.
    #[serde(default)]
    pub on_end: OnEnd,
    /// When it starts.
    #[serde(default)]
    pub start: TraceStart,
    /// Minimum rate: lower rows are raised to it; absent: none: a row of zero blocks a userspace link; the kernel backend
    /// rejects it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<Rate>,
}

impl TraceUse {
    /// This file, with every default.
    pub fn new(file: impl Into<String>) -> Self {
        Self {
            file: file.into(),
            sha256: None,
            mean_rate: None,
            on_end: OnEnd::default(),
            start: TraceStart::default(),
            floor: None,
        }
    }
}

/// Behaviour after a trace's last row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnEnd {
    /// The last row continues.
    #[default]
    Hold,
    /// The trace starts again.
    Loop,
    /// The link is blocked.
    Stop,
}

/// When a trace begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TraceStart {
    /// With the trial. Before that (while the path is measured) the first row applies.
    #[default]
    Trial,
    /// When the first packet of the trial arrives.
    FirstPacket,
}
