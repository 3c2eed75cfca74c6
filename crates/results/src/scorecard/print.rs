//! Prints the scorecard as text, Markdown, JSON and a table.

use std::fmt::Write as _;

use ccbench_proto::plan::expect::Test;
use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table, Width};
use polars::prelude::*;

use super::{BASELINE, Comparison, Estimate, Outcome, Scorecard, ScorecardRow};
use crate::display::TABLE_STYLE;
use crate::expect::{limits_text, mean_text, measured_text, wrapped};
use crate::summary::statistics::Mean;
use crate::summary::tables::text;

/// Minimum number of trials of each point for comparisons without a caveat.
const ENOUGH_TRIALS: u32 = 5;
/// At a smaller width, the column of criteria would have one word per line.
const MIN_WIDTH: u16 = 110;
/// The table to whose directory a scorecard links for the trials of a point: every trial has this table.
const LINKED_TABLE: &str = "tables/flow_samples";

impl Scorecard {
    /// Returns the table with notes below it, at most `width` characters wide.
    pub fn text(&self, width: u16) -> String {
        let width = width.max(MIN_WIDTH);
        let mut table = Table::new();
        table.load_style(TABLE_STYLE);
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        let cc = self.cc.as_str();
        table.set_header(["§", "criterion", cc, BASELINE, "ratio", "compared", "trials"]);
        let mut section = "";
        for row in self.shown() {
            if row.criterion.section != section {
                section = row.criterion.section;
                let title = [section, row.criterion.title, "", "", "", "", ""];
                table.add_row(title.map(Cell::new));
            }
            if let Some(measure) = row.measure {
                let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
                table.add_row(vec![
                    Cell::new(""),
                    Cell::new(format!("  {}{}", measure.quantity, in_brackets(&row.bound_text()))),
                    right(row.tested_text()),
                    right(row.baseline_text()),
                    right(row.ratio_text()),
                    Cell::new(row.comparison_text()),
                    Cell::new(row.trials_text()),
                ]);
            }
        }
        for (column, most) in [(0, 8), (2, 20), (3, 20), (4, 16), (5, 10), (6, 12)] {
            if let Some(column) = table.column_mut(column) {
                column.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(most)));
            }
        }
        let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
        let mut out = lines.join("\n") + "\n";
        let _ = writeln!(out, "\n{}", wrapped("", &self.tally(), usize::from(width)));
        if !self.instance.is_empty() {
            let instance = format!("{}: {}", self.cc, self.instance);
            let _ = writeln!(out, "{}", wrapped("* ", &instance, usize::from(width)));
        }
        if let Some(caveat) = self.caveat() {
            let _ = writeln!(out, "{}", wrapped("! ", &caveat, usize::from(width)));
        }
        for (reason, sections) in self.reasons() {
            let note = format!("{}: {reason}", sections.join(", "));
            let _ = writeln!(out, "{}", wrapped("* ", &note, usize::from(width)));
        }
        out
    }

    /// Returns the rows for readers: without those of scenarios that the plan lacks, because `--set` has selected others.
    fn shown(&self) -> impl Iterator<Item = &ScorecardRow> {
        self.rows.iter().filter(|row| row.measure.is_none() || row.points != [None, None])
    }

    /// Returns how many rows were measured, and what the columns mean.
    fn tally(&self) -> String {
        let measures = || self.shown().filter(|row| row.measure.is_some());
        let measured = measures().filter(|row| row.tested.is_some()).count();
        let count = |comparison: Comparison| {
            measures().filter(|row| row.comparison == Some(comparison)).count()
        };
        let of_bounds = |outcome: Outcome| {
            let bounded = measures().filter(|row| row.measure.is_some_and(|it| it.bound.is_some()));
            bounded.filter(|row| row.outcome == Some(outcome)).count()
        };
        let left_out = match self.rows.len() - self.shown().count() {
            0 => String::new(),
            count => format!("; left out, because the plan lacks their scenarios: {count}"),
        };
        format!(
            "{measured} of {} rows measured: {} better than {BASELINE}, {} worse, {} without a significant difference; bounds: {} \
             hold, {} do not{left_out}. ±: 95 % confidence interval over trials; ratio: mean over pairs of trials with the same seed. \
             docs/scorecard.md explains the rows.",
            measures().count(),
            count(Comparison::Better),
            count(Comparison::Worse),
            count(Comparison::NoDifference),
            of_bounds(Outcome::Holds),
            of_bounds(Outcome::DoesNotHold),
        )
    }

    /// Returns what few trials mean for the comparisons; `None` if each point has enough.
    fn caveat(&self) -> Option<String> {
        let compared = self.rows.iter().filter(|row| row.comparison.is_some());
        let sides = compared.flat_map(|row| [row.tested, row.baseline]).flatten();
        let fewest =
            sides.map(|side| side.n_trials).min().filter(|fewest| *fewest < ENOUGH_TRIALS)?;
        Some(format!(
            "Some rows have only {fewest} trials. Their intervals may have hardly any width by chance (±0), so `better` and `worse` \
             prove nothing there. Run at least {ENOUGH_TRIALS} trials (without --quick, or with --set repeat={ENOUGH_TRIALS})."
        ))
    }

    /// Returns each reason or note once, with the sections of its rows.
    fn reasons(&self) -> Vec<(&str, Vec<&'static str>)> {
        let mut reasons: Vec<(&str, Vec<&'static str>)> = Vec::new();
        for row in self.shown() {
            let section = row.criterion.section;
            for reason in &row.reasons {
                match reasons.iter_mut().find(|(known, _)| known == reason) {
                    Some((_, sections)) if sections.last() == Some(&section) => {}
                    Some((_, sections)) => sections.push(section),
                    None => reasons.push((reason, vec![section])),
                }
            }
        }
        reasons
    }

    /// Returns the table for documents.
    pub fn markdown(&self) -> String {
        let mut out = format!("# {} beside {BASELINE}: the criteria of RFC 9743\n\n", self.cc);
        if !self.instance.is_empty() {
            let _ = writeln!(out, "{}: {}\n", self.cc, self.instance);
        }
        for note in &self.notes {
            let _ = writeln!(out, "{note}\n");
        }
        let _ = writeln!(
            out,
            "| § | criterion | quantity | {} | {BASELINE} | ratio | compared | bound | trials |\n\
             |---|---|---|---|---|---|---|---|---|",
            self.cc
        );
        for row in self.shown() {
            let criterion = row.criterion;
            let quantity = row.measure.map_or("not measured", |measure| measure.quantity);
            let reasons = in_brackets(&row.reasons.join("; "));
            let cells = [
                row.tested_text(),
                row.baseline_text(),
                row.ratio_text(),
                row.comparison_text().to_owned(),
                row.bound_text(),
                row.trials_link(),
            ];
            let _ = writeln!(
                out,
                "| {} | {} | {quantity}{reasons} | {} |",
                criterion.section,
                criterion.title,
                cells.join(" | ")
            );
        }
        let _ = writeln!(out, "\n{}", self.tally());
        if let Some(caveat) = self.caveat() {
            let _ = writeln!(out, "\n{caveat}");
        }
        out
    }

    /// Returns the events of `--json`, one per row.
    pub fn json(&self) -> Vec<serde_json::Value> {
        self.rows.iter().map(|row| row.json(&self.cc)).collect()
    }

    /// Returns the table `scorecard`.
    pub(crate) fn frame(&self) -> PolarsResult<DataFrame> {
        let rows = self.rows.as_slice();
        let of_measure = |name: &str, value: fn(&super::Measure) -> String| {
            let values = rows.iter().map(|row| row.measure.map(value));
            Column::new(name.into(), values.collect::<Vec<_>>())
        };
        let number = |name: &str, value: fn(&ScorecardRow) -> Option<f64>| {
            Column::new(name.into(), rows.iter().map(value).collect::<Vec<_>>())
        };
        let whole = |name: &str, value: fn(&ScorecardRow) -> Option<u32>| {
            Column::new(name.into(), rows.iter().map(value).collect::<Vec<_>>())
        };
        let comparisons = rows.iter().map(|row| Some(row.comparison?.as_str().to_owned()));
        DataFrame::new_infer_height(vec![
            text("section", rows, |row| row.criterion.section.to_owned()),
            text("criterion", rows, |row| row.criterion.title.to_owned()),
            of_measure("quantity", |measure| measure.quantity.to_owned()),
            of_measure("scenario", |measure| measure.scenario.to_owned()),
            of_measure("number", super::Measure::number),
            of_measure("unit", |measure| measure.unit().to_owned()),
            number("value", |row| row.tested.map(|it| it.mean.value)),
            number("ci_low", |row| low(row.tested?.mean)),
            number("ci_high", |row| high(row.tested?.mean)),
            whole("n_trials", |row| row.tested.map(|it| it.n_trials)),
            number("baseline", |row| row.baseline.map(|it| it.mean.value)),
            number("baseline_ci_low", |row| low(row.baseline?.mean)),
            number("baseline_ci_high", |row| high(row.baseline?.mean)),
            whole("baseline_n_trials", |row| row.baseline.map(|it| it.n_trials)),
            number("ratio", |row| row.ratio.map(|ratio| ratio.value)),
            number("ratio_ci_low", |row| low(row.ratio?)),
            number("ratio_ci_high", |row| high(row.ratio?)),
            Column::new("comparison".into(), comparisons.collect::<Vec<_>>()),
            number("upper_bound", |row| Some(row.measure?.bound?.upper)),
            text("verdict", rows, |row| row.verdict().to_owned()),
            whole("point_id", |row| row.points[0]),
            whole("baseline_point_id", |row| row.points[1]),
            text("reason", rows, |row| row.reasons.join("; ")),
        ])
    }
}

/// Returns a blank and the text in brackets; nothing if the text is empty.
fn in_brackets(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" ({text})") }
}

fn low(mean: Mean) -> Option<f64> {
    mean.interval.map(|(low, _)| low)
}

fn high(mean: Mean) -> Option<f64> {
    mean.interval.map(|(_, high)| high)
}

impl ScorecardRow {
    fn tested_text(&self) -> String {
        match (self.measure, self.tested) {
            (Some(_), None) if self.codes.is_empty() => "not measured".to_owned(),
            (Some(_), None) => format!("not measured: {}", self.codes),
            (_, tested) => {
                tested.map_or(String::new(), |tested| measured_text(tested.mean, self.test()))
            }
        }
    }

    /// Returns the bound as a test; without limits if there is none.
    fn test(&self) -> Test {
        let bound = self.measure.and_then(|measure| measure.bound);
        let unit = self.measure.map_or("1", super::Measure::unit);
        Test { least: None, most: bound.map(|bound| bound.upper), unit }
    }

    fn baseline_text(&self) -> String {
        self.baseline.map_or(String::new(), |baseline| mean_text(baseline.mean, self.test().unit))
    }

    fn ratio_text(&self) -> String {
        self.ratio.map_or(String::new(), |ratio| mean_text(ratio, "1"))
    }

    fn comparison_text(&self) -> &'static str {
        match self.comparison {
            Some(Comparison::Better) => "better",
            Some(Comparison::Worse) => "worse",
            Some(Comparison::NoDifference) => "=",
            None => "",
        }
    }

    /// Returns the bound, and whether it holds.
    fn bound_text(&self) -> String {
        let test = self.test();
        if test.most.is_none() {
            return String::new();
        }
        let holds = match self.outcome {
            Some(Outcome::Holds) => ": yes",
            Some(Outcome::DoesNotHold) => ": NO",
            Some(Outcome::NotMeasured) | None => "",
        };
        format!("{}{holds}", limits_text(test, self.tested.map(|tested| tested.mean.value)))
    }

    /// Returns the trials' directory below that of a table.
    fn trials_text(&self) -> String {
        self.points[0].map_or(String::new(), |point| format!("point={point}"))
    }

    /// Returns a link to the trials of each point, relative to the results directory.
    fn trials_link(&self) -> String {
        let link = |point: u32| format!("[point={point}]({LINKED_TABLE}/point={point})");
        self.points.into_iter().flatten().map(link).collect::<Vec<_>>().join(" ")
    }

    fn json(&self, cc: &str) -> serde_json::Value {
        let estimate = |estimate: Option<Estimate>| {
            estimate.map(|Estimate { mean, n_trials }| {
                serde_json::json!({
                    "mean": mean.value, "ci_low": low(mean), "ci_high": high(mean), "n_trials": n_trials,
                })
            })
        };
        let measure = self.measure;
        let bound = measure.and_then(|measure| measure.bound);
        let trials = |point: Option<u32>| point.map(|id| format!("{LINKED_TABLE}/point={id}"));
        serde_json::json!({
            "event": "scorecard", "cc": cc, "section": self.criterion.section, "criterion": self.criterion.title,
            "question": self.criterion.question, "quantity": measure.map(|it| it.quantity),
            "scenario": measure.map(|it| it.scenario), "number": measure.map(super::Measure::number),
            "unit": measure.map(super::Measure::unit), "value": estimate(self.tested),
            "baseline": estimate(self.baseline), "ratio": self.ratio.map(|ratio| ratio.value),
            "ratio_ci_low": self.ratio.and_then(low), "ratio_ci_high": self.ratio.and_then(high),
            "comparison": self.comparison.map(Comparison::as_str), "upper_bound": bound.map(|bound| bound.upper),
            "bound_source": bound.map(|bound| bound.source), "verdict": self.verdict(),
            "trials": trials(self.points[0]), "baseline_trials": trials(self.points[1]), "reason": self.reasons,
        })
    }
}
