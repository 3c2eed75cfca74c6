//! The packets of a trial, by addresses and ports.

use std::net::IpAddr;

/// Whose packets belong to a trial, and whose are neither counted as its own nor as foreign. All others are foreign.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnTraffic {
    /// Address and port of every listener of a flow or probe: TCP and UDP to and from it.
    pub services: Vec<(IpAddr, u16)>,
    /// Addresses of the nodes at both ends of flows and probes: ICMP, fragments and other packets without ports.
    pub hosts: Vec<IpAddr>,
    /// Addresses of controllers. Their packets to and from `control_ports` of any address count as neither.
    pub controllers: Vec<IpAddr>,
    /// Ports of the nodes' agents.
    pub control_ports: Vec<u16>,
    /// Addresses of the nodes whose probes resolve names. Their packets to and from port 53 (DNS) count as neither.
    pub resolvers: Vec<IpAddr>,
}
