//! What can go wrong when sampling: operation, object, source.

use std::io;

/// An error of the collector.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// The kernel refused a netlink request.
    #[error("{op}: {source}")]
    Netlink {
        /// "dump TCP sockets" ...
        op: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file of /proc or /sys could not be read or understood.
    #[error("read {path}: {source}")]
    Proc {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The kernel's answer was not of the form it promises.
    #[error("{what}: malformed at byte {at}")]
    Malformed {
        /// Which message.
        what: &'static str,
        /// Where.
        at: usize,
    },
}
