//! The ACK filter, which drops superseded acknowledgements: CAKE's `ack-filter-aggressive` (`cake_ack_filter()` in `net/sched/sch_cake.c`)
//! for segments that wait in any queue.
//!
//! A segment that begins to wait drops at most one of the segments in front of it: the first acknowledgement of its connection that it
//! supersedes ([`TcpHeader::is_superseded_by`]). This applies if it supersedes another one behind that one, too, and no segment between the
//! two has different ECN flags. If it supersedes only one, it drops that one if it is the last of its connection and has the same ECN
//! flags.
//!
//! A difference from the kernel: a flow hash of 32 bits identifies a connection, which is searched as if it had a queue of its own.

use crate::datapath::packet::Packet;
use crate::datapath::tcp_header::TcpHeader;

/// Number of lists of segments. The last bits of a flow's hash select its list.
const LISTS: usize = 1024;
/// No slot.
const NONE: u32 = u32::MAX;

/// The TCP segments that wait.
#[derive(Debug)]
pub(super) struct AckFilter {
    lists: Vec<List>,
    /// Indexed by slot.
    segments: Vec<Segment>,
    dropped: u64,
}

/// Segments in the order in which they began to wait, linked through their slots.
#[derive(Debug, Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
    /// How many of them may be dropped at all. If none, the search is skipped.
    droppable: u32,
}

/// The packet in a slot.
#[derive(Debug, Clone, Copy)]
struct Segment {
    /// `None`: it is not TCP.
    tcp: Option<TcpHeader>,
    flow: u32,
    /// Its neighbours in the list.
    prev: u32,
    next: u32,
    queued: bool,
}

impl AckFilter {
    /// Creates a filter for slots below `capacity`.
    pub(super) fn new(capacity: usize) -> Self {
        let segment = Segment { tcp: None, flow: 0, prev: NONE, next: NONE, queued: false };
        Self {
            lists: vec![List { head: NONE, tail: NONE, droppable: 0 }; LISTS],
            segments: vec![segment; capacity],
            dropped: 0,
        }
    }

    /// Stores the header of the packet that is in a slot from now on.
    pub(super) fn read(&mut self, slot: u32, tcp: Option<TcpHeader>) {
        self.segments[slot as usize].tcp = tcp;
    }

    /// A packet begins to wait. Returns the slot of the acknowledgement that is dropped because of it and no longer waits.
    pub(super) fn enter(&mut self, packet: &Packet) -> Option<u32> {
        let tcp = self.segments[packet.slot as usize].tcp?;
        let has_droppable = self.list(packet.flow).droppable > 0;
        let superseded = if has_droppable && tcp.may_supersede() {
            self.superseded_by(&tcp, packet.flow)
        } else {
            None
        };
        self.append(packet.slot, packet.flow, &tcp);
        if let Some(slot) = superseded {
            self.leave(slot);
            self.dropped += 1;
        }
        superseded
    }

    /// A packet no longer waits.
    pub(super) fn leave(&mut self, slot: u32) {
        let segment = &mut self.segments[slot as usize];
        if !std::mem::take(&mut segment.queued) {
            return;
        }
        let Segment { tcp, flow, prev, next, .. } = *segment;
        if prev != NONE {
            self.segments[prev as usize].next = next;
        }
        if next != NONE {
            self.segments[next as usize].prev = prev;
        }
        let list = self.list_mut(flow);
        if prev == NONE {
            list.head = next;
        }
        if next == NONE {
            list.tail = prev;
        }
        list.droppable -= u32::from(tcp.is_some_and(|tcp| tcp.is_droppable()));
    }

    /// Returns the number of acknowledgements dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    fn list(&self, flow: u32) -> &List {
        &self.lists[flow as usize % LISTS]
    }

    fn list_mut(&mut self, flow: u32) -> &mut List {
        &mut self.lists[flow as usize % LISTS]
    }

    /// The search of `cake_ack_filter()`.
    fn superseded_by(&self, later: &TcpHeader, flow: u32) -> Option<u32> {
        let mut eligible: Option<(u32, u16)> = None;
        let mut is_last = false;
        let mut next = self.list(flow).head;
        while next != NONE {
            let slot = next;
            let segment = &self.segments[slot as usize];
            next = segment.next;
            let Some(tcp) = segment.tcp.as_ref().filter(|_| segment.flow == flow) else { continue };
            is_last = false;
            // The ECN flags of the earlier one would be lost.
            eligible = eligible.filter(|(_, flags)| *flags == tcp.ecn_flags());
            if !tcp.is_superseded_by(later) {
                continue;
            }
            if let Some((first, _)) = eligible {
                return Some(first);
            }
            (eligible, is_last) = (Some((slot, tcp.ecn_flags())), true);
        }
        let (slot, flags) = eligible?;
        (is_last && flags == later.ecn_flags()).then_some(slot)
    }

    fn append(&mut self, slot: u32, flow: u32, tcp: &TcpHeader) {
        let list = self.list_mut(flow);
        let prev = std::mem::replace(&mut list.tail, slot);
        list.droppable += u32::from(tcp.is_droppable());
        if prev == NONE {
            list.head = slot;
        } else {
            self.segments[prev as usize].next = slot;
        }
        let segment = &mut self.segments[slot as usize];
        *segment = Segment { flow, prev, next: NONE, queued: true, ..*segment };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ACK: u16 = TcpHeader::ACK;
    const ECE: u16 = TcpHeader::ECE;
    const SYN: u16 = 2;

    fn ack(ack_seq: u32) -> TcpHeader {
        TcpHeader { ack_seq, flags: ACK, ..TcpHeader::default() }
    }

    fn with_flags(flags: u16, ack_seq: u32) -> TcpHeader {
        TcpHeader { flags: ACK | flags, ..ack(ack_seq) }
    }

    /// Returns a duplicate acknowledgement with a SACK block from 10 000 on.
    fn sacked(ack_seq: u32, end: u32) -> TcpHeader {
        let mut sacked = TcpHeader { sack_count: 1, ..ack(ack_seq) };
        sacked.sack_blocks[0] = (10_000, end);
        sacked
    }

    fn data(ack_seq: u32) -> TcpHeader {
        TcpHeader { has_data: true, ..ack(ack_seq) }
    }

    /// Lets a packet of a flow enter.
    fn enter(filter: &mut AckFilter, slot: u32, flow: u32, tcp: TcpHeader) -> Option<u32> {
        filter.read(slot, Some(tcp));
        filter.enter(&Packet { slot, flow, ..Packet::default() })
    }

    /// Returns the slots that are dropped, in order, while these segments of one flow enter one after the other.
    fn dropped(segments: &[TcpHeader]) -> Vec<u32> {
        let mut filter = AckFilter::new(segments.len());
        let found = (0..).zip(segments).filter_map(|(slot, tcp)| enter(&mut filter, slot, 7, *tcp));
        found.collect()
    }

    #[test]
    fn only_the_latest_of_plain_acknowledgements_stays() {
        assert_eq!(dropped(&[ack(100), ack(200), ack(300)]), [0, 1]);
        assert_eq!(dropped(&[ack(u32::MAX - 9), ack(5)]), [0]);
        assert!(dropped(&[ack(200), ack(100)]).is_empty());
        // Duplicate acknowledgements signal losses. The next one that acknowledges more supersedes them, one at a time.
        assert!(dropped(&[ack(100), ack(100), ack(100)]).is_empty());
        assert_eq!(dropped(&[ack(100), ack(100), ack(100), ack(200), ack(300)]), [0, 1]);
    }

    #[test]
    fn acknowledgements_of_a_recovery_are_dropped() {
        let growing = [ack(100), sacked(100, 11_000), sacked(100, 12_000), sacked(100, 13_000)];
        assert_eq!(dropped(&growing), [0, 1, 2]);
        assert!(dropped(&[sacked(100, 12_000), ack(20_000)]).is_empty(), "it has no blocks");
        assert_eq!(dropped(&[sacked(100, 12_000), sacked(200, 12_000)]), [0]);
    }

    #[test]
    fn ecn_flags_that_change_are_kept() {
        assert_eq!(dropped(&[with_flags(ECE, 1), with_flags(ECE, 2)]), [0]);
        let kept: [&[TcpHeader]; 4] = [
            &[ack(1), with_flags(ECE, 2)],
            &[with_flags(ECE, 1), ack(2)],
            // The last one supersedes both, but the flags differ.
            &[ack(1), with_flags(ECE, 2), with_flags(TcpHeader::CWR, 3)],
            &[with_flags(TcpHeader::AE, 1), with_flags(TcpHeader::AE, 2)],
        ];
        for segments in kept {
            assert!(dropped(segments).is_empty(), "{segments:?}");
        }
        // Two with the same flags wait, so the first is dropped whatever the flags of the third.
        let same = [ack(1), data(1), ack(2), with_flags(ECE, 3)];
        assert_eq!(dropped(&same), [0]);
    }

    #[test]
    fn data_between_acks_keeps_the_older_ack() {
        // Data is not dropped, and it supersedes the last acknowledgement in front of it.
        assert_eq!(dropped(&[ack(100), data(200), ack(300)]), [0]);
        assert!(dropped(&[ack(100), data(100), ack(300)]).is_empty());
        assert_eq!(dropped(&[ack(100), data(100), ack(300), ack(400)]), [0]);
    }

    #[test]
    fn flows_are_independent() {
        let mut filter = AckFilter::new(8);
        // The last and the first share a list.
        for (slot, flow) in [(0, 7), (1, 8), (2, 7 + LISTS as u32)] {
            assert_eq!(enter(&mut filter, slot, flow, ack(100)), None);
        }
        assert_eq!(enter(&mut filter, 3, 7, ack(200)), Some(0));
        assert_eq!(enter(&mut filter, 4, 7 + LISTS as u32, ack(200)), Some(2));
        assert_eq!(filter.dropped(), 2);
    }

    #[test]
    fn what_has_left_is_not_dropped() {
        let mut filter = AckFilter::new(2);
        enter(&mut filter, 0, 7, ack(100));
        filter.leave(0);
        filter.leave(0);
        assert_eq!(enter(&mut filter, 1, 7, ack(200)), None);
        // Its slot now holds another packet.
        filter.read(0, None);
        assert_eq!(filter.enter(&Packet { slot: 0, flow: 7, ..Packet::default() }), None);
        filter.leave(0);
        filter.leave(1);
        assert_eq!(enter(&mut filter, 0, 7, ack(300)), None);
    }

    /// Applies the rules of `cake_ack_filter()` to a list of waiting segments, each with its flow.
    fn cake(waiting: &[(u32, u32, TcpHeader)], flow: u32, later: &TcpHeader) -> Option<u32> {
        if !later.may_supersede() {
            return None;
        }
        let own: Vec<_> = waiting.iter().filter(|(_, of, _)| *of == flow).collect();
        let eligible: Vec<usize> =
            (0..own.len()).filter(|&place| own[place].2.is_superseded_by(later)).collect();
        let flags = |place: usize| own[place].2.ecn_flags();
        let same = |from: usize, to: usize| (from..=to).all(|place| flags(place) == flags(from));
        let pair = eligible.windows(2).find(|pair| same(pair[0], pair[1])).map(|pair| pair[0]);
        let last = eligible
            .last()
            .copied()
            .filter(|&place| place + 1 == own.len() && flags(place) == later.ecn_flags());
        pair.or(last).map(|place| own[place].0)
    }

    proptest! {
        /// For any order of arrivals and departures, the lists hold what waits, and CAKE's rules decide.
        #[test]
        fn rules_are_cakes(
            events in proptest::collection::vec(
                (0..3_u32, 0..6_u32, 0..8_u32, 0..12_u8, any::<proptest::sample::Index>()),
                1..120,
            ),
        ) {
            let mut filter = AckFilter::new(events.len());
            let mut waiting: Vec<(u32, u32, TcpHeader)> = Vec::new();
            let mut gone = 0;
            for (slot, (flow, ack_seq, end, kind, index)) in (0..).zip(events) {
                let flow = [3, 4, 3 + LISTS as u32][flow as usize];
                let tcp = match kind {
                    0 => data(ack_seq),
                    1 | 2 => with_flags(ECE, ack_seq),
                    3 => with_flags(SYN, ack_seq),
                    4..7 => sacked(ack_seq, 10_000 + end),
                    _ => ack(ack_seq),
                };
                let wanted = cake(&waiting, flow, &tcp);
                prop_assert_eq!(enter(&mut filter, slot, flow, tcp), wanted);
                gone += u64::from(wanted.is_some());
                waiting.retain(|(of, ..)| Some(*of) != wanted);
                waiting.push((slot, flow, tcp));
                if kind % 4 == 3 {
                    let (left, ..) = waiting.remove(index.index(waiting.len()));
                    filter.leave(left);
                }
            }
            prop_assert_eq!(filter.dropped(), gone);
            for (slot, ..) in waiting {
                filter.leave(slot);
            }
            let empty = filter.lists.iter().all(|list| {
                (list.head, list.tail, list.droppable) == (NONE, NONE, 0)
            });
            prop_assert!(empty);
        }
    }
}
