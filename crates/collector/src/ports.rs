//! Finds the flow of a socket by its two ports.

use ccbench_proto::wire::{Role, Side};

use crate::FlowPorts;
use crate::diag_request::{PortRange, SocketEnd, ranges};

/// The role of a socket in its flow group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketRole<'a> {
    /// For example "group/0" or "group/control".
    pub flow_id: &'a str,
    /// The group's name.
    pub group: &'a str,
    /// Whether this end sends the data.
    pub side: Side,
    /// Data or control.
    pub role: Role,
}

/// The flow groups of a node. Classifies sockets without allocation.
#[derive(Debug, Clone, Default)]
pub struct PortMap {
    /// Sorted by (listens, server_port).
    groups: Vec<Group>,
}

#[derive(Debug, Clone)]
struct Group {
    ports: FlowPorts,
    data_ids: Vec<String>,
    control_id: String,
}

impl PortMap {
    /// Prepares the names of all sockets. If two groups have the same listener on the same end, the first group wins.
    #[must_use]
    pub fn new(flows: &[FlowPorts]) -> Self {
        let mut groups: Vec<Group> = flows
            .iter()
            .map(|ports| Group {
                ports: ports.clone(),
                data_ids: (0..ports.count)
                    .map(|index| format!("{}/{index}", ports.group))
                    .collect(),
                control_id: format!("{}/control", ports.group),
            })
            .collect();
        groups.sort_by_key(Group::key);
        groups.dedup_by_key(|group| group.key());
        Self { groups }
    }

    /// Returns whether there are no flow groups.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Returns the role of the socket with these ports, or `None` if it belongs to no group.
    #[must_use]
    pub fn classify(&self, sport: u16, dport: u16) -> Option<SocketRole<'_>> {
        self.find(false, dport, sport).or_else(|| self.find(true, sport, dport))
    }

    fn find(&self, listens: bool, server_port: u16, client_port: u16) -> Option<SocketRole<'_>> {
        let at = self.groups.binary_search_by_key(&(listens, server_port), Group::key).ok()?;
        let group = self.groups.get(at)?;
        let data_id = client_port
            .checked_sub(group.ports.client_port)
            .and_then(|index| group.data_ids.get(usize::from(index)));
        Some(SocketRole {
            flow_id: data_id.unwrap_or(&group.control_id),
            group: &group.ports.group,
            side: if listens == group.ports.reverse { Side::Sender } else { Side::Receiver },
            role: if data_id.is_some() { Role::Data } else { Role::Control },
        })
    }

    /// Returns the ports that the kernel's filter must accept.
    pub(crate) fn ranges(&self) -> Vec<PortRange> {
        let of = |listens: bool| -> Vec<u16> {
            self.groups
                .iter()
                .filter(|group| group.ports.listens == listens)
                .map(|group| group.ports.server_port)
                .collect()
        };
        let mut all = ranges(SocketEnd::Destination, &mut of(false));
        all.extend(ranges(SocketEnd::Source, &mut of(true)));
        all
    }
}

impl Group {
    fn key(&self) -> (bool, u16) {
        (self.ports.listens, self.ports.server_port)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn flow(group: &str, server_port: u16, listens: bool, reverse: bool) -> FlowPorts {
        FlowPorts {
            group: group.to_owned(),
            server_port,
            client_port: 40_000,
            count: 2,
            listens,
            reverse,
        }
    }

    #[test]
    fn classifies_sockets_of_the_connecting_end() {
        let map = PortMap::new(&[flow("bulk", 5201, false, false)]);
        let data = map.classify(40_001, 5201).unwrap();
        assert_eq!((data.flow_id, data.group), ("bulk/1", "bulk"));
        assert_eq!((data.side, data.role), (Side::Sender, Role::Data));
        for other in [39_999, 40_002, 60_000] {
            let control = map.classify(other, 5201).unwrap();
            assert_eq!((control.flow_id, control.role), ("bulk/control", Role::Control));
        }
        assert_eq!(map.classify(40_000, 5202), None);
        assert_eq!(map.classify(5201, 40_000), None, "the other end's socket");
    }

    #[test]
    fn classifies_sockets_of_the_listening_end() {
        let map = PortMap::new(&[flow("bulk", 5201, true, false)]);
        let data = map.classify(5201, 40_000).unwrap();
        assert_eq!((data.flow_id, data.side), ("bulk/0", Side::Receiver));
        assert_eq!(map.classify(5201, 51_000).unwrap().role, Role::Control);
        assert_eq!(map.classify(40_000, 5201), None);
    }

    #[test]
    fn reverse_swaps_the_sides() {
        let side = |listens| {
            let map = PortMap::new(&[flow("bulk", 5201, listens, true)]);
            let (sport, dport) = if listens { (5201, 40_000) } else { (40_000, 5201) };
            map.classify(sport, dport).unwrap().side
        };
        assert_eq!(side(true), Side::Sender);
        assert_eq!(side(false), Side::Receiver);
    }

    #[test]
    fn distinguishes_both_ends_on_one_node() {
        let map = PortMap::new(&[
            flow("bulk", 5201, true, false),
            flow("web", 5202, false, false),
            flow("bulk", 5201, false, false),
        ]);
        assert_eq!(map.classify(40_000, 5201).unwrap().side, Side::Sender);
        assert_eq!(map.classify(5201, 40_000).unwrap().side, Side::Receiver);
        assert_eq!(map.classify(40_001, 5202).unwrap().flow_id, "web/1");
        assert_eq!(map.classify(5202, 40_001), None);
    }

    #[test]
    fn data_ports_do_not_wrap() {
        let mut last = flow("bulk", 5201, false, false);
        last.client_port = 65_535;
        last.count = 10;
        let map = PortMap::new(&[last]);
        assert_eq!(map.classify(65_535, 5201).unwrap().flow_id, "bulk/0");
        assert_eq!(map.classify(0, 5201).unwrap().role, Role::Control);
    }

    #[test]
    fn filter_covers_both_ends() {
        let map = PortMap::new(&[
            flow("a", 5201, false, false),
            flow("b", 5202, false, false),
            flow("c", 5203, true, false),
        ]);
        let wanted = map.ranges();
        assert_eq!(wanted.len(), 2);
        assert_eq!(
            (wanted[0].end, wanted[0].low, wanted[0].high),
            (SocketEnd::Destination, 5201, 5202)
        );
        assert_eq!((wanted[1].end, wanted[1].low, wanted[1].high), (SocketEnd::Source, 5203, 5203));
        assert!(PortMap::new(&[]).is_empty());
    }
}
