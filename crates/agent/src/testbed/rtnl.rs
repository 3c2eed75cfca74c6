//! rtnetlink requests that build a testbed, one at a time.

use std::net::Ipv4Addr;
use std::os::fd::RawFd;

use ccbench_proto::topology::{Interface, Route};
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::error::TestbedError;
use crate::rtnetlink::Requests;

/// The loopback interface's index in every namespace.
pub const LO: u32 = 1;
/// Index of a node's first wire. Some kernels create tunnel devices right after `lo`.
pub const FIRST: u32 = 100;
const PREFIX_LEN: u8 = 24;

/// A socket of the namespace in which it was opened, whichever thread uses it.
#[derive(Debug)]
pub struct Rtnl {
    requests: Requests,
}

/// One end of a wire to create.
#[derive(Debug, Clone, Copy)]
pub struct VethEnd<'a> {
    /// Its name and addresses.
    pub interface: &'a Interface,
    /// Its index in its namespace.
    pub index: u32,
    /// Its namespace.
    pub netns: RawFd,
}

impl Rtnl {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// The kernel refused a socket.
    pub fn open() -> Result<Self, TestbedError> {
        let requests = Requests::open().map_err(|source| TestbedError::Netlink {
            operation: "open an rtnetlink socket".into(),
            source,
        })?;
        Ok(Self { requests })
    }

    /// Creates a veth pair. Each end is in its own namespace from the start.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn add_wire(&mut self, a: VethEnd<'_>, b: VethEnd<'_>) -> Result<(), TestbedError> {
        let mut message = end_message(a);
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(end_message(b)))),
        ]));
        let create = NLM_F_CREATE | NLM_F_EXCL;
        self.request(RouteNetlinkMessage::NewLink(message), create, || {
            format!("make the wire {} - {} (veth)", b.interface.peer, a.interface.peer)
        })
    }

    /// Configures an interface: address, neighbour, up.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn configure(&mut self, interface: &Interface, index: u32) -> Result<(), TestbedError> {
        let create = NLM_F_CREATE | NLM_F_EXCL;
        let dev = &interface.dev;
        self.request(
            RouteNetlinkMessage::NewAddress(address_message(interface.address, index)),
            create,
            || format!("add address {}/{PREFIX_LEN} to {dev}", interface.address),
        )?;
        self.set_up(index, dev)?;
        let neighbour = neighbour_message(interface, index);
        self.request(RouteNetlinkMessage::NewNeighbour(neighbour), create, || {
            format!("add neighbour {} to {dev}", interface.peer_address)
        })
    }

    /// Sets an interface up.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn set_up(&mut self, index: u32, dev: &str) -> Result<(), TestbedError> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.request(RouteNetlinkMessage::NewLink(message), 0, || format!("set {dev} up"))
    }

    /// Adds a route.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn add_route(&mut self, route: &Route, index: u32) -> Result<(), TestbedError> {
        let message = RouteNetlinkMessage::NewRoute(route_message(route, index));
        self.request(message, NLM_F_CREATE | NLM_F_EXCL, || {
            format!("add route {}/{PREFIX_LEN} via {} dev {}", route.subnet, route.via, route.dev)
        })
    }

    /// Sends one request and waits for its acknowledgement.
    fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
        operation: impl FnOnce() -> String,
    ) -> Result<(), TestbedError> {
        self.requests
            .exchange(message, NLM_F_ACK | flags, |_| {})
            .map_err(|source| TestbedError::Netlink { operation: operation(), source })
    }
}

fn end_message(end: VethEnd<'_>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = end.index;
    message.attributes = vec![
        LinkAttribute::IfName(end.interface.dev.clone()),
        LinkAttribute::Address(end.interface.mac.to_vec()),
        LinkAttribute::NetNsFd(end.netns),
    ];
    message
}

fn address_message(address: Ipv4Addr, index: u32) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.prefix_len = PREFIX_LEN;
    message.header.scope = AddressScope::Universe;
    message.header.index = index;
    message.attributes = vec![
        AddressAttribute::Local(address.into()),
        AddressAttribute::Address(address.into()),
        AddressAttribute::Broadcast(address | Ipv4Addr::from(u32::MAX >> PREFIX_LEN)),
    ];
    message
}

/// The entry is permanent, so that no ARP mixes with the measured packets, where a full queue could drop it.
fn neighbour_message(interface: &Interface, index: u32) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.ifindex = index;
    message.header.state = NeighbourState::Permanent;
    message.header.kind = RouteType::Unspec;
    message.attributes = vec![
        NeighbourAttribute::Destination(NeighbourAddress::Inet(interface.peer_address)),
        NeighbourAttribute::LinkLayerAddress(interface.peer_mac.to_vec()),
    ];
    message
}

fn route_message(route: &Route, index: u32) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    message.header.destination_prefix_length = PREFIX_LEN;
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::Static;
    message.header.scope = RouteScope::Universe;
    message.header.kind = RouteType::Unicast;
    message.attributes = vec![
        RouteAttribute::Destination(RouteAddress::Inet(route.subnet)),
        RouteAttribute::Gateway(RouteAddress::Inet(route.via)),
        RouteAttribute::Oif(index),
    ];
    message
}
