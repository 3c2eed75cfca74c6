//! Links and routes between the nodes. A wire without a link takes no time.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ccbench_proto::plan::Ecn;
use ccbench_proto::resolve::{self, TimedChange};
use ccbench_proto::schedule::NodeTask;
use ccbench_proto::topology::Topology;
use ccbench_proto::trigger::LinkChanges;
use ccbench_shaper::virtual_link::{Header, VirtualLink};

use crate::error::SimulatorError;
use crate::packet::{MTU_BYTES, Packet};

/// A link and its place.
pub struct SimulatedLink {
    pub name: String,
    pub node: String,
    pub dev: String,
    pub changes: Vec<TimedChange>,
    pub triggered: LinkChanges,
    pub link: VirtualLink<Packet>,
    /// Time of the link's queued event; `u64::MAX`: none.
    pub queued_ns: u64,
    /// Time of the queued event for its triggered changes.
    pub trigger_queued_ns: u64,
    /// When it was last sampled.
    pub last_sample_ns: Option<u64>,
}

/// Bit that distinguishes the routes of probes' connections from those of [`Network::add_route`]. The other bits have the number of the
/// probe's path, the local port and the direction, so that the index of a route is enough to classify a packet of any connection.
const PROBE_ROUTE: u32 = 1 << 31;
const PATH_SHIFT: u32 = 17;
const PORT_SHIFT: u32 = 1;

/// The links from one node to another for the packets of one connection.
#[derive(Debug, Default)]
struct Route {
    /// Index of each link, and its classification of the packet by ECN field.
    hops: Vec<(usize, [Header; Ecn::ALL.len()])>,
}

/// Path of a probe. Its connections follow one another over the same links.
#[derive(Debug)]
struct ProbePath {
    /// Forward and reverse routes over these links.
    links: [u32; 2],
    /// Endpoints of forward packets. The local port is that of the newest connection.
    endpoints: Endpoints,
    tos: u8,
    /// Forward and reverse route of the newest connection.
    routes: [Route; 2],
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
    probe_paths: Vec<ProbePath>,
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
    /// Creates the links of all nodes at `at_ns`. Their traces begin at `begin_ns`.
    pub fn new(
        nodes: &BTreeMap<String, NodeTask>,
        topology: &Topology,
        at_ns: u64,
        begin_ns: u64,
    ) -> Result<Self, SimulatorError> {
        let mut network = Self {
            links: Vec::new(),
            routes: Vec::new(),
            probe_paths: Vec::new(),
            by_interface: BTreeMap::new(),
        };
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
                    triggered: LinkChanges::new(config, &link.triggered),
                    link: model,
                    queued_ns: u64::MAX,
                    trigger_queued_ns: u64::MAX,
                    last_sample_ns: None,
                });
            }
        }
        Ok(network)
    }

    /// Adds the route of a connection's packets. Returns its index.
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
        let links: Vec<usize> = shaped.collect();
        let route = self.route(links, endpoints, tos);
        self.routes.push(route);
        Ok(self.routes.len() as u32 - 1)
    }

    /// Adds a path for the connections of a probe, over the links of these forward and reverse routes. Returns its number.
    pub fn add_probe_path(&mut self, links: [u32; 2], endpoints: Endpoints, tos: u8) -> u32 {
        let routes = [Route::default(), Route::default()];
        self.probe_paths.push(ProbePath { links, endpoints, tos, routes });
        self.probe_paths.len() as u32 - 1
    }

    /// Returns the forward and reverse route of a probe's next connection, which has this local port. They replace those of the connection
    /// before it: packets of earlier connections that are still in transit are classified one by one.
    pub fn connect(&mut self, path: u32, local_port: u16) -> [u32; 2] {
        let ProbePath { links, endpoints, tos, .. } = self.probe_paths[path as usize];
        let endpoints = Endpoints { from_port: local_port, ..endpoints };
        let route = |links, endpoints| self.route(self.links_of(links), endpoints, tos);
        let routes = [route(links[0], endpoints), route(links[1], endpoints.reversed())];
        let probe = &mut self.probe_paths[path as usize];
        (probe.endpoints, probe.routes) = (endpoints, routes);
        let there = PROBE_ROUTE | path << PATH_SHIFT | u32::from(local_port) << PORT_SHIFT;
        [there, there | 1]
    }

    /// Returns the links of a route, in order.
    fn links_of(&self, route: u32) -> Vec<usize> {
        self.routes[route as usize].hops.iter().map(|(index, _)| *index).collect()
    }

    /// Returns a route over these links.
    fn route(&self, links: Vec<usize>, endpoints: Endpoints, tos: u8) -> Route {
        let hop = |index| {
            let by_ecn = |ecn: Ecn| self.header(index, endpoints, tos, ecn);
            (index, Ecn::ALL.map(by_ecn))
        };
        Route { hops: links.into_iter().map(hop).collect() }
    }

    /// Returns a link's classification of packets.
    fn header(&self, link: usize, endpoints: Endpoints, tos: u8, ecn: Ecn) -> Header {
        self.links[link].link.classify(&endpoints.frame((tos & !3) | ecn.bits()))
    }

    /// Passes a packet to the next link of its route, or to the route's end.
    pub fn forward(&mut self, at_ns: u64, packet: Packet) -> Forwarded {
        let Some((index, header)) = self.next_hop(&packet) else {
            return Forwarded::Arrived(packet);
        };
        let link = &mut self.links[index].link;
        // Routes store the headers of their connection, not of each segment.
        let tcp = if link.reads_tcp() { packet.tcp_header() } else { None };
        link.arrive(at_ns, Header { tcp, ..header }, packet.frame_bytes(), packet);
        Forwarded::ToLink(index)
    }

    /// Returns the next link of a packet's route, and its classification of the packet.
    fn next_hop(&self, packet: &Packet) -> Option<(usize, Header)> {
        let Some(route) = self.routes.get(packet.route as usize) else {
            return self.next_hop_of_probe(packet);
        };
        route.next_hop(packet)
    }

    /// Returns the same for a packet of a probe's connection.
    fn next_hop_of_probe(&self, packet: &Packet) -> Option<(usize, Header)> {
        let path = self.probe_paths.get(((packet.route & !PROBE_ROUTE) >> PATH_SHIFT) as usize)?;
        let local_port = (packet.route >> PORT_SHIFT) as u16;
        let direction = packet.route as usize & 1;
        if path.endpoints.from_port == local_port {
            return path.routes[direction].next_hop(packet);
        }
        let (index, _) = self.routes[path.links[direction] as usize].next_hop(packet)?;
        let there = Endpoints { from_port: local_port, ..path.endpoints };
        let endpoints = if direction == 0 { there } else { there.reversed() };
        Some((index, self.header(index, endpoints, path.tos, packet.ecn)))
    }
}

impl Route {
    /// Returns the next link of a packet, and its classification of the packet.
    fn next_hop(&self, packet: &Packet) -> Option<(usize, Header)> {
        let (index, headers) = self.hops.get(usize::from(packet.hop))?;
        Some((*index, headers[usize::from(packet.ecn.bits())]))
    }
}

impl Endpoints {
    /// Returns the reverse direction.
    pub fn reversed(self) -> Self {
        Self {
            from: self.to,
            to: self.from,
            from_port: self.to_port,
            to_port: self.from_port,
            protocol: self.protocol,
        }
    }

    /// Returns an Ethernet frame with these headers, for classification.
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
        // The rest of a TCP header: its length is 32 bytes, and its only flag is ACK.
        frame.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x10, 0, 0, 0, 0, 0, 0]);
        frame.extend([0; 12]);
        frame
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::check;

    use super::*;
    use crate::packet::{AckSegment, Body};
    use crate::{T0_NS, prepare};

    const PLAN: &str = r#"
name = "routes"
[nodes]
src = {}
dst = {}
[wires]
path = ["src", "dst"]
[links.there]
node = "src"
toward = "dst"
delay = "1ms"
[links.back]
node = "dst"
toward = "src"
delay = "1ms"
[probes.p]
kind = "tcp_connect"
from = "src"
to = "dst"
[[phases]]
name = "only"
length = "1s"
"#;

    #[test]
    fn a_connection_keeps_its_classification_and_replaces_the_routes_before() {
        let (plan, _) = check::read(PLAN, &[]).unwrap();
        let (nodes, topology) = prepare::trial(&plan, 1);
        let mut network = Network::new(&nodes, &topology, 0, T0_NS).unwrap();
        prepare::tcp_probes(&nodes, &topology, &mut network, (1, u64::MAX)).unwrap();
        let routes = network.routes.len();
        let body = Body::Ack(AckSegment::default());
        let packet = |route| Packet::new(route, Ecn::Ect0, body);
        let first = network.connect(0, 40_000);
        let of_first = first.map(|route| network.next_hop(&packet(route)).unwrap());
        let second = network.connect(0, 40_002);
        let of_second = second.map(|route| network.next_hop(&packet(route)).unwrap());
        // Packets of the first connection that are still in transit.
        assert_eq!(first.map(|route| network.next_hop(&packet(route)).unwrap()), of_first);
        for ((link, header), (other_link, other_header)) in of_first.into_iter().zip(of_second) {
            assert_eq!((link, header.ecn), (other_link, other_header.ecn));
            assert_ne!(header.flow, other_header.flow);
        }
        assert_ne!(of_first[0].0, of_first[1].0);
        let arrived = Packet { hop: 1, ..packet(first[0]) };
        assert_eq!(network.next_hop(&arrived), None);
        for port in 0..1000 {
            network.connect(0, port);
        }
        assert_eq!(network.routes.len(), routes);
    }
}
