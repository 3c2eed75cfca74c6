//! Requests about interfaces, and about redirecting the egress of one interface to another.

use nix::errno::Errno;
use nix::net::if_::{if_indextoname, if_nametoindex};

use super::Socket;
use super::message::{ACK, CREATE, Message, NESTED};
use super::tc_message::{TCA_KIND, TCA_OPTIONS};
use crate::ShaperError;

const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
pub(crate) const TC_H_CLSACT: u32 = 0xffff_fff1;
pub(crate) const CLSACT_EGRESS: u32 = 0xffff_fff3;
const TCA_U32_SEL: u16 = 5;
const TCA_U32_ACT: u16 = 7;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_MIRRED_PARMS: u16 = 2;
const TC_ACT_STOLEN: i32 = 4;
const TCA_EGRESS_REDIR: i32 = 1;
const TC_U32_TERMINAL: u8 = 1;

/// Returns the index of an interface in the calling thread's network namespace.
///
/// # Errors
/// [`ShaperError::NotFound`] only if there is no such interface.
pub fn ifindex(name: &str) -> Result<u32, ShaperError> {
    if_nametoindex(name).map_err(|errno| lookup_error(errno, name.to_owned()))
}

/// Returns the index of an interface that may be missing.
///
/// # Errors
/// As [`ShaperError::optional`].
pub fn find_ifindex(name: &str) -> Result<Option<u32>, ShaperError> {
    ShaperError::optional(ifindex(name))
}

/// Returns the name of an interface in the calling thread's network namespace.
///
/// # Errors
/// [`ShaperError::NotFound`] only if there is no such interface.
pub fn ifname(index: u32) -> Result<String, ShaperError> {
    let name = if_indextoname(index).map_err(|errno| lookup_error(errno, format!("#{index}")))?;
    match name.into_string() {
        // nix returns an empty name for an unused index.
        Ok(name) if !name.is_empty() => Ok(name),
        _ => Err(lookup_error(Errno::ENXIO, format!("#{index}"))),
    }
}

/// Any other error of the lookup, such as too many open files, does not mean that the interface is missing.
fn lookup_error(errno: Errno, name: String) -> ShaperError {
    match errno {
        Errno::ENODEV | Errno::ENXIO => ShaperError::NotFound { what: "interface", name },
        other => ShaperError::System { op: "look up an interface", source: other.into() },
    }
}

/// Creates a pair of virtual Ethernet interfaces, both down, in the socket's namespace.
///
/// # Errors
/// The kernel's answer.
pub fn add_veth(socket: &mut Socket, a: &str, b: &str) -> Result<(), ShaperError> {
    let message = Message::new(libc::RTM_NEWLINK, CREATE)
        .ifinfo(0)
        .attr_str(IFLA_IFNAME, a)
        .nested(IFLA_LINKINFO, |m| {
            m.attr_str(IFLA_INFO_KIND, "veth").nested(IFLA_INFO_DATA, |m| {
                m.nested(VETH_INFO_PEER, |m| m.ifinfo(0).attr_str(IFLA_IFNAME, b))
            })
        })
        .finish();
    socket.request("add veth pair", a, &message)
}

/// Removes an interface by name. Removing one end of a veth pair removes both.
///
/// # Errors
/// The kernel's answer.
pub fn delete_link(socket: &mut Socket, name: &str) -> Result<(), ShaperError> {
    let message =
        Message::new(libc::RTM_DELLINK, ACK).ifinfo(0).attr_str(IFLA_IFNAME, name).finish();
    socket.request("remove interface", name, &message)
}

/// Sets an interface up.
///
/// # Errors
/// The kernel's answer.
pub fn set_up(socket: &mut Socket, ifindex: u32) -> Result<(), ShaperError> {
    let up = libc::IFF_UP as u32;
    let message = Message::new(libc::RTM_NEWLINK, ACK).ifinfo_flags(ifindex, up, up).finish();
    socket.request("set up", &format!("interface #{ifindex}"), &message)
}

/// Sets an interface down.
///
/// # Errors
/// The kernel's answer.
pub fn set_down(socket: &mut Socket, ifindex: u32) -> Result<(), ShaperError> {
    let message =
        Message::new(libc::RTM_NEWLINK, ACK).ifinfo_flags(ifindex, 0, libc::IFF_UP as u32).finish();
    socket.request("set down", &format!("interface #{ifindex}"), &message)
}

/// Adds clsact, to which egress filters of an interface attach.
///
/// # Errors
/// The kernel's answer; `EEXIST` if the interface already has one.
pub fn add_clsact(socket: &mut Socket, ifindex: u32) -> Result<(), ShaperError> {
    let message = Message::new(libc::RTM_NEWQDISC, CREATE)
        .tcmsg(ifindex, 0xffff_0000, TC_H_CLSACT, 0)
        .attr_str(TCA_KIND, "clsact")
        .finish();
    socket.request("add qdisc clsact", &format!("interface #{ifindex}"), &message)
}

/// Removes clsact with all its filters.
///
/// # Errors
/// The kernel's answer.
pub fn del_clsact(socket: &mut Socket, ifindex: u32) -> Result<(), ShaperError> {
    let message = Message::new(libc::RTM_DELQDISC, ACK)
        .tcmsg(ifindex, 0xffff_0000, TC_H_CLSACT, 0)
        .attr_str(TCA_KIND, "clsact")
        .finish();
    socket.request("remove qdisc clsact", &format!("interface #{ifindex}"), &message)
}

/// Returns the `info` word of a filter: priority and protocol, the latter in network byte order.
pub(crate) fn filter_info(prio: u16, ethertype: u16) -> u32 {
    (u32::from(prio) << 16) | u32::from(ethertype.to_be())
}

/// Redirects every packet of this EtherType (host byte order; `ETH_P_ALL` = 3) that leaves `ifindex` to the egress of `target`. Needs
/// [`add_clsact`].
///
/// # Errors
/// The kernel's answer.
pub fn add_redirect(
    socket: &mut Socket,
    ifindex: u32,
    ethertype: u16,
    prio: u16,
    target: u32,
) -> Result<(), ShaperError> {
    let message = redirect_filter(ifindex, (prio, ethertype), target, U32Key::default());
    socket.request("add redirect filter", &format!("interface #{ifindex}"), &message)
}

/// `struct tc_u32_key`: matches a packet whose 32 bits at an offset, masked, are a value. The default matches every packet.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct U32Key {
    /// In network byte order.
    pub(crate) mask: [u8; 4],
    /// In network byte order.
    pub(crate) value: [u8; 4],
    /// From the IP header, in bytes.
    pub(crate) offset: i32,
}

/// Returns an egress filter of `ifindex` that redirects the packets that match `key` to the egress of `target`. A filter has a priority and an
/// EtherType (host byte order).
pub(crate) fn redirect_filter(
    ifindex: u32,
    (prio, ethertype): (u16, u16),
    target: u32,
    key: U32Key,
) -> Vec<u8> {
    let mut selector = [0; 32];
    selector[0] = TC_U32_TERMINAL;
    selector[2] = 1;
    selector[16..20].copy_from_slice(&key.mask);
    selector[20..24].copy_from_slice(&key.value);
    selector[24..28].copy_from_slice(&key.offset.to_ne_bytes());
    let mut mirred = [0; 28];
    mirred[8..12].copy_from_slice(&TC_ACT_STOLEN.to_ne_bytes());
    mirred[20..24].copy_from_slice(&TCA_EGRESS_REDIR.to_ne_bytes());
    mirred[24..28].copy_from_slice(&target.to_ne_bytes());
    Message::new(libc::RTM_NEWTFILTER, CREATE)
        .tcmsg(ifindex, 0, CLSACT_EGRESS, filter_info(prio, ethertype))
        .attr_str(TCA_KIND, "u32")
        .nested(TCA_OPTIONS, |m| {
            m.nested(TCA_U32_ACT, |m| {
                m.nested(1, |m| {
                    m.attr_str(TCA_ACT_KIND, "mirred")
                        .nested(TCA_ACT_OPTIONS | NESTED, |m| m.attr(TCA_MIRRED_PARMS, &mirred))
                })
            })
            .attr(TCA_U32_SEL, &selector)
        })
        .finish()
}

/// Removes the filter that [`add_redirect`] added with the same priority and EtherType.
///
/// # Errors
/// The kernel's answer.
pub fn del_redirect(
    socket: &mut Socket,
    ifindex: u32,
    ethertype: u16,
    prio: u16,
) -> Result<(), ShaperError> {
    let message = Message::new(libc::RTM_DELTFILTER, ACK)
        .tcmsg(ifindex, 0, CLSACT_EGRESS, filter_info(prio, ethertype))
        .attr_str(TCA_KIND, "u32")
        .finish();
    socket.request("remove redirect filter", &format!("interface #{ifindex}"), &message)
}
