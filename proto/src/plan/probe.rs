//! Measurements beside the flows.

use serde::{Deserialize, Serialize};

use crate::units::{Bytes, Micros};

/// A measurement beside the flows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    /// What is measured.
    pub kind: ProbeKind,
    /// Node that measures.
    pub from: String,
    /// Node that answers.
    pub to: String,
    /// When the first one begins, after the trial's beginning.
    #[serde(default, skip_serializing_if = "is_beginning")]
    pub start: Micros,
    /// Time from the beginning of one to the beginning of the next.
    #[serde(default = "second")]
    pub every: Micros,
    /// Whether, and when, it is done again.
    #[serde(default, skip_serializing_if = "Repeat::is_interval")]
    pub repeat: Repeat,
    /// What takes longer has failed; `None`: as long as the kind usually may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Micros>,
    /// The IP header's TOS byte, DSCP and ECN together.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tos: u8,
    /// `http`: length of the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bytes>,
    /// `http`: the server's congestion control.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cc: Option<String>,
    /// `http`: a name that is looked up before each fetch, in place of the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

fn second() -> Micros {
    Micros::from_secs(1)
}

fn is_beginning(start: &Micros) -> bool {
    start.get() == 0
}

fn is_zero(tos: &u8) -> bool {
    *tos == 0
}

/// What a probe measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeKind {
    /// ICMP echo.
    Ping,
    /// An echo over UDP.
    Udp,
    /// How long connect() takes.
    TcpConnect,
    /// A file from a web server.
    Http,
}

impl ProbeKind {
    /// As it is written in plans and in column `kind`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::Udp => "udp",
            Self::TcpConnect => "tcp_connect",
            Self::Http => "http",
        }
    }

    /// Whether ccbench listens for it on the other node; a ping is answered by the kernel.
    pub const fn is_served(self) -> bool {
        !matches!(self, Self::Ping)
    }

    /// Whether it makes a connection.
    pub const fn connects(self) -> bool {
        matches!(self, Self::TcpConnect | Self::Http)
    }

    /// What takes longer has failed.
    pub const fn usual_timeout(self) -> Micros {
        Micros::from_secs(match self {
            Self::Ping | Self::Udp => 1,
            Self::TcpConnect => 10,
            Self::Http => 60,
        })
    }
}

/// Whether a probe is done again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Repeat {
    /// At every interval.
    #[default]
    Interval,
    /// Only the first time.
    Once,
    /// As soon as the one before is over.
    BackToBack,
}

impl Repeat {
    /// The usual one.
    pub fn is_interval(&self) -> bool {
        *self == Self::Interval
    }
}
