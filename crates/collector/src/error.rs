//! Sampling errors.

use std::io;

/// An error of the collector.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// A netlink request failed.
    #[error("cannot {op}: {source}")]
    Netlink {
        /// The operation, such as "dump TCP sockets".
        op: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file of /proc or /sys could not be read or parsed.
    #[error("cannot read {path}: {source}")]
    Proc {
        /// The file.
        path: String,
        /// The cause.
        source: io::Error,
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
