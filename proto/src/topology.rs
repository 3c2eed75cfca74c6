//! The testbed that ccbench builds when no agents are named: which interfaces, addresses and routes each
//! namespace gets. Pure; `ccbench-agent testbed` makes it so.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

/// All of it. Same plan, same topology, to the address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// By node name.
    pub nodes: BTreeMap<String, TopoNode>,
    /// One virtual Ethernet pair each.
    pub wires: Vec<Wire>,
}

/// One namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopoNode {
    /// In the order of the wires.
    pub interfaces: Vec<Interface>,
    /// One for each subnet that is not its own.
    pub routes: Vec<Route>,
}

/// One end of a wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// `to-<peer>`, cut to 15 characters and made unique.
    pub dev: String,
    /// Its address; the subnet is a /24.
    pub address: Ipv4Addr,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// The node at the other end.
    pub peer: String,
    /// The other end's address, for a permanent neighbour entry.
    pub peer_address: Ipv4Addr,
    /// The other end's MAC address.
    pub peer_mac: [u8; 6],
}

/// How to reach a subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The subnet (/24).
    pub subnet: Ipv4Addr,
    /// The next hop's address.
    pub via: Ipv4Addr,
    /// By this interface.
    pub dev: String,
}

/// The two ends of a virtual Ethernet pair: node and interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wire {
    /// One end.
    pub a: (String, String),
    /// The other end.
    pub b: (String, String),
}

impl Topology {
    /// The address by which its peers know `node`: that of its first interface.
    pub fn address(&self, node: &str) -> Option<IpAddr> {
        Some(IpAddr::V4(self.nodes.get(node)?.interfaces.first()?.address))
    }
}
