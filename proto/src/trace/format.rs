//! The formats of traces.

use std::fmt;
use std::str::FromStr;

/// A name that is not a trace format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a trace format; write {}", Format::ALL.map(Format::name).join(", "))]
pub struct UnknownFormat {
    /// The name.
    pub text: String,
}

/// The formats that traces come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// One integer per line: the millisecond of an opportunity to send a packet.
    Mahimahi,
    /// `rate_mbit,dwell_s`.
    Dwell,
    /// `t_s rate_mbit`, separated by blanks or a comma.
    Timed,
    /// The JSON of the netem-trace crate's bandwidth models.
    Netem,
    /// TheaterQ's, simple (5 columns) or extended (8 to 10).
    TheaterQ,
    /// ccbench's own: a header with `t_us` and what changes: `rate_bps`, `delay_us`, `loss_ppm`.
    Ccbench,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Mahimahi, Self::Dwell, Self::Timed, Self::Netem, Self::TheaterQ, Self::Ccbench];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mahimahi => "mahimahi",
            Self::Dwell => "dwell",
            Self::Timed => "timed",
            Self::Netem => "netem-trace",
            Self::TheaterQ => "theaterq",
            Self::Ccbench => "ccbench",
        }
    }

    /// An example of its lines.
    pub const fn example(self) -> &'static str {
        match self {
            Self::Mahimahi => "one integer of milliseconds per line",
            Self::Dwell => "`rate_mbit,dwell_s` per line",
            Self::Timed => "`t_s rate_mbit` per line",
            Self::Netem => "JSON of netem-trace",
            Self::TheaterQ => "`KEEP_us,LATENCY_ns,RATE_bps,LOSS,LIMIT` per line",
            Self::Ccbench => "a header `t_us,rate_bps[,delay_us][,loss_ppm]`, then numbers",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name(), self.example())
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;
    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        let found = Self::ALL.into_iter().find(|format| format.name() == text);
        found.ok_or_else(|| UnknownFormat { text: text.to_owned() })
    }
}
