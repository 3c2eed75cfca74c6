//! Dumps of an interface's qdiscs, classes and filters, and requests about its root qdisc and MTU.

use super::message::{DUMP, Message};
use super::tc_message::{ROOT, TcMessage};
use super::{ACK, Socket};
use crate::ShaperError;

const IFLA_MTU: u16 = 4;
const IFINFO_BYTES: usize = 16;

/// Passes every qdisc of an interface to `each`: its root, its leaves and `clsact`.
///
/// # Errors
/// The kernel's answer.
pub fn qdiscs(
    socket: &mut Socket,
    ifindex: u32,
    mut each: impl FnMut(&TcMessage<'_>),
) -> Result<(), ShaperError> {
    let message = Message::new(libc::RTM_GETQDISC, DUMP).tcmsg(ifindex, 0, 0, 0).finish();
    socket.dump(&message, |body| {
        // The kernel ignores the interface in the request and lists all.
        if let Some(listed) = TcMessage::parse(body).filter(|listed| listed.ifindex == ifindex) {
            each(&listed);
        }
    })
}

/// Passes every class of an interface to `each`.
///
/// # Errors
/// The kernel's answer.
pub fn classes(
    socket: &mut Socket,
    ifindex: u32,
    mut each: impl FnMut(&TcMessage<'_>),
) -> Result<(), ShaperError> {
    let message = Message::new(libc::RTM_GETTCLASS, DUMP).tcmsg(ifindex, 0, 0, 0).finish();
    socket.dump(&message, |body| {
        if let Some(listed) = TcMessage::parse(body).filter(|listed| listed.ifindex == ifindex) {
            each(&listed);
        }
    })
}

/// Passes every filter of the qdisc `parent` to `each`.
///
/// # Errors
/// The kernel's answer.
pub fn filters(
    socket: &mut Socket,
    ifindex: u32,
    parent: u32,
    mut each: impl FnMut(&TcMessage<'_>),
) -> Result<(), ShaperError> {
    let message = Message::new(libc::RTM_GETTFILTER, DUMP).tcmsg(ifindex, 0, parent, 0).finish();
    socket.dump(&message, |body| {
        if let Some(listed) = TcMessage::parse(body) {
            each(&listed);
        }
    })
}

/// Removes an interface's root qdisc with everything below it, so that the default returns. Does nothing if the root is the default.
///
/// # Errors
/// The kernel's answer.
pub fn delete_root(socket: &mut Socket, ifindex: u32, dev: &str) -> Result<(), ShaperError> {
    let message = Message::new(libc::RTM_DELQDISC, ACK).tcmsg(ifindex, 0, ROOT, 0).finish();
    match socket.request("remove root qdisc", dev, &message) {
        // "Cannot delete qdisc with handle of zero": this is the default.
        Err(error) if error.is_errno(libc::ENOENT) => Ok(()),
        other => other,
    }
}

/// Returns the largest frame that an interface sends, in bytes: its MTU plus an Ethernet header with a VLAN tag.
///
/// # Errors
/// The kernel's answer.
pub fn frame_bytes(socket: &mut Socket, ifindex: u32, dev: &str) -> Result<u32, ShaperError> {
    let mut mtu = 1500;
    let message = Message::new(libc::RTM_GETLINK, ACK).ifinfo(ifindex).finish();
    socket.request_reply("read interface", dev, &message, |_, body| {
        let found = super::message::attrs(body.get(IFINFO_BYTES..).unwrap_or(&[]))
            .find_kind(IFLA_MTU)
            .and_then(|value| super::message::u32_at(value, 0));
        mtu = found.unwrap_or(mtu);
    })?;
    Ok(mtu.saturating_add(18))
}
