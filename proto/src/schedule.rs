//! From a checked plan to what happens when: points, the order of trials, and each node's part of one
//! trial. Pure, seeded, the same on every machine.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::plan::{ProbeKind, Sample};
use crate::resolve::{Egress, LinkConfig, RateChange};
use crate::units::{Micros, Rate};

/// One trial of one point, in the order they run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Position in the order of the experiment, from 0.
    pub index: u32,
    /// Which point.
    pub point_id: u32,
    /// Which repetition, from 1.
    pub trial: u16,
    /// Seeds everything random in this trial; the same for the same plan, point and repetition.
    pub seed: u64,
}

/// What a node must know beside the plan to do its part of a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialContext {
    /// Node name to the address its peers use.
    pub addresses: BTreeMap<String, IpAddr>,
    /// Which range of ports (see [`server_port`]).
    pub port_slot: u32,
    /// The trial's seed.
    pub seed: u64,
}

/// One node's part of one trial.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeTask {
    /// The timeline.
    pub phases: Vec<PhaseSpan>,
    /// When the last phase ends, after the trial's beginning.
    pub length: Micros,
    /// Sampling intervals.
    pub sample: Sample,
    /// Kernel settings, in order.
    pub sysctls: Vec<(String, String)>,
    /// Leave segmentation offloads on.
    pub keep_offloads: bool,
    /// Links on this node.
    pub links: Vec<LinkTask>,
    /// Flow groups whose listener is here.
    pub servers: Vec<FlowTask>,
    /// Flow groups that connect from here.
    pub clients: Vec<FlowTask>,
    /// Probes that measure from here.
    pub probes: Vec<ProbeTask>,
    /// Every other node that traffic of this node goes to, for the base RTT measured before the start.
    pub peers: BTreeMap<String, IpAddr>,
}

/// A phase with its place on the timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PhaseSpan {
    /// Its name.
    pub name: String,
    /// After the trial's beginning.
    pub start: Micros,
    /// After the trial's beginning.
    pub end: Micros,
    /// Part of the summaries.
    pub measure: bool,
}

/// A link and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkTask {
    /// What it is to do.
    pub config: LinkConfig,
    /// Which interface.
    pub egress: Egress,
    /// How it changes, sorted by time.
    pub changes: Vec<RateChange>,
}

/// A flow group: the same value on the node that connects and on the one that listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowTask {
    /// The group's name.
    pub group: String,
    /// Node that connects.
    pub from: String,
    /// Node that listens.
    pub to: String,
    /// Address of the node that connects.
    pub from_ip: IpAddr,
    /// Address of the node that listens.
    pub to_ip: IpAddr,
    /// The listener's port.
    pub server_port: u16,
    /// Data connection `i` comes from port `client_port + i`; iperf3's control connection from any other.
    pub client_port: u16,
    /// Number of data connections.
    pub count: u32,
    /// Congestion control of the sender.
    pub cc: Option<String>,
    /// The listener sends.
    pub reverse: bool,
    /// Application limit per socket.
    pub rate: Option<Rate>,
    /// After the trial's beginning.
    pub start: Micros,
    /// After the trial's beginning.
    pub stop: Micros,
    /// Interval of iperf3's own rows.
    pub interval: Micros,
}

/// A probe that measures from this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeTask {
    /// Its name in the plan.
    pub id: String,
    /// What is measured.
    pub kind: ProbeKind,
    /// Who answers.
    pub to: String,
    /// The address of who answers.
    pub to_ip: IpAddr,
    /// Time between two measurements.
    pub every: Micros,
    /// The IP header's TOS byte.
    pub tos: u8,
}

/// Number of port ranges that trials take in turn.
pub const PORT_SLOTS: u32 = 32;
/// Most flow groups in one plan (one server port each).
pub const MAX_GROUPS: u32 = 32;
/// Most data connections in one plan.
pub const MAX_SOCKETS: u32 = 600;

/// The listener's port of flow group number `group` (in name order).
pub fn server_port(slot: u32, group: u32) -> u16 {
    (5201 + (slot % PORT_SLOTS) * MAX_GROUPS + group) as u16
}

/// The first data connection's local port, `offset` being the number of connections of earlier groups.
pub fn client_port(slot: u32, offset: u32) -> u16 {
    (10_000 + (slot % PORT_SLOTS) * MAX_SOCKETS + offset) as u16
}
