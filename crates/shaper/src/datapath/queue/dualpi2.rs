//! Dual-queue coupled AQM (RFC 9332): a low-latency queue for L4S, a classic one, one controller for both.
//! Where the RFC leaves a choice, this is Linux's `sch_dualpi2`.

use super::QueueStats;
use super::fifo::{Fifo, FifoLimit};
use crate::datapath::header::Ecn;
use crate::datapath::packet::Packet;
use crate::datapath::random::Random;

/// A probability of one.
const ONE: u64 = 1 << 32;
/// Gains are in 1/256 Hz.
const GAIN_SCALE: i128 = 256 * 1_000_000_000;

/// Parameters; the default is the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dualpi2Spec {
    /// Packets in both queues.
    pub(crate) limit: u32,
    /// Of the classic queue.
    pub(crate) target_ns: u64,
    /// Time between two updates of the probability.
    pub(crate) update_ns: u64,
    /// Integral and proportional gain, 1/256 Hz.
    pub(crate) alpha: u32,
    pub(crate) beta: u32,
    /// A low-latency packet that stayed longer is marked.
    pub(crate) step_ns: u64,
    /// The low-latency queue's probability over the root of the classic one's.
    pub(crate) coupling: u8,
    /// Drop L4S too when its probability exceeds one; otherwise let the queue overflow.
    pub(crate) drop_on_overload: bool,
    /// The law is applied to packets that leave, not to those that come.
    pub(crate) at_dequeue: bool,
    /// Share of the classic queue while both are busy, percent.
    pub(crate) classic_percent: u8,
}

impl Default for Dualpi2Spec {
    fn default() -> Self {
        Self {
            limit: 10_000,
            target_ns: 15_000_000,
            update_ns: 16_000_000,
            alpha: 41,
            beta: 819,
            step_ns: 1_000_000,
            coupling: 2,
            drop_on_overload: true,
            at_dequeue: true,
            classic_percent: 10,
        }
    }
}

/// Both queues and their controller.
#[derive(Debug)]
pub(crate) struct Dualpi2 {
    spec: Dualpi2Spec,
    frame_bytes: u32,
    classic: Fifo,
    low: Fifo,
    random: Random,
    /// When the probability is computed next; `None` before the time is known.
    update_at_ns: Option<u64>,
    prob: u64,
    last_delay_ns: u64,
    credit: i64,
    stats: QueueStats,
}

impl Dualpi2 {
    /// Empty; never allocates as long as at most `capacity` packets are in it.
    pub(crate) fn new(
        spec: Dualpi2Spec,
        capacity: usize,
        frame_bytes: u32,
        random: Random,
    ) -> Self {
        // The limit is that of both together.
        let fifo = || Fifo::new(FifoLimit::Packets(u64::MAX), capacity);
        let mut queue = Self {
            spec,
            frame_bytes,
            classic: fifo(),
            low: fifo(),
            random,
            update_at_ns: None,
            prob: 0,
            last_delay_ns: 0,
            credit: 0,
            stats: QueueStats::default(),
        };
        queue.reset_credit();
        queue
    }

    pub(crate) fn enqueue(&mut self, mut packet: Packet, dropped: &mut Vec<u32>) {
        self.pass_time(packet.at_ns);
        let (packets, _) = self.backlog();
        if packets >= u64::from(self.spec.limit) {
            self.stats.overlimit += 1;
            dropped.push(packet.slot);
            return;
        }
        let is_low = matches!(packet.ecn, Ecn::Ect1 | Ecn::Ce);
        if !self.spec.at_dequeue && self.must_drop(&mut packet, is_low) {
            self.stats.early += 1;
            dropped.push(packet.slot);
            return;
        }
        self.stats.maxq = self.stats.maxq.max(packets + 1);
        if is_low {
            self.stats.pkts_in_l += 1;
            self.low.enqueue(packet, dropped);
        } else {
            self.stats.pkts_in_c += 1;
            self.classic.enqueue(packet, dropped);
        }
    }

    pub(crate) fn dequeue(&mut self, now_ns: u64, dropped: &mut Vec<u32>) -> Option<Packet> {
        self.pass_time(now_ns);
        loop {
            let is_low = self.low.len() > 0 && (self.classic.len() == 0 || self.credit <= 0);
            let taken = if is_low { self.low.dequeue() } else { self.classic.dequeue() };
            let Some(mut packet) = taken else {
                self.reset_credit();
                return None;
            };
            if self.spec.at_dequeue && self.must_drop(&mut packet, is_low) {
                self.stats.early += 1;
                dropped.push(packet.slot);
                continue;
            }
            let unmarked = !packet.marked;
            if is_low && now_ns - packet.at_ns > self.spec.step_ns && packet.mark() {
                // The kernel counts a packet again that its control law has marked before.
                self.stats.ecn_mark += u64::from(unmarked);
                self.stats.step_mark += 1;
            }
            // Only what makes the other queue wait counts.
            let (classic, bytes) = (i64::from(self.spec.classic_percent), i64::from(packet.bytes));
            if is_low && self.classic.len() > 0 {
                self.credit += classic * bytes;
            } else if !is_low && self.low.len() > 0 {
                self.credit -= (100 - classic) * bytes;
            }
            return Some(packet);
        }
    }

    /// Computes the probability at every update that is due by `now_ns`. Between two calls the queues do not
    /// change, so each is computed as if in time.
    pub(crate) fn pass_time(&mut self, now_ns: u64) {
        let period_ns = self.spec.update_ns.max(1);
        let mut at_ns = *self.update_at_ns.get_or_insert(now_ns + period_ns);
        while at_ns <= now_ns {
            if self.prob == 0 && self.last_delay_ns == 0 && self.backlog().0 == 0 {
                // An idle queue's probability stays zero.
                at_ns += (now_ns - at_ns) / period_ns * period_ns;
            } else {
                self.update(at_ns);
            }
            at_ns += period_ns;
        }
        self.update_at_ns = Some(at_ns);
    }

    fn update(&mut self, at_ns: u64) {
        let (classic_ns, low_ns) = self.delays_ns(at_ns);
        let delay_ns = classic_ns.max(low_ns);
        let wide = |ns: u64| i128::from(ns);
        let error = wide(delay_ns) - wide(self.spec.target_ns);
        let change = wide(delay_ns) - wide(self.last_delay_ns);
        let weighed = error * i128::from(self.spec.alpha) + change * i128::from(self.spec.beta);
        let step = weighed * i128::from(ONE) / GAIN_SCALE;
        let most =
            if self.spec.drop_on_overload { ONE } else { ONE / u64::from(self.spec.coupling) };
        let prob = (i128::from(self.prob) + step).clamp(0, i128::from(most));
        self.prob = prob as u64;
        self.last_delay_ns = delay_ns;
    }

    /// Whether the law wants `packet` dropped; it may mark it instead. A backlog of less than two frames is
    /// left alone.
    fn must_drop(&mut self, packet: &mut Packet, is_low: bool) -> bool {
        if self.backlog().1 < 2 * u64::from(self.frame_bytes) {
            return false;
        }
        let coupled = self.prob * u64::from(self.spec.coupling);
        let overload = coupled > ONE;
        if is_low {
            if overload {
                if self.spec.drop_on_overload && self.squared() {
                    return true;
                }
            } else if !self.happens(coupled) {
                return false;
            }
        } else if !self.squared() {
            return false;
        } else if overload || packet.ecn == Ecn::NotEct {
            return true;
        }
        if packet.mark() {
            self.stats.ecn_mark += 1;
        }
        false
    }

    fn happens(&mut self, prob: u64) -> bool {
        (self.random.draw() >> 32) < prob
    }

    /// Happens with the square of the probability.
    fn squared(&mut self) -> bool {
        self.happens(self.prob) && self.happens(self.prob)
    }

    /// With a small classic share the low-latency queue begins.
    fn reset_credit(&mut self) {
        let share = i64::from(self.spec.classic_percent);
        self.credit = i64::from(self.frame_bytes) * (2 * share - 100);
    }

    /// How long the classic and the low-latency queue's first packets have waited at `now_ns`.
    fn delays_ns(&self, now_ns: u64) -> (u64, u64) {
        let waited = |fifo: &Fifo| fifo.head().map_or(0, |p| now_ns.saturating_sub(p.at_ns));
        (waited(&self.classic), waited(&self.low))
    }

    /// Packets and bytes waiting.
    pub(crate) fn backlog(&self) -> (u64, u64) {
        let packets = self.classic.len() + self.low.len();
        (packets as u64, self.classic.bytes() + self.low.bytes())
    }

    pub(crate) fn stats(&self, now_ns: u64) -> QueueStats {
        let (delay_c_ns, delay_l_ns) = self.delays_ns(now_ns);
        let Self { prob, credit, .. } = *self;
        QueueStats { prob, credit, delay_c_ns, delay_l_ns, ..self.stats }
    }
}

#[cfg(test)]
mod flows;
#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::random::Purpose;

    const MS: u64 = 1_000_000;

    fn empty(spec: Dualpi2Spec, capacity: usize, frame_bytes: u32, seed: u64) -> Dualpi2 {
        Dualpi2::new(spec, capacity, frame_bytes, Random::new(seed, Purpose::Queue(0)))
    }

    fn packet(slot: u32, ecn: Ecn, at_ns: u64) -> Packet {
        Packet { slot, bytes: 1514, ecn, at_ns, ..Packet::default() }
    }

    fn filled(spec: Dualpi2Spec, classic: u32, low: u32) -> Dualpi2 {
        let mut queue = empty(spec, 10_000, 1514, 1);
        for slot in 0..classic + low {
            let ecn = if slot < classic { Ecn::NotEct } else { Ecn::Ect1 };
            queue.enqueue(packet(slot, ecn, 0), &mut Vec::new());
        }
        queue
    }

    #[test]
    fn the_probability_integrates_the_error_and_follows_the_change() {
        let mut queue = filled(Dualpi2Spec::default(), 3, 0);
        // After 16 ms the head has waited 16 ms: 1 ms above the target, 16 ms more than before.
        // 0.001 s x 41/256 Hz + 0.016 s x 819/256 Hz = 0.00016016 + 0.0511875 = 0.05134766.
        queue.pass_time(16 * MS);
        let share = |queue: &Dualpi2| queue.stats(0).prob as f64 / ONE as f64;
        assert!((share(&queue) - 0.051_347_656).abs() < 1e-9, "{}", share(&queue));
        // Then 32 ms: 0.017 x 41/256 + 0.016 x 819/256 = 0.00272266 + 0.0511875.
        queue.pass_time(32 * MS);
        assert!((share(&queue) - 0.105_257_813).abs() < 1e-9, "{}", share(&queue));
        // An empty queue: -0.015 x 41/256 - 0.032 x 819/256 = -0.00240234 - 0.102375.
        while queue.dequeue(32 * MS, &mut Vec::new()).is_some() {}
        queue.pass_time(48 * MS);
        assert!((share(&queue) - 0.000_480_469).abs() < 1e-9, "{}", share(&queue));
        queue.pass_time(64 * MS);
        assert_eq!(share(&queue), 0.0);
    }

    #[test]
    fn an_hour_of_idleness_is_passed_at_once() {
        let mut queue = filled(Dualpi2Spec { update_ns: 1, ..Dualpi2Spec::default() }, 0, 0);
        queue.pass_time(5);
        queue.pass_time(3_600_000 * MS);
        assert_eq!(queue.update_at_ns, Some(3_600_000 * MS + 1));
    }

    /// Shares of packets marked and dropped with a fixed probability.
    fn fate(spec: Dualpi2Spec, prob: u64, ecn: Ecn) -> (f64, f64) {
        let mut queue = empty(spec, 64, 100, 9);
        queue.prob = prob;
        let never = u64::MAX / 4;
        queue.update_at_ns = Some(never);
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
    fn marking_is_coupled_and_classic_drops_are_the_square() {
        for at_dequeue in [true, false] {
            let spec = Dualpi2Spec { at_dequeue, ..Dualpi2Spec::default() };
            let fifth = ONE / 5;
            near(fate(spec, fifth, Ecn::Ect1), (0.4, 0.0));
            near(fate(spec, fifth, Ecn::Ect0), (0.04, 0.0));
            near(fate(spec, fifth, Ecn::NotEct), (0.0, 0.04));
            near(fate(Dualpi2Spec { coupling: 1, ..spec }, fifth, Ecn::Ect1), (0.2, 0.0));
        }
    }

    #[test]
    fn overload_drops_from_both_queues_or_from_none() {
        let spec = Dualpi2Spec::default();
        let most = ONE / 5 * 3;
        near(fate(spec, most, Ecn::Ect1), (0.64, 0.36));
        near(fate(spec, most, Ecn::Ect0), (0.0, 0.36));
        near(fate(Dualpi2Spec { drop_on_overload: false, ..spec }, most, Ecn::Ect1), (1.0, 0.0));
        let mut capped = filled(Dualpi2Spec { drop_on_overload: false, ..spec }, 5, 0);
        capped.pass_time(100_000 * MS);
        assert_eq!(capped.prob, ONE / 2);
        let mut free = filled(spec, 5, 0);
        free.pass_time(100_000 * MS);
        assert_eq!(free.prob, ONE);
    }

    #[test]
    fn the_step_marks_what_stayed_longer() {
        let mut queue = filled(Dualpi2Spec::default(), 1, 4);
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
    fn a_packet_that_both_mark_counts_once() {
        let spec = Dualpi2Spec { drop_on_overload: false, ..Dualpi2Spec::default() };
        let mut queue = filled(spec, 0, 4);
        queue.prob = ONE / 2; // coupled: every packet
        for _ in 0..4 {
            assert!(queue.dequeue(2 * MS, &mut Vec::new()).unwrap().marked);
        }
        let stats = queue.stats(2 * MS);
        assert_eq!((stats.ecn_mark, stats.step_mark), (4, 4));
    }

    #[test]
    fn congestion_experienced_before_counts_as_l4s() {
        let mut queue = empty(Dualpi2Spec::default(), 8, 1514, 1);
        queue.enqueue(packet(0, Ecn::Ce, 0), &mut Vec::new());
        assert_eq!(queue.stats(0).pkts_in_l, 1);
    }

    #[test]
    fn the_classic_queue_gets_its_share() {
        for (percent, turns) in [(10, 100), (50, 500), (25, 250)] {
            let spec = Dualpi2Spec {
                classic_percent: percent,
                step_ns: u64::MAX,
                ..Dualpi2Spec::default()
            };
            let mut queue = filled(spec, 1500, 1500);
            let classic = (0..1000)
                .filter(|_| queue.dequeue(0, &mut Vec::new()).unwrap().slot < 1500)
                .count();
            assert!(classic.abs_diff(turns) <= 2, "{percent} %: {classic} of 1000");
        }
    }

    #[test]
    fn a_full_queue_drops_the_tail_of_both() {
        let mut queue = filled(Dualpi2Spec { limit: 5, ..Dualpi2Spec::default() }, 3, 2);
        let mut dropped = Vec::new();
        queue.enqueue(packet(8, Ecn::Ect1, 0), &mut dropped);
        queue.enqueue(packet(9, Ecn::NotEct, 0), &mut dropped);
        assert_eq!((dropped, queue.stats(0).overlimit), (vec![8, 9], 2));
    }

    #[test]
    fn two_frames_of_backlog_are_left_alone() {
        let mut queue = filled(Dualpi2Spec { step_ns: u64::MAX, ..Dualpi2Spec::default() }, 2, 0);
        queue.pass_time(100_000 * MS);
        let mut dropped = Vec::new();
        assert!(queue.dequeue(100_000 * MS, &mut dropped).is_some());
        assert!(queue.dequeue(100_000 * MS, &mut dropped).is_some());
        assert!(dropped.is_empty());
    }
}
