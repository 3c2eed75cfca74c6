use super::*;
use crate::metric::WHOLE_TRIAL;

const PLAN: &str = r#"
    name = "t"
    [nodes]
    a = {}
    b = {}
    [wires]
    w = ["a", "b"]
    [links.down]
    node = "a"
    toward = "b"
    rate = "10mbit"
    [flows.long]
    from = "a"
    to = "b"
    [flows.other]
    from = "a"
    to = "b"
    [probes.page]
    kind = "http"
    bytes = "1000B"
    from = "b"
    to = "a"
    [[phases]]
    name = "warm"
    length = "5s"
    measure = false
    [[phases]]
    name = "alone"
    length = "5s"
    flows = ["long"]
    [[phases]]
    name = "loaded"
    length = "5s"
    flows = ["long", "other"]
    [matrix.queue]
    small = { "links.down.queue" = { kind = "pfifo", limit = "20p" } }
    large = { "links.down.queue" = { kind = "pfifo", limit = "100p" } }
"#;

fn plan(claim: &str) -> Result<Plan, String> {
    let text = format!("{PLAN}\n[[expect]]\n{claim}");
    let read = crate::plan::check::read(&text, &[]);
    let words = |problems: Vec<crate::plan::check::PlanProblem>| {
        let errors = problems.iter().filter(|p| p.severity == crate::plan::check::Severity::Error);
        errors.map(|p| format!("{}: {p}", p.line.unwrap_or(0))).collect::<Vec<_>>().join("\n")
    };
    read.map(|(plan, _)| plan.plan().clone()).map_err(words)
}

fn claim(text: &str) -> Claim {
    let plan = plan(text).unwrap_or_else(|why| panic!("{text}: {why}"));
    plan.expect[0].claim(&plan).unwrap()
}

#[test]
fn claim_resolves_to_number_and_limits() {
    let found = claim(
        r#"
        claim = "c"
        where = { queue = ["small", "large"] }
        metric = "throughput"
        group = "long"
        phase = "alone"
        near = ["26.3mbit", "10%"]"#,
    );
    assert_eq!((found.number.metric.name, found.number.stat), ("throughput_sum", "mean"));
    assert_eq!((found.number.scope, found.number.subject.as_str()), (Scope::Group, "long"));
    assert_eq!((found.test.least, found.test.most), (Some(23_670_000.0), Some(28_930_000.0)));
    assert_eq!(found.test.unit, "bit/s");
    assert!(found.test.holds(26e6) && found.test.holds(28_930_000.0) && !found.test.holds(29e6));
}

#[test]
fn other_number_inherits_keys_of_the_claim() {
    let found = claim(
        r#"
        claim = "c"
        metric = "fetch_time"
        stat = "median"
        probe = "page"
        phase = "loaded"
        over = { phase = "alone", where = { queue = "small" } }
        above = 4"#,
    );
    let Some(Relation::Over(Operand::Number(other))) = &found.relation else { panic!("{found:?}") };
    assert_eq!((other.phase.as_str(), other.stat), ("alone", "median"));
    assert_eq!((other.scope, other.subject.as_str()), (Scope::Probe, "page"));
    assert_eq!(other.at["queue"], "small");
    assert_eq!((found.test.least, found.test.most, found.test.unit), (Some(4.0), None, "1"));
    let share = claim(
        "claim = \"c\"\nmetric = \"throughput\"\nphase = \"alone\"\nover = \"10mbit\"\nabove = \"95%\"",
    );
    assert_eq!(share.relation, Some(Relation::Over(Operand::Amount(1e7))));
    assert_eq!((share.number.scope, share.test.least), (Scope::Net, Some(0.95)));
    let less = claim(
        "claim = \"c\"\nmetric = \"srtt\"\ngroup = \"long\"\nphase = \"loaded\"\nminus = \"10ms\"\nbetween = [\"1ms\", \"5ms\"]",
    );
    assert_eq!(less.relation, Some(Relation::Minus(Operand::Amount(10_000.0))));
    assert_eq!((less.test.least, less.test.most), (Some(1000.0), Some(5000.0)));
}

#[test]
fn bounds_of_a_difference_may_be_negative() {
    let test = |metric: &str, bound: &str| {
        let other = "phase = \"loaded\"\nminus = { phase = \"alone\" }";
        claim(&format!("claim = \"c\"\n{metric}\n{other}\n{bound}")).test
    };
    let throughput = "metric = \"throughput\"\ngroup = \"long\"";
    assert_eq!(test(throughput, "below = \"-1mbit\"").most, Some(-1e6));
    let near = test(throughput, "near = [\"-1mbit\", \"10%\"]");
    assert_eq!((near.least, near.most), (Some(-1.1e6), Some(-0.9e6)));
    let srtt = "metric = \"srtt\"\ngroup = \"long\"";
    assert_eq!(test(srtt, "above = \"-5ms\"").least, Some(-5_000.0));
    let between = test(srtt, "between = [\"-5ms\", \"0ms\"]");
    assert_eq!((between.least, between.most), (Some(-5_000.0), Some(0.0)));
    let share = "metric = \"retransmission_share\"\ngroup = \"long\"";
    assert_eq!(test(share, "below = \"-1%\"").most, Some(-0.01));
    assert_eq!(test(share, "below = -0.01").most, Some(-0.01));
    let packets = "metric = \"retransmissions\"\ngroup = \"long\"";
    assert_eq!(test(packets, "above = \"-3p\"").least, Some(-3.0));
}

#[test]
fn whole_trial_metric_inherits_no_phase() {
    let found = claim(
        r#"
        claim = "c"
        metric = "srtt"
        group = "long"
        phase = "loaded"
        minus = { metric = "packet_scheduling_error", link = "down" }
        below = "20ms""#,
    );
    let Some(Relation::Minus(Operand::Number(other))) = &found.relation else {
        panic!("{found:?}")
    };
    assert_eq!(other.phase, WHOLE_TRIAL);
}

#[test]
fn warns_about_deprecated_metric_names() {
    let expect = r#"
        claim = "c"
        metric = "step_lateness"
        link = "down"
        minus = { metric = "packet_lateness" }
        below = "20ms""#;
    let text = format!("{PLAN}\n[[expect]]\n{expect}");
    let (_, warnings) = crate::plan::check::read(&text, &[]).unwrap();
    let of_metrics: Vec<(&str, &str)> = warnings
        .iter()
        .filter(|warning| warning.path.ends_with("metric"))
        .map(|warning| (warning.path.as_str(), warning.reason.as_str()))
        .collect();
    let expected = [
        ("expect.0.metric", "`step_lateness` is deprecated; use `step_scheduling_error`"),
        ("expect.0.minus.metric", "`packet_lateness` is deprecated; use `packet_scheduling_error`"),
    ];
    assert_eq!(of_metrics, expected);
    assert_eq!(claim(expect).number.metric.name, "step_scheduling_error");
}

/// A valid claim.
const RIGHT: &str =
    "claim = \"c\"\nmetric = \"srtt\"\ngroup = \"long\"\nphase = \"alone\"\nbelow = \"20ms\"";

/// A replacement in the plan, and the expected message.
const WRONG: &[(&str, &str, &str)] = &[
    (
        "group = \"long\"",
        "group = \"lon\"",
        "expect.0.group: there is no flow group `lon`; did you mean `long`?",
    ),
    ("phase = \"alone\"", "phase = \"warm\"", "expect.0.phase: `warm` has `measure = false`"),
    (
        "phase = \"alone\"\n",
        "",
        "expect.0.phase: is missing; name one (measured: `alone`, `loaded`)",
    ),
    (
        "metric = \"srtt\"",
        "metric = \"srt\"",
        "expect.0.metric: `srt` is not a metric of a group; did you mean `srtt`?",
    ),
    (
        "metric = \"srtt\"",
        "metric = \"fairness\"",
        "`fairness` is not a metric of a group; did you mean `jain_fairness_of_mean`?",
    ),
    ("metric = \"srtt\"\n", "", "expect.0.metric: is missing"),
    ("below = \"20ms\"", "below = 20", "expect.0.below: `20` has no unit; write it like \"26ms\""),
    ("below = \"20ms\"", "below = \"20mbit\"", "expect.0.below: `20mbit` is not a length of time"),
    (
        "below = \"20ms\"",
        "over = { phase = \"loaded\" }\nbelow = \"3mbit\"",
        "expect.0.below: `3mbit` does not fit: the claim is about a ratio, which has no unit; write it like 0.95, without quotes, or as a share like \"95%\"",
    ),
    (
        "below = \"20ms\"",
        "over = { phase = \"loaded\" }\nbelow = \"200%\"",
        "expect.0.below: `200%` is not a share: it is more than 100 %",
    ),
    ("below = \"20ms\"", "below = \"20ms\"\nabove = \"10ms\"", "write two claims"),
    (
        "below = \"20ms\"",
        "near = [\"20ms\", \"200%\"]",
        "expect.0.near: `200%` is not a share: it is more than 100 %",
    ),
    (
        "below = \"20ms\"",
        "below = \"-20ms\"",
        "it is negative; write it like \"15ms\", \"250us\" or \"60s\"; only a difference (`minus`) has negative bounds",
    ),
    (
        "below = \"20ms\"",
        "near = [\"-20ms\", \"-1ms\"]\nminus = \"5ms\"",
        "expect.0.near: `-1ms` is not a length of time: it is negative",
    ),
    (
        "below = \"20ms\"",
        "between = [\"20ms\", \"10ms\"]",
        "expect.0.between: the first bound must be the lower one",
    ),
    ("below = \"20ms\"", "", "expect.0.below: the claim has no bound"),
    (
        "below = \"20ms\"",
        "below = \"20ms\"\nstat = \"p96\"",
        "expect.0.stat: `srtt` has no statistic `p96`; did you mean `p95`?",
    ),
    ("below = \"20ms\"", "below = \"20ms\"\nprobe = \"page\"", "a number has one subject"),
    (
        "below = \"20ms\"",
        "below = \"20ms\"\nwhere = { queue = \"larg\" }",
        "expect.0.where.queue: the factor has no level `larg`; did you mean `large`?",
    ),
    (
        "below = \"20ms\"",
        "below = \"20ms\"\nwhere = { que = \"large\" }",
        "expect.0.where.que: the matrix has no factor `que`; did you mean `queue`?",
    ),
    (
        "below = \"20ms\"",
        "below = 2\nover = { phase = \"alone\" }",
        "expect.0.over: selects the same number",
    ),
    (
        "below = \"20ms\"",
        "below = 2\nwhere = { queue = \"large\" }\nover = { where = { queue = \"large\" } }",
        "expect.0.over: selects the same number",
    ),
    (
        "below = \"20ms\"",
        "below = \"20ms\"\nwhere = { queue = [] }",
        "expect.0.where.queue: is an empty list, which selects no point",
    ),
    (
        "below = \"20ms\"",
        "below = 2\nover = { phse = \"loaded\" }",
        "expect.0.over.phse: is not a key of `over`; did you mean `phase`?",
    ),
    (
        "below = \"20ms\"",
        "below = 2\nover = { phase = \"load\" }",
        "expect.0.over.phase: there is no phase `load`; did you mean `loaded`?",
    ),
    (
        "below = \"20ms\"",
        "below = \"20ms\"\nminus = { metric = \"retransmissions\" }",
        "expect.0.minus: is in packets, but the claim's number is in us; name a number in the same unit",
    ),
    ("below = \"20ms\"", "below = 2\nover = true", "expect.0.over: must be an amount like"),
    ("claim = \"c\"\n", "", "expect.0.claim: is missing; write it like `claim = "),
    ("claim = \"c\"", "claim = \"\"", "expect.0.claim: is empty"),
    (
        "claim = \"c\"",
        "claim = \"c\"\nclam = 1",
        "expect.0.clam: is not a key of a claim; did you mean `claim`?",
    ),
];

#[test]
fn problems_have_place_and_fix() {
    assert!(plan(RIGHT).is_ok());
    for (from, to, wanted) in WRONG {
        let text = RIGHT.replacen(from, to, 1);
        let message = plan(&text).expect_err(&text);
        assert!(message.contains(wanted), "{text}\n{message}\nhas not: {wanted}");
        assert!(!message.starts_with("0: "), "no line: {message}");
        assert_eq!(message.lines().count(), 1, "one mistake, one problem: {message}");
    }
}

#[test]
fn skipped_claim_needs_no_metric() {
    let plan = plan("claim = \"c\"\nskip = \"needs a base station\"").unwrap();
    assert_eq!(plan.expect[0].claim(&plan), None);
}

#[test]
fn claims_about_removed_levels_are_skipped() {
    let text = format!(
        "{PLAN}\n{}",
        r#"
        [[expect]]
        claim = "of the small queue"
        where = { queue = "small" }
        metric = "throughput"
        phase = "alone"
        above = "1mbit"
        [[expect]]
        claim = "of both"
        where = { queue = ["small", "large"] }
        metric = "throughput"
        phase = "alone"
        above = "1mbit"
        [[expect]]
        claim = "of one against the other"
        where = { queue = "large" }
        metric = "throughput"
        phase = "alone"
        over = { where = { queue = "small" } }
        above = 1"#
    );
    let sets = ["matrix.queue=large".to_owned()];
    let (plan, _) = crate::plan::check::read(&text, &sets).unwrap();
    let skip = |nth: usize| plan.plan().expect[nth].skip.as_deref();
    assert_eq!(skip(0), Some("not run: queue = small"));
    assert_eq!(skip(1), None);
    assert_eq!(levels(&plan.plan().expect[1].at["queue"]), ["large"]);
    assert_eq!(skip(2), Some("not run: queue = small"));
    // The resolved plan keeps the claims, its points have none.
    let resolved = crate::resolve::to_toml(&plan);
    let (again, _) = crate::plan::check::read(&resolved, &[]).unwrap();
    assert_eq!(again.plan().expect, plan.plan().expect);
    assert!(plan.points().iter().all(|point| point.plan.plan().expect.is_empty()));
}

#[test]
fn set_takes_precedence_over_quick() {
    use crate::plan::check::{quick_sets, read};
    let quick =
        "\n[quick]\nrepeat = 2\n\"phases.1.length\" = \"1s\"\n\"matrix.queue\" = [\"small\"]\n";
    let text = format!("{PLAN}{quick}");
    let sets = quick_sets(&text, &["phases.1.length=3s".to_owned()]).unwrap();
    let (plan, _) = read(&text, &sets).unwrap();
    assert_eq!(plan.plan().repeat.at_most(), 2);
    assert_eq!(plan.plan().phases[1].length, Micros::from_millis(3000));
    assert_eq!(plan.point_count(), 1);
    let (whole, _) = read(&text, &[]).unwrap();
    assert_eq!((whole.plan().repeat.at_most(), whole.point_count()), (1, 2));
    assert_eq!(quick_sets(PLAN, &[]), None);
    let wrong = format!("{PLAN}\n[quick]\n\"phases.9.length\" = \"1s\"\n");
    let message = read(&wrong, &[]).unwrap_err();
    assert!(
        message.iter().any(|p| p.path == "quick.\"phases.9.length\"" && p.line.is_some()),
        "{message:?}"
    );
}
