//! Writes a trace as text.

use std::fmt::Write as _;

use super::number::text;
use super::rows::{LONE_ROW_NS, MIN_ROW_NS};
use super::{Format, MAX_OPPORTUNITIES_LENGTH_NS, MAX_ROWS, Opportunities, Step, Steps, Trace};
use crate::units::Ppm;

/// Why a format cannot represent a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The format has only rates.
    #[error(
        "the rows have a delay or a loss, which this format cannot hold; use `ccbench` or `theaterq`"
    )]
    DelayOrLoss,
    /// The format needs a rate in every row.
    #[error("a row has no rate")]
    NoRate,
    /// A mahimahi trace ends with a packet.
    #[error(
        "its last {left_s} s have no packet, but a trace in this format ends with a packet; use `ccbench` or `dwell`",
        left_s = text(*left_ns, 9)
    )]
    NoPacketAtEnd {
        /// Time after the last packet, nanoseconds.
        left_ns: u64,
    },
    /// The format has no length of the last row.
    #[error(
        "the last row is too short to keep its length in this format; use `ccbench` or `dwell`"
    )]
    LastRow,
    /// A mahimahi trace needs a packet and a length above zero.
    #[error("the trace has no packet, or is shorter than a millisecond")]
    Empty,
    /// The mahimahi trace would last too long.
    #[error("it lasts longer than a day, the limit of a mahimahi trace")]
    TooLong,
    /// The mahimahi trace would have too many lines.
    #[error(
        "the file would have more than {MAX_ROWS} lines, the limit of a trace; use `ccbench` or `dwell`"
    )]
    TooManyLines,
}

/// Writes the trace in `format`.
///
/// # Errors
/// The format cannot represent the trace.
pub fn write(trace: &Trace, format: Format) -> Result<String, WriteError> {
    match (trace, format) {
        (Trace::Opportunities(all), Format::Mahimahi) => mahimahi(all),
        (Trace::Steps(steps), Format::Mahimahi) => mahimahi(&opportunities(steps)?),
        (Trace::Opportunities(all), other) => write(&Trace::Steps(window_rates(all)), other),
        (Trace::Steps(steps), Format::Ccbench) => ccbench(steps),
        (Trace::Steps(steps), Format::Dwell) => rates(steps, |text_out, _, rate, length_ns| {
            let _ = writeln!(text_out, "{},{}", text(rate, 6), text(length_ns, 9));
        }),
        (Trace::Steps(steps), Format::Timed) => timed(steps),
        (Trace::Steps(steps), Format::Netem) => netem(steps),
        (Trace::Steps(steps), Format::TheaterQ) => theaterq(steps),
    }
}

/// Interval over which opportunities become a rate.
const WINDOW_NS: u64 = 100_000_000;

fn only_rates(steps: &Steps) -> Result<(), WriteError> {
    match steps.steps.iter().find(|step| step.delay_ns.is_some() || step.loss.is_some()) {
        Some(_) => Err(WriteError::DelayOrLoss),
        None => Ok(()),
    }
}

fn rates(
    steps: &Steps,
    mut row: impl FnMut(&mut String, u64, u64, u64),
) -> Result<String, WriteError> {
    only_rates(steps)?;
    let mut all = String::new();
    for (step, length_ns) in steps.spans() {
        let rate = step.rate.ok_or(WriteError::NoRate)?.bits_per_sec();
        row(&mut all, step.at_ns, rate, length_ns);
    }
    Ok(all)
}

/// In the format, the last row lasts as long as the row before it. A last row of another length is divided.
fn timed(steps: &Steps) -> Result<String, WriteError> {
    let row = |out: &mut String, at_ns, rate| {
        let _ = writeln!(out, "{} {}", text(at_ns, 9), text(rate, 6));
    };
    let mut all = rates(steps, |out, at_ns, rate, _| row(out, at_ns, rate))?;
    let (last, expected_ns) = match steps.steps.as_slice() {
        [.., before, last] => (last, last.at_ns - before.at_ns),
        [only] => (only, LONE_ROW_NS),
        [] => return Ok(all),
    };
    let length_ns = steps.length_ns.saturating_sub(last.at_ns);
    if length_ns == expected_ns {
        return Ok(all);
    }
    // The last two parts are equal to the nanosecond.
    let parts = if length_ns.is_multiple_of(2) { 2 } else { 3 };
    let part_ns = length_ns / parts;
    if part_ns < MIN_ROW_NS || steps.steps.len() + 2 > MAX_ROWS {
        return Err(WriteError::LastRow);
    }
    let rate = last.rate.ok_or(WriteError::NoRate)?.bits_per_sec();
    for left in (1..parts).rev() {
        row(&mut all, steps.length_ns - left * part_ns, rate);
    }
    Ok(all)
}

fn ccbench(steps: &Steps) -> Result<String, WriteError> {
    type Column = (&'static str, fn(&Step) -> Option<String>);
    let columns: [Column; 3] = [
        ("rate_bps", |step| Some(step.rate?.bits_per_sec().to_string())),
        ("delay_us", |step| Some(text(step.delay_ns?, 3))),
        ("loss_ppm", |step| Some(step.loss?.get().to_string())),
    ];
    let present = |(_, cell): &Column| steps.steps.iter().any(|step| cell(step).is_some());
    let columns: Vec<Column> = columns.into_iter().filter(present).collect();
    let mut all = "t_us".to_owned();
    for (name, _) in &columns {
        let _ = write!(all, ",{name}");
    }
    all.push('\n');
    for step in &steps.steps {
        all.push_str(&text(step.at_ns, 3));
        for (_, cell) in &columns {
            let _ = write!(all, ",{}", cell(step).unwrap_or_default());
        }
        all.push('\n');
    }
    // An empty row ends the trace.
    let _ = writeln!(all, "{}{}", text(steps.length_ns, 3), ",".repeat(columns.len()));
    Ok(all)
}

fn netem(steps: &Steps) -> Result<String, WriteError> {
    let mut all = "{\"RepeatedBwPatternConfig\":{\"pattern\":[\n".to_owned();
    let body = rates(steps, |text_out, at_ns, rate, length_ns| {
        let comma = if at_ns > 0 { ",\n" } else { "" };
        let (giga, rest) = (rate / 1_000_000_000, rate % 1_000_000_000);
        let (secs, nanos) = (length_ns / 1_000_000_000, length_ns % 1_000_000_000);
        let _ = write!(
            text_out,
            "{comma}{{\"StaticBwConfig\":{{\"bw\":{{\"gbps\":{giga},\"bps\":{rest}}},\"duration\":{{\"secs\":{secs},\"nanos\":{nanos}}}}}}}"
        );
    })?;
    all.push_str(&body);
    all.push_str("\n],\"count\":1}}\n");
    Ok(all)
}

fn theaterq(steps: &Steps) -> Result<String, WriteError> {
    let mut all = String::new();
    let mut begin_us = 0;
    for (step, length_ns) in steps.spans() {
        // Rounds times, not lengths, to whole microseconds, so that errors do not add up.
        let end_us = (step.at_ns + length_ns + 500) / 1000;
        let rate = match step.rate.map(crate::units::Rate::bits_per_sec) {
            // In TheaterQ, zero means unlimited; one bit per second is nearest to nothing.
            Some(bps) => bps.max(1),
            None => 0,
        };
        let loss = u64::from(step.loss.map_or(0, Ppm::get)) * u64::from(u32::MAX) / 1_000_000;
        if end_us > begin_us {
            let _ = writeln!(
                all,
                "{},{},{rate},{loss},1000",
                end_us - begin_us,
                step.delay_ns.unwrap_or(0)
            );
        }
        begin_us = end_us.max(begin_us);
    }
    Ok(all)
}

fn mahimahi(all: &Opportunities) -> Result<String, WriteError> {
    let mut lines = String::with_capacity(all.at_ns.len() * 7);
    for at_ns in &all.at_ns {
        let _ = writeln!(lines, "{}", (at_ns + 500_000) / 1_000_000);
    }
    let (last_ns, gap_ns) = match all.at_ns.as_slice() {
        [.., before, last] => (*last, last - before),
        [only] => (*only, *only),
        [] => return Err(WriteError::Empty),
    };
    if last_ns < 500_000 {
        return Err(WriteError::Empty);
    }
    // A shorter time belongs to an incomplete packet, or is lost to the format's milliseconds.
    let left_ns = all.length_ns.saturating_sub(last_ns);
    if left_ns > gap_ns.max(1_000_000) {
        return Err(WriteError::NoPacketAtEnd { left_ns });
    }
    Ok(lines)
}

/// Writes an opportunity whenever the rate has carried another 1500 bytes.
fn opportunities(steps: &Steps) -> Result<Opportunities, WriteError> {
    only_rates(steps)?;
    if steps.length_ns > MAX_OPPORTUNITIES_LENGTH_NS {
        return Err(WriteError::TooLong);
    }
    let bytes = 1500;
    let quantum = u128::from(bytes) * 8_000_000_000;
    let (mut at_ns, mut credit) = (Vec::new(), 0_u128);
    for (step, length_ns) in steps.spans() {
        let rate = u128::from(step.rate.ok_or(WriteError::NoRate)?.bits_per_sec());
        if (credit + rate * u128::from(length_ns)) / quantum + at_ns.len() as u128
            > MAX_ROWS as u128
        {
            return Err(WriteError::TooManyLines);
        }
        let mut done_ns = 0;
        // A rate of zero never fills the next packet.
        loop {
            let wait_ns = (quantum - credit).checked_add(rate.saturating_sub(1));
            let wait_ns = wait_ns.and_then(|sum| sum.checked_div(rate));
            let Some(Ok(wait_ns)) = wait_ns.map(u64::try_from) else { break };
            if wait_ns > length_ns - done_ns {
                break;
            }
            done_ns += wait_ns;
            credit = credit + rate * u128::from(wait_ns) - quantum;
            at_ns.push(step.at_ns + done_ns);
        }
        credit += rate * u128::from(length_ns - done_ns);
    }
    let length_ns = steps.length_ns;
    Ok(Opportunities { at_ns, bytes, length_ns })
}

/// Converts opportunities to the rates of windows of 100 ms.
fn window_rates(all: &Opportunities) -> Steps {
    let rates = Trace::Opportunities(all.clone()).rates();
    let steps = (0..)
        .map(|nth| nth * WINDOW_NS)
        .zip(&rates)
        .map(|(at_ns, (rate, _))| Step { at_ns, rate: *rate, delay_ns: None, loss: None, line: 0 })
        .collect();
    Steps { steps, length_ns: all.length_ns }
}
