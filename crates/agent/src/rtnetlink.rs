//! A blocking rtnetlink socket, one request and its answer at a time. It speaks for the network namespace it was opened
//! in, whichever thread uses it.

use std::io;

use netlink_packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// The kernel fills at most 32 KiB per datagram of a dump.
const BUFFER_BYTES: usize = 64 << 10;
/// Length of a netlink message's header.
const HEADER_BYTES: usize = 16;

/// A socket for one namespace.
#[derive(Debug)]
pub(crate) struct Requests {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Requests {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// The kernel gave none.
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Sends a request with `NLM_F_REQUEST` and `flags` (`NLM_F_ACK`, `NLM_F_DUMP` …), shows `each` answer, and returns at its
    /// acknowledgement or the end of its dump.
    ///
    /// # Errors
    /// The kernel's answer, or one that cannot be read.
    pub(crate) fn exchange(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
        mut each: impl FnMut(&RouteNetlinkMessage),
    ) -> io::Result<()> {
        let mut message = NetlinkMessage::from(message);
        self.sequence = self.sequence.wrapping_add(1);
        message.header.flags = NLM_F_REQUEST | flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        loop {
            let length = self.socket.recv(&mut &mut self.buffer[..], 0)?;
            let mut rest = &self.buffer[..length];
            while rest.len() >= HEADER_BYTES {
                let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
                let size = (answer.header.length as usize).next_multiple_of(4);
                rest = rest.get(size.max(HEADER_BYTES)..).unwrap_or_default();
                if answer.header.sequence_number != self.sequence {
                    continue;
                }
                match answer.payload {
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(()),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::InnerMessage(inner) => each(&inner),
                    _ => {}
                }
            }
        }
    }
}
