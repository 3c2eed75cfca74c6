//! The testbed that ccbench builds when no agents are named: which interfaces, addresses and routes each
//! namespace gets. Pure; `ccbench-agent testbed` creates it.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

use serde::{Serialize, Serializer};

use crate::plan::Plan;

/// The whole testbed. The same plan always has the same topology, including addresses. Serialised in `run.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Topology {
    /// By node name.
    pub nodes: BTreeMap<String, TopoNode>,
    /// The virtual Ethernet pairs.
    pub wires: Vec<Wire>,
}

/// One namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct TopoNode {
    /// In the order of the wires.
    pub interfaces: Vec<Interface>,
    /// One route for each subnet of other nodes.
    pub routes: Vec<Route>,
}

/// One end of a wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Interface {
    /// `to-<peer>`, cut to 15 characters and made unique.
    pub dev: String,
    /// Its address; the subnet is a /24.
    pub address: Ipv4Addr,
    /// Its MAC address.
    #[serde(serialize_with = "mac_text")]
    pub mac: [u8; 6],
    /// The node at the other end.
    pub peer: String,
    /// The other end's address, for a permanent neighbour entry.
    pub peer_address: Ipv4Addr,
    /// The other end's MAC address.
    #[serde(serialize_with = "mac_text")]
    pub peer_mac: [u8; 6],
}

/// How to reach a subnet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Route {
    /// The subnet (/24).
    pub subnet: Ipv4Addr,
    /// The next hop's address.
    pub via: Ipv4Addr,
    /// By this interface.
    pub dev: String,
}

/// The two ends of a virtual Ethernet pair: node and interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Wire {
    /// One end.
    pub a: (String, String),
    /// The other end.
    pub b: (String, String),
}

/// The second octet of every address: `10.SECOND_OCTET.k.1` and `.2` are the ends of segment `k`.
pub const SECOND_OCTET: u8 = 77;
/// Most segments in one plan (each is a /24 with its own third octet).
pub const MAX_SEGMENTS: usize = 254;
/// Longest device name that the kernel accepts.
const DEV_NAME_LEN: usize = 15;

impl Topology {
    /// The namespaces of a checked plan. Segment `k` (from 1: chains in name order, each from its
    /// beginning) is `10.77.k.0/24`; its first node has `.1`. Nodes with an agent are left out, as are
    /// segments that touch one or lie beyond [`MAX_SEGMENTS`].
    pub fn build(plan: &Plan) -> Self {
        let ours = |name: &String| plan.nodes.get(name).is_some_and(|node| node.agent.is_none());
        let mut topology = Self {
            nodes: plan
                .nodes
                .keys()
                .filter(|name| ours(name))
                .map(|name| (name.clone(), TopoNode::default()))
                .collect(),
            wires: Vec::new(),
        };
        let segments = plan.wires.values().flat_map(|chain| chain.windows(2));
        for pair in segments.filter(|pair| ours(&pair[0]) && ours(&pair[1])).take(MAX_SEGMENTS) {
            topology.connect(&pair[0], &pair[1]);
        }
        let routes: Vec<(String, Vec<Route>)> =
            topology.nodes.keys().map(|name| (name.clone(), topology.routes_of(name))).collect();
        for (name, routes) in routes {
            if let Some(node) = topology.nodes.get_mut(&name) {
                node.routes = routes;
            }
        }
        topology
    }

    /// The address by which its peers know `node`: that of its first interface.
    pub fn address(&self, node: &str) -> Option<IpAddr> {
        Some(IpAddr::V4(self.main_address(node)?))
    }

    /// The addresses of all nodes that have one.
    pub fn addresses(&self) -> BTreeMap<String, IpAddr> {
        self.nodes.keys().filter_map(|n| Some((n.clone(), self.address(n)?))).collect()
    }

    /// The device through which traffic of `node` to `toward` leaves; `None` for the node itself, for a node that is not in the
    /// topology, and if there is no path.
    pub fn egress(&self, node: &str, toward: &str) -> Option<&str> {
        if node == toward {
            return None;
        }
        let subnet = subnet(self.main_address(toward)?);
        let node = self.nodes.get(node)?;
        let connected = node.interfaces.iter().find(|i| self::subnet(i.address) == subnet);
        let routed = || node.routes.iter().find(|r| r.subnet == subnet).map(|r| r.dev.as_str());
        connected.map(|i| i.dev.as_str()).or_else(routed)
    }

    /// As [`path`](Self::path), in both directions.
    pub fn round_trip(&self, from: &str, to: &str) -> Option<Vec<(&str, &str)>> {
        let mut hops = self.path(from, to)?;
        hops.extend(self.path(to, from)?);
        Some(hops)
    }

    /// The interfaces through which traffic from `from` to `to` leaves each node, in order: node and device. `None` if there is no
    /// path.
    pub fn path(&self, from: &str, to: &str) -> Option<Vec<(&str, &str)>> {
        let mut at = self.nodes.get_key_value(from)?.0.as_str();
        let mut hops = Vec::new();
        while at != to {
            if hops.len() > self.nodes.len() {
                return None;
            }
            let dev = self.egress(at, to)?;
            hops.push((at, dev));
            at = &self.nodes.get(at)?.interfaces.iter().find(|i| i.dev == dev)?.peer;
        }
        Some(hops)
    }

    fn main_address(&self, node: &str) -> Option<Ipv4Addr> {
        Some(self.nodes.get(node)?.interfaces.first()?.address)
    }

    /// Adds the next segment between two nodes of this topology.
    fn connect(&mut self, a: &str, b: &str) {
        let k = (self.wires.len() + 1) as u8;
        let end = |host: u8| {
            (Ipv4Addr::new(10, SECOND_OCTET, k, host), [0x02, 0xcc, 0xbe, 0x00, k, host])
        };
        let ((a_ip, a_mac), (b_ip, b_mac)) = (end(1), end(2));
        let dev_a = self.free_dev(a, b);
        self.add(
            a,
            Interface {
                dev: dev_a.clone(),
                address: a_ip,
                mac: a_mac,
                peer: b.to_owned(),
                peer_address: b_ip,
                peer_mac: b_mac,
            },
        );
        let dev_b = self.free_dev(b, a);
        self.add(
            b,
            Interface {
                dev: dev_b.clone(),
                address: b_ip,
                mac: b_mac,
                peer: a.to_owned(),
                peer_address: a_ip,
                peer_mac: a_mac,
            },
        );
        self.wires.push(Wire { a: (a.to_owned(), dev_a), b: (b.to_owned(), dev_b) });
    }

    fn add(&mut self, node: &str, interface: Interface) {
        self.nodes.entry(node.to_owned()).or_default().interfaces.push(interface);
    }

    /// `to-<peer>`, cut to the kernel's limit, with a number if this node already has the name.
    fn free_dev(&self, node: &str, peer: &str) -> String {
        let taken = |dev: &str| {
            self.nodes.get(node).is_some_and(|n| n.interfaces.iter().any(|i| i.dev == dev))
        };
        let plain = truncate(&format!("to-{peer}"), DEV_NAME_LEN);
        if !taken(&plain) {
            return plain;
        }
        (2..)
            .map(|n: usize| {
                let suffix = format!("-{n}");
                truncate(&plain, DEV_NAME_LEN - suffix.len()) + &suffix
            })
            .find(|dev| !taken(dev))
            .unwrap_or(plain)
    }

    /// Shortest paths (in hops, ties by the order of the wires) to every subnet that is not the node's own.
    fn routes_of(&self, name: &str) -> Vec<Route> {
        let reached = self.first_hops(name);
        let mut routes = Vec::new();
        for wire in &self.wires {
            if wire.a.0 == name || wire.b.0 == name {
                continue;
            }
            let nearest = [&wire.a, &wire.b]
                .into_iter()
                .filter_map(|end| Some((reached.get(end.0.as_str())?, end)))
                .min_by_key(|((distance, _), _)| *distance);
            let Some(((_, hop), end)) = nearest else { continue };
            let Some(address) = self.nodes[&end.0].interfaces.iter().find(|i| i.dev == end.1)
            else {
                continue;
            };
            routes.push(Route {
                subnet: subnet(address.address),
                via: hop.peer_address,
                dev: hop.dev.clone(),
            });
        }
        routes
    }

    /// The distance in hops and the outgoing interface for every other node that `name` reaches.
    fn first_hops(&self, name: &str) -> BTreeMap<&str, (usize, &Interface)> {
        let mut reached: BTreeMap<&str, (usize, &Interface)> = BTreeMap::new();
        let mut queue = VecDeque::new();
        for interface in self.nodes.get(name).map_or(&[][..], |node| &node.interfaces) {
            if interface.peer != name && !reached.contains_key(interface.peer.as_str()) {
                reached.insert(&interface.peer, (1, interface));
                queue.push_back(interface.peer.as_str());
            }
        }
        while let Some(at) = queue.pop_front() {
            let (distance, hop) = reached[at];
            for next in &self.nodes[at].interfaces {
                if next.peer != name && !reached.contains_key(next.peer.as_str()) {
                    reached.insert(&next.peer, (distance + 1, hop));
                    queue.push_back(&next.peer);
                }
            }
        }
        reached
    }
}

/// Serialises a MAC address as text: `02:00:0a:4d:01:01`.
fn mac_text<S: Serializer>(mac: &[u8; 6], serializer: S) -> Result<S::Ok, S::Error> {
    let bytes = mac.map(|byte| format!("{byte:02x}"));
    serializer.serialize_str(&bytes.join(":"))
}

/// The /24 of an address.
fn subnet(address: Ipv4Addr) -> Ipv4Addr {
    let [a, b, c, _] = address.octets();
    Ipv4Addr::new(a, b, c, 0)
}

/// At most `len` bytes of `text`, cut at a character's boundary.
fn truncate(text: &str, len: usize) -> String {
    let mut end = len.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(nodes: &str, wires: &str) -> Topology {
        let nodes: String = nodes.split(' ').map(|n| format!("{n} = {{}}\n")).collect();
        let text = format!("name = \"t\"\nphases = []\n[nodes]\n{nodes}[wires]\n{wires}");
        Topology::build(&toml::from_str(&text).expect("the test's plan"))
    }

    #[test]
    fn a_chain_gets_a_subnet_per_segment_and_routes_to_all_others() {
        let t =
            topology("src router emulator dst", r#"path = ["src", "router", "emulator", "dst"]"#);
        assert_eq!(t.address("src").unwrap().to_string(), "10.77.1.1");
        assert_eq!(t.address("router").unwrap().to_string(), "10.77.1.2");
        assert_eq!(t.address("dst").unwrap().to_string(), "10.77.3.2");
        let devs: Vec<&str> = t.nodes["router"].interfaces.iter().map(|i| i.dev.as_str()).collect();
        assert_eq!(devs, ["to-src", "to-emulator"]);
        let routes: Vec<String> = t.nodes["src"]
            .routes
            .iter()
            .map(|r| format!("{} via {} dev {}", r.subnet, r.via, r.dev))
            .collect();
        assert_eq!(
            routes,
            ["10.77.2.0 via 10.77.1.2 dev to-router", "10.77.3.0 via 10.77.1.2 dev to-router"]
        );
        assert_eq!(t.egress("router", "dst"), Some("to-emulator"));
        assert_eq!(t.egress("emulator", "src"), Some("to-router"));
        assert_eq!(t.egress("src", "src"), None);
        let path = t.path("src", "dst").unwrap();
        assert_eq!(path, [("src", "to-router"), ("router", "to-emulator"), ("emulator", "to-dst")]);
    }

    #[test]
    fn both_ends_of_a_wire_know_each_other() {
        let t = topology("a b", r#"w = ["a", "b"]"#);
        let (a, b) = (&t.nodes["a"].interfaces[0], &t.nodes["b"].interfaces[0]);
        assert_eq!((a.address, a.mac), (b.peer_address, b.peer_mac));
        assert_eq!((b.address, b.mac), (a.peer_address, a.peer_mac));
        assert_eq!(a.mac[0] & 3, 2, "locally administered, unicast");
        assert_ne!(a.mac, b.mac);
    }

    #[test]
    fn run_json_has_addresses_as_text() {
        let json = serde_json::to_value(topology("a b", r#"w = ["a", "b"]"#)).unwrap();
        let interface = &json["nodes"]["a"]["interfaces"][0];
        assert_eq!(interface["dev"], "to-b");
        assert_eq!(interface["address"], "10.77.1.1");
        let mac = interface["mac"].as_str().unwrap();
        let bytes: Vec<&str> = mac.split(':').collect();
        assert!(bytes.len() == 6 && bytes.iter().all(|byte| byte.len() == 2), "{mac}");
        assert_eq!(json["wires"][0]["b"], serde_json::json!(["b", "to-a"]));
    }

    #[test]
    fn device_names_fit_the_kernel_and_are_unique_per_node() {
        let t = topology(
            "hub a-very-long-name-1 a-very-long-name-2",
            "one = [\"hub\", \"a-very-long-name-1\"]\nthree = [\"hub\", \"a-very-long-name-1\"]\n\
             two = [\"hub\", \"a-very-long-name-2\"]",
        );
        let devs: Vec<&str> = t.nodes["hub"].interfaces.iter().map(|i| i.dev.as_str()).collect();
        assert_eq!(devs, ["to-a-very-long-", "to-a-very-lon-2", "to-a-very-lon-3"]);
    }

    #[test]
    fn the_shortest_way_wins_and_islands_have_no_route() {
        let t = topology(
            "a b c d island",
            "long = [\"a\", \"b\", \"c\", \"d\"]\nshort = [\"a\", \"d\"]",
        );
        assert_eq!(t.path("a", "d").unwrap(), [("a", "to-d")]);
        assert_eq!(t.egress("a", "c"), Some("to-b"));
        assert_eq!(t.egress("a", "island"), None);
        assert_eq!(t.path("a", "island"), None);
        assert_eq!(t.address("island"), None);
    }
}
