use std::path::PathBuf;

use ccbench_proto::plan::check;

use super::*;
use crate::backend::RunBackend;
use crate::model::{Reason, RunStatus, TrialFilter, TrialKey};
use crate::reason::ReasonCode;

const PLAN: &str = r#"
    name = "t"
    repeat = 3
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
    [[phases]]
    name = "alone"
    length = "5s"
    flows = ["long"]
    [[phases]]
    name = "loaded"
    length = "5s"
    flows = ["long"]
    [matrix.queue]
    small = { "links.down.queue" = { kind = "pfifo", limit = "20p" } }
    large = { "links.down.queue" = { kind = "pfifo", limit = "100p" } }
"#;

fn row(point_id: u32, trial: u16, phase: &str, metric: &'static str, value: f64) -> PhaseRow {
    PhaseRow {
        point_id,
        trial,
        phase: phase.to_owned(),
        scope: Scope::Group,
        subject: "long".to_owned(),
        metric,
        unit: "us",
        stat: "mean",
        value,
        n: 1,
    }
}

fn end(point_id: u32, trial: u16, status: TrialStatus, reasons: Vec<Reason>) -> TrialEnd {
    let key = TrialKey { point_id, trial, seed: 1, epoch: 1 };
    TrialEnd { reasons, ..TrialEnd::new(key, status) }
}

/// Point 0 has the large queue, point 1 the small one.
fn summary(phase_rows: Vec<PhaseRow>, trials: Vec<TrialEnd>) -> Summary {
    let at = |level: &str| vec![("queue".to_owned(), level.to_owned())];
    Summary {
        run_dir: PathBuf::new(),
        status: RunStatus::Complete,
        backend: RunBackend::Testbed,
        trial_filter: TrialFilter::default(),
        factors: vec!["queue".to_owned()],
        points: BTreeMap::from([(0, at("large")), (1, at("small"))]),
        ccs: BTreeMap::new(),
        trials,
        phases: vec!["alone".to_owned(), "loaded".to_owned()],
        phase_rows,
        point_rows: vec![],
        planned: 6,
        fallbacks: vec![],
        steal_pct: BTreeMap::new(),
        completion_bounds_us: BTreeMap::new(),
        notes: vec![],
    }
}

fn judged(claims: &str, summary: &Summary) -> Vec<Expectation> {
    let (plan, _) =
        check::read(&format!("{PLAN}{claims}"), &[]).unwrap_or_else(|e| panic!("{e:?}"));
    judge(plan.plan(), summary)
}

fn ok(point_id: u32) -> Vec<TrialEnd> {
    (1..=3).map(|trial| end(point_id, trial, TrialStatus::Ok, vec![])).collect()
}

const SRTT: &str = "\n[[expect]]\nclaim = \"c\"\nmetric = \"srtt\"\ngroup = \"long\"\n";

#[test]
fn mean_decides_a_claim_and_interval_across_the_limit_is_noted() {
    let rows =
        (1..=3).map(|trial| row(0, trial, "loaded", "srtt", 24_000.0 + 1000.0 * f64::from(trial)));
    let summary = summary(rows.collect(), ok(0));
    let claims = format!(
        "{SRTT}phase = \"loaded\"\nwhere = {{ queue = \"large\" }}\nnear = [\"24.8ms\", \"10%\"]\n\
         {SRTT}phase = \"loaded\"\nwhere = {{ queue = \"large\" }}\nbelow = \"20ms\"\n"
    );
    let found = judged(&claims, &summary);
    assert_eq!((found[0].outcome, found[1].outcome), (Outcome::Holds, Outcome::DoesNotHold));
    assert_eq!((found[0].measured, found[0].n_trials), (Some(26_000.0), 3));
    // t(0.975, 2) = 4.3027 times 1 ms, divided by the square root of 3.
    let (low, high) = found[0].interval.unwrap();
    assert!((low - 23_515.9).abs() < 1.0 && (high - 28_484.1).abs() < 1.0);
    assert_eq!(found[0].reasons, ["the 95 % interval includes the limit"]);
    assert!(found[1].reasons.is_empty());
    assert_eq!(
        (found[0].measured_text().as_str(), found[0].expected_text().as_str()),
        ("26 ±2.48 ms", "22.3 to 27.3 ms")
    );
    assert_eq!(found[1].expected_text(), "≤ 20 ms");
}

#[test]
fn printed_value_is_on_the_side_of_the_limit_on_which_it_is() {
    let text = |ms: f64, limits: &str| {
        let summary = summary(vec![row(0, 1, "loaded", "srtt", ms * 1e3)], ok(0));
        let at = "phase = \"loaded\"\nwhere = { queue = \"large\" }\n";
        let found = judged(&format!("{SRTT}{at}{limits}\n"), &summary).remove(0);
        (found.measured_text(), found.expected_text(), found.outcome)
    };
    let texts = |measured: &str, expected: &str| (measured.to_owned(), expected.to_owned());
    let does_not_hold = |(measured, expected)| (measured, expected, Outcome::DoesNotHold);
    let holds = |(measured, expected)| (measured, expected, Outcome::Holds);
    let below = "below = \"12ms\"";
    assert_eq!(text(12.04, below), does_not_hold(texts("12.04 ms", "≤ 12 ms")));
    assert_eq!(text(12.0004, below), does_not_hold(texts("12.0004 ms", "≤ 12 ms")));
    assert_eq!(text(11.96, below), holds(texts("12 ms", "≤ 12 ms")));
    assert_eq!(text(13.04, below), does_not_hold(texts("13 ms", "≤ 12 ms")));
    // The limit is rounded, too.
    let above = "above = \"12.36ms\"";
    assert_eq!(text(12.33, above), does_not_hold(texts("12.3 ms", "≥ 12.4 ms")));
    assert_eq!(text(12.352, above), does_not_hold(texts("12.35 ms", "≥ 12.36 ms")));
    let between = "between = [\"10ms\", \"2s\"]";
    assert_eq!(text(2001.0, between), does_not_hold(texts("2.001 s", "0.01 to 2 s")));
}

#[test]
fn ratios_pair_the_same_repetition() {
    let mut rows = Vec::new();
    for (trial, alone) in [(1, 10.0), (2, 20.0), (3, 40.0)] {
        rows.push(row(0, trial, "alone", "srtt", alone));
        rows.push(row(0, trial, "loaded", "srtt", 5.0 * alone));
        rows.push(row(1, trial, "loaded", "srtt", 2.5 * alone));
    }
    rows.retain(|row| (row.trial, row.phase.as_str()) != (3, "alone"));
    let summary = summary(rows, [ok(0), ok(1)].concat());
    let claims = format!(
        "{SRTT}phase = \"loaded\"\nwhere = {{ queue = \"large\" }}\nover = {{ phase = \"alone\" }}\nabove = 4\n\
         {SRTT}phase = \"loaded\"\nwhere = {{ queue = \"large\" }}\nover = {{ where = {{ queue = \"small\" }} }}\nnear = [2, 0.1]\n\
         {SRTT}phase = \"alone\"\nwhere = {{ queue = \"small\" }}\nover = {{ phase = \"loaded\" }}\nabove = 4\n"
    );
    let found = judged(&claims, &summary);
    assert_eq!((found[0].measured, found[0].n_trials), (Some(5.0), 2));
    assert_eq!(found[0].interval, Some((5.0, 5.0)), "not the spread of the times");
    let left_out = "1 of 3 trials left out: the second number is missing, or both are zero";
    assert_eq!((&found[0].reasons[..], found[1].reasons.len()), (&[left_out.to_owned()][..], 0));
    assert_eq!(
        (found[1].measured, found[1].n_trials, found[1].outcome),
        (Some(2.0), 3, Outcome::Holds)
    );
    assert_eq!((found[2].measured, found[2].outcome), (None, Outcome::NotMeasured));
    assert_eq!(found[2].reasons, ["no counted trial has the srtt of group long in alone"]);
    assert_eq!(
        found[1].number,
        "srtt of group long in loaded over srtt of group long in loaded at queue=small"
    );
}

#[test]
fn an_interrupted_trial_has_not_failed() {
    let interrupted = |trial| {
        let reason = Reason::new(ReasonCode::Aborted, "interrupted");
        end(0, trial, TrialStatus::Aborted, vec![reason])
    };
    let failed = end(0, 3, TrialStatus::Failed, vec![Reason::new(ReasonCode::NotRun, "why")]);
    let claims =
        format!("{SRTT}phase = \"loaded\"\nwhere = {{ queue = \"large\" }}\nabove = \"1ms\"\n");
    let why = |rows, trials| judged(&claims, &summary(rows, trials)).remove(0).reasons;
    assert_eq!(why(vec![], vec![interrupted(1)]), ["the trial was interrupted"]);
    let both = vec![interrupted(1), interrupted(2)];
    assert_eq!(why(vec![], both.clone()), ["all 2 trials were interrupted"]);
    let lost = [both, vec![failed]].concat();
    let all = "all 3 trials failed or were interrupted: not_run: why";
    assert_eq!(why(vec![], lost), [all]);
    let ok = end(0, 2, TrialStatus::Ok, vec![]);
    let rows = vec![row(0, 2, "loaded", "srtt", 2000.0)];
    assert_eq!(why(rows, vec![interrupted(1), ok]), ["1 of 2 trials interrupted"]);
}

#[test]
fn unmeasured_claim_has_a_reason() {
    let failed = vec![Reason::new(ReasonCode::NotRun, "no such congestion control")];
    let mut trials: Vec<TrialEnd> =
        (1..=2).map(|trial| end(0, trial, TrialStatus::Failed, failed.clone())).collect();
    let of_none = summary(vec![], trials.clone());
    let claims = format!(
        "{SRTT}phase = \"loaded\"\nabove = \"1ms\"\n{SRTT}skip = \"needs a base station\"\n"
    );
    let found = judged(&claims, &of_none);
    let why: Vec<&str> = found.iter().map(|row| row.reasons[0].as_str()).collect();
    assert_eq!(why[0], "all 2 trials failed: not_run: no such congestion control");
    assert_eq!(why[1..], ["not run", "needs a base station"]);
    assert!(found.iter().all(|row| row.outcome == Outcome::NotMeasured && row.measured.is_none()));
    assert_eq!(
        (found[0].levels.as_str(), found[1].levels.as_str()),
        ("queue=large", "queue=small")
    );
    // A degraded trial counts, and a note reports it.
    trials.push(end(
        0,
        3,
        TrialStatus::Degraded,
        vec![Reason::new(ReasonCode::LinkLate, "so late")],
    ));
    let of_one = summary(vec![row(0, 3, "loaded", "srtt", 2000.0)], trials);
    let found = judged(&claims, &of_one);
    assert_eq!(found[0].outcome, Outcome::Holds);
    assert_eq!(
        found[0].reasons,
        ["1 of 3 trials degraded (link_late)", "2 of 3 trials failed (not_run)"]
    );
}

#[test]
fn undefined_values_are_counted() {
    let of_net = |trial, metric, stat, value| PhaseRow {
        scope: Scope::Net,
        subject: "all".to_owned(),
        stat,
        ..row(0, trial, "loaded", metric, value)
    };
    let time = |trial, stat, value| of_net(trial, "convergence_time", stat, value);
    let claims = "\n[[expect]]\nclaim = \"c\"\nmetric = \"convergence_time\"\nphase = \"loaded\"\n\
                  where = { queue = \"large\" }\nbelow = \"60s\"\n";
    let in_some = [time(1, "mean", 4e6), time(2, "undefined", 1.0), time(3, "mean", 6e6)];
    let found = judged(claims, &summary(in_some.to_vec(), ok(0)));
    assert_eq!((found[0].measured, found[0].n_trials), (Some(5e6), 2));
    assert_eq!(found[0].reasons, ["defined in 2 of 3 trials"]);
    let never = (1..=3).map(|trial| time(trial, "undefined", 1.0)).collect();
    let found = judged(claims, &summary(never, ok(0)));
    assert_eq!(found[0].outcome, Outcome::NotMeasured);
    let why = "is undefined in 3 of the counted trials";
    assert_eq!(found[0].reasons, [format!("the convergence_time of all flows in loaded {why}")]);
    // If an index is undefined in some instants, the trial still has a value. The timescale is part of the number.
    let of_index = [
        of_net(1, "jain_fairness", "mean", 0.9),
        of_net(1, "jain_fairness", "undefined", 7.0),
        of_net(1, "timescale", "mean", 300_000.0),
    ];
    let claims = claims.replace("convergence_time", "jain_fairness").replace("\"60s\"", "1");
    let found = judged(&claims, &summary(of_index.to_vec(), ok(0)));
    assert_eq!((found[0].measured, found[0].reasons.len()), (Some(0.9), 0));
    assert_eq!(found[0].number, "jain_fairness of all flows in loaded (timescale 300 ms)");
}

/// A convergence that fails in one of ten trials, in none, and in all.
#[test]
fn trial_without_undefined_values_counts_as_zero() {
    let row = |trial: u16, stat: &'static str, value| PhaseRow {
        scope: Scope::Net,
        subject: "all".to_owned(),
        stat,
        ..row(0, trial, "loaded", "convergence_time", value)
    };
    let claim = "\n[[expect]]\nclaim = \"c\"\nmetric = \"convergence_time\"\nstat = \"undefined\"\n\
                 phase = \"loaded\"\nwhere = { queue = \"large\" }\nbelow = 0.2\n";
    let measured = |failed: u16| {
        let rows = (1..=10).map(|trial| match trial <= failed {
            true => row(trial, UNDEFINED, 1.0),
            false => row(trial, "mean", 4e6),
        });
        let trials = (1..=10).map(|trial| end(0, trial, TrialStatus::Ok, vec![]));
        let found = judged(claim, &summary(rows.collect(), trials.collect())).remove(0);
        (found.outcome, found.measured, found.n_trials)
    };
    assert_eq!(measured(1), (Outcome::Holds, Some(0.1), 10));
    assert_eq!(measured(0), (Outcome::Holds, Some(0.0), 10));
    assert_eq!(measured(10), (Outcome::DoesNotHold, Some(1.0), 10));
}

/// Of five trials, one has a median. In three others, some fetches complete, and in the last one none does.
#[test]
fn missing_median_exceeds_an_upper_limit() {
    let row = |trial, metric, stat, value| PhaseRow {
        scope: Scope::Probe,
        subject: "page".to_owned(),
        stat,
        ..row(0, trial, "loaded", metric, value)
    };
    let mut rows: Vec<PhaseRow> = (1..=5)
        .map(|trial| row(trial, "unfinished_fetches", "sum", if trial == 1 { 0.0 } else { 9.0 }))
        .collect();
    rows.extend((1..=4).map(|trial| row(trial, "fetch_time", "mean", 7e5)));
    rows.push(row(1, "fetch_time", "km_median", 8e5));
    let trials: Vec<TrialEnd> =
        (1..=5).map(|trial| end(0, trial, TrialStatus::Ok, vec![])).collect();
    let judge = |stat: &str, limits: &str| {
        let plan =
            "\n[probes.page]\nkind = \"http\"\nfrom = \"a\"\nto = \"b\"\nbytes = \"177669B\"\n";
        let claim = format!(
            "{plan}\n[[expect]]\nclaim = \"c\"\nmetric = \"fetch_time\"\nstat = \"{stat}\"\nprobe = \"page\"\n\
             phase = \"loaded\"\nwhere = {{ queue = \"large\" }}\n{limits}\n"
        );
        let found = judged(&claim, &summary(rows.clone(), trials.clone())).remove(0);
        (found.outcome, found.measured, found.reasons)
    };
    let why = "the fetch_time (km_median) of probe page in loaded exceeds every completed time in 4 of the counted trials, \
               so the upper limit cannot be tested";
    for limits in ["below = \"1s\"", "between = [\"10ms\", \"1s\"]", "near = [\"1s\", \"50%\"]"] {
        let wanted = (Outcome::NotMeasured, None, vec![why.to_owned()]);
        assert_eq!(judge("km_median", limits), wanted, "{limits}");
    }
    let in_one = vec!["defined in 1 of 5 trials".to_owned()];
    let above = judge("km_median", "above = \"500ms\"");
    assert_eq!(above, (Outcome::Holds, Some(8e5), in_one));
    let (outcome, measured, why) = judge("mean", "below = \"1s\"");
    assert_eq!((outcome, measured), (Outcome::Holds, Some(7e5)));
    assert_eq!(why, ["defined in 4 of 5 trials"]);
    // Without a median as the second number, the ratio is lower than known.
    let over = "over = { stat = \"km_median\" }";
    let why = judge("mean", &format!("{over}\nabove = 0.5")).2;
    assert!(why[0].ends_with("so the lower limit cannot be tested"), "{why:?}");
    assert_eq!(judge("mean", &format!("{over}\nbelow = 1")).0, Outcome::Holds);
}

#[test]
fn infinite_ratio_exceeds_an_upper_limit() {
    let judge = |own: f64, others: [f64; 5], limits: &str| {
        let mut rows = Vec::new();
        for (trial, other) in (1..).zip(others) {
            rows.push(row(0, trial, "loaded", "retransmissions", own));
            rows.push(row(0, trial, "alone", "retransmissions", other));
        }
        rows.iter_mut().for_each(|row| row.stat = "sum");
        let trials = (1..=5).map(|trial| end(0, trial, TrialStatus::Ok, vec![])).collect();
        let claim = format!(
            "\n[[expect]]\nclaim = \"c\"\nmetric = \"retransmissions\"\ngroup = \"long\"\nphase = \"loaded\"\n\
             where = {{ queue = \"large\" }}\nover = {{ phase = \"alone\" }}\n{limits}\n"
        );
        judged(&claim, &summary(rows, trials)).remove(0)
    };
    let others = [0.0, 0.0, 0.0, 0.0, 60.0];
    let infinite = "the ratio is infinite in 4 of 5 trials: the second number is zero";
    for limits in ["below = 2", "between = [1, 2]"] {
        let found = judge(100.0, others, limits);
        assert_eq!((found.outcome, found.n_trials), (Outcome::DoesNotHold, 5), "{limits}");
        assert_eq!((found.measured, found.interval), (Some(f64::INFINITY), None));
        assert_eq!(
            (found.measured_text().as_str(), &found.reasons[..]),
            ("inf", &[infinite.to_owned()][..])
        );
    }
    let found = judge(100.0, others, "above = 1");
    assert_eq!((found.outcome, found.measured, found.n_trials), (Outcome::NotMeasured, None, 0));
    assert_eq!(found.reasons, [infinite]);
    // Zero over zero is no ratio, but zero over anything else is.
    let found = judge(0.0, others, "below = 2");
    assert_eq!((found.outcome, found.measured, found.n_trials), (Outcome::Holds, Some(0.0), 1));
    let left_out = "4 of 5 trials left out: the second number is missing, or both are zero";
    assert_eq!(found.reasons, [left_out]);
    let found = judge(0.0, [0.0; 5], "below = 2");
    assert_eq!(found.reasons, ["no repetition has both numbers, or both are zero"]);
}

/// Some numbers, such as utilities, may be negative.
#[test]
fn infinite_ratios_of_both_signs_have_no_mean() {
    let own = [100.0, -100.0, 50.0];
    let mut rows = Vec::new();
    for (trial, own) in (1..).zip(own) {
        rows.push(row(0, trial, "loaded", "retransmissions", own));
        rows.push(row(0, trial, "alone", "retransmissions", 0.0));
    }
    rows.iter_mut().for_each(|row| row.stat = "sum");
    let trials: Vec<TrialEnd> =
        (1..=3).map(|trial| end(0, trial, TrialStatus::Ok, vec![])).collect();
    for limits in ["below = 2", "above = 2"] {
        let claim = format!(
            "\n[[expect]]\nclaim = \"c\"\nmetric = \"retransmissions\"\ngroup = \"long\"\nphase = \"loaded\"\n\
             where = {{ queue = \"large\" }}\nover = {{ phase = \"alone\" }}\n{limits}\n"
        );
        let found = judged(&claim, &summary(rows.clone(), trials.clone())).remove(0);
        assert_eq!((found.outcome, found.measured), (Outcome::NotMeasured, None), "{limits}");
        assert_eq!(
            found.reasons,
            ["the ratio is infinite in 3 of 3 trials: the second number is zero"]
        );
    }
}

/// Ware et al., HotNets 2019: harm relative to a solo run at another point, and compared with self-harm.
#[test]
fn harm_relates_points_of_the_matrix() {
    let share = |point_id, mbit: f64| row(point_id, 1, "loaded", "throughput_sum", mbit * 1e6);
    let summary = summary(vec![share(0, 2.0), share(1, 15.0)], [ok(0), ok(1)].concat());
    let claim = |relation: &str| {
        format!(
            "\n[[expect]]\nclaim = \"c\"\nmetric = \"throughput\"\ngroup = \"long\"\nphase = \"loaded\"\n\
             where = {{ queue = \"large\" }}\nover = {{ where = {{ queue = \"small\" }} }}\n{relation}\n"
        )
    };
    // 2 of 15 Mbit/s means a harm of 0.87.
    let found = judged(&(claim("above = 0.5") + &claim("near = [0.1333, 0.0001]")), &summary);
    let outcomes = [found[0].outcome, found[1].outcome];
    assert_eq!(outcomes, [Outcome::DoesNotHold, Outcome::Holds]);
}

#[test]
fn printed_claims_fit_the_width() {
    let rows = (1..=3).map(|trial| row(0, trial, "loaded", "srtt", 513_000.0 + f64::from(trial)));
    let summary = summary(rows.collect(), ok(0));
    let long = "Beside a long-lived flow and with the large queue of a hundred packets the round trip is half a second";
    let claims = format!(
        "\n[[expect]]\nclaim = \"{long}\"\nsource = \"seed 002, item 6\"\npublished = \"474 to 547 ms, mean 513\"\n\
         metric = \"srtt\"\ngroup = \"long\"\nphase = \"loaded\"\nbetween = [\"400ms\", \"600ms\"]\n\
         {SRTT}skip = \"{} base station\"\n",
        "needs a long explanation of what is missing here, ".repeat(3)
    );
    let found = judged(&claims, &summary);
    let table = claims_text(&found, 100);
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    assert!(table.contains("400 to 600 ms") && table.contains("? *"), "{table}");
    assert!(table.contains("1 of 3 claims hold, 2 were not measured."), "{table}");
    assert!(table.contains("* 2: not run") && table.contains("* 3: needs a long"), "{table}");
    assert_eq!(claims_text(&[], 100), "");
    // A note about several claims appears once.
    let mut again = found.clone();
    again.extend(found);
    assert!(claims_text(&again, 100).contains("* 2, 5: not run"));
}

#[test]
fn expectations_table_has_a_row_for_every_claim() {
    let summary = summary(vec![row(0, 1, "loaded", "srtt", 2000.0)], vec![]);
    let found = judged(&format!("{SRTT}phase = \"loaded\"\nabove = \"1ms\"\n"), &summary);
    let frame = frame(&found).unwrap();
    assert_eq!(frame.height(), 2);
    let verdicts = frame.column("verdict").unwrap().str().unwrap();
    assert_eq!((verdicts.get(0), verdicts.get(1)), (Some("holds"), Some("not_measured")));
    assert_eq!(frame.column("measured").unwrap().null_count(), 1);
    assert_eq!(frame.column("lower_bound").unwrap().f64().unwrap().get(0), Some(1000.0));
    assert_eq!(frame.column("upper_bound").unwrap().null_count(), 2);
    let reasons = frame.column("reason").unwrap().str().unwrap();
    let events: Vec<_> = found.iter().map(Expectation::json).collect();
    assert_eq!(events[0]["lower_bound"], 1000.0);
    assert!(events[0].get("upper_bound").is_some_and(serde_json::Value::is_null));
    assert_eq!(events[1]["reason"][0].as_str(), reasons.get(1));
}
