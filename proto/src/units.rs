//! Quantities with units: their text form, the stored integer, and dimensionally correct arithmetic.
//!
//! Every type stores one integer in the unit its constructor names. Text forms always carry a unit
//! (`"100mbit"`, `"187500B"`, `"15ms"`, `"0.1%"`, `"40p"`): a bare number is refused, because half of the
//! mistakes in hand-written `tc` scripts are missing units.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a text is not a quantity. The message shows the text and the right form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {what}: {reason}; write it like {example}")]
pub struct UnitError {
    text: String,
    what: &'static str,
    reason: &'static str,
    example: Cow<'static, str>,
}

/// The quantities, as errors about them name them.
const QUANTITIES: [&str; 6] =
    ["a rate", "a size", "a number of packets", "a length of time", "a share", "a queue limit"];

impl UnitError {
    /// Whether a message is about the text form of a quantity: it is this error, or says that the text is missing.
    pub fn is_in(message: &str) -> bool {
        QUANTITIES.iter().any(|what| {
            message.contains(&format!("` is not {what}: "))
                || message.contains(&format!("must be {what} in quotes"))
        })
    }
}

/// A rate in bits per second, as on the wire at layer 2 (`"100mbit"`; decimal prefixes, as in `tc`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

/// A number of bytes (`"187500B"`, `"256kib"`, `"7.5MB"`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(u64);

/// A number of packets (`"40p"`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Packets(u32);

/// A length of time in microseconds (`"15ms"`, `"250us"`, `"60s"`, `"2min"`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Micros(u64);

/// A share in parts per million (`"0.1%"`, `"100ppm"`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ppm(u32);

/// The capacity of a queue, in any unit. [`crate::resolve`] converts it to bytes or packets once the rate and the base round-trip
/// time are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// An absolute number of bytes.
    Bytes(Bytes),
    /// An absolute number of packets.
    Packets(Packets),
    /// Thousandths of the path's bandwidth-delay product (`"1.5bdp"` is 1500).
    MilliBdp(u32),
    /// The bytes that the link's rate drains in this time (`"15ms"`).
    Time(Micros),
}

impl Limit {
    /// Whether it depends on a rate or a round-trip time.
    pub const fn is_relative(self) -> bool {
        matches!(self, Self::MilliBdp(_) | Self::Time(_))
    }
}

/// Bytes of one full-sized Ethernet frame as queues and shapers count it (1500 B IP + 14 B header).
pub const FRAME_BYTES: u64 = 1514;

impl Rate {
    /// From bits per second.
    pub const fn from_bits_per_sec(bits: u64) -> Self {
        Self(bits)
    }
    /// Bits per second.
    pub const fn bits_per_sec(self) -> u64 {
        self.0
    }
    /// Whole bytes per second, rounded down (the unit `tc` passes to the kernel).
    pub const fn bytes_per_sec(self) -> u64 {
        self.0 / 8
    }
    /// Bytes at this rate in `time`, rounded down.
    pub fn bytes_in(self, time: Micros) -> Bytes {
        let bytes = u128::from(self.0) * u128::from(time.0) / 8_000_000;
        Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
    /// How long `bytes` take at this rate, in nanoseconds rounded up; `u64::MAX` for a rate of zero.
    pub fn ns_for(self, bytes: Bytes) -> u64 {
        if self.0 == 0 {
            return u64::MAX;
        }
        (u128::from(bytes.0) * 8_000_000_000).div_ceil(u128::from(self.0)).min(u128::from(u64::MAX))
            as u64
    }
}

impl Bytes {
    /// From bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }
    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl Packets {
    /// From packets.
    pub const fn new(packets: u32) -> Self {
        Self(packets)
    }
    /// The number of packets.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl Micros {
    /// From microseconds.
    pub const fn new(us: u64) -> Self {
        Self(us)
    }
    /// From milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms * 1000)
    }
    /// From whole seconds.
    pub const fn from_secs(s: u64) -> Self {
        Self(s * 1_000_000)
    }
    /// Microseconds.
    pub const fn get(self) -> u64 {
        self.0
    }
    /// Nanoseconds (saturating).
    pub const fn nanos(self) -> u64 {
        self.0.saturating_mul(1000)
    }
    /// Seconds, for printing and for result columns.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
    /// Returns it in the largest unit that keeps it a whole number, such as `15min`, for messages. The text form ([`fmt::Display`])
    /// of resolved plans has no unit above seconds.
    pub fn in_largest_unit(self) -> String {
        let (value, unit) = in_largest_unit(self.0, PRINTED_TIME_UNITS);
        format!("{value}{unit}")
    }
    /// As a standard duration.
    pub const fn duration(self) -> std::time::Duration {
        std::time::Duration::from_micros(self.0)
    }
}

impl std::ops::Add for Micros {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl std::ops::Sub for Micros {
    type Output = Self;
    /// Saturates at zero.
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Ppm {
    /// From parts per million; `None` above one million.
    pub const fn new(ppm: u32) -> Option<Self> {
        if ppm > 1_000_000 { None } else { Some(Self(ppm)) }
    }
    /// Parts per million.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// The reason for a number with an unknown unit.
const UNKNOWN_UNIT: &str = "the unit is unknown";

/// Splits `"1.5mbit"` into the number and its unit, and scales it by the unit's factor with exact
/// decimal arithmetic (no float: `"0.1mbit"` is exactly 100 000).
fn scaled(
    text: &str,
    units: &[(&str, u64)],
    what: &'static str,
    example: &'static str,
) -> Result<u64, UnitError> {
    let fail = |reason| UnitError { text: text.to_owned(), what, reason, example: example.into() };
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
    let (number, unit) = (&trimmed[..split], trimmed[split..].trim());
    if number.is_empty() {
        return Err(fail(if trimmed.starts_with('-') {
            "it is negative"
        } else {
            "it does not begin with a number"
        }));
    }
    if unit.is_empty() {
        return Err(fail("the unit is missing"));
    }
    let factor = units
        .iter()
        .find(|(name, _)| *name == unit)
        .or_else(|| units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)))
        .map(|&(_, factor)| factor)
        .ok_or_else(|| {
            match with_prefix(unit, units).filter(|_| number.parse::<f64>().is_ok()) {
                None => fail(UNKNOWN_UNIT),
                Some(meant) => {
                    let example = format!("\"{number}{meant}\"").into();
                    UnitError { example, ..fail(UNKNOWN_UNIT) }
                }
            }
        })?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let has_digits = !whole.is_empty() || !fraction.is_empty();
    if !has_digits || fraction.contains('.') || fraction.len() > 12 || whole.len() > 20 {
        return Err(fail("the number is malformed"));
    }
    let digits = |s: &str| if s.is_empty() { Ok(0) } else { s.parse::<u128>() };
    let (Ok(whole), Ok(part)) = (digits(whole), digits(fraction)) else {
        return Err(fail("the number is malformed"));
    };
    let denominator = 10u128.pow(fraction.len() as u32);
    // Up to 32 digits, with units of up to 10^12.
    let value = (whole * denominator + part).checked_mul(u128::from(factor));
    let value = value.ok_or_else(|| fail("it is too large"))?;
    if !value.is_multiple_of(denominator) {
        return Err(fail("it is finer than the smallest unit that ccbench keeps"));
    }
    u64::try_from(value / denominator).map_err(|_| fail("it is too large"))
}

/// Returns the unit with this prefix: `20M` is probably `20mbit`.
fn with_prefix<'a>(prefix: &str, units: &[(&'a str, u64)]) -> Option<&'a str> {
    let mut names = units.iter().map(|(name, _)| *name);
    names.find(|name| {
        ["bit", "B"].iter().any(|base| name.eq_ignore_ascii_case(&format!("{prefix}{base}")))
    })
}

pub(crate) const RATE_UNITS: &[(&str, u64)] = &[
    ("bit", 1),
    ("kbit", 1_000),
    ("mbit", 1_000_000),
    ("gbit", 1_000_000_000),
    ("tbit", 1_000_000_000_000),
    ("bps", 1),
    ("kbps", 1_000),
    ("mbps", 1_000_000),
    ("gbps", 1_000_000_000),
];
pub(crate) const BYTE_UNITS: &[(&str, u64)] = &[
    ("B", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];
pub(crate) const PACKET_UNITS: &[(&str, u64)] =
    &[("p", 1), ("pkt", 1), ("pkts", 1), ("packet", 1), ("packets", 1)];
pub(crate) const TIME_UNITS: &[(&str, u64)] = &[
    ("us", 1),
    ("µs", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("min", 60_000_000),
    ("h", 3_600_000_000),
];
/// The units in which times are printed.
const PRINTED_TIME_UNITS: &[(&str, u64)] =
    &[("us", 1), ("ms", 1_000), ("s", 1_000_000), ("min", 60_000_000), ("h", 3_600_000_000)];
pub(crate) const SHARE_UNITS: &[(&str, u64)] = &[("%", 10_000), ("ppm", 1)];

impl FromStr for Rate {
    type Err = UnitError;
    /// Decimal prefixes and bits, as in `tc`'s `mbit`; `bps` here is bits per second.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (what, example) = ("a rate", "\"100mbit\"");
        if text.trim_end().ends_with("Bps") {
            let reason = "`B` is a byte; multiply by 8 and write bits";
            let (text, example) = (text.to_owned(), example.into());
            return Err(UnitError { text, what, reason, example });
        }
        scaled(text, RATE_UNITS, what, example).map(Self)
    }
}

impl FromStr for Bytes {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        scaled(text, BYTE_UNITS, "a size", "\"187500B\" or \"256KiB\"").map(Self)
    }
}

impl FromStr for Packets {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let example = "\"40p\"";
        let count = scaled(text, PACKET_UNITS, "a number of packets", example)?;
        u32::try_from(count).map(Self).map_err(|_| UnitError {
            text: text.to_owned(),
            what: "a number of packets",
            reason: "the largest is 4294967295p",
            example: example.into(),
        })
    }
}

impl FromStr for Micros {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        scaled(text, TIME_UNITS, "a length of time", "\"15ms\", \"250us\" or \"60s\"").map(Self)
    }
}

impl FromStr for Ppm {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (what, example) = ("a share", "\"0.1%\" or \"100ppm\"");
        let ppm = scaled(text, SHARE_UNITS, what, example)?;
        u32::try_from(ppm).ok().and_then(Self::new).ok_or_else(|| UnitError {
            text: text.to_owned(),
            what,
            reason: "it is more than 100 %",
            example: example.into(),
        })
    }
}

impl FromStr for Limit {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let what = "a queue limit";
        let lower = text.trim().to_ascii_lowercase();
        if lower.ends_with("bdp") {
            let example = "\"1.5bdp\"";
            let milli = scaled(text, &[("bdp", 1000)], what, example)?;
            return u32::try_from(milli).map(Self::MilliBdp).map_err(|_| UnitError {
                text: text.to_owned(),
                what,
                reason: "the largest is 4294967.295bdp",
                example: example.into(),
            });
        }
        let is_other_unit = |error: &UnitError| error.reason == UNKNOWN_UNIT;
        let mut limit = text.parse().map(Self::Packets);
        if limit.as_ref().is_err_and(is_other_unit) {
            limit = text.parse().map(Self::Time);
        }
        if limit.as_ref().is_err_and(is_other_unit) {
            limit = text.parse().map(Self::Bytes);
        }
        let example = "\"187500B\", \"40p\", \"15ms\" or \"1.5bdp\"";
        limit.map_err(|error| match error.example {
            // The unit that was probably meant.
            Cow::Owned(_) => UnitError { what, ..error },
            Cow::Borrowed(_) => UnitError { what, example: example.into(), ..error },
        })
    }
}

/// Returns `value` in the largest unit that keeps it a whole number, and that unit.
fn in_largest_unit<'a>(value: u64, units: &[(&'a str, u64)]) -> (u64, &'a str) {
    let &(name, factor) = units
        .iter()
        .rev()
        .find(|(_, factor)| value >= *factor && value.is_multiple_of(*factor))
        .unwrap_or(&units[0]);
    (value / factor, name)
}

fn write_scaled(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let (value, name) = in_largest_unit(value, units);
    write!(f, "{value}{name}")
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_scaled(f, self.0, &RATE_UNITS[..4])
    }
}
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}B", self.0)
    }
}
impl fmt::Display for Packets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}p", self.0)
    }
}
impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_scaled(f, self.0, &PRINTED_TIME_UNITS[..3])
    }
}
impl fmt::Display for Ppm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_scaled(f, u64::from(self.0), &[("ppm", 1), ("%", 10_000)])
    }
}
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(b) => b.fmt(f),
            Self::Packets(p) => p.fmt(f),
            Self::Time(t) => t.fmt(f),
            Self::MilliBdp(m) if m % 1000 == 0 => write!(f, "{}bdp", m / 1000),
            Self::MilliBdp(m) => {
                let text = format!("{}.{:03}", m / 1000, m % 1000);
                write!(f, "{}bdp", text.trim_end_matches('0'))
            }
        }
    }
}

macro_rules! text_serde {
    ($($type:ty: $expecting:literal),+ $(,)?) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                struct Text;
                impl serde::de::Visitor<'_> for Text {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                d.deserialize_str(Text)
            }
        }
    )+};
}
text_serde! {
    Rate: "a rate in quotes with its unit, like \"100mbit\"",
    Bytes: "a size in quotes with its unit, like \"187500B\"",
    Packets: "a number of packets in quotes, like \"40p\"",
    Micros: "a length of time in quotes with its unit, like \"15ms\"",
    Ppm: "a share in quotes, like \"0.1%\"",
    Limit: "a queue limit in quotes, like \"187500B\", \"40p\", \"15ms\" or \"1.5bdp\"",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms_are_exact() {
        assert_eq!("100mbit".parse(), Ok(Rate(100_000_000)));
        assert_eq!("1.5 Gbit".parse(), Ok(Rate(1_500_000_000)));
        assert_eq!("0.1mbit".parse(), Ok(Rate(100_000)));
        assert_eq!("187500B".parse(), Ok(Bytes(187_500)));
        assert_eq!("256KiB".parse(), Ok(Bytes(262_144)));
        assert_eq!("40p".parse(), Ok(Packets(40)));
        assert_eq!("250us".parse(), Ok(Micros(250)));
        assert_eq!("0.5ms".parse(), Ok(Micros(500)));
        assert_eq!("0.1%".parse(), Ok(Ppm(1_000)));
        assert_eq!("1.5bdp".parse(), Ok(Limit::MilliBdp(1500)));
        assert_eq!("15ms".parse(), Ok(Limit::Time(Micros(15_000))));
        assert_eq!("40p".parse(), Ok(Limit::Packets(Packets(40))));
    }

    #[test]
    fn invalid_text_shows_the_fix() {
        let error = |r: Result<Rate, UnitError>| r.unwrap_err().to_string();
        assert_eq!(
            error("100".parse()),
            "`100` is not a rate: the unit is missing; write it like \"100mbit\""
        );
        assert!(error("-1mbit".parse()).contains("negative"));
        assert!(error("fast".parse()).contains("does not begin with a number"));
        assert!(error("0.3bit".parse()).contains("finer"));
        assert!(error("10MBps".parse()).contains("`B` is a byte"));
        assert_eq!("10Mbps".parse(), Ok(Rate(10_000_000)));
        assert!(error(".mbit".parse()).contains("the number is malformed"));
        assert_eq!(".5mbit".parse(), Ok(Rate(500_000)));
        assert!("101%".parse::<Ppm>().unwrap_err().to_string().contains("100 %"));
        assert!("99999999999tbit".parse::<Rate>().unwrap_err().to_string().contains("too large"));
    }

    #[test]
    fn a_prefix_alone_suggests_its_unit() {
        let rate = |text: &str| text.parse::<Rate>().unwrap_err().to_string();
        let unknown = "`20M` is not a rate: the unit is unknown; write it like \"20mbit\"";
        assert_eq!(rate("20M"), unknown);
        assert!(rate("1.5G").ends_with("write it like \"1.5gbit\""));
        assert!(rate("10x").ends_with("write it like \"100mbit\""));
        let size = "256k".parse::<Bytes>().unwrap_err().to_string();
        assert!(size.ends_with("write it like \"256kB\""), "{size}");
        let limit = "256Ki".parse::<Limit>().unwrap_err().to_string();
        assert!(limit.ends_with("a queue limit: the unit is unknown; write it like \"256KiB\""));
    }

    #[test]
    fn messages_about_quantities_are_recognized() {
        let errors = [
            "20M".parse::<Rate>().unwrap_err(),
            "1".parse::<Bytes>().unwrap_err(),
            "1x".parse::<Packets>().unwrap_err(),
            "1".parse::<Micros>().unwrap_err(),
            "101%".parse::<Ppm>().unwrap_err(),
            "1furlong".parse::<Limit>().unwrap_err(),
        ];
        for error in errors {
            assert!(UnitError::is_in(&error.to_string()), "{error}");
        }
        assert!(UnitError::is_in("must be a rate in quotes with its unit, not the number `1`"));
        assert!(!UnitError::is_in("`x` is not a metric of a group"));
    }

    #[test]
    fn limits_are_not_clamped_and_errors_have_their_reason() {
        let error = |text: &str| text.parse::<Limit>().unwrap_err().to_string();
        assert_eq!("4294967.295bdp".parse(), Ok(Limit::MilliBdp(u32::MAX)));
        assert_eq!(
            error("99999999999bdp"),
            "`99999999999bdp` is not a queue limit: the largest is 4294967.295bdp; write it like \"1.5bdp\""
        );
        assert!(error("4294967.296bdp").contains("the largest is 4294967.295bdp"));
        assert!(error("4294967296p").contains("a queue limit: the largest is 4294967295p; write"));
        assert!(error("99999999999999h").contains("it is too large"));
        assert!(error("0.1B").contains("finer than the smallest unit"));
        assert!(error("40x").contains("the unit is unknown"));
        assert!(error("-1B").contains("it is negative"));
    }

    #[test]
    fn printed_values_parse_back() {
        for text in ["100mbit", "1500kbit", "1bit"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        for text in ["15ms", "250us", "60s", "0us"] {
            assert_eq!(text.parse::<Micros>().unwrap().to_string(), text);
        }
        for text in ["1.5bdp", "2bdp", "40p", "187500B"] {
            assert_eq!(text.parse::<Limit>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn messages_have_times_as_users_write_them() {
        for text in ["0us", "250us", "1500ms", "90s", "15min", "90min", "1h", "720h"] {
            assert_eq!(text.parse::<Micros>().unwrap().in_largest_unit(), text);
        }
        for (text, shown) in [("3600s", "1h"), ("0.25h", "15min"), ("60000ms", "1min")] {
            assert_eq!(text.parse::<Micros>().unwrap().in_largest_unit(), shown);
        }
    }

    #[test]
    fn rate_times_time_is_bytes() {
        let rate = Rate::from_bits_per_sec(100_000_000);
        assert_eq!(rate.bytes_in(Micros::from_millis(15)), Bytes::new(187_500));
        assert_eq!(rate.ns_for(Bytes::new(1_500)), 120_000);
        assert_eq!(Rate::from_bits_per_sec(0).ns_for(Bytes::new(1)), u64::MAX);
    }
}
