//! A link between two interfaces, like a cable: frames received on one interface are sent on the other.
//!
//! ```text
//! left ─→ packet socket → datapath (forward, own thread)  → packet socket ─→ right
//! left ←─ packet socket ← datapath (backward, own thread) ← packet socket ←─ right
//! ```
//!
//! Every frame passes through, whatever its protocol, addresses and VLAN tags. Each direction is a [`UserLink`]. The only change in the
//! kernel is that the interfaces are in promiscuous mode, until the process ends. They should have no addresses, because the node's own
//! kernel also receives the frames and would answer those that are addressed to it.

use std::os::fd::AsFd;

use ccbench_proto::resolve::LinkConfig;

use super::spec::spec_of;
use super::veth_redirect::{Interface, ethernet_interface};
use super::{PacketSource, RxEnd, TxEnd, UserLink, reading_socket, system};
use crate::netlink::Socket;
use crate::{ShaperError, sys};

/// Both directions of a link between two interfaces. Each is a [`crate::Link`] whose `dev` is the sending interface, and is undone by
/// [`crate::Link::remove`] or by dropping it.
pub struct Bridge {
    /// From the left interface to the right one.
    pub forward: UserLink,
    /// From the right interface to the left one.
    pub backward: UserLink,
}

/// Connects two Ethernet interfaces of the calling thread's network namespace by a link. Needs `CAP_NET_RAW` there.
///
/// # Errors
/// [`ShaperError::Unsupported`] if both interfaces are the same, for interfaces that are not Ethernet, and for what [`UserLink::open`] does
/// not support; [`ShaperError::NotFound`]; errors of the kernel.
pub fn bridge(
    left: &str,
    right: &str,
    forward: &LinkConfig,
    backward: &LinkConfig,
) -> Result<Bridge, ShaperError> {
    let mut socket = Socket::open()?;
    let left = ethernet_interface(&mut socket, &forward.name, left)?;
    let right = ethernet_interface(&mut socket, &backward.name, right)?;
    if left.index == right.index {
        return Err(ShaperError::Unsupported {
            link: forward.name.clone(),
            backend: "userspace",
            what: format!("a link with {} at both ends", left.name),
            hint: "name two interfaces".to_owned(),
        });
    }
    Ok(Bridge {
        forward: direction(&left, &right, forward)?,
        backward: direction(&right, &left, backward)?,
    })
}

fn direction(
    from: &Interface,
    to: &Interface,
    config: &LinkConfig,
) -> Result<UserLink, ShaperError> {
    let spec = spec_of(config)?;
    let rx = reading_socket(from.index)?;
    sys::set_promiscuous(rx.as_fd(), from.index).map_err(system("enable promiscuous mode"))?;
    let rx_end = RxEnd { rx, own_address: None };
    let mtu_bytes = from.mtu_bytes.max(to.mtu_bytes);
    let tx_end = TxEnd { dev: &to.name, ifindex: to.index, mtu_bytes };
    let mut link = UserLink::start(config, spec, rx_end, &tx_end)?;
    link.source = PacketSource::Bridged { from: from.name.clone() };
    Ok(link)
}
