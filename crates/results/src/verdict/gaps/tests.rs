use ccbench_proto::plan::{check, parse};
use ccbench_proto::wire::Probe;
use proptest::prelude::*;

use super::*;

const TENTH: Pace = Pace { interval_s: Some(0.1), limit_s: 1.0 };

fn times(instants: &[f64]) -> Times {
    let mut times = Times::default();
    instants.iter().for_each(|at_s| times.add(*at_s, TENTH.limit_s));
    times
}

proptest! {
    #[test]
    fn gaps_do_not_depend_on_the_order_of_samples(
        (instants, shuffled) in prop::collection::btree_set(0u32..200, 1..40)
            .prop_map(|set| set.into_iter().map(|tenth| f64::from(tenth) / 10.0).collect::<Vec<_>>())
            .prop_flat_map(|sorted| (Just(sorted.clone()), Just(sorted).prop_shuffle())),
    ) {
        let expected: Vec<Window> = instants
            .windows(2)
            .filter_map(|two| (two[1] - two[0] > TENTH.limit_s).then_some((two[0], two[1])))
            .collect();
        let times = times(&shuffled);
        let mut gaps = times.gaps.clone();
        gaps.sort_by(|a, b| a.0.total_cmp(&b.0));
        prop_assert_eq!(gaps, expected);
        prop_assert_eq!(times.count, instants.len() as u64);
        prop_assert_eq!(times.seen, instants.first().copied().zip(instants.last().copied()));
    }

    /// The sampler's passes are up to 30 ms late, and it stands still for a while.
    #[test]
    fn stop_longer_than_the_limit_is_found_and_a_short_one_is_not(
        late in prop::collection::vec(0.0..0.03f64, 300),
        from in 0usize..300,
        length in 0usize..100,
    ) {
        let instants: Vec<f64> = late
            .iter()
            .enumerate()
            .filter(|(index, _)| !(from..from + length).contains(index))
            .map(|(index, late_s)| index as f64 / 10.0 + late_s)
            .collect();
        let missing = times(&instants).missing((0.0, 30.0), &TENTH, 0.0);
        let stopped = length.min(300 - from);
        if stopped >= 11 {
            let (from_s, to_s) = missing.unwrap().longest.unwrap();
            prop_assert!((from_s - (from as f64 - 1.0) / 10.0).abs() < 0.11, "{from_s}");
            prop_assert!((to_s - (from + stopped) as f64 / 10.0).abs() < 0.11, "{to_s}");
        } else if stopped <= 8 {
            prop_assert!(missing.is_none(), "{missing:?}");
        }
    }
}

#[test]
fn limit_grows_with_the_interval() {
    let limit_s = |ms| Pace::every(Micros::from_millis(ms)).limit_s;
    assert_eq!((limit_s(1), limit_s(100), limit_s(500), limit_s(60_000)), (1.0, 1.0, 1.75, 210.0));
    let hourly = Pace::every(Micros::from_secs(3600));
    assert!(Times::default().missing((0.0, 60.0), &hourly, 0.0).is_none(), "no sample is due");
    let never = times(&[-9.0]).missing((0.0, -0.8), &TENTH, 0.0);
    assert!(never.is_none(), "a trial that is shorter than a probe's timeout: {never:?}");
}

fn check(text: &str) -> (GapCheck, Span) {
    let head = r#"
        name = "t"
        [nodes]
        a = {}
        b = {}
        [wires]
        w = ["a", "b"]
        [[phases]]
        name = "idle"
        length = "30s"
        [[phases]]
        name = "late"
        length = "30s"
        flows = ["late"]
        [flows.late]
        from = "a"
        to = "b"
    "#;
    let (plan, _) = check::check(parse::parse(&format!("{head}{text}")).unwrap()).unwrap();
    let span = Span { t0_ns: 0, end_ns: 60_000_000_000 };
    (GapCheck::new(&plan, std::iter::empty()), span)
}

fn messages(check: GapCheck) -> Vec<String> {
    let done = ["a", "b"].map(|node| (node.to_owned(), Done::default())).into();
    let mut findings = Findings::default();
    check.finish(&done, &mut findings);
    findings.verdict().reasons.into_iter().map(|reason| reason.message).collect()
}

#[test]
fn sockets_are_expected_while_the_flow_exists() {
    let row = |ms: u64, side: Side| FlowSample {
        at_ns: ms * 1_000_000,
        flow_id: "late/0".into(),
        group: "late".into(),
        side: side.into(),
        role: Role::Data.into(),
        ..FlowSample::default()
    };
    let judged = |receiver: std::ops::Range<u64>| {
        let (mut check, span) = check("");
        for ms in (30_000..62_000).step_by(100) {
            check.row("a", span, &Payload::FlowSample(row(ms, Side::Sender)));
        }
        for ms in receiver.step_by(100) {
            check.row("b", span, &Payload::FlowSample(row(ms, Side::Receiver)));
        }
        messages(check)
    };
    assert_eq!(judged(30_200..60_000), [""; 0], "nothing is due while the first phase is idle");
    let late = judged(33_000..60_000);
    assert!(
        late[0].starts_with(
            "b: table flow_samples, flows.late: no sample for 3.00 s from 30.00 s to 33.00 s"
        ),
        "{late:?}"
    );
    assert_eq!(judged(0..0).len(), 1, "the receiver has none at all");
    assert_eq!(messages(check("").0), [""; 0], "a flow without any socket is dead or never began");
}

#[test]
fn probes_may_be_lost_slow_or_unfinished_but_not_left_out() {
    let plan = r#"
        [probes.echo]
        kind = "ping"
        from = "a"
        to = "b"
        start = "10s"
        every = "200ms"
        [probes.page]
        kind = "http"
        bytes = "1000B"
        from = "a"
        to = "b"
        timeout = "5s"
        repeat = "back-to-back"
        [probes.once]
        kind = "tcp_connect"
        from = "a"
        to = "b"
        repeat = "once"
    "#;
    let judged = |echoes: &[std::ops::Range<u64>], pages: &[u64]| {
        let (mut check, span) = check(plan);
        let mut row = |id: &str, ms: u64| {
            let probe = Probe { at_ns: ms * 1_000_000, probe_id: id.into(), ..Probe::default() };
            check.row("a", span, &Payload::Probe(probe));
        };
        for ms in echoes.iter().cloned().flat_map(|range| range.step_by(200)) {
            row("echo", ms);
        }
        pages.iter().for_each(|ms| row("page", *ms));
        messages(check)
    };
    let pages: Vec<u64> = (0..57_000).step_by(5_500).collect();
    // Lost echoes are reported after later ones.
    let whole = [10_000..30_000, 35_000..60_000, 30_000..35_000];
    assert_eq!(judged(&whole, &pages), [""; 0]);
    let found = judged(&whole[..2], &pages[..6]);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("probes.echo: no sample for 5.20 s from 29.80 s to 35.00 s"));
    assert!(found[1].contains("probes.page: no sample for 27.50 s from 27.50 s to 55.00 s"));
    assert!(found[1].ends_with("(limit 6.00 s); 50 % of the time"), "{found:?}");
    assert_eq!(judged(&[], &[]), [""; 0], "dead probes have a reason of their own");
}

/// A quarter of the samples of the first 40 s is missing. Those of the last 20 s, the timeout, are not expected.
#[test]
fn samples_that_are_not_expected_do_not_replace_missing_ones() {
    let plan = r#"
        [probes.echo]
        kind = "ping"
        from = "a"
        to = "b"
        every = "100ms"
        timeout = "20s"
    "#;
    let (mut check, span) = check(plan);
    for nth in (0..600_u64).filter(|nth| *nth >= 400 || nth % 4 != 3) {
        let at_ns = nth * 100_000_000;
        let probe = Probe { at_ns, probe_id: "echo".into(), ..Probe::default() };
        check.row("a", span, &Payload::Probe(probe));
    }
    let found = messages(check);
    assert_eq!(found.len(), 1, "{found:?}");
    let wanted = "probes.echo: 301 of 400 samples, 25 % missing (at least 90 % required)";
    assert!(found[0].ends_with(wanted), "{found:?}");
}
