//! Tests duplicates, undo, timers and what limits a sender.

use super::*;

#[test]
fn a_reported_duplicate_counts_as_delivered() {
    let (mut sender, rto_ns) = timed_out_sender();
    // All originals arrive, and then the retransmission of the first one.
    sender.on_ack(rto_ns + MS, &AckSegment { tsecr_ns: 1, ..ack(10) });
    let delivered = sender.info(rto_ns + MS).delivered;
    let duplicate = |number| AckSegment { is_dsack: true, ..sacked(10, &[(number, number + 1)]) };
    sender.on_ack(rto_ns + 20 * MS, &duplicate(0));
    assert_eq!(sender.info(rto_ns + 20 * MS).delivered, delivered + 1);
    // The network causes any duplicates beyond the number of retransmissions.
    (0..9).for_each(|_| sender.on_ack(rto_ns + 21 * MS, &duplicate(1)));
    let total_retrans = sender.counters.total_retrans;
    assert_eq!(sender.info(rto_ns + 21 * MS).delivered, delivered + total_retrans);
}

#[test]
fn a_duplicate_of_a_selectively_acknowledged_segment_shows_reordering() {
    let mut sender = sender("reno", EcnMode::Off);
    sender.write(0, ALL);
    // Segments 0 to 5 count as lost, and some are sent again.
    sender.on_ack(20 * MS, &sacked(0, &[(6, 9)]));
    sender.on_ack(21 * MS, &sacked(0, &[(6, 10)]));
    assert!(sender.rtx_queue.get(MSS).unwrap().is_retransmitted);
    // The original of 1 arrives, then its retransmission.
    sender.on_ack(22 * MS, &sacked(0, &[(1, 2), (6, 10)]));
    let total_retrans = i64::from(sender.counters.total_retrans);
    assert_eq!((sender.undo_retrans, sender.counters.reord_seen), (total_retrans, 0));
    let duplicate = AckSegment { is_dsack: true, ..sacked(0, &[(1, 2), (1, 2), (6, 10)]) };
    sender.on_ack(23 * MS, &duplicate);
    let total_retrans = i64::from(sender.counters.total_retrans);
    assert_eq!((sender.undo_retrans, sender.counters.reord_seen), (total_retrans - 1, 1));
    assert_eq!(sender.reordering, 9);
}

#[test]
fn after_an_undo_both_transmissions_of_a_segment_are_in_flight() {
    let mut sender = sender("reno", EcnMode::Off);
    sender.write(0, ALL);
    let queue = &mut sender.rtx_queue;
    for number in [1, 2] {
        queue.mark_lost(number * MSS);
        queue.retransmit(number * MSS, 20 * MS, retransmit_queue::TxState::default());
    }
    queue.unmark_lost();
    assert_eq!(queue.in_flight(), 12);
    // The original of 1 has arrived, and its retransmission is in flight.
    queue.sack(SeqRange { start_seq: MSS, end_seq: 2 * MSS }, |_| {});
    assert_eq!((queue.sacked_out, queue.retrans_out, queue.in_flight()), (1, 2, 11));
    // The original of 2 is lost.
    queue.mark_lost(2 * MSS);
    assert_eq!((queue.lost_out, queue.retrans_out, queue.in_flight()), (1, 2, 10));
    queue.mark_lost(3 * MSS);
    assert_eq!(queue.next_lost().map(|segment| segment.seq), None, "two are in flight");
    queue.mark_lost(4 * MSS);
    assert_eq!(queue.next_lost().map(|segment| segment.seq), Some(3 * MSS));
}

#[test]
fn a_sample_of_the_rtt_ends_backoff() {
    let (mut sender, rto_ns) = timed_out_sender();
    assert_eq!(sender.backoff, 1);
    // The acknowledgement of a segment that was sent twice, without a timestamp, gives no sample.
    sender.on_ack(rto_ns + 20 * MS, &ack(1));
    assert_eq!(sender.backoff, 1);
    // A segment that was sent once gives a sample, even if the acknowledgement does not advance.
    sender.on_ack(rto_ns + 21 * MS, &sacked(1, &[(2, 3)]));
    assert_eq!(sender.backoff, 0);
}

#[test]
fn a_connection_is_not_open_while_its_first_segment_was_retransmitted() {
    let mut sender = sender("reno", EcnMode::Off);
    sender.write(0, 4 * MSS);
    sender.on_ack(20 * MS, &ack(3));
    // The probe with the last segment does not count as a retransmission in flight.
    let probe_ns = sender.timer_ns().unwrap();
    sender.on_timer(probe_ns);
    assert_eq!((sent(&mut sender).last(), sender.rtx_queue.retrans_out), (Some(&(3, true)), 0));
    sender.on_ack(probe_ns + MS, &ack(3));
    assert_eq!(sender.info(probe_ns + MS).ca_state, 1);
    sender.on_ack(probe_ns + 20 * MS, &ack(4));
    assert_eq!(sender.info(probe_ns + 20 * MS).ca_state, 0);
}

#[test]
fn a_timer_sends_one_new_segment_at_most() {
    let mut sender = sender("reno", EcnMode::Off);
    sender.write(0, ALL);
    sent(&mut sender);
    sender.snd_cwnd = 20;
    let probe_ns = sender.timer_ns().unwrap();
    sender.on_timer(probe_ns);
    assert_eq!(sent(&mut sender), [(10, false)]);
    sender.on_ack_and_send(probe_ns + MS, &ack(2));
    assert!(sent(&mut sender).len() > 1, "the others leave with the next acknowledgement");
}

#[test]
fn a_probe_repeats_the_last_segment_if_the_window_has_no_room_for_a_new_one() {
    let probe = |room_bytes: u64| {
        let mut sender = sender("reno", EcnMode::Off);
        sender.write(0, ALL);
        sent(&mut sender);
        sender.snd_wnd_end = sender.snd_nxt + room_bytes;
        let probe_ns = sender.timer_ns().unwrap();
        sender.on_timer(probe_ns);
        (sent(&mut sender), sender.tlp_high_seq)
    };
    assert_eq!(probe(MSS), (vec![(10, false)], Some(11 * MSS)));
    assert_eq!(probe(MSS - 1), (vec![(9, true)], Some(10 * MSS)));
    assert_eq!(probe(0), (vec![(9, true)], Some(10 * MSS)));
}

#[test]
fn a_probe_of_new_data_is_paced() {
    let mut sender = sender_without_offloads("bbr", SNDBUF);
    sender.write(0, ALL);
    sent(&mut sender);
    let probe_ns = sender.timer_ns().unwrap();
    sender.tcp_wstamp_ns = probe_ns + 10 * MS;
    sender.on_timer(probe_ns);
    assert_eq!((sent(&mut sender), sender.tlp_high_seq), (vec![], None));
    // The timeout began when the first segment was sent.
    let left_ns = sender.rtt.rto_us() * 1000 - probe_ns;
    assert_eq!(sender.timer_ns(), Some(wheel_ns(probe_ns, left_ns + 10 * MS)));
}

#[test]
fn a_window_without_data_behind_it_does_not_limit() {
    let mut sender = sender("reno", EcnMode::Off);
    sender.write(0, 4 * MSS);
    assert!(!sender.is_cwnd_limited);
    sender.snd_cwnd = 2;
    sender.data_snd_check(MS);
    assert!(!sender.is_cwnd_limited);
    sender.write(MS, 5 * MSS);
    assert!(sender.is_cwnd_limited);
}

#[test]
fn a_receive_window_without_room_does_not_change_pacing() {
    let mut sender = sender_without_offloads("bbr", SNDBUF);
    sender.write(0, ALL);
    (sender.snd_cwnd, sender.snd_wnd_end) = (20, sender.snd_nxt + 100);
    let last_ns = sender.tcp_wstamp_ns;
    assert!(last_ns < 15 * MS, "{last_ns}");
    sender.data_snd_check(15 * MS);
    assert_eq!((sender.snd_nxt, sender.tcp_wstamp_ns), (10 * MSS, last_ns));
}
