//! Prints claims with the published value, the expected bounds, the measurement and the outcome.

use std::fmt::Write as _;

use ccbench_proto::plan::expect::Test;
use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table, Width};

use super::expectation::{Expectation, Outcome};
use crate::display::{TABLE_STYLE, readable};
use crate::summary::statistics::Mean;

/// At a smaller width, the column of claims would have one word per line.
const MIN_WIDTH: u16 = 72;

/// Returns the table of claims with notes below it, at most `width` characters wide; empty without claims.
pub fn text(rows: &[Expectation], width: u16) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table = Table::new();
    table.load_style(TABLE_STYLE);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width.max(MIN_WIDTH));
    table.set_header(["", "claim", "published", "expected", "measured", "holds?"]);
    let mut notes: Vec<(&str, Vec<usize>)> = Vec::new();
    for (nth, row) in rows.iter().enumerate() {
        let noted = if row.reasons.is_empty() { "" } else { " *" };
        for reason in &row.reasons {
            match notes.iter_mut().find(|(known, _)| known == reason) {
                Some((_, of)) => of.push(nth + 1),
                None => notes.push((reason, vec![nth + 1])),
            }
        }
        let repeated = nth > 0 && rows[nth - 1].index == row.index;
        let claim = match (repeated, row.levels.is_empty()) {
            (true, false) => format!("  … {}", row.levels),
            (false, false) => format!("{}: {}", row.claim, row.levels),
            _ => row.claim.clone(),
        };
        let published = row.published.clone().filter(|_| !repeated).unwrap_or_default();
        let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
        table.add_row(vec![
            right((nth + 1).to_string()),
            Cell::new(claim),
            Cell::new(published),
            right(row.expected_text()),
            right(row.measured_text()),
            Cell::new(format!("{}{noted}", holds(row.outcome))),
        ]);
    }
    for (column, most) in [(2, 18), (3, 21), (4, 22), (5, 10)] {
        if let Some(column) = table.column_mut(column) {
            column.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(most)));
        }
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    let mut out = lines.join("\n") + "\n";
    let _ = write!(out, "\n{}.", tally(rows));
    if rows.iter().any(|row| row.interval.is_some()) {
        out.push_str(" Measured: mean over trials, ±: 95 % confidence interval.");
    }
    out.push('\n');
    for (reason, of) in notes {
        let begin = format!("* {}: ", number_ranges(&of));
        let _ = writeln!(out, "{}", wrapped(&begin, reason, usize::from(width.max(MIN_WIDTH))));
    }
    out
}

/// Formats numbers as ranges: `1, 3 to 5`.
pub(crate) fn number_ranges(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    let run = |(first, last): (usize, usize)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first} to {last}"),
    };
    runs.into_iter().map(run).collect::<Vec<_>>().join(", ")
}

/// Counts the outcomes: `12 of 15 claims hold, 2 do not, 1 not measured`.
fn tally(rows: &[Expectation]) -> String {
    let count = |outcome| rows.iter().filter(|row| row.outcome == outcome).count();
    let mut text = format!("{} of {} claims hold", count(Outcome::Holds), rows.len());
    for (outcome, words) in [
        (Outcome::DoesNotHold, ("does not", "do not")),
        (Outcome::NotMeasured, ("was not measured", "were not measured")),
    ] {
        match count(outcome) {
            0 => {}
            1 => _ = write!(text, ", 1 {}", words.0),
            many => _ = write!(text, ", {many} {}", words.1),
        }
    }
    text
}

fn holds(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Holds => "yes",
        Outcome::DoesNotHold => "NO",
        // The notes below the table have the reason.
        Outcome::NotMeasured => "?",
    }
}

/// Wraps a text at `width` characters. Continuation lines are indented by the length of `begin`.
pub(crate) fn wrapped(begin: &str, text: &str, width: usize) -> String {
    let (mut out, mut length) = (begin.to_owned(), begin.chars().count());
    let indent = length;
    for word in text.split_whitespace() {
        let long = word.chars().count();
        if length > indent && length + 1 + long > width {
            let _ = write!(out, "\n{:indent$}", "");
            length = indent;
        } else if length > indent {
            out.push(' ');
            length += 1;
        }
        out.push_str(word);
        length += long;
    }
    out
}

/// Returns the scale and the name of the unit in which to print a value stored in `unit`.
fn scale(most: f64, unit: &'static str) -> (f64, &'static str) {
    match unit {
        "us" if most >= 1e6 => (1e6, "s"),
        "1" | "(Mbit/s)^flows" => (1.0, ""),
        other => readable(other),
    }
}

/// Number of significant digits of printed values ...
const SIGNIFICANT: u8 = 3;
/// ... and of values that are very close to the limit of a claim.
const MOST_SIGNIFICANT: u8 = 15;

/// Formats a value with this many significant digits, without trailing zeros.
fn digits(value: f64, significant: u8) -> String {
    let most = f64::from(significant);
    let places = match value.abs() {
        0.0 => 0,
        v => (most - 1.0 - v.log10().floor()).clamp(0.0, most + 3.0) as usize,
    };
    let text = format!("{value:.places$}");
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn with_unit(number: String, unit: &str) -> String {
    if unit.is_empty() { number } else { format!("{number} {unit}") }
}

/// Formats a value with a readable unit.
pub(crate) fn quantity(value: f64, unit: &'static str) -> String {
    let (of, unit) = scale(value.abs(), unit);
    with_unit(digits(value / of, SIGNIFICANT), unit)
}

/// Formats a mean over trials and half the width of its confidence interval.
pub(crate) fn mean_text(mean: Mean, unit: &'static str) -> String {
    measured_text(mean, Test { least: None, most: None, unit })
}

/// As [`mean_text`], beside the limits of a test.
pub(crate) fn measured_text(mean: Mean, test: Test) -> String {
    let (of, unit) = common_scale(mean.value, test);
    let value = digits(mean.value / of, significant(mean.value, test));
    let half = mean.interval.map(|(low, high)| (high - low) / 2.0 / of);
    let half = half.map_or(String::new(), |half| format!(" ±{}", digits(half, SIGNIFICANT)));
    with_unit(format!("{value}{half}"), unit)
}

/// Formats the limits of a test beside a measured value: `≤ 12 Mbit/s`, `20 to 21.5 ms`; empty without limits.
pub(crate) fn limits_text(test: Test, measured: Option<f64>) -> String {
    let significant = measured.map_or(SIGNIFICANT, |value| significant(value, test));
    let (of, unit) = common_scale(0.0, test);
    let limit = |value: f64| digits(value / of, significant);
    let text = match (test.least, test.most) {
        (Some(least), Some(most)) => format!("{} to {}", limit(least), limit(most)),
        (Some(least), None) => format!("≥ {}", limit(least)),
        (None, Some(most)) => format!("≤ {}", limit(most)),
        (None, None) => return String::new(),
    };
    with_unit(text, unit)
}

/// Returns the scale and the name of the unit that suit a value and the limits of a test.
fn common_scale(value: f64, test: Test) -> (f64, &'static str) {
    let limits = [test.least, test.most].into_iter().flatten();
    scale(limits.fold(value.abs(), |most, limit| most.max(limit.abs())), test.unit)
}

/// Returns the number of significant digits with which the printed value and the printed limits compare as the exact ones do: `12.04` is
/// not at most `12`.
fn significant(value: f64, test: Test) -> u8 {
    let (of, _) = common_scale(value, test);
    let agrees = |significant: &u8| {
        let printed = |value: f64| {
            digits(value / of, *significant).parse().map_or(value, |shown: f64| shown * of)
        };
        let (least, most) = (test.least.map(printed), test.most.map(printed));
        Test { least, most, ..test }.holds(printed(value)) == test.holds(value)
    };
    (SIGNIFICANT..MOST_SIGNIFICANT).find(agrees).unwrap_or(MOST_SIGNIFICANT)
}

impl Expectation {
    /// Returns the expected bounds: `≤ 12 Mbit/s`, `20 to 21.5 ms`; empty if the claim has no test.
    pub fn expected_text(&self) -> String {
        self.test.map_or(String::new(), |test| limits_text(test, self.measured))
    }

    /// Returns the mean and half the width of its confidence interval; empty without a measurement.
    pub fn measured_text(&self) -> String {
        let (Some(value), Some(test)) = (self.measured, self.test) else { return String::new() };
        measured_text(Mean { value, interval: self.interval }, test)
    }
}
