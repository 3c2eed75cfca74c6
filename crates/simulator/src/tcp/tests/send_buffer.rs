//! Tests the send buffer and the packets in it.

use super::*;

/// `sk_sndbuf` for a window of one packet.
const SNDBUF_PER_PACKET: u64 = 2 * 2304;

/// Returns whether each segment that was sent has PSH.
fn pushed(sender: &mut Sender) -> Vec<bool> {
    sender.outbox.drain(..).map(|(segment, _)| segment.psh).collect()
}

#[test]
fn bursts_end_with_psh() {
    let mut paired = sender("reno", EcnMode::Off);
    paired.write(0, ALL);
    assert_eq!(pushed(&mut paired), [false, true].repeat(5));
    let mut single = sender_with("reno", EcnMode::Off, SNDBUF, 1);
    single.write(0, ALL);
    assert_eq!(pushed(&mut single), [false], "a segment that leaves alone");
    let mut single = sender_with("reno", EcnMode::Off, SNDBUF, 1);
    single.write(0, MSS);
    assert_eq!(pushed(&mut single), [true], "the end of a write");
}

#[test]
fn a_retransmission_has_psh_only_at_the_end_of_a_write() {
    let mut sender = sender("reno", EcnMode::Off);
    sender.write(0, 4 * MSS);
    assert_eq!(pushed(&mut sender), [false, true, false, true]);
    let probe_ns = sender.timer_ns().unwrap();
    sender.on_timer(probe_ns);
    assert_eq!(pushed(&mut sender), [true], "the last segment");
    sender.on_ack_and_send(probe_ns + 20 * MS, &sacked(1, &[(2, 4)]));
    let reordering_ns = sender.timer_ns().unwrap();
    sender.on_timer(reordering_ns);
    assert_eq!(pushed(&mut sender), [false], "segment 1 was the end of a burst");
}

#[test]
fn a_write_clears_the_flag_of_the_one_before_if_their_data_share_a_packet() {
    let mut sender = sender_with("reno", EcnMode::Off, SNDBUF, 1);
    sender.write(0, MSS);
    sent(&mut sender);
    // These are waiting for the window.
    sender.write(MS, 2 * MSS);
    sender.write(MS, 4 * MSS);
    sender.on_ack_and_send(20 * MS, &ack(1));
    assert_eq!(pushed(&mut sender), [false, false]);
    sender.on_ack_and_send(40 * MS, &ack(2));
    assert_eq!(sent(&mut sender).last(), Some(&(3, false)));
    assert_eq!(sender.rtx_queue.get(2 * MSS).map(|sent| sent.has_psh), Some(false));
    assert_eq!(sender.rtx_queue.get(3 * MSS).map(|sent| sent.has_psh), Some(true));
}

#[test]
fn more_than_half_of_the_receive_window_is_pushed() {
    let mut sender = sender("reno", EcnMode::Off);
    // Packets of 22 segments. The first is filled up again when ten of its segments have left. Its end is then more than half of the window
    // behind the beginning. So is that of the next one, which is filled up when two have left.
    sender.max_window_bytes = 65_160;
    sender.write(0, ALL);
    assert_eq!(sender.write_seq, 32 * MSS, "the buffer is full");
    let mut marks = Vec::new();
    for up_to in 1..=60 {
        let ack = AckSegment { window_end: up_to * MSS + 65_160, ..ack(up_to) };
        sender.on_ack_and_send(20 * MS, &ack);
        let mut segments = sender.rtx_queue.iter();
        marks.extend(segments.rfind(|segment| segment.has_psh).map(|last| last.end() / MSS));
    }
    marks.dedup();
    assert!(marks.starts_with(&[32, 56]), "{marks:?}");
}

#[test]
fn the_send_buffer_grows_when_it_does_not_fill_the_window() {
    let mut sender = sender("reno", EcnMode::Off);
    sender.write(0, ALL);
    assert_eq!(sender.sndbuf_bytes(), 10 * SNDBUF_PER_PACKET);
    // The first packet of 45 segments was filled up when ten had left. Then the buffer had no room for a second packet.
    assert_eq!((sender.write_seq, sender.info(0).notsent_bytes), (55 * MSS, 45 * MSS_BYTES));
    for up_to in 1..=10 {
        sender.on_ack_and_send(20 * MS, &ack(up_to));
    }
    assert_eq!((sender.sndbuf_bytes(), sender.write_seq), (10 * SNDBUF_PER_PACKET, 55 * MSS));
    // The rest has left after the 23rd, at a window of 33.
    for up_to in 11..=60 {
        sender.on_ack_and_send(20 * MS, &ack(up_to));
    }
    assert_eq!(sender.info(20 * MS).snd_cwnd, 70);
    let range = 33 * SNDBUF_PER_PACKET..=70 * SNDBUF_PER_PACKET;
    assert!(range.contains(&sender.sndbuf_bytes()), "{}", sender.sndbuf_bytes());
    assert!(sender.write_seq > 100 * MSS);
}

#[test]
fn tcp_wmem_limits_the_send_buffer() {
    let sndbuf = SocketBuffer { max_bytes: 100_000, ..SNDBUF };
    let mut sender = sender_with("reno", EcnMode::Off, sndbuf, TCP_INIT_CWND);
    sender.write(0, ALL);
    for up_to in 1..=500 {
        let at_ns = (20 + up_to) * MS;
        sender.on_ack_and_send(at_ns, &ack(up_to.min(sender.snd_nxt / MSS)));
        // At most one packet of 45 segments more, and what replaces the part of it that has left.
        assert!(sender.write_seq - sender.snd_una < 100_000 + 2 * 45 * MSS);
    }
    assert_eq!(sender.sndbuf_bytes(), 100_000);
}

#[test]
fn a_write_waits_until_a_third_of_the_buffer_is_free() {
    let sndbuf = SocketBuffer { max_bytes: 46_080, ..SNDBUF };
    let mut sender = sender_with("reno", EcnMode::Off, sndbuf, TCP_INIT_CWND);
    sender.write(0, ALL);
    let before = sender.write_seq;
    let mut up_to = 0;
    while sender.write_seq == before {
        up_to += 1;
        assert!(up_to <= 90, "the write never goes on");
        sender.on_ack_and_send(20 * MS, &ack(up_to));
    }
    // Packets of two segments have 832 bytes of overhead. One more segment was too much.
    let (held, limit) = (before - up_to * MSS, 2 * 46_080 / 3);
    let with_overhead = |bytes: u64| bytes + bytes / (2 * MSS) * 832;
    assert!(with_overhead(held) <= limit && with_overhead(held + MSS) + 832 > limit, "{held}");
}

#[test]
fn without_offloads_a_packet_has_one_segment() {
    let mut sender = sender_without_offloads("reno", SNDBUF);
    sender.write(0, ALL);
    assert_eq!(pushed(&mut sender), [false; 10], "none is a burst, or the end of a write");
    // A segment has 832 bytes of overhead: 20 leave room in 46 080 bytes, 21 do not.
    assert_eq!((sender.write_seq, sender.info(0).notsent_bytes), (21 * MSS, 11 * MSS_BYTES));
    let sndbuf = SocketBuffer { max_bytes: 16_384, ..SNDBUF };
    let mut small = sender_without_offloads("reno", sndbuf);
    small.write(0, ALL);
    assert_eq!((small.write_seq, small.sndbuf_bytes()), (8 * MSS, 16_384));
    assert_eq!(sent(&mut small).len(), 8);
}

#[test]
fn without_offloads_every_segment_is_paced() {
    let offloads = sender("bbr", EcnMode::Off);
    let sent_after_an_ack = |mut sender: Sender| {
        sender.write(0, ALL);
        assert_eq!(sent(&mut sender).len(), 10, "the first ones are not paced");
        sender.on_ack_and_send(20 * MS, &ack(4));
        sent(&mut sender).len()
    };
    assert_eq!(sent_after_an_ack(offloads), 2);
    assert_eq!(sent_after_an_ack(sender_without_offloads("bbr", SNDBUF)), 1);
}

#[test]
fn segments_that_are_selectively_acknowledged_share_a_packet() {
    let mut sender = sender_without_offloads("reno", SNDBUF);
    sender.write(0, ALL);
    let mut skbs = |blocks: &[(u64, u64)]| {
        sender.on_ack(20 * MS, &sacked(0, blocks));
        sender.rtx_queue.skbs()
    };
    assert_eq!(skbs(&[]), 10);
    assert_eq!(skbs(&[(2, 4), (6, 7)]), 9, "3 is appended to 2");
    assert_eq!(skbs(&[(5, 7), (2, 4)]), 9, "nothing is put before 6");
    assert_eq!(skbs(&[(2, 7)]), 7, "4 and what is behind it are appended to 3");
    sender.on_ack(20 * MS, &ack(7));
    assert_eq!(sender.rtx_queue.skbs(), 3);
}
