//! Prints rules and comparisons: what is measured, at which points, the result and the estimate.

use std::fmt::Write as _;

use ccbench_proto::plan::repeat::Margin;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table};

use super::{Decision, Definition, Estimate, Rule};
use crate::display::TABLE_STYLE;
use crate::expect::{named, quantity};

/// At a smaller width, the columns of text would have one word per line.
const MIN_WIDTH: u16 = 72;

/// The current result of a rule at one point, or of a comparison of two.
#[derive(Debug, Clone, PartialEq)]
pub struct RuleResult {
    /// `until` or `compare` with its number in the plan, from 0: `compare.0`.
    pub rule: String,
    /// What the rule measures, and the margin, in words.
    pub number: String,
    /// The point, or both points.
    pub points: Vec<u32>,
    /// The points' levels: `flows.one.cc=cubic v bbr rate=10mbit`.
    pub levels: String,
    /// The decision; `None` while the rule is undecided.
    pub decision: Option<Decision>,
    /// The estimate at the decision, or the current one; `None` while its interval is infinite.
    pub estimate: Option<Estimate>,
    /// Number of repetitions until the decision, or so far.
    pub trials: u16,
    /// The estimate's unit.
    pub unit: &'static str,
}

impl RuleResult {
    pub(super) fn new(
        definition: &Definition,
        rule: &Rule,
        levels: &[&[(String, String)]],
    ) -> Self {
        let number = &definition.measure.number;
        let unit = number.metric.unit_of(number.stat);
        let margin = match definition.measure.margin {
            Margin::Share(share) => format!("{} %", (share * 1e6).round() / 1e4),
            Margin::Amount(amount) => quantity(amount, unit),
        };
        let kind = if definition.better.is_some() { "margin" } else { "within" };
        Self {
            rule: definition.name.clone(),
            number: format!("{}, {kind} {margin}", named(number)),
            points: rule.points.clone(),
            levels: levels_text(levels),
            decision: rule.decision.clone(),
            estimate: rule
                .decision
                .as_ref()
                .map_or_else(|| rule.evidence.estimate(), |decision| Some(decision.estimate)),
            trials: rule.looked,
            unit,
        }
    }

    /// Describes the result.
    pub fn outcome(&self) -> &'static str {
        self.decision.as_ref().map_or("undecided", |decision| decision.outcome.as_str())
    }

    /// Returns the event of `--json`.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "event": "rule", "rule": self.rule, "number": self.number, "points": self.points, "levels": self.levels,
            "outcome": self.outcome(), "trials": self.trials, "n": self.estimate.map(|it| it.n),
            "estimate": self.estimate.map(|it| it.mean), "ci_low": self.estimate.map(|it| it.low),
            "ci_high": self.estimate.map(|it| it.high), "unit": self.unit,
        })
    }

    fn estimate_text(&self) -> String {
        let Some(Estimate { mean, low, high, .. }) = self.estimate else { return String::new() };
        let [mean, half] = [mean, (high - low) / 2.0].map(|value| quantity(value, self.unit));
        format!("{mean} ± {half}")
    }
}

/// Returns the levels of a point. For two points, gives both levels where they differ.
fn levels_text(points: &[&[(String, String)]]) -> String {
    let Some((first, others)) = points.split_first() else { return String::new() };
    let mut text = String::new();
    for (nth, (factor, level)) in first.iter().enumerate() {
        let space = if nth == 0 { "" } else { " " };
        // Writing to a String cannot fail.
        let _ = write!(text, "{space}{factor}={level}");
        for (_, other) in others.iter().filter_map(|point| point.get(nth)) {
            if other != level {
                let _ = write!(text, " v {other}");
            }
        }
    }
    text
}

/// Returns the table of rules, at most `width` characters wide; empty without rules.
pub fn text(rows: &[RuleResult], width: u16) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table = Table::new();
    table.load_style(TABLE_STYLE);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width.max(MIN_WIDTH));
    table.set_header(["rule", "points", "result", "estimate", "trials"]);
    for (nth, row) in rows.iter().enumerate() {
        let is_repeated = nth > 0 && rows[nth - 1].rule == row.rule;
        let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
        table.add_row(vec![
            Cell::new(if is_repeated { "" } else { row.number.as_str() }),
            Cell::new(&row.levels),
            Cell::new(row.outcome()),
            right(row.estimate_text()),
            right(row.trials.to_string()),
        ]);
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    let undecided = rows.iter().filter(|row| row.decision.is_none()).count();
    let mut out = lines.join("\n") + "\n";
    let _ = writeln!(
        out,
        "\n{} of {} rules decided. ±: 95 % confidence sequence; for comparisons, of the difference a - b over pairs of trials.",
        rows.len() - undecided,
        rows.len()
    );
    out
}
