//! Prints comparisons as a table on the terminal and as CSV.

use std::collections::BTreeSet;
use std::mem::discriminant;

use comfy_table::{
    Cell as TableCell, CellAlignment, ColumnConstraint, ContentArrangement, Table as Printed, Width,
};

use super::{Compared, Differences, unmatched};
use crate::backend::RunBackend;
use crate::csv::{Cell, Table};
use crate::display::{TABLE_STYLE, readable};

/// Columns without room in a narrow terminal, the least important first.
const OPTIONAL: [&str; 3] = ["95 % (bootstrap)", "g", "B / A"];
/// Horizontal padding of a cell, in characters.
const PADDING: usize = 2;
/// With more rows, a line below the table names the option that selects metrics.
const MAX_ROWS: usize = 40;

/// Returns the table for a terminal of this width (`None` if the output is not for a terminal) without metrics that are zero on both sides,
/// and the points that are not compared.
pub fn text(differences: &Differences, width: Option<u16>) -> String {
    let (a, b) = &differences.names;
    let compared = &differences.rows;
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
    let mut header: Vec<&str> =
        first.into_iter().chain(head).chain(is_judged.then_some("agrees")).collect();
    let row = |one: &Compared| {
        let point = has_points.then(|| one.point.clone());
        let agrees = match one.agrees {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "",
        };
        let agrees = is_judged.then(|| agrees.to_owned());
        point.into_iter().chain(names(one)).chain(formatted_numbers(one)).chain(agrees).collect()
    };
    let mut rows: Vec<Vec<String>> = compared.iter().filter(is_printed).map(row).collect();
    let left_out = width.map_or(vec![], |width| narrow(&mut header, &mut rows, width));
    let mut below = String::new();
    if !left_out.is_empty() {
        below += &format!("left out for lack of width: {}; --csv has all.\n", left_out.join(", "));
    }
    if rows.len() > MAX_ROWS {
        below += &format!("{} rows; --metric NAME,... selects metrics.\n", rows.len());
    }
    format!(
        "A: {a}\nB: {b}\n\n{}\n\n{below}\
         A, B: means ± half the width of their 95 % interval by Student's t.\n\
         95 % (t): interval of the difference, by the paired t or, without pairs, by Welch's t; *: it excludes 0.\n\
         95 % (bootstrap): percentiles of 2000 draws, too narrow for few trials. g: Hedges' g, the difference over the\n\
         pooled standard deviation. n: pairs of trials with the same seed, or trials of A + B.\n{}{}{}{}{}{}",
        table(&header, &rows, width),
        pairing(compared, differences.of_one_run),
        different_backends(&differences.backends),
        chance(compared),
        differences.trials[0].line("A"),
        differences.trials[1].line("B"),
        unmatched::lines(&differences.unmatched)
    )
}

/// Returns the longest part of each column's cells, with padding and separator. Parts end before `delimiter`.
fn part_widths(header: &[&str], rows: &[Vec<String>], delimiter: char) -> Vec<usize> {
    let longest = |text: &str| {
        let parts = text.split(delimiter).map(|part| part.chars().count());
        parts.max().unwrap_or_default() + PADDING + 1
    };
    let of = |(nth, title): (usize, &&str)| {
        let cells = rows.iter().filter_map(|row| row.get(nth));
        cells.map(|text| longest(text)).max().unwrap_or_default().max(longest(title))
    };
    header.iter().enumerate().map(of).collect()
}

/// Removes optional columns until no word exceeds its column in a table of this width. Returns their titles.
fn narrow(header: &mut Vec<&str>, rows: &mut [Vec<String>], width: u16) -> Vec<&'static str> {
    let mut left_out = Vec::new();
    for title in OPTIONAL {
        if part_widths(header, rows, ' ').iter().sum::<usize>() <= usize::from(width) {
            break;
        }
        let Some(at) = header.iter().position(|one| *one == title) else { continue };
        header.remove(at);
        for row in rows.iter_mut() {
            row.remove(at);
        }
        left_out.push(title);
    }
    left_out
}

/// Returns the table. Cells wrap between words, so the table exceeds `width` only if its words do.
fn table(header: &[&str], rows: &[Vec<String>], width: Option<u16>) -> String {
    let mut printed = Printed::new();
    printed.load_style(TABLE_STYLE);
    printed.set_header(header);
    let names = header.iter().position(|title| *title == "A").unwrap_or_default();
    for row in rows {
        let cell = |(nth, text): (usize, &String)| {
            let is_number = nth >= names && header.get(nth) != Some(&"agrees");
            let alignment = if is_number { CellAlignment::Right } else { CellAlignment::Left };
            TableCell::new(text).set_alignment(alignment)
        };
        printed.add_row(row.iter().enumerate().map(cell).collect::<Vec<_>>());
    }
    let whole: usize = part_widths(header, rows, '\n').iter().sum();
    match width {
        // A minimum width may become the width of a column although there is room.
        Some(width) if whole > usize::from(width) => {
            let least = part_widths(header, rows, ' ');
            let width = u16::try_from(least.iter().sum::<usize>()).unwrap_or(u16::MAX).max(width);
            printed.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
            for (nth, least) in least.into_iter().enumerate() {
                let least = Width::Fixed(u16::try_from(least - 1).unwrap_or(u16::MAX));
                if let Some(column) = printed.column_mut(nth) {
                    column.set_constraint(ColumnConstraint::LowerBoundary(least));
                }
            }
        }
        _ => _ = printed.set_content_arrangement(ContentArrangement::Disabled),
    }
    printed.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
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

/// Returns a line if the backends are of different kinds.
fn different_backends([a, b]: &[RunBackend; 2]) -> String {
    if discriminant(a) == discriminant(b) {
        return String::new();
    }
    format!(
        "different backends (A: {a}; B: {b}): a pair has the same random values, but not the same machine.\n"
    )
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
            (true, 0) => pairs(n.n.0),
            (true, left_out) => format!("{}, {left_out} left out", pairs(n.n.0)),
            (false, _) => format!("{} + {}", n.n.0, n.n.1),
        },
    ]
}

fn pairs(count: u32) -> String {
    format!("{count} {}", if count == 1 { "pair" } else { "pairs" })
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ccbench_proto::metric::Scope;

    use super::super::numbers::numbers;
    use super::*;

    /// Returns differences of two points with this many trials on each side.
    fn differences(trials: u16, metrics: usize) -> Differences {
        let side = |base: f64| -> BTreeMap<u16, (u64, f64)> {
            (1..=trials).map(|trial| (trial, (7, base + 1e4 * f64::from(trial)))).collect()
        };
        let row = |point: &str| Compared {
            point: point.to_owned(),
            phase: "compete".to_owned(),
            scope: Scope::Group,
            subject: "under_test".to_owned(),
            metric: "jain_fairness_of_mean",
            unit: "bit/s",
            stat: "mean",
            numbers: numbers(&side(12e6), &side(15e6)).unwrap(),
            agrees: Some(true),
        };
        Differences {
            names: ("a".to_owned(), "b".to_owned()),
            rows: ["cubic, 20", "bbr, 20"].into_iter().cycle().take(metrics).map(row).collect(),
            unmatched: vec![],
            judged: vec![],
            claims: <_>::default(),
            trials: <_>::default(),
            of_one_run: false,
            backends: [RunBackend::Testbed, RunBackend::Testbed],
        }
    }

    #[test]
    fn different_backends_are_named() {
        let mut compared = differences(2, 2);
        assert!(!text(&compared, None).contains("different backends"));
        compared.backends[1] = RunBackend::Simulator { model_version: 3 };
        let named = "different backends (A: testbed; B: simulator, model 3):";
        assert!(text(&compared, None).contains(named));
    }

    #[test]
    fn pairs_are_counted_in_words() {
        assert!(text(&differences(1, 2), None).contains(" 1 pair\n"));
        assert!(text(&differences(2, 2), None).contains(" 2 pairs\n"));
    }

    #[test]
    fn a_narrow_terminal_has_fewer_columns_and_whole_words() {
        let widest = |text: &str| {
            let table = text.lines().skip(3).take_while(|line| !line.is_empty());
            table.map(|line| line.chars().count()).max().unwrap_or_default()
        };
        let both = differences(3, 2);
        let whole = text(&both, None);
        assert!(widest(&whole) > 120 && !whole.contains("left out"), "{whole}");
        assert_eq!(text(&both, Some(300)), whole);
        let narrow = text(&both, Some(120));
        assert!(widest(&narrow) <= 120, "{narrow}");
        let narrower = text(&both, Some(100));
        assert!(narrower.contains("left out for lack of width: 95 % (bootstrap)"), "{narrower}");
        assert!(widest(&narrower) <= 100, "{narrower}");
        for printed in [&narrow, &narrower, &text(&both, Some(20))] {
            assert_eq!(printed.matches("jain_fairness_of_mean").count(), 2, "{printed}");
        }
    }

    #[test]
    fn a_long_table_names_the_option_that_selects_metrics() {
        let hint = "; --metric NAME,... selects metrics.\n";
        assert!(!text(&differences(2, MAX_ROWS), None).contains(hint));
        let long = text(&differences(2, MAX_ROWS + 1), None);
        assert!(long.contains(&format!("\n41 rows{hint}")), "{long}");
    }
}
