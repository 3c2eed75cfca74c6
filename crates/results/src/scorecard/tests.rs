use std::path::PathBuf;

use ccbench_proto::metric::{self, Scope};

use super::*;
use crate::backend::RunBackend;
use crate::model::{Reason, RunStatus, TrialFilter, TrialKey};
use crate::summary::PhaseRow;

const BASELINE_OUTAGE: u32 = 0;
const BASELINE_TAIL_DROP: u32 = 1;
const TESTED_OUTAGE: u32 = 2;
const TESTED_TAIL_DROP: u32 = 3;

const UTILISATION: (Scope, &str, &str, &str) = (Scope::Link, "bottleneck", "utilisation", "mean");
const QUEUE_DELAY: (Scope, &str, &str, &str) = (Scope::Link, "bottleneck", "queue_delay", "mean");
const RESENT: (Scope, &str, &str, &str) = (Scope::Net, "all", "retransmission_share", "mean");
const OUTAGE: (Scope, &str, &str, &str) = (Scope::Net, "all", "retransmissions", "sum");

/// Returns the values of a number in trials 1, 2 … of a point.
fn values(
    point_id: u32,
    (scope, subject, metric, stat): (Scope, &str, &'static str, &'static str),
    values: &[f64],
) -> Vec<PhaseRow> {
    let row = |(value, trial): (&f64, u16)| PhaseRow {
        point_id,
        trial,
        phase: PHASE.to_owned(),
        scope,
        subject: subject.to_owned(),
        metric,
        unit: "1",
        stat,
        value: *value,
        n: 1,
    };
    values.iter().zip(1..).map(row).collect()
}

fn end(point_id: u32, trial: u16, status: TrialStatus, codes: &[ReasonCode]) -> TrialEnd {
    let key = TrialKey { point_id, trial, seed: 1, epoch: 1 };
    let reasons = codes.iter().map(|code| Reason::new(code.clone(), "why")).collect();
    TrialEnd { reasons, ..TrialEnd::new(key, status) }
}

/// Returns three ok trials of each point, except for the given ones.
fn trials(others: &[TrialEnd]) -> Vec<TrialEnd> {
    let mut all = Vec::new();
    for point_id in 0..4 {
        for trial in 1..=3 {
            let is_other = |end: &&TrialEnd| (end.point_id, end.trial) == (point_id, trial);
            let other = others.iter().find(is_other).cloned();
            all.push(other.unwrap_or_else(|| end(point_id, trial, TrialStatus::Ok, &[])));
        }
    }
    all
}

fn summary(mut phase_rows: Vec<PhaseRow>, trials: Vec<TrialEnd>) -> Summary {
    phase_rows.sort_by_key(|row| row.point_id);
    let at = |cc: &str, scenario: &str| {
        let factors = [("cc", cc), ("scenario", scenario)];
        factors.map(|(factor, level)| (factor.to_owned(), level.to_owned())).to_vec()
    };
    Summary {
        run_dir: PathBuf::new(),
        status: RunStatus::Complete,
        backend: RunBackend::Testbed,
        trial_filter: TrialFilter::default(),
        factors: vec!["cc".to_owned(), "scenario".to_owned()],
        points: BTreeMap::from([
            (BASELINE_OUTAGE, at("baseline", "outage")),
            (BASELINE_TAIL_DROP, at("baseline", "tail_drop")),
            (TESTED_OUTAGE, at("tested", "outage")),
            (TESTED_TAIL_DROP, at("tested", "tail_drop")),
        ]),
        ccs: BTreeMap::new(),
        trials,
        phases: vec![PHASE.to_owned()],
        phase_rows,
        point_rows: vec![],
        planned: 12,
        fallbacks: vec![],
        steal_pct: BTreeMap::new(),
        completion_bounds_us: BTreeMap::new(),
        notes: vec![],
    }
}

fn scorecard(phase_rows: Vec<PhaseRow>, others: &[TrialEnd]) -> Scorecard {
    Scorecard::new(&Plan::new("scorecard-bbr3"), &summary(phase_rows, trials(others))).unwrap()
}

/// Returns the row of a section with this metric.
fn row<'a>(scorecard: &'a Scorecard, section: &str, metric: &str) -> &'a ScorecardRow {
    let is_it = |row: &&ScorecardRow| {
        row.criterion.section == section && row.measure.is_some_and(|it| it.metric == metric)
    };
    scorecard.rows.iter().find(is_it).unwrap()
}

#[test]
fn every_criterion_has_a_row_and_every_measure_a_metric() {
    let sections: Vec<&str> = CRITERIA.iter().map(|criterion| criterion.section).collect();
    let of_rfc = "5.1.1 5.1.2 5.1.3 5.1.4 5.1.5 5.2 5.2.1 5.2.2 5.2.3 5.3.1 5.3.2 6.1 6.2 6.3 6.4 \
                  7.1 7.2 7.3 7.4 7.5 7.6 7.7 7.8 7.9 7.10 7.11";
    assert_eq!(sections.join(" "), of_rfc);
    for criterion in CRITERIA {
        let section = criterion.section;
        assert!(!criterion.measures.is_empty() || criterion.not_measured.is_some(), "{section}");
        for measure in criterion.measures {
            let found = metric::find(measure.metric, measure.scope).unwrap_or_else(|| {
                panic!("{section}: {} is no metric of its subject", measure.metric)
            });
            assert_eq!(found.name, measure.metric, "{section}");
            assert!(found.stats.contains(&measure.stat), "{section}: {}", measure.number());
            assert!(!found.whole_trial, "{section}: {} has no phase", measure.number());
        }
    }
    let empty = scorecard(vec![], &[]);
    assert!(CRITERIA.iter().all(|it| empty.rows.iter().any(|row| row.criterion == it)));
}

#[test]
fn values_are_compared_by_pairs_of_trials() {
    let rows = [
        values(TESTED_TAIL_DROP, UTILISATION, &[0.8, 0.9, 1.0]),
        values(BASELINE_TAIL_DROP, UTILISATION, &[0.4, 0.45, 0.5]),
        values(TESTED_TAIL_DROP, QUEUE_DELAY, &[9000.0, 10_000.0, 11_000.0]),
        values(BASELINE_TAIL_DROP, QUEUE_DELAY, &[2000.0, 2500.0, 3000.0]),
    ];
    let found = scorecard(rows.concat(), &[]);
    let utilisation = row(&found, "6.1", "utilisation");
    assert!((utilisation.tested.unwrap().mean.value - 0.9).abs() < 1e-12);
    assert_eq!(utilisation.tested.unwrap().n_trials, 3);
    assert_eq!(utilisation.ratio, Some(Mean { value: 2.0, interval: Some((2.0, 2.0)) }));
    assert_eq!(utilisation.comparison, Some(Comparison::Better));
    assert_eq!((utilisation.verdict(), utilisation.reasons.len()), ("reported", 0));
    assert_eq!(utilisation.points, [Some(TESTED_TAIL_DROP), Some(BASELINE_TAIL_DROP)]);
    // A longer queue is worse.
    assert_eq!(row(&found, "6.1", "queue_delay").comparison, Some(Comparison::Worse));
    // Differences of -0.1, 0 and 0.1.
    let rows = [
        values(TESTED_TAIL_DROP, UTILISATION, &[0.8, 0.9, 1.0]),
        values(BASELINE_TAIL_DROP, UTILISATION, &[0.9, 0.9, 0.9]),
    ];
    let found = scorecard(rows.concat(), &[]);
    assert_eq!(row(&found, "6.1", "utilisation").comparison, Some(Comparison::NoDifference));
}

#[test]
fn equal_trials_have_a_ratio_of_one() {
    let same = |point_id| values(point_id, UTILISATION, &[0.7, 0.8, 0.95]);
    let found = scorecard([same(BASELINE_TAIL_DROP), same(TESTED_TAIL_DROP)].concat(), &[]);
    let utilisation = row(&found, "6.1", "utilisation");
    assert_eq!(utilisation.ratio, Some(Mean { value: 1.0, interval: Some((1.0, 1.0)) }));
    assert_eq!(utilisation.comparison, Some(Comparison::NoDifference));
}

#[test]
fn nothing_is_divided_by_zero() {
    let rows = [
        values(TESTED_TAIL_DROP, RESENT, &[0.01, 0.012, 0.011]),
        values(BASELINE_TAIL_DROP, RESENT, &[0.0, 0.0, 0.0]),
    ];
    let found = scorecard(rows.concat(), &[]);
    let resent = row(&found, "6.1", "retransmission_share");
    assert_eq!((resent.ratio, resent.comparison), (None, Some(Comparison::Worse)));
}

#[test]
fn bounds_decide_only_their_rows() {
    for (count, outcome) in [(3.0, Outcome::Holds), (9.0, Outcome::DoesNotHold)] {
        let found = scorecard(values(TESTED_OUTAGE, OUTAGE, &[count; 3]), &[]);
        let retransmissions = row(&found, "5.2", "retransmissions");
        assert_eq!(retransmissions.outcome, Some(outcome));
        // The baseline has no values.
        assert_eq!((retransmissions.ratio, retransmissions.comparison), (None, None));
        assert_eq!(
            retransmissions.reasons,
            ["cubic: no trial has a value of retransmissions:sum of all flows"]
        );
    }
}

#[test]
fn disturbed_trials_make_a_row_not_measured() {
    let rows = || {
        let of = |point_id| values(point_id, UTILISATION, &[0.7, 0.8, 0.95]);
        [of(BASELINE_TAIL_DROP), of(TESTED_TAIL_DROP)].concat()
    };
    let busy = |point| end(point, 2, TrialStatus::Degraded, &[ReasonCode::CpuBound]);
    let found = scorecard(rows(), &[busy(TESTED_TAIL_DROP)]);
    let utilisation = row(&found, "6.1", "utilisation");
    assert_eq!((utilisation.verdict(), utilisation.tested), ("not_measured", None));
    assert_eq!(utilisation.reasons, ["of 3 trials 1 degraded, 0 failed, 0 aborted (cpu_bound)"]);
    assert_eq!(utilisation.points[0], Some(TESTED_TAIL_DROP));
    let (text, markdown) = (found.text(200), found.markdown());
    // The cell has two lines.
    assert!(text.contains(" not measured: ") && text.contains(" cpu_bound\n"), "{text}");
    assert!(markdown.contains("| not measured: cpu_bound |"), "{markdown}");
    let dead = end(BASELINE_TAIL_DROP, 1, TrialStatus::Failed, &[ReasonCode::FlowDead]);
    let found = scorecard(rows(), &[dead]);
    let utilisation = row(&found, "6.1", "utilisation");
    assert_eq!((utilisation.verdict(), utilisation.baseline), ("reported", None));
    assert_eq!(
        utilisation.reasons,
        ["cubic: of 3 trials 0 degraded, 1 failed, 0 aborted (flow_dead)"]
    );
    // A congestion control that backs off stalls.
    let stalled = end(TESTED_TAIL_DROP, 1, TrialStatus::Degraded, &[ReasonCode::FlowStalled]);
    let found = scorecard(rows(), &[stalled]);
    assert_eq!(row(&found, "6.1", "utilisation").tested.unwrap().n_trials, 3);
    // This is not a level of this run.
    assert_eq!(row(&found, "6.3", "utilisation").reasons, ["not run"]);
}

#[test]
fn few_trials_have_a_caveat() {
    let texts = |trials: usize| {
        let of = |point_id| values(point_id, UTILISATION, &[0.7, 0.8, 0.95, 0.9, 0.8][..trials]);
        let found = scorecard([of(BASELINE_TAIL_DROP), of(TESTED_TAIL_DROP)].concat(), &[]);
        [found.text(200), found.markdown()]
    };
    for text in texts(2) {
        assert!(text.contains("Some rows have only 2 trials. "), "{text}");
    }
    for text in texts(5) {
        assert!(!text.contains("Some rows have only "), "{text}");
    }
}

#[test]
fn undefined_values_are_counted() {
    let found = scorecard(values(TESTED_TAIL_DROP, UTILISATION, &[0.7, 0.8]), &[]);
    let utilisation = row(&found, "6.1", "utilisation");
    assert_eq!(utilisation.tested.unwrap().n_trials, 2);
    assert_eq!(utilisation.reasons[0], "defined in 2 of 3 trials");
}

#[test]
fn the_instance_under_test_is_described() {
    let mut cc = Cc { file: Some("mine.bpf.o".to_owned()), ..Cc::new("mine") };
    cc.params.insert("gain".to_owned(), ccbench_proto::plan::SysctlValue::Number(2));
    let digests = BTreeMap::from([("mine.bpf.o".to_owned(), "0f".to_owned())]);
    assert_eq!(describe(&cc, &digests), "gain = 2, mine.bpf.o, SHA-256 0f");
    assert_eq!(describe(&Cc::new("bbr"), &digests), "");
    let found = Scorecard { instance: "gain = 2".to_owned(), ..scorecard(vec![], &[]) };
    assert!(found.text(140).contains("* bbr3: gain = 2\n"), "{}", found.text(140));
    assert!(found.markdown().contains("\n\nbbr3: gain = 2\n\n"), "{}", found.markdown());
}

#[test]
fn other_plans_have_no_scorecard() {
    let of = |name: &str, factors: &[&str]| {
        let factors = factors.iter().map(|factor| (*factor).to_owned()).collect();
        let summary = Summary { factors, ..summary(vec![], vec![]) };
        Scorecard::new(&Plan::new(name), &summary).map(|scorecard| scorecard.cc)
    };
    assert_eq!(of("scorecard-bbr3", &["cc", "scenario"]).as_deref(), Some("bbr3"));
    assert_eq!(of("bbr3", &["cc", "scenario"]), None);
    assert_eq!(of("scorecard-bbr3", &["cc"]), None);
}

#[test]
fn printed_value_is_on_the_side_of_the_bound_on_which_it_is() {
    let text = |packets: f64| {
        let rows = [
            values(TESTED_OUTAGE, OUTAGE, &[packets; 3]),
            values(BASELINE_OUTAGE, OUTAGE, &[3.0; 3]),
        ];
        scorecard(rows.concat(), &[]).text(140)
    };
    let beyond = text(4.004);
    assert!(
        beyond.contains("(≤ 4 packets: NO)") && beyond.contains("4.004 ±0 packets"),
        "{beyond}"
    );
    let within = text(3.996);
    assert!(within.contains("(≤ 4 packets: yes)") && within.contains(" 4 ±0 packets"), "{within}");
}

#[test]
fn printed_with_values_bounds_and_reasons() {
    let rows = [
        values(TESTED_TAIL_DROP, QUEUE_DELAY, &[9000.0, 10_000.0, 11_000.0]),
        values(BASELINE_TAIL_DROP, QUEUE_DELAY, &[20_000.0, 20_000.0, 20_000.0]),
        values(TESTED_OUTAGE, OUTAGE, &[3.0; 3]),
        values(BASELINE_OUTAGE, OUTAGE, &[3.0; 3]),
    ];
    let found = scorecard(rows.concat(), &[]);
    let text = found.text(140);
    assert!(text.lines().all(|line| line.chars().count() <= 140), "{text}");
    for part in ["bbr3", "Paths with Tail-Drop Queues", "10 ±2.48 ms", "20 ±0 ms", "better"] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    assert!(text.contains("(≤ 4 packets: yes)") && text.contains(" point=2"), "{text}");
    assert!(text.contains("* 7.10: ccbench has no multipath flows"), "{text}");
    assert!(text.contains("2 of ") && text.contains("bounds: 1 hold, 0 do not"), "{text}");
    // The plan has no scenario for these.
    assert!(!text.contains("Wired Paths") && !text.contains("not run"), "{text}");
    let lack = |row: &&ScorecardRow| row.measure.is_some() && row.points == [None, None];
    let count = found.rows.iter().filter(lack).count();
    let tally = format!("left out, because the plan lacks their scenarios: {count}.");
    assert!(count > 0 && found.text(1000).contains(&tally), "{}", found.text(1000));
    let markdown = found.markdown();
    assert!(!markdown.contains("| 6.3 |"), "{markdown}");
    let line = "| 6.1 | Paths with Tail-Drop Queues | mean queueing delay | 10 ±2.48 ms | 20 ±0 ms | 0.5 ±0.124 | better \
                |  | [point=3](tables/flow_samples/point=3) [point=1](tables/flow_samples/point=1) |";
    assert!(markdown.contains(line), "{markdown}");
    let not_measured =
        "| 7.10 | Multipath Transport | not measured (ccbench has no multipath flows) |";
    assert!(markdown.contains(not_measured), "{markdown}");
    let json = found.json();
    let outage = json.iter().find(|event| event["section"] == "5.2").unwrap();
    assert_eq!(outage["verdict"], "holds");
    assert_eq!(outage["value"]["mean"], 3.0);
    assert_eq!(outage["trials"], "tables/flow_samples/point=2");
    assert_eq!(outage["upper_bound"], 4.0);
    let multipath = json.iter().find(|event| event["section"] == "7.10").unwrap();
    assert_eq!(multipath["reason"][0], "ccbench has no multipath flows");
    let frame = found.frame().unwrap();
    assert_eq!((frame.height(), frame.width()), (found.rows.len(), 23));
}
