//! FQ-CoDel (RFC 8290), with the names of `net/sched/sch_fq_codel.c`: deficit round robin over hashed flows, new flows first. Each flow has
//! its own CoDel.
//!
//! Differences from the kernel: a packet's flow is its hash modulo `flows`, not `reciprocal_scale`. `memory_limit` counts the frames'
//! bytes, not `skb->truesize`.

use ccbench_proto::plan;
use ccbench_proto::units::Rate;
use ccbench_proto::wire::QdiscSample;

use super::codel::{CodelParams, CodelVars, PacketSource};
use super::flow_lists::FlowLists;
use super::flow_queue::{FlowQueue, PacketPool};
use super::{Discipline, KernelSupport, PacketQueue, QueueParams, QueueStats, Setup};
use crate::datapath::counters::Counters;
use crate::datapath::packet::Packet;
use crate::qdisc::{BadQueue, Qdisc, limit_bytes, limit_packets, size};

mod qdisc;

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FqCodelParams {
    /// Maximum number of packets in all queues together.
    pub(crate) limit: u32,
    /// Number of queues.
    pub(crate) flows: u32,
    /// Bytes added to a flow's deficit in each round; `None`: one frame.
    pub(crate) quantum: Option<u32>,
    /// Maximum bytes in all queues together.
    pub(crate) memory_limit: u64,
    /// Packets dropped at once from the fattest flow (`drop_batch_size`), because finding it means scanning all flows.
    pub(crate) drop_batch: u32,
    /// CoDel parameters of each flow.
    pub(crate) codel: CodelParams,
}

impl Default for FqCodelParams {
    /// The kernel's defaults.
    fn default() -> Self {
        Self {
            limit: 10_240,
            flows: 1024,
            quantum: None,
            memory_limit: 32 << 20,
            drop_batch: 64,
            codel: CodelParams { ecn: true, ..CodelParams::default() },
        }
    }
}

impl Discipline for plan::FqCodel {
    const KIND: &'static str = "fq_codel";
    const KERNEL: KernelSupport = KernelSupport::Config("NET_SCH_FQ_CODEL");

    fn qdisc(&self, _rate: Option<Rate>) -> Result<Qdisc, BadQueue> {
        qdisc::encode(self)
    }

    /// `sch_fq_codel` refuses a message that sets the number of its queues, even to the current number.
    fn changed_qdisc(&self, rate: Option<Rate>) -> Result<Qdisc, BadQueue> {
        Self { flows: None, ..self.clone() }.qdisc(rate)
    }

    fn params(&self, _rate: Option<Rate>) -> Result<QueueParams, BadQueue> {
        let Self { limit, flows, target, interval, quantum, ecn, ce_threshold, .. } = *self;
        let mask = self.ce_threshold_mask.unwrap_or(0);
        if mask & !3 != 0 {
            let what =
                format!("fq_codel with ce_threshold_mask = {mask}, which covers bits of the DSCP");
            return Err(BadQueue::new(what, "use a mask of the ECN field only, like 3"));
        }
        let default = FqCodelParams::default();
        let flows = flows.unwrap_or(default.flows);
        if !(1..=65_536).contains(&flows) {
            let what = format!("fq_codel with flows = {flows}");
            return Err(BadQueue::new(what, "write 1 to 65536"));
        }
        Ok(QueueParams::FqCodel(FqCodelParams {
            limit: limit.map_or(Ok(default.limit), limit_packets)?,
            flows,
            quantum: quantum.map(size),
            memory_limit: match self.memory_limit {
                Some(limit) => u64::from(limit_bytes(limit)?),
                None => default.memory_limit,
            },
            drop_batch: self.drop_batch.unwrap_or(default.drop_batch).max(1),
            codel: CodelParams {
                ce_threshold_selector: self.ce_threshold_selector.unwrap_or(0),
                ce_threshold_mask: mask,
                ..default.codel.with(target, interval, ecn, ce_threshold)
            },
        }))
    }

    fn read_xstats(xstats: &[u8], row: &mut QdiscSample) {
        qdisc::read_xstats(xstats, row);
    }
}

/// Returns the bytes added to a flow's deficit in each round.
fn quantum(params: &FqCodelParams, frame_bytes: u32) -> i64 {
    i64::from(params.quantum.unwrap_or(frame_bytes).max(1))
}

/// `struct fq_codel_flow`.
#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    queue: FlowQueue,
    cvars: CodelVars,
    deficit: i64,
    /// Whether it is in `new_flows` or `old_flows`.
    listed: bool,
}

/// The flows and their lists.
#[derive(Debug)]
pub(crate) struct FqCodel {
    params: FqCodelParams,
    frame_bytes: u32,
    quantum: i64,
    pool: PacketPool,
    flows: Vec<Flow>,
    lists: FlowLists,
    packets: u64,
    bytes: u64,
    stats: QueueStats,
}

/// A flow's queue as the source of packets for CoDel.
struct FlowSource<'a> {
    pool: &'a mut PacketPool,
    queue: &'a mut FlowQueue,
    packets: &'a mut u64,
    bytes: &'a mut u64,
}

impl PacketSource for FlowSource<'_> {
    fn pop(&mut self) -> Option<Packet> {
        let packet = self.pool.pop(self.queue)?;
        *self.packets -= 1;
        *self.bytes -= u64::from(packet.bytes);
        Some(packet)
    }
    // The backlog of all flows, as in the kernel: CoDel spares a short flow only if the whole queue is short.
    fn backlog_bytes(&self) -> u64 {
        *self.bytes
    }
}

impl FqCodel {
    /// An empty queue for slots below `capacity`.
    pub(crate) fn new(params: FqCodelParams, capacity: usize, frame_bytes: u32) -> Self {
        let flows = params.flows.max(1) as usize;
        Self {
            params,
            frame_bytes,
            quantum: quantum(&params, frame_bytes),
            pool: PacketPool::new(capacity),
            flows: vec![Flow::default(); flows],
            lists: FlowLists::new(flows),
            packets: 0,
            bytes: 0,
            stats: QueueStats::default(),
        }
    }

    /// `fq_codel_drop`: drops a batch from the head of the flow with the most bytes, at most half of its bytes. The flow's CoDel counts
    /// these drops as its own.
    fn drop_batch(&mut self, dropped: &mut Vec<u32>) -> u64 {
        let Some(flow) = self.flows.iter_mut().max_by_key(|flow| flow.queue.bytes()) else {
            return 0;
        };
        let threshold = flow.queue.bytes() / 2;
        let mut count = 0;
        while count < self.params.drop_batch && (count == 0 || flow.queue.bytes() > threshold) {
            let Some(packet) = self.pool.pop(&mut flow.queue) else { break };
            self.packets -= 1;
            self.bytes -= u64::from(packet.bytes);
            dropped.push(packet.slot);
            count += 1;
        }
        flow.cvars.add_drops(count);
        u64::from(count)
    }
}

impl PacketQueue for FqCodel {
    type Params = FqCodelParams;

    fn build(params: FqCodelParams, setup: Setup) -> Self {
        Self::new(params, setup.capacity, setup.frame_bytes)
    }

    fn enqueue(&mut self, packet: Packet, dropped: &mut Vec<u32>) {
        let index = packet.flow % self.params.flows.max(1);
        let flow = &mut self.flows[index as usize];
        self.pool.push(&mut flow.queue, packet);
        self.packets += 1;
        self.bytes += u64::from(packet.bytes);
        if !flow.listed {
            flow.listed = true;
            flow.deficit = self.quantum;
            self.lists.add_new(index);
        }
        self.stats.maxq = self.stats.maxq.max(self.packets);
        let memory_limited = self.bytes > self.params.memory_limit;
        if self.packets > u64::from(self.params.limit) || memory_limited {
            let count = self.drop_batch(dropped);
            if memory_limited {
                self.stats.drop_overmemory += count;
            } else {
                self.stats.drop_overlimit += count;
            }
        }
    }

    fn dequeue(&mut self, now_ns: u64, dropped: &mut Vec<u32>) -> Option<Packet> {
        loop {
            let (index, is_new) = self.lists.head()?;
            let flow = &mut self.flows[index as usize];
            if flow.deficit <= 0 {
                flow.deficit += self.quantum;
                self.lists.move_to_old();
                continue;
            }
            let mut source = FlowSource {
                pool: &mut self.pool,
                queue: &mut flow.queue,
                packets: &mut self.packets,
                bytes: &mut self.bytes,
            };
            let (params, stats) = (&self.params.codel, &mut self.stats);
            let next =
                flow.cvars.dequeue(params, self.frame_bytes, now_ns, &mut source, stats, dropped);
            if let Some(packet) = next {
                flow.deficit -= i64::from(packet.bytes);
                return Some(packet);
            }
            flow.listed = self.lists.retire_head(is_new && !self.lists.old_is_empty());
        }
    }

    fn remove(&mut self, slot: u32, flow: u32) -> Option<Packet> {
        let index = flow % self.params.flows.max(1);
        let packet = self.pool.remove(&mut self.flows[index as usize].queue, slot)?;
        self.packets -= 1;
        self.bytes -= u64::from(packet.bytes);
        Some(packet)
    }

    /// Drops from the fattest flow. The kernel dequeues packets to drop them.
    fn set_params(&mut self, params: FqCodelParams, dropped: &mut Vec<u32>) {
        let flows = self.params.flows;
        self.params = FqCodelParams { flows, ..params };
        self.quantum = quantum(&params, self.frame_bytes);
        loop {
            let full = self.packets > u64::from(params.limit);
            if !full && self.bytes <= params.memory_limit {
                return;
            }
            match self.drop_batch(dropped) {
                0 => return,
                count if full => self.stats.drop_overlimit += count,
                count => self.stats.drop_overmemory += count,
            }
        }
    }

    fn backlog(&self) -> (u64, u64) {
        (self.packets, self.bytes)
    }

    fn stats(&self, _now_ns: u64) -> QueueStats {
        QueueStats { flows: self.lists.len() as u64, ..self.stats }
    }

    fn max_packets(params: FqCodelParams, _min_frame_bytes: u64) -> u64 {
        u64::from(params.limit)
    }

    fn flow_queue(params: FqCodelParams, flow: u32) -> Option<u32> {
        (params.flows > 1).then(|| flow % params.flows)
    }

    fn describe(params: FqCodelParams) -> String {
        format!(
            "fq_codel limit {}p flows {} quantum {} {} memory_limit {}B{}",
            params.limit,
            params.flows,
            params.quantum.map_or("1 frame".to_owned(), |bytes| format!("{bytes}B")),
            params.codel.describe(),
            params.memory_limit,
            match params.drop_batch {
                64 => String::new(),
                packets => format!(" drop_batch {packets}"),
            },
        )
    }

    fn fill_row(counters: &Counters, row: &mut QdiscSample) {
        row.ecn_mark_pkts = Some(counters.ecn_mark_pkts);
        row.ce_mark_pkts = Some(counters.ce_mark_pkts);
        row.flows = Some(counters.flows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::header::Ecn;
    use crate::discipline::tests::{Numbers, Samples, prompt_codel};

    impl Samples for FqCodel {
        fn small() -> Vec<FqCodelParams> {
            let prompt = FqCodelParams { codel: prompt_codel(), ..FqCodelParams::default() };
            let few = FqCodelParams { limit: 30, flows: 4, ..prompt };
            vec![few, FqCodelParams { memory_limit: 20_000, ..prompt }]
        }

        fn any(numbers: &Numbers) -> FqCodelParams {
            let Numbers { limit, bytes, small, any, flags, .. } = *numbers;
            FqCodelParams {
                limit,
                flows: any % 65_536 + 1,
                quantum: flags[3].then_some(256 + any % (1 << 20)),
                memory_limit: if flags[0] { bytes } else { 1 },
                drop_batch: small + 1,
                codel: numbers.codel(),
            }
        }

        fn golden() -> Vec<(FqCodelParams, &'static str)> {
            vec![(
                FqCodelParams::default(),
                "-344 *109 *110 *193 *194 *253 *254 *301 *302 *345 *381",
            )]
        }
    }

    fn packet(slot: u32, flow: u32, bytes: u32) -> Packet {
        Packet { slot, bytes, flow, ..Packet::default() }
    }

    fn take(queue: &mut FqCodel, count: usize) -> Vec<u32> {
        (0..count).map_while(|_| queue.dequeue(1, &mut Vec::new())).map(|p| p.slot).collect()
    }

    #[test]
    fn serves_new_flows_before_old_flows() {
        let mut queue = FqCodel::new(FqCodelParams::default(), 100, 1000);
        let mut dropped = Vec::new();
        for slot in 0..20 {
            queue.enqueue(packet(slot, slot / 10, 1000), &mut dropped);
        }
        assert_eq!(take(&mut queue, 4), [0, 10, 1, 11]);
        queue.enqueue(packet(50, 7, 100), &mut dropped);
        // A sparse flow is served before both.
        assert_eq!(take(&mut queue, 4), [50, 2, 12, 3]);
        assert_eq!(queue.stats(0).flows, 2);
        assert_eq!(take(&mut queue, 100).len(), 13);
        assert_eq!((queue.backlog(), queue.stats(0).flows), ((0, 0), 0));
    }

    #[test]
    fn shares_bytes_equally_for_any_packet_size() {
        let mut queue = FqCodel::new(FqCodelParams::default(), 3000, 1500);
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
    fn full_queue_drops_from_longest_flow() {
        let mut queue =
            FqCodel::new(FqCodelParams { limit: 20, ..FqCodelParams::default() }, 64, 1000);
        let mut dropped = Vec::new();
        queue.enqueue(packet(60, 3, 1000), &mut dropped);
        for slot in 0..20 {
            queue.enqueue(packet(slot, 1, 1000), &mut dropped);
        }
        // Half of its 20 packets, oldest first.
        assert_eq!(dropped, (0..10).collect::<Vec<_>>());
        assert_eq!((queue.stats(0).drop_overlimit, queue.backlog().0), (10, 11));
    }

    #[test]
    fn overload_drops_a_batch_and_raises_the_drop_rate() {
        let params = FqCodelParams { limit: 20, drop_batch: 4, ..FqCodelParams::default() };
        let mut queue = FqCodel::new(params, 64, 1000);
        let mut dropped = Vec::new();
        for slot in 0..21 {
            queue.enqueue(packet(slot, 1, 1000), &mut dropped);
        }
        assert_eq!(dropped, [0, 1, 2, 3]);
        let mut counted = CodelVars::default();
        counted.add_drops(4);
        assert_eq!(queue.flows[1].cvars, counted);
    }

    #[test]
    fn memory_limit_drops_are_counted_apart() {
        let params = FqCodelParams { memory_limit: 5_000, ..FqCodelParams::default() };
        let mut queue = FqCodel::new(params, 64, 1000);
        let mut dropped = Vec::new();
        for slot in 0..6 {
            queue.enqueue(packet(slot, 1, 1000), &mut dropped);
        }
        assert_eq!(
            (dropped.len(), queue.stats(0).drop_overmemory, queue.stats(0).drop_overlimit),
            (3, 3, 0)
        );
    }

    #[test]
    fn each_flow_has_its_own_codel_state() {
        const MS: u64 = 1_000_000;
        let mut queue = FqCodel::new(FqCodelParams::default(), 2000, 1514);
        let mut dropped = Vec::new();
        for slot in 0..1000 {
            let standing = Packet { ecn: Ecn::Ect0, ..packet(slot, 1, 1514) };
            queue.enqueue(standing, &mut dropped);
        }
        let mut marked = Vec::new();
        for ms in 1..400_u64 {
            // A flow that has no standing queue.
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
