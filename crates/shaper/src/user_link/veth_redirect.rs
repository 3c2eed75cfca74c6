//! Redirects packets to the packet loop: a veth pair, and two filters that redirect into it.
//!
//! ```text
//! dev ─ clsact egress ─ u32: unicast IP → mirred ─→ ccbu7a ═ ccbu7b ─→ packet socket
//! ```
//!
//! The names of the veth pair record what must be undone: `7` is the index of the interface, and the far end ends in `c` instead of `b` if
//! the link also added the clsact qdisc.

use std::io;

use crate::ShaperError;
use crate::netlink::{
    self, ACK, CLSACT_EGRESS, DUMP, Message, Socket, TC_H_CLSACT, U32Key, add_clsact, del_clsact,
    del_redirect, delete_link, filter_info, find_ifindex, ifindex,
    message::{Attr, TCMSG_BYTES, attrs, u16_at, u32_at},
};
use crate::qdisc::TCA_KIND;

/// Priorities of our filters: one per protocol, because the kernel allows only one protocol per priority.
const FILTERS: [(u16, u16); 2] =
    [(0xcc04, libc::ETH_P_IP as u16), (0xcc06, libc::ETH_P_IPV6 as u16)];
/// The maximum MTU, so that redirected packets fit even if the interface's MTU changes.
const PAIR_MTU: u32 = 65_535;

const ARPHRD_ETHER: u16 = 1;
const IFLA_ADDRESS: u16 = 1;
const IFLA_MTU: u16 = 4;
const CLSACT_INGRESS: u32 = 0xffff_fff2;
/// The group bit of an Ethernet frame's destination address, which is before the IP header, is zero: the frame is not multicast.
const UNICAST: U32Key = U32Key { mask: [1, 0, 0, 0], value: [0; 4], offset: -14 };

/// The redirection of one link.
pub(super) struct VethRedirect {
    socket: Socket,
    dev: Interface,
    /// The ends of the veth pair: the target of the redirection, and the end that receives the packets.
    entry: Option<Interface>,
    reader: Option<Interface>,
    own_clsact: bool,
    redirected: bool,
}

/// An Ethernet interface.
#[derive(Debug, Clone)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) address: [u8; 6],
    pub(super) mtu_bytes: u32,
}

impl VethRedirect {
    /// Creates the veth pair for `dev` and sets it up. Does not redirect anything yet.
    pub(super) fn create(link: &str, dev: &str) -> Result<Self, ShaperError> {
        let mut socket = Socket::open()?;
        let dev = ethernet_interface(&mut socket, link, dev)?;
        let own_clsact = match hook(&mut socket, dev.index)? {
            Hook::None => true,
            Hook::Clsact => false,
            Hook::Ingress => {
                return Err(ShaperError::Occupied {
                    hint: format!("tc qdisc del dev {} ingress", dev.name),
                    dev: dev.name,
                    found: "qdisc ingress".to_owned(),
                });
            }
        };
        let name = |end| format!("ccbu{}{end}", dev.index);
        let (entry, reader) = (name('a'), name(if own_clsact { 'c' } else { 'b' }));
        netlink::add_veth(&mut socket, &entry, &reader).map_err(|error| {
            if error.is_errno(libc::EEXIST) {
                ShaperError::Occupied {
                    dev: dev.name.clone(),
                    found: format!("a userspace link (interface {entry})"),
                    hint: format!("stop its owner, or run `ip link del {entry}`"),
                }
            } else {
                error
            }
        })?;
        let mut redirect =
            Self { socket, dev, entry: None, reader: None, own_clsact, redirected: false };
        let prepared = redirect.prepare_pair(&entry, &reader);
        if prepared.is_err() && redirect.entry.is_none() {
            // It is not recorded yet, so Drop would not delete it.
            let _ = delete_link(&mut redirect.socket, &entry);
        }
        prepared.map(|()| redirect)
    }

    fn prepare_pair(&mut self, entry: &str, reader: &str) -> Result<(), ShaperError> {
        let read = |socket: &mut Socket, name: &str| {
            read_interface(socket, name)?
                .ok_or_else(|| ShaperError::NotFound { what: "interface", name: name.to_owned() })
        };
        self.entry = Some(read(&mut self.socket, entry)?);
        self.reader = Some(read(&mut self.socket, reader)?);
        for name in [entry, reader] {
            let knob = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
            match std::fs::write(&knob, "1") {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    tracing::debug!(knob, error = %e, "cannot disable IPv6; its packets are filtered by source address");
                }
                _ => {}
            }
        }
        for (index, name) in [(self.reader(), reader), (self.entry_index(), entry)] {
            let flags = (libc::IFF_UP | libc::IFF_NOARP) as u32;
            let message = Message::new(libc::RTM_NEWLINK, ACK)
                .ifinfo_flags(index, flags, flags)
                .attr_u32(IFLA_MTU, PAIR_MTU)
                .finish();
            self.socket.request("set up", name, &message)?;
        }
        Ok(())
    }

    /// Redirects the interface's egress into the pair.
    pub(super) fn redirect(&mut self) -> Result<(), ShaperError> {
        if self.own_clsact {
            add_clsact(&mut self.socket, self.dev.index)?;
        }
        self.redirected = true;
        let entry = self.entry_index();
        for filter in FILTERS {
            // The kernel would treat redirected multicast packets as its own at the far end of the pair.
            let message = netlink::redirect_filter(self.dev.index, filter, entry, UNICAST);
            self.socket.request("add redirect filter", &self.dev.name, &message)?;
        }
        Ok(())
    }

    /// Ends the redirection. Idempotent.
    pub(super) fn stop_redirect(&mut self) -> Result<(), ShaperError> {
        if self.redirected {
            stop_redirect(&mut self.socket, self.dev.index, self.own_clsact)?;
            self.redirected = false;
        }
        Ok(())
    }

    /// Removes the pair. Idempotent.
    pub(super) fn remove(&mut self) -> Result<(), ShaperError> {
        self.stop_redirect()?;
        if let Some(entry) = &self.entry {
            ignore_missing(delete_link(&mut self.socket, &entry.name))?;
        }
        self.entry = None;
        self.reader = None;
        Ok(())
    }

    /// Returns the index of the shaped interface.
    pub(super) fn ifindex(&self) -> u32 {
        self.dev.index
    }

    /// Returns the MTU of the shaped interface, bytes.
    pub(super) fn mtu_bytes(&self) -> u32 {
        self.dev.mtu_bytes
    }

    /// Returns the index of the interface that receives the redirected packets.
    pub(super) fn reader(&self) -> u32 {
        self.reader.as_ref().map_or(0, |interface| interface.index)
    }

    /// Returns the Ethernet address of the target of the redirection.
    pub(super) fn entry_address(&self) -> [u8; 6] {
        self.entry.as_ref().map_or([0; 6], |interface| interface.address)
    }

    fn entry_index(&self) -> u32 {
        self.entry.as_ref().map_or(0, |interface| interface.index)
    }
}

impl Drop for VethRedirect {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!(dev = self.dev.name, %error, "could not remove all parts of a userspace link");
        }
    }
}

/// Removes the redirection that a killed process left on `dev`, and returns whether there was one. Do not call it for an active link.
///
/// # Errors
/// Errors of the kernel. A missing interface is not an error.
pub fn cleanup(dev: &str) -> Result<bool, ShaperError> {
    let Some(index) = find_ifindex(dev)? else { return Ok(false) };
    let entry = format!("ccbu{index}a");
    if find_ifindex(&entry)?.is_none() {
        return Ok(false);
    }
    let own_clsact = find_ifindex(&format!("ccbu{index}c"))?.is_some();
    let mut socket = Socket::open()?;
    stop_redirect(&mut socket, index, own_clsact)?;
    ignore_missing(delete_link(&mut socket, &entry))?;
    Ok(true)
}

/// Removes our filters from an interface. If we added its clsact qdisc and it has no other filters, removes that, too.
fn stop_redirect(socket: &mut Socket, index: u32, own_clsact: bool) -> Result<(), ShaperError> {
    match hook(socket, index) {
        Ok(Hook::None) => return Ok(()),
        Err(error) if error.is_errno(libc::ENODEV) => return Ok(()),
        other => other?,
    };
    for (prio, ethertype) in FILTERS {
        ignore_missing(del_redirect(socket, index, ethertype, prio))?;
    }
    if own_clsact && !has_filters(socket, index)? {
        ignore_missing(del_clsact(socket, index))?;
    }
    Ok(())
}

/// Priority and protocol (all) of a BPF classifier in clsact. It precedes the redirection of a link on the same interface.
pub(crate) const CLASSIFIER: (u16, u16) = (0xcc01, libc::ETH_P_ALL as u16);

/// Returns whether an interface has a clsact qdisc that no link added.
pub(crate) fn has_foreign_clsact(socket: &mut Socket, index: u32) -> Result<bool, ShaperError> {
    let links = find_ifindex(&format!("ccbu{index}c"))?.is_some();
    Ok(!links && matches!(hook(socket, index)?, Hook::Clsact))
}

/// Removes [`CLASSIFIER`] from an interface. If we added its clsact qdisc and it has no other filters, removes that, too.
pub(crate) fn remove_classifier(index: u32, own_clsact: bool) -> Result<(), ShaperError> {
    let mut socket = Socket::open()?;
    match hook(&mut socket, index) {
        Ok(Hook::Clsact) => {}
        Ok(Hook::None | Hook::Ingress) => return Ok(()),
        Err(error) if error.is_errno(libc::ENODEV) => return Ok(()),
        Err(error) => return Err(error),
    }
    let (prio, protocol) = CLASSIFIER;
    let message = Message::new(libc::RTM_DELTFILTER, ACK)
        .tcmsg(index, 0, CLSACT_EGRESS, filter_info(prio, protocol))
        .attr_str(TCA_KIND, "bpf")
        .finish();
    ignore_missing(socket.request("remove classifier", &format!("interface #{index}"), &message))?;
    if own_clsact && !has_filters(&mut socket, index)? {
        ignore_missing(del_clsact(&mut socket, index))?;
    }
    Ok(())
}

/// Treats a missing object as removed.
fn ignore_missing(result: Result<(), ShaperError>) -> Result<(), ShaperError> {
    match result {
        Err(error) if [libc::ENOENT, libc::ENODEV].iter().any(|&errno| error.is_errno(errno)) => {
            Ok(())
        }
        other => other,
    }
}

/// The ingress or clsact qdisc of an interface.
enum Hook {
    None,
    Clsact,
    Ingress,
}

fn hook(socket: &mut Socket, index: u32) -> Result<Hook, ShaperError> {
    let mut found = Hook::None;
    let message = Message::new(libc::RTM_GETQDISC, DUMP).tcmsg(index, 0, 0, 0).finish();
    socket.dump(&message, |body| {
        // Older kernels dump the qdiscs of all interfaces.
        if u32_at(body, 4) != Some(index) || u32_at(body, 12) != Some(TC_H_CLSACT) {
            return;
        }
        let kind = attrs(body.get(TCMSG_BYTES..).unwrap_or(&[])).find(|a| a.kind == TCA_KIND);
        let is_clsact = kind.is_some_and(|kind| kind.text() == "clsact");
        found = if is_clsact { Hook::Clsact } else { Hook::Ingress };
    })?;
    Ok(found)
}

fn has_filters(socket: &mut Socket, index: u32) -> Result<bool, ShaperError> {
    let mut any = false;
    for parent in [CLSACT_INGRESS, CLSACT_EGRESS] {
        let message = Message::new(libc::RTM_GETTFILTER, DUMP).tcmsg(index, 0, parent, 0).finish();
        socket.dump(&message, |_| any = true)?;
    }
    Ok(any)
}

/// Reads the interface of `link`, which must be Ethernet.
pub(super) fn ethernet_interface(
    socket: &mut Socket,
    link: &str,
    dev: &str,
) -> Result<Interface, ShaperError> {
    read_interface(socket, dev)?.ok_or_else(|| ShaperError::Unsupported {
        link: link.to_owned(),
        backend: "userspace",
        what: format!("{dev}, which is not an Ethernet interface"),
        hint: "use backend = \"kernel\", or an interface with Ethernet headers".to_owned(),
    })
}

/// Reads an interface. Returns `None` if it is not Ethernet.
fn read_interface(socket: &mut Socket, name: &str) -> Result<Option<Interface>, ShaperError> {
    let index = ifindex(name)?;
    let message = Message::new(libc::RTM_GETLINK, ACK).ifinfo(index).finish();
    let mut found = None;
    socket.request_reply("read interface", name, &message, |_, body| {
        let of = |kind| {
            attrs(body.get(16..).unwrap_or(&[]))
                .find(|a: &Attr<'_>| a.kind == kind)
                .map(|a| a.value)
        };
        let address = of(IFLA_ADDRESS).and_then(|value| <[u8; 6]>::try_from(value).ok());
        let mtu_bytes = of(IFLA_MTU).and_then(|value| u32_at(value, 0));
        if let (Some(ARPHRD_ETHER), Some(address), Some(mtu_bytes)) =
            (u16_at(body, 2), address, mtu_bytes)
        {
            found = Some(Interface { name: name.to_owned(), index, address, mtu_bytes });
        }
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::redirect_filter;

    #[test]
    fn only_unicast_packets_are_redirected() {
        let key = |key| {
            let message = redirect_filter(7, FILTERS[0], 9, key);
            let (_, _, body) = netlink::message::messages(&message).next().unwrap();
            // TCA_OPTIONS, and TCA_U32_SEL in it.
            let options = attrs(&body[TCMSG_BYTES..]).find_kind(2).unwrap();
            let selector = attrs(options).find_kind(5).unwrap();
            <[u8; 16]>::try_from(&selector[16..]).unwrap()
        };
        assert_eq!(key(U32Key::default()), [0; 16]);
        let mut unicast = [0; 16];
        unicast[0] = 1;
        unicast[8..12].copy_from_slice(&(-14_i32).to_ne_bytes());
        assert_eq!(key(UNICAST), unicast);
    }

    #[test]
    fn a_failed_lookup_is_no_missing_interface() {
        assert!(!cleanup("nosuchdev0").unwrap());
        // The lookup refuses a name with a zero byte.
        let error = cleanup("lo\0").unwrap_err();
        assert!(matches!(error, ShaperError::System { .. }), "{error}");
    }
}
