//! Resolves a class's match, which names nodes and flow groups, to fields of packet headers.

use std::net::IpAddr;

use crate::plan::Match;

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
    /// ECN field, 0 to 3.
    pub ecn: Option<u8>,
}

/// The addresses of a flow group's connections, and the listener's port.
pub(crate) struct FlowAddress {
    pub(crate) from_ip: IpAddr,
    pub(crate) to_ip: IpAddr,
    pub(crate) server_port: u16,
}

/// Resolves a class's match to header fields. A packet matches if all fields of any of the returned alternatives match. Empty if
/// the given keys contradict each other. `address` and `flow` look up names of nodes and flow groups.
pub(crate) fn packet_matches(
    wanted: &Match,
    address: &impl Fn(&str) -> IpAddr,
    flow: &impl Fn(&str) -> Option<FlowAddress>,
) -> Vec<PacketMatch> {
    let fixed = PacketMatch {
        src: wanted.from.as_deref().map(address),
        dst: wanted.to.as_deref().map(address),
        dscp: wanted.dscp,
        ecn: wanted.ecn.map(|ecn| ecn as u8),
        ..PacketMatch::default()
    };
    let either_end = |port: u16| {
        [
            PacketMatch { sport: Some(port), ..PacketMatch::default() },
            PacketMatch { dport: Some(port), ..PacketMatch::default() },
        ]
    };
    let mut all = vec![fixed];
    if let Some(group) = &wanted.flow {
        let both_ways = flow(group).map(|FlowAddress { from_ip, to_ip, server_port }| {
            [
                PacketMatch {
                    src: Some(from_ip),
                    dst: Some(to_ip),
                    dport: Some(server_port),
                    ..PacketMatch::default()
                },
                PacketMatch {
                    src: Some(to_ip),
                    dst: Some(from_ip),
                    sport: Some(server_port),
                    ..PacketMatch::default()
                },
            ]
        });
        all = both(&all, both_ways.as_ref().map_or(&[][..], |both_ways| both_ways));
    }
    if let Some(port) = wanted.port {
        all = both(&all, &either_end(port));
    }
    all
}

/// Combines every pair that does not contradict itself into one match.
fn both(left: &[PacketMatch], right: &[PacketMatch]) -> Vec<PacketMatch> {
    fn one<T: PartialEq + Copy>(a: Option<T>, b: Option<T>) -> Option<Option<T>> {
        match (a, b) {
            (Some(a), Some(b)) if a != b => None,
            (a, b) => Some(a.or(b)),
        }
    }
    let pair = |a: &PacketMatch, b: &PacketMatch| {
        Some(PacketMatch {
            src: one(a.src, b.src)?,
            dst: one(a.dst, b.dst)?,
            sport: one(a.sport, b.sport)?,
            dport: one(a.dport, b.dport)?,
            dscp: one(a.dscp, b.dscp)?,
            ecn: one(a.ecn, b.ecn)?,
        })
    };
    left.iter().flat_map(|a| right.iter().filter_map(move |b| pair(a, b))).collect()
}
