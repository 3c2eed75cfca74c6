//! Kernel interfaces that loaders of BPF programs need and that no safe library offers: tcx links, network namespace cookies, clsact.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use crate::netlink::{self, Socket};
use crate::user_link::veth_redirect::{self, CLASSIFIER};
use crate::{ShaperError, sys};

/// Priority of a classifier in clsact. It precedes that of a userspace link's redirect.
pub const CLSACT_PRIORITY: u16 = CLASSIFIER.0;

/// Attaches a loaded classifier (`BPF_PROG_TYPE_SCHED_CLS`) to the egress of an interface, in front of all filters of clsact, including a
/// userspace link's redirect. Closing the descriptor detaches it, so it also goes away if its owner is killed.
///
/// # Errors
/// The kernel's answer: `EINVAL` before Linux 6.6.
pub fn attach_tcx_egress(program: BorrowedFd<'_>, ifindex: u32) -> io::Result<OwnedFd> {
    sys::attach_tcx_egress(program, ifindex)
}

/// Returns the cookie of this thread's network namespace, by which BPF programs identify it (`SO_NETNS_COOKIE`).
///
/// # Errors
/// The kernel's answer: `ENOPROTOOPT` before Linux 5.14.
pub fn netns_cookie() -> io::Result<u64> {
    // Any socket will do. This one is never bound to an address to which anybody could send.
    let socket = UdpSocket::bind("0.0.0.0:0").or_else(|_| UdpSocket::bind("[::]:0"))?;
    sys::netns_cookie(socket.as_fd())
}

/// Returns whether an interface has a clsact qdisc that no userspace link added.
///
/// # Errors
/// The kernel refused.
pub fn has_foreign_clsact(ifindex: u32) -> Result<bool, ShaperError> {
    veth_redirect::has_foreign_clsact(&mut Socket::open()?, ifindex)
}

/// Adds a clsact qdisc to an interface if it has none.
///
/// # Errors
/// The kernel refused.
pub fn add_clsact(ifindex: u32) -> Result<(), ShaperError> {
    match netlink::add_clsact(&mut Socket::open()?, ifindex) {
        Err(error) if error.is_errno(libc::EEXIST) => Ok(()),
        other => other,
    }
}

/// Removes the classifier of priority [`CLSACT_PRIORITY`] from the egress of an interface. If we added clsact and it has no other filters,
/// removes it, too. Missing objects are not an error.
///
/// # Errors
/// The kernel refused.
pub fn remove_classifier(ifindex: u32, own_clsact: bool) -> Result<(), ShaperError> {
    veth_redirect::remove_classifier(ifindex, own_clsact)
}
