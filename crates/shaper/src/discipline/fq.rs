//! FQ, with the names of `net/sched/sch_fq.c`, as the kernel treats forwarded packets.
//!
//! Differences from the kernel: no pacing, because packets of other hosts carry no departure time; one band; no horizon. Flows are entries
//! of a table, indexed by the hash under `orphan_mask`, not nodes of a tree.

use ccbench_proto::plan;
use ccbench_proto::units::{Micros, Rate};
use ccbench_proto::wire::QdiscSample;

use super::codel::ce_threshold_text;
use super::flow_lists::FlowLists;
use super::flow_queue::{FlowQueue, PacketPool};
use super::{Discipline, KernelSupport, PacketQueue, QueueParams, QueueStats, Setup};
use crate::datapath::counters::Counters;
use crate::datapath::packet::Packet;
use crate::qdisc::{BadQueue, Qdisc, limit_packets, size};

mod qdisc;

/// A flow that has been empty for longer than this gets a new quantum (`flow_refill_delay`).
const FLOW_REFILL_DELAY_NS: u64 = 40_000_000;
/// Maximum number of flows that `orphan_mask` can distinguish, because each takes memory.
const MAX_FLOWS: u32 = 1 << 16;

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FqParams {
    /// Maximum number of packets in all queues together.
    pub(crate) limit: u32,
    /// Maximum number of packets of one flow.
    pub(crate) flow_limit: u32,
    /// The bits of the hash that distinguish flows; 0 makes a single queue.
    pub(crate) orphan_mask: u32,
    /// Mark ECN-capable packets whose sojourn time exceeds this.
    pub(crate) ce_threshold_ns: Option<u64>,
    /// Bytes added to a flow's credit in each round; `None`: two frames.
    pub(crate) quantum: Option<u32>,
    /// A flow's initial credit, bytes; `None`: ten frames.
    pub(crate) initial_quantum: Option<u32>,
}

impl Default for FqParams {
    /// The kernel's defaults.
    fn default() -> Self {
        Self {
            limit: 10_000,
            flow_limit: 100,
            orphan_mask: 1023,
            ce_threshold_ns: None,
            quantum: None,
            initial_quantum: None,
        }
    }
}

impl Discipline for plan::Fq {
    const KIND: &'static str = "fq";
    const KERNEL: KernelSupport = KernelSupport::Config("NET_SCH_FQ");

    fn qdisc(&self, _rate: Option<Rate>) -> Result<Qdisc, BadQueue> {
        qdisc::encode(self)
    }

    fn params(&self, _rate: Option<Rate>) -> Result<QueueParams, BadQueue> {
        let Self { limit, flow_limit, buckets, ce_threshold, orphan_mask, maxrate, .. } = *self;
        if let Some(maxrate) = maxrate {
            let what = format!("fq with maxrate = {maxrate} (its fq does not pace)");
            return Err(BadQueue::new(what, "give the flows or the link a rate instead"));
        }
        let default = FqParams::default();
        // More buckets do not merge flows, but a plan with one bucket gets a single queue.
        let single = buckets.map(qdisc::buckets_log).transpose()? == Some(0);
        Ok(QueueParams::Fq(FqParams {
            limit: limit.map_or(Ok(default.limit), limit_packets)?,
            flow_limit: flow_limit.map_or(Ok(default.flow_limit), limit_packets)?,
            orphan_mask: if single { 0 } else { orphan_mask.unwrap_or(default.orphan_mask) },
            ce_threshold_ns: ce_threshold.map(Micros::nanos),
            quantum: self.quantum.map(size),
            initial_quantum: self.initial_quantum.map(size),
        }))
    }

    fn read_xstats(xstats: &[u8], row: &mut QdiscSample) {
        qdisc::read_xstats(xstats, row);
    }
}

/// Returns this number of bytes or, by default, of frames.
fn bytes_or(bytes: Option<u32>, (frames, frame_bytes): (i64, u32)) -> i64 {
    bytes.map_or(frames * i64::from(frame_bytes.max(1)), i64::from).max(1)
}

/// Returns a number of bytes as `tc` prints it, with a leading space.
fn bytes_text(name: &'static str, bytes: Option<u32>) -> String {
    bytes.map_or(String::new(), |bytes| format!(" {name} {bytes}b"))
}

/// `struct fq_flow`.
#[derive(Debug, Clone, Copy)]
struct Flow {
    queue: FlowQueue,
    /// Bytes that the flow may still send in this round.
    credit: i64,
    /// Whether it is in `new_flows` or `old_flows`.
    listed: bool,
    /// When its last packet left.
    age_ns: u64,
}

/// The flows and their lists.
#[derive(Debug)]
pub(crate) struct Fq {
    params: FqParams,
    frame_bytes: u32,
    quantum: i64,
    pool: PacketPool,
    flows: Vec<Flow>,
    lists: FlowLists,
    packets: u64,
    bytes: u64,
    stats: QueueStats,
}

impl Fq {
    /// An empty queue for slots below `capacity`.
    pub(crate) fn new(params: FqParams, capacity: usize, frame_bytes: u32) -> Self {
        let orphan_mask = params.orphan_mask & (MAX_FLOWS - 1);
        let flow = Flow {
            queue: FlowQueue::default(),
            credit: bytes_or(params.initial_quantum, (10, frame_bytes)),
            listed: false,
            age_ns: 0,
        };
        let flows = orphan_mask as usize + 1;
        Self {
            params: FqParams { orphan_mask, ..params },
            frame_bytes,
            quantum: bytes_or(params.quantum, (2, frame_bytes)),
            pool: PacketPool::new(capacity),
            flows: vec![flow; flows],
            lists: FlowLists::new(flows),
            packets: 0,
            bytes: 0,
            stats: QueueStats::default(),
        }
    }
}

impl PacketQueue for Fq {
    type Params = FqParams;

    fn build(params: FqParams, setup: Setup) -> Self {
        Self::new(params, setup.capacity, setup.frame_bytes)
    }

    fn enqueue(&mut self, packet: Packet, dropped: &mut Vec<u32>) {
        let index = packet.flow & self.params.orphan_mask;
        let flow = &mut self.flows[index as usize];
        let full = self.packets >= u64::from(self.params.limit);
        if full || flow.queue.len() >= self.params.flow_limit {
            self.stats.drop_overlimit += 1;
            dropped.push(packet.slot);
            return;
        }
        if !flow.listed {
            flow.listed = true;
            self.lists.add_new(index);
            if packet.at_ns.saturating_sub(flow.age_ns) > FLOW_REFILL_DELAY_NS {
                flow.credit = flow.credit.max(self.quantum);
            }
        }
        self.packets += 1;
        self.bytes += u64::from(packet.bytes);
        self.pool.push(&mut flow.queue, packet);
        self.stats.maxq = self.stats.maxq.max(self.packets);
    }

    fn dequeue(&mut self, now_ns: u64, _dropped: &mut Vec<u32>) -> Option<Packet> {
        loop {
            let (index, is_new) = self.lists.head()?;
            let flow = &mut self.flows[index as usize];
            if flow.credit <= 0 {
                flow.credit += self.quantum;
                self.lists.move_to_old();
                continue;
            }
            if let Some(mut packet) = self.pool.pop(&mut flow.queue) {
                flow.credit -= i64::from(packet.bytes);
                flow.age_ns = now_ns;
                self.packets -= 1;
                self.bytes -= u64::from(packet.bytes);
                let sojourn_ns = now_ns - packet.at_ns;
                if self.params.ce_threshold_ns.is_some_and(|threshold_ns| sojourn_ns > threshold_ns)
                    && packet.mark()
                {
                    self.stats.ce_mark += 1;
                }
                return Some(packet);
            }
            flow.listed = self.lists.retire_head(is_new);
        }
    }

    fn remove(&mut self, slot: u32, flow: u32) -> Option<Packet> {
        let index = flow & self.params.orphan_mask;
        let packet = self.pool.remove(&mut self.flows[index as usize].queue, slot)?;
        self.packets -= 1;
        self.bytes -= u64::from(packet.bytes);
        Some(packet)
    }

    /// Drops from the fattest flow. The kernel dequeues packets to drop them.
    fn set_params(&mut self, params: FqParams, dropped: &mut Vec<u32>) {
        let orphan_mask = self.params.orphan_mask;
        self.params = FqParams { orphan_mask, ..params };
        self.quantum = bytes_or(params.quantum, (2, self.frame_bytes));
        while self.packets > u64::from(params.limit) {
            let Some(longest) = self.flows.iter_mut().max_by_key(|flow| flow.queue.len()) else {
                return;
            };
            let Some(packet) = self.pool.pop(&mut longest.queue) else { return };
            self.packets -= 1;
            self.bytes -= u64::from(packet.bytes);
            self.stats.drop_overlimit += 1;
            dropped.push(packet.slot);
        }
    }

    fn backlog(&self) -> (u64, u64) {
        (self.packets, self.bytes)
    }

    fn stats(&self, _now_ns: u64) -> QueueStats {
        QueueStats { flows: self.lists.len() as u64, ..self.stats }
    }

    fn max_packets(params: FqParams, _min_frame_bytes: u64) -> u64 {
        u64::from(params.limit)
    }

    fn flow_queue(params: FqParams, flow: u32) -> Option<u32> {
        let mask = params.orphan_mask & (MAX_FLOWS - 1);
        (mask > 0).then_some(flow & mask)
    }

    fn describe(params: FqParams) -> String {
        format!(
            "fq limit {}p flow_limit {}p orphan_mask {}{}{}{}",
            params.limit,
            params.flow_limit,
            params.orphan_mask,
            ce_threshold_text(params.ce_threshold_ns),
            bytes_text("quantum", params.quantum),
            bytes_text("initial_quantum", params.initial_quantum),
        )
    }

    fn fill_row(counters: &Counters, row: &mut QdiscSample) {
        row.ce_mark_pkts = Some(counters.ce_mark_pkts);
        row.flows = Some(counters.flows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::header::Ecn;
    use crate::discipline::tests::{Numbers, Samples};

    impl Samples for Fq {
        fn small() -> Vec<FqParams> {
            vec![FqParams {
                limit: 30,
                flow_limit: 12,
                orphan_mask: 3,
                ce_threshold_ns: Some(1_000),
                ..FqParams::default()
            }]
        }

        fn any(numbers: &Numbers) -> FqParams {
            let Numbers { limit, small, any, flags, .. } = *numbers;
            FqParams {
                limit,
                flow_limit: small + 1,
                orphan_mask: any,
                ce_threshold_ns: numbers.ce_threshold_ns(),
                quantum: flags[1].then_some(small + 100),
                initial_quantum: flags[3].then_some(small + 100),
            }
        }

        fn golden() -> Vec<(FqParams, &'static str)> {
            let marks = FqParams { ce_threshold_ns: Some(60_000_000), ..FqParams::default() };
            vec![(
                marks,
                "*293 *298 *302 *305 *309 *310 *313 *314 *318 *317 *321 *322 *325 *326 *329 *330 *333 *334 \
                 *337 *338 *341 *342 *345 *346 *349 *350 *353 *354 *357 *358 *361 *362 *365 *366 *369 *370 \
                 *373 *374 *377 *378 *381 *382 *385 *386 *389 *390 *393 *394 *397 *398",
            )]
        }
    }

    fn packet(slot: u32, flow: u32) -> Packet {
        Packet { slot, bytes: 1000, flow, ecn: Ecn::Ect1, ..Packet::default() }
    }

    fn take(queue: &mut Fq, count: usize) -> Vec<u32> {
        (0..count).map_while(|_| queue.dequeue(1, &mut Vec::new())).map(|p| p.slot).collect()
    }

    #[test]
    fn rounds_are_two_frames_after_an_initial_ten() {
        let mut queue = Fq::new(FqParams::default(), 200, 1000);
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
        assert_eq!((queue.backlog(), queue.stats(0).flows), ((0, 0), 0));
    }

    #[test]
    fn quanta_of_the_plan() {
        let params =
            FqParams { quantum: Some(1000), initial_quantum: Some(2500), ..FqParams::default() };
        let mut queue = Fq::new(params, 200, 1000);
        for slot in 0..20 {
            queue.enqueue(packet(slot, slot / 10), &mut Vec::new());
        }
        // A credit of 2500 bytes is three packets of 1000 bytes; a round is one.
        assert_eq!(take(&mut queue, 6), [0, 1, 2, 10, 11, 12]);
        assert_eq!(take(&mut queue, 4), [3, 13, 4, 14]);
    }

    #[test]
    fn limits_each_flow_and_the_total() {
        let params = FqParams { limit: 7, flow_limit: 5, ..FqParams::default() };
        let mut queue = Fq::new(params, 64, 1000);
        let mut dropped = Vec::new();
        for slot in 0..12 {
            queue.enqueue(packet(slot, slot / 6), &mut dropped);
        }
        assert_eq!(dropped, [5, 8, 9, 10, 11]);
        assert_eq!(queue.stats(0).drop_overlimit, 5);
    }

    #[test]
    fn orphan_mask_zero_makes_one_queue() {
        let mut queue = Fq::new(FqParams { orphan_mask: 0, ..FqParams::default() }, 64, 1000);
        for slot in 0..40 {
            queue.enqueue(packet(slot, slot * 7919), &mut Vec::new());
        }
        assert_eq!(take(&mut queue, 40), (0..40).collect::<Vec<_>>());
    }

    #[test]
    fn ce_threshold_marks_longer_sojourn() {
        let params = FqParams { ce_threshold_ns: Some(5_000_000), ..FqParams::default() };
        let mut queue = Fq::new(params, 64, 1000);
        for slot in 0..3 {
            queue.enqueue(packet(slot, 1), &mut Vec::new());
        }
        queue.enqueue(Packet { ecn: Ecn::NotEct, ..packet(3, 1) }, &mut Vec::new());
        let marked = [4_000_000, 5_000_000, 5_000_001, 9_000_000]
            .map(|now_ns| queue.dequeue(now_ns, &mut Vec::new()).unwrap().marked);
        // The last packet is not ECN-capable and passes unmarked, as in the kernel.
        assert_eq!(marked, [false, false, true, false]);
        assert_eq!((queue.stats(0).ce_mark, queue.stats(0).dropped()), (1, 0));
    }
}
