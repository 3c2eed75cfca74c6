//! Claims of two runs of a plan: which ones hold in only one of the runs, for example in the lab but not in the simulator.

use std::collections::BTreeMap;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table};

use super::Differences;
use crate::csv;
use crate::display::TABLE_STYLE;
use crate::expect::{Expectation, Outcome};

/// At a smaller width, the column of claims would have one word per line.
const MIN_WIDTH: u16 = 72;

/// The claims of two runs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ComparedClaims {
    /// The claims that both runs have at points with the same levels, as pairs of A and B.
    pub pairs: Vec<[Expectation; 2]>,
    /// Number of claims that only A has, and that only B has.
    pub unpaired: [usize; 2],
}

/// Levels of each point.
type Points = BTreeMap<u32, Vec<(String, String)>>;
/// A claim's text and all levels of its point.
type Key<'a> = (&'a str, &'a [(String, String)]);

fn key<'a>(points: &'a Points, claim: &'a Expectation) -> Key<'a> {
    let levels = claim.point_id.and_then(|id| points.get(&id));
    (claim.claim.as_str(), levels.map_or(&[][..], Vec::as_slice))
}

impl ComparedClaims {
    /// Matches the claims of two runs, A and B, by their text, their limits and the levels of their points.
    pub(super) fn of([a, b]: [(&Points, &[Expectation]); 2]) -> Self {
        let mut of_b: BTreeMap<Key<'_>, Vec<&Expectation>> = BTreeMap::new();
        for claim in b.1 {
            of_b.entry(key(b.0, claim)).or_default().push(claim);
        }
        let mut pairs = Vec::new();
        for claim in a.1 {
            let Some(same) = of_b.get_mut(&key(a.0, claim)) else { continue };
            if let Some(at) = same.iter().position(|other| other.test == claim.test) {
                pairs.push([claim.clone(), same.remove(at).clone()]);
            }
        }
        let unpaired = [a.1.len() - pairs.len(), b.1.len() - pairs.len()];
        Self { pairs, unpaired }
    }
}

/// Returns the claims that hold in only one of the runs, at most `width` characters wide, and how many claims hold in which run. Empty if
/// the runs have no claim in common.
pub fn claims(differences: &Differences, width: u16) -> String {
    let ComparedClaims { pairs, unpaired } = &differences.claims;
    if pairs.is_empty() {
        return String::new();
    }
    let count = |wanted: [bool; 2]| pairs.iter().filter(|pair| hold(pair) == wanted).count();
    let differ = |pair: &&[Expectation; 2]| hold(pair)[0] != hold(pair)[1];
    let differing: Vec<&[Expectation; 2]> = pairs.iter().filter(differ).collect();
    let mut text = match differing.is_empty() {
        true => String::new(),
        false => format!(
            "\nclaims that hold in one run and not in the other:\n\n{}\n",
            table(&differing, width)
        ),
    };
    text += &format!(
        "claims: {} hold in A and B, {} only in A, {} only in B, {} in neither\n",
        count([true, true]),
        count([true, false]),
        count([false, true]),
        count([false, false])
    );
    for (name, count) in ["A", "B"].into_iter().zip(unpaired).filter(|(_, count)| **count > 0) {
        let claims = if *count == 1 { "claim" } else { "claims" };
        text += &format!("not compared: {count} {claims} that only {name} has\n");
    }
    text
}

/// Returns the claims that both runs have, as CSV.
pub fn claims_csv(differences: &Differences) -> String {
    let mut table = csv::Table::new(&[
        "claim",
        "levels",
        "expected",
        "measured_a",
        "verdict_a",
        "measured_b",
        "verdict_b",
    ]);
    for [a, b] in &differences.claims.pairs {
        let (expected, of_a, of_b) = (a.expected_text(), measured(a), measured(b));
        table.row(&[
            a.claim.as_str().into(),
            a.levels.as_str().into(),
            expected.as_str().into(),
            of_a.as_str().into(),
            a.outcome.as_str().into(),
            of_b.as_str().into(),
            b.outcome.as_str().into(),
        ]);
    }
    table.finish()
}

fn measured(one: &Expectation) -> String {
    match one.outcome {
        Outcome::NotMeasured => "not measured".to_owned(),
        Outcome::Holds | Outcome::DoesNotHold => one.measured_text(),
    }
}

/// Returns in which of the two runs a claim holds.
fn hold(pair: &[Expectation; 2]) -> [bool; 2] {
    pair.each_ref().map(|one| one.outcome == Outcome::Holds)
}

fn table(pairs: &[&[Expectation; 2]], width: u16) -> String {
    let mut table = Table::new();
    table.load_style(TABLE_STYLE);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width.max(MIN_WIDTH));
    table.set_header(["claim", "expected", "A", "B", "holds in"]);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    for pair in pairs {
        let [a, b] = *pair;
        let name = match a.levels.is_empty() {
            true => a.claim.clone(),
            false => format!("{}: {}", a.claim, a.levels),
        };
        let holds_in = if a.outcome == Outcome::Holds { "A" } else { "B" };
        table.add_row(vec![
            Cell::new(name),
            right(a.expected_text()),
            right(measured(a)),
            right(measured(b)),
            Cell::new(holds_in),
        ]);
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::expect::Test;

    use super::*;

    fn claim(text: &str, point_id: u32, measured: f64, outcome: Outcome) -> Expectation {
        Expectation {
            index: 0,
            claim: text.to_owned(),
            source: None,
            published: None,
            point_id: Some(point_id),
            levels: String::new(),
            number: String::new(),
            test: Some(Test { least: Some(10e6), most: None, unit: "bit/s" }),
            measured: Some(measured),
            interval: None,
            n_trials: 1,
            outcome,
            why: vec![],
        }
    }

    fn points(levels: &[&str]) -> Points {
        let point = |level: &&str| vec![("queue".to_owned(), (*level).to_owned())];
        (0..).zip(levels.iter().map(point)).collect()
    }

    fn compared(a: (&Points, &[Expectation]), b: (&Points, &[Expectation])) -> Differences {
        let names = ("a".to_owned(), "b".to_owned());
        let claims = ComparedClaims::of([a, b]);
        Differences {
            names,
            rows: vec![],
            unmatched: vec![],
            judged: vec![],
            claims,
            trials: <_>::default(),
            of_one_run: false,
        }
    }

    #[test]
    fn claims_are_matched_by_text_and_levels() {
        use Outcome::{DoesNotHold, Holds, NotMeasured};
        // B has the points in another order, and one more point.
        let (of_a, of_b) = (points(&["small", "large"]), points(&["none", "large", "small"]));
        let a = [
            claim("fast", 0, 12e6, Holds),
            claim("fast", 1, 13e6, Holds),
            claim("short", 0, 14e6, DoesNotHold),
            claim("fair", 0, 15e6, Holds),
        ];
        let b = [
            claim("fast", 0, 1e6, DoesNotHold),
            claim("fast", 1, 3e6, DoesNotHold),
            claim("fast", 2, 16e6, Holds),
            claim("short", 2, 17e6, Holds),
            Expectation { measured: None, ..claim("fair", 2, 0.0, NotMeasured) },
        ];
        let differences = compared((&of_a, &a), (&of_b, &b));
        let printed = claims(&differences, 80);
        let rows: Vec<Vec<&str>> = printed
            .lines()
            .filter(|line| line.contains("Mbit/s"))
            .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
            .collect();
        let least = "≥ 10 Mbit/s";
        assert_eq!(
            rows,
            [
                ["fast", least, "13 Mbit/s", "3 Mbit/s", "A"],
                ["short", least, "14 Mbit/s", "17 Mbit/s", "B"],
                ["fair", least, "15 Mbit/s", "not measured", "A"],
            ],
            "{printed}"
        );
        let end = "\nclaims: 1 hold in A and B, 2 only in A, 1 only in B, 0 in neither\n\
                   not compared: 1 claim that only B has\n";
        assert!(printed.ends_with(end), "{printed}");
        let csv = claims_csv(&differences);
        let rows: Vec<&str> = csv.lines().collect();
        assert_eq!(rows[0], "claim,levels,expected,measured_a,verdict_a,measured_b,verdict_b");
        assert_eq!(rows.len(), 1 + differences.claims.pairs.len());
        let fair = "fair,,≥ 10 Mbit/s,15 Mbit/s,holds,not measured,not_measured";
        assert!(rows.contains(&fair), "{csv}");
    }

    #[test]
    fn other_limits_are_another_claim_and_runs_without_claims_print_nothing() {
        let points = points(&["small"]);
        let a = [claim("fast", 0, 12e6, Outcome::Holds)];
        let test = Some(Test { least: Some(20e6), most: None, unit: "bit/s" });
        let b = [Expectation { test, ..claim("fast", 0, 12e6, Outcome::DoesNotHold) }];
        let differences = compared((&points, &a), (&points, &b));
        assert_eq!(differences.claims.unpaired, [1, 1]);
        assert_eq!(claims(&differences, 80), "");
        let same = claims(&compared((&points, &a), (&points, &a)), 80);
        assert_eq!(same, "claims: 1 hold in A and B, 0 only in A, 0 only in B, 0 in neither\n");
    }
}
