//! Detects the format of a trace.

use super::lines::{fields, lines, shown};
use super::number::scaled;
use super::{Format, MAX_LINE_BYTES, TraceError, long_line};

/// The format of `text`.
pub(super) fn detect(name: &str, text: &str) -> Result<Format, TraceError> {
    let refuse = |line, what: String| Err(TraceError::one(name, None, line, what));
    let Some((number, first)) = lines(text).next() else {
        return refuse(0, "it is empty".to_owned());
    };
    if first.starts_with(['{', '[']) {
        return Ok(Format::Netem);
    }
    // Its columns would take sixteen times its memory.
    if first.len() > MAX_LINE_BYTES {
        return refuse(number, long_line());
    }
    let columns: Vec<&str> = fields(first).collect();
    // "NaN" and "inf" begin like names of a header, but are not names.
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
                    "`{}` has {count} columns, but no trace format does; known formats: {}",
                    shown(first),
                    known.join(", ")
                ),
            )
        }
    }
}

/// Units of a header's columns in which no format has its rates or times.
const OTHER_UNITS: [&str; 33] = [
    "bps", "bit", "bits", "kbps", "kbit", "kbits", "gbps", "gbit", "gbits", "byte", "bytes", "kb",
    "kbyte", "kbytes", "mb", "mbyte", "mbytes", "mib", "kib", "gb", "gbyte", "gbytes", "ms",
    "msec", "us", "usec", "ns", "nsec", "min", "mins", "minutes", "hour", "hours",
];

/// The format of a header.
pub(super) fn of_header(columns: &[&str]) -> Option<Format> {
    let lower: Vec<String> = columns.iter().map(|column| column.to_ascii_lowercase()).collect();
    let first = lower.first()?.as_str();
    let mut words = lower.iter().flat_map(|column| column.split(|c: char| !c.is_alphanumeric()));
    match first {
        "t_us" => Some(Format::Ccbench),
        "keep" | "keep_us" => Some(Format::TheaterQ),
        // Rates in Mbit/s and times in seconds: other units would be misread.
        _ if words.any(|word| OTHER_UNITS.contains(&word)) => None,
        "t" | "t_s" | "time" | "time_s" | "seconds" | "timestamp" => Some(Format::Timed),
        _ if lower.len() == 2 && first.starts_with("rate") => Some(Format::Dwell),
        _ => None,
    }
}

/// Decides on two comma-separated columns: they are rates and dwell times, unless the first one can only be times, because it
/// begins at zero and increases.
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
