//! CoDel per flow (RFC 8290): deficit round robin over hashed queues, new flows first.

use super::QueueStats;
use super::chains::{Chain, Chains};
use super::codel::{Law, LawSpec, Source};
use super::turns::Turns;
use crate::datapath::packet::Packet;

/// Packets dropped at once from the fattest flow when the queue is full; finding it takes a look at all.
const BATCH: u32 = 64;

/// Parameters; the default is the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FqCodelSpec {
    /// Packets in all queues.
    pub(crate) limit: u32,
    /// Number of queues.
    pub(crate) flows: u32,
    /// Bytes a flow may send in its turn; `None`: one frame.
    pub(crate) quantum: Option<u32>,
    /// Bytes in all queues.
    pub(crate) memory_limit: u64,
    /// Of each flow.
    pub(crate) law: LawSpec,
}

impl Default for FqCodelSpec {
    fn default() -> Self {
        Self {
            limit: 10_240,
            flows: 1024,
            quantum: None,
            memory_limit: 32 << 20,
            law: LawSpec { ecn: true, ..LawSpec::default() },
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    chain: Chain,
    law: Law,
    deficit: i64,
    /// In one of the two lists.
    listed: bool,
}

/// The flows, and who is next.
#[derive(Debug)]
pub(crate) struct FqCodel {
    spec: FqCodelSpec,
    frame_bytes: u32,
    quantum: i64,
    chains: Chains,
    flows: Vec<Flow>,
    turns: Turns,
    packets: u64,
    bytes: u64,
    stats: QueueStats,
}

/// A flow's packets, as the control law takes them.
struct FlowSource<'a> {
    chains: &'a mut Chains,
    chain: &'a mut Chain,
    packets: &'a mut u64,
    bytes: &'a mut u64,
}

impl Source for FlowSource<'_> {
    fn pop(&mut self) -> Option<Packet> {
        let packet = self.chains.pop(self.chain)?;
        *self.packets -= 1;
        *self.bytes -= u64::from(packet.bytes);
        Some(packet)
    }
    // As the kernel does: a flow alone is not spared because it is short, only if all are.
    fn bytes(&self) -> u64 {
        *self.bytes
    }
}

impl FqCodel {
    /// Empty, for slots below `capacity`.
    pub(crate) fn new(spec: FqCodelSpec, capacity: usize, frame_bytes: u32) -> Self {
        let flows = spec.flows.max(1) as usize;
        Self {
            spec,
            frame_bytes,
            quantum: i64::from(spec.quantum.unwrap_or(frame_bytes).max(1)),
            chains: Chains::new(capacity),
            flows: vec![Flow::default(); flows],
            turns: Turns::new(flows),
            packets: 0,
            bytes: 0,
            stats: QueueStats::default(),
        }
    }

    pub(crate) fn enqueue(&mut self, packet: Packet, dropped: &mut Vec<u32>) {
        let index = packet.flow % self.flows.len() as u32;
        let flow = &mut self.flows[index as usize];
        self.chains.push(&mut flow.chain, packet);
        self.packets += 1;
        self.bytes += u64::from(packet.bytes);
        if !flow.listed {
            flow.listed = true;
            flow.deficit = self.quantum;
            self.turns.join(index);
        }
        self.stats.maxq = self.stats.maxq.max(self.packets);
        let too_much = self.bytes > self.spec.memory_limit;
        if self.packets > u64::from(self.spec.limit) || too_much {
            let count = self.drop_from_the_fattest(dropped);
            if too_much {
                self.stats.overmemory += count;
            } else {
                self.stats.overlimit += count;
            }
        }
    }

    /// Drops a batch, at most half of what is there, from the head of the flow with most bytes.
    fn drop_from_the_fattest(&mut self, dropped: &mut Vec<u32>) -> u64 {
        let Some(flow) = self.flows.iter_mut().max_by_key(|flow| flow.chain.bytes()) else {
            return 0;
        };
        let keep = flow.chain.bytes() / 2;
        let mut count = 0;
        while count < BATCH && (count == 0 || flow.chain.bytes() > keep) {
            let Some(packet) = self.chains.pop(&mut flow.chain) else { break };
            self.packets -= 1;
            self.bytes -= u64::from(packet.bytes);
            dropped.push(packet.slot);
            count += 1;
        }
        u64::from(count)
    }

    pub(crate) fn dequeue(&mut self, now_ns: u64, dropped: &mut Vec<u32>) -> Option<Packet> {
        loop {
            let (index, is_new) = self.turns.front()?;
            let flow = &mut self.flows[index as usize];
            if flow.deficit <= 0 {
                flow.deficit += self.quantum;
                self.turns.rotate();
                continue;
            }
            let mut source = FlowSource {
                chains: &mut self.chains,
                chain: &mut flow.chain,
                packets: &mut self.packets,
                bytes: &mut self.bytes,
            };
            let (law, stats) = (&self.spec.law, &mut self.stats);
            let next = flow.law.dequeue(law, self.frame_bytes, now_ns, &mut source, stats, dropped);
            if let Some(packet) = next {
                flow.deficit -= i64::from(packet.bytes);
                return Some(packet);
            }
            // A new flow waits for its turn among the old ones once, so that it is not new again at once.
            if is_new && !self.turns.no_old() {
                self.turns.rotate();
            } else {
                self.turns.leave();
                flow.listed = false;
            }
        }
    }

    /// Packets and bytes waiting.
    pub(crate) fn backlog(&self) -> (u64, u64) {
        (self.packets, self.bytes)
    }

    pub(crate) fn stats(&self) -> QueueStats {
        QueueStats { flows: self.turns.len() as u64, ..self.stats }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::header::Ecn;

    fn packet(slot: u32, flow: u32, bytes: u32) -> Packet {
        Packet { slot, bytes, flow, ..Packet::default() }
    }

    fn take(queue: &mut FqCodel, count: usize) -> Vec<u32> {
        (0..count).map_while(|_| queue.dequeue(1, &mut Vec::new())).map(|p| p.slot).collect()
    }

    #[test]
    fn flows_take_turns_and_a_new_one_comes_first() {
        let mut queue = FqCodel::new(FqCodelSpec::default(), 100, 1000);
        let mut dropped = Vec::new();
        for slot in 0..20 {
            queue.enqueue(packet(slot, slot / 10, 1000), &mut dropped);
        }
        assert_eq!(take(&mut queue, 4), [0, 10, 1, 11]);
        queue.enqueue(packet(50, 7, 100), &mut dropped);
        // A thin flow passes both queues.
        assert_eq!(take(&mut queue, 4), [50, 2, 12, 3]);
        assert_eq!(queue.stats().flows, 2);
        assert_eq!(take(&mut queue, 100).len(), 13);
        assert_eq!((queue.backlog(), queue.stats().flows), ((0, 0), 0));
    }

    #[test]
    fn bytes_are_shared_equally_whatever_the_packets_sizes() {
        let mut queue = FqCodel::new(FqCodelSpec::default(), 3000, 1500);
        for slot in 0..2000 {
            queue.enqueue(packet(slot, 0, 300), &mut Vec::new());
        }
        for slot in 2000..2400 {
            queue.enqueue(packet(slot, 1, 1500), &mut Vec::new());
        }
        let taken = take(&mut queue, 1200);
        let thin: usize = taken.iter().filter(|&&slot| slot < 2000).count() * 300;
        let fat: usize = taken.iter().filter(|&&slot| slot >= 2000).count() * 1500;
        assert!(thin.abs_diff(fat) <= 3000, "{thin} {fat}");
    }

    #[test]
    fn the_fattest_flow_pays_for_a_full_queue() {
        let mut queue = FqCodel::new(FqCodelSpec { limit: 20, ..FqCodelSpec::default() }, 64, 1000);
        let mut dropped = Vec::new();
        queue.enqueue(packet(60, 3, 1000), &mut dropped);
        for slot in 0..20 {
            queue.enqueue(packet(slot, 1, 1000), &mut dropped);
        }
        // Half of its 20 packets, oldest first.
        assert_eq!(dropped, (0..10).collect::<Vec<_>>());
        assert_eq!((queue.stats().overlimit, queue.backlog().0), (10, 11));
    }

    #[test]
    fn memory_is_a_limit_of_its_own() {
        let spec = FqCodelSpec { memory_limit: 5_000, ..FqCodelSpec::default() };
        let mut queue = FqCodel::new(spec, 64, 1000);
        let mut dropped = Vec::new();
        for slot in 0..6 {
            queue.enqueue(packet(slot, 1, 1000), &mut dropped);
        }
        assert_eq!((dropped.len(), queue.stats().overmemory, queue.stats().overlimit), (3, 3, 0));
    }

    #[test]
    fn each_flow_has_a_control_law_of_its_own() {
        const MS: u64 = 1_000_000;
        let mut queue = FqCodel::new(FqCodelSpec::default(), 2000, 1514);
        let mut dropped = Vec::new();
        for slot in 0..1000 {
            let standing = Packet { ecn: Ecn::Ect0, ..packet(slot, 1, 1514) };
            queue.enqueue(standing, &mut dropped);
        }
        let mut marked = Vec::new();
        for ms in 1..400_u64 {
            // A flow that never waits.
            let fresh =
                Packet { ecn: Ecn::Ect0, at_ns: ms * MS, ..packet(1000 + ms as u32, 2, 60) };
            queue.enqueue(fresh, &mut dropped);
            for _ in 0..2 {
                let packet = queue.dequeue(ms * MS, &mut dropped).unwrap();
                if packet.marked {
                    assert!(packet.slot < 1000);
                    marked.push(ms);
                }
            }
        }
        assert_eq!(marked, [105, 205, 276, 334, 384]);
        assert!(dropped.is_empty());
    }
}
