//! Checks `repeat` and `[[compare]]`: the number of trials, and that rules refer to existing factors, phases, subjects and metrics.

use crate::plan::expect::{Fault, level};
use crate::plan::problem::Severity;
use crate::plan::repeat::{AdaptiveRepeat, Compare, FEWEST_VALUES};
use crate::plan::{Order, Plan, Repetitions};

use super::expects::{places, warn_if_renamed};
use super::limits::MAX_TRIALS;
use super::matrix;
use super::problems::Problems;

/// The points of a plan with a design and rules.
type Points<'p> = Option<&'p [Vec<(String, String)>]>;

/// Fewest trials of a point if rules end the repetition.
const MIN_TRIALS: u32 = 2;

/// Checks a number in `repeat`, and the total number of trials.
pub(super) fn check_count(plan: &Plan, problems: &mut Problems) {
    match plan.repeat {
        Repetitions::Times(0) => {
            problems.error(&["repeat"], "is zero: nothing would run; 5 is usual");
        }
        Repetitions::Times(1) => problems.warning_from(
            &["repeat"],
            &[],
            "one trial gives no confidence interval: the difference between two points may be chance; 5 is usual",
        ),
        Repetitions::Times(times) if times > u32::from(u16::MAX) => {
            problems.error(&["repeat"], format!("must be {} or less", u16::MAX));
        }
        Repetitions::Times(_) | Repetitions::Adaptive(_) => {}
    }
    let repeat = plan.repeat.at_most();
    let trials = matrix::count(plan).saturating_mul(repeat as usize);
    if trials > MAX_TRIALS {
        problems.error_from(
            &["repeat"],
            &[&["matrix"]],
            format!(
                "{} points run {repeat} times are {trials} trials; at most {MAX_TRIALS} are allowed",
                matrix::count(plan),
            ),
        );
    }
}

/// Checks the rules of `repeat`, and `[[compare]]`.
pub(super) fn check(plan: &Plan, problems: &mut Problems) {
    let is_adaptive = plan.repeat.adaptive().is_some();
    let has_rules = is_adaptive || !plan.compare.is_empty();
    let points = (has_rules && plan.design.is_some()).then(|| matrix::combinations(plan));
    let points = points.as_deref();
    if let Some(adaptive) = plan.repeat.adaptive() {
        table((plan, points), adaptive, problems);
    }
    for (index, compare) in plan.compare.iter().enumerate() {
        comparison((plan, points), &index.to_string(), compare, problems);
    }
    let trials = plan.repeat.at_most();
    if (1..FEWEST_VALUES).contains(&trials) && has_rules {
        let path = if is_adaptive { ["repeat", "at_most"] } else { ["compare", "0"] };
        let why = format!(
            "no rule can be decided with fewer than {FEWEST_VALUES} trials of a point, because their confidence \
             interval is infinite; this plan runs at most {trials}"
        );
        problems.warning_from(&path, &[&["repeat"], &["compare"]], why);
    }
}

fn table((plan, points): (&Plan, Points<'_>), adaptive: &AdaptiveRepeat, problems: &mut Problems) {
    let range = MIN_TRIALS..=u32::from(u16::MAX);
    let numbers = [("at_least", adaptive.at_least), ("at_most", adaptive.at_most)];
    for (key, _) in numbers.iter().filter(|(_, trials)| !range.contains(trials)) {
        let why = format!("must be from {} to {}", range.start(), range.end());
        problems.error(&["repeat", *key], why);
    }
    let are_valid = numbers.iter().all(|(_, trials)| range.contains(trials));
    if are_valid && adaptive.at_least > adaptive.at_most {
        let reads: [&[&str]; 2] = [&["repeat", "at_least"], &["repeat", "at_most"]];
        let (least, most) = (adaptive.at_least, adaptive.at_most);
        let why = format!("`at_least` is {least}, more than `at_most`, which is {most}");
        problems.error_from(&["repeat"], &reads, why);
    }
    if adaptive.until.is_empty() && plan.compare.is_empty() {
        let why = "has no rule that ends the repetition: write `until = [{ metric = \"throughput\", within = \"2%\" }]`, \
                   `[[compare]]`, or a whole number of trials";
        problems.error_from(&["repeat"], &[&["repeat"], &["compare"]], why);
    }
    if plan.order == Order::AsWritten {
        let why = "must be \"random\" where `repeat` has rules: they are applied to whole repetitions of all points";
        problems.error_from(&["order"], &[&["order"], &["repeat"]], why);
    }
    for (index, until) in adaptive.until.iter().enumerate() {
        let (number, before) = (index.to_string(), problems.found.len());
        let at: [&str; 3] = ["repeat", "until", &number];
        let under = |key: &'static str| [&at[..], &[key]].concat();
        places(plan, &under("where"), &until.at, true, problems);
        warn_if_renamed(&under("metric"), Some(&until.metric), problems);
        faults(&at, until.faults_or_measure(plan).err(), problems);
        let is_about_none = |points: &[_]| until.points(points).is_empty();
        let why = "matches no point: the design has none with these levels; leave out `design`";
        warn_if_unused(points, &at, (before, why), is_about_none, problems);
    }
}

fn comparison(
    (plan, points): (&Plan, Points<'_>),
    number: &str,
    compare: &Compare,
    problems: &mut Problems,
) {
    let (at, before): ([&str; 2], usize) = (["compare", number], problems.found.len());
    let under = |key: &'static str| [&at[..], &[key]].concat();
    places(plan, &under("a"), &compare.a, false, problems);
    places(plan, &under("b"), &compare.b, false, problems);
    places(plan, &under("where"), &compare.at, true, problems);
    warn_if_renamed(&under("metric"), Some(&compare.metric), problems);
    let reads: [&[&str]; 1] = [&at];
    if !compare.a.keys().eq(compare.b.keys()) {
        let why = "must name the same factors as `a`; all other factors have the same levels";
        problems.error_from(&under("b"), &reads, why);
    } else if compare.a.values().map(level).eq(compare.b.values().map(level)) {
        let why = "must differ from `a`, like `a = { \"flows.one.cc\" = \"cubic\" }` and \
                   `b = { \"flows.one.cc\" = \"bbr\" }`";
        problems.error_from(&under("b"), &reads, why);
    }
    if let Some(factor) = compare.at.keys().find(|factor| compare.a.contains_key(*factor)) {
        let why = format!("selects levels of `{factor}`, which `a` and `b` set already");
        problems.error_from(&under("where"), &reads, why);
    }
    faults(&at, compare.faults_or_measure(plan).err(), problems);
    let has_no_pair = |points: &[_]| compare.pairs(points).is_empty();
    let why = "compares nothing: the design has no two points that differ in these levels only; leave out `design`";
    warn_if_unused(points, &at, (before, why), has_no_pair, problems);
}

/// Warns about a valid rule that has no effect with the points of the design. `before` is the number of problems before the rule.
fn warn_if_unused(
    points: Points<'_>,
    at: &[&str],
    (before, why): (usize, &str),
    is_unused: impl Fn(&[Vec<(String, String)>]) -> bool,
    problems: &mut Problems,
) {
    let is_wrong = problems.found[before..].iter().any(|found| found.severity == Severity::Error);
    if points.is_some_and(|points| !is_wrong && is_unused(points)) {
        problems.warning_from(at, &[at, &["design"], &["matrix"]], why);
    }
}

/// Reports the problems of a rule, unless its number depends on names that could not be read.
fn faults(at: &[&str], found: Option<Vec<Fault>>, problems: &mut Problems) {
    let reads: [&[&str]; 5] = [at, &["phases"], &["flows"], &["probes"], &["links"]];
    for (key, why) in found.unwrap_or_default() {
        problems.error_from(&[at, &key[..]].concat(), &reads, why);
    }
}
