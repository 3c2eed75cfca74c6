//! PIE (RFC 8033), with the names of `net/sched/sch_pie.c`. The queue delay comes from timestamps (`dq_rate_estimator` off).
//!
//! Differences from the kernel: probabilities are floating point, not 64-bit integers. The timer runs on the virtual time of the packets,
//! so a late thread makes the same decisions.

use ccbench_proto::plan;
use ccbench_proto::units::Rate;
use ccbench_proto::wire::QdiscSample;

use super::fifo::{Fifo, FifoLimit};
use super::{
    Discipline, KernelSupport, PROB_ONE, PacketQueue, QueueParams, QueueStats, Setup, flag_text,
    ns_or, us_text,
};
use crate::datapath::counters::Counters;
use crate::datapath::packet::Packet;
use crate::datapath::random::Random;
use crate::qdisc::{BadQueue, Qdisc, limit_packets};

mod qdisc;

/// `MAX_BURST`: how long the queue may stay above the target before packets are dropped.
const MAX_BURST_NS: u64 = 150_000_000;
/// Above this queue delay, each update adds another 2 % to the probability.
const HIGH_QDELAY_NS: u64 = 250_000_000;
/// Smaller probabilities become zero, the resolution of the kernel's integers.
const MIN_PROB: f64 = 1.0 / (1_u64 << 56) as f64;

/// Parameters (`struct pie_params`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PieParams {
    /// Maximum number of packets.
    pub(crate) limit: u32,
    /// Target queue delay.
    pub(crate) target_ns: u64,
    /// Interval between updates of the probability.
    pub(crate) tupdate_ns: u64,
    /// Integral gain, 1/16 Hz.
    pub(crate) alpha: u32,
    /// Proportional gain, 1/16 Hz.
    pub(crate) beta: u32,
    /// Mark ECN-capable packets instead of dropping them, as long as the probability is at most 10 %.
    pub(crate) ecn: bool,
    /// Scale the probability with the packet's size.
    pub(crate) bytemode: bool,
}

impl Default for PieParams {
    /// The kernel's.
    fn default() -> Self {
        Self {
            limit: 1000,
            target_ns: 15_000_000,
            tupdate_ns: 15_000_000,
            alpha: 2,
            beta: 20,
            ecn: false,
            bytemode: false,
        }
    }
}

impl Discipline for plan::Pie {
    const KIND: &'static str = "pie";
    const KERNEL: KernelSupport = KernelSupport::Config("NET_SCH_PIE");

    fn qdisc(&self, _rate: Option<Rate>) -> Result<Qdisc, BadQueue> {
        qdisc::encode(self)
    }

    fn params(&self, _rate: Option<Rate>) -> Result<QueueParams, BadQueue> {
        let Self { limit, target, tupdate, alpha, beta, ecn, bytemode } = *self;
        let default = PieParams::default();
        Ok(QueueParams::Pie(PieParams {
            limit: limit.map_or(Ok(default.limit), limit_packets)?,
            target_ns: ns_or(target, default.target_ns),
            tupdate_ns: ns_or(tupdate, default.tupdate_ns),
            alpha: alpha.unwrap_or(default.alpha),
            beta: beta.unwrap_or(default.beta),
            ecn: ecn.unwrap_or(default.ecn),
            bytemode: bytemode.unwrap_or(default.bytemode),
        }))
    }

    fn read_xstats(xstats: &[u8], row: &mut QdiscSample) {
        qdisc::read_xstats(xstats, row);
    }
}

/// A FIFO with PIE at its tail (`struct pie_vars`).
#[derive(Debug)]
pub(crate) struct Pie {
    params: PieParams,
    frame_bytes: u32,
    fifo: Fifo,
    random: Random,
    /// When the probability is updated next; `None` before the first packet.
    next_update_ns: Option<u64>,
    /// Drop probability.
    prob: f64,
    /// Accumulated probability since the last drop.
    accu_prob: f64,
    /// Remaining burst allowance.
    burst_time_ns: u64,
    /// Sojourn time of the last packet that left; 0 if the queue was empty then.
    qdelay_ns: u64,
    /// `qdelay_ns` at the last update.
    qdelay_old_ns: u64,
    /// When the last packet left; `None` after a reset.
    dq_tstamp_ns: Option<u64>,
    stats: QueueStats,
}

impl Pie {
    /// An empty queue that never allocates as long as at most `capacity` packets are in it.
    pub(crate) fn new(
        params: PieParams,
        capacity: usize,
        frame_bytes: u32,
        random: Random,
    ) -> Self {
        Self {
            params,
            frame_bytes,
            fifo: Fifo::new(FifoLimit::Packets(u64::from(params.limit)), capacity),
            random,
            next_update_ns: None,
            prob: 0.0,
            accu_prob: 0.0,
            burst_time_ns: MAX_BURST_NS,
            qdelay_ns: 0,
            qdelay_old_ns: 0,
            dq_tstamp_ns: None,
            stats: QueueStats::default(),
        }
    }

    /// `pie_drop_early`: returns whether to drop or mark an arriving packet.
    fn drop_early(&mut self, bytes: u32) -> bool {
        let low_delay = self.qdelay_ns < self.params.target_ns / 2 && self.prob < 0.2;
        let short = self.fifo.bytes() < 2 * u64::from(self.frame_bytes);
        if self.burst_time_ns > 0 || low_delay || short {
            return false;
        }
        let prob = if self.params.bytemode && bytes <= self.frame_bytes {
            self.prob * f64::from(bytes) / f64::from(self.frame_bytes)
        } else {
            self.prob
        };
        // Derandomization (RFC 8033, section 5.4) bounds the distance between two drops from below and above.
        self.accu_prob = if prob == 0.0 { 0.0 } else { self.accu_prob + prob };
        if self.accu_prob < 0.85 {
            return false;
        }
        if self.accu_prob >= 8.5 {
            return true;
        }
        let drop = self.random.unit() < prob;
        if drop {
            self.accu_prob = 0.0;
        }
        drop
    }

    /// `pie_calculate_probability`, once per `tupdate`.
    fn calculate_probability(&mut self) {
        let (qdelay_ns, qdelay_old_ns) = (self.qdelay_ns, self.qdelay_old_ns);
        // False until the first packet has left, unless the queue is empty.
        let update_prob = qdelay_ns != 0 || self.fifo.bytes() == 0;
        let seconds = |a: u64, b: u64| (a as f64 - b as f64) / 1e9;
        let unscaled = f64::from(self.params.alpha) / 16.0
            * seconds(qdelay_ns, self.params.target_ns)
            + f64::from(self.params.beta) / 16.0 * seconds(qdelay_ns, qdelay_old_ns);
        let mut delta = unscaled * gain_scale(self.prob);
        if delta > 0.02 && self.prob >= 0.1 {
            delta = 0.02;
        }
        if qdelay_ns > HIGH_QDELAY_NS {
            delta += 0.02;
        }
        self.prob = (self.prob + delta).clamp(0.0, 1.0);
        if update_prob && qdelay_ns == 0 && qdelay_old_ns == 0 {
            self.prob -= self.prob / 64.0;
        }
        if self.prob < MIN_PROB {
            self.prob = 0.0;
        }
        let half_target_ns = self.params.target_ns / 2;
        if qdelay_ns < half_target_ns && qdelay_old_ns < half_target_ns && self.prob == 0.0 {
            self.burst_time_ns = MAX_BURST_NS;
            self.accu_prob = 0.0;
            self.dq_tstamp_ns = None;
        }
        self.qdelay_old_ns = qdelay_ns;
    }
}

/// Returns the factor for both gains, which is small at a low probability (RFC 8033, section 4.2).
fn gain_scale(prob: f64) -> f64 {
    match prob {
        p if p < 0.000_001 => 1.0 / 2048.0,
        p if p < 0.000_01 => 1.0 / 512.0,
        p if p < 0.000_1 => 1.0 / 128.0,
        p if p < 0.001 => 1.0 / 32.0,
        p if p < 0.01 => 1.0 / 8.0,
        p if p < 0.1 => 1.0 / 2.0,
        _ => 1.0,
    }
}

impl PacketQueue for Pie {
    type Params = PieParams;

    fn build(params: PieParams, setup: Setup) -> Self {
        Self::new(params, setup.capacity, setup.frame_bytes, setup.random)
    }

    fn enqueue(&mut self, mut packet: Packet, dropped: &mut Vec<u32>) {
        self.advance_to(packet.at_ns);
        if self.fifo.len() as u64 >= u64::from(self.params.limit) {
            self.accu_prob = 0.0;
            return self.fifo.enqueue(packet, dropped);
        }
        if self.drop_early(packet.bytes) {
            if !(self.params.ecn && self.prob <= 0.1 && packet.mark()) {
                self.stats.drop_early += 1;
                self.accu_prob = 0.0;
                dropped.push(packet.slot);
                return;
            }
            self.stats.ecn_mark += 1;
        }
        self.fifo.enqueue(packet, dropped);
        self.stats.maxq = self.stats.maxq.max(self.fifo.len() as u64);
    }

    fn dequeue(&mut self, now_ns: u64, _dropped: &mut Vec<u32>) -> Option<Packet> {
        self.advance_to(now_ns);
        let packet = self.fifo.dequeue()?;
        let sojourn_ns = now_ns.saturating_sub(packet.at_ns);
        self.qdelay_ns = if self.fifo.bytes() == 0 { 0 } else { sojourn_ns };
        let dtime_ns = self.dq_tstamp_ns.replace(now_ns).map_or(0, |tstamp_ns| now_ns - tstamp_ns);
        self.burst_time_ns = self.burst_time_ns.saturating_sub(dtime_ns);
        Some(packet)
    }

    fn remove(&mut self, slot: u32, _flow: u32) -> Option<Packet> {
        self.fifo.remove(slot)
    }

    fn set_params(&mut self, params: PieParams, dropped: &mut Vec<u32>) {
        self.params = params;
        self.fifo.set_limit(FifoLimit::Packets(u64::from(params.limit)));
        self.fifo.drop_excess(dropped);
    }

    fn advance_to(&mut self, now_ns: u64) {
        let tupdate_ns = self.params.tupdate_ns.max(1);
        let mut at_ns = *self.next_update_ns.get_or_insert(now_ns + tupdate_ns);
        if at_ns > now_ns {
            return;
        }
        while at_ns <= now_ns {
            let idle = self.fifo.len() == 0 && self.qdelay_ns == 0 && self.qdelay_old_ns == 0;
            if idle && self.prob == 0.0 {
                // Further updates of an idle queue change nothing.
                self.calculate_probability();
                at_ns += (now_ns - at_ns) / tupdate_ns * tupdate_ns;
            } else {
                self.calculate_probability();
            }
            at_ns += tupdate_ns;
        }
        self.next_update_ns = Some(at_ns);
    }

    fn backlog(&self) -> (u64, u64) {
        self.fifo.backlog()
    }

    fn stats(&self, _now_ns: u64) -> QueueStats {
        QueueStats {
            drop_overlimit: self.fifo.overlimit(),
            prob: (self.prob * PROB_ONE) as u64,
            delay_c_ns: self.qdelay_ns,
            ..self.stats
        }
    }

    fn max_packets(params: PieParams, _min_frame_bytes: u64) -> u64 {
        u64::from(params.limit)
    }

    fn describe(params: PieParams) -> String {
        format!(
            "pie limit {}p target {} tupdate {} alpha {} beta {}{}{}",
            params.limit,
            us_text(params.target_ns),
            us_text(params.tupdate_ns),
            params.alpha,
            params.beta,
            flag_text(params.ecn, "ecn"),
            flag_text(params.bytemode, "bytemode"),
        )
    }

    fn fill_row(counters: &Counters, row: &mut QdiscSample) {
        row.ecn_mark_pkts = Some(counters.ecn_mark_pkts);
        row.prob = Some(counters.prob as f64 / PROB_ONE);
        row.delay_c_us = Some(counters.delay_c_ns / 1000);
        row.maxq_pkts = Some(counters.maxq_pkts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::header::Ecn;
    use crate::datapath::random::Purpose;
    use crate::discipline::tests::{Numbers, Samples};

    const MS: u64 = 1_000_000;

    /// PIE that reacts faster than with its defaults.
    fn prompt_pie() -> PieParams {
        PieParams {
            target_ns: 5 * MS,
            tupdate_ns: 3 * MS,
            alpha: 8,
            beta: 32,
            ..PieParams::default()
        }
    }

    impl Samples for Pie {
        fn small() -> Vec<PieParams> {
            let pie = PieParams { limit: 40, alpha: 32, beta: 32, ..PieParams::default() };
            let marks = PieParams { target_ns: MS, tupdate_ns: 900_000, ecn: true, ..pie };
            vec![marks, PieParams { bytemode: true, ..pie }]
        }

        fn any(numbers: &Numbers) -> PieParams {
            let Numbers { limit, small, any, time_ns, other_ns, flags, .. } = *numbers;
            PieParams {
                limit,
                target_ns: time_ns,
                tupdate_ns: other_ns,
                alpha: any % 33,
                beta: small.min(32),
                ecn: flags[2],
                bytemode: flags[3],
            }
        }

        fn golden() -> Vec<(PieParams, &'static str)> {
            let by_bytes = PieParams { ecn: true, bytemode: true, ..prompt_pie() };
            vec![
                (
                    prompt_pie(),
                    "-171 -179 -197 -204 -208 -211 -215 -219 -222 -225 -233 -235 -237 -241 -251 -253 -255 \
                     -257 -260 -265 -267 -269 -272 -275 -277 -280 -282 -285 -287 -290 -292 -294 -296 -299 \
                     -301 -303 -305 -307 -309 -313 -315 -319 -321 -323 -325 -327 -329 -331 -333 -336 -338 \
                     -340 -342 -344 -347 -350 -357 -362 -368 -375 -380 -386 -393 -398",
                ),
                (
                    by_bytes,
                    "-171 -179 -197 -204 -208 -211 -215 -219 -222 -225 -234 -237 -241 -251 -253 -255 -257 \
                     -260 -265 -267 -269 -272 -275 -277 -280 -282 -285 -287 -289 -291 -293 -295 -297 -300 \
                     -302 -304 -306 -308 -310 -314 -316 -320 -322 -324 -326 -328 -330 -332 -334 -337 -339 \
                     -341 -343 -345 -348 -350 -357 -362 -368 -375 -380 -386 -393 -398",
                ),
            ]
        }
    }

    fn pie(params: PieParams) -> Pie {
        Pie::new(params, 4096, 1514, Random::new(3, Purpose::Queue(0)))
    }

    fn packet(slot: u32, at_ns: u64, bytes: u32, ecn: Ecn) -> Packet {
        Packet { slot, bytes, ecn, at_ns, ..Packet::default() }
    }

    /// Packets arrive at a constant rate, and one leaves per millisecond. Returns the mean probability, the mean delay (ms) and the share
    /// of packets dropped or marked, each over the last half.
    fn overload(params: PieParams, percent: u64, bytes: u32, ecn: Ecn, ms: u64) -> (f64, f64, f64) {
        let mut queue = pie(params);
        let (mut dropped, mut slot, mut credit) = (Vec::new(), 0, 0);
        let (mut prob, mut delay, mut came, mut before) = (0.0, 0.0, 0, 0);
        for now in 1..=ms {
            if now == ms / 2 {
                let stats = queue.stats(0);
                before = stats.drop_early + stats.ecn_mark;
            }
            credit += percent;
            while credit >= 100 {
                credit -= 100;
                slot = (slot + 1) % 4096;
                came += u64::from(now >= ms / 2);
                queue.enqueue(packet(slot, now * MS, bytes, ecn), &mut dropped);
            }
            queue.dequeue(now * MS, &mut Vec::new());
            if now >= ms / 2 {
                prob += queue.prob;
                delay += queue.qdelay_ns as f64 / 1e6;
            }
        }
        let (stats, half) = (queue.stats(0), (ms - ms / 2) as f64);
        let signals = stats.drop_early + stats.ecn_mark - before;
        assert_eq!(stats.drop_overlimit, 0, "the controller, not the limit");
        (prob / half, delay / half, signals as f64 / came as f64)
    }

    #[test]
    fn steady_overload_drops_the_excess_and_holds_the_target() {
        // At 120 % and 105 % of the rate, the excess is 1 - 1/1.2 and 1 - 1/1.05.
        for (percent, excess) in [(120, 1.0 - 1.0 / 1.2), (105, 1.0 - 1.0 / 1.05)] {
            let (prob, delay, gone) =
                overload(PieParams::default(), percent, 1500, Ecn::NotEct, 200_000);
            assert!((gone - excess).abs() < 0.01, "{percent}: dropped {gone} of {excess}");
            assert!((delay - 15.0).abs() < 1.5, "{percent}: delay {delay}");
            // Derandomization spaces drops: none for 0.85/p packets after a drop, then one in 1/p. The mean distance is (0.85 + 1)/p.
            let wanted = excess * 1.85;
            assert!((prob / wanted - 1.0).abs() < 0.12, "{percent}: probability {prob}, {wanted}");
        }
    }

    #[test]
    fn gains_scale_with_probability() {
        // One update from a given state: a constant delay of 25 ms.
        for (prob, scale) in
            [(0.5, 1.0), (0.05, 2.0), (0.005, 8.0), (5e-4, 32.0), (5e-5, 128.0), (5e-6, 512.0)]
        {
            let mut queue = pie(PieParams::default());
            queue.prob = prob;
            (queue.qdelay_ns, queue.qdelay_old_ns) = (25 * MS, 25 * MS);
            queue.calculate_probability();
            // alpha is 2/16 Hz.
            let wanted = prob + 0.125 * 0.010 / scale;
            assert!((queue.prob - wanted).abs() < 1e-12, "{prob}: {}", queue.prob);
            queue.prob = prob;
            queue.qdelay_old_ns = 15 * MS;
            queue.qdelay_ns = 15 * MS + 1_600;
            queue.calculate_probability();
            // beta is 20/16 Hz.
            let wanted = prob + (0.125 + 1.25) * 0.000_001_6 / scale;
            assert!((queue.prob - wanted).abs() < 1e-12, "{prob}: {}", queue.prob);
        }
    }

    #[test]
    fn steps_are_bounded_and_high_delay_adds_two_percent() {
        let mut queue = pie(PieParams::default());
        queue.prob = 0.1;
        queue.qdelay_ns = 240 * MS;
        queue.calculate_probability();
        assert!((queue.prob - 0.12).abs() < 1e-12);
        queue.qdelay_ns = 300 * MS;
        queue.qdelay_old_ns = 300 * MS;
        queue.calculate_probability();
        // 0.125 x 0.285 is 3.6 %, limited to 2 %; the high delay adds 2 %.
        assert!((queue.prob - 0.16).abs() < 1e-12);
        // An idle queue's probability also decays by 1/64.
        (queue.qdelay_ns, queue.qdelay_old_ns) = (0, 0);
        queue.calculate_probability();
        let wanted = (0.16 - 0.125 * 0.015) * 63.0 / 64.0;
        assert!((queue.prob - wanted).abs() < 1e-12);
    }

    #[test]
    fn allows_an_initial_burst() {
        let mut queue = pie(PieParams::default());
        let mut dropped = Vec::new();
        for slot in 0..1000 {
            queue.enqueue(packet(slot, 0, 1500, Ecn::NotEct), &mut dropped);
        }
        for ms in 1..=150 {
            queue.dequeue(ms * MS, &mut Vec::new());
            queue.enqueue(packet(2000, ms * MS, 1500, Ecn::NotEct), &mut dropped);
        }
        assert!(dropped.is_empty());
        assert!(queue.prob > 0.03, "{}", queue.prob);
        for ms in 151..=250 {
            queue.dequeue(ms * MS, &mut Vec::new());
            queue.enqueue(packet(2000, ms * MS, 1500, Ecn::NotEct), &mut dropped);
        }
        assert!(!dropped.is_empty());
        // A long idle time restores the allowance.
        while queue.dequeue(251 * MS, &mut Vec::new()).is_some() {}
        queue.advance_to(3_600_000 * MS);
        assert_eq!((queue.prob, queue.burst_time_ns), (0.0, MAX_BURST_NS));
    }

    #[test]
    fn leaves_a_short_queue_alone() {
        let mut queue = pie(PieParams::default());
        queue.burst_time_ns = 0;
        queue.prob = 0.19;
        for slot in 0..10 {
            queue.enqueue(packet(slot, 0, 1500, Ecn::NotEct), &mut Vec::new());
        }
        queue.qdelay_ns = 7 * MS;
        assert!(!(0..1000).any(|_| queue.drop_early(1500)));
        queue.qdelay_ns = 8 * MS;
        assert!((0..1000).any(|_| queue.drop_early(1500)));
        while queue.fifo.len() > 2 {
            queue.fifo.dequeue();
        }
        assert!(!(0..1000).any(|_| queue.drop_early(1500)));
    }

    #[test]
    fn ecn_marks_up_to_ten_percent_and_drops_above() {
        let params = PieParams { ecn: true, ..PieParams::default() };
        for (prob, marks) in [(0.1, true), (0.101, false)] {
            let mut queue = pie(params);
            let mut dropped = Vec::new();
            (queue.burst_time_ns, queue.qdelay_ns, queue.prob) = (0, 20 * MS, prob);
            for slot in 0..500 {
                queue.enqueue(packet(slot, 0, 1500, Ecn::Ect0), &mut dropped);
            }
            let stats = queue.stats(0);
            assert_eq!((stats.ecn_mark > 10, stats.drop_early == 0), (marks, marks), "{prob}");
        }
        let (_, _, gone) = overload(params, 105, 1500, Ecn::Ect0, 20_000);
        assert!(gone > 0.0);
    }

    #[test]
    fn bytemode_scales_probability_with_packet_size() {
        let share = |bytes| {
            let mut queue = pie(PieParams { bytemode: true, ..PieParams::default() });
            (queue.burst_time_ns, queue.qdelay_ns, queue.prob) = (0, 20 * MS, 0.3);
            queue.fifo.enqueue(packet(0, 0, 1500, Ecn::NotEct), &mut Vec::new());
            queue.fifo.enqueue(packet(1, 0, 1600, Ecn::NotEct), &mut Vec::new());
            (0..100_000).filter(|_| queue.drop_early(bytes)).count() as f64 / 100_000.0
        };
        let (full, half) = (share(1514), share(757));
        assert!((half / full - 0.5).abs() < 0.03, "{half} {full}");
    }

    #[test]
    fn drops_above_the_limit() {
        let mut queue = pie(PieParams { limit: 3, ..PieParams::default() });
        let mut dropped = Vec::new();
        for slot in 0..5 {
            queue.enqueue(packet(slot, 0, 1500, Ecn::NotEct), &mut dropped);
        }
        assert_eq!((dropped, queue.stats(0).drop_overlimit), (vec![3, 4], 2));
    }
}
