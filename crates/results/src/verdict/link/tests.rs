//! Rates of links that are backlogged, seldom backlogged, or only look backlogged.

use super::*;

#[test]
fn burst_may_be_sent_in_addition_and_slots_may_wait() {
    use ccbench_proto::plan::{Slot, Tbf, check, parse};
    use ccbench_proto::units::{Bytes, Rate};

    let (plan, _) = check::check(parse::parse(include_str!("../ecn.toml")).unwrap()).unwrap();
    let rate = Some(Rate::from_bits_per_sec(8_000_000));
    let plain = Link { rate, ..Link::default() };
    let tbf = Tbf { burst: Bytes::new(200_000), ..Tbf::default() };
    let shaped = Link { tbf: Some(tbf), ..plain.clone() };
    let ideal = |link: &Link| {
        let rated = RatedLink::new("l", link, plan.plan(), None).unwrap();
        rated.ideal_bytes(0, (0, WINDOW_NS))
    };
    assert_eq!(ideal(&plain), (1e6, SLACK_BYTES));
    assert_eq!(ideal(&shaped), (1e6, SLACK_BYTES + 200_000.0));
    let slotted = Link { slot: Some(Slot::default()), ..plain.clone() };
    assert!(work_conserving(&plain) && work_conserving(&shaped) && !work_conserving(&slotted));
}

/// The link's own rate applies to some rows only, and the trace begins with the first packet.
#[test]
fn a_traced_link_is_not_judged_by_its_own_rate() {
    use ccbench_proto::plan::{TraceUse, check, parse};
    use ccbench_proto::units::Rate;

    let (plan, _) = check::check(parse::parse(include_str!("../ecn.toml")).unwrap()).unwrap();
    let rate = |mbit: u64| Some(Rate::from_bits_per_sec(mbit * 1_000_000));
    let rated = |mean_rate| {
        let trace = Some(TraceUse { mean_rate, ..TraceUse::new("a.csv") });
        let link = Link { rate: rate(8), trace, ..Link::default() };
        RatedLink::new("l", &link, plan.plan(), None).is_some()
    };
    assert!(!rated(rate(5)));
    assert!(rated(None), "a trace without rates");
}

/// Adds a second of a kernel link with this many bytes; `waiting` of its eleven samples found a queue.
fn add(backlogged: &mut BackloggedWindows, bytes: f64, waiting: u64) {
    add_to(backlogged, bytes, waiting, false);
}

fn add_to(backlogged: &mut BackloggedWindows, bytes: f64, waiting: u64, knows_idle: bool) {
    let sent = SentBytes { bytes, ideal_bytes: 1e6, slack_bytes: SLACK_BYTES, ns: WINDOW_NS };
    backlogged.add(sent, (QueueSamples { count: 11, waiting }, knows_idle), LOW_SHARE);
}

fn message(backlogged: &BackloggedWindows) -> Option<String> {
    let mut findings = Findings::default();
    backlogged.judge("link l", LOW_SHARE, &mut findings);
    findings.verdict().reasons.pop().map(|reason| reason.message)
}

/// The flow leaves the link idle for part of every round trip. Alone, the seconds with a queue at every sample are low.
#[test]
fn seconds_that_look_backlogged_by_chance_are_not_low() {
    let seconds = |bytes, waiting: &[u64]| {
        let mut backlogged = BackloggedWindows::default();
        waiting.iter().for_each(|waiting| add(&mut backlogged, bytes, *waiting));
        message(&backlogged)
    };
    let bursts = [11, 10, 11, 9, 10, 11, 10, 9, 11, 10];
    assert_eq!(seconds(0.92e6, &bursts), None);
    assert!(seconds(0.92e6, &[11, 11, 11, 11]).is_some(), "nothing shows that it was idle");
    assert!(seconds(0.8e6, &bursts).is_some(), "slower than the samples explain");
}

/// Three of 13 seconds have 96.2 % of the rate, and a queue at each of their samples. One gap of 38 ms in each, between two samples that
/// are 100 ms apart, is missed in every fourth such trial. In 20 of 90 seconds, or if each second lacks a quarter, this is too unlikely.
#[test]
fn a_gap_between_two_samples_does_not_make_a_second_low() {
    let seconds = |low: (usize, f64), other: usize, knows_idle| {
        let mut backlogged = BackloggedWindows::default();
        (0..other).for_each(|_| add_to(&mut backlogged, 0.998e6, 11, knows_idle));
        (0..low.0).for_each(|_| add_to(&mut backlogged, low.1, 11, knows_idle));
        message(&backlogged)
    };
    assert_eq!(seconds((3, 0.962e6), 10, false), None);
    assert!(seconds((20, 0.962e6), 70, false).unwrap().contains("low in 20 of 90 seconds"));
    assert!(seconds((3, 0.75e6), 26, false).unwrap().contains("low in 3 of 29 seconds"));
    let of_userspace = seconds((3, 0.962e6), 10, true);
    assert!(of_userspace.unwrap().contains("low in 3 of 13 seconds"), "it was never idle");
}

#[test]
fn the_last_hours_of_a_long_trial_are_judged() {
    let mut backlogged = BackloggedWindows::default();
    for _ in 0..30_000 {
        add(&mut backlogged, 1e6, 11);
    }
    assert_eq!(message(&backlogged), None);
    for _ in 0..4_000 {
        add(&mut backlogged, 0.5e6, 11);
    }
    let message = message(&backlogged).unwrap();
    assert!(message.contains("low in 4000 of 34000 seconds (lowest: 4.000"), "{message}");
}
