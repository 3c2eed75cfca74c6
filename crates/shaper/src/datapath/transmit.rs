//! Batches of packets for one `sendmmsg` call, coalesced where possible.

use super::coalesce::{Group, HEAD_BYTES};
use super::model::LinkModel;
use super::packet::Arena;
use super::vnet::VNET_BYTES;

/// Maximum number of writes in one system call.
pub(crate) const MAX_WRITES: usize = 64;

/// One write: one frame, or several coalesced frames.
pub(crate) struct Write {
    pub(crate) first: usize,
    pub(crate) count: usize,
    head_bytes: usize,
    head: [u8; HEAD_BYTES],
}

/// The packets that are due at `now_ns`.
#[derive(Clone, Copy)]
pub(crate) struct DuePackets<'a> {
    pub(crate) model: &'a LinkModel,
    pub(crate) arena: &'a Arena,
    pub(crate) now_ns: u64,
}

impl<'a> DuePackets<'a> {
    fn packet(self, nth: usize) -> Option<&'a [u8]> {
        let packet = self.model.peek_departed(nth).filter(|packet| packet.at_ns <= self.now_ns)?;
        Some(&self.arena.slot(packet.slot)[..VNET_BYTES + packet.bytes as usize])
    }

    /// Plans the writes of one system call.
    pub(crate) fn plan(self, coalesce: bool, writes: &mut Vec<Write>) {
        writes.clear();
        let mut nth = 0;
        let mut first = self.packet(0);
        while let Some(packet) = first
            && writes.len() < MAX_WRITES
        {
            let mut next = self.packet(nth + 1);
            let mut write = Write { first: nth, count: 1, head_bytes: 0, head: [0; HEAD_BYTES] };
            if coalesce
                && next.is_some()
                && let Some(mut group) = Group::start(packet)
            {
                while let Some(other) = next
                    && group.extend(packet, other)
                {
                    next = self.packet(nth + group.count());
                }
                if group.count() > 1 {
                    group.write_head(packet, &mut write.head);
                    write.head_bytes = group.head_bytes();
                    write.count = group.count();
                }
            }
            nth += write.count;
            first = next;
            writes.push(write);
        }
    }

    /// Returns the bytes of a write.
    pub(crate) fn parts<'b>(self, write: &'b Write) -> impl Iterator<Item = &'b [u8]>
    where
        'a: 'b,
    {
        let packets =
            (write.first..write.first + write.count).filter_map(move |nth| self.packet(nth));
        let head = (write.head_bytes > 0).then(|| &write.head[..write.head_bytes]);
        head.into_iter().chain(packets.map(move |packet| &packet[write.head_bytes..]))
    }
}
