use proptest::prelude::*;

use super::*;
use crate::datapath::queue::FifoLimit;

fn spec(rate_bps: Option<u64>, delay_ns: u64, limit: FifoLimit) -> LinkSpec {
    LinkSpec { rate_bps, delay_ns, seed: 1, queue: QueueSpec::Fifo(limit), ..LinkSpec::default() }
}

fn packet(slot: u32, at_ns: u64, bytes: u32) -> Packet {
    Packet { slot, bytes, at_ns, ..Packet::default() }
}

fn drain(link: &mut LinkModel) -> Vec<(u32, u64)> {
    std::iter::from_fn(|| link.pop_departed()).map(|p| (p.slot, p.at_ns)).collect()
}

#[test]
fn a_packet_takes_its_delay_and_its_transmission() {
    let mut link = LinkModel::new(&spec(Some(8_000_000), 10_000, FifoLimit::Packets(10)), 16, 1514);
    let mut freed = Vec::new();
    assert_eq!(link.next_due_ns(), u64::MAX);
    assert_eq!(link.arrive(packet(1, 500, 1000)), Arrival::In);
    assert_eq!(link.next_due_ns(), 500 + 10_000 + 1_000_000);
    link.advance(1_010_499, &mut freed);
    assert_eq!(link.next_due_ns(), 1_010_500);
    assert!(drain(&mut link).is_empty());
    link.advance(1_010_500, &mut freed);
    assert_eq!(drain(&mut link), [(1, 1_010_500)]);
}

#[test]
fn the_packet_on_the_line_does_not_count_against_the_limit() {
    let mut link = LinkModel::new(&spec(Some(8_000_000), 0, FifoLimit::Packets(2)), 16, 1514);
    let mut freed = Vec::new();
    for slot in 0..5 {
        link.arrive(packet(slot, 0, 1000));
    }
    link.advance(0, &mut freed);
    assert_eq!(freed, [3, 4]);
    assert_eq!(link.backlog(), (2, 2000));
    link.advance(10_000_000, &mut freed);
    assert_eq!(drain(&mut link), [(0, 1_000_000), (1, 2_000_000), (2, 3_000_000)]);
    assert_eq!(link.counts().dropped, 2);
}

#[test]
fn a_late_thread_computes_the_same_times() {
    let make = || LinkModel::new(&spec(Some(1_000_000), 5_000, FifoLimit::Bytes(4_000)), 64, 1514);
    let (mut prompt, mut late) = (make(), make());
    let (mut freed_prompt, mut freed_late) = (Vec::new(), Vec::new());
    for slot in 0..20 {
        let arrival = packet(slot, u64::from(slot) * 3_000_000, 1_000);
        prompt.arrive(arrival);
        prompt.advance(arrival.at_ns, &mut freed_prompt);
        late.arrive(arrival);
    }
    prompt.advance(1_000_000_000, &mut freed_prompt);
    late.advance(1_000_000_000, &mut freed_late);
    assert_eq!(drain(&mut prompt), drain(&mut late));
    assert_eq!(freed_prompt, freed_late);
    assert!(!freed_late.is_empty());
}

#[test]
fn a_change_of_rate_moves_what_is_on_the_line_and_behind_it() {
    let mut link = LinkModel::new(&spec(Some(8_000_000), 0, FifoLimit::Packets(10)), 16, 1514);
    let mut freed = Vec::new();
    link.arrive(packet(0, 0, 1000));
    link.arrive(packet(1, 0, 1000));
    link.set_rate(500_000, Some(16_000_000), &mut freed);
    link.advance(9_000_000, &mut freed);
    assert_eq!(drain(&mut link), [(0, 750_000), (1, 1_250_000)]);
}

#[test]
fn without_a_rate_only_the_delay_counts() {
    let mut link = LinkModel::new(&spec(None, 10_000_000, FifoLimit::Packets(1)), 64, 1514);
    let mut freed = Vec::new();
    for slot in 0..50 {
        link.arrive(packet(slot, 100, 1514));
    }
    assert_eq!(link.next_due_ns(), 10_000_100);
    link.advance(10_000_100, &mut freed);
    assert_eq!(drain(&mut link).len(), 50);
    assert!(freed.is_empty());
}

proptest! {
    /// Whatever comes in leaves in order, or is counted as lost, dropped or still inside; nothing leaves
    /// before its delay and transmission; and the line never exceeds its rate.
    #[test]
    fn packets_are_conserved_and_stay_in_order(
        rate in 100_000_u64..1_000_000_000,
        delay in 0_u64..20_000_000,
        loss_ppm in prop_oneof![Just(0_u32), 0_u32..500_000],
        by_bytes in any::<bool>(),
        limit in 1_u64..50,
        arrivals in proptest::collection::vec((0_u64..2_000_000, 60_u32..1515, any::<bool>()), 1..200),
        end in 0_u64..500_000_000,
    ) {
        let limit = if by_bytes { FifoLimit::Bytes(limit * 1514) } else { FifoLimit::Packets(limit) };
        let queue = QueueSpec::Fifo(limit);
        let spec = LinkSpec {
            rate_bps: Some(rate),
            delay_ns: delay,
            loss_ppm,
            seed: rate,
            queue,
            ..LinkSpec::default()
        };
        let mut link = LinkModel::new(&spec, arrivals.len(), 1514);
        let mut freed = Vec::new();
        let mut now = 0;
        let mut sent = Vec::new();
        let mut out = Vec::new();
        for (slot, (gap, bytes, advance)) in arrivals.iter().enumerate() {
            now += gap;
            let entered = link.arrive(packet(slot as u32, now, *bytes));
            sent.push((now, *bytes, entered == Arrival::In));
            if *advance {
                link.advance(now, &mut freed);
                out.extend(drain(&mut link));
            }
        }
        link.advance(now + end, &mut freed);
        out.extend(drain(&mut link));

        let counts = link.counts();
        let (queued_pkts, queued) = link.backlog();
        let inside = link.inside();
        prop_assert_eq!(counts.arrived as usize, arrivals.len());
        prop_assert_eq!(counts.dropped as usize, freed.len());
        prop_assert_eq!(counts.departed as usize, out.len());
        prop_assert_eq!(counts.arrived, counts.lost + counts.dropped + counts.departed + inside as u64);
        prop_assert!(by_bytes || queued_pkts <= 50, "{}", queued);

        prop_assert!(out.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1));
        let mut free_at = 0;
        for (slot, due) in out {
            let (arrived, bytes, entered) = sent[slot as usize];
            prop_assert!(entered);
            let takes = u64::from(bytes) * 8_000_000_000 / rate;
            let start = (arrived + delay).max(free_at);
            // Rounded down, with at most one nanosecond carried.
            prop_assert!(due >= start + takes && due <= start + takes + 1, "{due} {start} {takes}");
            free_at = due;
        }
    }
}
