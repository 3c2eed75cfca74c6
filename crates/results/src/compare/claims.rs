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
    /// The claims that both runs have at points with the same levels, as pairs of A and B. A claim for which a run has no point is paired
    /// with that claim at each point of the other run.
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
    pub(super) fn new([a, b]: [(&Points, &[Expectation]); 2]) -> Self {
        let mut of_b: BTreeMap<Key<'_>, Vec<&Expectation>> = BTreeMap::new();
        for claim in b.1 {
            of_b.entry(key(b.0, claim)).or_default().push(claim);
        }
        let mut pairs = Vec::new();
        let mut only_a: Vec<&Expectation> = Vec::new();
        for claim in a.1 {
            let same = of_b.get_mut(&key(a.0, claim));
            let found = same.and_then(|same| {
                let at = same.iter().position(|other| other.test == claim.test)?;
                Some(same.remove(at))
            });
            match found {
                Some(other) => pairs.push([claim.clone(), other.clone()]),
                None => only_a.push(claim),
            }
        }
        let lone = [only_a, of_b.into_values().flatten().collect()];
        let texts =
            lone.each_ref().map(|claims| [false, true].map(|has_point| by_text(claims, has_point)));
        // A claim with a point is paired with one without, and the other way round.
        let partner = |claim: &Expectation, side: usize| {
            let with_point = usize::from(claim.point_id.is_none());
            texts[1 - side][with_point].get(claim.claim.as_str()).copied()
        };
        let unpaired = [0, 1].map(|side: usize| {
            lone[side].iter().filter(|claim| partner(claim, side).is_none()).count()
        });
        for claim in lone[0].iter().filter(|claim| claim.point_id.is_some()) {
            pairs.extend(partner(claim, 0).map(|other| [(*claim).clone(), other.clone()]));
        }
        for claim in lone[1].iter().filter(|claim| claim.point_id.is_some()) {
            pairs.extend(partner(claim, 1).map(|other| [other.clone(), (*claim).clone()]));
        }
        Self { pairs, unpaired }
    }
}

/// Returns the claims with or without a point, by their texts.
fn by_text<'a>(claims: &[&'a Expectation], has_point: bool) -> BTreeMap<&'a str, &'a Expectation> {
    let some = claims.iter().filter(|claim| claim.point_id.is_some() == has_point);
    some.map(|claim| (claim.claim.as_str(), *claim)).collect()
}

/// Returns the claims that hold in only one of the runs, at most `width` characters wide, and how many claims hold in which run. Empty if
/// neither run has claims.
pub fn claims(differences: &Differences, width: u16) -> String {
    let ComparedClaims { pairs, unpaired } = &differences.claims;
    if pairs.is_empty() {
        return not_compared(unpaired);
    }
    let count = |wanted: [bool; 2]| {
        let counts =
            |pair: &&[Expectation; 2]| are_measured(pair) == [true, true] && hold(pair) == wanted;
        pairs.iter().filter(counts).count()
    };
    let unmeasured = [([false, true], "A"), ([true, false], "B"), ([false, false], "A and B")];
    let unmeasured = unmeasured.map(|(measured, runs)| {
        match pairs.iter().filter(|pair| are_measured(pair) == measured).count() {
            0 => String::new(),
            count => format!("; not measured in {runs}: {count}"),
        }
    });
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
        "claims: {} hold in A and B, {} only in A, {} only in B, {} in neither{}\n",
        count([true, true]),
        count([true, false]),
        count([false, true]),
        count([false, false]),
        unmeasured.concat()
    );
    text + &not_compared(unpaired)
}

/// Returns how many claims only one of the runs has.
fn not_compared(unpaired: &[usize; 2]) -> String {
    let mut text = String::new();
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
        let known = at_point(a, b);
        let (expected, of_a, of_b) = (known.expected_text(), measured(a), measured(b));
        table.row(&[
            known.claim.as_str().into(),
            known.levels.as_str().into(),
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

/// Returns the claim that has a point, and therefore levels and limits.
const fn at_point<'a>(a: &'a Expectation, b: &'a Expectation) -> &'a Expectation {
    if a.point_id.is_some() { a } else { b }
}

/// Returns in which of the two runs a claim was measured.
fn are_measured(pair: &[Expectation; 2]) -> [bool; 2] {
    pair.each_ref().map(|one| one.outcome != Outcome::NotMeasured)
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
        let known = at_point(a, b);
        let name = match known.levels.is_empty() {
            true => known.claim.clone(),
            false => format!("{}: {}", known.claim, known.levels),
        };
        let holds_in = if a.outcome == Outcome::Holds { "A" } else { "B" };
        table.add_row(vec![
            Cell::new(name),
            right(known.expected_text()),
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
    use crate::backend::RunBackend;

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
            reasons: vec![],
        }
    }

    fn points(levels: &[&str]) -> Points {
        let point = |level: &&str| vec![("queue".to_owned(), (*level).to_owned())];
        (0..).zip(levels.iter().map(point)).collect()
    }

    fn compared(a: (&Points, &[Expectation]), b: (&Points, &[Expectation])) -> Differences {
        let names = ("a".to_owned(), "b".to_owned());
        let claims = ComparedClaims::new([a, b]);
        Differences {
            names,
            rows: vec![],
            unmatched: vec![],
            judged: vec![],
            claims,
            trials: <_>::default(),
            of_one_run: false,
            backends: [RunBackend::Testbed, RunBackend::Testbed],
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
        let end = "\nclaims: 1 hold in A and B, 1 only in A, 1 only in B, 0 in neither; \
                   not measured in B: 1\n\
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
    fn claims_that_a_run_has_no_point_for_are_not_measured_there() {
        let points = points(&["small", "large"]);
        let nowhere = |text: &str| Expectation {
            point_id: None,
            test: None,
            measured: None,
            ..claim(text, 0, 0.0, Outcome::NotMeasured)
        };
        let a = [
            claim("fast", 0, 12e6, Outcome::Holds),
            claim("fast", 1, 9e6, Outcome::DoesNotHold),
            nowhere("skipped"),
        ];
        let b = [nowhere("fast"), nowhere("skipped")];
        let none = "claims: 0 hold in A and B, 0 only in A, 0 only in B, 0 in neither";
        for (sides, end) in [
            ([&a[..], &b[..]], "; not measured in B: 2; not measured in A and B: 1\n"),
            ([&b[..], &a[..]], "; not measured in A: 2; not measured in A and B: 1\n"),
            ([&b[..], &b[..]], "; not measured in A and B: 2\n"),
        ] {
            let differences = compared((&points, sides[0]), (&points, sides[1]));
            assert_eq!(differences.claims.unpaired, [0, 0]);
            let printed = claims(&differences, 80);
            assert!(printed.ends_with(&format!("{none}{end}")), "{printed}");
        }
        let csv = claims_csv(&compared((&points, &b), (&points, &a)));
        let rows: Vec<&str> = csv.lines().skip(1).collect();
        assert_eq!(rows.len(), 3, "{csv}");
        let fast = "fast,,≥ 10 Mbit/s,not measured,not_measured,12 Mbit/s,holds";
        assert!(rows.contains(&fast), "{csv}");
    }

    #[test]
    fn other_limits_are_another_claim_and_runs_without_claims_print_nothing() {
        let points = points(&["small"]);
        let a = [claim("fast", 0, 12e6, Outcome::Holds)];
        let test = Some(Test { least: Some(20e6), most: None, unit: "bit/s" });
        let b = [Expectation { test, ..claim("fast", 0, 12e6, Outcome::DoesNotHold) }];
        let differences = compared((&points, &a), (&points, &b));
        assert_eq!(differences.claims.unpaired, [1, 1]);
        let printed = "not compared: 1 claim that only A has\n\
                       not compared: 1 claim that only B has\n";
        assert_eq!(claims(&differences, 80), printed);
        assert_eq!(claims(&compared((&points, &[]), (&points, &[])), 80), "");
        let same = claims(&compared((&points, &a), (&points, &a)), 80);
        assert_eq!(same, "claims: 1 hold in A and B, 0 only in A, 0 only in B, 0 in neither\n");
    }
}
