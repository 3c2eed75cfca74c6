//! What loaders of BPF programs need of the kernel and no safe library offers.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use crate::sys;

/// Attaches a loaded classifier (`BPF_PROG_TYPE_SCHED_CLS`) to the way out of an interface, in front of every filter of
/// clsact, a userspace link's redirect included. It is detached when the descriptor is closed, so also when its owner
/// is killed.
///
/// # Errors
/// The kernel's answer: `EINVAL` before Linux 6.6.
pub fn attach_tcx_egress(program: BorrowedFd<'_>, ifindex: u32) -> io::Result<OwnedFd> {
    sys::attach_tcx_egress(program, ifindex)
}

/// The number by which BPF programs know this thread's network namespace.
///
/// # Errors
/// The kernel's answer: `ENOPROTOOPT` before Linux 5.14.
pub fn netns_cookie() -> io::Result<u64> {
    // Any socket does; this one is never bound to an address that anybody could send to.
    let socket = UdpSocket::bind("0.0.0.0:0").or_else(|_| UdpSocket::bind("[::]:0"))?;
    sys::netns_cookie(socket.as_fd())
}
