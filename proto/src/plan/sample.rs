//! How often to look at what.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::units::Micros;

/// Sampling intervals.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sample {
    /// `TCP_INFO` of every socket of every flow, by polling.
    pub tcp: Micros,
    /// The same sockets by eBPF, when a segment comes to them. A plan that does not ask is written as ever.
    #[serde(skip_serializing_if = "Acks::is_off")]
    pub acks: Acks,
    /// Queue counters of every shaped interface.
    pub qdisc: Micros,
    /// CPU and softirq of every node's host.
    pub host: Micros,
}

impl Default for Sample {
    fn default() -> Self {
        Self {
            tcp: Micros::from_millis(100),
            acks: Acks::default(),
            qdisc: Micros::from_millis(100),
            host: Micros::from_millis(500),
        }
    }
}

/// Which acknowledgements leave a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Acks {
    /// None; nothing is loaded.
    #[default]
    Off,
    /// Each (`"every-ack"`).
    Every,
    /// Those that find the congestion control's state changed (`"on-change"`).
    Change,
    /// At most one in this time per socket (`"10ms"`).
    AtMost(Micros),
}

impl Acks {
    /// Nobody asks.
    pub fn is_off(&self) -> bool {
        *self == Self::Off
    }
}

const EXPECTED: &str = "a time (\"10ms\"), \"every-ack\", \"on-change\" or \"off\" in quotes";

impl FromStr for Acks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "every-ack" => Ok(Self::Every),
            "on-change" => Ok(Self::Change),
            _ => text
                .parse()
                .map(Self::AtMost)
                .map_err(|_| format!("`{}` is not {EXPECTED}", text.escape_debug())),
        }
    }
}

impl fmt::Display for Acks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
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
        for text in ["off", "every-ack", "on-change", "10ms", "1500us"] {
            let acks: Acks = text.parse().unwrap();
            assert_eq!(acks.to_string(), text);
        }
        assert!(Acks::default().is_off());
        assert!("sometimes".parse::<Acks>().is_err());
    }
}
