//! Which format a trace is in.

use std::fmt;
use std::str::FromStr;

use super::TraceError;
use super::number::scaled;
use super::text::{fields, lines};

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

    /// As it is written on command lines.
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

    /// What its lines look like.
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
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|format| format.name() == text).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|format| format.name()).collect();
            format!("`{text}` is no trace format; there are {}", names.join(", "))
        })
    }
}

/// The format of `text`.
pub(super) fn detect(name: &str, text: &str) -> Result<Format, TraceError> {
    let refuse = |line, what: String| Err(TraceError::one(name, None, line, what));
    let Some((number, first)) = lines(text).next() else {
        return refuse(0, "it is empty".to_owned());
    };
    if first.starts_with(['{', '[']) {
        return Ok(Format::Netem);
    }
    let columns: Vec<&str> = fields(first).collect();
    // "NaN" and "inf" begin like a header's names, and are none.
    let is_header = columns.iter().all(|field| {
        field.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && !["nan", "inf", "infinity"].contains(&field.to_ascii_lowercase().as_str())
    });
    if is_header {
        return match of_header(&columns) {
            Some(format) => Ok(format),
            None => refuse(
                number,
                format!(
                    "the header `{}` is unknown; `t_us,rate_bps`, `t_s,rate_mbit` and `rate_mbit,dwell_s` are known",
                    shown(first)
                ),
            ),
        };
    }
    match columns.len() {
        1 => Ok(Format::Mahimahi),
        2 if !first.contains([',', ';']) => Ok(Format::Timed),
        2 => pairs(name, text),
        5 | 8..=10 => Ok(Format::TheaterQ),
        count => {
            let known: Vec<_> = Format::ALL.iter().map(|format| format.example()).collect();
            refuse(
                number,
                format!(
                    "`{}` has {count} columns, as no trace format has; known are {}",
                    shown(first),
                    known.join(", ")
                ),
            )
        }
    }
}

/// What a header says.
pub(super) fn of_header(columns: &[&str]) -> Option<Format> {
    let lower: Vec<String> = columns.iter().map(|column| column.to_ascii_lowercase()).collect();
    let first = lower.first()?.as_str();
    match first {
        "t_us" => Some(Format::Ccbench),
        "keep" | "keep_us" => Some(Format::TheaterQ),
        "t" | "t_s" | "time" | "time_s" | "seconds" | "timestamp" => Some(Format::Timed),
        _ if lower.len() == 2 && first.starts_with("rate") => Some(Format::Dwell),
        _ => None,
    }
}

/// Two columns with a comma are rates and dwells, unless the first can only be times: it begins at zero and
/// grows from line to line.
fn pairs(name: &str, text: &str) -> Result<Format, TraceError> {
    let mut last: Option<u64> = None;
    let (mut count, mut second, mut second_varies) = (0_usize, None, false);
    for (_, line) in lines(text) {
        let mut fields = fields(line);
        let (Some(one), Some(other)) = (fields.next(), fields.next()) else { break };
        let Ok(one) = scaled(one, 9) else { break };
        if last.map_or(one != 0, |last| one <= last) {
            return Ok(Format::Dwell);
        }
        last = Some(one);
        count += 1;
        let other = scaled(other, 9).ok();
        second_varies |= other == Some(0) || count > 1 && other != second;
        second = other;
    }
    if count < 2 {
        Ok(Format::Dwell)
    } else if second_varies {
        Ok(Format::Timed)
    } else {
        Err(TraceError::one(
            name,
            None,
            1,
            "it may be times and rates, or rates and dwells; write a first line `t_s,rate_mbit` or `rate_mbit,dwell_s`"
                .to_owned(),
        ))
    }
}

/// The beginning of a line, fit to be printed.
pub(super) fn shown(line: &str) -> String {
    let short: String = line.chars().take(60).collect();
    let dots = if short.len() < line.len() { "..." } else { "" };
    format!("{}{dots}", short.escape_debug())
}
