//! [`ShaperError`]: what failed, on which object, why, and what the user can do.

use std::io;

/// An error of the shaper.
#[derive(Debug, thiserror::Error)]
pub enum ShaperError {
    /// The kernel refused a netlink request.
    #[error("{op} on {dev}: {source}{kernel_message}")]
    Netlink {
        /// "add qdisc htb", "read qdiscs" ...
        op: String,
        /// The interface.
        dev: String,
        /// The kernel's answer.
        source: io::Error,
        /// The kernel's explanation in parentheses with a leading space, or empty.
        kernel_message: String,
    },
    /// This kernel lacks a qdisc, a filter or an action.
    #[error("this kernel has no {what} (CONFIG_{config}); {hint}")]
    Missing {
        /// "qdisc netem", "action mirred" ...
        what: String,
        /// Kernel option without its prefix.
        config: &'static str,
        /// What the user can do instead.
        hint: String,
    },
    /// The selected backend cannot do this.
    #[error("link {link}: the {backend} backend cannot do {what}; {hint}")]
    Unsupported {
        /// The link's name.
        link: String,
        /// "kernel" or "userspace".
        backend: &'static str,
        /// The unsupported feature.
        what: String,
        /// What the user can do instead.
        hint: String,
    },
    /// The interface carries a configuration that ccbench did not create and could not restore.
    #[error("{dev} already has {found}; remove it first: {hint}")]
    Occupied {
        /// The interface.
        dev: String,
        /// "root qdisc htb 1:" ...
        found: String,
        /// A command that removes it.
        hint: String,
    },
    /// No object has this name.
    #[error("no {what} named {name}")]
    NotFound {
        /// "interface" ...
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// A system call failed.
    #[error("{op}: {source}")]
    System {
        /// The operation.
        op: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl ShaperError {
    /// Returns `None` if the object of a lookup is missing.
    ///
    /// # Errors
    /// The lookup failed, which does not mean that the object is missing.
    pub fn optional<T>(found: Result<T, Self>) -> Result<Option<T>, Self> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(Self::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
