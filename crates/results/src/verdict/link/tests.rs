//! Rates of links that are backlogged, seldom backlogged, or seem so.

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
        let rated = Rated::new("l", link, plan.plan(), None).unwrap();
        rated.ideal_bytes(0, (0, WINDOW_NS))
    };
    assert_eq!(ideal(&plain), (1e6, SLACK_BYTES));
    assert_eq!(ideal(&shaped), (1e6, SLACK_BYTES + 200_000.0));
    let slotted = Link { slot: Some(Slot::default()), ..plain.clone() };
    assert!(work_conserving(&plain) && work_conserving(&shaped) && !work_conserving(&slotted));
}

/// A second with this many bytes, of which eleven samples found the queue so often.
fn add(backlogged: &mut Backlogged, bytes: f64, waiting: u64) {
    let sent = Sent { bytes, ideal_bytes: 1e6, slack_bytes: SLACK_BYTES, ns: WINDOW_NS };
    backlogged.add(sent, QueueSamples { count: 11, waiting }, LOW_SHARE);
}

fn message(backlogged: &Backlogged) -> Option<String> {
    let mut findings = Findings::default();
    backlogged.judge("link l", LOW_SHARE, &mut findings);
    findings.verdict().reasons.pop().map(|reason| reason.message)
}

/// A flow that leaves the link idle for a part of every round trip: alone the seconds with a queue at every sample are low.
#[test]
fn seconds_that_look_backlogged_by_chance_are_not_low() {
    let seconds = |bytes, waiting: &[u64]| {
        let mut backlogged = Backlogged::default();
        waiting.iter().for_each(|waiting| add(&mut backlogged, bytes, *waiting));
        message(&backlogged)
    };
    let bursts = [11, 10, 11, 9, 10, 11, 10, 9, 11, 10];
    assert_eq!(seconds(0.92e6, &bursts), None);
    assert!(seconds(0.92e6, &[11, 11, 11, 11]).is_some(), "nothing shows that it was idle");
    assert!(seconds(0.8e6, &bursts).is_some(), "slower than the samples explain");
}

#[test]
fn the_last_hours_of_a_long_trial_are_judged() {
    let mut backlogged = Backlogged::default();
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
