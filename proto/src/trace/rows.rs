//! Reads the formats with one row per line: mahimahi, CSV and similar.

use super::detect::of_header;
use super::error::Problems;
use super::lines::{fields, lines, shown};
use super::number::{NumberError, scaled};
use super::{
    Format, MAX_DELAY_NS, MAX_LENGTH_NS, MAX_OPPORTUNITIES_LENGTH_NS, MAX_RATE, MAX_ROWS,
    Opportunities, Step, Steps, Trace, TraceError,
};
use crate::units::{Ppm, Rate};

/// IP bytes of one of mahimahi's opportunities.
const MAHIMAHI_BYTES: u32 = 1500;
/// Minimum length of a row, nanoseconds.
pub(super) const MIN_ROW_NS: u64 = 1000;
/// Length of a lone row whose format has none, nanoseconds.
pub(super) const LONE_ROW_NS: u64 = 1_000_000_000;
/// TheaterQ's shares are fractions of this.
const THEATERQ_ALL: u64 = u32::MAX as u64;

/// A problem of a row. Fields and lines are shortened for printing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum RowError {
    #[error("`{0}` is not a whole number of milliseconds, zero or more")]
    NotMilliseconds(String),
    #[error("`{0}` is beyond {days} days", days = MAX_LENGTH_NS / 86_400_000_000_000)]
    TooLate(String),
    #[error("`{0}` is beyond a day, the limit of a mahimahi trace; it is repeated anyway")]
    OpportunityTooLate(String),
    #[error("time goes back to {0} ms")]
    BackToMs(u64),
    #[error(
        "the {what} `{field}` cannot change in time here; write 0, and give the link a constant one"
    )]
    Constant { what: &'static str, field: String },
    #[error("`{line}` has {count} column(s)")]
    Columns { line: String, count: usize },
    #[error("it follows line {0}, an empty row, which ends the trace")]
    AfterEnd(u32),
    #[error("the first row must be at time zero")]
    FirstNotAtZero,
    #[error("time {which} at {at_s} s")]
    NotAfter { which: &'static str, at_s: f64 },
    #[error("a row lasts less than a microsecond")]
    TooShort,
    #[error("the first row has no value")]
    Nothing,
    #[error("the loss `{0}` is more than {THEATERQ_ALL} (100%)")]
    TheaterqLoss(String),
    #[error("`{field}` {reason}")]
    Number { field: String, reason: NumberError },
    #[error("the rate `{0}` is beyond {MAX_RATE}")]
    Rate(String),
    #[error("its length is zero (`{0}`)")]
    NoTime(String),
    #[error("the delay `{0}` is beyond 60 s")]
    Delay(String),
    #[error("the loss `{0}` is more than 100%")]
    Loss(String),
}

/// Reads any format but netem-trace's.
pub(super) fn parse(name: &str, text: &str, format: Format) -> Result<Trace, TraceError> {
    let mut reader = Reader::new(text, format);
    reader.read(text);
    reader.end(name)
}

/// A row as it was read: its beginning or its length, and its values.
struct Row {
    time: Time,
    step: Step,
}

#[derive(Clone, Copy)]
enum Time {
    At(u64),
    Lasts(u64),
}

/// A column of ccbench's own format.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Time,
    Rate,
    Delay,
    Loss,
}

struct Reader {
    format: Format,
    columns: Vec<Column>,
    steps: Vec<Step>,
    at_ns: Vec<u64>,
    /// Beginning of the next row if the format gives lengths.
    next_ns: u64,
    /// Line of a row that only ends the trace.
    ended: Option<u32>,
    problems: Problems,
}

impl Reader {
    fn new(text: &str, format: Format) -> Self {
        // Most lines have some ten bytes.
        let rows = (text.len() / 8).min(MAX_ROWS);
        let (steps, at_ns) = if format == Format::Mahimahi { (0, rows) } else { (rows / 2, 0) };
        Self {
            format,
            columns: Vec::new(),
            steps: Vec::with_capacity(steps),
            at_ns: Vec::with_capacity(at_ns),
            next_ns: 0,
            ended: None,
            problems: Problems::default(),
        }
    }

    fn read(&mut self, text: &str) {
        let mut first = true;
        for (number, line) in lines(text) {
            if std::mem::take(&mut first) && self.take_header(number, line) {
                continue;
            }
            let taken = match self.format {
                Format::Mahimahi => self.take_opportunity(line),
                _ => self.row(number, line).and_then(|row| self.take_row(row)),
            };
            if let Err(what) = taken {
                self.problems.push(number, what.to_string());
            }
            if self.steps.len().max(self.at_ns.len()) > MAX_ROWS {
                let what = format!("there are more than {MAX_ROWS} rows; make them longer");
                return self.problems.push(number, what);
            }
        }
    }

    /// Takes the line if it is a header; returns whether it is one.
    fn take_header(&mut self, number: u32, line: &str) -> bool {
        let columns: Vec<&str> = fields(line).collect();
        let named = of_header(&columns) == Some(self.format);
        if self.format != Format::Ccbench {
            return named;
        }
        for column in columns {
            let column = match column.to_ascii_lowercase().as_str() {
                "t_us" => Column::Time,
                "rate_bps" => Column::Rate,
                "delay_us" => Column::Delay,
                "loss_ppm" => Column::Loss,
                _ => {
                    let what = format!(
                        "the column `{}` is unknown; known columns: t_us, rate_bps, delay_us, loss_ppm",
                        shown(column)
                    );
                    self.problems.push(number, what);
                    continue;
                }
            };
            if self.columns.contains(&column) {
                self.problems.push(number, "a column is repeated".to_owned());
            }
            self.columns.push(column);
        }
        if self.columns.first() != Some(&Column::Time) || self.columns.len() < 2 {
            let what = "the header must begin with `t_us` and name at least one more column";
            self.problems.push(number, what.to_owned());
        }
        true
    }

    fn take_opportunity(&mut self, line: &str) -> Result<(), RowError> {
        let ms: u64 = line.parse().map_err(|_| RowError::NotMilliseconds(shown(line)))?;
        let at_ns = ms.checked_mul(1_000_000);
        let at_ns = at_ns.filter(|&at_ns| at_ns <= MAX_OPPORTUNITIES_LENGTH_NS);
        let at_ns = at_ns.ok_or_else(|| RowError::OpportunityTooLate(shown(line)))?;
        if self.at_ns.last().is_some_and(|&last| at_ns < last) {
            return Err(RowError::BackToMs(ms));
        }
        self.at_ns.push(at_ns);
        Ok(())
    }

    fn row(&self, number: u32, line: &str) -> Result<Row, RowError> {
        let columns: Vec<&str> = fields(line).collect();
        let mut step = Step { at_ns: 0, rate: None, delay_ns: None, loss: None, line: number };
        let time = match (self.format, columns.as_slice()) {
            (Format::Dwell, [rate, dwell]) => {
                step.rate = Some(rate_of(rate, 6)?);
                Time::Lasts(dwell_of(dwell, 9)?)
            }
            (Format::Timed, [time, rate]) => {
                step.rate = Some(rate_of(rate, 6)?);
                Time::At(time_of(time, 9)?)
            }
            (Format::TheaterQ, [keep, latency, rate, loss, _limit]) => {
                theaterq(&mut step, latency, rate, loss)?;
                Time::Lasts(dwell_of(keep, 3)?)
            }
            (Format::TheaterQ, [keep, latency, jitter, rate, loss, _limit, duplicated, ..])
                if (8..=10).contains(&columns.len()) =>
            {
                for (what, field) in [("jitter", jitter), ("duplication", duplicated)] {
                    if number_of(field, 0)? != 0 {
                        return Err(RowError::Constant { what, field: shown(field) });
                    }
                }
                theaterq(&mut step, latency, rate, loss)?;
                Time::Lasts(dwell_of(keep, 3)?)
            }
            (Format::Ccbench, fields) if fields.len() == self.columns.len() => {
                let mut time = Time::At(0);
                for (column, &field) in self.columns.iter().zip(fields) {
                    match column {
                        Column::Time => time = Time::At(time_of(field, 3)?),
                        _ if field.is_empty() => {}
                        Column::Rate => step.rate = Some(rate_of(field, 0)?),
                        Column::Delay => step.delay_ns = Some(delay_of(field, 3)?),
                        Column::Loss => step.loss = Some(loss_of(field, number_of(field, 0)?)?),
                    }
                }
                time
            }
            (_, found) => {
                return Err(RowError::Columns { line: shown(line), count: found.len() });
            }
        };
        Ok(Row { time, step })
    }

    fn take_row(&mut self, Row { time, mut step }: Row) -> Result<(), RowError> {
        if let Some(line) = self.ended {
            return Err(RowError::AfterEnd(line));
        }
        match time {
            Time::Lasts(length_ns) => {
                step.at_ns = self.next_ns;
                let end_ns = self.next_ns.saturating_add(length_ns);
                if end_ns > MAX_LENGTH_NS {
                    return Err(RowError::TooLate("it".to_owned()));
                }
                self.next_ns = end_ns;
            }
            Time::At(at_ns) => {
                step.at_ns = at_ns;
                match self.steps.last() {
                    None if at_ns > 0 => {
                        return Err(RowError::FirstNotAtZero);
                    }
                    Some(last) if at_ns <= last.at_ns => {
                        let which = if at_ns == last.at_ns { "stands still" } else { "goes back" };
                        return Err(RowError::NotAfter { which, at_s: at_ns as f64 / 1e9 });
                    }
                    Some(last) if at_ns - last.at_ns < MIN_ROW_NS => {
                        return Err(RowError::TooShort);
                    }
                    _ => {}
                }
                // The last row has no end, so it lasts as long as the row before it.
                let length_ns = self.steps.last().map_or(LONE_ROW_NS, |last| at_ns - last.at_ns);
                self.next_ns = at_ns + length_ns;
                let nothing = step.rate.is_none() && step.delay_ns.is_none() && step.loss.is_none();
                if nothing && !self.steps.is_empty() {
                    self.ended = Some(step.line);
                    self.next_ns = at_ns;
                    return Ok(());
                }
                if nothing {
                    return Err(RowError::Nothing);
                }
            }
        }
        self.steps.push(step);
        Ok(())
    }

    fn end(self, name: &str) -> Result<Trace, TraceError> {
        let Self { format, mut steps, at_ns, next_ns, mut problems, .. } = self;
        if problems.is_empty() && steps.is_empty() && at_ns.is_empty() {
            problems.push(0, "it has no rows".to_owned());
        }
        if problems.is_empty() && format == Format::Mahimahi && at_ns.last() == Some(&0) {
            problems.push(0, "its length is zero: its last instant is 0 ms".to_owned());
        }
        if !problems.is_empty() {
            return Err(problems.refuse(name, format));
        }
        if let Some(&length_ns) = at_ns.last() {
            let bytes = MAHIMAHI_BYTES;
            return Ok(Trace::Opportunities(Opportunities { at_ns, bytes, length_ns }));
        }
        steps.shrink_to_fit();
        Ok(Trace::Steps(Steps { steps, length_ns: next_ns }))
    }
}

fn theaterq(step: &mut Step, latency: &str, rate: &str, loss: &str) -> Result<(), RowError> {
    step.delay_ns = Some(delay_of(latency, 0)?);
    // In TheaterQ, zero means unlimited.
    step.rate = Some(rate_of(rate, 0)?).filter(|rate| rate.bits_per_sec() > 0);
    let share = number_of(loss, 0)?;
    if share > THEATERQ_ALL {
        return Err(RowError::TheaterqLoss(shown(loss)));
    }
    step.loss = Some(loss_of(loss, (share * 1_000_000 + THEATERQ_ALL / 2) / THEATERQ_ALL)?);
    Ok(())
}

fn number_of(field: &str, digits: u32) -> Result<u64, RowError> {
    scaled(field, digits).map_err(|reason| RowError::Number { field: shown(field), reason })
}

pub(super) fn rate_of(field: &str, digits: u32) -> Result<Rate, RowError> {
    let rate = Rate::from_bits_per_sec(number_of(field, digits)?);
    if rate > MAX_RATE {
        return Err(RowError::Rate(shown(field)));
    }
    Ok(rate)
}

fn time_of(field: &str, digits: u32) -> Result<u64, RowError> {
    match number_of(field, digits)? {
        long if long > MAX_LENGTH_NS => Err(RowError::TooLate(shown(field))),
        at_ns => Ok(at_ns),
    }
}

fn dwell_of(field: &str, digits: u32) -> Result<u64, RowError> {
    match time_of(field, digits)? {
        0 => Err(RowError::NoTime(shown(field))),
        short if short < MIN_ROW_NS => Err(RowError::TooShort),
        length_ns => Ok(length_ns),
    }
}

fn delay_of(field: &str, digits: u32) -> Result<u64, RowError> {
    match number_of(field, digits)? {
        long if long > MAX_DELAY_NS => Err(RowError::Delay(shown(field))),
        delay_ns => Ok(delay_ns),
    }
}

fn loss_of(field: &str, ppm: u64) -> Result<Ppm, RowError> {
    u32::try_from(ppm).ok().and_then(Ppm::new).ok_or_else(|| RowError::Loss(shown(field)))
}
