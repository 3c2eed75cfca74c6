//! Sampling errors.

use std::io;
use std::time::Duration;

/// An error of the collector.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// A netlink request failed.
    #[error("{op}: {source}")]
    Netlink {
        /// The operation, such as "dump TCP sockets".
        op: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file of /proc or /sys could not be read or parsed.
    #[error("read {path}: {source}")]
    Proc {
        /// The file.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// The kernel does not reply to a netlink request.
    #[error("the kernel did not reply to a netlink request within {} s", .timeout.as_secs())]
    NoReply {
        /// How long the collector waited.
        timeout: Duration,
    },
    /// The kernel's messages belong to no request, or to another one.
    #[error("the kernel sent a netlink message without the reply to the request")]
    OtherReply,
    /// The kernel's reply is neither a socket nor an error.
    #[error("the kernel replied with a netlink message of the unknown type {kind}")]
    UnknownReply {
        /// `nlmsg_type`.
        kind: u16,
    },
    /// The kernel's messages do not fit into the buffer, so that their end is lost.
    #[error(
        "the kernel's netlink messages have {len} bytes, but the buffer only {buffer_len}: their end is lost"
    )]
    Truncated {
        /// Length of the messages, in bytes.
        len: usize,
        /// Length of the buffer, in bytes.
        buffer_len: usize,
    },
    /// A message from the kernel is malformed.
    #[error("{what}: malformed at byte {at}")]
    Malformed {
        /// The kind of message.
        what: &'static str,
        /// Offset in bytes.
        at: usize,
    },
}
