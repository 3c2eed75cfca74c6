//! Errors of `ccbench link`.

use std::io;
use std::path::PathBuf;

use ccbench_shaper::ShaperError;

/// Why a link cannot be made or has failed. Names the flag or the operation, and a fix.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The command line contradicts itself or asks for what cannot be.
    #[error("{0}")]
    Usage(String),
    /// A value of a flag that only shows to be wrong in its context.
    #[error("{flag}: {why}")]
    Flag {
        /// `--up-aqm` …
        flag: String,
        /// What is wrong and how to fix it.
        why: String,
    },
    /// An interface of this name is not in this network namespace.
    #[error("{flag}: there is no interface {name} in this network namespace; there are: {known}")]
    NoInterface {
        /// `--left` …
        flag: &'static str,
        /// The name.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// Another `ccbench link` uses the interface.
    #[error("{flag}: another ccbench link is using {name}; end it first")]
    InUse {
        /// `--left` …
        flag: &'static str,
        /// The interface.
        name: String,
    },
    /// The two interfaces carry packets of different sizes.
    #[error(
        "{left} has an MTU of {left_bytes} bytes and {right} one of {right_bytes}: what is larger than the \
         smaller would be lost; `ip link set {larger} mtu {smaller_bytes}`"
    )]
    Mtu {
        /// The left interface.
        left: String,
        /// Its MTU.
        left_bytes: u32,
        /// The right one.
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
        /// Which flags it is about.
        flag: String,
        /// Why.
        source: Box<ShaperError>,
        /// What to do, with a leading `; `, or empty.
        hint: &'static str,
    },
    /// rtnetlink refused.
    #[error("{operation}: {source}")]
    Netlink {
        /// What was asked for, with its object.
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
    /// The private addresses are all taken.
    #[error(
        "no block of private addresses is free for the command's network: routes of this machine cover \
         100.64.0.0/10, 198.18.0.0/15, 10.0.0.0/8 and 172.16.0.0/12{nested}"
    )]
    NoAddresses {
        /// `, or the shells are nested too deeply`, or empty.
        nested: &'static str,
    },
    /// Anything on this process.
    #[error("{operation}: {source}{hint}")]
    System {
        /// What was tried, with its object.
        operation: String,
        /// Why not.
        source: io::Error,
        /// What to do, with a leading `; `, or empty.
        hint: &'static str,
    },
}

/// What a refusal for lack of privilege means.
const PRIVILEGE: &str = "; run it as root, or inside `unshare -rn` where the interfaces are yours";

impl LinkError {
    /// For `map_err`: a failed system operation with its description.
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

    /// For `map_err`: the shaper's refusal.
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

    /// The exit code of this program.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Flag { .. } | Self::NoInterface { .. } => 2,
            _ => 1,
        }
    }
}

fn privilege(source: &io::Error) -> &'static str {
    if source.kind() == io::ErrorKind::PermissionDenied { PRIVILEGE } else { "" }
}
