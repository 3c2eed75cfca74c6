//! Tests of the live state in virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

use ccbench_proto::schedule::PhaseSpan;
use ccbench_proto::units::Micros;
use ccbench_proto::wire::{
    FlowSample, HostSample, Probe, QdiscSample, Role, RunEvent, Side, run_event::Payload,
};

use super::state::Cursor;
use super::trial::TrialFacts;
use super::update::{Bin, TrialView, Update};
use super::*;

const SRC_T0_NS: u64 = 7_000_000_000;
const DST_T0_NS: u64 = 50_000_000_000;
const MS: u64 = 1_000_000;

fn facts(number: usize, length_s: u64, flows: u64) -> TrialFacts {
    let second = Micros::from_secs;
    let phases = vec![
        PhaseSpan::new("one", second(0), second(length_s / 2)),
        PhaseSpan::new("two", second(length_s / 2), second(length_s)),
    ];
    TrialFacts { number, label: format!("trial {number}"), phases, flows }
}

/// Returns a state with the running trial 1.
fn running(length_s: u64, flows: u64) -> LiveState {
    let mut state = LiveState::default();
    state.start_trial(facts(1, length_s, flows), None);
    state.clocks(1, clocks());
    state
}

fn clocks() -> BTreeMap<String, u64> {
    [("src", SRC_T0_NS), ("dst", DST_T0_NS)].map(|(node, ns)| (node.to_owned(), ns)).into()
}

fn event(payload: Payload) -> RunEvent {
    RunEvent { payload: Some(payload) }
}

/// Returns a sample of a flow `ms` after the start: its bytes so far, and the sender's RTT, window and packets.
fn sample(flow_id: &str, side: Side, ms: u64, bytes: u64, rtt_us: u32) -> RunEvent {
    let sends = side == Side::Sender;
    event(Payload::FlowSample(FlowSample {
        at_ns: if sends { SRC_T0_NS } else { DST_T0_NS } + ms * MS,
        flow_id: flow_id.to_owned(),
        group: flow_id.split('/').next().unwrap().to_owned(),
        side: side.into(),
        role: Role::Data.into(),
        cc: if sends { "cubic".to_owned() } else { String::new() },
        bytes_acked: sends.then_some(bytes),
        bytes_received: (!sends).then_some(bytes),
        rtt_us: sends.then_some(rtt_us),
        snd_cwnd_pkts: sends.then_some(50),
        unacked_pkts: sends.then_some(40),
        sacked_pkts: sends.then_some(5),
        lost_pkts: sends.then_some(3),
        retrans_pkts: sends.then_some(2),
        total_retrans_pkts: sends.then_some(9),
        delivered_ce_pkts: sends.then_some(4),
        ..FlowSample::default()
    }))
}

fn queue(ms: u64, kind: &str, parent: &str, backlog_bytes: u64, drops_pkts: u64) -> RunEvent {
    event(Payload::QdiscSample(QdiscSample {
        at_ns: SRC_T0_NS + ms * MS,
        link: "bottleneck".to_owned(),
        kind: kind.to_owned(),
        parent: parent.to_owned(),
        backlog_bytes,
        drops_pkts,
        ecn_mark_pkts: (kind == "pie").then_some(drops_pkts * 2),
        rate_bps: (kind == "htb class").then_some(8_000_000),
        ..QdiscSample::default()
    }))
}

fn view(state: &mut LiveState) -> TrialView {
    state.update(None).0.trial.unwrap()
}

#[test]
fn a_flow_has_the_receivers_rate_and_the_senders_window() {
    let mut state = running(24, 1);
    for ms in (0..=1000).step_by(100) {
        // 8 Mbit/s acknowledged, 4 Mbit/s received.
        state.record(1, "src", &sample("a/0", Side::Sender, ms, ms * 1000, 20_000 + ms as u32));
        state.record(1, "dst", &sample("a/0", Side::Receiver, ms, ms * 500, 0));
    }
    let view = view(&mut state);
    let flow = &view.flows["a/0"];
    assert_eq!((&flow.group[..], &flow.cc[..], flow.idle_s), ("a", "cubic", 0.0));
    assert_eq!(flow.rate_bps.now, Some(4e6));
    assert!(
        flow.rate_bps.bins.iter().all(|Bin(_, min, mean, max)| [*min, *mean, *max] == [4e6; 3])
    );
    assert_eq!(flow.rtt_us.bins[3], Bin(3, 20_300.0, 20_300.0, 20_300.0));
    assert_eq!((flow.cwnd_pkts.now, flow.in_flight_pkts.now), (Some(50.0), Some(34.0)));
    assert_eq!((view.elapsed_s, view.bin_s), (1.0, 0.1));
    assert_eq!((flow.retrans_pkts, flow.marks_pkts), (9, Some(4)), "the sender's counters");
    assert_eq!((view.phase.as_deref(), view.next_phase.as_deref()), (Some("one"), Some("two")));
}

#[test]
fn a_bin_keeps_the_extremes_and_weights_rates_by_time() {
    let mut state = running(24_000, 1);
    let mut bytes = 0;
    for (ms, rate_bytes_per_ms, rtt_us) in [(0, 0, 10), (10, 100, 90), (90, 20, 20), (100, 300, 30)]
    {
        let before = if ms == 0 { 0 } else { [0, 10, 90].into_iter().rfind(|t| *t < ms).unwrap() };
        bytes += (ms - before) * rate_bytes_per_ms;
        state.record(1, "src", &sample("a/0", Side::Sender, ms, bytes, rtt_us));
    }
    let view = view(&mut state);
    assert_eq!(view.bin_s, 100.0, "240 bins of a trial of more than 6 hours");
    let flow = &view.flows["a/0"];
    assert_eq!(flow.rtt_us.bins, [Bin(0, 10.0, 37.5, 90.0)]);
    // 5600 bytes in 100 ms. The minimum and maximum keep the slowest and the fastest interval.
    assert_eq!(flow.rate_bps.bins, [Bin(0, 160_000.0, 448_000.0, 2_400_000.0)]);
}

/// Records a flow every `every_ms` until `end_ms`: 8 Mbit/s, and 80 Mbit/s from `step_ms` on. Its RTT changes with the rate.
fn record_step(state: &mut LiveState, every_ms: u64, step_ms: u64, end_ms: u64) {
    for ms in (0..=end_ms).step_by(every_ms as usize) {
        let bytes = ms * 1000 + ms.saturating_sub(step_ms) * 9000;
        let rtt_us = if ms > step_ms { 90_000 } else { 20_000 };
        state.record(1, "src", &sample("a/0", Side::Sender, ms, bytes, rtt_us));
    }
}

#[test]
fn now_is_the_last_fifth_of_a_second_in_a_trial_of_any_length() {
    for (length_s, flows) in [(10, 1), (180, 1), (3600, 1), (60, 4096), (86_400, 1)] {
        for every_ms in [10_u64, 50, 100, 200, 1000] {
            let mut state = running(length_s, flows);
            record_step(&mut state, every_ms, 2000, 2000 + every_ms.max(200));
            let view = view(&mut state);
            let flow = &view.flows["a/0"];
            let now = (flow.rate_bps.now, flow.rtt_us.now, flow.cwnd_pkts.now);
            let expected = (Some(80e6), Some(90_000.0), Some(50.0));
            assert_eq!(now, expected, "{length_s} s, {flows} flows, every {every_ms} ms");
        }
    }
    // The bin has both rates.
    let mut state = running(3600, 1);
    record_step(&mut state, 100, 2000, 4000);
    let view = view(&mut state);
    let Bin(_, min, mean, max) = view.flows["a/0"].rate_bps.bins[0];
    assert_eq!((view.bin_s, min, max), (15.0, 8e6, 80e6));
    assert!((mean - 44e6).abs() < 1.0, "{mean}");
}

#[test]
fn now_ignores_late_rows_and_keeps_the_last_value() {
    let mut state = running(3600, 1);
    record_step(&mut state, 100, 2000, 2500);
    state.record(1, "src", &sample("a/0", Side::Sender, 1950, 0, 5));
    state.tick(1, 60_000 * MS, Duration::ZERO);
    assert_eq!(view(&mut state).flows["a/0"].rtt_us.now, Some(90_000.0));
}

#[test]
fn bins_end_where_the_trial_does() {
    // 100 s in 240 bins would not give whole milliseconds.
    let mut state = running(100, 1);
    state.record(1, "src", &sample("a/0", Side::Sender, 99_999, 0, 20_000));
    let view = view(&mut state);
    assert_eq!(view.bin_s, 0.417);
    let Bin(newest, ..) = view.flows["a/0"].rtt_us.bins[0];
    assert_eq!(newest, 239, "99.999 s of bins of 0.417 s");
}

#[test]
fn links_count_as_the_summary_does() {
    let mut state = running(24, 1);
    for (ms, drops) in [(0, 5), (100, 7), (200, 11)] {
        state.record(1, "src", &queue(ms, "htb", "root", 9000, 1));
        state.record(1, "src", &queue(ms, "htb class", "root", 0, 0));
        state.record(1, "src", &queue(ms, "pie", "1:1", 3000 + 10 * ms, drops));
        state.record(1, "src", &queue(ms, "netem", "1:2", 60_000, 2));
    }
    let link = view(&mut state).links["bottleneck"].clone();
    // Packets in the netem wait for their delay. The last instant may not be complete.
    assert_eq!(link.backlog_bytes.bins, [Bin(0, 3e3, 3e3, 3e3), Bin(1, 4e3, 4e3, 4e3)]);
    assert_eq!((link.drops_pkts, link.marks_pkts, link.rate_bps), (2, Some(4), Some(8_000_000)));
    state.end_trial(1, "ok", vec![]);
    let link = view(&mut state).links["bottleneck"].clone();
    assert_eq!(
        (link.backlog_bytes.now, link.drops_pkts, link.marks_pkts),
        (Some(4.5e3), 6, Some(12)),
        "the mean of the last two instants, which are 0.1 s apart"
    );
}

#[test]
fn a_subscriber_gets_what_has_changed_since_its_last_update() {
    let mut state = running(24, 2);
    let record = |state: &mut LiveState, flow: &str, ms: u64| {
        state.record(1, "src", &sample(flow, Side::Sender, ms, ms * 1000, 20_000));
    };
    let bins = |update: &Update, flow: &str| -> Vec<u32> {
        let bins = &update.trial.as_ref().unwrap().flows[flow].rtt_us.bins;
        bins.iter().map(|Bin(index, ..)| *index).collect()
    };
    (0..5).for_each(|nth| record(&mut state, "a/0", nth * 100));
    record(&mut state, "b/0", 0);
    let (first, cursor) = state.update(None);
    assert_eq!((bins(&first, "a/0"), bins(&first, "b/0")), (vec![0, 1, 2, 3, 4], vec![0]));
    let (idle, cursor) = state.update(Some(cursor));
    assert_eq!(bins(&idle, "a/0"), [0; 0]);
    assert_eq!(idle.trial.as_ref().unwrap().flows["a/0"].rtt_us.now, Some(20_000.0));
    record(&mut state, "a/0", 450);
    // A late row: its bin changes again.
    record(&mut state, "a/0", 130);
    // Another subscriber starts with everything, and takes nothing away from the first one.
    let (other, _) = state.update(None);
    assert_eq!(bins(&other, "a/0"), [0, 1, 2, 3, 4]);
    record(&mut state, "a/0", 700);
    let (late, cursor) = state.update(Some(cursor));
    assert_eq!((bins(&late, "a/0"), bins(&late, "b/0")), (vec![1, 4, 7], vec![]));
    // The next trial is sent from its beginning.
    state.end_trial(1, "ok", vec![]);
    state.start_trial(facts(2, 24, 1), Some("trial 3".to_owned()));
    state.clocks(2, clocks());
    state.record(2, "src", &sample("a/0", Side::Sender, 0, 0, 20_000));
    let (next, _) = state.update(Some(cursor));
    assert_eq!(bins(&next, "a/0"), [0]);
    assert_eq!((next.trial.unwrap().number, next.run.next.as_deref()), (2, Some("trial 3")));
}

#[test]
fn a_repeated_trial_starts_anew() {
    let mut state = running(24, 1);
    for ms in [0, 100, 23_000] {
        state.record(1, "src", &sample("a/0", Side::Sender, ms, ms, 20_000));
    }
    let (first, cursor) = state.update(None);
    let first = first.trial.unwrap();
    assert_eq!((first.attempt, first.phase.as_deref()), (1, Some("two")));
    state.suspend_trial(1);
    let (waiting, _) = state.update(Some(cursor));
    assert!(waiting.run.waits_for_nodes && waiting.run.running.is_empty());
    assert!(waiting.trial.is_none());
    assert_eq!(state.repeat_trial(1), 2);
    state.clocks(1, clocks());
    state.record(1, "src", &sample("a/0", Side::Sender, 500, 500, 30_000));
    // A subscriber that got no update meanwhile gets everything, too.
    let (again, _) = state.update(Some(cursor));
    assert!(!again.run.waits_for_nodes);
    let again = again.trial.unwrap();
    assert_eq!((again.number, again.attempt, again.elapsed_s), (1, 2, 0.5));
    assert_eq!(again.phase.as_deref(), Some("one"));
    assert_eq!(again.flows["a/0"].rtt_us.bins, [Bin(5, 30_000.0, 30_000.0, 30_000.0)]);
}

#[test]
fn a_trial_whose_node_does_not_come_back_has_ended() {
    let mut state = running(24, 1);
    state.suspend_trial(1);
    state.end_trial(1, "failed", vec!["node dst was lost".to_owned()]);
    let (update, _) = state.update(None);
    assert!(!update.run.waits_for_nodes);
    assert_eq!(update.run.ended["failed"], 1);
    assert!(update.trial.is_some_and(|trial| trial.has_ended && trial.attempt == 1));
}

#[test]
fn a_trial_that_ran_beside_another_is_sent_whole_when_it_is_shown() {
    let mut state = running(24, 1);
    state.start_trial(facts(2, 24, 1), None);
    state.clocks(2, clocks());
    state.record(2, "src", &sample("a/0", Side::Sender, 0, 0, 20_000));
    let (shown, cursor) = state.update(None);
    assert_eq!((shown.trial.unwrap().number, shown.run.running.len()), (1, 2));
    state.record(2, "src", &sample("a/0", Side::Sender, 100, 1000, 20_000));
    state.end_trial(1, "degraded", vec!["late".to_owned()]);
    let trial = state.update(Some(cursor)).0.trial.unwrap();
    assert_eq!((trial.number, trial.flows["a/0"].rtt_us.bins.len()), (2, 2));
}

#[test]
fn memory_does_not_grow_with_time_or_flows() {
    for (length_s, flows) in [(10, 1), (86_400, 100), (600, 4096)] {
        let mut state = running(length_s, flows);
        // Twenty times per second until one and a half times the planned end, as during a drain that takes too long.
        let steps = 200;
        for step in 0..steps {
            let ms = length_s * 1500 * step / steps;
            state.record(1, "src", &sample("a/0", Side::Sender, ms, step, 20_000));
        }
        let flow = view(&mut state).flows["a/0"].clone();
        let newest = flow.rtt_us.bins.last().map(|Bin(index, ..)| u64::from(*index)).unwrap();
        assert!(
            newest <= 240 && newest * flows <= 120_000 + 8 * flows,
            "{newest} bins of {flows} flows"
        );
    }
}

#[test]
fn what_the_view_cannot_hold_is_counted() {
    let mut state = running(10, 1);
    for nth in 0..4100 {
        let flow = format!("many/{nth}");
        state.record(1, "src", &sample(&flow, Side::Sender, 100, 0, 1));
    }
    let early = HostSample { at_ns: SRC_T0_NS - 1, ..HostSample::default() };
    state.record(1, "src", &event(Payload::HostSample(early)));
    state.record(1, "unknown", &sample("many/0", Side::Sender, 100, 0, 1));
    let view = view(&mut state);
    assert_eq!((view.flows.len(), view.rows_left_out, view.rows_outside), (4096, 4, 2));
    assert!(view.hosts.is_empty());
    (0..40).for_each(|nth| state.message(&format!("message {nth}")));
    let run = state.update(None).0.run;
    assert_eq!(
        (run.messages.len(), run.messages_left_out, &run.messages[0][..]),
        (30, 10, "message 10")
    );
}

#[test]
fn machines_probes_and_the_verdict_are_shown() {
    let mut state = running(24, 1);
    for (nth, busy) in [(1, 90.0), (2, 30.0)] {
        let host = HostSample {
            at_ns: SRC_T0_NS + nth * 500 * MS,
            cpu_idle_pct: 75.0,
            cpu_max_busy_pct: busy,
            softnet_dropped: 2,
            ..HostSample::default()
        };
        state.record(1, "src", &event(Payload::HostSample(host)));
        let probe = Probe {
            at_ns: SRC_T0_NS + nth * 500 * MS,
            probe_id: "rtt".to_owned(),
            rtt_us: (nth == 1).then_some(21_000.0),
            lost: nth == 2,
            ..Probe::default()
        };
        state.record(1, "src", &event(Payload::Probe(probe)));
    }
    state.judge(1, "degraded", vec!["src: dropped".to_owned()]);
    state.tick(1, 13_000 * MS, Duration::from_secs(70));
    let (update, _) = state.update(None);
    let view = update.trial.unwrap();
    let host = &view.hosts["src"];
    let load = [host.busy_pct, host.max_busy_pct, host.peak_busy_pct];
    assert_eq!((load, host.softnet_dropped), ([25.0, 30.0, 90.0], 4));
    let probe = &view.probes["rtt"];
    assert_eq!((probe.sent, probe.lost, probe.rtt_us.now), (2, 1, Some(21_000.0)));
    assert_eq!(
        (&view.status[..], &view.reasons[..]),
        ("degraded", &["src: dropped".to_owned()][..])
    );
    assert_eq!(
        (view.phase.as_deref(), view.next_phase, view.has_ended),
        (Some("two"), None, false)
    );
    assert_eq!(update.run.left_s, Some(70));
}

#[test]
fn an_ended_run_keeps_its_last_trial() {
    let mut state = running(24, 1);
    state.describe("plan", "results/1", 2);
    state.end_trial(1, "failed", vec!["src: lost".to_owned()]);
    state.end("complete");
    let (Update { run, trial }, cursor) = state.update(None);
    assert_eq!(
        (run.status.as_deref(), run.left_s, run.ended["failed"]),
        (Some("complete"), Some(0), 1)
    );
    assert_eq!((&run.last[0].status[..], run.running.len(), run.trials), ("failed", 0, 2));
    assert!(trial.is_some_and(|trial| trial.has_ended && trial.status == "failed"));
    assert_ne!(cursor, Cursor::default());
    // Rows after the end of a trial are ignored.
    state.record(1, "src", &sample("a/0", Side::Sender, 0, 0, 1));
    assert!(view(&mut state).flows.is_empty());
}

#[test]
fn updates_survive_the_wire() {
    let mut state = running(24, 1);
    state.record(1, "src", &sample("a/0", Side::Sender, 0, 0, 20_000));
    state.record(1, "src", &queue(0, "pie", "root", 1, 1));
    let (update, _) = state.update(None);
    let line = serde_json::to_string(&update).unwrap();
    assert!(!line.contains('\n'));
    assert_eq!(serde_json::from_str::<Update>(&line).unwrap(), update);
}
