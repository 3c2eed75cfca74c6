//! `[sample]`: sampling intervals.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::units::Micros;

/// Sampling intervals.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Sample {
    /// `TCP_INFO` of every socket of every flow, by polling.
    #[schemars(extend("x-from" = "1ms", "x-to" = "1h"))]
    pub tcp: Micros,
    /// The same sockets, by eBPF when a segment arrives, with the kernel's time: tables `acks` and `tcp_events`. Selects the
    /// acknowledgements that produce a row.
    #[serde(skip_serializing_if = "Acks::is_auto")]
    #[schemars(extend("x-from" = "1ms", "x-to" = "1h", "default" = "auto"))]
    pub acks: Acks,
    /// Queue length and counters of every shaped interface.
    #[schemars(extend("x-from" = "1ms", "x-to" = "1h"))]
    pub qdisc: Micros,
    /// CPU and softirq of every node's machine.
    #[schemars(extend("x-from" = "1ms", "x-to" = "1h"))]
    pub host: Micros,
    /// Length of the instants over which fairness indices, utilities, power and the variation of throughput are computed
    /// before they are averaged, a multiple of 100ms; absent: four base RTTs of the longest path, at least 100ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-from" = "100ms", "x-to" = "1h"))]
    pub timescale: Option<Micros>,
}

impl Default for Sample {
    fn default() -> Self {
        Self {
            tcp: Micros::from_millis(100),
            acks: Acks::default(),
            qdisc: Micros::from_millis(100),
            host: Micros::from_millis(500),
            timescale: None,
        }
    }
}

/// Minimum timescale, of which all others are multiples: the usual interval of a receiver's reports.
pub const MIN_TIMESCALE: Micros = Micros::from_millis(100);
/// Base RTTs in the default timescale. Within one RTT, rates show bursts instead of shares.
const RTTS_OF_TIMESCALE: u64 = 4;

impl Sample {
    /// The timescale, for paths with at most this base RTT.
    pub fn timescale(&self, base_rtt: Micros) -> Micros {
        self.timescale.unwrap_or_else(|| {
            let least = MIN_TIMESCALE.get();
            let several = base_rtt.get().saturating_mul(RTTS_OF_TIMESCALE);
            Micros::new(several.div_ceil(least).max(1).saturating_mul(least))
        })
    }
}

/// Which acknowledgements produce a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Acks {
    /// At most one per 10 ms and socket; a longer interval on nodes with more than 100 sockets (`"auto"`).
    #[default]
    Auto,
    /// None; nothing is loaded.
    Off,
    /// Each (`"every-ack"`).
    Every,
    /// Those that find the congestion control's state changed (`"on-change"`).
    Change,
    /// At most one per socket in this time (`"10ms"`).
    AtMost(Micros),
}

/// Minimum interval between two rows of a socket in automatic mode.
const MIN_GAP: Micros = Micros::from_millis(10);
/// Maximum rows per second and node in automatic mode.
const MAX_ROWS_PER_S: u64 = 10_000;

impl Acks {
    /// Whether acknowledgements are not recorded.
    pub fn is_off(&self) -> bool {
        *self == Self::Off
    }

    /// Whether the interval is automatic.
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }

    /// The effective selection on a node with this number of sockets.
    pub fn of_sockets(self, sockets: u64) -> Self {
        match self {
            Self::Auto => {
                let gap = Micros::new(sockets.saturating_mul(1_000_000 / MAX_ROWS_PER_S));
                Self::AtMost(gap.max(MIN_GAP))
            }
            configured => configured,
        }
    }
}

const EXPECTED: &str =
    "a time (\"10ms\"), \"auto\", \"every-ack\", \"on-change\" or \"off\" in quotes";

/// A text that selects no acknowledgements.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not {EXPECTED}", text.escape_debug())]
pub struct InvalidAcks {
    /// The text.
    pub text: String,
}

impl FromStr for Acks {
    type Err = InvalidAcks;

    fn from_str(text: &str) -> Result<Self, InvalidAcks> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            "every-ack" => Ok(Self::Every),
            "on-change" => Ok(Self::Change),
            _ => text.parse().map(Self::AtMost).map_err(|_| InvalidAcks { text: text.to_owned() }),
        }
    }
}

impl fmt::Display for Acks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::Every => f.write_str("every-ack"),
            Self::Change => f.write_str("on-change"),
            Self::AtMost(gap) => gap.fmt(f),
        }
    }
}

impl Serialize for Acks {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Acks {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = Acks;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Acks, E> {
                text.parse().map_err(E::custom)
            }
        }
        d.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_reads_back() {
        for text in ["auto", "off", "every-ack", "on-change", "10ms", "1500us"] {
            let acks: Acks = text.parse().unwrap();
            assert_eq!(acks.to_string(), text);
        }
        assert!("sometimes".parse::<Acks>().is_err());
    }

    #[test]
    fn timescale_is_several_base_rtts() {
        let ms = Micros::from_millis;
        let default = |rtt| Sample::default().timescale(rtt);
        assert_eq!([0, 15, 25].map(|rtt| default(ms(rtt))), [ms(100); 3]);
        assert_eq!([26, 60, 600].map(|rtt| default(ms(rtt))), [ms(200), ms(300), ms(2400)]);
        let configured = Sample { timescale: Some(ms(500)), ..Sample::default() };
        assert_eq!(configured.timescale(ms(600)), ms(500));
    }

    #[test]
    fn automatic_interval_grows_with_the_sockets() {
        let gap = |ms| Acks::AtMost(Micros::from_millis(ms));
        assert_eq!(Acks::default().of_sockets(1), gap(10));
        assert_eq!(Acks::Auto.of_sockets(100), gap(10));
        assert_eq!(Acks::Auto.of_sockets(1000), gap(100));
        assert_eq!(gap(1).of_sockets(1000), gap(1));
        assert_eq!(Acks::Off.of_sockets(1000), Acks::Off);
    }
}
