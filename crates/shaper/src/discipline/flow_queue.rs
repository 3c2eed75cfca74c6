//! Per-flow queues as linked lists in one preallocated pool.

use crate::datapath::packet::Packet;

/// The packets of all queues, indexed by slot of the arena.
#[derive(Debug)]
pub(crate) struct PacketPool {
    packets: Vec<Packet>,
    next: Vec<u32>,
}

/// A FIFO, linked through the slots of a [`PacketPool`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FlowQueue {
    head: u32,
    tail: u32,
    len: u32,
    bytes: u64,
}

impl PacketPool {
    /// Creates a pool for slots below `capacity`.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { packets: vec![Packet::default(); capacity], next: vec![0; capacity] }
    }

    /// Appends a packet, whose slot must not be in a queue.
    pub(crate) fn push(&mut self, queue: &mut FlowQueue, packet: Packet) {
        let slot = packet.slot;
        self.packets[slot as usize] = packet;
        if queue.len == 0 {
            queue.head = slot;
        } else {
            self.next[queue.tail as usize] = slot;
        }
        queue.tail = slot;
        queue.len += 1;
        queue.bytes += u64::from(packet.bytes);
    }

    /// Takes the packet at the head.
    pub(crate) fn pop(&mut self, queue: &mut FlowQueue) -> Option<Packet> {
        if queue.len == 0 {
            return None;
        }
        let packet = self.packets[queue.head as usize];
        queue.head = self.next[queue.head as usize];
        queue.len -= 1;
        queue.bytes -= u64::from(packet.bytes);
        Some(packet)
    }

    /// Removes the packet in this slot from anywhere in the queue.
    pub(crate) fn remove(&mut self, queue: &mut FlowQueue, slot: u32) -> Option<Packet> {
        let (mut before, mut at) = (None, queue.head);
        for _ in 0..queue.len {
            let next = self.next[at as usize];
            if at != slot {
                (before, at) = (Some(at), next);
                continue;
            }
            match before {
                Some(before) => self.next[before as usize] = next,
                None => queue.head = next,
            }
            if queue.tail == slot {
                queue.tail = before.unwrap_or_default();
            }
            let packet = self.packets[slot as usize];
            queue.len -= 1;
            queue.bytes -= u64::from(packet.bytes);
            return Some(packet);
        }
        None
    }
}

impl FlowQueue {
    /// Queued packets.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Queued bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_do_not_mix() {
        let mut pool = PacketPool::new(6);
        let (mut even, mut odd) = (FlowQueue::default(), FlowQueue::default());
        for slot in 0..6 {
            let queue = if slot % 2 == 0 { &mut even } else { &mut odd };
            pool.push(queue, Packet { slot, bytes: 10 + slot, ..Packet::default() });
        }
        assert_eq!((even.len(), even.bytes(), odd.len(), odd.bytes()), (3, 36, 3, 39));
        let mut take = |queue: &mut FlowQueue| pool.pop(queue).map(|p| p.slot);
        assert_eq!([take(&mut even), take(&mut odd), take(&mut even)], [Some(0), Some(1), Some(2)]);
        assert_eq!([take(&mut even), take(&mut even), take(&mut odd)], [Some(4), None, Some(3)]);
        assert_eq!((even.len(), even.bytes(), odd.len()), (0, 0, 1));
        pool.push(&mut even, Packet { slot: 0, bytes: 1, ..Packet::default() });
        assert_eq!(pool.pop(&mut even).map(|p| p.slot), Some(0));
    }

    #[test]
    fn packets_are_removed_at_any_place() {
        for removed in 0..3 {
            let mut pool = PacketPool::new(5);
            let mut queue = FlowQueue::default();
            for slot in 0..3 {
                pool.push(&mut queue, Packet { slot, bytes: 10 + slot, ..Packet::default() });
            }
            assert_eq!(pool.remove(&mut queue, removed).map(|p| p.slot), Some(removed));
            assert_eq!(pool.remove(&mut queue, removed), None);
            assert_eq!((queue.len(), queue.bytes()), (2, 33 - u64::from(10 + removed)));
            pool.push(&mut queue, Packet { slot: 4, bytes: 1, ..Packet::default() });
            let left: Vec<u32> =
                std::iter::from_fn(|| pool.pop(&mut queue)).map(|p| p.slot).collect();
            let wanted: Vec<u32> =
                [0, 1, 2, 4].into_iter().filter(|slot| *slot != removed).collect();
            assert_eq!(left, wanted);
        }
        let (mut pool, mut single) = (PacketPool::new(2), FlowQueue::default());
        pool.push(&mut single, Packet { slot: 1, bytes: 9, ..Packet::default() });
        assert!(pool.remove(&mut single, 1).is_some() && pool.pop(&mut single).is_none());
        pool.push(&mut single, Packet { slot: 0, bytes: 9, ..Packet::default() });
        assert_eq!(pool.pop(&mut single).map(|p| p.slot), Some(0));
    }
}
