//! The table of flows. On a narrow terminal it has fewer columns, but always the names of the flows.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use ratatui::layout::Constraint;
use ratatui::widgets::{Cell, Row, Table};

use super::{bold, count, faint, number, right, sparkline, text};
use crate::live::update::{FlowView, TrialView};

/// Mean throughput and RTT of each flow, by bin.
pub(super) type History = BTreeMap<String, [Vec<Option<f32>>; 2]>;

/// A flow without a sample for longer than this has ended or is no longer sampled.
const IDLE_S: f64 = 2.0;
/// Width of the flows' names: at least that for which other columns are left out, and at most that for which sparklines are.
const NAME_WIDTH: RangeInclusive<u16> = 12..=24;
/// Width of a sparkline. A column with fewer bins is left out.
const SPARK_WIDTH: RangeInclusive<u16> = 6..=12;
/// Space between two columns.
const SPACING: u16 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Name,
    Cc,
    Rate,
    RateCurve,
    Rtt,
    RttCurve,
    Cwnd,
    InFlight,
    Retrans,
    Marks,
}

/// The columns that a narrow terminal lacks, in the order in which they are left out. Sparklines are left out before them.
const LEFT_OUT: [Column; 6] =
    [Column::Retrans, Column::Marks, Column::InFlight, Column::Cc, Column::Cwnd, Column::Rtt];

/// Returns the columns that fit into this width, from left to right, with their widths. `longest` is the width of the longest name.
fn columns(width: u16, longest: u16, has_marks: bool) -> Vec<(Column, u16)> {
    let mut columns = vec![
        (Column::Name, *NAME_WIDTH.start()),
        (Column::Cc, 10),
        (Column::Rate, 9),
        (Column::Rtt, 9),
        (Column::Cwnd, 7),
        (Column::InFlight, 9),
        (Column::Retrans, 8),
    ];
    if has_marks {
        columns.push((Column::Marks, 7));
    }
    let used = |columns: &[(Column, u16)]| {
        columns.iter().map(|(_, width)| width + SPACING).sum::<u16>().saturating_sub(SPACING)
    };
    let mut spare = width.saturating_sub(used(&columns));
    for column in LEFT_OUT {
        if used(&columns) > width {
            columns.retain(|(other, _)| *other != column);
        }
    }
    let wanted = longest.clamp(*NAME_WIDTH.start(), *NAME_WIDTH.end());
    spare = spare.saturating_sub(wanted - NAME_WIDTH.start());
    for (curve, numbers) in [(Column::RateCurve, Column::Rate), (Column::RttCurve, Column::Rtt)] {
        let curve_width = spare.saturating_sub(SPACING).min(*SPARK_WIDTH.end());
        let place = columns.iter().position(|(column, _)| *column == numbers);
        if let (Some(place), true) = (place, curve_width >= *SPARK_WIDTH.start()) {
            columns.insert(place + 1, (curve, curve_width));
            spare -= curve_width + SPACING;
        }
    }
    columns
}

/// Returns the table of this number of flows from the flow at index `first` on, for a terminal of this width.
pub(super) fn table(
    trial: &TrialView,
    history: &History,
    (first, rows): (usize, usize),
    width: u16,
) -> Table<'static> {
    // Shows the column only if needed: a terminal is narrow, and most flows have no marks.
    let has_marks = trial.flows.values().any(|flow| flow.marks_pkts.is_some_and(|n| n > 0));
    let longest = trial.flows.keys().map(|id| id.chars().count()).max().unwrap_or(0);
    let columns = columns(width, u16::try_from(longest).unwrap_or(u16::MAX), has_marks);
    // The columns fit, so that the name has the rest of the width. With wider ones, nothing would be left for `Fill`.
    let widths = columns.iter().map(|(column, width)| match column {
        Column::Name => Constraint::Fill(1),
        _ => Constraint::Length(*width),
    });
    let widths: Vec<Constraint> = widths.collect();
    let titles = columns.iter().map(|(column, _)| title(*column, trial.flows.len()));
    let header = Row::new(titles).style(bold());
    let rows = trial.flows.iter().skip(first).take(rows).map(|(id, flow)| {
        let curves = history.get(id).map(|[rate, rtt]| [rate.as_slice(), rtt.as_slice()]);
        let curves = curves.unwrap_or_default();
        let row = Row::new(columns.iter().map(|column| cell(*column, id, flow, curves)));
        if flow.idle_s > IDLE_S { row.style(faint()) } else { row }
    });
    Table::new(rows, widths).header(header)
}

fn title(column: Column, flows: usize) -> Cell<'static> {
    match column {
        Column::Name if flows > 1 => text(&format!("FLOW ({flows})")),
        Column::Name => text("FLOW"),
        Column::Cc => text("CC"),
        Column::Rate => right("Mbit/s"),
        Column::RateCurve | Column::RttCurve => text(""),
        Column::Rtt => right("SRTT ms"),
        Column::Cwnd => right("CWND"),
        Column::InFlight => right("IN FLIGHT"),
        Column::Retrans => right("RETRANS"),
        Column::Marks => right("MARKS"),
    }
}

fn cell(
    (column, width): (Column, u16),
    id: &str,
    flow: &FlowView,
    [rate, rtt]: [&[Option<f32>]; 2],
) -> Cell<'static> {
    match column {
        Column::Name => text(id),
        Column::Cc => text(&flow.cc),
        Column::Rate => number(&flow.rate_bps, 1e6, 2),
        Column::RateCurve => Cell::from(sparkline(rate, usize::from(width))),
        Column::Rtt => number(&flow.rtt_us, 1e3, 1),
        Column::RttCurve => Cell::from(sparkline(rtt, usize::from(width))),
        Column::Cwnd => number(&flow.cwnd_pkts, 1.0, 0),
        Column::InFlight => number(&flow.in_flight_pkts, 1.0, 0),
        Column::Retrans => right(flow.retrans_pkts.to_string()),
        Column::Marks => right(count(flow.marks_pkts)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit_into_any_width() {
        const NUMBERS: [Column; 4] = [Column::Name, Column::Rate, Column::Rtt, Column::Cwnd];
        for width in 40..=200 {
            for (longest, has_marks) in [(1, false), (12, true), (18, false), (200, true)] {
                let columns = columns(width, longest, has_marks);
                let used: u16 = columns.iter().map(|(_, width)| width + SPACING).sum();
                assert!(used - SPACING <= width, "{width}: {columns:?}");
                let has = |wanted: &Column| columns.iter().any(|(column, _)| column == wanted);
                assert!(NUMBERS.iter().all(has), "{width}: {columns:?}");
                // A sparkline takes no other column's place.
                let all = if has_marks { 8 } else { 7 };
                let has_curve = has(&Column::RateCurve) || has(&Column::RttCurve);
                assert!(!has_curve || columns.len() > all, "{width}: {columns:?}");
            }
        }
        let names = |width| columns(width, 5, false).into_iter().map(|(column, _)| column);
        assert!(names(80).any(|column| column == Column::RateCurve), "one sparkline fits");
        assert!(names(100).any(|column| column == Column::RttCurve), "both fit");
        assert!(!columns(80, 24, false).iter().any(|(column, _)| *column == Column::RateCurve));
    }
}
