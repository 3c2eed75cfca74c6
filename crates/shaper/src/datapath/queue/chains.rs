//! Many queues in one memory.

use crate::datapath::packet::Packet;

/// The packets of all chains. A packet's slot is its place, so there is room for all that an arena can hold.
#[derive(Debug)]
pub(crate) struct Chains {
    packets: Vec<Packet>,
    next: Vec<u32>,
}

/// First in, first out, through the packets of [`Chains`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    head: u32,
    tail: u32,
    len: u32,
    bytes: u64,
}

impl Chains {
    /// For slots below `capacity`.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { packets: vec![Packet::default(); capacity], next: vec![0; capacity] }
    }

    /// Appends a packet, whose slot must be in no chain.
    pub(crate) fn push(&mut self, chain: &mut Chain, packet: Packet) {
        let slot = packet.slot;
        self.packets[slot as usize] = packet;
        if chain.len == 0 {
            chain.head = slot;
        } else {
            self.next[chain.tail as usize] = slot;
        }
        chain.tail = slot;
        chain.len += 1;
        chain.bytes += u64::from(packet.bytes);
    }

    /// Takes the first packet.
    pub(crate) fn pop(&mut self, chain: &mut Chain) -> Option<Packet> {
        if chain.len == 0 {
            return None;
        }
        let packet = self.packets[chain.head as usize];
        chain.head = self.next[chain.head as usize];
        chain.len -= 1;
        chain.bytes -= u64::from(packet.bytes);
        Some(packet)
    }
}

impl Chain {
    /// Packets in it.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Their bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_do_not_mix() {
        let mut chains = Chains::new(6);
        let (mut even, mut odd) = (Chain::default(), Chain::default());
        for slot in 0..6 {
            let chain = if slot % 2 == 0 { &mut even } else { &mut odd };
            chains.push(chain, Packet { slot, bytes: 10 + slot, ..Packet::default() });
        }
        assert_eq!((even.len(), even.bytes(), odd.len(), odd.bytes()), (3, 36, 3, 39));
        let mut take = |chain: &mut Chain| chains.pop(chain).map(|p| p.slot);
        assert_eq!([take(&mut even), take(&mut odd), take(&mut even)], [Some(0), Some(1), Some(2)]);
        assert_eq!([take(&mut even), take(&mut even), take(&mut odd)], [Some(4), None, Some(3)]);
        assert_eq!((even.len(), even.bytes(), odd.len()), (0, 0, 1));
        chains.push(&mut even, Packet { slot: 0, bytes: 1, ..Packet::default() });
        assert_eq!(chains.pop(&mut even).map(|p| p.slot), Some(0));
    }
}
