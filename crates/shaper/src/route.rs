//! Looks up routes and lists interfaces.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ccbench_proto::wire;

use crate::netlink::message::{Attr, Message, attrs, u32_at};
use crate::netlink::{self, ACK, DUMP, Socket};
use crate::{ShaperError, offload};

const RTMSG_BYTES: usize = 12;
const IFADDRMSG_BYTES: usize = 8;
const IFINFO_BYTES: usize = 16;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_QDISC: u16 = 6;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;

/// Returns the egress interface of the route to `address` in the calling thread's network namespace.
///
/// # Errors
/// There is no route.
pub fn egress_dev(address: IpAddr) -> Result<String, ShaperError> {
    egress(address, None)
}

/// Returns the same for packets from `source`, an address of this node: policy routing rules may select by source.
///
/// # Errors
/// There is no route, or the addresses belong to different families.
pub fn egress_dev_from(address: IpAddr, source: IpAddr) -> Result<String, ShaperError> {
    egress(address, Some(source))
}

fn octets(address: IpAddr) -> (i32, Vec<u8>) {
    match address {
        IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    }
}

fn egress(address: IpAddr, source: Option<IpAddr>) -> Result<String, ShaperError> {
    let (family, to) = octets(address);
    let from = source.map(|source| octets(source).1);
    let mut fixed = [0; RTMSG_BYTES];
    fixed[0] = family as u8;
    fixed[1] = (to.len() * 8) as u8;
    fixed[2] = from.as_ref().map_or(0, |from| (from.len() * 8) as u8);
    let mut message = Message::new(libc::RTM_GETROUTE, ACK).raw(&fixed).attr(RTA_DST, &to);
    if let Some(from) = from {
        message = message.attr(RTA_SRC, &from);
    }
    let message = message.finish();
    let mut index = None;
    Socket::open()?
        .request_reply("find the route to", &address.to_string(), &message, |_, body| {
            index = egress_index(body);
        })
        .map_err(|error| {
            let no_route = error.is_errno(libc::ENETUNREACH) || error.is_errno(libc::EHOSTUNREACH);
            if no_route { no_route_to(address) } else { error }
        })?;
    netlink::ifname(index.ok_or_else(|| no_route_to(address))?)
}

/// Parses the body of an `RTM_NEWROUTE` message: the index of the egress interface.
pub(crate) fn egress_index(body: &[u8]) -> Option<u32> {
    let attributes = attrs(body.get(RTMSG_BYTES..)?);
    attributes.find_kind(RTA_OIF).and_then(|value| u32_at(value, 0))
}

fn no_route_to(address: IpAddr) -> ShaperError {
    ShaperError::NotFound { what: "route to an address", name: address.to_string() }
}

/// Returns all interfaces of the calling thread's network namespace, by index.
///
/// # Errors
/// The kernel's answer.
pub fn interfaces() -> Result<Vec<wire::Interface>, ShaperError> {
    let mut socket = Socket::open()?;
    let mut found = BTreeMap::new();
    let message = Message::new(libc::RTM_GETLINK, DUMP).ifinfo(0).finish();
    socket.dump(&message, |body| {
        if let Some(interface) = interface(body) {
            found.insert(interface.index, interface);
        }
    })?;
    let message = Message::new(libc::RTM_GETADDR, DUMP).raw(&[0; IFADDRMSG_BYTES]).finish();
    socket.dump(&message, |body| {
        if let Some((index, text)) = address(body)
            && let Some(interface) = found.get_mut(&index)
        {
            interface.addresses.push(text);
        }
    })?;
    let mut interfaces: Vec<_> = found.into_values().collect();
    for interface in &mut interfaces {
        // Only informative: false on a kernel without the ethtool netlink family.
        let offloads = offload::get(&interface.name).unwrap_or_default();
        (interface.tso, interface.gso, interface.gro) = (offloads.tso, offloads.gso, offloads.gro);
        if interface.driver.is_empty() {
            interface.driver = driver(&interface.name, interface.index);
        }
    }
    Ok(interfaces)
}

/// Parses the body of an `RTM_NEWLINK` message. The driver of a virtual interface is its kind.
pub(crate) fn interface(body: &[u8]) -> Option<wire::Interface> {
    let mut interface = wire::Interface {
        index: u32_at(body, 4)?,
        up: u32_at(body, 8)? & libc::IFF_UP as u32 != 0,
        ..wire::Interface::default()
    };
    for attr in attrs(body.get(IFINFO_BYTES..)?) {
        match attr.kind {
            IFLA_IFNAME => interface.name = attr.text(),
            IFLA_MTU => interface.mtu_bytes = u32_at(attr.value, 0)?,
            IFLA_QDISC => interface.root_qdisc = attr.text(),
            IFLA_LINKINFO => {
                let kind = attr.attrs().find(|a| a.kind == IFLA_INFO_KIND);
                interface.driver = kind.map(|a| a.text()).unwrap_or_default();
            }
            _ => {}
        }
    }
    Some(interface)
}

/// Parses the body of an `RTM_NEWADDR` message: interface index and `address/prefix`.
pub(crate) fn address(body: &[u8]) -> Option<(u32, String)> {
    let prefix = body.get(1)?;
    let index = u32_at(body, 4)?;
    let attributes = attrs(body.get(IFADDRMSG_BYTES..)?);
    // On a point-to-point interface, IFA_ADDRESS is the peer's address. IPv6 has IFA_LOCAL only there.
    let local = attributes.clone().find(|a| a.kind == IFA_LOCAL);
    let attr = local.or_else(|| attributes.clone().find(|a| a.kind == IFA_ADDRESS))?;
    Some((index, format!("{}/{prefix}", ip(attr)?)))
}

fn ip(attr: Attr<'_>) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(attr.value) {
        return Some(octets.into());
    }
    <[u8; 16]>::try_from(attr.value).ok().map(IpAddr::from)
}

/// Returns the driver of a physical interface, from sysfs. The index must match, because sysfs may belong to another network namespace.
fn driver(name: &str, index: u32) -> String {
    let dir = std::path::Path::new("/sys/class/net").join(name);
    let known = std::fs::read_to_string(dir.join("ifindex")).unwrap_or_default();
    if known.trim() != index.to_string() {
        return String::new();
    }
    let link = std::fs::read_link(dir.join("device/driver")).unwrap_or_default();
    link.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_address_uses_lo() {
        assert_eq!(egress_dev("127.0.0.1".parse().unwrap()).unwrap(), "lo");
        let local = "127.0.0.1".parse().unwrap();
        assert_eq!(egress_dev_from("127.0.0.2".parse().unwrap(), local).unwrap(), "lo");
        let lo = interfaces().unwrap().into_iter().find(|i| i.name == "lo").unwrap();
        assert!(lo.up);
        assert!(lo.addresses.iter().any(|a| a == "127.0.0.1/8"), "{lo:?}");
        assert_eq!((lo.index, lo.mtu_bytes), (1, 65_536));
        assert_eq!(lo.root_qdisc, "noqueue");
    }
}
