//! The delay in front of the queue.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use crate::datapath::packet::Packet;

/// Packets under way. Their `at_ns` is when they will have been delayed.
#[derive(Debug)]
pub(super) struct Delay {
    delay_ns: u64,
    /// What it was before a change, for packets that arrived before it.
    before: (u64, u64),
    /// No packet that keeps its order leaves before this.
    last_due_ns: u64,
    /// Whether random delay may change the order.
    unordered: bool,
    under_way: UnderWay,
}

#[derive(Debug)]
enum UnderWay {
    InOrder(VecDeque<Packet>),
    Sorted { heap: BinaryHeap<Reverse<Ranked>>, entered: u64, last: u64 },
}

/// By time, and among equals by entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ranked {
    entry: u64,
    packet: Packet,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.packet.at_ns, self.entry).cmp(&(other.packet.at_ns, other.entry))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Delay {
    /// Never allocates as long as at most `capacity` packets are in it. `unordered`: random delay may change the
    /// order; `may_overtake`: that, or packets that are not delayed at all.
    pub(super) fn new(
        delay_ns: u64,
        (unordered, may_overtake): (bool, bool),
        capacity: usize,
    ) -> Self {
        let under_way = if may_overtake {
            UnderWay::Sorted { heap: BinaryHeap::with_capacity(capacity), entered: 0, last: 0 }
        } else {
            UnderWay::InOrder(VecDeque::with_capacity(capacity))
        };
        Self { delay_ns, before: (0, delay_ns), last_due_ns: 0, unordered, under_way }
    }

    /// A packet that arrives at its `at_ns` is delayed by the constant time and `jitter_ns`, or, `at_once`, not
    /// at all. Returns when it will have been.
    pub(super) fn enter(&mut self, packet: Packet, jitter_ns: i64, at_once: bool) -> u64 {
        let (changed_ns, before_ns) = self.before;
        let delay_ns = if packet.at_ns < changed_ns { before_ns } else { self.delay_ns };
        let mut due_ns = packet.at_ns;
        if !at_once {
            due_ns = due_ns.saturating_add(delay_ns.saturating_add_signed(jitter_ns));
            if !self.unordered {
                due_ns = due_ns.max(self.last_due_ns);
                self.last_due_ns = due_ns;
            }
        }
        let packet = Packet { at_ns: due_ns, ..packet };
        match &mut self.under_way {
            UnderWay::InOrder(queue) => queue.push_back(packet),
            UnderWay::Sorted { heap, entered, last } => {
                *entered += 2;
                *last = *entered;
                heap.push(Reverse(Ranked { entry: *entered, packet }));
            }
        }
        due_ns
    }

    /// Adds a copy right behind the packet that entered last; its `at_ns` is what [`Self::enter`] returned.
    pub(super) fn follow(&mut self, packet: Packet) {
        match &mut self.under_way {
            UnderWay::InOrder(queue) => queue.push_back(packet),
            UnderWay::Sorted { heap, last, .. } => {
                heap.push(Reverse(Ranked { entry: *last + 1, packet }));
            }
        }
    }

    /// Packets that arrive at `at_ns` or later are delayed by `delay_ns`.
    pub(super) fn set(&mut self, at_ns: u64, delay_ns: u64) {
        self.before = (at_ns, self.delay_ns);
        self.delay_ns = delay_ns;
    }

    /// The constant part of the delay, the shorter one around a change.
    pub(super) fn least_ns(&self) -> u64 {
        self.delay_ns
    }

    pub(super) fn may_overtake(&self) -> bool {
        matches!(self.under_way, UnderWay::Sorted { .. })
    }

    /// The packet that will have been delayed first.
    pub(super) fn next(&self) -> Option<&Packet> {
        match &self.under_way {
            UnderWay::InOrder(queue) => queue.front(),
            UnderWay::Sorted { heap, .. } => heap.peek().map(|Reverse(ranked)| &ranked.packet),
        }
    }

    /// When that will be; `u64::MAX` is never.
    pub(super) fn next_ns(&self) -> u64 {
        self.next().map_or(u64::MAX, |packet| packet.at_ns)
    }

    pub(super) fn pop(&mut self) -> Option<Packet> {
        match &mut self.under_way {
            UnderWay::InOrder(queue) => {
                let packet = queue.pop_front();
                if queue.is_empty() {
                    // Begin again where the cache is warm, instead of walking through all of the memory.
                    queue.clear();
                }
                packet
            }
            UnderWay::Sorted { heap, .. } => heap.pop().map(|Reverse(ranked)| ranked.packet),
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        match &self.under_way {
            UnderWay::InOrder(queue) => queue.len(),
            UnderWay::Sorted { heap, .. } => heap.len(),
        }
    }
}
