//! First in, first out.

use std::collections::VecDeque;

use crate::datapath::packet::Packet;

/// How much a [`Fifo`] holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FifoLimit {
    /// Sum of the frames' bytes (`bfifo`).
    Bytes(u64),
    /// Number of frames (`pfifo`).
    Packets(u64),
}

/// First in, first out, with the tail or the head dropped at the limit. As with `bfifo` under HTB, the limit covers the
/// waiting packets and not the one being transmitted.
#[derive(Debug)]
pub(crate) struct Fifo {
    limit: FifoLimit,
    packets: VecDeque<Packet>,
    bytes: u64,
    overlimit: u64,
}

impl Fifo {
    /// An empty queue that never allocates as long as at most `capacity` packets are in it.
    pub(crate) fn new(limit: FifoLimit, capacity: usize) -> Self {
        Self { limit, packets: VecDeque::with_capacity(capacity), bytes: 0, overlimit: 0 }
    }

    /// Appends `packet`, or drops it if it does not fit.
    pub(crate) fn enqueue(&mut self, packet: Packet, dropped: &mut Vec<u32>) {
        if self.fits(packet.bytes) {
            self.bytes += u64::from(packet.bytes);
            self.packets.push_back(packet);
        } else {
            self.overlimit += 1;
            dropped.push(packet.slot);
        }
    }

    /// Appends `packet`, and drops from the head until it fits; what would not fit alone is dropped itself.
    pub(crate) fn enqueue_dropping_head(&mut self, packet: Packet, dropped: &mut Vec<u32>) {
        let fits_alone = match self.limit {
            FifoLimit::Bytes(limit) => u64::from(packet.bytes) <= limit,
            FifoLimit::Packets(limit) => limit > 0,
        };
        while fits_alone && !self.fits(packet.bytes) {
            let Some(oldest) = self.dequeue() else { break };
            self.overlimit += 1;
            dropped.push(oldest.slot);
        }
        self.enqueue(packet, dropped);
    }

    fn fits(&self, bytes: u32) -> bool {
        match self.limit {
            FifoLimit::Bytes(limit) => self.bytes + u64::from(bytes) <= limit,
            FifoLimit::Packets(limit) => (self.packets.len() as u64) < limit,
        }
    }

    /// Takes the next packet to transmit.
    pub(crate) fn dequeue(&mut self) -> Option<Packet> {
        let packet = self.packets.pop_front()?;
        if self.packets.is_empty() {
            // Begin again where the cache is warm, instead of walking through all of the memory.
            self.packets.clear();
        }
        self.bytes -= u64::from(packet.bytes);
        Some(packet)
    }

    /// The packet that is next.
    pub(crate) fn head(&self) -> Option<&Packet> {
        self.packets.front()
    }

    /// Packets waiting.
    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Bytes waiting.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Packets dropped.
    pub(crate) fn overlimit(&self) -> u64 {
        self.overlimit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(slot: u32, bytes: u32) -> Packet {
        Packet { slot, bytes, ..Packet::default() }
    }

    #[test]
    fn a_byte_limit_is_filled_to_the_last_byte() {
        let mut queue = Fifo::new(FifoLimit::Bytes(3000), 8);
        let mut dropped = Vec::new();
        for (slot, bytes) in [(0, 1500), (1, 1501), (2, 1500), (3, 1)] {
            queue.enqueue(packet(slot, bytes), &mut dropped);
        }
        assert_eq!(dropped, [1, 3]);
        assert_eq!((queue.len(), queue.bytes(), queue.overlimit()), (2, 3000, 2));
        assert_eq!(queue.dequeue().map(|p| p.slot), Some(0));
        assert_eq!(queue.dequeue().map(|p| p.slot), Some(2));
        assert_eq!(queue.dequeue(), None);
        assert_eq!(queue.bytes(), 0);
    }

    #[test]
    fn a_full_queue_may_drop_its_oldest_instead() {
        let mut queue = Fifo::new(FifoLimit::Packets(2), 8);
        let mut dropped = Vec::new();
        for slot in 0..5 {
            queue.enqueue_dropping_head(packet(slot, 9000), &mut dropped);
        }
        assert_eq!((dropped, queue.overlimit()), (vec![0, 1, 2], 3));
        assert_eq!(queue.dequeue().map(|p| p.slot), Some(3));

        let mut queue = Fifo::new(FifoLimit::Bytes(3000), 8);
        let mut dropped = Vec::new();
        for (slot, bytes) in [(0, 1000), (1, 1000), (2, 1000), (3, 1500), (4, 3001), (5, 100)] {
            queue.enqueue_dropping_head(packet(slot, bytes), &mut dropped);
        }
        // 1500 bytes need two heads to go; what is larger than the limit goes alone.
        assert_eq!(dropped, [0, 1, 4]);
        assert_eq!((queue.len(), queue.bytes()), (3, 2600));
    }

    #[test]
    fn a_packet_limit_counts_packets() {
        let mut queue = Fifo::new(FifoLimit::Packets(2), 8);
        let mut dropped = Vec::new();
        for slot in 0..3 {
            queue.enqueue(packet(slot, 9000), &mut dropped);
        }
        assert_eq!(dropped, [2]);
    }
}
