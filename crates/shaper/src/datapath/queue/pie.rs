//! Proportional integral controller enhanced (RFC 8033), as Linux's `sch_pie` does it with its timestamps
//! (without the estimator of the departure rate).

use super::QueueStats;
use super::fifo::{Fifo, FifoLimit};
use crate::datapath::packet::Packet;
use crate::datapath::random::Random;

/// What an idle queue may burst before anything is dropped.
const BURST_NS: u64 = 150_000_000;
/// Above this delay the probability grows by two percent more in every update.
const LONG_NS: u64 = 250_000_000;
/// Below this a probability is zero.
const LEAST: f64 = 1.0 / (1_u64 << 56) as f64;

/// Parameters; the default is the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PieSpec {
    /// Packets.
    pub(crate) limit: u32,
    /// Delay to hold.
    pub(crate) target_ns: u64,
    /// Time between two updates of the probability.
    pub(crate) update_ns: u64,
    /// Integral and proportional gain, 1/16 Hz.
    pub(crate) alpha: u32,
    pub(crate) beta: u32,
    /// Mark what is ECN-capable, while the probability is at most a tenth.
    pub(crate) ecn: bool,
    /// Small packets are dropped less.
    pub(crate) bytemode: bool,
}

impl Default for PieSpec {
    fn default() -> Self {
        Self {
            limit: 1000,
            target_ns: 15_000_000,
            update_ns: 15_000_000,
            alpha: 2,
            beta: 20,
            ecn: false,
            bytemode: false,
        }
    }
}

/// One queue and its controller.
#[derive(Debug)]
pub(crate) struct Pie {
    spec: PieSpec,
    frame_bytes: u32,
    fifo: Fifo,
    random: Random,
    /// When the probability is computed next; `None` before the time is known.
    update_at_ns: Option<u64>,
    prob: f64,
    /// Probabilities summed since the last drop.
    accumulated: f64,
    /// Left of the burst allowance.
    burst_ns: u64,
    /// How long the packet that left last had waited, and what that was at the last update.
    delay_ns: u64,
    last_delay_ns: u64,
    /// When a packet left last.
    left_ns: Option<u64>,
    stats: QueueStats,
}

impl Pie {
    /// Empty; never allocates as long as at most `capacity` packets are in it.
    pub(crate) fn new(spec: PieSpec, capacity: usize, frame_bytes: u32, random: Random) -> Self {
        Self {
            spec,
            frame_bytes,
            fifo: Fifo::new(FifoLimit::Packets(u64::from(spec.limit)), capacity),
            random,
            update_at_ns: None,
            prob: 0.0,
            accumulated: 0.0,
            burst_ns: BURST_NS,
            delay_ns: 0,
            last_delay_ns: 0,
            left_ns: None,
            stats: QueueStats::default(),
        }
    }

    pub(crate) fn enqueue(&mut self, mut packet: Packet, dropped: &mut Vec<u32>) {
        self.pass_time(packet.at_ns);
        if self.fifo.len() as u64 >= u64::from(self.spec.limit) {
            self.accumulated = 0.0;
            return self.fifo.enqueue(packet, dropped);
        }
        if self.wants_to_drop(packet.bytes) {
            if !(self.spec.ecn && self.prob <= 0.1 && packet.mark()) {
                self.stats.early += 1;
                self.accumulated = 0.0;
                dropped.push(packet.slot);
                return;
            }
            self.stats.ecn_mark += 1;
        }
        self.fifo.enqueue(packet, dropped);
        self.stats.maxq = self.stats.maxq.max(self.fifo.len() as u64);
    }

    fn wants_to_drop(&mut self, bytes: u32) -> bool {
        let calm = self.delay_ns < self.spec.target_ns / 2 && self.prob < 0.2;
        let short = self.fifo.bytes() < 2 * u64::from(self.frame_bytes);
        if self.burst_ns > 0 || calm || short {
            return false;
        }
        let prob = if self.spec.bytemode && bytes <= self.frame_bytes {
            self.prob * f64::from(bytes) / f64::from(self.frame_bytes)
        } else {
            self.prob
        };
        // Spaces drops more evenly than chance: none too soon after the last, none too late.
        self.accumulated = if prob == 0.0 { 0.0 } else { self.accumulated + prob };
        if self.accumulated < 0.85 {
            return false;
        }
        if self.accumulated >= 8.5 {
            return true;
        }
        let drop = self.random.unit() < prob;
        if drop {
            self.accumulated = 0.0;
        }
        drop
    }

    pub(crate) fn dequeue(&mut self, now_ns: u64) -> Option<Packet> {
        self.pass_time(now_ns);
        let packet = self.fifo.dequeue()?;
        let waited_ns = now_ns.saturating_sub(packet.at_ns);
        self.delay_ns = if self.fifo.bytes() == 0 { 0 } else { waited_ns };
        let since_ns = self.left_ns.replace(now_ns).map_or(0, |left_ns| now_ns - left_ns);
        self.burst_ns = self.burst_ns.saturating_sub(since_ns);
        Some(packet)
    }

    /// Computes the probability at every update that is due by `now_ns`.
    pub(crate) fn pass_time(&mut self, now_ns: u64) {
        let period_ns = self.spec.update_ns.max(1);
        let mut at_ns = *self.update_at_ns.get_or_insert(now_ns + period_ns);
        if at_ns > now_ns {
            return;
        }
        while at_ns <= now_ns {
            let idle = self.fifo.len() == 0 && self.delay_ns == 0 && self.last_delay_ns == 0;
            if idle && self.prob == 0.0 {
                // Every further update of an idle queue does the same.
                self.update();
                at_ns += (now_ns - at_ns) / period_ns * period_ns;
            } else {
                self.update();
            }
            at_ns += period_ns;
        }
        self.update_at_ns = Some(at_ns);
    }

    fn update(&mut self) {
        let (delay_ns, last_ns) = (self.delay_ns, self.last_delay_ns);
        // Nothing has left yet: no measurement.
        let measured = delay_ns != 0 || self.fifo.bytes() == 0;
        let seconds = |a: u64, b: u64| (a as f64 - b as f64) / 1e9;
        let weighed = f64::from(self.spec.alpha) / 16.0 * seconds(delay_ns, self.spec.target_ns)
            + f64::from(self.spec.beta) / 16.0 * seconds(delay_ns, last_ns);
        let mut change = weighed * caution(self.prob);
        if change > 0.02 && self.prob >= 0.1 {
            change = 0.02;
        }
        if delay_ns > LONG_NS {
            change += 0.02;
        }
        self.prob = (self.prob + change).clamp(0.0, 1.0);
        if measured && delay_ns == 0 && last_ns == 0 {
            self.prob -= self.prob / 64.0;
        }
        if self.prob < LEAST {
            self.prob = 0.0;
        }
        let half_ns = self.spec.target_ns / 2;
        if delay_ns < half_ns && last_ns < half_ns && self.prob == 0.0 {
            self.burst_ns = BURST_NS;
            self.accumulated = 0.0;
            self.left_ns = None;
        }
        self.last_delay_ns = delay_ns;
    }

    /// Packets and bytes waiting.
    pub(crate) fn backlog(&self) -> (u64, u64) {
        (self.fifo.len() as u64, self.fifo.bytes())
    }

    pub(crate) fn stats(&self) -> QueueStats {
        QueueStats {
            overlimit: self.fifo.overlimit(),
            prob: (self.prob * 4_294_967_296.0) as u64,
            delay_c_ns: self.delay_ns,
            ..self.stats
        }
    }
}

/// What the gains are multiplied by at a low probability (RFC 8033, section 4.2).
fn caution(prob: f64) -> f64 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::header::Ecn;
    use crate::datapath::random::Purpose;

    const MS: u64 = 1_000_000;

    fn pie(spec: PieSpec) -> Pie {
        Pie::new(spec, 4096, 1514, Random::new(3, Purpose::Queue(0)))
    }

    fn packet(slot: u32, at_ns: u64, bytes: u32, ecn: Ecn) -> Packet {
        Packet { slot, bytes, ecn, at_ns, ..Packet::default() }
    }

    /// A constant rate of arrivals, one packet leaving per millisecond. Returns the mean probability, the mean
    /// delay (ms) and the share dropped or marked over the last half.
    fn overload(spec: PieSpec, percent: u64, bytes: u32, ecn: Ecn, ms: u64) -> (f64, f64, f64) {
        let mut queue = pie(spec);
        let (mut dropped, mut slot, mut credit) = (Vec::new(), 0, 0);
        let (mut prob, mut delay, mut came, mut punished_before) = (0.0, 0.0, 0, 0);
        for now in 1..=ms {
            if now == ms / 2 {
                let stats = queue.stats();
                punished_before = stats.early + stats.ecn_mark;
            }
            credit += percent;
            while credit >= 100 {
                credit -= 100;
                slot = (slot + 1) % 4096;
                came += u64::from(now >= ms / 2);
                queue.enqueue(packet(slot, now * MS, bytes, ecn), &mut dropped);
            }
            queue.dequeue(now * MS);
            if now >= ms / 2 {
                prob += queue.prob;
                delay += queue.delay_ns as f64 / 1e6;
            }
        }
        let (stats, half) = (queue.stats(), (ms - ms / 2) as f64);
        let punished = stats.early + stats.ecn_mark - punished_before;
        assert_eq!(stats.overlimit, 0, "the controller, not the limit");
        (prob / half, delay / half, punished as f64 / came as f64)
    }

    #[test]
    fn under_a_steady_overload_what_is_too_much_is_dropped_and_the_target_held() {
        // 120 % and 105 %: 1 - 1/1.2 and 1 - 1/1.05 must go.
        for (percent, excess) in [(120, 1.0 - 1.0 / 1.2), (105, 1.0 - 1.0 / 1.05)] {
            let (prob, delay, gone) =
                overload(PieSpec::default(), percent, 1500, Ecn::NotEct, 200_000);
            assert!((gone - excess).abs() < 0.01, "{percent}: dropped {gone} of {excess}");
            assert!((delay - 15.0).abs() < 1.5, "{percent}: delay {delay}");
            // Drops are spaced, so fewer than chance at this probability would give: after a drop none comes
            // for 0.85/p packets, then one in 1/p. Mean distance (0.85 + 1)/p.
            let wanted = excess * 1.85;
            assert!((prob / wanted - 1.0).abs() < 0.12, "{percent}: probability {prob}, {wanted}");
        }
    }

    #[test]
    fn the_gains_shrink_with_the_probability_as_the_rfc_says() {
        // One update from a given state: 25 ms of delay, no change of it.
        for (prob, scale) in
            [(0.5, 1.0), (0.05, 2.0), (0.005, 8.0), (5e-4, 32.0), (5e-5, 128.0), (5e-6, 512.0)]
        {
            let mut queue = pie(PieSpec::default());
            queue.prob = prob;
            (queue.delay_ns, queue.last_delay_ns) = (25 * MS, 25 * MS);
            queue.update();
            // alpha is 2/16 Hz.
            let wanted = prob + 0.125 * 0.010 / scale;
            assert!((queue.prob - wanted).abs() < 1e-12, "{prob}: {}", queue.prob);
            queue.prob = prob;
            queue.last_delay_ns = 15 * MS;
            queue.delay_ns = 15 * MS + 1_600;
            queue.update();
            // beta is 20/16 Hz.
            let wanted = prob + (0.125 + 1.25) * 0.000_001_6 / scale;
            assert!((queue.prob - wanted).abs() < 1e-12, "{prob}: {}", queue.prob);
        }
    }

    #[test]
    fn steps_are_bounded_and_long_delays_add_two_percent() {
        let mut queue = pie(PieSpec::default());
        queue.prob = 0.1;
        queue.delay_ns = 240 * MS;
        queue.update();
        assert!((queue.prob - 0.12).abs() < 1e-12);
        queue.delay_ns = 300 * MS;
        queue.last_delay_ns = 300 * MS;
        queue.update();
        // 0.125 x 0.285 is 3.6 %, cut to 2, and 2 more.
        assert!((queue.prob - 0.16).abs() < 1e-12);
        // An idle queue's probability sinks by 1/64 beside the integral.
        (queue.delay_ns, queue.last_delay_ns) = (0, 0);
        queue.update();
        let wanted = (0.16 - 0.125 * 0.015) * 63.0 / 64.0;
        assert!((queue.prob - wanted).abs() < 1e-12);
    }

    #[test]
    fn a_first_burst_is_allowed() {
        let mut queue = pie(PieSpec::default());
        let mut dropped = Vec::new();
        for slot in 0..1000 {
            queue.enqueue(packet(slot, 0, 1500, Ecn::NotEct), &mut dropped);
        }
        for ms in 1..=150 {
            queue.dequeue(ms * MS);
            queue.enqueue(packet(2000, ms * MS, 1500, Ecn::NotEct), &mut dropped);
        }
        assert!(dropped.is_empty());
        assert!(queue.prob > 0.03, "{}", queue.prob);
        for ms in 151..=250 {
            queue.dequeue(ms * MS);
            queue.enqueue(packet(2000, ms * MS, 1500, Ecn::NotEct), &mut dropped);
        }
        assert!(!dropped.is_empty());
        // After the queue was empty for long it may burst again.
        while queue.dequeue(251 * MS).is_some() {}
        queue.pass_time(3_600_000 * MS);
        assert_eq!((queue.prob, queue.burst_ns), (0.0, BURST_NS));
    }

    #[test]
    fn a_calm_or_short_queue_is_left_alone() {
        let mut queue = pie(PieSpec::default());
        queue.burst_ns = 0;
        queue.prob = 0.19;
        for slot in 0..10 {
            queue.enqueue(packet(slot, 0, 1500, Ecn::NotEct), &mut Vec::new());
        }
        queue.delay_ns = 7 * MS;
        assert!(!(0..1000).any(|_| queue.wants_to_drop(1500)));
        queue.delay_ns = 8 * MS;
        assert!((0..1000).any(|_| queue.wants_to_drop(1500)));
        while queue.fifo.len() > 2 {
            queue.fifo.dequeue();
        }
        assert!(!(0..1000).any(|_| queue.wants_to_drop(1500)));
    }

    #[test]
    fn ecn_marks_up_to_a_tenth_and_drops_above() {
        let spec = PieSpec { ecn: true, ..PieSpec::default() };
        for (prob, marks) in [(0.1, true), (0.101, false)] {
            let mut queue = pie(spec);
            let mut dropped = Vec::new();
            (queue.burst_ns, queue.delay_ns, queue.prob) = (0, 20 * MS, prob);
            for slot in 0..500 {
                queue.enqueue(packet(slot, 0, 1500, Ecn::Ect0), &mut dropped);
            }
            let stats = queue.stats();
            assert_eq!((stats.ecn_mark > 10, stats.early == 0), (marks, marks), "{prob}");
        }
        let (_, _, gone) = overload(spec, 105, 1500, Ecn::Ect0, 20_000);
        assert!(gone > 0.0);
    }

    #[test]
    fn in_byte_mode_small_packets_suffer_in_proportion() {
        let share = |bytes| {
            let mut queue = pie(PieSpec { bytemode: true, ..PieSpec::default() });
            (queue.burst_ns, queue.delay_ns, queue.prob) = (0, 20 * MS, 0.3);
            queue.fifo.enqueue(packet(0, 0, 1500, Ecn::NotEct), &mut Vec::new());
            queue.fifo.enqueue(packet(1, 0, 1600, Ecn::NotEct), &mut Vec::new());
            (0..100_000).filter(|_| queue.wants_to_drop(bytes)).count() as f64 / 100_000.0
        };
        let (full, half) = (share(1514), share(757));
        assert!((half / full - 0.5).abs() < 0.03, "{half} {full}");
    }

    #[test]
    fn the_limit_is_a_limit() {
        let mut queue = pie(PieSpec { limit: 3, ..PieSpec::default() });
        let mut dropped = Vec::new();
        for slot in 0..5 {
            queue.enqueue(packet(slot, 0, 1500, Ecn::NotEct), &mut dropped);
        }
        assert_eq!((dropped, queue.stats().overlimit), (vec![3, 4], 2));
    }
}
