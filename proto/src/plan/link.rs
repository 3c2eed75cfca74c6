//! `[links]` and `[path]`. A link's keys are declared only here: the code that emulates the link reads them from
//! [`Link`] (see [`crate::resolve::LinkConfig`]).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::Name;
use super::{
    AckAggregation, BurstLoss, Ecn, EcnRewrite, Jitter, Policer, Queue, Reorder, Slot, Tbf,
    TraceUse,
};
use crate::units::{Bytes, Micros, Ppm, Rate};

/// Named path characteristics.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PathPreset {
    /// Rate of the bottleneck; absent: the link's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// One-way delay; absent: the link's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<Micros>,
    /// Independent random loss; absent: the link's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<Ppm>,
    /// The bottleneck's queue; absent: the link's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queue>,
}

/// One direction of one interface.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The node whose egress is shaped.
    #[schemars(with = "Name")]
    pub node: String,
    /// The interface on the route to this node. Either `toward` or `dev` is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Name>")]
    pub toward: Option<String>,
    /// The interface, by its device name. Either `toward` or `dev` is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dev: Option<String>,
    /// Use `rate`, `delay`, `loss` and `queue` of this preset; keys of the link take precedence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Name>")]
    pub path: Option<String>,
    /// Rate of the bottleneck; absent: unshaped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-to" = "1tbit"))]
    pub rate: Option<Rate>,
    /// Constant one-way delay; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-to" = "60s"))]
    pub delay: Option<Micros>,
    /// Independent random loss; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Ppm>,
    /// Random delay around `delay`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Jitter>,
    /// Loss in bursts, in addition to `loss`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_loss: Option<BurstLoss>,
    /// Share of packets that are delivered twice; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duplicate: Option<Ppm>,
    /// Reordering; without `late` it needs a `delay`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reorder: Option<Reorder>,
    /// Treat a change of `delay` as a switch to another path: after a change to a shorter delay, later packets overtake earlier
    /// ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("default" = false))]
    pub path_switch: bool,
    /// Share of packets with one flipped bit after the IP header; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corrupt: Option<Ppm>,
    /// Bleaching and remarking of the IP header's ECN field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecn_rewrite: Option<EcnRewrite>,
    /// Drop arriving packets above a rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policer: Option<Policer>,
    /// Drop pure TCP acknowledgements that a later segment of their connection supersedes while they wait, like CAKE's
    /// `ack-filter-aggressive`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("default" = false))]
    pub ack_filter: bool,
    /// Hold pure TCP acknowledgements back and release them together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ack_aggregation: Option<AckAggregation>,
    /// Transmit in bursts; needs a rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<Slot>,
    /// Burst and peak rate of the shaper; needs a `rate`; absent: the line transmits one packet after the other at the rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tbf: Option<Tbf>,
    /// Rate, delay or loss from a file, instead of `rate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceUse>,
    /// Bytes per IP packet that count against the rate: 14 is an Ethernet header (as in the kernel's qdiscs), 0 none,
    /// 38 a full frame with preamble, checksum and gap. Values other than 14 need userspace; absent: `"14B"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-to" = "1000B"))]
    pub overhead: Option<Bytes>,
    /// Log every packet of a userspace link (table `link_packets`), up to this many bytes of rows; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packet_log: Option<Bytes>,
    /// Packets of a flow that are due together leave a userspace link as one GSO super-packet, which the receiver
    /// acknowledges once; with `false` each packet is written separately. Relevant for links without a rate and above
    /// about 1 Gbit/s; absent: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gso: Option<bool>,
    /// The queue in front of the rate; needs a `rate`; absent: 1.5 BDP of bytes, at least 10 full frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queue>,
    /// Implementation of the link.
    #[serde(default)]
    pub backend: Backend,
    /// Kernel qdisc that limits the rate.
    #[serde(default)]
    pub shaper: Shaper,
    /// Allow shaping of the interface on the route to the controller. Otherwise a node with an agent refuses it, because the link
    /// could cut the controller off.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_control_interface: bool,
    /// Shares of the rate, each with its own queue; other packets use the link's own queue.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub classes: BTreeMap<String, Class>,
}

impl Link {
    /// The names of the keys that are set, those with a default value included.
    pub fn keys(&self) -> Vec<String> {
        keys(self)
    }
}

/// Implementation of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// The kernel's qdiscs if this kernel supports everything that is configured, otherwise userspace; the choice is
    /// recorded.
    #[default]
    Auto,
    /// Kernel qdiscs over rtnetlink.
    Kernel,
    /// ccbench's own datapath.
    Userspace,
}

/// Kernel qdisc that limits the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Shaper {
    /// Hierarchical token bucket with one leaf class (the usual bottleneck).
    #[default]
    Htb,
    /// Token bucket filter.
    Tbf,
}

/// A share of a link's rate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// Guaranteed rate.
    pub rate: Rate,
    /// Maximum rate including borrowing; absent: the guaranteed rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceil: Option<Rate>,
    /// Classes with a lower number are served first, within their guarantee and beyond; absent: `0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 7))]
    pub priority: Option<u8>,
    /// Packets of the class; all given keys must match.
    #[serde(rename = "match")]
    pub matches: Match,
    /// Its queue; absent: 1.5 BDP of the class's rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queue>,
}

impl Class {
    /// A class of all packets, with this guaranteed rate.
    pub fn new(rate: Rate) -> Self {
        Self { rate, ceil: None, priority: None, matches: Match::default(), queue: None }
    }

    /// The names of the keys that are set.
    pub fn keys(&self) -> Vec<String> {
        keys(self)
    }
}

fn keys(table: &impl Serialize) -> Vec<String> {
    let table = toml::Table::try_from(table).unwrap_or_default();
    table.into_iter().map(|(key, _)| key).collect()
}

/// Selects the packets of a class; all given keys must match.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Match {
    /// Destination node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Name>")]
    pub to: Option<String>,
    /// Source node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Name>")]
    pub from: Option<String>,
    /// A flow group's packets (by its ports), data and acknowledgements.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Name>")]
    pub flow: Option<String>,
    /// The DSCP: the TOS byte divided by 4.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 63))]
    pub dscp: Option<u8>,
    /// TCP or UDP port of either end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub port: Option<u16>,
    /// The IP header's ECN field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecn: Option<Ecn>,
}
