//! Pure TCP acknowledgements behind the delay: the aggregation that holds them back and releases them together, and the ACK filters that
//! drop superseded ones, one for held acknowledgements and one for the queue.

use std::collections::VecDeque;

use ccbench_proto::plan::{AckAggregation, Link};
use ccbench_proto::units::Packets;

use super::ack_filter::AckFilter;
use crate::datapath::packet::Packet;
use crate::datapath::tcp_header::TcpHeader;

/// Acknowledgements that wait.
#[derive(Debug)]
pub(super) struct Acks {
    /// The queue's filter.
    filter: Option<AckFilter>,
    aggregation: Option<Aggregation>,
}

/// Acknowledgements that are held back.
#[derive(Debug)]
struct Aggregation {
    filter: Option<AckFilter>,
    hold_ns: u64,
    max_packets: usize,
    held: VecDeque<Packet>,
    /// When all are released; `u64::MAX`: none is held.
    release_ns: u64,
    /// Number held back so far.
    count: u64,
}

impl Acks {
    /// Returns `None` for a link with neither aggregation nor filter. `capacity`: slots of the link.
    pub(super) fn new(plan: &Link, capacity: usize) -> Option<Box<Self>> {
        let filter = || plan.ack_filter.then(|| AckFilter::new(capacity));
        let aggregation =
            plan.ack_aggregation.map(|plan| Aggregation::new(plan, filter(), capacity));
        let filter = filter();
        (filter.is_some() || aggregation.is_some()).then(|| Box::new(Self { filter, aggregation }))
    }

    /// Returns whether acknowledgements are held back, so that other packets overtake them.
    pub(super) fn may_hold(&self) -> bool {
        self.aggregation.is_some()
    }

    /// Stores the TCP header of the packet that is in a slot from now on; `None`: it is not TCP.
    pub(super) fn read(&mut self, slot: u32, tcp: Option<TcpHeader>) {
        for filter in self.filters_mut() {
            filter.read(slot, tcp);
        }
    }

    /// Takes a packet whose delay ended at its `at_ns`. Returns the packet if it enters the queue now, `None` if it is held back. Slots of
    /// held acknowledgements that it supersedes go to `freed`.
    pub(super) fn end_delay(&mut self, packet: Packet, freed: &mut Vec<u32>) -> Option<Packet> {
        match &mut self.aggregation {
            Some(aggregation) if packet.is_pure_ack => {
                freed.extend(aggregation.hold(packet));
                None
            }
            _ => Some(packet),
        }
    }

    /// Returns when [`Self::release`] is due; `u64::MAX`: nothing is held back.
    pub(super) fn next_ns(&self) -> u64 {
        self.aggregation.as_ref().map_or(u64::MAX, |aggregation| aggregation.release_ns)
    }

    /// Returns the next packet that is released at `now_ns`.
    pub(super) fn release(&mut self, now_ns: u64) -> Option<Packet> {
        let packet = self.aggregation.as_mut()?.release()?;
        Some(Packet { at_ns: now_ns, ..packet })
    }

    /// Takes a packet that is about to enter the queue. Returns the slot of the acknowledgement to remove from the queue.
    pub(super) fn enter_queue(&mut self, packet: &Packet) -> Option<u32> {
        self.filter.as_mut()?.enter(packet)
    }

    /// Records that packets have left the queue, for the line or dropped.
    pub(super) fn leave(&mut self, slots: &[u32]) {
        if let Some(filter) = &mut self.filter {
            for slot in slots {
                filter.leave(*slot);
            }
        }
    }

    /// Packets that are held back now.
    #[cfg(test)]
    pub(super) fn held(&self) -> u64 {
        self.aggregation.as_ref().map_or(0, |aggregation| aggregation.held.len() as u64)
    }

    /// Returns the number of packets that have been held back, and of those that the filters have dropped.
    pub(super) fn counts(&self) -> (u64, u64) {
        let held = self.aggregation.as_ref().map_or(0, |aggregation| aggregation.count);
        let of_held = self.aggregation.as_ref().and_then(|aggregation| aggregation.filter.as_ref());
        let filters = [self.filter.as_ref(), of_held];
        (held, filters.into_iter().flatten().map(AckFilter::dropped).sum())
    }

    fn filters_mut(&mut self) -> impl Iterator<Item = &mut AckFilter> {
        let of_held = self.aggregation.as_mut().and_then(|aggregation| aggregation.filter.as_mut());
        self.filter.iter_mut().chain(of_held)
    }
}

impl Aggregation {
    fn new(plan: AckAggregation, filter: Option<AckFilter>, capacity: usize) -> Self {
        let max_packets = plan.packets.map_or(u32::MAX, Packets::get);
        Self {
            filter,
            hold_ns: plan.hold.nanos(),
            max_packets: max_packets as usize,
            held: VecDeque::with_capacity(capacity),
            release_ns: u64::MAX,
            count: 0,
        }
    }

    /// Returns the slot of the packet that this one supersedes and that is no longer held. The release time stays the same.
    fn hold(&mut self, packet: Packet) -> Option<u32> {
        if self.held.is_empty() {
            self.release_ns = packet.at_ns.saturating_add(self.hold_ns);
        }
        let superseded = self.filter.as_mut().and_then(|filter| filter.enter(&packet));
        if let Some(slot) = superseded {
            self.held.retain(|held| held.slot != slot);
        }
        self.count += 1;
        self.held.push_back(packet);
        if self.held.len() >= self.max_packets {
            self.release_ns = packet.at_ns;
        }
        superseded
    }

    fn release(&mut self) -> Option<Packet> {
        let packet = self.held.pop_front();
        match packet {
            None => self.release_ns = u64::MAX,
            Some(packet) => {
                if let Some(filter) = &mut self.filter {
                    filter.leave(packet.slot);
                }
            }
        }
        packet
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::units::Micros;

    use super::*;

    const MS: u64 = 1_000_000;

    /// 2 ms, and at most three packets.
    fn aggregation(ack_filter: bool) -> Box<Acks> {
        let hold = Micros::from_millis(2);
        let ack_aggregation = Some(AckAggregation { hold, packets: Some(Packets::new(3)) });
        Acks::new(&Link { ack_filter, ack_aggregation, ..Link::default() }, 16).unwrap()
    }

    /// Ends the delay of an acknowledgement. Returns the slots of dropped ones.
    fn hold(acks: &mut Acks, slot: u32, at_ns: u64, ack_seq: u32) -> Vec<u32> {
        let tcp = TcpHeader { ack_seq, flags: TcpHeader::ACK, ..TcpHeader::default() };
        acks.read(slot, Some(tcp));
        let mut freed = Vec::new();
        assert_eq!(acks.end_delay(ack(slot, at_ns), &mut freed), None);
        freed
    }

    fn ack(slot: u32, at_ns: u64) -> Packet {
        Packet { slot, at_ns, bytes: 66, flow: 7, is_pure_ack: true, ..Packet::default() }
    }

    fn released(acks: &mut Acks, at_ns: u64) -> Vec<(u32, u64)> {
        let one = || acks.release(at_ns).map(|packet| (packet.slot, packet.at_ns));
        std::iter::from_fn(one).collect()
    }

    #[test]
    fn held_ones_leave_after_the_time_or_when_they_are_enough() {
        let mut acks = aggregation(false);
        let filter = Acks::new(&Link { ack_filter: true, ..Link::default() }, 16).unwrap();
        assert!(acks.may_hold() && !filter.may_hold());
        assert!(Acks::new(&Link::default(), 16).is_none());
        hold(&mut acks, 0, MS, 100);
        hold(&mut acks, 1, MS + 5, 200);
        let data = Packet { slot: 2, bytes: 1514, flow: 7, ..Packet::default() };
        assert_eq!(acks.end_delay(data, &mut Vec::new()), Some(data));
        assert_eq!((acks.next_ns(), acks.held()), (3 * MS, 2));
        assert_eq!(released(&mut acks, 3 * MS), [(0, 3 * MS), (1, 3 * MS)]);
        assert_eq!((acks.next_ns(), acks.held()), (u64::MAX, 0));
        for slot in 3..6 {
            hold(&mut acks, slot, 4 * MS + u64::from(slot), 300 + slot);
        }
        assert_eq!(acks.next_ns(), 4 * MS + 5);
        assert_eq!(released(&mut acks, 4 * MS + 5).len(), 3);
        assert_eq!(acks.counts(), (5, 0));
    }

    #[test]
    fn superseded_ones_are_dropped_where_they_are_held_and_in_the_queue() {
        let mut acks = aggregation(true);
        assert!(hold(&mut acks, 0, MS, 100).is_empty());
        assert_eq!(hold(&mut acks, 1, MS + 5, 101), [0]);
        // The release time of the first one stays.
        assert_eq!(acks.next_ns(), 3 * MS);
        assert_eq!(released(&mut acks, 3 * MS), [(1, 3 * MS)]);
        assert_eq!(acks.enter_queue(&ack(1, 3 * MS)), None);
        // A held acknowledgement supersedes nothing in the queue before it enters.
        assert!(hold(&mut acks, 2, 3 * MS, 200).is_empty());
        assert_eq!(released(&mut acks, 5 * MS), [(2, 5 * MS)]);
        assert_eq!(acks.enter_queue(&ack(2, 5 * MS)), Some(1));
        acks.leave(&[2]);
        hold(&mut acks, 3, 6 * MS, 300);
        assert_eq!(released(&mut acks, 8 * MS).len(), 1);
        assert_eq!(acks.enter_queue(&ack(3, 8 * MS)), None, "it has left");
        assert_eq!(acks.counts(), (4, 2));
    }
}
