//! One packet on its way, and the store that its bytes lie in.

use super::header::Ecn;

/// One frame of at most the interface's MTU: where its bytes are and what the link counts for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Packet {
    /// Index in the [`Arena`].
    pub(crate) slot: u32,
    /// Bytes of the Ethernet frame without preamble and checksum, as HTB counts it.
    pub(crate) bytes: u32,
    /// When the packet reached the place where it now is, `CLOCK_MONOTONIC` nanoseconds.
    pub(crate) at_ns: u64,
    /// Once the line has taken it: when it entered the queue, and how long it waited there.
    pub(crate) queued_ns: u64,
    pub(crate) waited_us: u32,
    /// The same for all packets of a flow.
    pub(crate) flow: u32,
    /// Which of the link's classes; 0 is what no class matches.
    pub(crate) class: u8,
    /// As it arrived, or CE once marked.
    pub(crate) ecn: Ecn,
    /// Marked CE here: its bytes are changed before it leaves.
    pub(crate) marked: bool,
}

impl Packet {
    /// Marks it; returns whether it is CE now (a packet that is not ECN-capable cannot be marked).
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

/// A fixed number of slots for frames. The slot freed last is used first: the memory touched is what the
/// link ever held at once, and stays in the cache.
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

    /// Bytes that fit into one slot.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Takes a slot; `None` when all are in use.
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Gives slots back: push their indices here.
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

    /// The bytes of a slot, to be written.
    pub(crate) fn slot_mut(&mut self, slot: u32) -> &mut [u8] {
        let start = slot as usize * self.slot_bytes;
        &mut self.bytes[start..start + self.slot_bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_arena_gives_nothing_and_reuses_what_was_freed_last() {
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
