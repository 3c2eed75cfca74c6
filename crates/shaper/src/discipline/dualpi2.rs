//! DualPI2, the dual-queue coupled AQM (RFC 9332): a queue for L4S (L), a classic queue (C), and one PI controller
//! for both, with the names of the RFC and of `net/sched/sch_dualpi2.c`.
//!
//! p' is the controller's base probability, here `prob`. C packets are dropped or marked with probability p_C = p'^2. L packets are marked
//! with probability p_CL = k * p', and by the step. Where the RFC leaves a choice, this code follows the kernel.
//!
//! Differences from the kernel: `memory_limit` counts the frames' bytes, not `skb->truesize`, and is off by default. The controller runs on
//! the virtual time of the packets. Units: probabilities in 1/2^32, gains in 1/256 Hz, times in nanoseconds.

use ccbench_proto::plan;
use ccbench_proto::units::{Packets, Rate};
use ccbench_proto::wire::QdiscSample;

use super::fifo::{Fifo, FifoLimit};
use super::{
    Discipline, KernelSupport, PROB_ONE, PacketQueue, QueueParams, QueueStats, Setup, flag_text,
    ns_or, us_text,
};
use crate::datapath::counters::Counters;
use crate::datapath::header::Ecn;
use crate::datapath::packet::Packet;
use crate::datapath::random::Random;
use crate::qdisc::{BadQueue, Qdisc, limit_bytes, limit_packets};

mod qdisc;

/// A probability of one.
const ONE: u64 = 1 << 32;
/// Gains are in 1/256 Hz.
const GAIN_SCALE: i128 = 256 * 1_000_000_000;

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dualpi2Params {
    /// Maximum number of packets in both queues together.
    pub(crate) limit: u32,
    /// Target delay of the C queue.
    pub(crate) target_ns: u64,
    /// Interval between updates of the probability.
    pub(crate) tupdate_ns: u64,
    /// Integral gain, 1/256 Hz.
    pub(crate) alpha: u32,
    /// Proportional gain, 1/256 Hz.
    pub(crate) beta: u32,
    /// Mark L packets whose sojourn time exceeds this.
    pub(crate) step_thresh_ns: u64,
    /// Instead of the time: mark L packets that leave more than this many packets behind.
    pub(crate) step_thresh_pkts: Option<u32>,
    /// The step marks an L packet only if it found at least this many packets in the L queue.
    pub(crate) min_qlen_step: u32,
    /// Maximum bytes in both queues together.
    pub(crate) memory_limit: Option<u64>,
    /// All ECN-capable packets enter the L queue, not only ECT(1) and CE.
    pub(crate) any_ect: bool,
    /// The coupling factor k.
    pub(crate) coupling_factor: u8,
    /// When p_CL exceeds one, drop L packets, too; otherwise let the queue overflow.
    pub(crate) drop_overload: bool,
    /// Apply the AQM at dequeue; otherwise at enqueue.
    pub(crate) drop_dequeue: bool,
    /// Share of the C queue while both queues have packets, in percent.
    pub(crate) c_protection: u8,
}

impl Default for Dualpi2Params {
    /// The kernel's defaults.
    fn default() -> Self {
        Self {
            limit: 10_000,
            target_ns: 15_000_000,
            tupdate_ns: 16_000_000,
            alpha: 41,
            beta: 819,
            step_thresh_ns: 1_000_000,
            step_thresh_pkts: None,
            min_qlen_step: 0,
            memory_limit: None,
            any_ect: false,
            coupling_factor: 2,
            drop_overload: true,
            drop_dequeue: true,
            c_protection: 10,
        }
    }
}

impl Discipline for plan::Dualpi2 {
    const KIND: &'static str = "dualpi2";
    const KERNEL: KernelSupport = KernelSupport::Config("NET_SCH_DUALPI2");

    fn qdisc(&self, _rate: Option<Rate>) -> Result<Qdisc, BadQueue> {
        qdisc::encode(self)
    }

    fn params(&self, _rate: Option<Rate>) -> Result<QueueParams, BadQueue> {
        if self.split_gso == Some(false) {
            return Err(BadQueue::new(
                "dualpi2 with split_gso = false (it queues frames, never super-packets)",
                "leave split_gso out",
            ));
        }
        let gain = |name, text: &Option<String>, default| {
            text.as_deref().map_or(Ok(default), |text| qdisc::gain(name, text))
        };
        let default = Dualpi2Params::default();
        let params = Dualpi2Params {
            limit: self.limit.map_or(Ok(default.limit), limit_packets)?,
            target_ns: ns_or(self.target, default.target_ns),
            tupdate_ns: ns_or(self.tupdate, default.tupdate_ns),
            alpha: gain("alpha", &self.alpha, default.alpha)?,
            beta: gain("beta", &self.beta, default.beta)?,
            step_thresh_ns: ns_or(self.step_thresh, default.step_thresh_ns),
            step_thresh_pkts: self.step_thresh_pkts.map(Packets::get),
            min_qlen_step: self.min_qlen_step.map_or(default.min_qlen_step, Packets::get),
            memory_limit: self.memory_limit.map(limit_bytes).transpose()?.map(u64::from),
            any_ect: self.any_ect.unwrap_or(default.any_ect),
            coupling_factor: self
                .coupling_factor
                .map_or(Ok(default.coupling_factor), qdisc::coupling_byte)?,
            drop_overload: self.drop_on_overload.unwrap_or(default.drop_overload),
            drop_dequeue: self.drop_dequeue.unwrap_or(default.drop_dequeue),
            c_protection: self
                .classic_protection
                .map_or(default.c_protection, |share| (share.get() / 10_000).min(100) as u8),
        };
        if params.tupdate_ns == 0 {
            let hint = "write a time like \"16ms\"";
            return Err(BadQueue::new("dualpi2 with tupdate = 0", hint));
        }
        Ok(QueueParams::Dualpi2(params))
    }

    fn read_xstats(xstats: &[u8], row: &mut QdiscSample) {
        qdisc::read_xstats(xstats, row);
    }
}

/// Returns the less common keys as `tc` prints them, each with a leading space.
fn rarer_keys_text(params: &Dualpi2Params) -> String {
    let Dualpi2Params { min_qlen_step, memory_limit, any_ect, .. } = *params;
    let step = match min_qlen_step {
        0 => String::new(),
        packets => format!(" min_qlen_step {packets}p"),
    };
    let memory = memory_limit.map_or(String::new(), |bytes| format!(" memlimit {bytes}B"));
    step + &memory + &flag_text(any_ect, "any_ect")
}

/// Both queues and their controller.
#[derive(Debug)]
pub(crate) struct Dualpi2 {
    params: Dualpi2Params,
    frame_bytes: u32,
    c_queue: Fifo,
    l_queue: Fifo,
    random: Random,
    /// When the probability is updated next; `None` before the first packet.
    next_update_ns: Option<u64>,
    /// The base probability p' (`pi2_prob`).
    prob: u64,
    /// Queue delay at the last update.
    last_qdelay_ns: u64,
    /// Credit of the weighted round robin: L is served unless it is positive.
    c_protection_credit: i64,
    stats: QueueStats,
}

impl Dualpi2 {
    /// An empty queue that never allocates as long as at most `capacity` packets are in it.
    pub(crate) fn new(
        params: Dualpi2Params,
        capacity: usize,
        frame_bytes: u32,
        random: Random,
    ) -> Self {
        // `params.limit` limits both queues together.
        let fifo = || Fifo::new(FifoLimit::Packets(u64::MAX), capacity);
        let mut queue = Self {
            params,
            frame_bytes,
            c_queue: fifo(),
            l_queue: fifo(),
            random,
            next_update_ns: None,
            prob: 0,
            last_qdelay_ns: 0,
            c_protection_credit: 0,
            stats: QueueStats::default(),
        };
        queue.reset_c_protection();
        queue
    }

    /// `calculate_probability`, called once per `tupdate`.
    fn calculate_probability(&mut self, at_ns: u64) {
        let (qdelay_c_ns, qdelay_l_ns) = self.qdelays_ns(at_ns);
        let qdelay_ns = qdelay_c_ns.max(qdelay_l_ns);
        let wide = |ns: u64| i128::from(ns);
        let error_ns = wide(qdelay_ns) - wide(self.params.target_ns);
        let change_ns = wide(qdelay_ns) - wide(self.last_qdelay_ns);
        let weighted =
            error_ns * i128::from(self.params.alpha) + change_ns * i128::from(self.params.beta);
        let delta = weighted * i128::from(ONE) / GAIN_SCALE;
        let max_prob = match self.params.drop_overload {
            true => ONE,
            false => ONE / u64::from(self.params.coupling_factor),
        };
        let prob = (i128::from(self.prob) + delta).clamp(0, i128::from(max_prob));
        self.prob = prob as u64;
        self.last_qdelay_ns = qdelay_ns;
    }

    /// `must_drop`: returns whether the AQM drops `packet`; the AQM may mark it instead. L packets are marked with the coupled probability
    /// p_CL = k·p', C packets are marked or dropped with p_C = p'². In overload (p_CL > 1), L packets are dropped like C packets if
    /// `drop_overload` is set. Nothing is dropped or marked while the backlog is below two frames.
    fn must_drop(&mut self, packet: &mut Packet, is_l4s: bool) -> bool {
        if self.backlog().1 < 2 * u64::from(self.frame_bytes) {
            return false;
        }
        let p_cl = self.prob * u64::from(self.params.coupling_factor);
        let overload = p_cl > ONE;
        if is_l4s {
            if overload {
                if self.params.drop_overload && self.roll_p_c() {
                    return true;
                }
            } else if !self.roll(p_cl) {
                return false;
            }
        } else if !self.roll_p_c() {
            return false;
        } else if overload || packet.ecn == Ecn::NotEct {
            return true;
        }
        if packet.mark() {
            self.stats.ecn_mark += 1;
        }
        false
    }

    /// `dualpi2_roll`: returns true with this probability.
    fn roll(&mut self, prob: u64) -> bool {
        (self.random.draw() >> 32) < prob
    }

    /// Returns true with the probability p_C = p'^2.
    fn roll_p_c(&mut self) -> bool {
        self.roll(self.prob) && self.roll(self.prob)
    }

    /// `do_step_aqm`: returns whether a packet that has just left the L queue exceeds the step threshold.
    fn is_above_step(&self, now_ns: u64, packet: &Packet) -> bool {
        match self.params.step_thresh_pkts {
            Some(packets) => self.l_queue.len() > packets as usize,
            None => now_ns - packet.at_ns > self.params.step_thresh_ns,
        }
    }

    /// `dualpi2_reset_c_protection`: with a C share below one half, L is served first.
    fn reset_c_protection(&mut self) {
        let share = i64::from(self.params.c_protection);
        self.c_protection_credit = i64::from(self.frame_bytes) * (2 * share - 100);
    }

    /// Returns the sojourn times of the head packets of C and L at `now_ns`.
    fn qdelays_ns(&self, now_ns: u64) -> (u64, u64) {
        let sojourn_ns = |fifo: &Fifo| fifo.head().map_or(0, |p| now_ns.saturating_sub(p.at_ns));
        (sojourn_ns(&self.c_queue), sojourn_ns(&self.l_queue))
    }
}

impl PacketQueue for Dualpi2 {
    type Params = Dualpi2Params;

    fn build(params: Dualpi2Params, setup: Setup) -> Self {
        Self::new(params, setup.capacity, setup.frame_bytes, setup.random)
    }

    fn enqueue(&mut self, mut packet: Packet, dropped: &mut Vec<u32>) {
        self.advance_to(packet.at_ns);
        let (packets, bytes) = self.backlog();
        let full = packets >= u64::from(self.params.limit);
        let needs = bytes + u64::from(packet.bytes);
        if full || self.params.memory_limit.is_some_and(|limit| needs > limit) {
            if full {
                self.stats.drop_overlimit += 1;
            } else {
                self.stats.drop_overmemory += 1;
            }
            dropped.push(packet.slot);
            return;
        }
        let is_l4s = match packet.ecn {
            Ecn::Ect1 | Ecn::Ce => true,
            Ecn::Ect0 => self.params.any_ect,
            Ecn::NotEct => false,
        };
        if !self.params.drop_dequeue && self.must_drop(&mut packet, is_l4s) {
            self.stats.drop_early += 1;
            dropped.push(packet.slot);
            return;
        }
        self.stats.maxq = self.stats.maxq.max(packets + 1);
        if is_l4s {
            self.stats.pkts_in_l += 1;
            packet.apply_step = self.l_queue.len() >= self.params.min_qlen_step as usize;
            self.l_queue.enqueue(packet, dropped);
        } else {
            self.stats.pkts_in_c += 1;
            self.c_queue.enqueue(packet, dropped);
        }
    }

    fn dequeue(&mut self, now_ns: u64, dropped: &mut Vec<u32>) -> Option<Packet> {
        self.advance_to(now_ns);
        loop {
            let is_l4s = self.l_queue.len() > 0
                && (self.c_queue.len() == 0 || self.c_protection_credit <= 0);
            let taken = if is_l4s { self.l_queue.dequeue() } else { self.c_queue.dequeue() };
            let Some(mut packet) = taken else {
                self.reset_c_protection();
                return None;
            };
            if self.params.drop_dequeue && self.must_drop(&mut packet, is_l4s) {
                self.stats.drop_early += 1;
                dropped.push(packet.slot);
                continue;
            }
            let unmarked = !packet.marked;
            if is_l4s && packet.apply_step && self.is_above_step(now_ns, &packet) && packet.mark() {
                // The kernel counts a packet twice if the coupled AQM has marked it before.
                self.stats.ecn_mark += u64::from(unmarked);
                self.stats.step_mark += 1;
            }
            // Only service that makes the other queue wait counts.
            let (share, bytes) = (i64::from(self.params.c_protection), i64::from(packet.bytes));
            if is_l4s && self.c_queue.len() > 0 {
                self.c_protection_credit += share * bytes;
            } else if !is_l4s && self.l_queue.len() > 0 {
                self.c_protection_credit -= (100 - share) * bytes;
            }
            return Some(packet);
        }
    }

    fn remove(&mut self, slot: u32, _flow: u32) -> Option<Packet> {
        self.c_queue.remove(slot).or_else(|| self.l_queue.remove(slot))
    }

    /// Drops from the C queue first, as the kernel does.
    fn set_params(&mut self, params: Dualpi2Params, dropped: &mut Vec<u32>) {
        self.params = params;
        loop {
            let (packets, bytes) = self.backlog();
            let full = packets > u64::from(params.limit);
            if !full && params.memory_limit.is_none_or(|limit| bytes <= limit) {
                return;
            }
            let taken = self.c_queue.dequeue().or_else(|| self.l_queue.dequeue());
            let Some(packet) = taken else { return };
            if full {
                self.stats.drop_overlimit += 1;
            } else {
                self.stats.drop_overmemory += 1;
            }
            dropped.push(packet.slot);
        }
    }

    /// Runs every update of the probability that is due by `now_ns`. The queues do not change between two calls, so late updates have the
    /// same result as punctual ones.
    fn advance_to(&mut self, now_ns: u64) {
        let tupdate_ns = self.params.tupdate_ns.max(1);
        let mut at_ns = *self.next_update_ns.get_or_insert(now_ns + tupdate_ns);
        while at_ns <= now_ns {
            if self.prob == 0 && self.last_qdelay_ns == 0 && self.backlog().0 == 0 {
                // The probability of an idle queue stays zero.
                at_ns += (now_ns - at_ns) / tupdate_ns * tupdate_ns;
            } else {
                self.calculate_probability(at_ns);
            }
            at_ns += tupdate_ns;
        }
        self.next_update_ns = Some(at_ns);
    }

    fn backlog(&self) -> (u64, u64) {
        let packets = self.c_queue.len() + self.l_queue.len();
        (packets as u64, self.c_queue.bytes() + self.l_queue.bytes())
    }

    fn stats(&self, now_ns: u64) -> QueueStats {
        let (delay_c_ns, delay_l_ns) = self.qdelays_ns(now_ns);
        let Self { prob, c_protection_credit: credit, .. } = *self;
        QueueStats { prob, credit, delay_c_ns, delay_l_ns, ..self.stats }
    }

    fn max_packets(params: Dualpi2Params, _min_frame_bytes: u64) -> u64 {
        u64::from(params.limit)
    }

    fn describe(params: Dualpi2Params) -> String {
        format!(
            "dualpi2 limit {}p target {} tupdate {} alpha {}/256 beta {}/256 step {} coupling {} {} {} \
             classic_protection {}%{}",
            params.limit,
            us_text(params.target_ns),
            us_text(params.tupdate_ns),
            params.alpha,
            params.beta,
            match params.step_thresh_pkts {
                Some(packets) => format!("{packets}p"),
                None => us_text(params.step_thresh_ns),
            },
            params.coupling_factor,
            if params.drop_overload { "drop_on_overload" } else { "overflow" },
            if params.drop_dequeue { "drop_dequeue" } else { "drop_enqueue" },
            params.c_protection,
            rarer_keys_text(&params),
        )
    }

    fn fill_row(counters: &Counters, row: &mut QdiscSample) {
        row.ecn_mark_pkts = Some(counters.ecn_mark_pkts);
        row.step_mark_pkts = Some(counters.step_mark_pkts);
        row.prob = Some(counters.prob as f64 / PROB_ONE);
        row.delay_c_us = Some(counters.delay_c_ns / 1000);
        row.delay_l_us = Some(counters.delay_l_ns / 1000);
        row.pkts_in_c = Some(counters.pkts_in_c);
        row.pkts_in_l = Some(counters.pkts_in_l);
        row.credit = Some(counters.credit.cast_signed());
        row.maxq_pkts = Some(counters.maxq_pkts);
    }
}

#[cfg(test)]
mod flows;
#[cfg(test)]
mod tests;
