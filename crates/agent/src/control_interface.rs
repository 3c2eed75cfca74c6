//! The interfaces that carry a controller's connection: those of the routes to it, and the interfaces beneath. A link
//! on one of them could cut the controller off.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ccbench_shaper::{ShaperError, netlink, route, stack};

/// A controller that is connected over a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The controller's address.
    pub ip: IpAddr,
    /// The address of this node that the controller is connected to.
    pub local: Option<IpAddr>,
    /// The interface's index if the address is an IPv6 link-local one; otherwise 0.
    pub scope_id: u32,
}

impl Peer {
    /// Returns a peer of which only the address is known.
    pub fn at(ip: IpAddr) -> Self {
        Self { ip, local: None, scope_id: 0 }
    }
}

/// Returns the interfaces that packets to `peer` may use, in the calling thread's network namespace: that of the route
/// to its address, that of the route from the local address, which policy rules may select, and the interfaces beneath
/// a VLAN, bridge or bond. The set is empty if there is no route.
///
/// # Errors
/// The kernel refused.
pub fn devices(peer: &Peer) -> Result<BTreeSet<String>, ShaperError> {
    let stack = stack::interfaces()?;
    let routes = routes(peer)?;
    Ok(routes.iter().flat_map(|dev| stack::lower_devices(dev, &stack)).collect())
}

fn routes(peer: &Peer) -> Result<BTreeSet<String>, ShaperError> {
    if peer.scope_id != 0 {
        return Ok(ShaperError::optional(netlink::ifname(peer.scope_id))?.into_iter().collect());
    }
    let mut devices = BTreeSet::new();
    devices.extend(ShaperError::optional(route::egress_dev(peer.ip))?);
    if let Some(local) = peer.local {
        // An address that is no longer this node's has no route.
        devices.extend(route::egress_dev_from(peer.ip, local).ok());
    }
    Ok(devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_on_this_machine_uses_loopback() {
        let local = "127.0.0.1".parse().unwrap();
        let peer = Peer { local: Some(local), ..Peer::at(local) };
        assert_eq!(devices(&peer).unwrap(), BTreeSet::from(["lo".to_owned()]));
    }

    #[test]
    fn a_link_local_peer_uses_the_interface_of_its_address() {
        let peer = Peer { scope_id: 1, ..Peer::at("fe80::1".parse().unwrap()) };
        assert_eq!(devices(&peer).unwrap(), BTreeSet::from(["lo".to_owned()]));
        let gone = Peer { scope_id: 0x7fff_fff0, ..peer };
        assert_eq!(devices(&gone).unwrap(), BTreeSet::new());
    }
}
