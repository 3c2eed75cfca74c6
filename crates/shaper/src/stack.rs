//! How interfaces are stacked: VLANs, bridges, bonds and the like, and the interfaces beneath them that carry their packets.

use std::collections::BTreeSet;

use crate::ShaperError;
use crate::netlink::message::{Message, attrs, u32_at};
use crate::netlink::{DUMP, Socket};

const IFINFO_BYTES: usize = 16;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_INFO_KIND: u16 = 1;
/// Kinds whose `IFLA_LINK` is the other end of a pair instead of an interface beneath.
const PAIRS: [&str; 3] = ["veth", "netkit", "vxcan"];

/// An interface and its place in the stack.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StackedInterface {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Kind of a virtual interface (`vlan`, `bridge`); empty for others.
    pub kind: String,
    /// Whether it is the loopback interface.
    pub is_loopback: bool,
    /// The bridge, bond or similar interface of which it is a port.
    pub master: Option<u32>,
    /// The interface on which it is stacked (`IFLA_LINK`), in the same network namespace.
    pub link: Option<u32>,
}

impl StackedInterface {
    /// Returns whether it is a network card.
    pub fn is_physical(&self) -> bool {
        self.kind.is_empty() && !self.is_loopback
    }

    fn is_lower_of(&self, upper: &Self) -> bool {
        let is_port = self.master == Some(upper.index);
        let carries = upper.link == Some(self.index) && !PAIRS.contains(&upper.kind.as_str());
        self.index != upper.index && (is_port || carries)
    }
}

/// Returns all interfaces of the calling thread's network namespace.
///
/// # Errors
/// The kernel's answer.
pub fn interfaces() -> Result<Vec<StackedInterface>, ShaperError> {
    let mut found = Vec::new();
    let message = Message::new(libc::RTM_GETLINK, DUMP).ifinfo(0).finish();
    Socket::open()?.dump(&message, |body| found.extend(interface(body)))?;
    Ok(found)
}

/// Parses the body of an `RTM_NEWLINK` message.
pub(crate) fn interface(body: &[u8]) -> Option<StackedInterface> {
    let mut interface = StackedInterface {
        index: u32_at(body, 4)?,
        is_loopback: u32_at(body, 8)? & libc::IFF_LOOPBACK as u32 != 0,
        ..StackedInterface::default()
    };
    let mut elsewhere = false;
    for attr in attrs(body.get(IFINFO_BYTES..)?) {
        match attr.kind {
            IFLA_IFNAME => interface.name = attr.text(),
            IFLA_LINK => interface.link = u32_at(attr.value, 0),
            IFLA_MASTER => interface.master = u32_at(attr.value, 0),
            IFLA_LINK_NETNSID => elsewhere = true,
            IFLA_LINKINFO => {
                let kind = attr.attrs().find(|a| a.kind == IFLA_INFO_KIND);
                interface.kind = kind.map(|a| a.text()).unwrap_or_default();
            }
            _ => {}
        }
    }
    if elsewhere {
        interface.link = None;
    }
    Some(interface)
}

/// Returns the names of `dev` and of all interfaces beneath it, which packets that leave through `dev` may pass. They include all ports of
/// a bridge or bond.
pub fn lower_devices(dev: &str, all: &[StackedInterface]) -> BTreeSet<String> {
    let mut found = BTreeSet::from([dev.to_owned()]);
    let mut next: Vec<&StackedInterface> = all.iter().filter(|one| one.name == dev).collect();
    while let Some(upper) = next.pop() {
        for lower in all.iter().filter(|lower| lower.is_lower_of(upper)) {
            if found.insert(lower.name.clone()) {
                next.push(lower);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn on(index: u32, name: &str, kind: &str, link: Option<u32>) -> StackedInterface {
        let (name, kind) = (name.to_owned(), kind.to_owned());
        StackedInterface { index, name, kind, link, ..StackedInterface::default() }
    }

    fn port(index: u32, name: &str, master: u32) -> StackedInterface {
        StackedInterface { master: Some(master), ..on(index, name, "", None) }
    }

    fn names(found: &BTreeSet<String>) -> Vec<&str> {
        found.iter().map(String::as_str).collect()
    }

    #[test]
    fn a_vlan_on_a_bridge_of_a_bond_passes_the_cards_of_the_bond() {
        let all = [
            port(2, "eth0", 4),
            port(3, "eth1", 4),
            StackedInterface { master: Some(5), ..on(4, "bond0", "bond", None) },
            on(5, "br0", "bridge", None),
            on(6, "br0.7", "vlan", Some(5)),
            port(7, "eth2", 5),
            on(8, "eth3", "", None),
        ];
        let found = lower_devices("br0.7", &all);
        assert_eq!(names(&found), ["bond0", "br0", "br0.7", "eth0", "eth1", "eth2"]);
        assert_eq!(
            names(&lower_devices("eth0", &all)),
            ["eth0"],
            "what is above does not carry it"
        );
        assert_eq!(names(&lower_devices("eth3", &all)), ["eth3"]);
        assert_eq!(names(&lower_devices("gone", &all)), ["gone"]);
    }

    #[test]
    fn veth_peer_is_not_a_lower_device() {
        let all = [on(2, "v0", "veth", Some(3)), on(3, "v1", "veth", Some(2))];
        assert_eq!(names(&lower_devices("v0", &all)), ["v0"]);
        let all = [on(2, "m0", "macvlan", Some(3)), on(3, "eth0", "", None)];
        assert_eq!(names(&lower_devices("m0", &all)), ["eth0", "m0"]);
    }

    #[test]
    fn this_machine_has_a_loopback_that_is_no_card() {
        let lo = interfaces().unwrap().into_iter().find(|one| one.name == "lo").unwrap();
        assert!(lo.is_loopback && !lo.is_physical() && lo.master.is_none(), "{lo:?}");
    }

    fn topology() -> impl Strategy<Value = Vec<StackedInterface>> {
        let above = || prop::option::of(0u32..12);
        prop::collection::vec((above(), above()), 1..12).prop_map(|all| {
            let interface = |(index, (master, link)): (usize, (Option<u32>, Option<u32>))| {
                let name = format!("if{index}");
                StackedInterface { master, link, ..on(index as u32, &name, "vlan", None) }
            };
            all.into_iter().enumerate().map(interface).collect()
        })
    }

    proptest! {
        /// In any topology, even with loops, the result is closed, and each of its members carries another one.
        #[test]
        fn lower_devices_are_exactly_the_carriers(all in topology()) {
            let found = lower_devices("if0", &all);
            prop_assert!(found.contains("if0"));
            for upper in all.iter().filter(|one| found.contains(&one.name)) {
                for lower in all.iter().filter(|lower| lower.is_lower_of(upper)) {
                    prop_assert!(found.contains(&lower.name), "{} is left out", lower.name);
                }
            }
            for lower in all.iter().filter(|one| found.contains(&one.name) && one.name != "if0") {
                let mut inside = all.iter().filter(|one| found.contains(&one.name));
                prop_assert!(inside.any(|upper| lower.is_lower_of(upper)), "{}", lower.name);
            }
        }
    }
}
