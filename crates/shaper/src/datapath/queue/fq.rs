//! Fair queueing as `sch_fq` does it for forwarded packets: no pacing, one band.

use super::QueueStats;
use super::chains::{Chain, Chains};
use super::turns::Turns;
use crate::datapath::packet::Packet;

/// A flow that was idle for this long may send a whole quantum at once again.
const REFILL_NS: u64 = 40_000_000;
/// Flows at most, whatever the mask: each takes memory.
const MOST_FLOWS: u32 = 1 << 16;

/// Parameters; the default is the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FqSpec {
    /// Packets in all queues.
    pub(crate) limit: u32,
    /// Packets in one queue.
    pub(crate) flow_limit: u32,
    /// Flows are told apart by these bits of their hash; 0 is a single queue.
    pub(crate) mask: u32,
    /// Mark what stayed longer than this.
    pub(crate) ce_threshold_ns: Option<u64>,
}

impl Default for FqSpec {
    fn default() -> Self {
        Self { limit: 10_000, flow_limit: 100, mask: 1023, ce_threshold_ns: None }
    }
}

#[derive(Debug, Clone, Copy)]
struct Flow {
    chain: Chain,
    credit: i64,
    listed: bool,
    emptied_ns: u64,
}

/// The flows, and who is next.
#[derive(Debug)]
pub(crate) struct Fq {
    spec: FqSpec,
    quantum: i64,
    chains: Chains,
    flows: Vec<Flow>,
    turns: Turns,
    packets: u64,
    bytes: u64,
    stats: QueueStats,
}

impl Fq {
    /// Empty, for slots below `capacity`. A turn is two frames, a flow's first one ten.
    pub(crate) fn new(spec: FqSpec, capacity: usize, frame_bytes: u32) -> Self {
        let mask = spec.mask & (MOST_FLOWS - 1);
        let flow = Flow {
            chain: Chain::default(),
            credit: 10 * i64::from(frame_bytes),
            listed: false,
            emptied_ns: 0,
        };
        let flows = mask as usize + 1;
        Self {
            spec: FqSpec { mask, ..spec },
            quantum: 2 * i64::from(frame_bytes.max(1)),
            chains: Chains::new(capacity),
            flows: vec![flow; flows],
            turns: Turns::new(flows),
            packets: 0,
            bytes: 0,
            stats: QueueStats::default(),
        }
    }

    pub(crate) fn enqueue(&mut self, packet: Packet, dropped: &mut Vec<u32>) {
        let index = packet.flow & self.spec.mask;
        let flow = &mut self.flows[index as usize];
        let full = self.packets >= u64::from(self.spec.limit);
        if full || flow.chain.len() >= self.spec.flow_limit {
            self.stats.overlimit += 1;
            dropped.push(packet.slot);
            return;
        }
        if !flow.listed {
            flow.listed = true;
            self.turns.join(index);
            if packet.at_ns.saturating_sub(flow.emptied_ns) > REFILL_NS {
                flow.credit = flow.credit.max(self.quantum);
            }
        }
        self.packets += 1;
        self.bytes += u64::from(packet.bytes);
        self.chains.push(&mut flow.chain, packet);
        self.stats.maxq = self.stats.maxq.max(self.packets);
    }

    pub(crate) fn dequeue(&mut self, now_ns: u64) -> Option<Packet> {
        loop {
            let (index, is_new) = self.turns.front()?;
            let flow = &mut self.flows[index as usize];
            if flow.credit <= 0 {
                flow.credit += self.quantum;
                self.turns.rotate();
                continue;
            }
            if let Some(mut packet) = self.chains.pop(&mut flow.chain) {
                flow.credit -= i64::from(packet.bytes);
                flow.emptied_ns = now_ns;
                self.packets -= 1;
                self.bytes -= u64::from(packet.bytes);
                let too_long = |threshold_ns| now_ns - packet.at_ns > threshold_ns;
                if self.spec.ce_threshold_ns.is_some_and(too_long) && packet.mark() {
                    self.stats.ce_mark += 1;
                }
                return Some(packet);
            }
            // A new flow waits for its turn among the old ones once, so that it is not new again at once.
            if is_new {
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

    fn packet(slot: u32, flow: u32) -> Packet {
        Packet { slot, bytes: 1000, flow, ecn: Ecn::Ect1, ..Packet::default() }
    }

    fn take(queue: &mut Fq, count: usize) -> Vec<u32> {
        (0..count).map_while(|_| queue.dequeue(1)).map(|p| p.slot).collect()
    }

    #[test]
    fn flows_take_turns_of_two_frames_after_a_first_one_of_ten() {
        let mut queue = Fq::new(FqSpec::default(), 200, 1000);
        let mut dropped = Vec::new();
        for slot in 0..60 {
            queue.enqueue(packet(slot, slot / 30), &mut dropped);
        }
        assert_eq!(take(&mut queue, 10), (0..10).collect::<Vec<_>>());
        assert_eq!(take(&mut queue, 10), (30..40).collect::<Vec<_>>());
        assert_eq!(take(&mut queue, 8), [10, 11, 40, 41, 12, 13, 42, 43]);
        queue.enqueue(packet(99, 5), &mut dropped);
        assert_eq!(take(&mut queue, 1), [99]);
        assert_eq!(take(&mut queue, 99).len(), 32);
        assert_eq!((queue.backlog(), queue.stats().flows), ((0, 0), 0));
    }

    #[test]
    fn a_flow_has_a_limit_and_so_have_all() {
        let spec = FqSpec { limit: 7, flow_limit: 5, ..FqSpec::default() };
        let mut queue = Fq::new(spec, 64, 1000);
        let mut dropped = Vec::new();
        for slot in 0..12 {
            queue.enqueue(packet(slot, slot / 6), &mut dropped);
        }
        assert_eq!(dropped, [5, 8, 9, 10, 11]);
        assert_eq!(queue.stats().overlimit, 5);
    }

    #[test]
    fn without_a_mask_all_flows_are_one_queue() {
        let mut queue = Fq::new(FqSpec { mask: 0, ..FqSpec::default() }, 64, 1000);
        for slot in 0..40 {
            queue.enqueue(packet(slot, slot * 7919), &mut Vec::new());
        }
        assert_eq!(take(&mut queue, 40), (0..40).collect::<Vec<_>>());
    }

    #[test]
    fn ce_threshold_marks_what_stayed_longer() {
        let spec = FqSpec { ce_threshold_ns: Some(5_000_000), ..FqSpec::default() };
        let mut queue = Fq::new(spec, 64, 1000);
        for slot in 0..3 {
            queue.enqueue(packet(slot, 1), &mut Vec::new());
        }
        queue.enqueue(Packet { ecn: Ecn::NotEct, ..packet(3, 1) }, &mut Vec::new());
        let marked = [4_000_000, 5_000_000, 5_000_001, 9_000_000]
            .map(|now_ns| queue.dequeue(now_ns).unwrap().marked);
        // The last one cannot be marked and is let pass, as in the kernel.
        assert_eq!(marked, [false, false, true, false]);
        assert_eq!((queue.stats().ce_mark, queue.stats().dropped()), (1, 0));
    }
}
