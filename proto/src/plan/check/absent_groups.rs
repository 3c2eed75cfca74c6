//! Rules, comparisons and claims about flow groups at points where these do not run, or have no such flow: rules of `repeat` and
//! comparisons would never be decided there, and claims are not measured.

use std::collections::{BTreeMap, BTreeSet};

use toml::Value;

use crate::plan::Plan;
use crate::plan::expect::{Numbered, Operand, Relation};
use crate::plan::repeat::fits;
use crate::plan::timeline::is_scheduled;

use super::competitors::group_of;
use super::limits::PHASE_FLOWS;
use super::matrix;
use super::problems::Problems;

/// Levels of factors that select points.
type Selected = BTreeMap<String, Value>;
/// The levels of a point: factor and level.
type Levels = Vec<(String, String)>;

/// The subject of a rule, a comparison or a claim: a number of a flow group.
#[derive(PartialEq)]
pub(super) struct GroupNumber {
    /// Its place in the plan.
    place: Vec<String>,
    group: String,
    /// The flow's number in the group; `None`: about the whole group.
    flow: Option<u32>,
    /// Alternatives: its points have the levels of one of them.
    at: Vec<Selected>,
    /// For a comparison of points of a design: the points that have a pair.
    paired: Option<BTreeSet<Levels>>,
}

impl GroupNumber {
    fn is_about(&self, levels: &[(String, String)]) -> bool {
        self.at.iter().any(|at| fits(at, levels))
            && self.paired.as_ref().is_none_or(|paired| paired.contains(levels))
    }
}

/// The numbers of flow groups in the plan's rules, comparisons and claims.
pub(super) fn group_numbers(plan: &Plan) -> Vec<GroupNumber> {
    let mut found: Vec<GroupNumber> = Vec::new();
    let mut add = |place: &[&str], number: &Numbered, (at, paired): (Vec<Selected>, _)| {
        let Some(group) = group_of(number) else { return };
        let place = place.iter().map(|segment| (*segment).to_owned()).collect();
        let flow = number.subject.strip_prefix(&format!("{group}/"));
        let flow = flow.and_then(|flow| flow.parse().ok());
        let number = GroupNumber { place, group, flow, at, paired };
        if !found.contains(&number) {
            found.push(number);
        }
    };
    let rules = plan.repeat.adaptive().into_iter().flat_map(|adaptive| &adaptive.until);
    for (index, until) in rules.enumerate() {
        let Some(measure) = until.measure(plan) else { continue };
        let number = index.to_string();
        add(&["repeat", "until", &number], &measure.number, (vec![until.at.clone()], None));
    }
    let has_pairs = plan.design.is_some() && !plan.compare.is_empty();
    let points = has_pairs.then(|| matrix::combinations(plan));
    for (index, compare) in plan.compare.iter().enumerate() {
        let Some(measure) = compare.measure(plan) else { continue };
        let side = |levels: &Selected| levels.clone().into_iter().chain(compare.at.clone());
        let at: Vec<Selected> = vec![side(&compare.a).collect(), side(&compare.b).collect()];
        let paired: Option<BTreeSet<Levels>> = points.as_ref().map(|points| {
            let ids = compare.pairs(points).into_iter().flat_map(|(a, b)| [a, b]);
            ids.filter_map(|id| points.get(id as usize).cloned()).collect()
        });
        let number = index.to_string();
        add(&["compare", &number], &measure.number, (at, paired));
    }
    for (index, expect) in plan.expect.iter().enumerate() {
        let Some(claim) = expect.claim(plan) else { continue };
        let number = index.to_string();
        let place = ["expect", &number];
        add(&place, &claim.number, (vec![expect.at.clone()], None));
        if let Some(Relation::Over(operand) | Relation::Minus(operand)) = &claim.relation
            && let Operand::Number(other) = operand
        {
            let mut at = expect.at.clone();
            let level = |(factor, level): (&String, &String)| {
                (factor.clone(), Value::String(level.clone()))
            };
            at.extend(other.at.iter().map(level));
            add(&place, other, (vec![at], None));
        }
    }
    found
}

/// Reports the numbers of groups that run only at points other than this one, and of flows that their groups do not have here.
pub(super) fn check(
    point: &Plan,
    levels: &[(String, String)],
    numbers: &[GroupNumber],
    problems: &mut Problems,
) {
    for number in numbers {
        let group = number.group.as_str();
        let Some(flow) = point.flows.get(group) else { continue };
        let (what, fix) = if is_scheduled(point, group, flow) {
            let Some(missing) = number.flow.filter(|nth| *nth >= flow.count) else { continue };
            let last = flow.count.saturating_sub(1);
            (format!("flow {missing} of `{group}`, whose last one is {last}"), "name another flow")
        } else if problems.runs_at_a_point(group) {
            (format!("`{group}`, which does not run at this point"), "select points with `where`")
        } else {
            continue;
        };
        if !number.is_about(levels) {
            continue;
        }
        let place: Vec<&str> = number.place.iter().map(String::as_str).collect();
        let reads: [&[&str]; 4] = [&place, &["flows", group], PHASE_FLOWS, &["matrix"]];
        let why = |result: &str| format!("is about {what}: {result} there; {fix}");
        if place.first() == Some(&"expect") {
            problems.warning_from(&place, &reads, why("the claim is not measured"));
        } else {
            problems.error_from(&place, &reads, why("it would never be decided"));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::check::read;

    /// The problems of rules about groups, with `repeat`, tables and the beginning of the matrix.
    fn problems((repeat, rest): (&str, &str), factor: &str) -> Vec<String> {
        let text = format!(
            "name = \"t\"\n{repeat}\n[nodes]\na = {{}}\nr = {{}}\nb = {{}}\n[wires]\nw = [\"a\", \"r\", \"b\"]\n[links.l]\n\
             node = \"r\"\ntoward = \"b\"\nrate = \"10mbit\"\ndelay = \"10ms\"\n[flows.bulk]\nfrom = \"a\"\nto = \"b\"\n\
             [flows.web]\nfrom = \"a\"\nto = \"b\"\n[[phases]]\nname = \"p\"\nlength = \"9s\"\nflows = [\"bulk\", \"web\"]\n\
             [matrix]\n{factor}[matrix.load]\nalone = {{ \"phases.0.flows\" = [\"bulk\"] }}\n\
             beside = {{ \"phases.0.flows\" = [\"bulk\", \"web\"] }}\n{rest}"
        );
        let found = match read(&text, &[]) {
            Ok((_, warnings)) => warnings,
            Err(problems) => problems,
        };
        let about = found.into_iter().filter(|found| found.reason.starts_with("is about"));
        about.map(|found| format!("{:?} {found}", found.severity)).collect()
    }

    fn until(keys: &str) -> String {
        format!(
            "repeat = {{ at_most = 9, until = [{{ metric = \"throughput\", within = \"2%\", {keys} }}] }}"
        )
    }

    fn never_decided(at: &str) -> String {
        format!(
            "Error {at}: is about `web`, which does not run at this point: it would never be decided there; select points with \
             `where` (at load=alone)"
        )
    }

    #[test]
    fn a_rule_about_a_group_that_does_not_run_is_an_error() {
        let of = |keys: &str| problems((&until(keys), ""), "");
        let expected = [never_decided("repeat.until.0")];
        assert_eq!(of("group = \"web\""), expected);
        assert_eq!(of("flow = \"web/0\""), expected);
        assert_eq!(of("group = \"web\", where = { load = [\"alone\", \"beside\"] }"), expected);
        assert_eq!(of("group = \"web\", where = { load = \"beside\" }"), [""; 0]);
        assert_eq!(of("group = \"bulk\""), [""; 0]);
    }

    #[test]
    fn a_flow_that_its_group_does_not_have_is_reported() {
        let rule = |keys: &str| problems((&until(keys), ""), "");
        let absent = |at: &str, result: &str| {
            format!(
                "{at}: is about flow 1 of `bulk`, whose last one is 0: {result} there; name another flow"
            )
        };
        let never = "it would never be decided";
        assert_eq!(rule("flow = \"bulk/1\""), [absent("Error repeat.until.0", never)]);
        assert_eq!(rule("flow = \"bulk/0\""), [""; 0]);
        let claim = "[[expect]]\nclaim = \"c\"\nmetric = \"throughput\"\nabove = \"1mbit\"\nflow = \"bulk/1\"\n";
        let found = problems(("repeat = 5", claim), "");
        assert_eq!(found, [absent("Warning expect.0", "the claim is not measured")]);
        // At some points only.
        let counts = "\"flows.bulk.count\" = [1, 2]\n";
        let found = problems((&until("flow = \"bulk/1\""), ""), counts);
        let there = absent("Error repeat.until.0", never) + " (at flows.bulk.count=1)";
        assert_eq!(found, [there]);
        let at_two = "flow = \"bulk/1\", where = { \"flows.bulk.count\" = 2 }";
        assert_eq!(problems((&until(at_two), ""), counts), [""; 0]);
    }

    const RATES: &str = "\"links.l.rate\" = [\"10mbit\", \"20mbit\"]\n";

    #[test]
    fn a_comparison_of_a_group_that_does_not_run_is_an_error() {
        let of = |keys: &str, group: &str| {
            let compare = format!(
                "[[compare]]\n{keys}\nmetric = \"throughput\"\ngroup = \"{group}\"\nbetter = \"higher\"\nmargin = \"5%\"\n"
            );
            problems(("repeat = 5", &compare), RATES)
        };
        let rates =
            "a = { \"links.l.rate\" = \"10mbit\" }\nb = { \"links.l.rate\" = \"20mbit\" }\n";
        assert_eq!(of(rates, "web"), [never_decided("compare.0")]);
        assert_eq!(of(&format!("{rates}where = {{ load = \"beside\" }}"), "web"), [""; 0]);
        let loads = "a = { load = \"beside\" }\nb = { load = \"alone\" }\n";
        assert_eq!(of(loads, "web"), [never_decided("compare.0")]);
        assert_eq!(of(loads, "bulk"), [""; 0]);
    }

    #[test]
    fn a_claim_about_a_group_that_does_not_run_is_a_warning() {
        let of = |keys: &str| {
            let expect = format!(
                "[[expect]]\nclaim = \"c\"\nmetric = \"throughput\"\nabove = 0.5\n{keys}\n"
            );
            problems(("repeat = 5", &expect), "")
        };
        let warning = |at: &str| {
            format!(
                "Warning expect.0: is about `web`, which does not run at this point: the claim is not measured there; select points \
                 with `where` (at load={at})"
            )
        };
        let beside = "where = { load = \"beside\" }";
        let over_bulk = "group = \"web\"\nover = { group = \"bulk\" }";
        assert_eq!(of(over_bulk), [warning("alone")]);
        assert_eq!(of(&format!("{beside}\n{over_bulk}")), [""; 0]);
        // The group of the claim's other number counts, too.
        assert_eq!(of("group = \"bulk\"\nover = { group = \"web\" }"), [warning("alone")]);
        let over_alone = "group = \"web\"\nover = { where = { load = \"alone\" } }";
        assert_eq!(of(&format!("{beside}\n{over_alone}")), [warning("alone")]);
        assert_eq!(of(&format!("{beside}\n{}", over_alone.replace("web", "bulk"))), [""; 0]);
    }
}
