//! First in, first out: pfifo, bfifo and their head-drop variants.

use std::collections::VecDeque;

use ccbench_proto::plan::{Bfifo, BfifoHeadDrop, Pfifo, PfifoHeadDrop};
use ccbench_proto::units::{Limit, Rate};

use super::{Discipline, KernelSupport, PacketQueue, QueueParams, QueueStats, Setup};
use crate::datapath::packet::Packet;
use crate::qdisc::{BadQueue, Qdisc, limit_bytes, limit_packets};

mod qdisc;

/// Capacity of a [`Fifo`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FifoLimit {
    /// Maximum sum of the frames' bytes (`bfifo`).
    Bytes(u64),
    /// Maximum number of frames (`pfifo`).
    Packets(u64),
}

impl TryFrom<Limit> for FifoLimit {
    type Error = BadQueue;

    fn try_from(limit: Limit) -> Result<Self, BadQueue> {
        match limit {
            Limit::Bytes(bytes) => Ok(Self::Bytes(bytes.get())),
            Limit::Packets(packets) => Ok(Self::Packets(u64::from(packets.get()))),
            Limit::MilliBdp(_) | Limit::Time(_) => Err(BadQueue::new(
                "a queue limit that is neither bytes (bfifo) nor packets (pfifo)",
                "write it like \"187500B\" or \"40p\"",
            )),
        }
    }
}

impl FifoLimit {
    fn max_packets(self, min_frame_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes / min_frame_bytes,
            Self::Packets(packets) => packets,
        }
    }
}

impl Discipline for Pfifo {
    const KIND: &'static str = "pfifo";
    const KERNEL: KernelSupport = KernelSupport::Always;

    fn qdisc(&self, _rate: Option<Rate>) -> Result<Qdisc, BadQueue> {
        Ok(qdisc::encode(Self::KIND, limit_packets(self.limit)?))
    }

    fn params(&self, _rate: Option<Rate>) -> Result<QueueParams, BadQueue> {
        Ok(QueueParams::TailDrop(self.limit.try_into()?))
    }
}

impl Discipline for Bfifo {
    const KIND: &'static str = "bfifo";
    const KERNEL: KernelSupport = KernelSupport::Always;

    fn qdisc(&self, _rate: Option<Rate>) -> Result<Qdisc, BadQueue> {
        Ok(qdisc::encode(Self::KIND, limit_bytes(self.limit)?))
    }

    fn params(&self, _rate: Option<Rate>) -> Result<QueueParams, BadQueue> {
        Ok(QueueParams::TailDrop(self.limit.try_into()?))
    }
}

impl Discipline for PfifoHeadDrop {
    const KIND: &'static str = "pfifo_head_drop";
    const KERNEL: KernelSupport = KernelSupport::Always;

    fn qdisc(&self, _rate: Option<Rate>) -> Result<Qdisc, BadQueue> {
        Ok(qdisc::encode(Self::KIND, limit_packets(self.limit)?))
    }

    fn params(&self, _rate: Option<Rate>) -> Result<QueueParams, BadQueue> {
        Ok(QueueParams::HeadDrop(self.limit.try_into()?))
    }
}

impl Discipline for BfifoHeadDrop {
    const KIND: &'static str = "bfifo_head_drop";
    const KERNEL: KernelSupport = KernelSupport::UserspaceOnly;

    fn qdisc(&self, _rate: Option<Rate>) -> Result<Qdisc, BadQueue> {
        let what = format!("queue {}", Self::KIND);
        Err(BadQueue::new(what, "write `backend = \"userspace\"` for this link"))
    }

    fn params(&self, _rate: Option<Rate>) -> Result<QueueParams, BadQueue> {
        Ok(QueueParams::HeadDrop(self.limit.try_into()?))
    }
}

/// A FIFO with a limit, which most disciplines use as storage. As with `bfifo` under HTB, the limit counts the queued packets but not the
/// packet in transmission.
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

    /// Appends `packet` and drops from the head until it fits. Drops `packet` itself if it is larger than the limit.
    fn enqueue_head_drop(&mut self, packet: Packet, dropped: &mut Vec<u32>) {
        let fits_alone = match self.limit {
            FifoLimit::Bytes(limit) => u64::from(packet.bytes) <= limit,
            FifoLimit::Packets(limit) => limit > 0,
        };
        while fits_alone && !self.fits(packet.bytes) {
            let Some(head) = self.dequeue() else { break };
            self.overlimit += 1;
            dropped.push(head.slot);
        }
        self.enqueue(packet, dropped);
    }

    fn fits(&self, bytes: u32) -> bool {
        match self.limit {
            FifoLimit::Bytes(limit) => self.bytes + u64::from(bytes) <= limit,
            FifoLimit::Packets(limit) => (self.packets.len() as u64) < limit,
        }
    }

    /// Takes the packet at the head.
    pub(crate) fn dequeue(&mut self) -> Option<Packet> {
        let packet = self.packets.pop_front()?;
        if self.packets.is_empty() {
            // Restart at the front of the ring: it is in the cache, and the rest of the memory stays untouched.
            self.packets.clear();
        }
        self.bytes -= u64::from(packet.bytes);
        Some(packet)
    }

    /// Removes the packet in this slot from anywhere in the queue.
    pub(crate) fn remove(&mut self, slot: u32) -> Option<Packet> {
        let place = self.packets.iter().position(|packet| packet.slot == slot)?;
        let packet = self.packets.remove(place)?;
        self.bytes -= u64::from(packet.bytes);
        Some(packet)
    }

    /// Changes the limit. Packets beyond it stay.
    pub(crate) fn set_limit(&mut self, limit: FifoLimit) {
        self.limit = limit;
    }

    /// Drops packets beyond the limit from the head.
    pub(crate) fn drop_excess(&mut self, dropped: &mut Vec<u32>) {
        let is_over = |fifo: &Self| match fifo.limit {
            FifoLimit::Bytes(limit) => fifo.bytes > limit,
            FifoLimit::Packets(limit) => fifo.packets.len() as u64 > limit,
        };
        while is_over(self)
            && let Some(head) = self.dequeue()
        {
            self.overlimit += 1;
            dropped.push(head.slot);
        }
    }

    /// The packet at the head.
    pub(crate) fn head(&self) -> Option<&Packet> {
        self.packets.front()
    }

    /// Queued packets.
    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Queued bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Queued packets and bytes.
    pub(crate) fn backlog(&self) -> (u64, u64) {
        (self.packets.len() as u64, self.bytes)
    }

    /// Packets dropped because of the limit.
    pub(crate) fn overlimit(&self) -> u64 {
        self.overlimit
    }
}

/// A FIFO that drops the arriving packet when it is full (`pfifo`, `bfifo`).
pub(crate) type TailDrop = FifoQueue<false>;

/// A FIFO that drops from the head when it is full (`pfifo_head_drop`, `bfifo_head_drop`).
pub(crate) type HeadDrop = FifoQueue<true>;

/// A [`Fifo`] as a discipline. `HEAD_DROP`: whether it drops from the head when it is full.
#[derive(Debug)]
pub(crate) struct FifoQueue<const HEAD_DROP: bool>(Fifo);

impl<const HEAD_DROP: bool> PacketQueue for FifoQueue<HEAD_DROP> {
    type Params = FifoLimit;
    const READS_HEADERS: bool = false;

    fn build(limit: FifoLimit, setup: Setup) -> Self {
        Self(Fifo::new(limit, setup.capacity))
    }

    fn enqueue(&mut self, packet: Packet, dropped: &mut Vec<u32>) {
        if HEAD_DROP {
            self.0.enqueue_head_drop(packet, dropped);
        } else {
            self.0.enqueue(packet, dropped);
        }
    }

    fn dequeue(&mut self, _now_ns: u64, _dropped: &mut Vec<u32>) -> Option<Packet> {
        self.0.dequeue()
    }

    fn remove(&mut self, slot: u32, _flow: u32) -> Option<Packet> {
        self.0.remove(slot)
    }

    fn set_params(&mut self, limit: FifoLimit, _dropped: &mut Vec<u32>) {
        self.0.set_limit(limit);
    }

    fn backlog(&self) -> (u64, u64) {
        self.0.backlog()
    }

    fn stats(&self, _now_ns: u64) -> QueueStats {
        QueueStats { drop_overlimit: self.0.overlimit, ..QueueStats::default() }
    }

    fn max_packets(limit: FifoLimit, min_frame_bytes: u64) -> u64 {
        limit.max_packets(min_frame_bytes)
    }

    fn describe(limit: FifoLimit) -> String {
        let suffix = if HEAD_DROP { "_head_drop" } else { "" };
        match limit {
            FifoLimit::Bytes(bytes) => format!("bfifo{suffix} limit {bytes}B"),
            FifoLimit::Packets(packets) => format!("pfifo{suffix} limit {packets}p"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discipline::tests::{Numbers, Samples};

    /// A limit that a plan may have.
    fn any_limit(numbers: &Numbers) -> FifoLimit {
        match numbers.flags[0] {
            true => FifoLimit::Bytes(numbers.bytes),
            false => FifoLimit::Packets(u64::from(numbers.limit)),
        }
    }

    impl Samples for TailDrop {
        fn small() -> Vec<FifoLimit> {
            vec![FifoLimit::Packets(20)]
        }

        fn any(numbers: &Numbers) -> FifoLimit {
            any_limit(numbers)
        }

        fn golden() -> Vec<(FifoLimit, &'static str)> {
            vec![(
                FifoLimit::Packets(50),
                "-301 -307 -313 -319 -325 -331 -337 -343 -349 -355 -361 -367 -373 -379 -385 -391 -397",
            )]
        }
    }

    impl Samples for HeadDrop {
        fn small() -> Vec<FifoLimit> {
            vec![FifoLimit::Packets(20), FifoLimit::Bytes(9_000)]
        }

        fn any(numbers: &Numbers) -> FifoLimit {
            any_limit(numbers)
        }

        fn golden() -> Vec<(FifoLimit, &'static str)> {
            vec![(
                FifoLimit::Bytes(75_000),
                "-251 -257 -263 -269 -275 -281 -287 -293 -299 -305 -311 -317 -323 -329 -335 -341 -347",
            )]
        }
    }

    fn packet(slot: u32, bytes: u32) -> Packet {
        Packet { slot, bytes, ..Packet::default() }
    }

    #[test]
    fn byte_limit_is_inclusive() {
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
    fn head_drop_removes_oldest_packets() {
        let mut queue = Fifo::new(FifoLimit::Packets(2), 8);
        let mut dropped = Vec::new();
        for slot in 0..5 {
            queue.enqueue_head_drop(packet(slot, 9000), &mut dropped);
        }
        assert_eq!((dropped, queue.overlimit()), (vec![0, 1, 2], 3));
        assert_eq!(queue.dequeue().map(|p| p.slot), Some(3));

        let mut queue = Fifo::new(FifoLimit::Bytes(3000), 8);
        let mut dropped = Vec::new();
        for (slot, bytes) in [(0, 1000), (1, 1000), (2, 1000), (3, 1500), (4, 3001), (5, 100)] {
            queue.enqueue_head_drop(packet(slot, bytes), &mut dropped);
        }
        // 1500 bytes replace two packets. A packet larger than the limit is dropped alone.
        assert_eq!(dropped, [0, 1, 4]);
        assert_eq!((queue.len(), queue.bytes()), (3, 2600));
    }

    #[test]
    fn packet_limit_counts_packets() {
        let mut queue = Fifo::new(FifoLimit::Packets(2), 8);
        let mut dropped = Vec::new();
        for slot in 0..3 {
            queue.enqueue(packet(slot, 9000), &mut dropped);
        }
        assert_eq!(dropped, [2]);
    }
}
