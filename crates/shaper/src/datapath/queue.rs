//! The queue in front of a rate. Pure: it is told the time and owns no bytes.

use std::collections::VecDeque;

use super::packet::Packet;

/// How much a [`Fifo`] holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FifoLimit {
    /// Sum of the frames' bytes (`bfifo`).
    Bytes(u64),
    /// Number of frames (`pfifo`).
    Packets(u64),
}

/// First in, first out, with the tail dropped at the limit. As with `bfifo` under HTB, the limit covers the
/// waiting packets and not the one being transmitted.
#[derive(Debug)]
pub(crate) struct Fifo {
    limit: FifoLimit,
    packets: VecDeque<Packet>,
    bytes: u64,
}

impl Fifo {
    /// An empty queue that never allocates as long as at most `capacity` packets are in it.
    pub(crate) fn new(limit: FifoLimit, capacity: usize) -> Self {
        Self { limit, packets: VecDeque::with_capacity(capacity), bytes: 0 }
    }

    /// Appends `packet` as it arrives at `now_ns`, or gives it back if it does not fit.
    pub(crate) fn enqueue(&mut self, now_ns: u64, packet: Packet) -> Result<(), Packet> {
        let fits = match self.limit {
            FifoLimit::Bytes(limit) => self.bytes + u64::from(packet.bytes) <= limit,
            FifoLimit::Packets(limit) => (self.packets.len() as u64) < limit,
        };
        if !fits {
            return Err(packet);
        }
        self.bytes += u64::from(packet.bytes);
        self.packets.push_back(Packet { at_ns: now_ns, ..packet });
        Ok(())
    }

    /// Takes the next packet to transmit.
    pub(crate) fn dequeue(&mut self, _now_ns: u64) -> Option<Packet> {
        let packet = self.packets.pop_front()?;
        self.bytes -= u64::from(packet.bytes);
        Some(packet)
    }

    /// Packets waiting.
    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Bytes waiting.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(bytes: u32) -> Packet {
        Packet { slot: 0, bytes, at_ns: 0 }
    }

    #[test]
    fn a_byte_limit_is_filled_to_the_last_byte() {
        let mut queue = Fifo::new(FifoLimit::Bytes(3000), 8);
        assert!(queue.enqueue(1, packet(1500)).is_ok());
        assert_eq!(queue.enqueue(2, packet(1501)), Err(packet(1501)));
        assert!(queue.enqueue(3, packet(1500)).is_ok());
        assert!(queue.enqueue(4, packet(1)).is_err());
        assert_eq!((queue.len(), queue.bytes()), (2, 3000));
        assert_eq!(queue.dequeue(9).map(|p| p.at_ns), Some(1));
        assert_eq!(queue.dequeue(9).map(|p| p.at_ns), Some(3));
        assert_eq!(queue.dequeue(9), None);
        assert_eq!(queue.bytes(), 0);
    }

    #[test]
    fn a_packet_limit_counts_packets() {
        let mut queue = Fifo::new(FifoLimit::Packets(2), 8);
        assert!(queue.enqueue(0, packet(9000)).is_ok());
        assert!(queue.enqueue(0, packet(60)).is_ok());
        assert!(queue.enqueue(0, packet(60)).is_err());
    }
}
