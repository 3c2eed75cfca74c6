use std::path::PathBuf;

use ccbench_proto::metric::Scope;
use ccbench_proto::plan::check;
use ccbench_proto::schedule;

use super::confidence::tests::Normal;
use super::*;
use crate::backend::RunBackend;
use crate::journal::TrialEnd;
use crate::model::{RunStatus, TrialFilter, TrialKey, TrialStatus};

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
    "flows.f.cc" = ["bbr", "cubic"]
"#;
const UNTIL: &str = r#"repeat = { at_least = 5, at_most = 20, until = [{ metric = "throughput", group = "f", within = "5%" }] }"#;

fn plan(repeat: &str, rest: &str) -> CheckedPlan {
    let text = PLAN.replace("REPEAT", repeat) + rest;
    check::read(&text, &[]).unwrap_or_else(|problems| panic!("{problems:?}")).0
}

fn compare(keys: &str) -> String {
    let points = "a = { \"flows.f.cc\" = \"bbr\" }\nb = { \"flows.f.cc\" = \"cubic\" }\n";
    format!("\n[[compare]]\n{points}metric = \"throughput\"\ngroup = \"f\"\n{keys}\n")
}

/// At point 0, about 9 Mbit/s; at point 1, about 7. Both have a small spread.
fn steady(point_id: u32, trial: u16) -> f64 {
    let spread = 10_000.0 * f64::from((u32::from(trial) * (point_id + 1)) % 3);
    if point_id == 0 { 9e6 + spread } else { 7e6 + spread }
}

/// Returns the rules after these trials have ended in this order. All numbers of a trial have the same value.
fn decide(plan: &CheckedPlan, trials: &[(u32, u16)], value: fn(u32, u16) -> f64) -> StoppingRules {
    let mut rules = StoppingRules::new(plan);
    for (point_id, trial) in trials {
        let values = rules.numbers().iter().map(|_| Some(value(*point_id, *trial))).collect();
        rules.trial_ended(*point_id, *trial, values);
    }
    rules
}

fn in_order(repetitions: u16) -> Vec<(u32, u16)> {
    (1..=repetitions).flat_map(|trial| [(0, trial), (1, trial)]).collect()
}

fn outcomes(rules: &StoppingRules) -> Vec<(&'static str, u16)> {
    rules.results().iter().map(|result| (result.outcome(), result.trials)).collect()
}

#[test]
fn decisions_do_not_depend_on_the_order_in_which_trials_end() {
    let plan = plan(UNTIL, &compare("better = \"higher\"\nmargin = \"1mbit\""));
    let wanted = [("known", 5), ("known", 5), ("a better", 5)];
    let mut trials = in_order(9);
    assert_eq!(outcomes(&decide(&plan, &trials, steady)), wanted);
    trials.reverse();
    assert_eq!(outcomes(&decide(&plan, &trials, steady)), wanted);
    trials.sort_unstable();
    assert_eq!(outcomes(&decide(&plan, &trials, steady)), wanted);
}

#[test]
fn trial_starts_once_the_earlier_repetitions_leave_a_rule_undecided() {
    let plan = plan(UNTIL, &compare("better = \"higher\"\nmargin = \"1mbit\""));
    let none = decide(&plan, &[], steady);
    assert_eq!([none.start(0, 5), none.start(0, 6)], [Start::Now, Start::Later]);
    // The comparison waits for the other point.
    let mut trials = in_order(5);
    let last = trials.pop();
    let most = decide(&plan, &trials, steady);
    assert_eq!((last, most.start(0, 6)), (Some((1, 5)), Start::Later));
    let all = decide(&plan, &in_order(5), steady);
    assert_eq!([all.start(0, 6), all.start(1, 6)], [Start::Never, Start::Never]);
    assert!(all.is_needed(0, 5) && !all.is_needed(0, 6));
    // The spread is wide, so more trials are needed, one after the other.
    let wide = |_: u32, trial: u16| if trial.is_multiple_of(2) { 9e6 } else { 3e6 };
    let undecided = decide(&plan, &in_order(7), wide);
    assert_eq!([undecided.start(0, 8), undecided.start(0, 9)], [Start::Now, Start::Later]);
    assert_eq!(outcomes(&undecided)[0], ("undecided", 7));
}

#[test]
fn each_decision_is_given_once() {
    let plan = plan(UNTIL, "");
    let mut rules = StoppingRules::new(&plan);
    let mut found = Vec::new();
    for (point_id, trial) in in_order(8) {
        let value = Some(steady(point_id, trial));
        let decided = rules.trial_ended(point_id, trial, vec![value]);
        found.extend(decided.into_iter().map(|it| (it.rule, it.points, it.after, it.estimate.n)));
    }
    let until = |point| ("until.0".to_owned(), vec![point], 5, 5);
    assert_eq!(found, [until(0), until(1)]);
}

#[test]
fn trial_without_a_value_is_left_out_with_its_pair() {
    let plan = plan("repeat = 9", &compare("better = \"higher\"\nmargin = \"1mbit\""));
    let mut rules = StoppingRules::new(&plan);
    for (point_id, trial) in in_order(9) {
        let value = Some(steady(point_id, trial)).filter(|_| (point_id, trial) != (1, 2));
        rules.trial_ended(point_id, trial, vec![value]);
    }
    let result = &rules.results()[0];
    assert_eq!((result.outcome(), result.trials, result.estimate.unwrap().n), ("a better", 6, 5));
    assert_eq!(rules.start(0, 9), Start::Now, "a fixed number of trials is not reduced");
}

#[test]
fn comparison_has_four_ends() {
    let end = |keys: &str, value: fn(u32, u16) -> f64| {
        let plan = plan("repeat = 20", &compare(keys));
        outcomes(&decide(&plan, &in_order(20), value))[0]
    };
    let close = |point: u32, trial: u16| 9e6 + 1e3 * f64::from((u32::from(trial) + point) % 2);
    let wide = |point: u32, trial: u16| 9e6 + 2e6 * f64::from((u32::from(trial) + point) % 2);
    assert_eq!(end("better = \"higher\"\nmargin = \"1kbit\"", steady), ("a better", 5));
    assert_eq!(end("better = \"lower\"\nmargin = \"1kbit\"", steady), ("b better", 5));
    assert_eq!(end("better = \"higher\"\nmargin = \"5%\"", close), ("equivalent", 5));
    assert_eq!(end("better = \"higher\"\nmargin = \"100kbit\"", close), ("equivalent", 5));
    assert_eq!(end("better = \"higher\"\nmargin = \"1%\"", wide), ("undecided", 20));
    // A difference within the margin does not matter: 2 of 7 Mbit/s are 29 %.
    assert_eq!(end("better = \"higher\"\nmargin = \"40%\"", steady), ("equivalent", 5));
}

/// Applies a plan's rules after each of 40 repetitions of two equal points. The trials of a pair share most of their variance, as they do
/// with equal seeds.
#[test]
fn few_of_10000_comparisons_of_equal_points_end_as_better() {
    let plan = plan("repeat = 40", &compare("better = \"higher\"\nmargin = \"1kbit\""));
    let before = StoppingRules::new(&plan);
    let mut random = Normal::seeded(20);
    let mut ends: BTreeMap<&str, u32> = BTreeMap::new();
    for _ in 0..10_000 {
        let mut rules = before.clone();
        for trial in 1..=40 {
            let common = 9e6 + 1e6 * random.normal();
            for point_id in [0, 1] {
                rules.trial_ended(point_id, trial, vec![Some(common + 1e5 * random.normal())]);
            }
            if !rules.is_open(0) {
                break;
            }
        }
        *ends.entry(rules.results()[0].outcome()).or_default() += 1;
    }
    let times = |end: &str| ends.get(end).copied().unwrap_or_default();
    let (a, b) = (times("a better"), times("b better"));
    assert!(a + b <= 500, "{ends:?}");
    assert!(a > 0 && b > 0 && a + b + times("undecided") == 10_000, "{ends:?}");
}

#[test]
fn compared_points_have_the_same_seeds() {
    let seeds = |plan: &CheckedPlan| -> Vec<(u16, u64)> {
        let mut trials = schedule::trials(plan);
        trials.sort_by_key(|trial| (trial.trial, trial.point_id));
        trials.iter().map(|trial| (trial.trial, trial.seed)).collect()
    };
    let paired = seeds(&plan("repeat = 3", &compare("better = \"higher\"\nmargin = \"5%\"")));
    let alone = seeds(&plan("repeat = 3", ""));
    assert!(paired.chunks(2).all(|pair| pair[0] == pair[1]));
    assert!(alone.chunks(2).all(|pair| pair[0] != pair[1]));
    assert_eq!(paired[0], alone[0], "those of the first point");
}

/// A point without a rule has the minimum number of trials.
#[test]
fn rule_may_be_about_some_points() {
    let until = UNTIL.replace("metric", "where = { \"flows.f.cc\" = \"bbr\" }, metric");
    let plan = plan(&until, "");
    let rules = decide(&plan, &[], steady);
    assert_eq!(
        [rules.start(0, 6), rules.start(1, 5), rules.start(1, 6)],
        [Start::Later, Start::Now, Start::Never]
    );
    assert_eq!(rules.results().len(), 1);
}

/// Only for open points are the tables of their trials read.
#[test]
fn point_is_open_while_a_rule_about_it_is_undecided() {
    let until = UNTIL.replace("metric", "where = { \"flows.f.cc\" = \"bbr\" }, metric");
    let about_one = plan(&until, "");
    let open = |rules: &StoppingRules| [0, 1, 2].map(|point| rules.is_open(point));
    assert_eq!(open(&decide(&about_one, &in_order(4), steady)), [true, false, false]);
    assert_eq!(open(&decide(&about_one, &in_order(5), steady)), [false; 3]);
    // The comparison continues at both points.
    let compared = plan(&until, &compare("better = \"higher\"\nmargin = \"1mbit\""));
    let mut trials = in_order(5);
    trials.pop();
    let rules = decide(&compared, &trials, steady);
    assert_eq!((open(&rules), rules.decisions().len()), ([true, true, false], 1));
    let rules = decide(&compared, &in_order(5), steady);
    let decided: Vec<String> = rules.decisions().into_iter().map(|it| it.rule).collect();
    assert_eq!((open(&rules), decided), ([false; 3], vec!["until.0".into(), "compare.0".into()]));
}

/// Returns a summary of these trials, with their ends and the values of [`steady`].
fn summary(trials: &[(u32, u16, TrialStatus)]) -> Summary {
    let row = |(point_id, trial): (u32, u16)| PhaseRow {
        point_id,
        trial,
        phase: "main".to_owned(),
        scope: Scope::Group,
        subject: "f".to_owned(),
        metric: "throughput_sum",
        unit: "bit/s",
        stat: "mean",
        value: steady(point_id, trial),
        n: 1,
    };
    let end = |(point_id, trial, status): (u32, u16, TrialStatus)| {
        TrialEnd::new(TrialKey { point_id, trial, seed: 1, epoch: 1 }, status)
    };
    let ok = trials.iter().filter(|(.., status)| *status == TrialStatus::Ok);
    Summary {
        run_dir: PathBuf::new(),
        status: RunStatus::Complete,
        backend: RunBackend::Testbed,
        trial_filter: TrialFilter::default(),
        factors: vec!["flows.f.cc".to_owned()],
        points: BTreeMap::new(),
        ccs: BTreeMap::new(),
        trials: trials.iter().map(|trial| end(*trial)).collect(),
        phases: vec!["main".to_owned()],
        phase_rows: ok.map(|(point_id, trial, _)| row((*point_id, *trial))).collect(),
        point_rows: vec![],
        planned: 12,
        fallbacks: vec![],
        steal_pct: BTreeMap::new(),
        completion_bounds_us: BTreeMap::new(),
        notes: vec![],
    }
}

/// Returns the trials of both points, in the order of a summary, with another status for one of them.
fn trials_with(
    repetitions: u16,
    other: (u32, u16),
    status: TrialStatus,
) -> Vec<(u32, u16, TrialStatus)> {
    let mut trials = in_order(repetitions);
    trials.sort_unstable();
    let of = |trial: (u32, u16)| if trial == other { status } else { TrialStatus::Ok };
    trials.into_iter().map(|trial| (trial.0, trial.1, of(trial))).collect()
}

/// With `--keep-going`, a run and its rules continue after an aborted trial.
#[test]
fn aborted_trial_has_ended_without_a_value() {
    let plan = plan(UNTIL, &compare("better = \"higher\"\nmargin = \"5%\""));
    let trials = trials_with(6, (0, 2), TrialStatus::Aborted);
    let found = judge(&plan, &summary(&trials));
    let of: Vec<_> = found.iter().map(|it| (it.outcome(), it.trials)).collect();
    assert_eq!(of, [("known", 6), ("known", 5), ("a better", 6)]);
    assert_eq!(found[0].estimate.map(|estimate| estimate.n), Some(5));
}

#[test]
fn summary_has_the_decisions_of_the_run() {
    let plan = plan(UNTIL, &compare("better = \"higher\"\nmargin = \"5%\""));
    let trials = trials_with(6, (0, 0), TrialStatus::Ok);
    let found = judge(&plan, &summary(&trials));
    let of: Vec<_> = found.iter().map(|it| (it.outcome(), it.trials, it.levels.as_str())).collect();
    let wanted = [
        ("known", 5, "flows.f.cc=bbr"),
        ("known", 5, "flows.f.cc=cubic"),
        ("a better", 5, "flows.f.cc=bbr v cubic"),
    ];
    assert_eq!(of, wanted);
    let printed = text(&found, 200);
    let parts = ["bbr v cubic", "within 5 %", "margin 5 %", "3 of 3 rules decided"];
    assert!(parts.iter().all(|part| printed.contains(part)), "{printed}");
    assert_eq!(found[2].json()["outcome"], "a better");
    assert_eq!(text(&[], 120), "");
}

/// Trials that converge, that do not, and without the metric.
#[test]
fn trial_without_undefined_values_counts_as_zero() {
    let metric = ccbench_proto::metric::find("convergence_time", Scope::Net).unwrap();
    let number = |stat| Numbered {
        at: BTreeMap::new(),
        phase: "main".to_owned(),
        scope: Scope::Net,
        subject: "all".to_owned(),
        metric,
        stat,
    };
    let row = |stat, value| PhaseRow {
        point_id: 0,
        trial: 1,
        phase: "main".to_owned(),
        scope: Scope::Net,
        subject: "all".to_owned(),
        metric: metric.name,
        unit: metric.unit_of(stat),
        stat,
        value,
        n: 1,
    };
    let both = |rows: &[PhaseRow]| ["mean", UNDEFINED].map(|stat| value_of(rows, &number(stat)));
    assert_eq!(both(&[row("mean", 4e6)]), [Some(4e6), Some(0.0)]);
    assert_eq!(both(&[row(UNDEFINED, 1.0)]), [None, Some(1.0)]);
    assert_eq!(both(&[]), [None, None]);
    let elsewhere = PhaseRow { phase: "other".to_owned(), ..row("mean", 4e6) };
    assert_eq!(both(&[elsewhere]), [None, None]);
}
