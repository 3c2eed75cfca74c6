//! From what a user wrote to what a node is told: presets and defaults filled in, queue limits in bytes or
//! packets, node names replaced by addresses.

use std::net::IpAddr;

use crate::plan::{Backend, Queue, Shaper};
use crate::units::{Micros, Ppm, Rate};

/// Everything a link's back end needs to know. In `queue` every [`crate::units::Limit`] is already
/// `Packets` (pfifo) or `Bytes` (bfifo).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkConfig {
    /// The link's name in the plan.
    pub name: String,
    /// Rate in bits per second at layer 2 (an Ethernet frame without preamble and checksum); `None`: unshaped.
    pub rate: Option<Rate>,
    /// Constant one-way delay, in front of the queue.
    pub delay: Micros,
    /// Independent random loss.
    pub loss: Ppm,
    /// The queue in front of the rate.
    pub queue: Queue,
    /// Which kernel qdisc limits the rate.
    pub shaper: Shaper,
    /// What the plan asked for.
    pub backend: Backend,
    /// Slices of the rate.
    pub classes: Vec<ClassConfig>,
    /// Seeds everything random in this link in this trial.
    pub seed: u64,
}

/// A slice of a link's rate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassConfig {
    /// Its name in the plan.
    pub name: String,
    /// Guaranteed rate.
    pub rate: Rate,
    /// Most it may borrow up to.
    pub ceil: Rate,
    /// A packet belongs to the class if any of these matches.
    pub matches: Vec<PacketMatch>,
    /// Its queue.
    pub queue: Queue,
}

/// Header fields; all that are given must match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PacketMatch {
    /// Source address.
    pub src: Option<IpAddr>,
    /// Destination address.
    pub dst: Option<IpAddr>,
    /// TCP or UDP source port.
    pub sport: Option<u16>,
    /// TCP or UDP destination port.
    pub dport: Option<u16>,
    /// DSCP, 0 to 63.
    pub dscp: Option<u8>,
}

/// The interface whose egress is shaped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Egress {
    /// By name.
    Dev(String),
    /// The one that the route to this address leaves by.
    Toward(IpAddr),
}

/// A change of a link's rate at an instant of the trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateChange {
    /// After the trial's beginning.
    pub at: Micros,
    /// The new rate.
    pub rate: Rate,
    /// `"change 1"`: which of the plan's changes.
    pub source: String,
}
