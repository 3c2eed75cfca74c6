//! Prints comparisons as a table on the terminal and as CSV.

use std::collections::BTreeSet;

use comfy_table::{Cell as TableCell, CellAlignment, ContentArrangement, Table as Printed};

use super::{Compared, Differences, unmatched};
use crate::csv::{Cell, Table};
use crate::display::{TABLE_STYLE, readable};

/// Returns the table for the terminal without metrics that are zero on both sides, the points that are not compared, and how many points
/// agree.
pub fn text(differences: &Differences) -> String {
    let (a, b) = &differences.names;
    let compared = &differences.rows;
    let mut printed = Printed::new();
    printed.load_style(TABLE_STYLE);
    printed.set_content_arrangement(ContentArrangement::Disabled);
    let points: BTreeSet<&str> = compared.iter().map(|one| one.point.as_str()).collect();
    let has_points = points.len() > 1 || !differences.unmatched.is_empty();
    let is_judged = !differences.judged.is_empty();
    let head = [
        "phase",
        "of",
        "metric",
        "A",
        "B",
        "B − A",
        "95 % (t)",
        "95 % (bootstrap)",
        "B / A",
        "g",
        "n",
    ];
    let first = has_points.then_some("point");
    printed.set_header(first.into_iter().chain(head).chain(is_judged.then_some("agrees")));
    for one in compared.iter().filter(is_printed) {
        let point = has_points.then(|| one.point.clone());
        let texts = point.into_iter().chain(names(one)).map(TableCell::new);
        let numbers = formatted_numbers(one)
            .map(|text| TableCell::new(text).set_alignment(CellAlignment::Right));
        let agrees = match one.agrees {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "",
        };
        let agrees = is_judged.then(|| TableCell::new(agrees));
        printed.add_row(texts.chain(numbers).chain(agrees).collect::<Vec<_>>());
    }
    let lines: Vec<String> = printed.lines().map(|line| line.trim_end().to_owned()).collect();
    format!(
        "A: {a}\nB: {b}\n\n{}\n\n\
         A, B: means ± half the width of their 95 % interval by Student's t.\n\
         95 % (t): interval of the difference, by the paired t or, without pairs, by Welch's t; *: it excludes 0.\n\
         95 % (bootstrap): percentiles of 2000 draws, too narrow for few trials. g: Hedges' g, the difference over the\n\
         pooled standard deviation. n: pairs of trials with the same seed, or trials of A + B.\n{}{}{}{}{}",
        lines.join("\n"),
        pairing(compared, differences.of_one_run),
        chance(compared),
        differences.trials[0].line("A"),
        differences.trials[1].line("B"),
        unmatched::lines(&differences.unmatched)
    )
}

/// Returns whether the table shows a row.
fn is_printed(one: &&Compared) -> bool {
    one.numbers.means != (0.0, 0.0)
}

/// Returns whether values were compared in pairs and, if not, how to get pairs. Empty without rows.
fn pairing(rows: &[Compared], of_one_run: bool) -> String {
    let all = rows.iter().filter(is_printed).count();
    let paired = rows.iter().filter(is_printed).filter(|one| one.numbers.paired).count();
    let how = match paired {
        _ if all == 0 => return String::new(),
        paired if paired == all => {
            return "paired: trials of A and B with the same number and seed.\n".to_owned();
        }
        0 => "not paired".to_owned(),
        some => format!("paired in {some} of {all} rows, not in the others"),
    };
    let why = match of_one_run {
        true => {
            "each point has its own seeds, unless `[[compare]]` in the plan connects points (docs/plan.md)"
        }
        false => {
            "fewer than two trials have the same number and seed in A and B; run both with the same `seed` and matrix"
        }
    };
    format!("{how}: {why}.\n")
}

/// Returns how many intervals there are, and what this means for those that exclude zero. Empty without an interval.
fn chance(rows: &[Compared]) -> String {
    let differs: Vec<bool> =
        rows.iter().filter(is_printed).filter_map(|one| one.numbers.differs()).collect();
    if differs.is_empty() {
        return String::new();
    }
    let marked = differs.iter().filter(|differs| **differs).count();
    format!(
        "{marked} of {} intervals (t) have *; if nothing differed, about one in twenty would have it by chance.\n\
         To decide one question, write `[[compare]]` into the plan (docs/plan.md).\n",
        differs.len()
    )
}

/// Returns which points do not agree, and how many do; empty if none was judged. This is the end of the output.
pub fn agreement(differences: &Differences) -> String {
    let judged = &differences.judged;
    if judged.is_empty() {
        return String::new();
    }
    let mut text = String::new();
    for one in judged.iter().filter(|one| !one.exceeded.is_empty()) {
        let point = if one.point.is_empty() { String::new() } else { format!(" {}", one.point) };
        text += &format!("does not agree:{point}: {}\n", one.exceeded.join("; "));
    }
    let agree = judged.iter().filter(|one| one.exceeded.is_empty()).count();
    let points = if judged.len() == 1 { "point agrees" } else { "points agree" };
    text + &format!("{agree} of {} {points}\n", judged.len())
}

/// Returns phase, subject and metric of a row.
fn names(one: &Compared) -> [String; 3] {
    let (_, unit) = readable(one.unit);
    let stat = if ["mean", "sum"].contains(&one.stat) { "" } else { one.stat };
    let words = [one.metric, stat, if unit == "1" { "" } else { unit }];
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    [one.phase.clone(), format!("{} {}", one.scope.as_str(), one.subject), words.join(" ")]
}

/// Returns the numbers of a row, all with the same number of decimal places, which depends on the larger mean.
fn formatted_numbers(one: &Compared) -> [String; 8] {
    let n = &one.numbers;
    let (scale, _) = readable(one.unit);
    let places = match n.means.0.abs().max(n.means.1.abs()) / scale {
        v if v >= 1000.0 => 0,
        v if v >= 100.0 => 1,
        v if v >= 1.0 => 2,
        _ => 4,
    };
    let number = |value: f64| format!("{:.places$}", value / scale);
    let ends = |ends: Option<(f64, f64)>| {
        ends.map_or("-".to_owned(), |(low, high)| format!("{} to {}", number(low), number(high)))
    };
    let mark = if n.differs() == Some(true) { " *" } else { "" };
    let sign = if n.difference > 0.0 { "+" } else { "" };
    let maybe = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    let mean = |mean: f64, interval: Option<(f64, f64)>| {
        let half = interval.map(|(low, high)| format!(" ± {}", number((high - low) / 2.0)));
        number(mean) + &half.unwrap_or_default()
    };
    [
        mean(n.means.0, n.intervals[0]),
        mean(n.means.1, n.intervals[1]),
        format!("{sign}{}", number(n.difference)),
        ends(n.t) + mark,
        ends(n.bootstrap),
        n.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.3}")),
        maybe(n.hedges_g),
        match (n.paired, n.left_out) {
            (true, 0) => format!("{} pairs", n.n.0),
            (true, left_out) => format!("{} pairs, {left_out} left out", n.n.0),
            (false, _) => format!("{} + {}", n.n.0, n.n.1),
        },
    ]
}

/// Columns of the CSV.
const COLUMNS: [&str; 27] = [
    "point",
    "phase",
    "scope",
    "subject",
    "metric",
    "stat",
    "unit",
    "mean_a",
    "a95_low",
    "a95_high",
    "mean_b",
    "b95_low",
    "b95_high",
    "n_a",
    "n_b",
    "paired",
    "difference",
    "t95_low",
    "t95_high",
    "bootstrap95_low",
    "bootstrap95_high",
    "ratio",
    "ratio_bootstrap95_low",
    "ratio_bootstrap95_high",
    "hedges_g",
    "agrees",
    "note",
];

/// Returns the comparison as CSV, in the units of the summary: the rows of the table, those that are zero on both sides, and a row without
/// numbers for every point that is not compared, with the reason in `note`.
pub fn csv(differences: &Differences) -> String {
    let mut table = Table::new(&COLUMNS);
    for one in &differences.rows {
        let n = &one.numbers;
        let (low, high) = (
            |ends: Option<(f64, f64)>| ends.map(|e| e.0),
            |ends: Option<(f64, f64)>| ends.map(|e| e.1),
        );
        table.row(&[
            one.point.as_str().into(),
            one.phase.as_str().into(),
            one.scope.as_str().into(),
            one.subject.as_str().into(),
            one.metric.into(),
            one.stat.into(),
            one.unit.into(),
            n.means.0.into(),
            low(n.intervals[0]).into(),
            high(n.intervals[0]).into(),
            n.means.1.into(),
            low(n.intervals[1]).into(),
            high(n.intervals[1]).into(),
            f64::from(n.n.0).into(),
            f64::from(n.n.1).into(),
            if n.paired { "true" } else { "false" }.into(),
            n.difference.into(),
            low(n.t).into(),
            high(n.t).into(),
            low(n.bootstrap).into(),
            high(n.bootstrap).into(),
            n.ratio.into(),
            low(n.ratio_bootstrap).into(),
            high(n.ratio_bootstrap).into(),
            n.hedges_g.into(),
            one.agrees.map_or("", |agrees| if agrees { "true" } else { "false" }).into(),
            "".into(),
        ]);
    }
    for one in &differences.unmatched {
        let mut row = COLUMNS.map(|_| Cell::Empty);
        row[0] = one.point.as_str().into();
        row[COLUMNS.len() - 1] = one.why().into();
        table.row(&row);
    }
    table.finish()
}
