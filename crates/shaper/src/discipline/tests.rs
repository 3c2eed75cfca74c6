//! Properties of all userspace queues. Each queue's own tests implement [`Samples`].

use ccbench_proto::units::Micros;
use proptest::prelude::*;

use super::codel::{CodelParams, CodelQueueParams};
use super::dualpi2::Dualpi2Params;
use super::fq::FqParams;
use super::fq_codel::FqCodelParams;
use super::pie::PieParams;
use super::*;
use crate::datapath::header::Ecn;
use crate::datapath::model::{LinkModel, LinkSpec};
use crate::datapath::random::Purpose;

const US: u64 = 1_000;

/// The parameters of a queue with which these tests run.
pub(super) trait Samples: PacketQueue {
    /// Some that are small enough to reach all limits.
    fn small() -> Vec<Self::Params>;
    /// Parameters that a plan may have, from these numbers.
    fn any(numbers: &Numbers) -> Self::Params;
    /// Some with the packets that [`signals`] finds dropped (-) and marked (*).
    fn golden() -> Vec<(Self::Params, &'static str)>;
}

/// Random numbers, within the ranges that most parameters have in a plan.
#[derive(Debug, Clone, Copy)]
pub(super) struct Numbers {
    /// A limit in packets, from 1 to 59.
    pub(super) limit: u32,
    /// A limit in bytes, at least one full frame.
    pub(super) bytes: u64,
    /// From 0 to 39.
    pub(super) small: u32,
    /// Any number.
    pub(super) any: u32,
    /// From 1 us to a minute.
    pub(super) time_ns: u64,
    /// Likewise.
    pub(super) other_ns: u64,
    /// Any flags.
    pub(super) flags: [bool; 4],
}

impl Numbers {
    /// A sojourn time, or none.
    pub(super) fn ce_threshold_ns(&self) -> Option<u64> {
        self.flags[0].then_some(self.other_ns % 5_000_000)
    }

    /// Parameters of CoDel.
    pub(super) fn codel(&self) -> CodelParams {
        CodelParams {
            target_ns: self.time_ns,
            interval_ns: self.other_ns,
            ecn: self.flags[2],
            ce_threshold_ns: self.ce_threshold_ns(),
            ce_threshold_selector: (self.any & 1) as u8,
            ce_threshold_mask: (self.any & 3) as u8,
        }
    }
}

/// CoDel that reacts faster than with its defaults.
pub(super) fn prompt_codel() -> CodelParams {
    CodelParams {
        target_ns: 500 * US,
        interval_ns: 5_000 * US,
        ecn: true,
        ce_threshold_ns: Some(2_000 * US),
        ..CodelParams::default()
    }
}

fn random(seed: u64) -> Random {
    Random::new(seed, Purpose::Queue(0))
}

fn ecn(number: u64) -> Ecn {
    [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce][number as usize % 4]
}

proptest! {
    /// Every packet leaves once, in its flow's order and unchanged except for a mark, or is counted as dropped.
    #[test]
    fn packets_are_conserved_and_flows_keep_their_order(
        which in 0..QueueParams::small().len(),
        events in proptest::collection::vec((0_u64..400 * US, 60_u32..1515, 0_u64..16, 0_u8..3), 1..400),
    ) {
        let mut queue = QueueParams::small()[which].build(Setup { capacity: events.len(), frame_bytes: 1514, random: random(5) });
        let (mut now_ns, mut sent, mut out, mut dropped) = (0, Vec::new(), Vec::new(), Vec::new());
        for &(gap_ns, bytes, kind, dequeues) in &events {
            now_ns += gap_ns;
            let packet = Packet {
                slot: sent.len() as u32,
                bytes,
                flow: (kind / 4) as u32,
                ecn: ecn(kind),
                ..Packet::default()
            };
            sent.push(packet);
            queue.enqueue(now_ns, packet, &mut dropped);
            for _ in 0..dequeues {
                out.extend(queue.dequeue(now_ns, &mut dropped));
            }
        }
        let (packets, bytes) = queue.backlog();
        let stats = queue.stats(now_ns);
        prop_assert_eq!(sent.len(), out.len() + dropped.len() + packets as usize);
        prop_assert_eq!(stats.dropped(), dropped.len() as u64);
        let most = QueueParams::small()[which].max_packets(60);
        prop_assert!(packets <= most, "{packets} of {most}");
        while let Some(packet) = queue.dequeue(now_ns, &mut dropped) {
            out.push(packet);
        }
        prop_assert_eq!((sent.len(), queue.backlog()), (out.len() + dropped.len(), (0, 0)));
        prop_assert_eq!(queue.dequeue(now_ns, &mut dropped), None);
        prop_assert!(packets > 0 || bytes == 0);

        let mut seen: Vec<u32> = out.iter().map(|p| p.slot).chain(dropped.iter().copied()).collect();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..sent.len() as u32).collect::<Vec<_>>());
        for packet in &out {
            let before = sent[packet.slot as usize];
            prop_assert_eq!((packet.bytes, packet.flow), (before.bytes, before.flow));
            let may_mark = matches!(before.ecn, Ecn::Ect0 | Ecn::Ect1);
            let right = if packet.marked {
                may_mark && packet.ecn == Ecn::Ce
            } else {
                packet.ecn == before.ecn
            };
            prop_assert!(right, "{packet:?}");
        }
        // DualPI2 keeps the order of the packets in each of its queues.
        let is_low = |p: &Packet| matches!(sent[p.slot as usize].ecn, Ecn::Ect1 | Ecn::Ce);
        for flow in 0..4 {
            for low in [false, true] {
                let of: Vec<u32> = out
                    .iter()
                    .filter(|p| p.flow == flow && is_low(p) == low)
                    .map(|p| p.slot)
                    .collect();
                prop_assert!(of.is_sorted(), "{:?}", of);
            }
        }
    }

    /// Removing a packet from any place leaves the others unchanged.
    #[test]
    fn removed_packets_are_gone_and_no_others(
        which in 0..QueueParams::small().len(),
        events in proptest::collection::vec((60_u32..1515, 0_u64..16, any::<proptest::sample::Index>()), 1..120),
    ) {
        let mut queue = QueueParams::small()[which].build(Setup { capacity: events.len(), frame_bytes: 1514, random: random(5) });
        let (mut inside, mut removed, mut dropped) = (Vec::new(), 0, Vec::new());
        for (slot, &(bytes, kind, index)) in (0_u32..).zip(&events) {
            let flow = (kind / 4) as u32;
            queue.enqueue(0, Packet { slot, bytes, flow, ecn: ecn(kind), ..Packet::default() }, &mut dropped);
            inside.push((slot, bytes, flow));
            inside.retain(|(slot, ..)| !dropped.contains(slot));
            if kind.is_multiple_of(3) && !inside.is_empty() {
                let (slot, bytes, flow) = inside.remove(index.index(inside.len()));
                prop_assert_eq!(queue.remove(slot, flow).map(|packet| (packet.slot, packet.bytes)), Some((slot, bytes)));
                prop_assert_eq!(queue.remove(slot, flow), None);
                removed += 1;
            }
            let bytes: u64 = inside.iter().map(|(_, bytes, _)| u64::from(*bytes)).sum();
            prop_assert_eq!(queue.backlog(), (inside.len() as u64, bytes));
        }
        let mut out: Vec<u32> = std::iter::from_fn(|| queue.dequeue(0, &mut dropped)).map(|packet| packet.slot).collect();
        prop_assert_eq!(out.len() + dropped.len() + removed, events.len());
        out.retain(|slot| !inside.iter().any(|(of, ..)| of == slot));
        prop_assert!(out.is_empty(), "{:?}", out);
    }

    /// With any parameters that a plan may have: every packet is counted, nothing panics, the limits hold.
    #[test]
    fn any_parameters_conserve_packets(
        kind in any::<proptest::sample::Index>(),
        (limit, small, any) in (1_u32..60, 0_u32..40, any::<u32>()),
        (time_ns, other_ns) in (1_000..60_000_000_000_u64, 1_000..60_000_000_000_u64),
        flags in any::<[bool; 4]>(),
        events in proptest::collection::vec((0_u64..3_000 * US, 60_u32..1515, 0_u64..16, 0_u8..3), 1..150),
    ) {
        // Short times as well, so that queues that compare times act at all.
        let (time_ns, other_ns) = match flags[1] {
            true => (time_ns % 3_000_000 + 1_000, other_ns % 9_000_000 + 1_000),
            false => (time_ns, other_ns),
        };
        let bytes = u64::from(limit) * 100 + 1514;
        let numbers = Numbers { limit, bytes, small, any, time_ns, other_ns, flags };
        let specs = QueueParams::any(&numbers);
        let spec = specs[kind.index(specs.len())];
        let mut queue = spec.build(Setup { capacity: events.len(), frame_bytes: 1514, random: random(9) });
        let (mut now_ns, mut out, mut dropped) = (0, Vec::new(), Vec::new());
        for (slot, &(gap_ns, bytes, kind, dequeues)) in events.iter().enumerate() {
            now_ns += gap_ns;
            let (slot, flow) = (slot as u32, (kind / 4) as u32);
            let packet = Packet { slot, bytes, flow, ecn: ecn(kind), ..Packet::default() };
            queue.enqueue(now_ns, packet, &mut dropped);
            for _ in 0..dequeues {
                out.extend(queue.dequeue(now_ns, &mut dropped).map(|packet| packet.slot));
            }
            prop_assert!(queue.backlog().0 <= spec.max_packets(60));
        }
        now_ns += 3_000_000_000;
        queue.advance_to(now_ns);
        out.extend(std::iter::from_fn(|| queue.dequeue(now_ns, &mut dropped)).map(|p| p.slot));
        prop_assert_eq!(queue.stats(now_ns).dropped(), dropped.len() as u64);
        prop_assert_eq!(queue.backlog(), (0, 0));
        out.extend(&dropped);
        out.sort_unstable();
        prop_assert_eq!(out, (0..events.len() as u32).collect::<Vec<_>>());
    }

    /// A thread that is scheduled late makes the same decisions.
    #[test]
    fn decisions_depend_only_on_packet_times(
        which in 0..QueueParams::small().len(),
        arrivals in proptest::collection::vec((0_u64..200 * US, 60_u32..1515, 0_u64..16), 1..200),
        looks in proptest::collection::vec(any::<bool>(), 200),
    ) {
        let mut spec = LinkSpec { seed: 3, ..LinkSpec::rated(50_000_000, QueueParams::small()[which]) };
        spec.plan.delay = Some(Micros::new(100));
        let run = |prompt: bool| {
            let mut link = LinkModel::new(&spec, arrivals.len(), 1514);
            let (mut now_ns, mut freed, mut marked) = (1_000, Vec::new(), Vec::new());
            link.advance(0, &mut freed);
            for (nth, &(gap_ns, bytes, kind)) in arrivals.iter().enumerate() {
                now_ns += gap_ns;
                let (slot, flow) = (nth as u32, (kind / 4) as u32);
                link.arrive(Packet { slot, bytes, at_ns: now_ns, flow, ecn: ecn(kind), ..Packet::default() });
                if prompt || looks[nth] {
                    link.advance(now_ns, &mut freed);
                }
            }
            link.advance(now_ns + 1_000_000 * US, &mut freed);
            while let Some(slot) = link.next_marked() {
                marked.push(slot);
            }
            marked.sort_unstable();
            let out: Vec<Packet> = std::iter::from_fn(|| link.pop_departed()).collect();
            assert_eq!(link.counts().arrived, (out.len() + freed.len()) as u64);
            assert_eq!(marked.len(), out.iter().filter(|p| p.marked).count());
            (out, freed, marked)
        };
        prop_assert_eq!(run(true), run(false));
    }
}

/// Frames of 1500 bytes arrive at 12 Mbit/s at a line of 10 Mbit/s, in turn ECT(1), Not-ECT, ECT(0) and CE; then none. Returns the dropped
/// packets (`-`), then the marked ones (`*`) in order of departure.
fn signals(queue: QueueParams) -> String {
    let spec = LinkSpec { seed: 7, ..LinkSpec::rated(10_000_000, queue) };
    let mut link = LinkModel::new(&spec, 400, 1514);
    let mut freed = Vec::new();
    link.advance(0, &mut freed);
    for slot in 0..400_u32 {
        let at_ns = 1_000 + u64::from(slot) * 1_000_000;
        let kind = u64::from(slot);
        link.arrive(Packet {
            slot,
            bytes: 1500,
            at_ns,
            flow: slot % 3,
            ecn: ecn(kind),
            ..Packet::default()
        });
    }
    link.advance(10_000_000_000, &mut freed);
    freed.sort_unstable();
    let marked: Vec<String> = std::iter::from_fn(|| link.pop_departed())
        .filter(|p| p.marked)
        .map(|p| format!("*{}", p.slot))
        .collect();
    let dropped: Vec<String> = freed.iter().map(|slot| format!("-{slot}")).collect();
    [dropped, marked].concat().join(" ")
}

#[test]
fn golden_sequences() {
    let wrong: Vec<String> = QueueParams::golden()
        .into_iter()
        .filter_map(|(queue, wanted)| {
            let found = signals(queue);
            (found != wanted).then(|| format!("{queue:?}\n{found}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Also prints nanoseconds per packet, through the whole link with a standing queue of up to 100 packets:
/// `cargo test --workspace --features netns,browser --lib returns_every_slot -- --nocapture`.
#[test]
fn returns_every_slot_behind_a_standing_queue() {
    const PACKETS: u64 = 200_000;
    for (queue, _) in QueueParams::golden() {
        let spec = LinkSpec::rated(4_000_000_000, queue);
        let mut link = LinkModel::new(&spec, 2048, 1514);
        let mut free: Vec<u32> = (0..2048).collect();
        let began_ns = crate::clock::monotonic_ns();
        let mut now_ns = 0;
        for number in 0..PACKETS {
            // 1500 bytes take 3 us. First a burst, then arrivals at the line's rate.
            now_ns += if number < 100 { 0 } else { 3_000 };
            let slot = free.pop().unwrap();
            let flow = (number % 16) as u32;
            let kind = [Ecn::Ect0, Ecn::Ect1][number as usize % 2];
            link.arrive(Packet {
                slot,
                bytes: 1500,
                at_ns: now_ns,
                flow,
                ecn: kind,
                ..Packet::default()
            });
            link.advance(now_ns, &mut free);
            while link.next_marked().is_some() {}
            while let Some(packet) = link.pop_departed() {
                free.push(packet.slot);
            }
        }
        let took_ns = crate::clock::monotonic_ns() - began_ns;
        println!("{:5} ns: {}", took_ns / PACKETS, format!("{queue:?}").split('(').next().unwrap());
        link.advance(now_ns + 1_000_000_000, &mut free);
        while let Some(packet) = link.pop_departed() {
            free.push(packet.slot);
        }
        free.sort_unstable();
        free.dedup();
        assert_eq!(free.len(), 2048, "{queue:?}: every slot is returned once");
    }
}

#[test]
fn a_lower_limit_drops_and_counts_the_excess() {
    let codel = CodelQueueParams { limit: 4, ..CodelQueueParams::default() };
    let fifo = |packets| QueueParams::TailDrop(FifoLimit::Packets(packets));
    let changes = [
        (QueueParams::Codel(CodelQueueParams::default()), QueueParams::Codel(codel), 6),
        (
            QueueParams::Pie(PieParams::default()),
            QueueParams::Pie(PieParams { limit: 4, ..PieParams::default() }),
            6,
        ),
        (
            QueueParams::Fq(FqParams::default()),
            QueueParams::Fq(FqParams { limit: 4, ..FqParams::default() }),
            6,
        ),
        // Half of the bytes of the fattest flow, twice: five packets and three.
        (
            QueueParams::FqCodel(FqCodelParams::default()),
            QueueParams::FqCodel(FqCodelParams { limit: 4, ..FqCodelParams::default() }),
            8,
        ),
        (
            QueueParams::Dualpi2(Dualpi2Params::default()),
            QueueParams::Dualpi2(Dualpi2Params { limit: 4, ..Dualpi2Params::default() }),
            6,
        ),
        // As with `pfifo`, only arrivals are dropped.
        (fifo(20), fifo(4), 0),
    ];
    for (before, after, drops) in changes {
        let mut queue = before.build(Setup { capacity: 16, frame_bytes: 1514, random: random(1) });
        let mut dropped = Vec::new();
        for slot in 0..10 {
            let packet = Packet { slot, bytes: 100, flow: 1, ..Packet::default() };
            queue.enqueue(0, packet, &mut dropped);
        }
        queue.set_params(after, &mut dropped);
        let counted = (dropped.len() as u64, queue.backlog().0, queue.stats(0).dropped());
        assert_eq!(counted, (drops, 10 - drops, drops), "{after:?}");
    }
    // Parameters of another kind have no effect.
    let mut queue = fifo(20).build(Setup { capacity: 16, frame_bytes: 1514, random: random(1) });
    queue.set_params(QueueParams::Codel(codel), &mut Vec::new());
    queue.set_params(fifo(1), &mut Vec::new());
    let mut dropped = Vec::new();
    for slot in 0..3 {
        queue.enqueue(0, Packet { slot, bytes: 100, ..Packet::default() }, &mut dropped);
    }
    assert_eq!(dropped, [1, 2]);
}
