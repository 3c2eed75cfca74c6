//! Tests policer, slots, token buckets, acknowledgements and ECN fields in whole links.

use ccbench_proto::plan::{AckAggregation, EcnRewrite, Link, Policer, Reorder, Slot, Tbf};
use ccbench_proto::units::{Bytes, Micros, Packets, Ppm, Rate};
use proptest::prelude::*;

use super::*;
use crate::discipline::FifoLimit;
use crate::discipline::codel::CodelQueueParams;
use crate::discipline::dualpi2::Dualpi2Params;
use crate::discipline::fq::FqParams;
use crate::discipline::fq_codel::FqCodelParams;
use crate::discipline::pie::PieParams;
use crate::discipline::red::RedParams;

const MS: u64 = 1_000_000;

fn model(plan: Link) -> LinkModel {
    let queue = QueueParams::TailDrop(FifoLimit::Packets(100));
    LinkModel::new(&LinkSpec { plan, queue, seed: 1, ..LinkSpec::default() }, 1024, 1514)
}

/// A link at 8 Mbit/s: one byte per us.
fn rated(plan: Link) -> Link {
    Link { rate: Some(Rate::from_bits_per_sec(8_000_000)), ..plan }
}

fn packet(slot: u32, at_ns: u64) -> Packet {
    Packet { slot, at_ns, bytes: 1000, flow: 1, ..Packet::default() }
}

/// An acknowledgement of 100 bytes. The higher its slot, the more it acknowledges.
fn ack(slot: u32, at_ns: u64) -> Packet {
    Packet { slot, at_ns, bytes: 100, flow: 2, is_pure_ack: true, ..Packet::default() }
}

fn arrive(model: &mut LinkModel, packet: Packet) -> Arrival {
    let ack = TcpHeader { ack_seq: packet.slot, flags: TcpHeader::ACK, ..TcpHeader::default() };
    let data = TcpHeader { ack_seq: 0, has_data: true, ..ack };
    model.read_tcp(packet.slot, Some(if packet.is_pure_ack { ack } else { data }));
    model.arrive(packet)
}

/// Returns slots and times of all departures, and the slots of dropped packets.
fn run(model: &mut LinkModel, arrivals: &[Packet]) -> (Vec<(u32, u64)>, Vec<u32>) {
    let mut freed = Vec::new();
    for arrival in arrivals {
        assert_eq!(arrive(model, *arrival), Arrival::Accepted);
    }
    model.advance(1 << 50, &mut freed);
    assert_eq!((model.packets_inside(), model.next_event_ns()), (0, u64::MAX));
    let departed = std::iter::from_fn(|| model.pop_departed());
    (departed.map(|packet| (packet.slot, packet.at_ns)).collect(), freed)
}

#[test]
fn policer_drops_on_arrival_what_does_not_conform() {
    let policer = Policer { rate: Rate::from_bits_per_sec(8_000_000), burst: Bytes::new(2_000) };
    let mut model = model(Link { policer: Some(policer), ..Link::default() });
    let found = [0, 0, 0, MS - 1, MS].map(|at_ns| model.arrive(packet(0, at_ns)));
    let (passed, policed) = (Arrival::Accepted, Arrival::Policed);
    assert_eq!(found, [passed, passed, policed, policed, passed]);
    assert_eq!((model.counts().arrived, model.counts().policed), (5, 2));
    // The policer's rate includes the link's overhead, as the line's rate does.
    let plan = Link { policer: Some(policer), overhead: Some(Bytes::new(15)), ..Link::default() };
    let mut counted = self::model(plan);
    let found = [0, 0].map(|at_ns| counted.arrive(packet(0, at_ns)));
    assert_eq!(found, [passed, policed]);
}

#[test]
fn packets_leave_in_slots() {
    let slot = Slot { every: Micros::from_millis(5), ..Slot::default() };
    let mut model = model(rated(Link { slot: Some(slot), ..Link::default() }));
    let arrivals = [1, 2, 6, 13].map(|at_ms| packet(at_ms, u64::from(at_ms) * MS));
    let (left, freed) = run(&mut model, &arrivals);
    // The third one arrives while the first burst is transmitted, the last one at an empty queue.
    assert_eq!(left, [(1, 6 * MS), (2, 7 * MS), (6, 11 * MS), (13, 16 * MS)]);
    assert_eq!((freed.len(), model.counts().slots), (0, 3));
}

#[test]
fn packets_that_the_queue_drops_are_not_replaced_in_their_slot() {
    let slot = Some(Slot { every: Micros::from_millis(5), ..Slot::default() });
    let mut filtered = model(rated(Link { slot, ack_filter: true, ..Link::default() }));
    let waiting = [ack(1, MS), ack(2, 2 * MS), ack(3, 3 * MS)];
    // It arrives while the last of them is transmitted.
    let later = packet(4, 5 * MS + 50_000);
    let (left, freed) = run(&mut filtered, &[&waiting[..], &[later]].concat());
    assert_eq!(left, [(3, 5 * MS + 100_000), (4, 11 * MS)]);
    assert_eq!((freed, filtered.counts().slots), (vec![1, 2], 2));
    // A packet that arrives after the slot began is superseded. The slot's packets leave in it.
    let plan = rated(Link { slot, ack_filter: true, ..Link::default() });
    let arrivals = [packet(0, MS), packet(1, 2 * MS), ack(2, 5 * MS + 1), ack(3, 5 * MS + 2)];
    let (left, freed) = run(&mut self::model(plan), &arrivals);
    assert_eq!(left, [(0, 6 * MS), (1, 7 * MS), (3, 10 * MS + 100_000)]);
    assert_eq!(freed, [2]);
    // A queue that drops its oldest packet for a new one.
    let queue = QueueParams::HeadDrop(FifoLimit::Packets(2));
    let plan = rated(Link { slot, ..Link::default() });
    let spec = LinkSpec { plan, queue, seed: 1, ..LinkSpec::default() };
    let mut full = LinkModel::new(&spec, 1024, 1514);
    let early = [packet(0, MS), packet(1, 2 * MS)];
    // Packet 0 is transmitted. 2 enters behind 1, and 3 replaces 1.
    let later = [packet(2, 5 * MS + 1), packet(3, 5 * MS + 2)];
    let (left, freed) = run(&mut full, &[early, later].concat());
    assert_eq!((left, freed), (vec![(0, 6 * MS), (2, 11 * MS), (3, 12 * MS)], vec![1]));
}

#[test]
fn packets_that_a_lower_limit_drops_are_not_replaced_in_their_slot() {
    let slot = Some(Slot { every: Micros::from_millis(5), ..Slot::default() });
    let plan = rated(Link { slot, ..Link::default() });
    let queue = |limit| QueueParams::Codel(CodelQueueParams { limit, ..<_>::default() });
    let spec = LinkSpec { plan, queue: queue(100), seed: 1, ..LinkSpec::default() };
    let mut model = LinkModel::new(&spec, 16, 1514);
    let mut freed = Vec::new();
    for slot in 0..3 {
        model.arrive(packet(slot, MS));
    }
    // Packet 0 is transmitted; 1 and 2 belong to its slot.
    model.set_queue(5 * MS + 1, queue(1), &mut freed);
    assert_eq!(freed, [1]);
    model.advance(6 * MS, &mut freed);
    let (left, freed) = run(&mut model, &[packet(3, 6 * MS + 1)]);
    assert_eq!((left, freed), (vec![(0, 6 * MS), (2, 7 * MS), (3, 11 * MS)], vec![]));
}

#[test]
fn average_of_red_decays_while_idle_between_slots() {
    let red = RedParams {
        limit: 1_000_000,
        qth_min: 1000,
        qth_max: 500_000,
        max_p_ppm: 10,
        wlog: 1,
        packet_time_ns: MS,
        ecn: false,
        harddrop: false,
        adaptive: false,
        nodrop: false,
    };
    let slot = Slot { every: Micros::from_millis(5), ..Slot::default() };
    for slot in [None, Some(slot)] {
        let plan = rated(Link { slot, ..Link::default() });
        let spec = LinkSpec { plan, queue: QueueParams::Red(red), seed: 1, ..LinkSpec::default() };
        let mut model = LinkModel::new(&spec, 64, 1514);
        let mut freed = Vec::new();
        for slot in 0..20 {
            model.arrive(packet(slot, MS));
        }
        model.advance(50 * MS, &mut freed);
        assert_eq!(model.backlog(), (0, 0));
        assert!(model.queue_stats().prob > 0);
        model.arrive(packet(20, 200 * MS));
        model.advance(300 * MS, &mut freed);
        assert_eq!((model.queue_stats().prob, freed.len()), (0, 0), "{slot:?}");
    }
}

#[test]
fn slots_limit_the_rate() {
    let slot =
        Slot { every: Micros::from_millis(10), packets: Some(Packets::new(2)), ..Slot::default() };
    let mut model = model(rated(Link { slot: Some(slot), ..Link::default() }));
    let arrivals: Vec<_> = (0..5).map(|slot| packet(slot, MS)).collect();
    let times_ms = [11, 12, 21, 22, 31];
    let wanted: Vec<_> = (0..).zip(times_ms.map(|at_ms| at_ms * MS)).collect();
    assert_eq!(run(&mut model, &arrivals).0, wanted);
}

#[test]
fn tbf_lets_a_burst_pass_at_once() {
    let tbf = Tbf { burst: Bytes::new(3_000), ..Tbf::default() };
    let mut model = model(rated(Link { tbf: Some(tbf), ..Link::default() }));
    let arrivals: Vec<_> = (0..5).map(|slot| packet(slot, 7)).collect();
    let wanted = [(0, 7), (1, 7), (2, 7), (3, MS + 7), (4, 2 * MS + 7)];
    assert_eq!(run(&mut model, &arrivals).0, wanted);
}

#[test]
fn bucket_of_one_packet_holds_its_overhead() {
    let tbf = Some(Tbf { burst: Bytes::new(1_000), ..Tbf::default() });
    let plan = Link { tbf, overhead: Some(Bytes::new(514)), ..Link::default() };
    let arrivals: Vec<_> = (0..3).map(|slot| packet(slot, 7)).collect();
    // 1500 bytes on the line at one byte per us.
    let wanted = [(0, 7), (1, 1_500_007), (2, 3_000_007)];
    assert_eq!(run(&mut model(rated(plan)), &arrivals).0, wanted);
}

#[test]
fn superseded_acknowledgements_are_dropped() {
    let mut model = model(rated(Link { ack_filter: true, ..Link::default() }));
    let arrivals = [packet(0, 0), ack(1, 10), ack(2, 20), ack(3, 30)];
    let (left, freed) = run(&mut model, &arrivals);
    assert_eq!((left, freed), (vec![(0, MS), (3, MS + 100_000)], vec![1, 2]));
    let counts = model.counts();
    assert_eq!((counts.acks_filtered, counts.dropped, counts.departed), (2, 0, 2));
    // Without a queue, each packet leaves at once.
    let arrivals = [ack(4, 100 * MS), ack(5, 200 * MS)];
    let mut idle = self::model(rated(Link { ack_filter: true, ..Link::default() }));
    assert_eq!(run(&mut idle, &arrivals).0.len(), 2);
}

/// The queue holds one packet; an acknowledgement fills it.
#[test]
fn superseded_acknowledgement_makes_room() {
    for queue in [FifoLimit::Packets(1), FifoLimit::Bytes(150)] {
        let plan = rated(Link { ack_filter: true, ..Link::default() });
        let queue = QueueParams::TailDrop(queue);
        let spec = LinkSpec { plan, queue, seed: 1, ..LinkSpec::default() };
        let mut model = LinkModel::new(&spec, 16, 1514);
        // That of another flow does not make room.
        let other = Packet { flow: 3, ..ack(3, 30) };
        let first = Packet { bytes: 100, ..packet(0, 0) };
        let arrivals = [first, ack(1, 10), ack(2, 20), other, ack(4, 40)];
        let (left, freed) = run(&mut model, &arrivals);
        assert_eq!((left, freed), (vec![(0, 100_000), (4, 200_000)], vec![1, 3, 2]));
        assert_eq!((model.counts().acks_filtered, model.counts().dropped), (2, 1));
    }
}

/// Applies to all queues, including full ones, which drop other packets.
#[test]
fn every_queue_gives_superseded_acknowledgements_back() {
    for kind in [
        QueueParams::TailDrop(FifoLimit::Packets(3)),
        QueueParams::HeadDrop(FifoLimit::Packets(3)),
        QueueParams::Codel(CodelQueueParams { limit: 3, ..CodelQueueParams::default() }),
        QueueParams::FqCodel(FqCodelParams { limit: 3, ..FqCodelParams::default() }),
        QueueParams::Fq(FqParams { limit: 3, ..FqParams::default() }),
        QueueParams::Pie(PieParams { limit: 3, ..PieParams::default() }),
        QueueParams::Dualpi2(Dualpi2Params { limit: 3, ..Dualpi2Params::default() }),
    ] {
        let plan = rated(Link { ack_filter: true, ..Link::default() });
        let spec = LinkSpec { plan, queue: kind, seed: 1, ..LinkSpec::default() };
        let mut model = LinkModel::new(&spec, 64, 1514);
        // One packet of 1000 bytes per 0.9 ms and acknowledgements of 100 per 0.2 ms: more than the line transmits.
        let arrivals = (0..60_u32).map(|slot| match slot % 4 {
            0 => packet(slot, u64::from(slot) * 225_000),
            _ => ack(slot, u64::from(slot) * 225_000),
        });
        let arrivals: Vec<Packet> = arrivals.collect();
        let (left, freed) = run(&mut model, &arrivals);
        let counts = model.counts();
        assert!(counts.acks_filtered > 10, "{kind:?}: {counts:?}");
        assert_eq!(left.len() + freed.len(), 60, "{kind:?}");
        assert_eq!(freed.len() as u64, counts.dropped + counts.acks_filtered, "{kind:?}");
    }
}

#[test]
fn held_acknowledgements_leave_together_behind_other_packets() {
    let ack_aggregation =
        Some(AckAggregation { hold: Micros::from_millis(2), packets: Some(Packets::new(3)) });
    let delay = Some(Micros::from_millis(10));
    let mut model = model(Link { ack_aggregation, delay, ..Link::default() });
    assert!(model.may_overtake());
    let first = [ack(0, MS), ack(1, 2 * MS), packet(2, 2 * MS + 5)];
    // An acknowledgement that arrives when the hold time ends belongs to the next group.
    let second = [ack(3, 3 * MS), ack(4, 4 * MS), ack(5, 4 * MS + 7)];
    let (left, _) = run(&mut model, &[first, second].concat());
    let (at_3, at_4) = (13 * MS, 14 * MS + 7);
    let wanted = [(2, 12 * MS + 5), (0, at_3), (1, at_3), (3, at_4), (4, at_4), (5, at_4)];
    assert_eq!(left, wanted);
    assert_eq!(model.counts().acks_held, 5);
}

#[test]
fn queue_sees_the_new_ecn_field() {
    let ecn_rewrite =
        Some(EcnRewrite { ect1: Some(Ecn::Ect0), ce: Some(Ecn::NotEct), ..EcnRewrite::default() });
    let mut model = model(Link { ecn_rewrite, ..Link::default() });
    let changed = |ecn| Arrival::Changed { ecn: Some(ecn), flip: None, copy_due_ns: None };
    let found = Ecn::ALL.map(|ecn| model.arrive(Packet { ecn, ..packet(0, 0) }));
    assert_eq!(
        found,
        [Arrival::Accepted, changed(Ecn::Ect0), Arrival::Accepted, changed(Ecn::NotEct)]
    );
    model.advance(0, &mut Vec::new());
    let left = [0, 1, 2, 3].map(|_| model.pop_departed().unwrap().ecn);
    assert_eq!(left, [Ecn::NotEct, Ecn::Ect0, Ecn::Ect0, Ecn::NotEct]);
    assert_eq!((model.counts().ecn_rewritten, model.counts().ce_rewritten), (2, 1));
}

#[test]
fn late_packets_are_overtaken_for_their_time() {
    let late = Some(Micros::from_millis(2));
    let reorder = Some(Reorder { late, ..Reorder::new(Ppm::new(200_000).unwrap()) });
    let delay = Some(Micros::from_millis(10));
    let mut model = model(Link { reorder, delay, ..Link::default() });
    assert_eq!((model.min_delay_ns(), model.may_overtake()), (10 * MS, true));
    let arrivals: Vec<_> = (0..100).map(|slot| packet(slot, u64::from(slot) * MS)).collect();
    let (left, _) = run(&mut model, &arrivals);
    let delays: Vec<u64> = left.iter().map(|(slot, at_ns)| at_ns - u64::from(*slot) * MS).collect();
    assert!(delays.iter().all(|delay_ns| [10 * MS, 12 * MS].contains(delay_ns)), "{delays:?}");
    let late = delays.iter().filter(|delay_ns| **delay_ns == 12 * MS).count();
    assert!((5..40).contains(&late), "{late}");
    // At most the packet that follows within 2 ms overtakes. The packet after 2 ms has the same time but entered later.
    assert!(!left.is_sorted_by_key(|(slot, _)| *slot));
    for (place, (slot, _)) in (0_i64..).zip(&left) {
        assert!((place - i64::from(*slot)).abs() <= 2, "{slot} at {place}");
    }
}

#[test]
fn path_switch_lets_later_packets_overtake() {
    let delay = Some(Micros::from_millis(10));
    let departures = |path_switch| {
        let mut model = model(Link { path_switch, delay, ..Link::default() });
        assert_eq!(model.may_overtake(), path_switch);
        model.arrive(packet(0, MS));
        model.set_delay(2 * MS, 3 * MS);
        // Passed to the model late, although it arrived before the change.
        model.arrive(packet(1, 2 * MS - 1));
        model.arrive(packet(2, 2 * MS));
        model.arrive(packet(3, 9 * MS));
        model.set_delay(10 * MS, 30 * MS);
        model.arrive(packet(4, 10 * MS));
        run(&mut model, &[]).0
    };
    let old = 12 * MS - 1;
    let kept = [(0, 11 * MS), (1, old), (2, old), (3, 12 * MS), (4, 40 * MS)];
    assert_eq!(departures(false), kept);
    let switched = [(2, 5 * MS), (0, 11 * MS), (1, old), (3, 12 * MS), (4, 40 * MS)];
    assert_eq!(departures(true), switched);
}

#[test]
fn delay_that_stays_is_no_other_path() {
    let delay = Some(Micros::from_millis(10));
    let mut model = model(Link { path_switch: true, delay, ..Link::default() });
    model.arrive(packet(0, MS));
    model.set_delay(2 * MS, 3 * MS);
    model.set_delay(4 * MS, 3 * MS);
    // Passed to the model late: one of the first path, and one of the second path before the delay was set again.
    model.arrive(packet(1, 2 * MS - 1));
    model.arrive(packet(2, 4 * MS - 1));
    let wanted = [(2, 7 * MS - 1), (0, 11 * MS), (1, 12 * MS - 1)];
    assert_eq!(run(&mut model, &[]).0, wanted);
}

/// Returns departures, dropped packets and counters of a link that is advanced to every arrival with the flag.
fn outcome(plan: &Link, arrivals: &[(Packet, bool)]) -> (Vec<Packet>, Vec<u32>, Counts) {
    let queue = QueueParams::TailDrop(FifoLimit::Packets(20));
    let spec = LinkSpec { plan: plan.clone(), queue, seed: 3, ..LinkSpec::default() };
    let mut model = LinkModel::new(&spec, arrivals.len(), 1514);
    let (mut left, mut freed) = (Vec::new(), Vec::new());
    for (arrival, advances) in arrivals {
        arrive(&mut model, *arrival);
        if *advances {
            model.advance(arrival.at_ns, &mut freed);
            left.extend(std::iter::from_fn(|| model.pop_departed()));
        }
    }
    model.advance(1 << 50, &mut freed);
    left.extend(std::iter::from_fn(|| model.pop_departed()));
    assert_eq!(model.packets_inside(), 0);
    (left, freed, model.counts())
}

proptest! {
    /// Every packet leaves or is counted; data and acknowledgements each stay in order; times do not depend on how often the model is
    /// advanced.
    #[test]
    fn packets_are_conserved_in_order_and_on_virtual_time(
        rate_bps in 1_000_000_u64..100_000_000,
        (every_us, more_us) in (100_u64..5_000, 0_u64..5_000),
        limits in (proptest::option::of(1_u32..10), proptest::option::of(1_u64..10_000)),
        (has_slots, has_tbf, ack_filter) in any::<(bool, bool, bool)>(),
        aggregation in proptest::option::of((1_u64..5_000, proptest::option::of(2_u32..10))),
        police in proptest::option::of(1_000_000_u64..50_000_000),
        arrivals in proptest::collection::vec((0_u64..1_000_000, 0..3_u32, any::<bool>()), 1..200),
    ) {
        let bits = Rate::from_bits_per_sec;
        let plan = Link {
            rate: Some(bits(rate_bps)),
            slot: has_slots.then(|| Slot {
                every: Micros::new(every_us),
                max: Some(Micros::new(every_us + more_us)),
                packets: limits.0.map(Packets::new),
                bytes: limits.1.map(Bytes::new),
            }),
            tbf: has_tbf.then(|| Tbf { burst: Bytes::new(5_000), ..Tbf::default() }),
            ack_filter,
            ack_aggregation: aggregation.map(|(hold_us, packets)| AckAggregation {
                hold: Micros::new(hold_us),
                packets: packets.map(Packets::new),
            }),
            policer: police.map(|bps| Policer { rate: bits(bps), burst: Bytes::new(3_000) }),
            ..Link::default()
        };
        let (mut now_ns, mut slot) = (0, 0);
        let arrivals: Vec<(Packet, bool)> = arrivals
            .into_iter()
            .map(|(gap_ns, kind, advances)| {
                now_ns += gap_ns;
                slot += 1;
                let packet = match kind {
                    0 => packet(slot - 1, now_ns),
                    kind => Packet { flow: kind, ..ack(slot - 1, now_ns) },
                };
                (packet, advances)
            })
            .collect();
        let (left, freed, counts) = outcome(&plan, &arrivals);
        prop_assert_eq!(counts.arrived as usize, arrivals.len());
        prop_assert_eq!(freed.len() as u64, counts.dropped + counts.acks_filtered);
        prop_assert_eq!(left.len() as u64, counts.departed);
        let gone = counts.policed + counts.dropped + counts.acks_filtered + counts.departed;
        prop_assert_eq!(counts.arrived, gone);
        prop_assert!(ack_filter || counts.acks_filtered == 0);
        prop_assert!(left.is_sorted_by_key(|packet| packet.at_ns));
        for is_ack in [false, true] {
            let same = left.iter().filter(|packet| packet.is_pure_ack == is_ack);
            prop_assert!(same.is_sorted_by_key(|packet| packet.slot));
        }
        let once: Vec<_> = arrivals.iter().map(|(packet, _)| (*packet, false)).collect();
        prop_assert_eq!((left, freed, counts), outcome(&plan, &once));
    }
}
