//! RED (Floyd and Jacobson 1993) and Adaptive RED (Floyd, Gummadi and Shenker 2001) over a FIFO limited in bytes, with the names of
//! `net/sched/sch_red.c` and `include/net/red.h`.
//!
//! Differences from the kernel: qavg and probabilities are floating point, not fixed-point integers and tables. The average after idle time
//! uses the exact power of the weight, and idle time also counts in a class, where the kernel's HTB never asks an empty queue. The adaptation
//! runs on the virtual time of the packets.

use ccbench_proto::plan;
use ccbench_proto::units::{Ppm, Rate};
use ccbench_proto::wire::QdiscSample;

use super::fifo::{Fifo, FifoLimit};
use super::{
    Discipline, KernelSupport, PROB_ONE, PacketQueue, QueueParams, QueueStats, Setup, flag_text,
};
use crate::datapath::counters::Counters;
use crate::datapath::packet::Packet;
use crate::datapath::random::Random;
use crate::qdisc::{BadQueue, Qdisc};

mod qdisc;

/// Interval of the adaptation of `max_p`.
const ADAPT_NS: u64 = 500_000_000;

/// Parameters (`struct red_parms`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RedParams {
    /// Maximum bytes.
    pub(crate) limit: u64,
    /// Average queue from which packets are marked or dropped at random, bytes.
    pub(crate) qth_min: u64,
    /// Average queue from which all packets are marked or dropped, bytes.
    pub(crate) qth_max: u64,
    /// Probability just below `qth_max`, parts per million.
    pub(crate) max_p_ppm: u32,
    /// A packet has weight 2^-Wlog in the average.
    pub(crate) wlog: u32,
    /// Transmission time of an average packet. Idle time counts as that many arrivals at an empty queue.
    pub(crate) packet_time_ns: u64,
    /// Mark ECN-capable packets instead of dropping them.
    pub(crate) ecn: bool,
    /// From `qth_max` on, drop ECN-capable packets, too.
    pub(crate) harddrop: bool,
    /// Adapt `max_p` between 1 % and 50 %.
    pub(crate) adaptive: bool,
    /// With `ecn`, queue packets that are not ECN-capable instead of dropping them.
    pub(crate) nodrop: bool,
}

impl Discipline for plan::Red {
    const KIND: &'static str = "red";
    const KERNEL: KernelSupport = KernelSupport::Config("NET_SCH_RED");

    fn qdisc(&self, rate: Option<Rate>) -> Result<Qdisc, BadQueue> {
        qdisc::encode(self, rate)
    }

    /// `sch_red` replaces its child qdisc when it changes.
    fn changed_qdisc(&self, _rate: Option<Rate>) -> Result<Qdisc, BadQueue> {
        Err(BadQueue::new(
            "changes of a red queue, because each drops all queued packets",
            "write `backend = \"userspace\"` for this link",
        ))
    }

    fn params(&self, rate: Option<Rate>) -> Result<QueueParams, BadQueue> {
        let params = qdisc::params(self)?;
        let rate_bps = rate.map_or(u64::MAX, Rate::bits_per_sec).max(1);
        let packet_time_ns = u128::from(params.avpkt) * 8_000_000_000 / u128::from(rate_bps);
        Ok(QueueParams::Red(RedParams {
            limit: u64::from(params.limit),
            qth_min: u64::from(params.qth_min),
            qth_max: u64::from(params.qth_max),
            max_p_ppm: params.max_p.get(),
            wlog: params.wlog,
            packet_time_ns: u64::try_from(packet_time_ns).unwrap_or(u64::MAX),
            ecn: params.ecn,
            harddrop: params.harddrop,
            adaptive: params.adaptive,
            nodrop: params.nodrop,
        }))
    }

    fn read_xstats(xstats: &[u8], row: &mut QdiscSample) {
        qdisc::read_xstats(xstats, row);
    }
}

/// 2^-Wlog.
fn weight(wlog: u32) -> f64 {
    0.5_f64.powi(wlog.min(31).cast_signed())
}

/// What to do with an arriving packet (`red_action`).
#[expect(clippy::enum_variant_names, reason = "the names in the kernel's red.h")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    DontMark,
    ProbMark,
    HardMark,
}

/// A FIFO with RED at its tail (`struct red_vars`).
#[derive(Debug)]
pub(crate) struct Red {
    params: RedParams,
    fifo: Fifo,
    random: Random,
    /// 2^-Wlog.
    weight: f64,
    /// Average queue, bytes.
    qavg: f64,
    max_p: f64,
    /// Packets since the last mark or drop; `None` below `qth_min` and from `qth_max` on.
    qcount: Option<u32>,
    /// Random number from 0 to 1. The next packet is marked for which `qcount` times the probability reaches it.
    qr: f64,
    /// When the queue was first found empty.
    qidlestart_ns: Option<u64>,
    next_adapt_ns: Option<u64>,
    stats: QueueStats,
}

impl Red {
    /// An empty queue that never allocates as long as at most `capacity` packets are in it.
    pub(crate) fn new(params: RedParams, capacity: usize, random: Random) -> Self {
        Self {
            params,
            fifo: Fifo::new(FifoLimit::Bytes(params.limit), capacity),
            random,
            weight: weight(params.wlog),
            qavg: 0.0,
            max_p: f64::from(params.max_p_ppm) / 1e6,
            qcount: None,
            qr: 0.0,
            qidlestart_ns: None,
            next_adapt_ns: None,
            stats: QueueStats::default(),
        }
    }

    /// `red_action`.
    fn action(&mut self) -> Action {
        if self.qavg < self.params.qth_min as f64 {
            self.qcount = None;
            return Action::DontMark;
        }
        if self.qavg >= self.params.qth_max as f64 {
            self.qcount = None;
            return Action::HardMark;
        }
        let Some(qcount) = self.qcount else {
            self.qcount = Some(0);
            self.qr = self.random.unit();
            return Action::DontMark;
        };
        self.qcount = Some(qcount + 1);
        // Distances between marks are uniform from 1 to 1/p packets (Floyd and Jacobson's method 2).
        if self.prob() * f64::from(qcount + 1) < self.qr {
            return Action::DontMark;
        }
        self.qcount = Some(0);
        self.qr = self.random.unit();
        Action::ProbMark
    }

    /// Returns the probability at the current average.
    fn prob(&self) -> f64 {
        let (qth_min, qth_max) = (self.params.qth_min as f64, self.params.qth_max as f64);
        let qth_delta = (qth_max - qth_min).max(1.0);
        match self.qavg {
            qavg if qavg < qth_min => 0.0,
            qavg if qavg >= qth_max => 1.0,
            qavg => self.max_p * (qavg - qth_min) / qth_delta,
        }
    }

    /// `red_calc_qavg_from_idle_time`: returns the average after the queue has been empty for `idle_ns`.
    fn qavg_from_idle_time(&self, idle_ns: u64) -> f64 {
        let packets = idle_ns as f64 / self.params.packet_time_ns.max(1) as f64;
        // Not the system's libm, whose rounding differs between machines.
        self.qavg * libm::pow(1.0 - self.weight, packets)
    }

    /// `red_adaptative_algo`.
    fn adapt(&mut self, now_ns: u64) {
        let qavg = match self.qidlestart_ns {
            Some(since_ns) => self.qavg_from_idle_time(now_ns.saturating_sub(since_ns)),
            None => self.qavg,
        };
        let (qth_min, qth_max) = (self.params.qth_min as f64, self.params.qth_max as f64);
        let fifth = (qth_max - qth_min) / 5.0;
        // The target range is from 2/5 to 3/5 of the way between the thresholds.
        if qavg > qth_min + 3.0 * fifth && self.max_p <= 0.5 {
            self.max_p += (self.max_p / 4.0).min(0.01);
        } else if qavg < qth_min + 2.0 * fifth && self.max_p >= 0.01 {
            self.max_p *= 0.9;
        }
    }
}

impl PacketQueue for Red {
    type Params = RedParams;

    fn build(params: RedParams, setup: Setup) -> Self {
        Self::new(params, setup.capacity, setup.random)
    }

    fn enqueue(&mut self, mut packet: Packet, dropped: &mut Vec<u32>) {
        self.advance_to(packet.at_ns);
        self.qavg = match self.qidlestart_ns.take() {
            Some(since_ns) => self.qavg_from_idle_time(packet.at_ns.saturating_sub(since_ns)),
            None => self.qavg + (self.fifo.bytes() as f64 - self.qavg) * self.weight,
        };
        let action = self.action();
        if action != Action::DontMark {
            let use_ecn = self.params.ecn && !(action == Action::HardMark && self.params.harddrop);
            if use_ecn && packet.mark() {
                self.stats.ecn_mark += 1;
            } else if !(use_ecn && self.params.nodrop) {
                self.stats.drop_early += 1;
                dropped.push(packet.slot);
                return;
            }
        }
        self.fifo.enqueue(packet, dropped);
        self.stats.maxq = self.stats.maxq.max(self.fifo.len() as u64);
    }

    fn dequeue(&mut self, now_ns: u64, _dropped: &mut Vec<u32>) -> Option<Packet> {
        self.advance_to(now_ns);
        let packet = self.fifo.dequeue();
        if packet.is_none() {
            self.qidlestart_ns.get_or_insert(now_ns);
        }
        packet
    }

    fn found_empty(&mut self, now_ns: u64) {
        self.advance_to(now_ns);
        self.qidlestart_ns.get_or_insert(now_ns);
    }

    fn remove(&mut self, slot: u32, _flow: u32) -> Option<Packet> {
        self.fifo.remove(slot)
    }

    /// Keeps the queue and the average, unlike `red_change`, which drops all packets and resets the average to zero. The distance to the
    /// next mark starts again.
    fn set_params(&mut self, params: RedParams, _dropped: &mut Vec<u32>) {
        self.params = params;
        self.fifo.set_limit(FifoLimit::Bytes(params.limit));
        self.weight = weight(params.wlog);
        self.max_p = f64::from(params.max_p_ppm) / 1e6;
        self.qcount = None;
    }

    fn advance_to(&mut self, now_ns: u64) {
        if !self.params.adaptive {
            return;
        }
        let mut at_ns = *self.next_adapt_ns.get_or_insert(now_ns + ADAPT_NS);
        while at_ns <= now_ns {
            self.adapt(at_ns);
            at_ns += ADAPT_NS;
        }
        self.next_adapt_ns = Some(at_ns);
    }

    fn backlog(&self) -> (u64, u64) {
        self.fifo.backlog()
    }

    fn stats(&self, _now_ns: u64) -> QueueStats {
        QueueStats {
            drop_overlimit: self.fifo.overlimit(),
            prob: (self.prob() * PROB_ONE) as u64,
            ..self.stats
        }
    }

    fn max_packets(params: RedParams, min_frame_bytes: u64) -> u64 {
        params.limit / min_frame_bytes
    }

    fn describe(params: RedParams) -> String {
        format!(
            "red limit {}B min {}B max {}B probability {} ewma 1/2^{}{}{}{}{}",
            params.limit,
            params.qth_min,
            params.qth_max,
            Ppm::new(params.max_p_ppm).unwrap_or_default(),
            params.wlog,
            flag_text(params.ecn, "ecn"),
            flag_text(params.harddrop, "harddrop"),
            flag_text(params.adaptive, "adaptive"),
            flag_text(params.nodrop, "nodrop"),
        )
    }

    fn fill_row(counters: &Counters, row: &mut QdiscSample) {
        row.ecn_mark_pkts = Some(counters.ecn_mark_pkts);
        row.prob = Some(counters.prob as f64 / PROB_ONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::header::Ecn;
    use crate::datapath::random::Purpose;
    use crate::discipline::tests::{Numbers, Samples};

    const PARAMS: RedParams = RedParams {
        limit: 200_000,
        qth_min: 30_000,
        qth_max: 90_000,
        max_p_ppm: 100_000,
        wlog: 9,
        packet_time_ns: 1_000_000,
        ecn: false,
        harddrop: false,
        adaptive: false,
        nodrop: false,
    };

    impl Samples for Red {
        fn small() -> Vec<RedParams> {
            let red = RedParams { limit: 40_000, qth_min: 3_000, qth_max: 20_000, ..PROMPT };
            let adaptive = RedParams { ecn: true, adaptive: true, ..PROMPT };
            vec![red, RedParams { limit: 30_000, qth_max: 15_001, ..adaptive }]
        }

        fn any(numbers: &Numbers) -> RedParams {
            let Numbers { bytes, small, any, time_ns, flags, .. } = *numbers;
            RedParams {
                limit: bytes,
                qth_min: bytes / 3,
                qth_max: bytes - u64::from(small),
                max_p_ppm: any % 1_000_000 + 1,
                wlog: any % 31 + 1,
                packet_time_ns: time_ns,
                ecn: flags[2],
                harddrop: flags[3],
                adaptive: flags[0],
                nodrop: flags[1],
            }
        }

        fn golden() -> Vec<(RedParams, &'static str)> {
            vec![
                (
                    PROMPT,
                    "-116 -126 -149 -156 -179 -197 -198 -209 -211 -226 -241 -249 -265 -273 -277 -282 -291 \
                     -298 -307 -320 -325 -328 -334 -344 -350 -354 -357 -358 -365 -369 -375 -377 -380 -381 \
                     -393",
                ),
                (
                    RedParams { ecn: true, adaptive: true, ..PROMPT },
                    "-116 -148 -192 -236 -256 -276 -292 -296 -300 -304 -308 -312 -316 -320 -332 -336 -340 \
                     -348 -352 -364 -368 -372 -376 -380 -384 *126 *154 *193 *205 *217 *229 *249 *270 *293 \
                     *294 *297 *298 *301 *302 *305 *306 *309 *310 *313 *314 *317 *318 *321 *322 *330 *333 \
                     *334 *337 *338 *358 *362 *365 *366 *369 *370 *373 *374 *377 *378 *389 *393 *394",
                ),
            ]
        }
    }

    /// RED whose average follows the queue faster.
    const PROMPT: RedParams = RedParams {
        limit: 120_000,
        qth_min: 15_000,
        qth_max: 60_000,
        wlog: 4,
        packet_time_ns: 1_200_000,
        ..PARAMS
    };

    fn red(params: RedParams) -> Red {
        Red::new(params, 4096, Random::new(5, Purpose::Queue(0)))
    }

    /// Returns a queue of `bytes`, with the same average.
    fn standing(params: RedParams, bytes: u64) -> Red {
        let mut queue = red(params);
        for slot in 0..bytes / 1000 {
            queue.fifo.enqueue(packet(slot as u32, Ecn::NotEct), &mut Vec::new());
        }
        queue.qavg = bytes as f64;
        queue
    }

    fn packet(slot: u32, ecn: Ecn) -> Packet {
        Packet { slot, bytes: 1000, ecn, ..Packet::default() }
    }

    /// Returns the distances between marks at a constant average.
    fn distances(params: RedParams, bytes: u64, packets: u32) -> Vec<u32> {
        let mut queue = standing(params, bytes);
        let (mut all, mut since) = (Vec::new(), 0);
        for _ in 0..packets {
            since += 1;
            if queue.action() != Action::DontMark {
                all.push(since);
                since = 0;
            }
        }
        all
    }

    #[test]
    fn probability_is_linear_between_thresholds() {
        for (bytes, prob) in [(29_999, 0.0), (36_000, 0.01), (60_000, 0.05), (84_000, 0.09)] {
            assert!((standing(PARAMS, 0).at(bytes) - prob).abs() < 1e-9, "{bytes}");
            // Uniform from 1 to 1/p, hence one mark per (1/p + 1)/2 packets on average.
            let found = distances(PARAMS, bytes / 1000 * 1000, 400_000).len() as f64 / 400_000.0;
            let wanted = if prob == 0.0 { 0.0 } else { 2.0 / (1.0 / prob + 1.0) };
            assert!((found - wanted).abs() <= 0.03 * wanted, "{bytes}: {found} {wanted}");
        }
        assert_eq!(distances(PARAMS, 90_000, 1000), vec![1; 1000]);
    }

    impl Red {
        fn at(&mut self, average: u64) -> f64 {
            self.qavg = average as f64;
            self.prob()
        }
    }

    #[test]
    fn distances_between_marks_are_uniform() {
        // p = 0.05: distances from 1 to 20, all equally likely.
        let all = distances(PARAMS, 60_000, 1_000_000);
        assert!(all.iter().all(|d| (1..=20).contains(d)), "{:?}", all.iter().max());
        for distance in 1..=20 {
            let share = all.iter().filter(|&&d| d == distance).count() as f64 / all.len() as f64;
            assert!((share - 0.05).abs() < 0.004, "{distance}: {share}");
        }
    }

    #[test]
    fn average_is_weighted_and_decays_while_idle() {
        let mut queue = red(PARAMS);
        for slot in 0..100 {
            queue.enqueue(packet(slot, Ecn::NotEct), &mut Vec::new());
        }
        // Sum over i of 1000 i w (1-w)^(99-i).
        let w = 1.0 / 512.0_f64;
        let wanted: f64 =
            (0..100).map(|i| 1000.0 * f64::from(i) * w * (1.0 - w).powi(99 - i)).sum();
        assert!((queue.qavg - wanted).abs() < 1e-6);
        while queue.dequeue(7, &mut Vec::new()).is_some() {}
        queue.dequeue(9_000_000, &mut Vec::new());
        // Idle since 7 ns, when the queue was first found empty, for the transmission time of 512 packets.
        let late = Packet { at_ns: 512_000_007, ..packet(1, Ecn::NotEct) };
        queue.enqueue(late, &mut Vec::new());
        assert!((queue.qavg - wanted * (1.0 - w).powi(512)).abs() < 1e-6);
    }

    #[test]
    fn ecn_marks_and_harddrop_drops_above_qth_max() {
        let fate = |params, bytes, ecn| {
            let mut queue = standing(params, bytes);
            let mut dropped = Vec::new();
            for slot in 0..200 {
                queue.qavg = bytes as f64;
                queue.enqueue(packet(2000 + slot, ecn), &mut dropped);
                queue.fifo.dequeue();
            }
            let stats = queue.stats(0);
            assert_eq!(stats.drop_early, dropped.len() as u64);
            (stats.ecn_mark > 0, stats.drop_early > 0)
        };
        let ecn = RedParams { ecn: true, ..PARAMS };
        assert_eq!(fate(PARAMS, 60_000, Ecn::Ect0), (false, true));
        assert_eq!(fate(ecn, 60_000, Ecn::Ect0), (true, false));
        assert_eq!(fate(ecn, 60_000, Ecn::NotEct), (false, true));
        let nodrop = RedParams { nodrop: true, ..ecn };
        assert_eq!(fate(nodrop, 60_000, Ecn::NotEct), (false, false));
        assert_eq!(fate(nodrop, 60_000, Ecn::Ect0), (true, false));
        assert_eq!(fate(nodrop, 95_000, Ecn::NotEct), (false, false));
        assert_eq!(fate(RedParams { harddrop: true, ..nodrop }, 95_000, Ecn::Ect0), (false, true));
        assert_eq!(fate(ecn, 95_000, Ecn::Ect0), (true, false));
        assert_eq!(fate(RedParams { harddrop: true, ..ecn }, 95_000, Ecn::Ect0), (false, true));
        assert_eq!(fate(PARAMS, 20_000, Ecn::NotEct), (false, false));
    }

    #[test]
    fn adaptation_keeps_average_in_target_range() {
        let adaptive = RedParams { adaptive: true, ..PARAMS };
        let mut high = standing(adaptive, 80_000);
        high.advance_to(0);
        high.advance_to(ADAPT_NS * 2);
        assert!((high.max_p - 0.12).abs() < 1e-9, "1 % more per step: {}", high.max_p);
        high.advance_to(ADAPT_NS * 1000);
        assert!((0.5..0.52).contains(&high.max_p));
        let mut low = standing(adaptive, 40_000);
        low.advance_to(0);
        low.advance_to(ADAPT_NS);
        assert!((low.max_p - 0.09).abs() < 1e-9);
        low.advance_to(ADAPT_NS * 1000);
        assert!((0.009..0.01).contains(&low.max_p));
        let mut middle = standing(adaptive, 60_000);
        middle.advance_to(0);
        middle.advance_to(ADAPT_NS * 10);
        assert!((middle.max_p - 0.1).abs() < 1e-9);
    }

    #[test]
    fn limit_counts_bytes() {
        let mut queue = red(RedParams { limit: 2_500, ..PARAMS });
        let mut dropped = Vec::new();
        for slot in 0..4 {
            queue.enqueue(packet(slot, Ecn::NotEct), &mut dropped);
        }
        assert_eq!((dropped, queue.stats(0).drop_overlimit), (vec![2, 3], 2));
    }
}
