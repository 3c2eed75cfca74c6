//! The links and the routes between nodes. A wire without a link takes no time.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ccbench_proto::plan::Ecn;
use ccbench_proto::resolve::{self, TimedChange};
use ccbench_proto::schedule::NodeTask;
use ccbench_proto::topology::Topology;
use ccbench_shaper::virtual_link::{Header, VirtualLink};

use crate::error::SimulatorError;
use crate::packet::{MTU_BYTES, Packet};

/// A link and where it is.
pub struct SimulatedLink {
    pub name: String,
    pub node: String,
    pub dev: String,
    pub changes: Vec<TimedChange>,
    pub link: VirtualLink<Packet>,
    /// Time of the event that is queued for it; `u64::MAX`: none.
    pub queued_ns: u64,
    /// When it was sampled last.
    pub last_sample_ns: Option<u64>,
}

/// The links from one node to another, for packets of one connection.
#[derive(Debug)]
struct Route {
    /// Index of the link, and its classification of the packet by ECN field.
    hops: Vec<(usize, [Header; Ecn::ALL.len()])>,
}

/// Where a packet is after [`Network::forward`].
pub enum Forwarded {
    /// In the link of this index.
    ToLink(usize),
    /// At the end of its route.
    Arrived(Packet),
}

/// All links and routes.
pub struct Network {
    pub links: Vec<SimulatedLink>,
    routes: Vec<Route>,
    /// Index of the link at an interface, by node and device.
    by_interface: BTreeMap<(String, String), usize>,
}

/// Addresses and ports of a connection's packets.
#[derive(Debug, Clone, Copy)]
pub struct Endpoints {
    pub from: IpAddr,
    pub to: IpAddr,
    pub from_port: u16,
    pub to_port: u16,
    pub protocol: Protocol,
}

/// The IP header's protocol field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Icmp = 1,
    Tcp = 6,
    Udp = 17,
}

impl Network {
    /// The links of all nodes, created at `at_ns`; their traces begin at `begin_ns`.
    pub fn new(
        nodes: &BTreeMap<String, NodeTask>,
        topology: &Topology,
        at_ns: u64,
        begin_ns: u64,
    ) -> Result<Self, SimulatorError> {
        let mut network =
            Self { links: Vec::new(), routes: Vec::new(), by_interface: BTreeMap::new() };
        for (node, task) in nodes {
            for link in &task.links {
                let config = &link.config;
                let devs = topology.nodes.get(node).map_or(&[][..], |made| &made.interfaces);
                let mut devs = devs.iter().map(|interface| interface.dev.as_str());
                let dev = devs.find(|dev| resolve::shapes(&config.plan, topology, (node, dev)));
                let no_interface = || SimulatorError::NoInterface { link: config.name.clone() };
                let dev = dev.ok_or_else(no_interface)?;
                let mut model = VirtualLink::new(config, MTU_BYTES, at_ns)
                    .map_err(|source| SimulatorError::Link { link: config.name.clone(), source })?;
                model.begin(begin_ns);
                network.by_interface.insert((node.clone(), dev.to_owned()), network.links.len());
                network.links.push(SimulatedLink {
                    name: config.name.clone(),
                    node: node.clone(),
                    dev: dev.to_owned(),
                    changes: link.changes.clone(),
                    link: model,
                    queued_ns: u64::MAX,
                    last_sample_ns: None,
                });
            }
        }
        Ok(network)
    }

    /// The route of a connection's packets; returns its index.
    pub fn add_route(
        &mut self,
        topology: &Topology,
        (from, to): (&str, &str),
        endpoints: Endpoints,
        tos: u8,
    ) -> Result<u32, SimulatorError> {
        let no_path = || SimulatorError::NoPath { from: from.to_owned(), to: to.to_owned() };
        let interfaces = topology.path(from, to).ok_or_else(no_path)?;
        let shaped = interfaces.iter().filter_map(|(node, dev)| {
            self.by_interface.get(&((*node).to_owned(), (*dev).to_owned())).copied()
        });
        let links = shaped.collect();
        Ok(self.push_route(links, endpoints, tos))
    }

    /// The route of another connection over the links of a route; returns its index.
    pub fn add_parallel_route(&mut self, route: u32, endpoints: Endpoints, tos: u8) -> u32 {
        let links = self.routes[route as usize].hops.iter().map(|(index, _)| *index).collect();
        self.push_route(links, endpoints, tos)
    }

    fn push_route(&mut self, links: Vec<usize>, endpoints: Endpoints, tos: u8) -> u32 {
        let hops = links.into_iter().map(|index| {
            let link = &self.links[index].link;
            let by_ecn = |ecn: Ecn| link.classify(&endpoints.frame((tos & !3) | ecn.bits()));
            (index, Ecn::ALL.map(by_ecn))
        });
        let hops = hops.collect();
        self.routes.push(Route { hops });
        self.routes.len() as u32 - 1
    }

    /// A packet arrives at the next link of its route; or at the end of the route.
    pub fn forward(&mut self, at_ns: u64, packet: Packet) -> Forwarded {
        let route = &self.routes[packet.route as usize];
        let Some((index, headers)) = route.hops.get(usize::from(packet.hop)) else {
            return Forwarded::Arrived(packet);
        };
        let header = headers[usize::from(packet.ecn.bits())];
        self.links[*index].link.arrive(at_ns, header, packet.frame_bytes(), packet);
        Forwarded::ToLink(*index)
    }
}

impl Endpoints {
    /// The reverse direction.
    pub fn reversed(self) -> Self {
        Self {
            from: self.to,
            to: self.from,
            from_port: self.to_port,
            to_port: self.from_port,
            protocol: self.protocol,
        }
    }

    /// An Ethernet frame with these headers, to be classified.
    fn frame(&self, tos: u8) -> Vec<u8> {
        let mut frame = vec![0; 12];
        match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                frame.extend([0x08, 0x00]);
                frame.extend([0x45, tos, 0, 52, 0, 0, 0x40, 0, 64, self.protocol as u8, 0, 0]);
                frame.extend(from.octets());
                frame.extend(to.octets());
            }
            (from, to) => {
                let octets = |address: IpAddr| match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                    IpAddr::V6(address) => address.octets(),
                };
                frame.extend([0x86, 0xdd]);
                frame.extend([0x60 | tos >> 4, tos << 4, 0, 0, 0, 32, self.protocol as u8, 64]);
                frame.extend(octets(from));
                frame.extend(octets(to));
            }
        }
        frame.extend(self.from_port.to_be_bytes());
        frame.extend(self.to_port.to_be_bytes());
        // The rest of a TCP header: its length is 32 bytes, its flags are ACK.
        frame.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x10, 0, 0, 0, 0, 0, 0]);
        frame.extend([0; 12]);
        frame
    }
}
