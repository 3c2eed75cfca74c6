//! Propagation delay: packets in transit, in order of arrival, or in a heap if jitter reorders them. Packets pass it before they enter the
//! queue.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use crate::datapath::impair::Decision;
use crate::datapath::packet::Packet;

/// Packets in transit. Their `at_ns` is the end of their delay.
#[derive(Debug)]
pub(super) struct Delay {
    delay_ns: u64,
    /// Time of the last change and the delay before it, which applies to packets that arrived earlier.
    before: (u64, u64),
    /// Packets that keep their order do not leave before this.
    last_due_ns: u64,
    /// The same for packets that arrived before the last change and took the old path.
    before_due_ns: u64,
    order: Order,
    in_transit: InTransit,
}

/// Which packets may overtake others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Order {
    /// All packets, because of jitter.
    pub(super) jitter: bool,
    /// The packets that the impairments select.
    pub(super) selected: bool,
    /// The packets that arrive after a change of the delay.
    pub(super) switched: bool,
}

#[derive(Debug)]
enum InTransit {
    InOrder(VecDeque<Packet>),
    Sorted { heap: BinaryHeap<Reverse<Ranked>>, entered: u64, last: u64 },
}

/// Ordered by time, then by entry.
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
    /// Creates a delay that never allocates while it holds at most `capacity` packets.
    pub(super) fn new(delay_ns: u64, order: Order, capacity: usize) -> Self {
        let in_transit = if order != Order::default() {
            InTransit::Sorted { heap: BinaryHeap::with_capacity(capacity), entered: 0, last: 0 }
        } else {
            InTransit::InOrder(VecDeque::with_capacity(capacity))
        };
        let before = (0, delay_ns);
        Self { delay_ns, before, last_due_ns: 0, before_due_ns: 0, order, in_transit }
    }

    /// Delays a packet that arrives at its `at_ns` by the constant delay and by what the impairments decided. Returns when the delay ends.
    pub(super) fn enter(&mut self, packet: Packet, decision: &Decision) -> u64 {
        let (changed_ns, before_ns) = self.before;
        let is_before = packet.at_ns < changed_ns;
        let delay_ns = if is_before { before_ns } else { self.delay_ns };
        let mut due_ns = packet.at_ns;
        if !decision.undelayed {
            due_ns = due_ns.saturating_add(delay_ns.saturating_add_signed(decision.jitter_ns));
            if !self.order.jitter {
                let is_switched = is_before && self.order.switched;
                let last_ns =
                    if is_switched { &mut self.before_due_ns } else { &mut self.last_due_ns };
                due_ns = due_ns.max(*last_ns);
                *last_ns = due_ns;
            }
            due_ns = due_ns.saturating_add(decision.late_ns);
        }
        let packet = Packet { at_ns: due_ns, ..packet };
        match &mut self.in_transit {
            InTransit::InOrder(queue) => queue.push_back(packet),
            InTransit::Sorted { heap, entered, last } => {
                *entered += 2;
                *last = *entered;
                heap.push(Reverse(Ranked { entry: *entered, packet }));
            }
        }
        due_ns
    }

    /// Adds a copy directly behind the packet that entered last. Its `at_ns` is what [`Self::enter`] returned.
    pub(super) fn push_copy(&mut self, packet: Packet) {
        match &mut self.in_transit {
            InTransit::InOrder(queue) => queue.push_back(packet),
            InTransit::Sorted { heap, last, .. } => {
                heap.push(Reverse(Ranked { entry: *last + 1, packet }));
            }
        }
    }

    /// Sets the constant delay of packets that arrive at `at_ns` or later.
    pub(super) fn set(&mut self, at_ns: u64, delay_ns: u64) {
        if delay_ns == self.delay_ns {
            // Packets that arrived before the last change keep the delay before it.
            return;
        }
        if self.order.switched {
            self.before_due_ns = self.last_due_ns;
            self.last_due_ns = 0;
        }
        self.before = (at_ns, self.delay_ns);
        self.delay_ns = delay_ns;
    }

    /// Returns the constant delay of packets that arrive now, without jitter.
    pub(super) fn constant_ns(&self) -> u64 {
        self.delay_ns
    }

    pub(super) fn may_overtake(&self) -> bool {
        matches!(self.in_transit, InTransit::Sorted { .. })
    }

    /// Returns the packet whose delay ends first.
    pub(super) fn next(&self) -> Option<&Packet> {
        match &self.in_transit {
            InTransit::InOrder(queue) => queue.front(),
            InTransit::Sorted { heap, .. } => heap.peek().map(|Reverse(ranked)| &ranked.packet),
        }
    }

    /// Returns when the first delay ends; `u64::MAX`: no packet.
    pub(super) fn next_ns(&self) -> u64 {
        self.next().map_or(u64::MAX, |packet| packet.at_ns)
    }

    pub(super) fn pop(&mut self) -> Option<Packet> {
        match &mut self.in_transit {
            InTransit::InOrder(queue) => {
                let packet = queue.pop_front();
                if queue.is_empty() {
                    // Restart at the beginning of the buffer: it is in the cache.
                    queue.clear();
                }
                packet
            }
            InTransit::Sorted { heap, .. } => heap.pop().map(|Reverse(ranked)| ranked.packet),
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        match &self.in_transit {
            InTransit::InOrder(queue) => queue.len(),
            InTransit::Sorted { heap, .. } => heap.len(),
        }
    }
}
