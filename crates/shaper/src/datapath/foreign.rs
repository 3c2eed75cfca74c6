//! Tells packets of the trial from foreign ones, by addresses and ports.

use std::net::{IpAddr, Ipv6Addr};

use ccbench_proto::resolve::OwnTraffic;

use super::counters::Counters;
use super::header::Fields;

/// Whether it is IPv6, and its bits. An IPv4 address is in the lowest 32 bits.
type Address = (bool, u128);

const DNS_PORT: u16 = 53;

/// Whose packet it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// A flow's or a probe's.
    Trial,
    /// Of something that every trial may need beside its flows and probes: ccbench's control connections, the name look-ups of probes, and
    /// IPv6 neighbour discovery. Such packets do not prove that the addresses of flows are known here.
    Auxiliary,
    /// Of something else.
    Foreign,
}

/// The packets of a trial. The lists are sorted.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnPackets {
    services: Vec<(Address, u16)>,
    hosts: Vec<Address>,
    controllers: Vec<Address>,
    control_ports: Vec<u16>,
    resolvers: Vec<Address>,
}

impl OwnPackets {
    pub(crate) fn new(traffic: &OwnTraffic) -> Self {
        let addresses = |ips: &[IpAddr]| sorted(ips.iter().copied().map(address));
        let services = traffic.services.iter().map(|&(ip, port)| (address(ip), port));
        Self {
            services: sorted(services),
            hosts: addresses(&traffic.hosts),
            controllers: addresses(&traffic.controllers),
            control_ports: sorted(traffic.control_ports.iter().copied()),
            resolvers: addresses(&traffic.resolvers),
        }
    }

    /// Counts an Ethernet frame with these fields (`None`: not IP) and this size.
    #[inline]
    pub(crate) fn count(&self, fields: Option<&Fields>, bytes: u64, counters: &mut Counters) {
        match fields.map_or(Origin::Foreign, |fields| self.origin(fields)) {
            Origin::Trial => counters.own_pkts += 1,
            Origin::Auxiliary => {}
            Origin::Foreign => {
                counters.foreign_pkts += 1;
                counters.foreign_bytes += bytes;
            }
        }
    }

    fn origin(&self, fields: &Fields) -> Origin {
        if self.is_of_trial(fields) {
            Origin::Trial
        } else if self.is_control(fields) || self.is_look_up(fields) || is_neighbour(fields) {
            Origin::Auxiliary
        } else {
            Origin::Foreign
        }
    }

    fn is_of_trial(&self, fields: &Fields) -> bool {
        let (src, dst) = ((fields.v6, fields.src), (fields.v6, fields.dst));
        match fields.ports {
            Some([sport, dport]) => {
                contains(&self.services, &(dst, dport)) || contains(&self.services, &(src, sport))
            }
            None => {
                let is_of_host = contains(&self.hosts, &src) || contains(&self.hosts, &dst);
                is_of_host && !is_neighbour(fields)
            }
        }
    }

    /// Whether it is a packet between a controller and an agent.
    fn is_control(&self, fields: &Fields) -> bool {
        is_of_client(&self.controllers, fields, |port| contains(&self.control_ports, &port))
    }

    /// Whether it is a DNS query of a probe, or its answer.
    fn is_look_up(&self, fields: &Fields) -> bool {
        is_of_client(&self.resolvers, fields, |port| port == DNS_PORT)
    }
}

/// Whether a packet goes from one of these addresses to such a port, or comes back from it.
fn is_of_client(clients: &[Address], fields: &Fields, is_port: impl Fn(u16) -> bool) -> bool {
    let Some([sport, dport]) = fields.ports else { return false };
    let is_client = |ip: u128| contains(clients, &(fields.v6, ip));
    (is_port(dport) && is_client(fields.src)) || (is_port(sport) && is_client(fields.dst))
}

/// Whether it may be IPv6 neighbour discovery: a packet without ports from or to a link-local address, which no router forwards.
fn is_neighbour(fields: &Fields) -> bool {
    let is_link_local = |bits: u128| Ipv6Addr::from_bits(bits).is_unicast_link_local();
    fields.v6 && fields.ports.is_none() && (is_link_local(fields.src) || is_link_local(fields.dst))
}

fn contains<T: Ord>(sorted: &[T], wanted: &T) -> bool {
    sorted.binary_search(wanted).is_ok()
}

fn sorted<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable();
    values
}

fn address(ip: IpAddr) -> Address {
    match ip {
        IpAddr::V4(four) => (false, u128::from(four.to_bits())),
        IpAddr::V6(six) => (true, six.to_bits()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::header;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn own() -> OwnPackets {
        OwnPackets::new(&OwnTraffic {
            services: vec![(ip("10.0.0.2"), 5201), (ip("fd00::2"), 5202), (ip("10.0.0.1"), 6400)],
            hosts: vec![ip("10.0.0.2"), ip("10.0.0.1"), ip("fd00::2")],
            controllers: vec![ip("10.0.0.9")],
            control_ports: vec![7701, 7700],
            resolvers: vec![ip("10.0.0.1")],
        })
    }

    fn fields(src: &str, dst: &str, ports: Option<[u16; 2]>) -> Fields {
        let ((v6, src), (_, dst)) = (address(ip(src)), address(ip(dst)));
        Fields { v6, src, dst, ports, dscp: 0, ecn: 0 }
    }

    fn origin(src: &str, dst: &str, ports: Option<[u16; 2]>) -> Origin {
        own().origin(&fields(src, dst, ports))
    }

    fn is_own(src: &str, dst: &str, ports: Option<[u16; 2]>) -> bool {
        origin(src, dst, ports) == Origin::Trial
    }

    #[test]
    fn both_directions_of_a_listener_are_own_and_other_ports_are_not() {
        assert!(is_own("10.0.0.1", "10.0.0.2", Some([10_000, 5201])));
        assert!(is_own("10.0.0.2", "10.0.0.1", Some([5201, 10_000])));
        assert!(is_own("10.0.0.2", "10.0.0.1", Some([40_000, 6400])));
        assert!(is_own("fd00::1", "fd00::2", Some([1, 5202])));
        assert!(!is_own("fd00::1", "fd00::2", Some([1, 5201])), "the port of another address");
        assert!(!is_own("10.0.0.1", "10.0.0.2", Some([5201, 22])), "ssh");
        assert!(!is_own("10.0.0.1", "10.0.0.3", Some([10_000, 5201])), "another experiment");
    }

    #[test]
    fn packets_without_ports_are_own_by_their_addresses() {
        assert!(is_own("10.0.0.1", "10.0.0.2", None));
        assert!(is_own("10.0.0.7", "10.0.0.2", None), "a node may have more addresses");
        assert!(!is_own("10.0.0.7", "10.0.0.8", None));
    }

    #[test]
    fn control_connections_of_any_agent_are_neither_own_nor_foreign() {
        for port in [7700, 7701] {
            let to = origin("10.0.0.9", "10.0.0.8", Some([50_000, port]));
            let from = origin("10.0.0.8", "10.0.0.9", Some([port, 50_000]));
            assert_eq!((to, from), (Origin::Auxiliary, Origin::Auxiliary), "{port}");
        }
        let foreign = [
            ("10.0.0.9", "10.0.0.8", Some([50_000, 22])),
            ("10.0.0.9", "10.0.0.8", Some([7700, 22])),
            ("10.0.0.7", "10.0.0.8", Some([50_000, 7700])),
            ("10.0.0.9", "10.0.0.8", None),
        ];
        for (src, dst, ports) in foreign {
            assert_eq!(origin(src, dst, ports), Origin::Foreign, "{src} {dst} {ports:?}");
        }
    }

    #[test]
    fn look_ups_of_probes_are_neither_own_nor_foreign() {
        assert_eq!(origin("10.0.0.1", "10.9.9.9", Some([40_000, 53])), Origin::Auxiliary);
        assert_eq!(origin("10.9.9.9", "10.0.0.1", Some([53, 40_000])), Origin::Auxiliary);
        assert_eq!(origin("10.0.0.2", "10.9.9.9", Some([40_000, 53])), Origin::Foreign);
        assert_eq!(origin("10.0.0.1", "10.9.9.9", Some([53, 40_000])), Origin::Foreign);
    }

    #[test]
    fn neighbour_discovery_is_neither_own_nor_foreign() {
        assert_eq!(origin("fe80::1", "fe80::2", None), Origin::Auxiliary);
        assert_eq!(origin("fe80::1", "fd00::2", None), Origin::Auxiliary, "to a host");
        assert_eq!(origin("fd00::7", "fe80::1", None), Origin::Auxiliary);
        assert_eq!(origin("fe80::1", "fe80::2", Some([546, 547])), Origin::Foreign);
        assert_eq!(origin("fd00::7", "fd00::8", None), Origin::Foreign);
    }

    #[test]
    fn frames_are_counted_once_with_their_bytes() {
        let mut counters = Counters::default();
        let mut count = |frame: &[u8]| {
            own().count(header::fields(frame).as_ref(), frame.len() as u64, &mut counters);
            counters
        };
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend([10, 0, 0, 9, 10, 0, 0, 2, 0x30, 0x39, 0x1e, 0x14]);
        frame.resize(60, 0);
        assert_eq!(count(&frame), Counters::default(), "the controller to port 7700");
        frame[29] = 1;
        frame[36..38].copy_from_slice(&[0x14, 0x51]);
        let counted = count(&frame);
        assert_eq!((counted.own_pkts, counted.foreign_pkts), (1, 0));
        frame[37] = 0x53;
        count(&frame);
        let arp = [[0; 12].as_slice(), &[8, 6], &[0; 28]].concat();
        let counted = count(&arp);
        assert_eq!((counted.own_pkts, counted.foreign_pkts), (1, 2));
        assert_eq!(counted.foreign_bytes, 60 + 42);
    }
}
