//! Ports for servers that tests start.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt,
};

/// A port on which nothing listens. While this exists, no process that asks for any port, or that connects, gets it. A server that asks for
/// this port may listen if it sets SO_REUSEADDR, as servers do.
#[derive(Debug)]
pub struct ReservedPort {
    address: SocketAddr,
    _socket: OwnedFd,
}

impl ReservedPort {
    /// Reserves a port of this address.
    ///
    /// # Panics
    /// Panics if the address is not one of this machine.
    #[expect(clippy::unwrap_used, reason = "a test may panic")]
    pub fn new(ip: Ipv4Addr) -> Self {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        bind(&socket, &SocketAddr::from((ip, 0))).unwrap();
        let address = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
        Self { address, _socket: socket }
    }

    /// Returns the address with the port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
