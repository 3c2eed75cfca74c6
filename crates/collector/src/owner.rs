//! Finds the user whose process owns a TCP socket of this network namespace, with one exact inet_diag request. Needs no
//! privileges.

use std::io;
use std::net::SocketAddr;

use rustix::net::SendFlags;

use crate::SampleError;
use crate::bytes::array;
use crate::diag_msg::{DiagMsg, NetlinkMsg, next_msg};
use crate::diag_request::{SOCK_DIAG_BY_FAMILY, exact, set_seq};
use crate::inet_diag::{NLMSG_ERROR, netlink, open, receive};

const ESTABLISHED: u8 = 1;
/// Enough for one reply with its short attributes.
const BUFFER_LEN: usize = 8 * 1024;
const SEQ: u32 = 1;

/// Returns the user of the socket with address `local` that is connected to `remote`, in the network namespace of the calling
/// thread. The number is that of the caller's user namespace; users without a number there get `kernel.overflowuid`. Returns
/// `None` if no process has such a socket: it belongs to another machine or was closed.
///
/// # Errors
/// The kernel refuses the request, or its reply is missing, too long or malformed.
pub fn socket_owner(local: SocketAddr, remote: SocketAddr) -> Result<Option<u32>, SampleError> {
    let Some(mut request) = exact(local, remote) else { return Ok(None) };
    set_seq(&mut request, SEQ);
    let socket = open()?;
    rustix::net::send(&socket, &request, SendFlags::empty())
        .map_err(|errno| netlink("request a TCP socket", errno.into()))?;
    let mut buffer = vec![0; BUFFER_LEN];
    owner_in(receive(&socket, &mut buffer)?, (local.port(), remote.port()))
}

/// Returns the user in the kernel's messages.
fn owner_in(mut messages: &[u8], ports: (u16, u16)) -> Result<Option<u32>, SampleError> {
    while let Some(msg) = next_msg(&mut messages)? {
        if msg.seq == SEQ {
            return owner_uid(&msg, ports);
        }
    }
    Err(SampleError::OtherReply)
}

/// Returns the user in a reply. If no connection has the addresses, the kernel returns a listening socket. For a closed socket,
/// which no process has, it returns user 0.
fn owner_uid(msg: &NetlinkMsg<'_>, ports: (u16, u16)) -> Result<Option<u32>, SampleError> {
    match msg.kind {
        SOCK_DIAG_BY_FAMILY => {
            let found = DiagMsg::parse(msg.payload)?;
            let is_it = found.state == ESTABLISHED
                && found.inode != 0
                && (found.sport, found.dport) == ports;
            Ok(is_it.then_some(found.uid))
        }
        NLMSG_ERROR => {
            let code = array(msg.payload, 0).map_or(0, i32::from_ne_bytes);
            let error = io::Error::from_raw_os_error(code.saturating_abs());
            match error.kind() {
                io::ErrorKind::NotFound => Ok(None),
                _ => Err(netlink("look up a TCP socket", error)),
            }
        }
        kind => Err(SampleError::UnknownReply { kind }),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::diag_msg::tests::{message, payload};

    fn own() -> Option<u32> {
        Some(rustix::process::geteuid().as_raw())
    }

    fn ends(stream: &TcpStream) -> (SocketAddr, SocketAddr) {
        (stream.local_addr().unwrap(), stream.peer_addr().unwrap())
    }

    #[test]
    fn both_ends_of_a_connection_have_their_user() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // The second address makes an IPv6 socket.
        for host in ["127.0.0.1", "[::ffff:127.0.0.1]"] {
            let _client = TcpStream::connect(format!("{host}:{port}")).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            let (local, remote) = ends(&accepted);
            assert_eq!(socket_owner(remote, local).unwrap(), own(), "{host}");
            assert_eq!(socket_owner(local, remote).unwrap(), own(), "{host}");
        }
    }

    #[test]
    fn a_closed_socket_has_no_user() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let (local, remote) = ends(&accepted);
        // Closes the connection even if a child process of another test holds a copy of the descriptor.
        client.shutdown(std::net::Shutdown::Both).unwrap();
        drop(client);
        assert_eq!(socket_owner(remote, local).unwrap(), None);
    }

    #[test]
    fn a_listening_socket_is_no_end_of_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
        assert_eq!(socket_owner(listener.local_addr().unwrap(), nobody).unwrap(), None);
        assert_eq!(socket_owner(nobody, listener.local_addr().unwrap()).unwrap(), None);
    }

    #[test]
    fn only_an_established_socket_of_a_process_counts() {
        const INODE_AT: usize = 68;
        let of = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = payload((40_000, 7700), 9, &[]);
            bytes[64..68].copy_from_slice(&1000u32.to_ne_bytes());
            bytes[INODE_AT..72].copy_from_slice(&5u32.to_ne_bytes());
            change(&mut bytes);
            let msg = NetlinkMsg { kind: SOCK_DIAG_BY_FAMILY, flags: 0, seq: SEQ, payload: &bytes };
            owner_uid(&msg, (40_000, 7700)).unwrap()
        };
        assert_eq!(of(&|_| {}), Some(1000));
        assert_eq!(of(&|bytes| bytes[1] = 10), None, "it listens");
        assert_eq!(of(&|bytes| bytes[INODE_AT..72].fill(0)), None, "no process has it");
        assert_eq!(of(&|bytes| bytes[5] ^= 1), None, "another port");
    }

    #[test]
    fn a_reply_that_is_missing_or_of_another_type_is_named() {
        let refused = |messages: &[u8]| owner_in(messages, (1, 2)).unwrap_err().to_string();
        let missing = "the kernel sent a netlink message without the reply to the request";
        assert_eq!(refused(&message(NLMSG_ERROR, SEQ + 1, &[0; 4])), missing);
        assert_eq!(refused(&[]), missing);
        let unknown = "the kernel replied with a netlink message of the unknown type 99";
        assert_eq!(refused(&message(99, SEQ, &[])), unknown);
    }

    #[test]
    fn an_error_of_the_kernel_is_none_of_a_missing_socket() {
        let answer = |code: i32| {
            let payload = (-code).to_ne_bytes();
            let msg = NetlinkMsg { kind: NLMSG_ERROR, flags: 0, seq: SEQ, payload: &payload };
            owner_uid(&msg, (1, 2))
        };
        assert_eq!(answer(2).unwrap(), None);
        let refused = answer(1).unwrap_err().to_string();
        assert!(refused.starts_with("look up a TCP socket: "), "{refused}");
    }
}
