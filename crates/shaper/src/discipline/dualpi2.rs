//! DualPI2, the dual-queue coupled AQM (RFC 9332): a queue for L4S (L), a classic queue (C), and one PI controller
//! for both, with the names of the RFC and of `net/sched/sch_dualpi2.c`.
//!
//! The controller's base probability is p', here `prob`. C packets are dropped or marked with p_C = p'^2, L packets
//! marked with p_CL = k * p', and by the step. Where the RFC leaves a choice, this does what the kernel does.
//!
//! Differences from the kernel: no `memory_limit`, and the controller runs on the virtual time of the packets. Units:
//! probabilities in 1/2^32, gains in 1/256 Hz, times in nanoseconds.

use ccbench_proto::plan;
use ccbench_proto::units::{Packets, Rate};
use ccbench_proto::wire::QdiscSample;

use super::fifo::{Fifo, FifoLimit};
use super::{
    Discipline, KernelSupport, PROB_ONE, PacketQueue, QueueParams, QueueStats, Setup, ns_or,
    us_text,
};
use crate::datapath::header::Ecn;
use crate::datapath::packet::Packet;
use crate::datapath::random::Random;
use crate::datapath::shared::Counters;
use crate::qdisc::{BadQueue, Qdisc};

mod qdisc;

/// A probability of one.
const ONE: u64 = 1 << 32;
/// Gains are in 1/256 Hz.
const GAIN_SCALE: i128 = 256 * 1_000_000_000;

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dualpi2Params {
    /// Packets in both queues.
    pub(crate) limit: u32,
    /// Target delay of the C queue.
    pub(crate) target_ns: u64,
    /// Time between two updates of the probability.
    pub(crate) tupdate_ns: u64,
    /// Integral gain, 1/256 Hz.
    pub(crate) alpha: u32,
    /// Proportional gain, 1/256 Hz.
    pub(crate) beta: u32,
    /// L packets with a longer sojourn time are marked.
    pub(crate) step_thresh_ns: u64,
    /// The coupling factor k.
    pub(crate) coupling_factor: u8,
    /// When p_CL exceeds one, drop L packets too; otherwise let the queue overflow.
    pub(crate) drop_overload: bool,
    /// Apply the AQM at dequeue; otherwise at enqueue.
    pub(crate) drop_dequeue: bool,
    /// Share of the C queue while both queues have packets, percent.
    pub(crate) c_protection: u8,
}

impl Default for Dualpi2Params {
    /// The kernel's.
    fn default() -> Self {
        Self {
            limit: 10_000,
            target_ns: 15_000_000,
            tupdate_ns: 16_000_000,
            alpha: 41,
            beta: 819,
            step_thresh_ns: 1_000_000,
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
            limit: self.limit.map_or(default.limit, Packets::get),
            target_ns: ns_or(self.target, default.target_ns),
            tupdate_ns: ns_or(self.tupdate, default.tupdate_ns),
            alpha: gain("alpha", &self.alpha, default.alpha)?,
            beta: gain("beta", &self.beta, default.beta)?,
            step_thresh_ns: ns_or(self.step_thresh, default.step_thresh_ns),
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

/// Both queues and their controller.
#[derive(Debug)]
pub(crate) struct Dualpi2 {
    params: Dualpi2Params,
    frame_bytes: u32,
    c_queue: Fifo,
    l_queue: Fifo,
    random: Random,
    /// When the probability is computed next; `None` before the first packet.
    next_update_ns: Option<u64>,
    /// The base probability p' (`pi2_prob`).
    prob: u64,
    /// Queue delay at the last update.
    last_qdelay_ns: u64,
    /// Weighted round robin of the queues: L is served unless it is positive.
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
        // `params.limit` is that of both queues together.
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

    /// `calculate_probability`, once per `tupdate`.
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

    /// `must_drop`: whether the AQM drops `packet`; it may mark it instead. L is marked with the coupled probability
    /// p_CL = k·p', C is marked or dropped with p_C = p'². In overload (p_CL > 1) L is dropped like C if
    /// `drop_overload` is set. A backlog below two frames is never dropped or marked.
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

    /// `dualpi2_roll`: true with this probability.
    fn roll(&mut self, prob: u64) -> bool {
        (self.random.draw() >> 32) < prob
    }

    /// True with the probability p_C = p'^2.
    fn roll_p_c(&mut self) -> bool {
        self.roll(self.prob) && self.roll(self.prob)
    }

    /// `dualpi2_reset_c_protection`: with a C share below one half, L is served first.
    fn reset_c_protection(&mut self) {
        let share = i64::from(self.params.c_protection);
        self.c_protection_credit = i64::from(self.frame_bytes) * (2 * share - 100);
    }

    /// Sojourn times of the head packets of C and L at `now_ns`.
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
        let (packets, _) = self.backlog();
        if packets >= u64::from(self.params.limit) {
            self.stats.drop_overlimit += 1;
            dropped.push(packet.slot);
            return;
        }
        let is_l4s = matches!(packet.ecn, Ecn::Ect1 | Ecn::Ce);
        if !self.params.drop_dequeue && self.must_drop(&mut packet, is_l4s) {
            self.stats.drop_early += 1;
            dropped.push(packet.slot);
            return;
        }
        self.stats.maxq = self.stats.maxq.max(packets + 1);
        if is_l4s {
            self.stats.pkts_in_l += 1;
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
            let sojourn_ns = now_ns - packet.at_ns;
            if is_l4s && sojourn_ns > self.params.step_thresh_ns && packet.mark() {
                // The kernel counts a packet again that the coupled AQM has marked before.
                self.stats.ecn_mark += u64::from(unmarked);
                self.stats.step_mark += 1;
            }
            // Only service that keeps the other queue waiting counts.
            let (share, bytes) = (i64::from(self.params.c_protection), i64::from(packet.bytes));
            if is_l4s && self.c_queue.len() > 0 {
                self.c_protection_credit += share * bytes;
            } else if !is_l4s && self.l_queue.len() > 0 {
                self.c_protection_credit -= (100 - share) * bytes;
            }
            return Some(packet);
        }
    }

    /// Computes the probability at every update that is due by `now_ns`. The queues do not change between two
    /// calls, so late updates have the same result as punctual ones.
    fn advance_to(&mut self, now_ns: u64) {
        let tupdate_ns = self.params.tupdate_ns.max(1);
        let mut at_ns = *self.next_update_ns.get_or_insert(now_ns + tupdate_ns);
        while at_ns <= now_ns {
            if self.prob == 0 && self.last_qdelay_ns == 0 && self.backlog().0 == 0 {
                // An idle queue's probability stays zero.
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
             classic_protection {}%",
            params.limit,
            us_text(params.target_ns),
            us_text(params.tupdate_ns),
            params.alpha,
            params.beta,
            us_text(params.step_thresh_ns),
            params.coupling_factor,
            if params.drop_overload { "drop_on_overload" } else { "overflow" },
            if params.drop_dequeue { "drop_dequeue" } else { "drop_enqueue" },
            params.c_protection,
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
mod tests {
    use super::*;
    use crate::datapath::random::Purpose;

    const MS: u64 = 1_000_000;

    fn empty(params: Dualpi2Params, capacity: usize, frame_bytes: u32, seed: u64) -> Dualpi2 {
        Dualpi2::new(params, capacity, frame_bytes, Random::new(seed, Purpose::Queue(0)))
    }

    fn packet(slot: u32, ecn: Ecn, at_ns: u64) -> Packet {
        Packet { slot, bytes: 1514, ecn, at_ns, ..Packet::default() }
    }

    fn filled(params: Dualpi2Params, classic: u32, low: u32) -> Dualpi2 {
        let mut queue = empty(params, 10_000, 1514, 1);
        for slot in 0..classic + low {
            let ecn = if slot < classic { Ecn::NotEct } else { Ecn::Ect1 };
            queue.enqueue(packet(slot, ecn, 0), &mut Vec::new());
        }
        queue
    }

    #[test]
    fn probability_follows_the_pi_controller() {
        let mut queue = filled(Dualpi2Params::default(), 3, 0);
        // After 16 ms the head has waited 16 ms: 1 ms above the target, 16 ms more than before.
        // 0.001 s x 41/256 Hz + 0.016 s x 819/256 Hz = 0.00016016 + 0.0511875 = 0.05134766.
        queue.advance_to(16 * MS);
        let share = |queue: &Dualpi2| queue.stats(0).prob as f64 / ONE as f64;
        assert!((share(&queue) - 0.051_347_656).abs() < 1e-9, "{}", share(&queue));
        // Then 32 ms: 0.017 x 41/256 + 0.016 x 819/256 = 0.00272266 + 0.0511875.
        queue.advance_to(32 * MS);
        assert!((share(&queue) - 0.105_257_813).abs() < 1e-9, "{}", share(&queue));
        // An empty queue: -0.015 x 41/256 - 0.032 x 819/256 = -0.00240234 - 0.102375.
        while queue.dequeue(32 * MS, &mut Vec::new()).is_some() {}
        queue.advance_to(48 * MS);
        assert!((share(&queue) - 0.000_480_469).abs() < 1e-9, "{}", share(&queue));
        queue.advance_to(64 * MS);
        assert_eq!(share(&queue), 0.0);
    }

    #[test]
    fn skips_updates_of_a_long_idle_time() {
        let mut queue = filled(Dualpi2Params { tupdate_ns: 1, ..Dualpi2Params::default() }, 0, 0);
        queue.advance_to(5);
        queue.advance_to(3_600_000 * MS);
        assert_eq!(queue.next_update_ns, Some(3_600_000 * MS + 1));
    }

    /// Shares of packets marked and dropped with a fixed probability.
    fn fate(params: Dualpi2Params, prob: u64, ecn: Ecn) -> (f64, f64) {
        let mut queue = empty(params, 64, 100, 9);
        queue.prob = prob;
        let never = u64::MAX / 4;
        queue.next_update_ns = Some(never);
        let (mut freed, mut marked) = (Vec::new(), 0);
        for _ in 0..50_000 {
            while queue.backlog().0 < 30 {
                queue.enqueue(packet(0, ecn, 0), &mut freed);
            }
            let out = queue.dequeue(0, &mut freed).unwrap();
            marked += u64::from(out.marked);
        }
        let all = 50_000.0 + freed.len() as f64;
        (marked as f64 / all, freed.len() as f64 / all)
    }

    fn near((a, b): (f64, f64), (x, y): (f64, f64)) {
        assert!((a - x).abs() < 0.006 && (b - y).abs() < 0.006, "{a} {b}, not {x} {y}");
    }

    #[test]
    fn l_marks_are_coupled_and_c_drops_are_squared() {
        for drop_dequeue in [true, false] {
            let params = Dualpi2Params { drop_dequeue, ..Dualpi2Params::default() };
            let fifth = ONE / 5;
            near(fate(params, fifth, Ecn::Ect1), (0.4, 0.0));
            near(fate(params, fifth, Ecn::Ect0), (0.04, 0.0));
            near(fate(params, fifth, Ecn::NotEct), (0.0, 0.04));
            near(
                fate(Dualpi2Params { coupling_factor: 1, ..params }, fifth, Ecn::Ect1),
                (0.2, 0.0),
            );
        }
    }

    #[test]
    fn overload_drops_from_both_queues_or_from_none() {
        let params = Dualpi2Params::default();
        let most = ONE / 5 * 3;
        near(fate(params, most, Ecn::Ect1), (0.64, 0.36));
        near(fate(params, most, Ecn::Ect0), (0.0, 0.36));
        near(fate(Dualpi2Params { drop_overload: false, ..params }, most, Ecn::Ect1), (1.0, 0.0));
        let mut capped = filled(Dualpi2Params { drop_overload: false, ..params }, 5, 0);
        capped.advance_to(100_000 * MS);
        assert_eq!(capped.prob, ONE / 2);
        let mut free = filled(params, 5, 0);
        free.advance_to(100_000 * MS);
        assert_eq!(free.prob, ONE);
    }

    #[test]
    fn step_marks_longer_sojourn() {
        let mut queue = filled(Dualpi2Params::default(), 1, 4);
        let fates: Vec<(u32, bool)> = [MS / 2, MS, MS + 1, 2 * MS, 2 * MS]
            .map(|now_ns| queue.dequeue(now_ns, &mut Vec::new()).unwrap())
            .map(|p| (p.slot, p.marked))
            .into();
        assert_eq!(fates, [(1, false), (2, false), (3, true), (4, true), (0, false)]);
        let stats = queue.stats(2 * MS);
        assert_eq!(
            (stats.step_mark, stats.ecn_mark, stats.pkts_in_c, stats.pkts_in_l),
            (2, 2, 1, 4)
        );
    }

    #[test]
    fn packet_marked_twice_counts_once() {
        let params = Dualpi2Params { drop_overload: false, ..Dualpi2Params::default() };
        let mut queue = filled(params, 0, 4);
        queue.prob = ONE / 2; // coupled: every packet
        for _ in 0..4 {
            assert!(queue.dequeue(2 * MS, &mut Vec::new()).unwrap().marked);
        }
        let stats = queue.stats(2 * MS);
        assert_eq!((stats.ecn_mark, stats.step_mark), (4, 4));
    }

    #[test]
    fn ce_packets_enter_the_l_queue() {
        let mut queue = empty(Dualpi2Params::default(), 8, 1514, 1);
        queue.enqueue(packet(0, Ecn::Ce, 0), &mut Vec::new());
        assert_eq!(queue.stats(0).pkts_in_l, 1);
    }

    #[test]
    fn c_queue_gets_its_share() {
        for (percent, turns) in [(10, 100), (50, 500), (25, 250)] {
            let params = Dualpi2Params {
                c_protection: percent,
                step_thresh_ns: u64::MAX,
                ..Dualpi2Params::default()
            };
            let mut queue = filled(params, 1500, 1500);
            let classic = (0..1000)
                .filter(|_| queue.dequeue(0, &mut Vec::new()).unwrap().slot < 1500)
                .count();
            assert!(classic.abs_diff(turns) <= 2, "{percent} %: {classic} of 1000");
        }
    }

    #[test]
    fn full_queue_drops_arrivals_of_both_queues() {
        let mut queue = filled(Dualpi2Params { limit: 5, ..Dualpi2Params::default() }, 3, 2);
        let mut dropped = Vec::new();
        queue.enqueue(packet(8, Ecn::Ect1, 0), &mut dropped);
        queue.enqueue(packet(9, Ecn::NotEct, 0), &mut dropped);
        assert_eq!((dropped, queue.stats(0).drop_overlimit), (vec![8, 9], 2));
    }

    #[test]
    fn leaves_a_backlog_of_two_frames_alone() {
        let mut queue =
            filled(Dualpi2Params { step_thresh_ns: u64::MAX, ..Dualpi2Params::default() }, 2, 0);
        queue.advance_to(100_000 * MS);
        let mut dropped = Vec::new();
        assert!(queue.dequeue(100_000 * MS, &mut dropped).is_some());
        assert!(queue.dequeue(100_000 * MS, &mut dropped).is_some());
        assert!(dropped.is_empty());
    }
}
