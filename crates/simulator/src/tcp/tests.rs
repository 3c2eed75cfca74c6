//! Sender and receiver together on an ideal path, in the manner of packetdrill scripts.

use std::collections::BTreeMap;

use ccbench_proto::plan::Ecn;

use super::*;
use crate::congestion_control::CongestionControl;
use crate::packet::{AckSegment, MSS_BYTES, Segment, SeqRange};

const MS: u64 = 1_000_000;
const RTT_US: u32 = 20_000;
const MSS: u64 = MSS_BYTES as u64;
const ALL: u64 = u64::MAX / 2;

fn sender(cc: &str, ecn: EcnMode) -> Sender {
    let config = SenderConfig { ecn, sndbuf_bytes: ALL, slow_start_after_idle: true, seed: 1 };
    let cc = CongestionControl::new(cc, &BTreeMap::new()).unwrap();
    Sender::new(config, cc, 0, RTT_US, ALL)
}

impl Sender {
    /// An acknowledgement arrives, and the socket sends.
    fn on_ack_and_send(&mut self, now_ns: u64, ack: &AckSegment) {
        self.on_ack(now_ns, ack);
        self.write_xmit(now_ns);
    }
}

/// The first bytes of what was sent, in segments, and whether each is a retransmission.
fn sent(sender: &mut Sender) -> Vec<(u64, bool)> {
    sender.outbox.drain(..).map(|(segment, again)| (segment.seq / MSS, again)).collect()
}

fn ack(up_to: u64) -> AckSegment {
    AckSegment { ack_seq: up_to * MSS, window_end: ALL, ..AckSegment::default() }
}

fn sacked(up_to: u64, blocks: &[(u64, u64)]) -> AckSegment {
    let mut ack = ack(up_to);
    for (slot, (begin, end)) in ack.blocks.iter_mut().zip(blocks) {
        *slot = SeqRange { start_seq: begin * MSS, end_seq: end * MSS };
    }
    ack.block_count = blocks.len() as u8;
    ack
}

#[test]
fn slow_start_doubles_the_window_each_round() {
    let mut sender = sender("reno", EcnMode::Off);
    sender.write(0, ALL);
    assert_eq!(sent(&mut sender).len(), 10);
    for two in 1..=5 {
        sender.on_ack_and_send(20 * MS, &ack(2 * two));
    }
    assert_eq!(sender.info(20 * MS).snd_cwnd, 20);
    assert_eq!(sent(&mut sender).len(), 20);
}

#[test]
fn three_sacked_segments_start_recovery() {
    let mut sender = sender("reno", EcnMode::Off);
    sender.write(0, ALL);
    sent(&mut sender);
    // The first segment is lost. Without reordering before, three segments after it are enough.
    sender.on_ack_and_send(20 * MS, &sacked(0, &[(1, 2)]));
    sender.on_ack_and_send(20 * MS, &sacked(0, &[(1, 3)]));
    assert!(sent(&mut sender).iter().all(|(_, again)| !again));
    sender.on_ack_and_send(20 * MS, &sacked(0, &[(1, 4)]));
    assert_eq!(sent(&mut sender)[0], (0, true));
    let info = sender.info(20 * MS);
    assert_eq!((info.ca_state, info.snd_ssthresh, info.retrans_out), (3, Some(5), 1));
    // PRR brings the window down to ssthresh; the hole's acknowledgement ends recovery.
    for (at, end) in (5..=10).enumerate() {
        sender.on_ack_and_send((21 + at as u64) * MS, &sacked(0, &[(1, end)]));
    }
    let high = sender.snd_nxt / MSS;
    sender.on_ack_and_send(41 * MS, &ack(high));
    let info = sender.info(41 * MS);
    assert_eq!(info.ca_state, 0);
    assert!((5..=7).contains(&info.snd_cwnd), "{}", info.snd_cwnd);
}

#[test]
fn a_loss_is_not_taken_for_reordering() {
    let mut sender = sender("reno", EcnMode::Off);
    sender.write(0, ALL);
    sent(&mut sender);
    // Segment 0 waited for a delayed acknowledgement, 1 is lost, 2 arrives; then two blocks, the later one first.
    sender.on_ack_and_send(20 * MS, &sacked(1, &[(2, 3)]));
    sender.on_ack_and_send(20 * MS, &sacked(1, &[(6, 7), (4, 5), (2, 3)]));
    assert_eq!(sender.counters.reord_seen, 0);
    // Segment 3 was behind 4 and 6.
    sender.on_ack_and_send(20 * MS, &sacked(1, &[(2, 5), (6, 7)]));
    assert_eq!(sender.counters.reord_seen, 1);
}

#[test]
fn a_lost_tail_is_probed_and_then_repaired() {
    let mut sender = sender("reno", EcnMode::Off);
    sender.write(0, 4 * MSS);
    assert_eq!(sent(&mut sender).len(), 4);
    sender.on_ack_and_send(20 * MS, &ack(2));
    // Two RTTs later the last segment is sent again as a probe.
    let at_ns = sender.timer_ns().unwrap();
    assert!((58 * MS..=64 * MS).contains(&at_ns), "{at_ns}");
    sender.on_timer(at_ns);
    assert_eq!(sent(&mut sender), [(3, true)]);
    // The probe's selective acknowledgement shows that segment 2 is lost.
    sender.on_ack_and_send(at_ns + 20 * MS, &sacked(2, &[(3, 4)]));
    assert_eq!(sent(&mut sender), [(2, true)]);
}

#[test]
fn a_timeout_shrinks_the_window_and_backs_off() {
    let mut sender = sender("reno", EcnMode::Off);
    sender.write(0, 2 * MSS);
    sent(&mut sender);
    let probe_ns = sender.timer_ns().unwrap();
    sender.on_timer(probe_ns);
    assert_eq!(sent(&mut sender), [(1, true)]);
    let rto_ns = sender.timer_ns().unwrap();
    let timeout_ns = sender.rtt.rto_us() * 1000;
    assert_eq!(rto_ns, wheel_ns(probe_ns, timeout_ns), "a full timeout after the probe");
    sender.on_timer(rto_ns);
    assert_eq!(sent(&mut sender)[0], (0, true));
    let info = sender.info(rto_ns);
    assert_eq!((info.ca_state, info.snd_cwnd, info.backoff), (4, 1, 1));
    assert_eq!(sender.timer_ns(), Some(wheel_ns(rto_ns, 2 * timeout_ns)));
}

#[test]
fn timers_fire_at_the_ends_of_buckets() {
    let ends_ms = |now_us: u64, after_ms: u64| wheel_ns(now_us * 1000, after_ms * MS) / MS;
    assert_eq!([0, 1, 40, 62].map(|after_ms| ends_ms(0, after_ms)), [1, 2, 41, 63]);
    assert_eq!(ends_ms(999, 1), 2, "whole ticks from the beginning of this one");
    assert_eq!([63, 220, 503].map(|after_ms| ends_ms(0, after_ms)), [64, 224, 504], "8 ms");
    assert_eq!([504, 1000].map(|after_ms| ends_ms(0, after_ms)), [512, 1024], "64 ms");
}

#[test]
fn a_spurious_timeout_is_undone() {
    let mut sender = sender("reno", EcnMode::Off);
    sender.write(0, ALL);
    sent(&mut sender);
    let probe_ns = sender.timer_ns().unwrap();
    sender.on_timer(probe_ns);
    let rto_ns = sender.timer_ns().unwrap();
    sender.on_timer(rto_ns);
    assert_eq!(sender.info(rto_ns).ca_state, 4);
    sent(&mut sender);
    // The originals arrive after all: their timestamps are older than the retransmission.
    let late = AckSegment { tsecr_ns: 1, ..ack(2) };
    sender.on_ack_and_send(rto_ns + MS, &late);
    let info = sender.info(rto_ns + MS);
    assert_eq!(info.ca_state, 0);
    assert!(info.snd_cwnd >= 10, "{}", info.snd_cwnd);
}

#[test]
fn ece_reduces_once_per_window() {
    let mut sender = sender("reno", EcnMode::Classic);
    sender.write(0, ALL);
    sent(&mut sender);
    sender.on_ack_and_send(20 * MS, &AckSegment { ece: true, ..ack(2) });
    assert_eq!(sender.info(20 * MS).ca_state, 2);
    sender.on_ack_and_send(21 * MS, &AckSegment { ece: true, ..ack(4) });
    assert_eq!(sender.info(21 * MS).snd_ssthresh, Some(5));
}

fn segment(at: u64) -> Segment {
    Segment { seq: at * MSS, bytes: MSS_BYTES, tsval_ns: 1, tsecr_ns: 0, cwr: false }
}

#[test]
fn every_second_segment_is_acknowledged() {
    let mut receiver = Receiver::new(EcnMode::Off, 1 << 22, 0, 20 * MS);
    let mut acks = |from: u64, to: u64, at_ns: u64| {
        (from..to).filter_map(|at| receiver.on_segment(at_ns, &segment(at), Ecn::NotEct)).count()
    };
    assert_eq!(acks(0, 16, MS), 16, "quick acknowledgements at the beginning");
    assert_eq!(acks(16, 36, MS), 10);
    assert_eq!(acks(36, 37, MS), 0);
    assert_eq!(receiver.timer_ns(), Some(42 * MS));
    assert_eq!(receiver.on_timer(42 * MS).unwrap().ack_seq, 37 * MSS);
}

#[test]
fn gaps_are_reported_most_recent_first() {
    let mut receiver = Receiver::new(EcnMode::Off, 1 << 22, 0, 20 * MS);
    let mut last = |at: u64| receiver.on_segment(MS, &segment(at), Ecn::NotEct).unwrap();
    last(0);
    last(2);
    let ack = last(5);
    let blocks: Vec<_> =
        ack.sacked().iter().map(|r| (r.start_seq / MSS, r.end_seq / MSS)).collect();
    assert_eq!((ack.ack_seq / MSS, blocks), (1, vec![(5, 6), (2, 3)]));
    let ack = last(2);
    assert!(ack.is_dsack && ack.sacked()[0].start_seq == 2 * MSS);
    let ack = last(1);
    assert_eq!((ack.ack_seq / MSS, ack.sacked().len()), (3, 1));
}

#[test]
fn a_mark_is_echoed_until_cwr_or_counted() {
    let mut receiver = Receiver::new(EcnMode::Classic, 1 << 22, 0, 20 * MS);
    let mut ece = |at: u64, field: Ecn, cwr: bool| {
        let segment = Segment { cwr, ..segment(at) };
        receiver.on_segment(MS, &segment, field).unwrap().ece
    };
    assert!(!ece(0, Ecn::Ect0, false) && ece(1, Ecn::Ce, false) && ece(2, Ecn::Ect0, false));
    assert!(!ece(3, Ecn::Ect0, true));
    let mut receiver = Receiver::new(EcnMode::Accurate { ect: Ecn::Ect1 }, 1 << 22, 0, 20 * MS);
    receiver.on_segment(MS, &segment(0), Ecn::Ce);
    assert_eq!(receiver.on_segment(MS, &segment(1), Ecn::Ce).unwrap().ce_pkts, 2);
}

#[test]
fn an_overtaken_acknowledgement_brings_only_its_blocks() {
    let mut sender = sender("reno", EcnMode::Off);
    sender.write(0, ALL);
    sent(&mut sender);
    sender.on_ack_and_send(20 * MS, &ack(4));
    let before = sender.info(20 * MS);
    sender.on_ack_and_send(21 * MS, &AckSegment { window_end: 0, ..sacked(2, &[(6, 7)]) });
    let after = sender.info(21 * MS);
    assert_eq!((after.sacked_out, after.delivered), (1, before.delivered + 1));
    assert_eq!(
        (after.snd_cwnd, after.snd_wnd, after.ca_state),
        (before.snd_cwnd, before.snd_wnd, 1)
    );
}

#[test]
fn a_part_of_a_segment_waits_for_the_last_one() {
    let mut sender = sender("reno", EcnMode::Off);
    sender.write(0, MSS / 2);
    assert_eq!(sent(&mut sender).len(), 1);
    sender.write(MS, MSS);
    assert_eq!(sent(&mut sender), [], "Nagle: the first part is on the way");
    sender.write(2 * MS, 2 * MSS);
    assert_eq!(sender.outbox[0].0.bytes, MSS_BYTES, "a full segment does not wait");
    sent(&mut sender);
    sender.on_ack_and_send(
        20 * MS,
        &AckSegment { ack_seq: MSS / 2, window_end: ALL, ..AckSegment::default() },
    );
    assert_eq!(sender.snd_nxt, 2 * MSS);
}

#[test]
fn reordering_is_measured_in_packets() {
    let mut sender = sender("reno", EcnMode::Off);
    sender.write(0, ALL);
    sent(&mut sender);
    sender.on_ack_and_send(20 * MS, &sacked(1, &[(2, 3)]));
    assert_eq!(sender.reordering, 3);
    sender.on_ack_and_send(20 * MS, &sacked(1, &[(8, 9), (2, 3)]));
    // Segment 3 was overtaken by 8.
    sender.on_ack_and_send(20 * MS, &sacked(1, &[(2, 4), (8, 9)]));
    assert_eq!((sender.reordering, sender.counters.reord_seen), (6, 1));
}

#[test]
fn an_early_retransmission_is_undone_while_recovery_lasts() {
    let mut sender = sender("reno", EcnMode::Off);
    sender.write(0, ALL);
    sent(&mut sender);
    sender.on_ack_and_send(20 * MS, &sacked(0, &[(3, 9)]));
    let info = sender.info(20 * MS);
    assert_eq!((info.ca_state, info.snd_ssthresh), (3, Some(5)));
    assert!(sent(&mut sender).contains(&(0, true)));
    // The originals arrive: their acknowledgements carry timestamps before the retransmissions.
    let high = sender.snd_nxt / MSS;
    sender.on_ack_and_send(24 * MS, &AckSegment { tsecr_ns: MS, ..ack(9) });
    sender.on_ack_and_send(25 * MS, &AckSegment { tsecr_ns: MS, ..ack(high) });
    let info = sender.info(25 * MS);
    assert_eq!(info.ca_state, 0);
    assert!(info.snd_cwnd >= 10 && info.snd_ssthresh.is_none(), "{info:?}");
}

#[test]
fn a_lone_runt_may_be_a_delayed_acknowledgement() {
    let mut sender = sender("reno", EcnMode::Off);
    sender.write(0, MSS / 2);
    let acks = |up_to| AckSegment { ack_seq: up_to, window_end: ALL, ..AckSegment::default() };
    sender.on_ack_and_send(60 * MS, &acks(MSS / 2));
    assert_eq!(sender.rtt.min_us(), RTT_US);
    assert!(sender.rtt.smoothed_us() > RTT_US, "the smoothed RTT has it");
}

#[test]
fn delayed_acknowledgements_follow_the_distance_of_segments() {
    let mut receiver = Receiver::new(EcnMode::Off, 1 << 22, 0, 300 * MS);
    let mut at_ns = MS;
    for number in 0..16 {
        assert!(receiver.on_segment(at_ns, &segment(number), Ecn::NotEct).is_some());
    }
    // Segments every 100 ms come after the delay, which grows until it covers them.
    let mut delayed = 0;
    for number in 16..24 {
        at_ns += 100 * MS;
        if receiver.on_segment(at_ns, &segment(number), Ecn::NotEct).is_none() {
            let due_ns = receiver.timer_ns().unwrap();
            if due_ns < at_ns + 100 * MS {
                delayed += 1;
                assert!(receiver.on_timer(due_ns).is_some());
            }
        }
    }
    assert!((1..=3).contains(&delayed), "{delayed}");
}
