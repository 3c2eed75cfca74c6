//! `[probes.NAME]`: active measurements in parallel to the flows.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::Name;
use crate::units::{Bytes, Micros, Rate};

/// Length of each IP packet of a `udp_stream`.
pub const STREAM_PACKET_BYTES: u32 = 1500;

/// An active measurement in parallel to the flows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    /// Kind of probe.
    pub kind: ProbeKind,
    /// Node that measures.
    #[schemars(with = "Name")]
    pub from: String,
    /// Node that answers; ccbench starts the echo server, web server or sender there.
    #[schemars(with = "Name")]
    pub to: String,
    /// Time of the first measurement, from the start of the trial.
    #[serde(default, skip_serializing_if = "is_beginning")]
    #[schemars(extend("default" = "0us"))]
    pub start: Micros,
    /// Interval between the starts of two measurements; a longer measurement skips the missed ones. `udp_stream`: the interval that
    /// a row covers.
    #[serde(default = "default_every")]
    #[schemars(extend("x-from" = "10ms", "x-to" = "1h"))]
    pub every: Micros,
    /// How it repeats.
    #[serde(default, skip_serializing_if = "Repeat::is_interval")]
    #[schemars(extend("default" = "interval"))]
    pub repeat: Repeat,
    /// A measurement that takes longer is lost; absent: 1s (echoes), 10s (`tcp_connect`), 60s (`http`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-from" = "10ms", "x-to" = "1h"))]
    pub timeout: Option<Micros>,
    /// The IP header's TOS byte (DSCP and ECN), in both directions. The kernel chooses it for ping replies, and the ECN bits for
    /// TCP.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(extend("default" = 0))]
    pub tos: u8,
    /// `http`: length of the file, `"177669B"`; required for this kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-to" = "1024GiB"))]
    pub bytes: Option<Bytes>,
    /// `http`: the web server's congestion control, the kernel's or a `[cc.NAME]`; absent: the kernel's
    /// default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cc: Option<String>,
    /// `udp_stream`: rate at which `to` sends IP packets of 1500 bytes; required for this kind. Above the capacity of the path,
    /// packets arrive at the capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-from" = "100kbit", "x-to" = "10gbit"))]
    pub rate: Option<Rate>,
    /// `http`: a name that is resolved on `from` before every fetch, instead of using the address; `dns_us` is the
    /// duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

impl Probe {
    /// A probe between these nodes, with every default.
    pub fn new(kind: ProbeKind, from: impl Into<String>, to: impl Into<String>) -> Self {
        Self {
            kind,
            from: from.into(),
            to: to.into(),
            start: Micros::default(),
            every: default_every(),
            repeat: Repeat::default(),
            timeout: None,
            tos: 0,
            bytes: None,
            cc: None,
            rate: None,
            host: None,
        }
    }

    /// Timeout, after which a measurement has failed.
    pub fn timeout(&self) -> Micros {
        self.timeout.unwrap_or(self.kind.usual_timeout())
    }
}

fn default_every() -> Micros {
    Micros::from_secs(1)
}

fn is_beginning(start: &Micros) -> bool {
    start.get() == 0
}

fn is_zero(tos: &u8) -> bool {
    *tos == 0
}

/// Kinds of probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProbeKind {
    /// ICMP echo (ICMPv6 if the node's address is IPv6).
    Ping,
    /// An echo of 64 bytes over UDP, for paths that treat ICMP differently, and for ECN.
    Udp,
    /// Duration of connect().
    TcpConnect,
    /// Fetches a file from a web server.
    Http,
    /// A UDP stream that the other node sends at a constant rate; each row has the bytes that arrived.
    UdpStream,
}

impl ProbeKind {
    /// As it is written in plans and in column `kind`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::Udp => "udp",
            Self::TcpConnect => "tcp_connect",
            Self::Http => "http",
            Self::UdpStream => "udp_stream",
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

    /// Timeout, after which a measurement has failed.
    pub const fn usual_timeout(self) -> Micros {
        Micros::from_secs(match self {
            Self::Ping | Self::Udp | Self::UdpStream => 1,
            Self::TcpConnect => 10,
            Self::Http => 60,
        })
    }
}

/// Whether a probe is done again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Repeat {
    /// At every interval.
    #[default]
    Interval,
    /// Only once.
    Once,
    /// As soon as the previous one has finished.
    BackToBack,
}

impl Repeat {
    /// The usual one.
    pub fn is_interval(&self) -> bool {
        *self == Self::Interval
    }
}
