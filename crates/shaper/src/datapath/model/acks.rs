//! Pure acknowledgements of TCP behind the delay: the filter that drops superseded ones while they wait, and the aggregation
//! that holds them back and releases them together.
//!
//! The filter follows CAKE's `ack-filter-aggressive` (`cake_ack_filter` in `sch_cake.c`) and drops less: an acknowledgement goes
//! only if a later one of its flow acknowledges more, has the same ECN flags, and neither of them, nor a packet between them, has
//! SACK blocks, counters of AccECN, other options than a timestamp, data, or CE. A superseded acknowledgement keeps its place in
//! the queue, and counts against its limit, until it is its turn.

use std::collections::VecDeque;

use ccbench_proto::plan::{AckAggregation, Link};
use ccbench_proto::units::Packets;

use crate::datapath::packet::Packet;

/// Flows whose latest acknowledgement is known, by the last bits of their hash. Of two flows in one place, the earlier one's
/// acknowledgements are not superseded.
const FLOWS: usize = 1024;

/// Acknowledgements that wait.
#[derive(Debug)]
pub(super) struct Acks {
    filter: Option<Filter>,
    aggregation: Option<Aggregation>,
}

/// Acknowledgements that are held back.
#[derive(Debug)]
struct Aggregation {
    hold_ns: u64,
    max_packets: usize,
    held: VecDeque<Packet>,
    /// When all leave; `u64::MAX`: none is held.
    release_ns: u64,
    /// Held so far.
    count: u64,
}

#[derive(Debug)]
struct Filter {
    latest: Vec<Latest>,
    /// By slot.
    waiting: Vec<Waiting>,
    /// Number of the last packet that entered.
    number: u32,
    dropped: u64,
}

/// The latest plain acknowledgement of a flow.
#[derive(Debug, Clone, Copy, Default)]
struct Latest {
    flow: u32,
    slot: u32,
    /// That of [`Waiting`]; 0: there is none.
    number: u32,
    ack_number: u32,
    ack_bits: u8,
}

/// The packet in a slot.
#[derive(Debug, Clone, Copy, Default)]
struct Waiting {
    /// In the order of entry; 0: it does not wait.
    number: u32,
    is_superseded: bool,
    /// The latest acknowledgement in its place before it entered.
    before: Latest,
}

impl Acks {
    /// `None` for a link with neither of both. `capacity`: slots of the link.
    pub(super) fn new(plan: &Link, capacity: usize) -> Option<Box<Self>> {
        let filter = plan.ack_filter.then(|| Filter::new(capacity));
        let aggregation = plan.ack_aggregation.map(|plan| Aggregation::new(plan, capacity));
        (filter.is_some() || aggregation.is_some()).then(|| Box::new(Self { filter, aggregation }))
    }

    /// Whether acknowledgements are held back, so that other packets overtake them.
    pub(super) fn may_hold(&self) -> bool {
        self.aggregation.is_some()
    }

    /// The delay of a packet has ended at its `at_ns`. The result is to enter the queue; `None`: the packet is held back.
    pub(super) fn enter(&mut self, packet: Packet) -> Option<Packet> {
        if let Some(filter) = &mut self.filter {
            filter.enter(&packet);
        }
        match &mut self.aggregation {
            Some(aggregation) if packet.is_pure_ack() => {
                aggregation.hold(packet);
                None
            }
            _ => Some(packet),
        }
    }

    /// When [`Self::release`] is due; `u64::MAX`: nothing is held back.
    pub(super) fn next_ns(&self) -> u64 {
        self.aggregation.as_ref().map_or(u64::MAX, |aggregation| aggregation.release_ns)
    }

    /// The next packet that is released at `now_ns`. Slots of superseded ones go to `freed`.
    pub(super) fn release(&mut self, now_ns: u64, freed: &mut Vec<u32>) -> Option<Packet> {
        let aggregation = self.aggregation.as_mut()?;
        while let Some(packet) = aggregation.held.pop_front() {
            if !self.filter.as_mut().is_some_and(|filter| filter.drops(&packet)) {
                return Some(Packet { at_ns: now_ns, ..packet });
            }
            freed.push(packet.slot);
        }
        aggregation.release_ns = u64::MAX;
        None
    }

    /// The queue has dropped a packet instead of taking it.
    pub(super) fn refused(&mut self, packet: &Packet) {
        if let Some(filter) = &mut self.filter {
            filter.refused(packet);
        }
    }

    /// A packet has left the queue; `false`: it is superseded and has to be dropped.
    pub(super) fn leave(&mut self, packet: &Packet) -> bool {
        let Some(filter) = &mut self.filter else { return true };
        if filter.drops(packet) {
            return false;
        }
        filter.waiting[packet.slot as usize] = Waiting::default();
        true
    }

    /// Packets that are held back now.
    #[cfg(test)]
    pub(super) fn held(&self) -> u64 {
        self.aggregation.as_ref().map_or(0, |aggregation| aggregation.held.len() as u64)
    }

    /// Packets that have been held back, and that the filter has dropped.
    pub(super) fn counts(&self) -> (u64, u64) {
        let held = self.aggregation.as_ref().map_or(0, |aggregation| aggregation.count);
        (held, self.filter.as_ref().map_or(0, |filter| filter.dropped))
    }
}

impl Aggregation {
    fn new(plan: AckAggregation, capacity: usize) -> Self {
        let max_packets = plan.packets.map_or(u32::MAX, Packets::get);
        Self {
            hold_ns: plan.hold.nanos(),
            max_packets: max_packets as usize,
            held: VecDeque::with_capacity(capacity),
            release_ns: u64::MAX,
            count: 0,
        }
    }

    fn hold(&mut self, packet: Packet) {
        if self.held.is_empty() {
            self.release_ns = packet.at_ns.saturating_add(self.hold_ns);
        }
        self.count += 1;
        self.held.push_back(packet);
        if self.held.len() >= self.max_packets {
            self.release_ns = packet.at_ns;
        }
    }
}

impl Filter {
    fn new(capacity: usize) -> Self {
        Self {
            latest: vec![Latest::default(); FLOWS],
            waiting: vec![Waiting::default(); capacity],
            number: 0,
            dropped: 0,
        }
    }

    /// A packet begins to wait. It may supersede the latest one of its flow.
    fn enter(&mut self, packet: &Packet) {
        self.number = self.number.wrapping_add(1).max(1);
        let number = self.number;
        let latest = &mut self.latest[packet.flow as usize % FLOWS];
        self.waiting[packet.slot as usize] =
            Waiting { number, is_superseded: false, before: *latest };
        let is_same_flow = latest.number > 0 && latest.flow == packet.flow;
        if !packet.is_plain_ack() {
            if is_same_flow {
                latest.number = 0;
            }
            return;
        }
        let Packet { flow, slot, ack_number, ack_bits, .. } = *packet;
        let more = ack_number.wrapping_sub(latest.ack_number).cast_signed() > 0;
        if is_same_flow && latest.ack_bits == ack_bits && more {
            // The queue may have dropped it, and its slot may have another packet.
            let before = &mut self.waiting[latest.slot as usize];
            before.is_superseded |= before.number == latest.number;
        }
        *latest = Latest { flow, slot, number, ack_number, ack_bits };
    }

    /// The queue has refused a packet: what it superseded stays.
    fn refused(&mut self, packet: &Packet) {
        let Waiting { number, before, .. } =
            std::mem::take(&mut self.waiting[packet.slot as usize]);
        let latest = &mut self.latest[packet.flow as usize % FLOWS];
        if latest.number == number {
            *latest = before;
        }
        let earlier = &mut self.waiting[before.slot as usize];
        if earlier.number == before.number {
            earlier.is_superseded = false;
        }
    }

    /// Whether a waiting packet is superseded, which is counted.
    fn drops(&mut self, packet: &Packet) -> bool {
        let waiting = &mut self.waiting[packet.slot as usize];
        let is_superseded = waiting.is_superseded;
        if is_superseded {
            *waiting = Waiting::default();
            self.dropped += 1;
        }
        is_superseded
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::units::Micros;

    use super::*;
    use crate::datapath::header::{Ecn, PureAck};

    const MS: u64 = 1_000_000;

    fn filter() -> Box<Acks> {
        Acks::new(&Link { ack_filter: true, ..Link::default() }, 16).unwrap()
    }

    /// An acknowledgement of flow 7 at this time.
    fn ack(slot: u32, at_ns: u64, number: u32) -> Packet {
        let ack = PureAck { number, ..PureAck::default() };
        Packet { slot, at_ns, bytes: 66, flow: 7, ..Packet::default() }.with_ack(Some(ack))
    }

    /// Whether each of these packets, which wait together, stays.
    fn stay(packets: &[Packet]) -> Vec<bool> {
        let mut acks = filter();
        for packet in packets {
            assert_eq!(acks.enter(*packet), Some(*packet));
        }
        packets.iter().map(|packet| acks.leave(packet)).collect()
    }

    #[test]
    fn later_acknowledgement_supersedes_the_one_before() {
        let numbers = [(0, 100), (1, 200), (2, 300), (3, 300)];
        let waiting = numbers.map(|(slot, number)| ack(slot, 0, number));
        assert_eq!(stay(&waiting), [false, false, true, true]);
        let wrapped = [ack(0, 0, u32::MAX - 9), ack(1, 0, 5)];
        assert_eq!(stay(&wrapped), [false, true]);
        let late = [ack(0, 0, 200), ack(1, 0, 100)];
        assert_eq!(stay(&late), [true, true]);
    }

    #[test]
    fn refused_acknowledgement_supersedes_nothing() {
        let mut acks = filter();
        let waiting = [ack(0, 0, 100), ack(1, 0, 200)];
        for packet in &waiting {
            acks.enter(*packet);
        }
        acks.refused(&waiting[1]);
        assert!(acks.leave(&waiting[0]));
        // The next one supersedes the first one again.
        let mut acks = filter();
        for packet in &waiting {
            acks.enter(*packet);
        }
        acks.refused(&waiting[1]);
        acks.enter(ack(2, 0, 300));
        assert!(!acks.leave(&waiting[0]) && acks.leave(&ack(2, 0, 300)));
    }

    #[test]
    fn acknowledgement_that_has_left_is_not_superseded() {
        let mut acks = filter();
        let (first, second) = (ack(0, 0, 100), ack(1, 0, 200));
        acks.enter(first);
        assert!(acks.leave(&first));
        acks.enter(second);
        assert!(acks.leave(&second));
        assert_eq!(acks.counts(), (0, 0));
    }

    #[test]
    fn what_a_later_one_may_not_have_stays() {
        let (first, second) = (ack(0, 0, 100), ack(2, 0, 300));
        let changed = |change: fn(PureAck) -> PureAck| {
            let plain = PureAck { number: 200, ..PureAck::default() };
            ack(1, 0, 200).with_ack(Some(change(plain)))
        };
        let between = [
            changed(|ack| PureAck { has_options: true, ..ack }),
            changed(|ack| PureAck { ecn_flags: 1, ..ack }),
            Packet { ecn: Ecn::Ce, ..ack(1, 0, 200) },
            Packet { slot: 1, bytes: 1514, flow: 7, ..Packet::default() },
        ];
        for packet in between {
            assert_eq!(stay(&[first, packet, second]), [true; 3], "{packet:?}");
        }
        let of_another_flow = Packet { flow: 8, ..ack(1, 0, 200) };
        assert_eq!(stay(&[first, of_another_flow, second]), [false, true, true]);
        // Both flows have the same place, and the second one takes it.
        let in_the_same_place = Packet { flow: 7 + 1024, ..ack(1, 0, 200) };
        assert_eq!(stay(&[first, in_the_same_place, second]), [true; 3]);
    }

    #[test]
    fn slot_that_is_used_again_has_another_packet() {
        let mut acks = filter();
        acks.enter(ack(0, 0, 100));
        // The queue has dropped it.
        let other = Packet { slot: 0, bytes: 1514, flow: 9, ..Packet::default() };
        acks.enter(other);
        acks.enter(ack(1, 0, 200));
        assert!(acks.leave(&other));
        assert_eq!(acks.counts(), (0, 0));
    }

    /// 2 ms, and at most three packets.
    fn aggregation(ack_filter: bool) -> Box<Acks> {
        let hold = Micros::from_millis(2);
        let ack_aggregation = Some(AckAggregation { hold, packets: Some(Packets::new(3)) });
        Acks::new(&Link { ack_filter, ack_aggregation, ..Link::default() }, 16).unwrap()
    }

    fn released(acks: &mut Acks, at_ns: u64) -> (Vec<(u32, u64)>, Vec<u32>) {
        let mut freed = Vec::new();
        let one = || acks.release(at_ns, &mut freed).map(|packet| (packet.slot, packet.at_ns));
        (std::iter::from_fn(one).collect(), freed)
    }

    #[test]
    fn held_ones_leave_after_the_time_or_when_they_are_enough() {
        let mut acks = aggregation(false);
        assert!(acks.may_hold() && !filter().may_hold());
        assert_eq!(acks.enter(ack(0, MS, 100)), None);
        assert_eq!(acks.enter(ack(1, MS + 5, 200)), None);
        let data = Packet { slot: 2, bytes: 1514, flow: 7, ..Packet::default() };
        assert_eq!(acks.enter(data), Some(data));
        assert_eq!((acks.next_ns(), acks.held()), (3 * MS, 2));
        let all = vec![(0, 3 * MS), (1, 3 * MS)];
        assert_eq!(released(&mut acks, 3 * MS), (all, vec![]));
        assert_eq!((acks.next_ns(), acks.held()), (u64::MAX, 0));
        for slot in 3..6 {
            acks.enter(ack(slot, 4 * MS + u64::from(slot), 300 + slot));
        }
        assert_eq!(acks.next_ns(), 4 * MS + 5);
        assert_eq!(released(&mut acks, 4 * MS + 5).0.len(), 3);
        assert_eq!(acks.counts(), (5, 0));
    }

    #[test]
    fn superseded_ones_are_dropped_where_they_are_held() {
        let mut acks = aggregation(true);
        for slot in 0..2 {
            acks.enter(ack(slot, MS, 100 + slot));
        }
        assert_eq!(released(&mut acks, 3 * MS), (vec![(1, 3 * MS)], vec![0]));
        // It waits in the queue now, and a later one supersedes it there.
        acks.enter(ack(2, 3 * MS, 200));
        assert!(!acks.leave(&ack(1, 3 * MS, 101)));
        assert_eq!(acks.counts(), (3, 2));
    }
}
