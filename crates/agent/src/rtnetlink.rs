//! Typed rtnetlink messages over the shaper's netlink socket, one request and its answer at a time. A socket belongs to
//! the network namespace in which it was opened, whichever thread uses it.

use std::io;

use ccbench_shaper::ShaperError;
use ccbench_shaper::netlink::Socket;
use netlink_packet_core::{
    NLM_F_REQUEST, NetlinkDeserializable as _, NetlinkHeader, NetlinkMessage,
};
use netlink_packet_route::RouteNetlinkMessage;

/// A socket for one namespace.
#[derive(Debug)]
pub(crate) struct Requests {
    socket: Socket,
}

impl Requests {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// The system refused a socket.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open().map_err(system_error)? })
    }

    /// Sends a request with `NLM_F_REQUEST` and `flags` (`NLM_F_ACK`, `NLM_F_DUMP` …), passes every answer to `each`,
    /// and returns at the acknowledgement or the end of the dump.
    ///
    /// # Errors
    /// The kernel refused, or an answer cannot be parsed.
    pub(crate) fn exchange(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
        mut each: impl FnMut(&RouteNetlinkMessage),
    ) -> io::Result<()> {
        let mut message = NetlinkMessage::from(message);
        message.header.flags = NLM_F_REQUEST | flags;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        let mut unreadable = None;
        let answered = self.socket.request_reply("", "", &bytes, |kind, body| {
            let mut header = NetlinkHeader::default();
            header.message_type = kind;
            match RouteNetlinkMessage::deserialize(&header, body) {
                Ok(answer) => each(&answer),
                Err(error) => unreadable = Some(error),
            }
        });
        answered.map_err(system_error)?;
        unreadable.map_or(Ok(()), |error| Err(io::Error::new(io::ErrorKind::InvalidData, error)))
    }
}

/// Returns the system error within an error of the shaper. The caller names operation and object.
fn system_error(error: ShaperError) -> io::Error {
    match error {
        ShaperError::Netlink { source, .. } | ShaperError::System { source, .. } => source,
        other => io::Error::other(other),
    }
}
