//! Random early detection (Floyd and Jacobson 1993, Floyd, Gummadi and Shenker 2001 for the adaptive one), as
//! Linux's `sch_red` does it over a byte-limited FIFO.

use super::QueueStats;
use super::fifo::{Fifo, FifoLimit};
use crate::datapath::packet::Packet;
use crate::datapath::random::Random;

/// Time between two steps of the adaptive probability.
const ADAPT_NS: u64 = 500_000_000;

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RedSpec {
    /// Bytes.
    pub(crate) limit: u64,
    /// Average queue from which packets are punished, bytes.
    pub(crate) min: u64,
    /// Average queue at which the probability is `probability_ppm`, and above which all are, bytes.
    pub(crate) max: u64,
    /// Parts per million.
    pub(crate) probability_ppm: u32,
    /// The average moves by `1/2^weight_log` of the distance with every packet.
    pub(crate) weight_log: u32,
    /// While the queue is empty, the average shrinks as if an empty queue were seen this often.
    pub(crate) idle_packet_ns: u64,
    /// Mark what is ECN-capable.
    pub(crate) ecn: bool,
    /// Above `max` drop even what could be marked.
    pub(crate) harddrop: bool,
    /// Let the probability find itself between 1 % and 50 %.
    pub(crate) adaptive: bool,
}

/// A queue with a running average of its length.
#[derive(Debug)]
pub(crate) struct Red {
    spec: RedSpec,
    fifo: Fifo,
    random: Random,
    weight: f64,
    average: f64,
    most: f64,
    /// Packets since the last punished one; `None` below `min` and above `max`.
    count: Option<u32>,
    /// Punished is the packet at which count times probability reaches this.
    until: f64,
    idle_since_ns: Option<u64>,
    adapt_at_ns: Option<u64>,
    stats: QueueStats,
}

impl Red {
    /// Empty; never allocates as long as at most `capacity` packets are in it.
    pub(crate) fn new(spec: RedSpec, capacity: usize, random: Random) -> Self {
        Self {
            spec,
            fifo: Fifo::new(FifoLimit::Bytes(spec.limit), capacity),
            random,
            weight: 0.5_f64.powi(spec.weight_log.min(31).cast_signed()),
            average: 0.0,
            most: f64::from(spec.probability_ppm) / 1e6,
            count: None,
            until: 0.0,
            idle_since_ns: None,
            adapt_at_ns: None,
            stats: QueueStats::default(),
        }
    }

    pub(crate) fn enqueue(&mut self, mut packet: Packet, dropped: &mut Vec<u32>) {
        self.pass_time(packet.at_ns);
        self.average = match self.idle_since_ns.take() {
            Some(since_ns) => self.decayed(packet.at_ns - since_ns),
            None => self.average + (self.fifo.bytes() as f64 - self.average) * self.weight,
        };
        let (punish, hard) = self.judge();
        if punish {
            if self.spec.ecn && !(hard && self.spec.harddrop) && packet.mark() {
                self.stats.ecn_mark += 1;
            } else {
                self.stats.early += 1;
                dropped.push(packet.slot);
                return;
            }
        }
        self.fifo.enqueue(packet, dropped);
        self.stats.maxq = self.stats.maxq.max(self.fifo.len() as u64);
    }

    /// Whether the next packet is to be punished, and whether that is because the average is above `max`.
    fn judge(&mut self) -> (bool, bool) {
        if self.average < self.spec.min as f64 {
            self.count = None;
            return (false, false);
        }
        if self.average >= self.spec.max as f64 {
            self.count = None;
            return (true, true);
        }
        let Some(count) = self.count else {
            self.count = Some(0);
            self.until = self.random.unit();
            return (false, false);
        };
        self.count = Some(count + 1);
        // The distances of two punished packets are uniform from 1 to 1/p, not geometric.
        if self.prob() * f64::from(count + 1) < self.until {
            return (false, false);
        }
        self.count = Some(0);
        self.until = self.random.unit();
        (true, false)
    }

    /// The probability at the present average.
    fn prob(&self) -> f64 {
        let (min, max) = (self.spec.min as f64, self.spec.max as f64);
        let range = (max - min).max(1.0);
        match self.average {
            below if below < min => 0.0,
            above if above >= max => 1.0,
            between => self.most * (between - min) / range,
        }
    }

    /// The average after `idle_ns` of an empty queue.
    fn decayed(&self, idle_ns: u64) -> f64 {
        let packets = idle_ns as f64 / self.spec.idle_packet_ns.max(1) as f64;
        self.average * (1.0 - self.weight).powf(packets)
    }

    pub(crate) fn dequeue(&mut self, now_ns: u64) -> Option<Packet> {
        self.pass_time(now_ns);
        let packet = self.fifo.dequeue();
        if packet.is_none() {
            self.idle_since_ns.get_or_insert(now_ns);
        }
        packet
    }

    /// Adapts the probability as often as is due by `now_ns`.
    pub(crate) fn pass_time(&mut self, now_ns: u64) {
        if !self.spec.adaptive {
            return;
        }
        let mut at_ns = *self.adapt_at_ns.get_or_insert(now_ns + ADAPT_NS);
        while at_ns <= now_ns {
            self.adapt(at_ns);
            at_ns += ADAPT_NS;
        }
        self.adapt_at_ns = Some(at_ns);
    }

    fn adapt(&mut self, now_ns: u64) {
        let average = match self.idle_since_ns {
            Some(since_ns) => self.decayed(now_ns.saturating_sub(since_ns)),
            None => self.average,
        };
        let (min, max) = (self.spec.min as f64, self.spec.max as f64);
        let fifth = (max - min) / 5.0;
        if average > min + 3.0 * fifth && self.most <= 0.5 {
            self.most += (self.most / 4.0).min(0.01);
        } else if average < min + 2.0 * fifth && self.most >= 0.01 {
            self.most *= 0.9;
        }
    }

    /// Packets and bytes waiting.
    pub(crate) fn backlog(&self) -> (u64, u64) {
        (self.fifo.len() as u64, self.fifo.bytes())
    }

    pub(crate) fn stats(&self) -> QueueStats {
        QueueStats {
            overlimit: self.fifo.overlimit(),
            prob: (self.prob() * 4_294_967_296.0) as u64,
            ..self.stats
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::header::Ecn;
    use crate::datapath::random::Purpose;

    const SPEC: RedSpec = RedSpec {
        limit: 200_000,
        min: 30_000,
        max: 90_000,
        probability_ppm: 100_000,
        weight_log: 9,
        idle_packet_ns: 1_000_000,
        ecn: false,
        harddrop: false,
        adaptive: false,
    };

    fn red(spec: RedSpec) -> Red {
        Red::new(spec, 4096, Random::new(5, Purpose::Queue(0)))
    }

    /// A queue that holds `bytes`, with the same average.
    fn standing(spec: RedSpec, bytes: u64) -> Red {
        let mut queue = red(spec);
        for slot in 0..bytes / 1000 {
            queue.fifo.enqueue(packet(slot as u32, Ecn::NotEct), &mut Vec::new());
        }
        queue.average = bytes as f64;
        queue
    }

    fn packet(slot: u32, ecn: Ecn) -> Packet {
        Packet { slot, bytes: 1000, ecn, ..Packet::default() }
    }

    /// Distances of punished packets while the average stays.
    fn distances(spec: RedSpec, bytes: u64, packets: u32) -> Vec<u32> {
        let mut queue = standing(spec, bytes);
        let (mut all, mut since) = (Vec::new(), 0);
        for _ in 0..packets {
            since += 1;
            if queue.judge().0 {
                all.push(since);
                since = 0;
            }
        }
        all
    }

    #[test]
    fn the_probability_is_a_line_from_min_to_max() {
        for (bytes, prob) in [(29_999, 0.0), (36_000, 0.01), (60_000, 0.05), (84_000, 0.09)] {
            assert!((standing(SPEC, 0).at(bytes) - prob).abs() < 1e-9, "{bytes}");
            // Uniform from 1 to 1/p: on average one in (1/p + 1)/2.
            let found = distances(SPEC, bytes / 1000 * 1000, 400_000).len() as f64 / 400_000.0;
            let wanted = if prob == 0.0 { 0.0 } else { 2.0 / (1.0 / prob + 1.0) };
            assert!((found - wanted).abs() <= 0.03 * wanted, "{bytes}: {found} {wanted}");
        }
        assert_eq!(distances(SPEC, 90_000, 1000), vec![1; 1000]);
    }

    impl Red {
        fn at(&mut self, average: u64) -> f64 {
            self.average = average as f64;
            self.prob()
        }
    }

    #[test]
    fn distances_are_uniform_not_geometric() {
        // p = 0.05: from 1 to 20, each as often as any other.
        let all = distances(SPEC, 60_000, 1_000_000);
        assert!(all.iter().all(|d| (1..=20).contains(d)), "{:?}", all.iter().max());
        for distance in 1..=20 {
            let share = all.iter().filter(|&&d| d == distance).count() as f64 / all.len() as f64;
            assert!((share - 0.05).abs() < 0.004, "{distance}: {share}");
        }
    }

    #[test]
    fn the_average_moves_by_its_weight_and_decays_while_idle() {
        let mut queue = red(SPEC);
        for slot in 0..100 {
            queue.enqueue(packet(slot, Ecn::NotEct), &mut Vec::new());
        }
        // Sum over i of 1000 i w (1-w)^(99-i).
        let w = 1.0 / 512.0_f64;
        let wanted: f64 =
            (0..100).map(|i| 1000.0 * f64::from(i) * w * (1.0 - w).powi(99 - i)).sum();
        assert!((queue.average - wanted).abs() < 1e-6);
        while queue.dequeue(7).is_some() {}
        queue.dequeue(9_000_000);
        // Idle since 7 ns, when it was found empty first: 512 packets' time.
        let late = Packet { at_ns: 512_000_007, ..packet(1, Ecn::NotEct) };
        queue.enqueue(late, &mut Vec::new());
        assert!((queue.average - wanted * (1.0 - w).powi(512)).abs() < 1e-6);
    }

    #[test]
    fn ecn_marks_and_harddrop_drops_above_max() {
        let fate = |spec, bytes, ecn| {
            let mut queue = standing(spec, bytes);
            let mut dropped = Vec::new();
            for slot in 0..200 {
                queue.average = bytes as f64;
                queue.enqueue(packet(2000 + slot, ecn), &mut dropped);
                queue.fifo.dequeue();
            }
            let stats = queue.stats();
            assert_eq!(stats.early, dropped.len() as u64);
            (stats.ecn_mark > 0, stats.early > 0)
        };
        let ecn = RedSpec { ecn: true, ..SPEC };
        assert_eq!(fate(SPEC, 60_000, Ecn::Ect0), (false, true));
        assert_eq!(fate(ecn, 60_000, Ecn::Ect0), (true, false));
        assert_eq!(fate(ecn, 60_000, Ecn::NotEct), (false, true));
        assert_eq!(fate(ecn, 95_000, Ecn::Ect0), (true, false));
        assert_eq!(fate(RedSpec { harddrop: true, ..ecn }, 95_000, Ecn::Ect0), (false, true));
        assert_eq!(fate(SPEC, 20_000, Ecn::NotEct), (false, false));
    }

    #[test]
    fn an_adaptive_probability_keeps_the_average_in_the_middle() {
        let adaptive = RedSpec { adaptive: true, ..SPEC };
        let mut high = standing(adaptive, 80_000);
        high.pass_time(0);
        high.pass_time(ADAPT_NS * 2);
        assert!((high.most - 0.12).abs() < 1e-9, "1 % more per step: {}", high.most);
        high.pass_time(ADAPT_NS * 1000);
        assert!((0.5..0.52).contains(&high.most));
        let mut low = standing(adaptive, 40_000);
        low.pass_time(0);
        low.pass_time(ADAPT_NS);
        assert!((low.most - 0.09).abs() < 1e-9);
        low.pass_time(ADAPT_NS * 1000);
        assert!((0.009..0.01).contains(&low.most));
        let mut middle = standing(adaptive, 60_000);
        middle.pass_time(0);
        middle.pass_time(ADAPT_NS * 10);
        assert!((middle.most - 0.1).abs() < 1e-9);
    }

    #[test]
    fn the_limit_is_bytes() {
        let mut queue = red(RedSpec { limit: 2_500, ..SPEC });
        let mut dropped = Vec::new();
        for slot in 0..4 {
            queue.enqueue(packet(slot, Ecn::NotEct), &mut dropped);
        }
        assert_eq!((dropped, queue.stats().overlimit), (vec![2, 3], 2));
    }
}
