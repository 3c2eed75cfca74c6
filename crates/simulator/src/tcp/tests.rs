//! Tests sender and receiver together on an ideal path, in the manner of packetdrill scripts.

use std::collections::BTreeMap;

use ccbench_proto::plan::Ecn;

use super::*;
use crate::congestion_control::CongestionControl;
use crate::packet::{AckSegment, MSS_BYTES, Segment, SeqRange};

mod receive_buffer;
mod recovery;
mod send_buffer;

const MS: u64 = 1_000_000;
const RTT_US: u32 = 20_000;
const MSS: u64 = MSS_BYTES as u64;
const ALL: u64 = u64::MAX / 2;
const SNDBUF: SocketBuffer = SocketBuffer { default_bytes: 16_384, max_bytes: 4 << 20 };
const RCVBUF: SocketBuffer = SocketBuffer { default_bytes: 131_072, max_bytes: 4 << 20 };

fn sender(cc: &str, ecn: EcnMode) -> Sender {
    sender_with(cc, ecn, SNDBUF, TCP_INIT_CWND)
}

/// Returns a sender on a node with segmentation offloads.
fn sender_with(cc: &str, ecn: EcnMode, sndbuf: SocketBuffer, init_cwnd: u32) -> Sender {
    established(cc, config(ecn, sndbuf, 65_535), init_cwnd)
}

fn sender_without_offloads(cc: &str, sndbuf: SocketBuffer) -> Sender {
    established(cc, config(EcnMode::Off, sndbuf, 1), TCP_INIT_CWND)
}

fn config(ecn: EcnMode, sndbuf: SocketBuffer, gso_max_segs: u32) -> SenderConfig {
    let send_bytes = 128 << 10;
    SenderConfig { ecn, sndbuf, send_bytes, slow_start_after_idle: true, gso_max_segs, seed: 1 }
}

fn established(cc: &str, config: SenderConfig, init_cwnd: u32) -> Sender {
    let cc = CongestionControl::new(cc, &BTreeMap::new()).unwrap();
    let rtt_ns = u64::from(RTT_US) * 1000;
    Sender::new(config, cc, 0, Established { rtt_ns, ts_recent_ns: 0, init_cwnd }, ALL)
}

/// Returns a sender after its first retransmission timeout, which follows the tail loss probe, and the time of the timeout.
fn timed_out_sender() -> (Sender, u64) {
    let mut sender = sender("reno", EcnMode::Off);
    sender.write(0, ALL);
    let probe_ns = sender.timer_ns().unwrap();
    sender.on_timer(probe_ns);
    let rto_ns = sender.timer_ns().unwrap();
    sender.on_timer(rto_ns);
    (sender, rto_ns)
}

impl Sender {
    /// Processes an acknowledgement, after which the socket sends.
    fn on_ack_and_send(&mut self, now_ns: u64, ack: &AckSegment) {
        self.on_ack(now_ns, ack);
        self.data_snd_check(now_ns);
    }
}

/// Returns the first byte of each segment sent, and whether the segment is a retransmission.
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
    // The first segment is lost. Without earlier reordering, three segments after it are enough.
    sender.on_ack_and_send(20 * MS, &sacked(0, &[(1, 2)]));
    sender.on_ack_and_send(20 * MS, &sacked(0, &[(1, 3)]));
    assert!(sent(&mut sender).iter().all(|(_, again)| !again));
    sender.on_ack_and_send(20 * MS, &sacked(0, &[(1, 4)]));
    assert_eq!(sent(&mut sender)[0], (0, true));
    let info = sender.info(20 * MS);
    assert_eq!((info.ca_state, info.snd_ssthresh, info.retrans_out), (3, Some(5), 1));
    // PRR reduces the window to ssthresh. The acknowledgement of the hole ends recovery.
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
    // Segment 0 waited for a delayed acknowledgement, 1 is lost, 2 arrives. Then two blocks, the later one first.
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
    // Two RTTs later, the last segment is sent again as a probe.
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
    Segment { seq: at * MSS, bytes: MSS_BYTES, tsval_ns: 1, tsecr_ns: 0, cwr: false, psh: false }
}

#[test]
fn every_second_segment_is_acknowledged() {
    let mut receiver = Receiver::new(EcnMode::Off, RCVBUF, 0, 20 * MS);
    let mut acks = |from: u64, to: u64, at_ns: u64| {
        (from..to).filter_map(|at| receiver.on_segment(at_ns, &segment(at), Ecn::NotEct)).count()
    };
    // 6 raise the window, and 16 more belong to the beginning.
    assert_eq!(acks(0, 22, MS), 22, "quick acknowledgements");
    assert_eq!(acks(22, 42, MS), 10);
    assert_eq!(acks(42, 43, MS), 0);
    assert_eq!(receiver.timer_ns(), Some(42 * MS));
    assert_eq!(receiver.on_timer(42 * MS).unwrap().ack_seq, 43 * MSS);
}

/// Returns a receiver without quick acknowledgements that has acknowledged everything, and the number of the next segment.
fn settled_receiver() -> (Receiver, u64) {
    let mut receiver = Receiver::new(EcnMode::Off, RCVBUF, 0, 20 * MS);
    let mut is_acked = |at: u64| receiver.on_segment(MS, &segment(at), Ecn::NotEct).is_some();
    let first_delayed = (0..100).find(|at| !is_acked(*at)).unwrap();
    assert!(is_acked(first_delayed + 1));
    (receiver, first_delayed + 2)
}

#[test]
fn each_range_is_announced_among_the_first_two() {
    let (mut receiver, next) = settled_receiver();
    let mut blocks = |at: u64| {
        let ack = receiver.on_segment(2 * MS, &segment(next + at), Ecn::NotEct)?;
        let blocks = ack.blocks[..usize::from(ack.block_count)].iter();
        Some(blocks.map(|r| (r.start_seq / MSS - next, r.end_seq / MSS - next)).collect::<Vec<_>>())
    };
    // One raises the window, and three more are acknowledged at once. Then acknowledgements are compressed, because the only gap is known.
    for end in 2..=5 {
        assert_eq!(blocks(end - 1).unwrap(), [(1, end)]);
    }
    assert_eq!([5, 7, 8].map(&mut blocks), [const { None }; 3], "a second range may wait");
    // A third gap appears: the waiting acknowledgement is sent first, and the segment of the new range waits.
    assert_eq!(blocks(10).unwrap(), [(7, 9), (1, 6)]);
    assert_eq!(blocks(12), None, "nothing waits, so nothing is sent");
    assert_eq!(blocks(14).unwrap(), [(12, 13), (10, 11), (7, 9)]);
    // The range in third place grows.
    assert_eq!([15, 16].map(&mut blocks), [None, None]);
    assert_eq!(blocks(9).unwrap(), [(14, 17), (12, 13), (10, 11)]);
}

#[test]
fn a_segment_with_psh_is_acknowledged_when_it_is_read() {
    let (mut receiver, next) = settled_receiver();
    let mut ack = |at: u64, psh: bool| {
        let segment = Segment { psh, ..segment(next + at) };
        receiver.on_segment(2 * MS, &segment, Ecn::NotEct).map(|ack| ack.ack_seq / MSS - next)
    };
    assert_eq!([ack(0, false), ack(1, false)], [None, Some(2)]);
    assert_eq!([ack(2, true), ack(3, false)], [Some(3), None]);
    // The second one is acknowledged in any case.
    assert_eq!([ack(4, true), ack(5, true)], [Some(5), Some(6)]);
    assert_eq!(receiver.timer_ns(), None);
}

#[test]
fn a_part_of_a_segment_is_acknowledged_at_once_unless_another_of_its_length_precedes_it() {
    let (mut receiver, next) = settled_receiver();
    let mut is_acked = |number: u64| {
        let seq = next * MSS + number * 1000;
        let part = Segment { seq, bytes: 1000, ..segment(0) };
        receiver.on_segment(2 * MS, &part, Ecn::NotEct).is_some()
    };
    // From the second one on, this is the length of a full segment.
    assert_eq!([0, 1, 2, 3, 4].map(&mut is_acked), [true, false, true, false, true]);
}

#[test]
fn segments_that_raise_the_window_are_acknowledged_at_once() {
    let (mut receiver, next) = settled_receiver();
    let mut ack = |at: u64, at_ms: u64| {
        let segment = Segment { tsecr_ns: 10 * MS, ..segment(next + at) };
        receiver.on_segment(at_ms * MS, &segment, Ecn::NotEct)
    };
    // An RTT has passed, in which the application read more than the first window.
    assert!(ack(0, 30).is_none());
    let windows: Vec<u64> =
        (1..=72).map(|at| ack(at, 31).unwrap()).map(|ack| ack.window_end - ack.ack_seq).collect();
    assert!(windows.windows(2).all(|two| two[0] < two[1]), "{windows:?}");
    // `tcp_rcvbuf_grow()`: 25 segments were read, 2.5 times the first window.
    let limit = 8 * 25 * MSS;
    assert!((limit - 2 * MSS..=limit).contains(windows.last().unwrap()), "{windows:?}");
    assert_eq!((73..93).filter(|at| ack(*at, 32).is_some()).count(), 10);
}

#[test]
fn gaps_are_reported_most_recent_first() {
    let mut receiver = Receiver::new(EcnMode::Off, RCVBUF, 0, 20 * MS);
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
    let mut receiver = Receiver::new(EcnMode::Classic, RCVBUF, 0, 20 * MS);
    let mut ece = |at: u64, field: Ecn, cwr: bool| {
        let segment = Segment { cwr, ..segment(at) };
        receiver.on_segment(MS, &segment, field).unwrap().ece
    };
    assert!(!ece(0, Ecn::Ect0, false) && ece(1, Ecn::Ce, false) && ece(2, Ecn::Ect0, false));
    assert!(!ece(3, Ecn::Ect0, true));
    let mut receiver = Receiver::new(EcnMode::Accurate { ect: Ecn::Ect1 }, RCVBUF, 0, 20 * MS);
    receiver.on_segment(MS, &segment(0), Ecn::Ce);
    assert_eq!(receiver.on_segment(MS, &segment(1), Ecn::Ce).unwrap().ce_pkts, 2);
}

#[test]
fn a_segment_without_ect_after_others_with_ect_is_acknowledged_at_once() {
    let is_acked_after = |usual: Ecn| {
        let mut receiver = Receiver::new(EcnMode::Classic, RCVBUF, 0, 20 * MS);
        let mut is_acked =
            |at: u64, field: Ecn| receiver.on_segment(MS, &segment(at), field).is_some();
        let first_delayed = (0..100).find(|at| !is_acked(*at, usual)).unwrap();
        assert!(is_acked(first_delayed + 1, usual));
        let fields = [(2, Ecn::NotEct), (3, usual), (4, usual), (5, usual)];
        fields.map(|(after, field)| is_acked(first_delayed + after, field))
    };
    assert_eq!(is_acked_after(Ecn::Ect0), [true, true, false, true]);
    assert_eq!(is_acked_after(Ecn::NotEct), [false, true, false, true]);
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
    assert_eq!((after.sacked_out, after.delivered), (1, before.delivered), "as in the kernel");
    // A block that begins at or before the acknowledgement is invalid.
    sender.on_ack_and_send(21 * MS, &sacked(2, &[(4, 5)]));
    let after = sender.info(21 * MS);
    assert_eq!(after.sacked_out, 1);
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
    // 8 has overtaken segment 3.
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
    // The originals arrive: their acknowledgements carry timestamps from before the retransmissions.
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
    let mut receiver = Receiver::new(EcnMode::Off, RCVBUF, 0, 300 * MS);
    let mut at_ns = MS;
    for number in 0..22 {
        assert!(receiver.on_segment(at_ns, &segment(number), Ecn::NotEct).is_some());
    }
    // Segments every 100 ms arrive after the delay, which grows until it covers them.
    let mut delayed = 0;
    for number in 22..30 {
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

#[test]
fn an_overtaken_timestamp_is_not_echoed() {
    let mut sender = sender("reno", EcnMode::Off);
    sender.write(0, ALL);
    let at = |up_to, tsval_ns| AckSegment { tsval_ns, ..ack(up_to) };
    sender.on_ack(20 * MS, &at(2, 10 * MS));
    sender.on_ack(20 * MS, &at(2, 9 * MS));
    assert_eq!(sender.ts_recent_ns, 10 * MS);
}

#[test]
fn paws_discards_acknowledgements_that_were_overtaken_for_long() {
    let mut sender = sender("reno", EcnMode::Off);
    sender.write(0, ALL);
    sender.on_ack(20 * MS, &AckSegment { tsval_ns: 10 * MS, ..ack(4) });
    let late = |tsval_ms: u64| AckSegment { tsval_ns: tsval_ms * MS, ..sacked(2, &[(6, 7)]) };
    sender.on_ack(21 * MS, &late(8));
    assert_eq!(sender.info(21 * MS).sacked_out, 0);
    sender.on_ack(21 * MS, &late(9));
    assert_eq!(sender.info(21 * MS).sacked_out, 1);
}

#[test]
fn paws_drops_data_that_a_retransmission_has_overtaken() {
    let mut receiver = Receiver::new(EcnMode::Off, RCVBUF, 0, 20 * MS);
    let mut acked = |at: u64, sent_ms: u64| {
        let segment = Segment { tsval_ns: sent_ms * MS, ..segment(at) };
        let reply = receiver.on_segment(40 * MS, &segment, Ecn::NotEct);
        reply.map(|ack| (ack.ack_seq / MSS, ack.is_dsack))
    };
    assert_eq!(acked(0, 10), Some((1, false)));
    assert_eq!(acked(1, 30), Some((2, false)), "a retransmission");
    assert_eq!(acked(2, 12), Some((2, false)), "sent before it");
    assert_eq!(acked(1, 12), Some((2, true)), "the original");
    assert_eq!(acked(2, 29), Some((3, false)));
}

#[test]
fn a_timeout_after_a_retransmission_begins_when_pacing_lets_the_next_segment_leave() {
    let mut sender = sender_without_offloads("bbr", SNDBUF);
    sender.write(0, ALL);
    sent(&mut sender);
    // The next segment must wait for more than a second.
    sender.pacing_rate_bytes_per_s = 1000;
    sender.rtx_queue.mark_lost(0);
    sender.xmit_retransmit_queue(20 * MS);
    let pacing_ns = sender.tcp_wstamp_ns - 20 * MS;
    assert!(pacing_ns > 1000 * MS, "{pacing_ns}");
    let timeout_ns = sender.rtt.rto_us() * 1000;
    assert_eq!(sender.timer_ns(), Some(wheel_ns(20 * MS, timeout_ns + pacing_ns / MS * MS)));
}

#[test]
fn a_duplicate_that_is_reported_does_not_end_f_rto() {
    let (mut sender, rto_ns) = timed_out_sender();
    // The retransmission arrives, and new data is sent.
    let at_ns = rto_ns + 20 * MS;
    sender.on_ack_and_send(at_ns, &AckSegment { tsecr_ns: rto_ns, ..ack(1) });
    assert!(sender.frto && sender.snd_nxt > sender.high_seq);
    sender.on_ack_and_send(at_ns, &AckSegment { is_dsack: true, ..sacked(1, &[(0, 1)]) });
    assert!(sender.frto);
    sender.on_ack_and_send(at_ns, &ack(1));
    assert!(!sender.frto, "a duplicate acknowledgement");
}
