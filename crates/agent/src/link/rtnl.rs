//! rtnetlink for the command's network. A socket belongs to the namespace in which it was opened.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::RawFd;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
    RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::error::LinkError;
use crate::rtnetlink::Requests;

/// A socket for one namespace.
#[derive(Debug)]
pub(crate) struct Rtnl {
    requests: Requests,
}

/// The current state of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Device {
    /// Its name.
    pub(crate) name: String,
    /// Its index in its namespace.
    pub(crate) index: u32,
    /// The largest packet that it carries, in bytes.
    pub(crate) mtu_bytes: u32,
    /// Its Ethernet address; empty for interfaces without one.
    pub(crate) mac: Vec<u8>,
    /// Whether it is up.
    pub(crate) up: bool,
}

impl Rtnl {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// The kernel refused a socket.
    pub(crate) fn open() -> Result<Self, LinkError> {
        let requests = Requests::open().map_err(LinkError::system("open an rtnetlink socket"))?;
        Ok(Self { requests })
    }

    /// Returns all interfaces.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn devices(&mut self) -> Result<Vec<Device>, LinkError> {
        let message = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let mut found = Vec::new();
        self.request(
            message,
            NLM_F_DUMP,
            || "read the interfaces".to_owned(),
            |answer| {
                if let RouteNetlinkMessage::NewLink(link) = answer {
                    found.push(device(link));
                }
            },
        )?;
        Ok(found)
    }

    /// Returns the interface with this name.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn device(&mut self, name: &str) -> Result<Option<Device>, LinkError> {
        Ok(self.devices()?.into_iter().find(|device| device.name == name))
    }

    /// Returns the destinations of all IPv4 routes in all tables, with their prefix lengths.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn routes(&mut self) -> Result<Vec<(Ipv4Addr, u8)>, LinkError> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        let message = RouteNetlinkMessage::GetRoute(message);
        let mut found = Vec::new();
        self.request(
            message,
            NLM_F_DUMP,
            || "read the routes".to_owned(),
            |answer| {
                let RouteNetlinkMessage::NewRoute(route) = answer else { return };
                for attribute in &route.attributes {
                    if let RouteAttribute::Destination(RouteAddress::Inet(to)) = attribute {
                        found.push((*to, route.header.destination_prefix_length));
                    }
                }
            },
        )?;
        Ok(found)
    }

    /// Creates a veth pair: `name` here, `peer` in the namespace `peer_netns`.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn add_pair(
        &mut self,
        name: &str,
        peer: &str,
        peer_netns: RawFd,
    ) -> Result<(), LinkError> {
        let mut far = LinkMessage::default();
        far.attributes =
            vec![LinkAttribute::IfName(peer.to_owned()), LinkAttribute::NetNsFd(peer_netns)];
        let mut near = LinkMessage::default();
        near.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(far))),
            ]),
        ];
        let operation = || format!("make the interfaces {name} and {peer} (veth)");
        self.create(RouteNetlinkMessage::NewLink(near), operation)
    }

    /// Removes an interface, and its peer with it.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn remove(&mut self, name: &str) -> Result<(), LinkError> {
        let mut message = LinkMessage::default();
        message.attributes = vec![LinkAttribute::IfName(name.to_owned())];
        let operation = || format!("remove {name}");
        self.request(RouteNetlinkMessage::DelLink(message), NLM_F_ACK, operation, |_| {})
    }

    /// Sets an interface up.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn set_up(&mut self, device: &Device) -> Result<(), LinkError> {
        let mut message = LinkMessage::default();
        message.header.index = device.index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        let operation = || format!("set {} up", device.name);
        self.request(RouteNetlinkMessage::NewLink(message), NLM_F_ACK, operation, |_| {})
    }

    /// Adds an address to an interface without duplicate address detection.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn add_address(
        &mut self,
        device: &Device,
        address: IpAddr,
        prefix: u8,
    ) -> Result<(), LinkError> {
        let mut message = AddressMessage::default();
        message.header.family = family(address);
        message.header.prefix_len = prefix;
        message.header.scope = AddressScope::Universe;
        message.header.index = device.index;
        message.attributes =
            vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
        if address.is_ipv6() {
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        let operation = || format!("add address {address}/{prefix} to {}", device.name);
        self.create(RouteNetlinkMessage::NewAddress(message), operation)
    }

    /// Adds a route to `to/prefix` through `via`, which need not be reachable yet.
    ///
    /// # Errors
    /// The kernel refused; see [`is_taken`] for a route that exists.
    pub(crate) fn add_route(
        &mut self,
        device: &Device,
        to: IpAddr,
        prefix: u8,
        via: IpAddr,
    ) -> Result<(), LinkError> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(to);
        message.header.destination_prefix_length = prefix;
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.scope = RouteScope::Universe;
        message.header.flags = RouteFlags::Onlink;
        message.header.kind = RouteType::Unicast;
        message.attributes =
            vec![RouteAttribute::Oif(device.index), RouteAttribute::Gateway(route_address(via))];
        if prefix > 0 {
            message.attributes.push(RouteAttribute::Destination(route_address(to)));
        }
        let operation = || format!("add route {to}/{prefix} to {}", device.name);
        self.create(RouteNetlinkMessage::NewRoute(message), operation)
    }

    /// Adds a permanent neighbour entry.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn add_neighbour(
        &mut self,
        device: &Device,
        address: IpAddr,
        mac: &[u8],
    ) -> Result<(), LinkError> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(address);
        message.header.ifindex = device.index;
        message.header.state = NeighbourState::Permanent;
        message.header.kind = RouteType::Unspec;
        let destination = match address {
            IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
            IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
        };
        message.attributes = vec![
            NeighbourAttribute::Destination(destination),
            NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
        ];
        let operation = || format!("add neighbour {address} to {}", device.name);
        self.create(RouteNetlinkMessage::NewNeighbour(message), operation)
    }

    fn create(
        &mut self,
        message: RouteNetlinkMessage,
        operation: impl FnOnce() -> String,
    ) -> Result<(), LinkError> {
        self.request(message, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, operation, |_| {})
    }

    fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
        operation: impl FnOnce() -> String,
        each: impl FnMut(&RouteNetlinkMessage),
    ) -> Result<(), LinkError> {
        self.requests
            .exchange(message, flags, each)
            .map_err(|source| LinkError::Netlink { operation: operation(), source })
    }
}

/// Whether the kernel refused because the object exists (`EEXIST`).
pub(crate) fn is_taken(error: &LinkError) -> bool {
    matches!(error, LinkError::Netlink { source, .. } if source.kind() == io::ErrorKind::AlreadyExists)
}

fn device(link: &LinkMessage) -> Device {
    let mut device = Device {
        name: String::new(),
        index: link.header.index,
        mtu_bytes: 0,
        mac: Vec::new(),
        up: link.header.flags.contains(LinkFlags::Up),
    };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => device.name.clone_from(name),
            LinkAttribute::Mtu(bytes) => device.mtu_bytes = *bytes,
            LinkAttribute::Address(mac) => device.mac.clone_from(mac),
            _ => {}
        }
    }
    device
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn route_address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(v4) => RouteAddress::Inet(v4),
        IpAddr::V6(v6) => RouteAddress::Inet6(v6),
    }
}

/// Returns the unspecified address of a family, for a default route.
pub(crate) fn unspecified(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}
