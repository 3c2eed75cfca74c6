//! Impairments of links: loss, jitter, reordering and traces.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{Micros, Ppm, Rate};

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

/// Packets that overtake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reorder {
    /// Share of packets that skip the delay.
    pub share: Ppm,
}

impl Reorder {
    /// This share of the packets.
    pub const fn new(share: Ppm) -> Self {
        Self { share }
    }
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
    /// The trace's mean rate, to which queue limits in `bdp` and in time, and the default queue, refer; absent: filled
    /// in.
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
