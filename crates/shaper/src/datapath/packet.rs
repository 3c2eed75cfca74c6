//! A packet in the link without its bytes, and the slots that hold the bytes.

use super::header::Ecn;

/// A frame of at most the MTU: the location of its bytes and its metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Packet {
    /// Index in the [`Arena`].
    pub(crate) slot: u32,
    /// Bytes of the Ethernet frame without preamble and checksum, as HTB counts it.
    pub(crate) bytes: u32,
    /// When the packet reached its current stage, `CLOCK_MONOTONIC` nanoseconds.
    pub(crate) at_ns: u64,
    /// When it entered the queue, and its sojourn time; set when transmission starts.
    pub(crate) queued_ns: u64,
    pub(crate) waited_us: u32,
    /// Flow hash.
    pub(crate) flow: u32,
    /// Class; 0 is the default class.
    pub(crate) class: u8,
    /// ECN field as received, or CE once marked.
    pub(crate) ecn: Ecn,
    /// Whether the link marked it CE. The bytes are changed before it is sent.
    pub(crate) marked: bool,
    /// Whether it is a pure TCP acknowledgement, if the link looks for them.
    pub(crate) is_pure_ack: bool,
    /// Whether DualPI2's step may mark it.
    pub(crate) apply_step: bool,
}

impl Packet {
    /// Marks the packet CE; returns false if it is not ECN-capable.
    pub(crate) fn mark(&mut self) -> bool {
        match self.ecn {
            Ecn::NotEct => false,
            Ecn::Ce => true,
            Ecn::Ect0 | Ecn::Ect1 => {
                self.ecn = Ecn::Ce;
                self.marked = true;
                true
            }
        }
    }
}

/// Returns the bytes that a frame takes on the line, at least 1. `extra_bytes` is the link's overhead beyond the Ethernet header.
pub(crate) fn line_bytes(frame_bytes: u32, extra_bytes: i32) -> u32 {
    frame_bytes.saturating_add_signed(extra_bytes).max(1)
}

/// A fixed number of slots for frames. Slots are reused in LIFO order, so that few pages are touched and those stay in the cache.
#[derive(Debug)]
pub(crate) struct Arena {
    bytes: Vec<u8>,
    slot_bytes: usize,
    free: Vec<u32>,
}

impl Arena {
    /// `slots` slots of `slot_bytes` bytes each. Pages are not touched before they are used.
    pub(crate) fn new(slots: u32, slot_bytes: usize) -> Self {
        Self {
            bytes: vec![0; slots as usize * slot_bytes],
            slot_bytes,
            free: (0..slots).rev().collect(),
        }
    }

    /// Size of one slot.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Takes a slot; `None` when all are in use.
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Returns the free slots. Push an index to free its slot.
    pub(crate) fn free_list(&mut self) -> &mut Vec<u32> {
        &mut self.free
    }

    /// Slots in use.
    pub(crate) fn used(&self) -> usize {
        self.bytes.len() / self.slot_bytes - self.free.len()
    }

    /// Copies the first `bytes` bytes of one slot to another.
    pub(crate) fn copy(&mut self, from: u32, to: u32, bytes: usize) {
        let start = from as usize * self.slot_bytes;
        self.bytes.copy_within(start..start + bytes, to as usize * self.slot_bytes);
    }

    /// The bytes of a slot.
    pub(crate) fn slot(&self, slot: u32) -> &[u8] {
        let start = slot as usize * self.slot_bytes;
        &self.bytes[start..start + self.slot_bytes]
    }

    /// The bytes of a slot, mutable.
    pub(crate) fn slot_mut(&mut self, slot: u32) -> &mut [u8] {
        let start = slot as usize * self.slot_bytes;
        &mut self.bytes[start..start + self.slot_bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_arena_returns_none_and_reuses_the_last_freed_slot() {
        let mut arena = Arena::new(2, 8);
        let (a, b) = (arena.take().unwrap(), arena.take().unwrap());
        assert_ne!(a, b);
        assert_eq!(arena.take(), None);
        assert_eq!(arena.used(), 2);
        arena.slot_mut(b)[0] = 9;
        assert_eq!(arena.slot(a)[0], 0);
        arena.free_list().push(b);
        assert_eq!(arena.take(), Some(b));
    }
}
