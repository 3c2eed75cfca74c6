//! Errors of `ccbench link`.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use ccbench_shaper::ShaperError;

use crate::testbed::TestbedError;
use crate::undo::JournalError;

/// Why a link cannot be made or has failed. Names the flag or the operation, and a fix.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The flags select none of the three forms of the command line, or more than one.
    #[error(
        "{0}; write --left A --right B (two interfaces), --dev X (one), or -- COMMAND; see --help"
    )]
    Form(#[from] FormError),
    /// `--interval` is zero.
    #[error("--interval must be more than zero, like 1s")]
    ZeroInterval,
    /// `--for` is zero.
    #[error(
        "--for must be more than zero, like 10s; without it, the link runs until an interrupt or its COMMAND ends"
    )]
    ZeroLength,
    /// `--left` and `--right` name the same interface.
    #[error("--left and --right are both {name}: a link joins two interfaces")]
    SameInterface {
        /// The interface.
        name: String,
    },
    /// The plan that the flags make is invalid.
    #[error("{}", .problems.join("\n"))]
    Plan {
        /// One problem each, with its flag.
        problems: Vec<String>,
    },
    /// A bug: the plan made from the flags has no such link.
    #[error("the plan of the link has no link {link} (a bug in ccbench)")]
    NotInPlan {
        /// `down` or `up`.
        link: &'static str,
    },
    /// The value of one flag does not fit the other flags.
    #[error("{flag}: {reason}")]
    Flag {
        /// `--up-aqm` …
        flag: String,
        /// What is wrong and how to fix it.
        reason: String,
    },
    /// An interface of this name is not in this network namespace.
    #[error("{flag}: there is no interface {name} in this network namespace; there are: {known}")]
    NoInterface {
        /// `--left` …
        flag: &'static str,
        /// The name.
        name: String,
        /// The existing interfaces.
        known: String,
    },
    /// An interface is on the route to the client of the SSH session.
    #[error(
        "{flag}: {name} is on the route to {client}, the client of this SSH session, which the link could cut off; \
         `--allow-control-interface` allows it"
    )]
    ControlInterface {
        /// The flag, such as `--dev`.
        flag: &'static str,
        /// The interface.
        name: String,
        /// The client.
        client: IpAddr,
    },
    /// Another `ccbench link` uses the interface.
    #[error("{flag}: another ccbench link is using {name}; end it first")]
    InUse {
        /// The flag, such as `--left`.
        flag: &'static str,
        /// The interface.
        name: String,
    },
    /// The two interfaces carry packets of different sizes.
    #[error(
        "{left} has an MTU of {left_bytes} bytes and {right} one of {right_bytes}: packets above the smaller MTU would be lost; run \
         `ip link set {larger} mtu {smaller_bytes}`"
    )]
    Mtu {
        /// The left interface.
        left: String,
        /// Its MTU.
        left_bytes: u32,
        /// The right interface.
        right: String,
        /// Its MTU.
        right_bytes: u32,
        /// The one with the larger MTU.
        larger: String,
        /// The smaller MTU.
        smaller_bytes: u32,
    },
    /// The shaper refused.
    #[error("{flag}: {source}{hint}")]
    Shaper {
        /// The flags concerned.
        flag: String,
        /// Why.
        source: Box<ShaperError>,
        /// How to fix it, beginning with "; "; may be empty.
        hint: &'static str,
    },
    /// The undo journal of `--dev` could not be used.
    #[error("--dev: {0}")]
    Journal(#[from] JournalError),
    /// Changes to the interface of `--dev` could not be undone.
    #[error("--dev: not restored: {}", .left.join("; "))]
    NotRestored {
        /// The remaining changes, each with its reason.
        left: Vec<String>,
    },
    /// The user namespace of a rootless command could not be created.
    #[error(transparent)]
    UserNamespace(#[from] TestbedError),
    /// rtnetlink refused.
    #[error("{operation}: {source}")]
    Netlink {
        /// The operation and its object.
        operation: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file could not be read or written.
    #[error("{flag} {path}: {source}")]
    File {
        /// `--stats-json` …
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// All private address blocks are taken.
    #[error(
        "no block of private addresses is free for the command's network: routes of this machine cover \
         100.64.0.0/10, 198.18.0.0/15, 10.0.0.0/8 and 172.16.0.0/12{nested}"
    )]
    NoAddresses {
        /// `, or the shells are nested too deeply`, or empty.
        nested: &'static str,
    },
    /// A system call failed.
    #[error("{operation}: {source}{hint}")]
    System {
        /// The operation and its object.
        operation: String,
        /// The system's answer.
        source: io::Error,
        /// How to fix it, beginning with "; "; may be empty.
        hint: &'static str,
    },
}

/// Why the flags select no form of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// Both a command and interfaces.
    #[error("a command runs in a network of its own, so it takes no interfaces")]
    CommandWithInterfaces,
    /// Neither a command nor interfaces.
    #[error("no link is specified")]
    NoLink,
    /// `--outside` or `--rootless` without a command.
    #[error("--outside and --rootless need a command")]
    WithoutCommand,
}

/// The hint after `EPERM` or `EACCES`.
const PRIVILEGE: &str = "; run it as root, or inside `unshare -rn` where the interfaces are yours";

impl LinkError {
    /// Returns a closure for `map_err` that adds a description to a system error.
    pub(crate) fn system<E: Into<io::Error>>(
        operation: impl Into<String>,
    ) -> impl FnOnce(E) -> Self {
        let operation = operation.into();
        move |source| {
            let source = source.into();
            let hint = privilege(&source);
            Self::System { operation, source, hint }
        }
    }

    /// Returns a closure for `map_err` on a refusal by the shaper.
    pub(crate) fn shaper(flag: impl Into<String>) -> impl FnOnce(ShaperError) -> Self {
        let flag = flag.into();
        move |source| {
            let hint = match &source {
                ShaperError::System { source, .. } | ShaperError::Netlink { source, .. } => {
                    privilege(source)
                }
                _ => "",
            };
            Self::Shaper { flag, source: Box::new(source), hint }
        }
    }

    /// Returns the exit code of this program.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Form(_)
            | Self::ZeroInterval
            | Self::ZeroLength
            | Self::SameInterface { .. }
            | Self::Plan { .. }
            | Self::Flag { .. }
            | Self::ControlInterface { .. }
            | Self::NoInterface { .. } => 2,
            Self::NotInPlan { .. }
            | Self::InUse { .. }
            | Self::Mtu { .. }
            | Self::Shaper { .. }
            | Self::Journal(_)
            | Self::NotRestored { .. }
            | Self::UserNamespace(_)
            | Self::Netlink { .. }
            | Self::File { .. }
            | Self::NoAddresses { .. }
            | Self::System { .. } => 1,
        }
    }
}

fn privilege(source: &io::Error) -> &'static str {
    if source.kind() == io::ErrorKind::PermissionDenied { PRIVILEGE } else { "" }
}
