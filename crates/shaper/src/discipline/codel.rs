//! CoDel (RFC 8289), with the names of `net/sched/sch_codel.c` and `include/net/codel_impl.h`.
//!
//! Differences from the kernel: times are in nanoseconds, not in units of 1024 ns. The interval is divided by the exact square root of
//! `count`, without the kernel's Newton step. `should_drop` compares the backlog with this link's largest frame.

use ccbench_proto::plan;
use ccbench_proto::units::{Micros, Rate};
use ccbench_proto::wire::QdiscSample;

use super::fifo::{Fifo, FifoLimit};
use super::{
    Discipline, KernelSupport, PacketQueue, QueueParams, QueueStats, Setup, flag_text, ns_or,
    us_text,
};
use crate::datapath::counters::Counters;
use crate::datapath::packet::Packet;
use crate::qdisc::{BadQueue, Qdisc, limit_packets};

mod qdisc;

/// Parameters of the AQM (`struct codel_params`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CodelParams {
    /// Acceptable standing queue delay.
    pub(crate) target_ns: u64,
    /// Sliding window over which the minimum sojourn time must fall below the target.
    pub(crate) interval_ns: u64,
    /// Mark ECN-capable packets instead of dropping them.
    pub(crate) ecn: bool,
    /// Mark ECN-capable packets whose sojourn time exceeds this.
    pub(crate) ce_threshold_ns: Option<u64>,
    /// `ce_threshold` applies only to packets whose ECN field has this value under the mask; a mask of 0 selects all.
    pub(crate) ce_threshold_selector: u8,
    pub(crate) ce_threshold_mask: u8,
}

impl Default for CodelParams {
    /// The kernel's defaults.
    fn default() -> Self {
        Self {
            target_ns: 5_000_000,
            interval_ns: 100_000_000,
            ecn: false,
            ce_threshold_ns: None,
            ce_threshold_selector: 0,
            ce_threshold_mask: 0,
        }
    }
}

impl CodelParams {
    /// Returns these parameters with the keys that a plan sets.
    pub(super) fn with(
        self,
        target: Option<Micros>,
        interval: Option<Micros>,
        ecn: Option<bool>,
        ce_threshold: Option<Micros>,
    ) -> Self {
        Self {
            target_ns: ns_or(target, self.target_ns),
            interval_ns: ns_or(interval, self.interval_ns),
            ecn: ecn.unwrap_or(self.ecn),
            ce_threshold_ns: ce_threshold.map(Micros::nanos),
            ..self
        }
    }

    /// Returns whether `ce_threshold` applies to the packet.
    fn selects(&self, packet: &Packet) -> bool {
        packet.ecn.bits() & self.ce_threshold_mask == self.ce_threshold_selector
    }

    /// Returns the parameters as `tc` prints them.
    pub(super) fn describe(&self) -> String {
        let (selector, mask) = (self.ce_threshold_selector, self.ce_threshold_mask);
        let selected = match mask {
            0 => String::new(),
            mask => format!(" ce_threshold_selector {selector:#x}/{mask:#x}"),
        };
        format!(
            "target {} interval {}{}{}{selected}",
            us_text(self.target_ns),
            us_text(self.interval_ns),
            flag_text(self.ecn, "ecn"),
            ce_threshold_text(self.ce_threshold_ns)
        )
    }
}

/// Returns `ce_threshold` as `tc` prints it, with a leading space.
pub(super) fn ce_threshold_text(threshold_ns: Option<u64>) -> String {
    threshold_ns.map_or(String::new(), |ns| format!(" ce_threshold {}", us_text(ns)))
}

/// Parameters of a [`Codel`] queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CodelQueueParams {
    /// Maximum number of packets.
    pub(crate) limit: u32,
    /// Parameters of the AQM.
    pub(crate) codel: CodelParams,
}

impl Default for CodelQueueParams {
    /// The kernel's defaults.
    fn default() -> Self {
        Self { limit: 1000, codel: CodelParams::default() }
    }
}

impl Discipline for plan::Codel {
    const KIND: &'static str = "codel";
    const KERNEL: KernelSupport = KernelSupport::Config("NET_SCH_CODEL");

    fn qdisc(&self, _rate: Option<Rate>) -> Result<Qdisc, BadQueue> {
        qdisc::encode(self)
    }

    fn params(&self, _rate: Option<Rate>) -> Result<QueueParams, BadQueue> {
        let Self { limit, target, interval, ecn, ce_threshold } = *self;
        let default = CodelQueueParams::default();
        Ok(QueueParams::Codel(CodelQueueParams {
            limit: limit.map_or(Ok(default.limit), limit_packets)?,
            codel: default.codel.with(target, interval, ecn, ce_threshold),
        }))
    }

    fn read_xstats(xstats: &[u8], row: &mut QdiscSample) {
        qdisc::read_xstats(xstats, row);
    }
}

/// A queue from which [`CodelVars::dequeue`] takes packets.
pub(crate) trait PacketSource {
    /// Takes the packet at the head.
    fn pop(&mut self) -> Option<Packet>;
    /// Returns the bytes left in the queue (`sch->qstats.backlog`).
    fn backlog_bytes(&self) -> u64;
}

/// State of the AQM of one queue (`struct codel_vars`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CodelVars {
    /// Whether it is in the dropping state.
    dropping: bool,
    /// When the sojourn time will have stayed above the target for an interval; `None` while it is below the target.
    first_above_time_ns: Option<u64>,
    /// When to drop the next packet while in the dropping state.
    drop_next_ns: u64,
    /// Packets dropped since it entered the dropping state.
    count: u32,
    /// `count` when it entered the dropping state.
    lastcount: u32,
}

impl CodelVars {
    /// `codel_dequeue`: returns the next packet to transmit. Dropped packets go to `dropped`. CoDel does not drop while at most `mtu_bytes`
    /// are left in the queue.
    pub(crate) fn dequeue(
        &mut self,
        params: &CodelParams,
        mtu_bytes: u32,
        now_ns: u64,
        source: &mut impl PacketSource,
        stats: &mut QueueStats,
        dropped: &mut Vec<u32>,
    ) -> Option<Packet> {
        let mut next = source.pop();
        let mut drop = self.should_drop(params, mtu_bytes, now_ns, next.as_ref(), source);
        if self.dropping {
            while self.dropping {
                if !drop {
                    self.dropping = false;
                } else if now_ns < self.drop_next_ns {
                    break;
                } else {
                    self.count = self.count.saturating_add(1);
                    if mark_or_drop(params, &mut next, stats, dropped) {
                        self.drop_next_ns = control_law(self.drop_next_ns, params, self.count);
                        break;
                    }
                    next = source.pop();
                    drop = self.should_drop(params, mtu_bytes, now_ns, next.as_ref(), source);
                    if drop {
                        self.drop_next_ns = control_law(self.drop_next_ns, params, self.count);
                    }
                }
            }
        } else if drop {
            if !mark_or_drop(params, &mut next, stats, dropped) {
                next = source.pop();
                self.should_drop(params, mtu_bytes, now_ns, next.as_ref(), source);
            }
            self.enter_dropping(params, now_ns);
        }
        let mut packet = next?;
        let sojourn_ns = now_ns - packet.at_ns;
        if params.ce_threshold_ns.is_some_and(|threshold_ns| sojourn_ns > threshold_ns)
            && params.selects(&packet)
            && packet.mark()
        {
            stats.ce_mark += 1;
        }
        Some(packet)
    }

    /// Counts packets that the full queue has dropped: CoDel's next drops then start at a higher rate.
    pub(super) fn add_drops(&mut self, count: u32) {
        self.count = self.count.wrapping_add(count);
    }

    /// `codel_should_drop`: returns whether the sojourn time has been above the target for an interval.
    fn should_drop(
        &mut self,
        params: &CodelParams,
        mtu_bytes: u32,
        now_ns: u64,
        packet: Option<&Packet>,
        source: &impl PacketSource,
    ) -> bool {
        let above = packet.is_some_and(|packet| {
            now_ns - packet.at_ns >= params.target_ns
                && source.backlog_bytes() > u64::from(mtu_bytes)
        });
        if !above {
            self.first_above_time_ns = None;
            return false;
        }
        match self.first_above_time_ns {
            Some(first_above_time_ns) => now_ns >= first_above_time_ns,
            None => {
                self.first_above_time_ns = Some(now_ns + params.interval_ns);
                false
            }
        }
    }

    /// Enters the dropping state. If the last one ended less than 16 intervals ago, resumes its drop rate.
    fn enter_dropping(&mut self, params: &CodelParams, now_ns: u64) {
        self.dropping = true;
        let delta = self.count.saturating_sub(self.lastcount);
        let recent = now_ns.saturating_sub(self.drop_next_ns) < 16 * params.interval_ns;
        self.count = if delta > 1 && recent { delta } else { 1 };
        self.lastcount = self.count;
        self.drop_next_ns = control_law(now_ns, params, self.count);
    }
}

/// CoDel's control law: returns when to drop the packet after the one dropped at `t_ns`.
fn control_law(t_ns: u64, params: &CodelParams, count: u32) -> u64 {
    t_ns + (params.interval_ns as f64 / f64::from(count).sqrt()) as u64
}

/// Marks the packet and returns true, or drops it.
fn mark_or_drop(
    params: &CodelParams,
    packet: &mut Option<Packet>,
    stats: &mut QueueStats,
    dropped: &mut Vec<u32>,
) -> bool {
    if params.ecn && packet.as_mut().is_some_and(Packet::mark) {
        stats.ecn_mark += 1;
        return true;
    }
    if let Some(packet) = packet.take() {
        stats.drop_early += 1;
        dropped.push(packet.slot);
    }
    false
}

/// A FIFO with CoDel at its head.
#[derive(Debug)]
pub(crate) struct Codel {
    params: CodelQueueParams,
    mtu_bytes: u32,
    fifo: Fifo,
    vars: CodelVars,
    stats: QueueStats,
}

impl PacketSource for Fifo {
    fn pop(&mut self) -> Option<Packet> {
        self.dequeue()
    }
    fn backlog_bytes(&self) -> u64 {
        self.bytes()
    }
}

impl Codel {
    /// An empty queue that never allocates as long as at most `capacity` packets are in it.
    pub(crate) fn new(params: CodelQueueParams, capacity: usize, mtu_bytes: u32) -> Self {
        Self {
            params,
            mtu_bytes,
            fifo: Fifo::new(FifoLimit::Packets(u64::from(params.limit)), capacity),
            vars: CodelVars::default(),
            stats: QueueStats::default(),
        }
    }
}

impl PacketQueue for Codel {
    type Params = CodelQueueParams;

    fn build(params: CodelQueueParams, setup: Setup) -> Self {
        Self::new(params, setup.capacity, setup.frame_bytes)
    }

    fn enqueue(&mut self, packet: Packet, dropped: &mut Vec<u32>) {
        self.fifo.enqueue(packet, dropped);
    }

    fn dequeue(&mut self, now_ns: u64, dropped: &mut Vec<u32>) -> Option<Packet> {
        let Self { params, mtu_bytes, fifo, vars, stats } = self;
        vars.dequeue(&params.codel, *mtu_bytes, now_ns, fifo, stats, dropped)
    }

    fn remove(&mut self, slot: u32, _flow: u32) -> Option<Packet> {
        self.fifo.remove(slot)
    }

    fn set_params(&mut self, params: CodelQueueParams, dropped: &mut Vec<u32>) {
        self.params = params;
        self.fifo.set_limit(FifoLimit::Packets(u64::from(params.limit)));
        self.fifo.drop_excess(dropped);
    }

    fn backlog(&self) -> (u64, u64) {
        self.fifo.backlog()
    }

    fn stats(&self, _now_ns: u64) -> QueueStats {
        QueueStats { drop_overlimit: self.fifo.overlimit(), ..self.stats }
    }

    fn max_packets(params: CodelQueueParams, _min_frame_bytes: u64) -> u64 {
        u64::from(params.limit)
    }

    fn describe(params: CodelQueueParams) -> String {
        format!("codel limit {}p {}", params.limit, params.codel.describe())
    }

    fn fill_row(counters: &Counters, row: &mut QdiscSample) {
        row.ecn_mark_pkts = Some(counters.ecn_mark_pkts);
        row.ce_mark_pkts = Some(counters.ce_mark_pkts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::header::Ecn;
    use crate::discipline::tests::{Numbers, Samples, prompt_codel};

    const MS: u64 = 1_000_000;

    impl Samples for Codel {
        fn small() -> Vec<CodelQueueParams> {
            let codel = prompt_codel();
            let drops = CodelParams { ecn: false, ..codel };
            [codel, drops].map(|codel| CodelQueueParams { limit: 30, codel }).to_vec()
        }

        fn any(numbers: &Numbers) -> CodelQueueParams {
            CodelQueueParams { limit: numbers.limit, codel: numbers.codel() }
        }

        fn golden() -> Vec<(CodelQueueParams, &'static str)> {
            let codel = CodelParams { ecn: true, ..CodelParams::default() };
            let marks = CodelQueueParams { codel, ..CodelQueueParams::default() };
            vec![
                (marks, "-252 -380 *109 *193 *301"),
                (CodelQueueParams::default(), "-109 -194 -254 -303 -346 -384"),
            ]
        }
    }

    /// Returns a queue of `count` packets that all arrived at time zero.
    fn full(params: CodelQueueParams, count: u32, ecn: Ecn) -> Codel {
        let mut queue = Codel::new(params, count as usize, 1514);
        for slot in 0..count {
            let packet = Packet { slot, bytes: 1514, ecn, ..Packet::default() };
            queue.enqueue(packet, &mut Vec::new());
        }
        queue
    }

    /// Dequeues once a millisecond; returns the times at which packets were dropped or marked.
    fn signals_at(queue: &mut Codel, from_ms: u64, to_ms: u64) -> Vec<u64> {
        let mut times = Vec::new();
        for ms in from_ms..to_ms {
            let before = queue.stats(0);
            queue.dequeue(ms * MS, &mut Vec::new());
            let after = queue.stats(0);
            let signals = after.drop_early + after.ecn_mark - before.drop_early - before.ecn_mark;
            times.extend((0..signals).map(|_| ms));
        }
        times
    }

    #[test]
    fn drops_follow_the_inverse_square_root() {
        let mut queue = full(CodelQueueParams::default(), 1000, Ecn::NotEct);
        // Above the target from 5 ms on. The first drop follows an interval later, the next ones after 100/√1, 100/√2, 100/√3 ... ms. Exact
        // times: 105, 205, 275.7, 333.4, 383.4, 428.2, 468.99.
        assert_eq!(signals_at(&mut queue, 1, 480), [105, 205, 276, 334, 384, 429, 469]);
        assert_eq!(queue.stats(0).drop_early, 7);
    }

    #[test]
    fn ecn_marks_at_the_same_times() {
        let codel = CodelParams { ecn: true, ..CodelParams::default() };
        let mut queue =
            full(CodelQueueParams { codel, ..CodelQueueParams::default() }, 1000, Ecn::Ect0);
        assert_eq!(signals_at(&mut queue, 1, 480), [105, 205, 276, 334, 384, 429, 469]);
        assert_eq!((queue.stats(0).ecn_mark, queue.stats(0).drop_early), (7, 0));
        let mut incapable =
            full(CodelQueueParams { codel, ..CodelQueueParams::default() }, 1000, Ecn::NotEct);
        assert_eq!(signals_at(&mut incapable, 1, 480).len(), 7);
        assert_eq!((incapable.stats(0).ecn_mark, incapable.stats(0).drop_early), (0, 7));
    }

    #[test]
    fn drops_nothing_below_target() {
        let params = CodelQueueParams {
            codel: CodelParams { target_ns: 500 * MS, ..CodelParams::default() },
            ..CodelQueueParams::default()
        };
        assert!(signals_at(&mut full(params, 490, Ecn::NotEct), 1, 490).is_empty());
        // The last packet is never dropped.
        let mut last = full(CodelQueueParams::default(), 2, Ecn::NotEct);
        assert!(last.dequeue(10_000 * MS, &mut Vec::new()).is_some());
        assert!(last.dequeue(20_000 * MS, &mut Vec::new()).is_some());
        assert_eq!(last.stats(0).drop_early, 0);
    }

    #[test]
    fn keeps_drop_rate_when_reentering_soon() {
        let mut vars =
            CodelVars { count: 9, lastcount: 1, drop_next_ns: 500 * MS, ..CodelVars::default() };
        vars.enter_dropping(&CodelParams::default(), 600 * MS);
        assert_eq!((vars.count, vars.drop_next_ns), (8, 600 * MS + 35_355_339));
        vars.enter_dropping(&CodelParams::default(), 5_000 * MS);
        assert_eq!((vars.count, vars.drop_next_ns), (1, 5_100 * MS));
    }

    #[test]
    fn late_dequeue_makes_up_missed_drops() {
        let mut queue = full(CodelQueueParams::default(), 100, Ecn::NotEct);
        queue.dequeue(5 * MS, &mut Vec::new());
        queue.dequeue(105 * MS, &mut Vec::new());
        let mut dropped = Vec::new();
        // 205, 275.7, 333.4 and 383.4 have passed: four packets are dropped, and the fifth is transmitted.
        let next = queue.dequeue(400 * MS, &mut dropped).map(|p| p.slot);
        assert_eq!((dropped, next), (vec![3, 4, 5, 6], Some(7)));
    }

    #[test]
    fn ce_threshold_marks_longer_sojourn_and_drops_nothing() {
        let codel = CodelParams { ce_threshold_ns: Some(MS), ..CodelParams::default() };
        let mut queue =
            full(CodelQueueParams { codel, ..CodelQueueParams::default() }, 4, Ecn::Ect1);
        let marks: Vec<bool> = [0, MS, MS + 1, 2 * MS]
            .map(|now_ns| queue.dequeue(now_ns, &mut Vec::new()).unwrap().marked)
            .into();
        assert_eq!(marks, [false, false, true, true]);
        assert_eq!((queue.stats(0).ce_mark, queue.stats(0).drop_early), (2, 0));
    }

    #[test]
    fn ce_threshold_marks_what_the_selector_selects() {
        let codel = CodelParams {
            ce_threshold_ns: Some(MS),
            ce_threshold_selector: 1,
            ce_threshold_mask: 3,
            ..CodelParams::default()
        };
        let params = CodelQueueParams { codel, ..CodelQueueParams::default() };
        for (ecn, marks) in [(Ecn::Ect1, 3), (Ecn::Ect0, 0), (Ecn::Ce, 0), (Ecn::NotEct, 0)] {
            let mut queue = full(params, 3, ecn);
            while queue.dequeue(2 * MS, &mut Vec::new()).is_some() {}
            assert_eq!(queue.stats(0).ce_mark, marks, "{ecn:?}");
        }
        assert!(codel.describe().ends_with("ce_threshold 1000us ce_threshold_selector 0x1/0x3"));
    }
}
