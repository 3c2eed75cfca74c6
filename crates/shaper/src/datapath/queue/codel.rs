//! Controlled delay (RFC 8289): drops at the head, ever faster, while the delay stays above a target.

use super::QueueStats;
use super::fifo::{Fifo, FifoLimit};
use crate::datapath::packet::Packet;

/// Parameters of the control law.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LawSpec {
    /// Acceptable standing delay.
    pub(crate) target_ns: u64,
    /// How long it may be exceeded; the distance of the first two drops.
    pub(crate) interval_ns: u64,
    /// Mark what is ECN-capable instead of dropping it.
    pub(crate) ecn: bool,
    /// Mark what stayed longer than this, whatever the law says.
    pub(crate) ce_threshold_ns: Option<u64>,
}

impl Default for LawSpec {
    fn default() -> Self {
        Self { target_ns: 5_000_000, interval_ns: 100_000_000, ecn: false, ce_threshold_ns: None }
    }
}

/// Parameters of a [`Codel`]; the default is the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CodelSpec {
    /// Packets.
    pub(crate) limit: u32,
    /// The control law's.
    pub(crate) law: LawSpec,
}

impl Default for CodelSpec {
    fn default() -> Self {
        Self { limit: 1000, law: LawSpec::default() }
    }
}

/// A queue that a [`Law`] takes packets from.
pub(crate) trait Source {
    /// The next packet, taken out.
    fn pop(&mut self) -> Option<Packet>;
    /// Bytes left.
    fn bytes(&self) -> u64;
}

/// The control law of one queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Law {
    dropping: bool,
    /// When the delay will have been above the target for an interval; `None` while it is not above.
    ripe_ns: Option<u64>,
    next_ns: u64,
    /// Drops since dropping began, and what that was when it began.
    count: u32,
    first_count: u32,
}

impl Law {
    /// The next packet to transmit from `source`; packets dropped on the way go to `dropped`. A queue of at
    /// most `frame_bytes` bytes is never too long.
    pub(crate) fn dequeue(
        &mut self,
        spec: &LawSpec,
        frame_bytes: u32,
        now_ns: u64,
        source: &mut impl Source,
        stats: &mut QueueStats,
        dropped: &mut Vec<u32>,
    ) -> Option<Packet> {
        let mut next = source.pop();
        let mut ripe = self.is_ripe(spec, frame_bytes, now_ns, next.as_ref(), source.bytes());
        if self.dropping {
            while self.dropping {
                if !ripe {
                    self.dropping = false;
                } else if now_ns < self.next_ns {
                    break;
                } else {
                    self.count = self.count.saturating_add(1);
                    if punish(spec, &mut next, stats, dropped) {
                        self.next_ns += self.pause_ns(spec);
                        break;
                    }
                    next = source.pop();
                    ripe = self.is_ripe(spec, frame_bytes, now_ns, next.as_ref(), source.bytes());
                    self.next_ns += if ripe { self.pause_ns(spec) } else { 0 };
                }
            }
        } else if ripe {
            if !punish(spec, &mut next, stats, dropped) {
                next = source.pop();
                self.is_ripe(spec, frame_bytes, now_ns, next.as_ref(), source.bytes());
            }
            self.begin(spec, now_ns);
        }
        let mut packet = next?;
        let too_long = |threshold_ns| now_ns - packet.at_ns > threshold_ns;
        if spec.ce_threshold_ns.is_some_and(too_long) && packet.mark() {
            stats.ce_mark += 1;
        }
        Some(packet)
    }

    /// Whether the delay has been above the target for an interval.
    fn is_ripe(
        &mut self,
        spec: &LawSpec,
        frame_bytes: u32,
        now_ns: u64,
        next: Option<&Packet>,
        bytes_left: u64,
    ) -> bool {
        let above = next.is_some_and(|packet| {
            now_ns - packet.at_ns >= spec.target_ns && bytes_left > u64::from(frame_bytes)
        });
        if !above {
            self.ripe_ns = None;
            return false;
        }
        match self.ripe_ns {
            Some(ripe_ns) => now_ns >= ripe_ns,
            None => {
                self.ripe_ns = Some(now_ns + spec.interval_ns);
                false
            }
        }
    }

    /// Dropping begins: where it left off, if that was not long ago.
    fn begin(&mut self, spec: &LawSpec, now_ns: u64) {
        self.dropping = true;
        let learnt = self.count.saturating_sub(self.first_count);
        let recent = now_ns.saturating_sub(self.next_ns) < 16 * spec.interval_ns;
        self.count = if learnt > 1 && recent { learnt } else { 1 };
        self.first_count = self.count;
        self.next_ns = now_ns + self.pause_ns(spec);
    }

    /// From one drop to the next.
    fn pause_ns(&self, spec: &LawSpec) -> u64 {
        (spec.interval_ns as f64 / f64::from(self.count).sqrt()) as u64
    }
}

/// Marks the packet and returns true, or drops it.
fn punish(
    spec: &LawSpec,
    packet: &mut Option<Packet>,
    stats: &mut QueueStats,
    dropped: &mut Vec<u32>,
) -> bool {
    if spec.ecn && packet.as_mut().is_some_and(Packet::mark) {
        stats.ecn_mark += 1;
        return true;
    }
    if let Some(packet) = packet.take() {
        stats.early += 1;
        dropped.push(packet.slot);
    }
    false
}

/// One queue under the control law.
#[derive(Debug)]
pub(crate) struct Codel {
    spec: CodelSpec,
    frame_bytes: u32,
    fifo: Fifo,
    law: Law,
    stats: QueueStats,
}

impl Source for Fifo {
    fn pop(&mut self) -> Option<Packet> {
        self.dequeue()
    }
    fn bytes(&self) -> u64 {
        Fifo::bytes(self)
    }
}

impl Codel {
    /// An empty queue that never allocates as long as at most `capacity` packets are in it.
    pub(crate) fn new(spec: CodelSpec, capacity: usize, frame_bytes: u32) -> Self {
        Self {
            spec,
            frame_bytes,
            fifo: Fifo::new(FifoLimit::Packets(u64::from(spec.limit)), capacity),
            law: Law::default(),
            stats: QueueStats::default(),
        }
    }

    pub(crate) fn enqueue(&mut self, packet: Packet, dropped: &mut Vec<u32>) {
        self.fifo.enqueue(packet, dropped);
    }

    pub(crate) fn dequeue(&mut self, now_ns: u64, dropped: &mut Vec<u32>) -> Option<Packet> {
        let Self { spec, frame_bytes, fifo, law, stats } = self;
        law.dequeue(&spec.law, *frame_bytes, now_ns, fifo, stats, dropped)
    }

    /// Packets and bytes waiting.
    pub(crate) fn backlog(&self) -> (u64, u64) {
        (self.fifo.len() as u64, self.fifo.bytes())
    }

    pub(crate) fn stats(&self) -> QueueStats {
        QueueStats { overlimit: self.fifo.overlimit(), ..self.stats }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::header::Ecn;

    const MS: u64 = 1_000_000;

    /// A queue of `count` packets that all arrived at zero.
    fn full(spec: CodelSpec, count: u32, ecn: Ecn) -> Codel {
        let mut queue = Codel::new(spec, count as usize, 1514);
        for slot in 0..count {
            let packet = Packet { slot, bytes: 1514, ecn, ..Packet::default() };
            queue.enqueue(packet, &mut Vec::new());
        }
        queue
    }

    /// Dequeues once a millisecond; returns the times at which packets were dropped or marked.
    fn punished_at(queue: &mut Codel, from_ms: u64, to_ms: u64) -> Vec<u64> {
        let mut times = Vec::new();
        for ms in from_ms..to_ms {
            let before = queue.stats();
            queue.dequeue(ms * MS, &mut Vec::new());
            let after = queue.stats();
            let punished = after.early + after.ecn_mark - before.early - before.ecn_mark;
            times.extend((0..punished).map(|_| ms));
        }
        times
    }

    #[test]
    fn drops_follow_the_inverse_square_root() {
        let mut queue = full(CodelSpec::default(), 1000, Ecn::NotEct);
        // Above the target from 5 ms on, ripe an interval later; then 100/√1, 100/√2, 100/√3 ... apart, in
        // exact time: 105, 205, 275.7, 333.4, 383.4, 428.2, 468.99.
        assert_eq!(punished_at(&mut queue, 1, 480), [105, 205, 276, 334, 384, 429, 469]);
        assert_eq!(queue.stats().early, 7);
    }

    #[test]
    fn with_ecn_the_same_packets_are_marked() {
        let law = LawSpec { ecn: true, ..LawSpec::default() };
        let mut queue = full(CodelSpec { law, ..CodelSpec::default() }, 1000, Ecn::Ect0);
        assert_eq!(punished_at(&mut queue, 1, 480), [105, 205, 276, 334, 384, 429, 469]);
        assert_eq!((queue.stats().ecn_mark, queue.stats().early), (7, 0));
        let mut incapable = full(CodelSpec { law, ..CodelSpec::default() }, 1000, Ecn::NotEct);
        assert_eq!(punished_at(&mut incapable, 1, 480).len(), 7);
        assert_eq!((incapable.stats().ecn_mark, incapable.stats().early), (0, 7));
    }

    #[test]
    fn below_the_target_nothing_is_dropped() {
        let spec = CodelSpec {
            law: LawSpec { target_ns: 500 * MS, ..LawSpec::default() },
            ..CodelSpec::default()
        };
        assert!(punished_at(&mut full(spec, 490, Ecn::NotEct), 1, 490).is_empty());
        // Nor is the last packet, however old.
        let mut last = full(CodelSpec::default(), 2, Ecn::NotEct);
        assert!(last.dequeue(10_000 * MS, &mut Vec::new()).is_some());
        assert!(last.dequeue(20_000 * MS, &mut Vec::new()).is_some());
        assert_eq!(last.stats().early, 0);
    }

    #[test]
    fn a_new_episode_soon_after_begins_where_the_last_left_off() {
        let mut law = Law { count: 9, first_count: 1, next_ns: 500 * MS, ..Law::default() };
        law.begin(&LawSpec::default(), 600 * MS);
        assert_eq!((law.count, law.next_ns), (8, 600 * MS + 35_355_339));
        law.begin(&LawSpec::default(), 5_000 * MS);
        assert_eq!((law.count, law.next_ns), (1, 5_100 * MS));
    }

    #[test]
    fn a_late_dequeue_catches_up() {
        let mut queue = full(CodelSpec::default(), 100, Ecn::NotEct);
        queue.dequeue(5 * MS, &mut Vec::new());
        queue.dequeue(105 * MS, &mut Vec::new());
        let mut dropped = Vec::new();
        // 205, 275.7, 333.4 and 383.4 have passed: four drops, and the fifth packet leaves.
        let next = queue.dequeue(400 * MS, &mut dropped).map(|p| p.slot);
        assert_eq!((dropped, next), (vec![3, 4, 5, 6], Some(7)));
    }

    #[test]
    fn ce_threshold_marks_what_stayed_longer_and_drops_nothing() {
        let law = LawSpec { ce_threshold_ns: Some(MS), ..LawSpec::default() };
        let mut queue = full(CodelSpec { law, ..CodelSpec::default() }, 4, Ecn::Ect1);
        let marks: Vec<bool> = [0, MS, MS + 1, 2 * MS]
            .map(|now_ns| queue.dequeue(now_ns, &mut Vec::new()).unwrap().marked)
            .into();
        assert_eq!(marks, [false, false, true, true]);
        assert_eq!((queue.stats().ce_mark, queue.stats().early), (2, 0));
    }
}
