use super::*;
use crate::plan::check::{CheckedPlan, Severity, read};
use crate::resolve::to_toml;

const PLAN: &str = r#"
name = "t"
REPEAT
[nodes]
a = {}
b = {}
[wires]
w = ["a", "b"]
[links.down]
node = "a"
toward = "b"
rate = "10mbit"
[flows.f]
from = "a"
to = "b"
[[phases]]
name = "main"
length = "5s"
flows = ["f"]
[matrix]
"flows.f.cc" = ["bbr", "cubic", "reno"]
[matrix.load]
light = { "flows.f.count" = 1 }
heavy = { "flows.f.count" = 8 }
"#;
const COMPARE: &str = r#"
[[compare]]
a = { "flows.f.cc" = "bbr" }
b = { "flows.f.cc" = "cubic" }
metric = "throughput"
group = "f"
better = "higher"
margin = "5%"
"#;

fn plan_with(repeat: &str, rest: &str, sets: &[String]) -> Result<CheckedPlan, String> {
    let text = PLAN.replace("REPEAT", repeat) + rest;
    let errors = |problems: Vec<crate::plan::check::PlanProblem>| {
        let errors = problems.iter().filter(|problem| problem.severity == Severity::Error);
        errors.map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    read(&text, sets).map(|(plan, _)| plan).map_err(errors)
}

fn plan(repeat: &str, rest: &str) -> CheckedPlan {
    plan_with(repeat, rest, &[]).unwrap_or_else(|problems| panic!("{problems}"))
}

#[test]
fn repeat_is_a_number_or_a_table() {
    assert_eq!(plan("repeat = 3", "").plan().repeat, Repetitions::Times(3));
    let until = "until = [{ metric = \"throughput\", group = \"f\", within = \"2%\" }]";
    let plan = plan(&format!("repeat = {{ at_most = 40, {until} }}"), COMPARE);
    let adaptive = plan.plan().repeat.adaptive().unwrap();
    assert_eq!((adaptive.at_least, adaptive.at_most, adaptive.until.len()), (5, 40, 1));
    let measure = adaptive.until[0].measure(plan.plan()).unwrap();
    assert_eq!(measure.number.metric.name, "throughput_sum");
    assert_eq!((measure.margin, measure.margin.about(50.0)), (Margin::Share(0.02), 1.0));
    let again = read(&to_toml(&plan), &[]).unwrap().0;
    assert_eq!(again.plan(), plan.plan());
    // A point has no rules, because they name factors.
    let points = plan.points();
    assert_eq!(points[0].plan.plan().repeat, Repetitions::Times(40));
    assert!(points[0].plan.plan().compare.is_empty());
}

#[test]
fn comparison_pairs_every_combination_of_the_other_factors() {
    let levels = plan("repeat = 2", "").levels();
    let name = |id: u32| {
        let names: Vec<&str> =
            levels[id as usize].iter().map(|(_, level)| level.as_str()).collect();
        names.join(" ")
    };
    let pairs = |rest: &str| -> Vec<(String, String)> {
        let plan = plan("repeat = 2", &(COMPARE.to_owned() + rest));
        let pairs = plan.plan().compare[0].pairs(&levels);
        pairs.into_iter().map(|(a, b)| (name(a), name(b))).collect()
    };
    let pair = |load: &str| (format!("bbr {load}"), format!("cubic {load}"));
    assert_eq!(pairs(""), [pair("heavy"), pair("light")]);
    assert_eq!(pairs("where = { load = \"light\" }"), [pair("light")]);
    assert_eq!(levels.len(), 6);
    let points = plan("repeat = 2", "").points();
    assert!(points.iter().zip(&levels).all(|(point, levels)| point.factors == *levels));
}

#[test]
fn rules_that_cannot_be_applied_are_refused() {
    let refused = |repeat: &str, rest: &str, why: &str| {
        let errors = plan_with(repeat, rest, &[]).err().unwrap_or_default();
        assert!(errors.contains(why), "{repeat}{rest}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    };
    let until = |keys: &str| format!("repeat = {{ at_most = 9, until = [{{ {keys} }}] }}");
    let throughput = "metric = \"throughput\", group = \"f\"";
    refused("repeat = { at_most = 9 }", "", "has no rule that ends the repetition");
    refused("repeat = { at_least = 5, at_most = 4 }", COMPARE, "`at_least` is 5, more than");
    refused("repeat = { at_most = 1, at_least = 2 }", COMPARE, "at_most: must be from 2");
    refused("repeat = -1", "", "a whole number from 1 to 65535, or a table like { at_most = 40 }");
    refused(&until(&format!("{throughput}, within = \"0%\"")), "", "must be more than zero");
    refused(&until(&format!("{throughput}, within = \"2ms\"")), "", "within");
    let more = "`200%` is not a share: it is more than 100 %";
    refused(&until(&format!("{throughput}, within = \"200%\"")), "", more);
    refused("repeat = 2", &COMPARE.replace("\"5%\"", "\"200%\""), more);
    refused(&until("metric = \"speed\", within = \"2%\""), "", "`speed` is not a metric");
    let other = "where = { speed = \"high\" }, ";
    refused(&until(&format!("{other}{throughput}, within = \"2%\"")), "", "no factor `speed`");
    let order = until(&format!("{throughput}, within = \"2%\"")) + "\norder = \"as-written\"";
    refused(&order, "", "order: must be \"random\"");
    refused("repeat = 2", &COMPARE.replace("cubic", "bbr"), "must differ from `a`");
    refused("repeat = 2", &COMPARE.replace("cubic", "vegas"), "no level `vegas`");
    let less = COMPARE.replace("b = { \"flows.f.cc\"", "b = { load");
    refused("repeat = 2", &less.replace("cubic", "light"), "must name the same factors");
    let twice = COMPARE.to_owned() + "where = { \"flows.f.cc\" = \"bbr\" }\n";
    refused("repeat = 2", &twice, "which `a` and `b` set already");
    refused("repeat = 2", &COMPARE.replace("\"higher\"", "\"more\""), "`more` is unknown");
}

/// The warnings about rules and comparisons.
fn warnings(repeat: &str, rest: &str) -> Vec<String> {
    let text = PLAN.replace("REPEAT", repeat) + rest;
    let (_, problems) = read(&text, &[]).unwrap_or_else(|problems| panic!("{problems:?}"));
    let about_rules = |path: &str| path.starts_with("compare") || path.starts_with("repeat.");
    let found = problems.into_iter().filter(|problem| about_rules(&problem.path));
    found.map(|problem| format!("{}: {}", problem.path, problem.reason)).collect()
}

#[test]
fn rule_without_a_point_of_the_design_is_reported() {
    let until = "repeat = { at_most = 9, until = [{ where = { \"flows.f.cc\" = \"reno\", load = \"light\" }, \
                 metric = \"throughput\", group = \"f\", within = \"2%\" }] }";
    assert_eq!(warnings(until, COMPARE), [""; 0]);
    let all_levels = plan("repeat = 9", COMPARE).levels();
    // Three points of the six: each congestion control once.
    for seed in 1..40 {
        let design = "design = { kind = \"latin-hypercube\", points = 3 }";
        let repeat = format!("{until}\nseed = {seed}\n{design}");
        let levels = plan(&repeat, COMPARE).levels();
        assert_eq!((levels.len(), all_levels.len()), (3, 6));
        let load_of = |cc: &str| {
            let point = levels.iter().find(|levels| levels[0].1 == cc);
            point.map(|levels| levels[1].1.clone())
        };
        let wanted: Vec<&str> = [
            (load_of("reno").as_deref() != Some("light"))
                .then_some("repeat.until.0: matches no point"),
            (load_of("bbr") != load_of("cubic")).then_some("compare.0: compares nothing"),
        ]
        .into_iter()
        .flatten()
        .collect();
        let found = warnings(&repeat, COMPARE);
        let begins = |(found, wanted): (&String, &&str)| found.starts_with(*wanted);
        let are_alike = found.len() == wanted.len() && found.iter().zip(&wanted).all(begins);
        assert!(are_alike, "{levels:?}: {found:?}");
    }
}

#[test]
fn rules_that_no_number_of_trials_decides_are_reported() {
    let until = "until = [{ metric = \"throughput\", group = \"f\", within = \"2%\" }]";
    let adaptive =
        |trials: u32| format!("repeat = {{ at_least = 2, at_most = {trials}, {until} }}");
    let begins = |found: Vec<String>, begin: &str| found.len() == 1 && found[0].starts_with(begin);
    assert!(begins(warnings(&adaptive(4), ""), "repeat.at_most: no rule can be decided"));
    assert!(begins(warnings("repeat = 4", COMPARE), "compare.0: no rule can be decided"));
    assert_eq!(warnings(&adaptive(5), COMPARE), [""; 0]);
    assert_eq!(warnings("repeat = 5", COMPARE), [""; 0]);
    assert_eq!(warnings("repeat = 4", ""), [""; 0]);
}

#[test]
fn levels_of_a_comparison_are_compared_by_their_names() {
    let counts = PLAN.replace("[matrix]\n", "[matrix]\n\"flows.f.count\" = [1, 8]\n");
    let counts = counts.replace("[matrix.load]\nlight = { \"flows.f.count\" = 1 }\n", "");
    let counts = counts.replace("heavy = { \"flows.f.count\" = 8 }\n", "");
    let compare = COMPARE.replace("\"flows.f.cc\" = \"bbr\"", "\"flows.f.count\" = 1");
    let compare = compare.replace("\"flows.f.cc\" = \"cubic\"", "\"flows.f.count\" = \"1\"");
    let text = counts.replace("REPEAT", "repeat = 5") + &compare;
    let problems = read(&text, &[]).err().unwrap_or_default();
    let errors = problems.iter().filter(|problem| problem.severity == Severity::Error);
    let errors: Vec<String> = errors.map(ToString::to_string).collect();
    assert!(errors.len() == 1 && errors[0].contains("must differ from `a`"), "{errors:?}");
}

#[test]
fn overrides_replace_rules_and_remove_those_about_levels_that_are_gone() {
    let until = "until = [{ where = { \"flows.f.cc\" = [\"bbr\", \"reno\"] }, metric = \"throughput\", \
                 group = \"f\", within = \"2%\" }]";
    let repeat = format!("repeat = {{ at_most = 40, {until} }}");
    let with = |set: &str| plan_with(&repeat, COMPARE, &[set.to_owned()]).unwrap();
    assert_eq!(with("repeat=2").plan().repeat, Repetitions::Times(2));
    let bbr = with("flows.f.cc=bbr");
    let rules = &bbr.plan().repeat.adaptive().unwrap().until;
    assert_eq!(rules[0].points(&bbr.levels()), [0, 1]);
    assert!(bbr.plan().compare.is_empty());
    let light = with("matrix.load=light");
    assert_eq!(light.plan().compare[0].pairs(&light.levels()), [(0, 1)]);
    // Without any rule, a point has `at_least` trials.
    for (least, trials) in [("", 5), ("at_least = 3, ", 3)] {
        let repeat = format!("repeat = {{ {least}at_most = 40 }}");
        assert_eq!(plan(&repeat, COMPARE).plan().repeat.at_most(), 40);
        let left = plan_with(&repeat, COMPARE, &["flows.f.cc=reno".to_owned()]).unwrap();
        assert_eq!(left.plan().repeat, Repetitions::Times(trials));
    }
}
