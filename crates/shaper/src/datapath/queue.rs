//! The queue in front of a rate. Every discipline is a pure state machine: it is told the time, owns no
//! bytes and no clock, and allocates nothing once it is made.

use codel::{Codel, CodelSpec};
use dualpi2::{Dualpi2, Dualpi2Spec};
use fifo::Fifo;
use fq::{Fq, FqSpec};
use fq_codel::{FqCodel, FqCodelSpec};
use pie::{Pie, PieSpec};
use red::{Red, RedSpec};

use super::packet::Packet;
use super::random::Random;

pub(crate) mod chains;
pub(crate) mod codel;
#[cfg(feature = "bench")]
pub(crate) mod cost;
pub(crate) mod dualpi2;
pub(crate) mod fifo;
pub(crate) mod fq;
pub(crate) mod fq_codel;
pub(crate) mod pie;
pub(crate) mod red;
pub(crate) mod slices;
#[cfg(test)]
mod tests;
pub(crate) mod turns;

pub(crate) use fifo::FifoLimit;

/// Which discipline, with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueSpec {
    /// First in, first out.
    Fifo(FifoLimit),
    /// First in, first out; when it is full the oldest goes.
    HeadDrop(FifoLimit),
    /// RFC 8033.
    Pie(PieSpec),
    /// Random early detection.
    Red(RedSpec),
    /// RFC 8289.
    Codel(CodelSpec),
    /// RFC 8290.
    FqCodel(FqCodelSpec),
    /// Fair queueing.
    Fq(FqSpec),
    /// RFC 9332.
    Dualpi2(Dualpi2Spec),
}

impl Default for QueueSpec {
    fn default() -> Self {
        Self::Fifo(FifoLimit::Packets(1000))
    }
}

/// What a queue did since its start, and how it stands. What a discipline has no notion of stays zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct QueueStats {
    /// Packets dropped because the queue was full.
    pub(crate) overlimit: u64,
    /// Packets dropped because the queue's own limit of memory was reached.
    pub(crate) overmemory: u64,
    /// Packets dropped by the control law.
    pub(crate) early: u64,
    /// Packets marked by the control law.
    pub(crate) ecn_mark: u64,
    /// Packets marked because they stayed longer than `ce_threshold`.
    pub(crate) ce_mark: u64,
    /// Packets marked by the step; among `ecn_mark` too, as the kernel counts.
    pub(crate) step_mark: u64,
    /// Probability of the control law, of 2^32.
    pub(crate) prob: u64,
    /// Time that the classic and the low-latency queue's first packets have waited.
    pub(crate) delay_c_ns: u64,
    pub(crate) delay_l_ns: u64,
    /// Packets that entered them.
    pub(crate) pkts_in_c: u64,
    pub(crate) pkts_in_l: u64,
    /// Whose turn it is between them: the low-latency queue's unless positive.
    pub(crate) credit: i64,
    /// The most packets there ever were.
    pub(crate) maxq: u64,
    /// Flows with a queue of their own that is in use.
    pub(crate) flows: u64,
}

impl QueueStats {
    /// Adds another queue's counts; of what is no count, the larger stays.
    pub(crate) fn add(&mut self, other: &Self) {
        self.overlimit += other.overlimit;
        self.overmemory += other.overmemory;
        self.early += other.early;
        self.ecn_mark += other.ecn_mark;
        self.ce_mark += other.ce_mark;
        self.step_mark += other.step_mark;
        self.pkts_in_c += other.pkts_in_c;
        self.pkts_in_l += other.pkts_in_l;
        self.flows += other.flows;
        self.prob = self.prob.max(other.prob);
        self.delay_c_ns = self.delay_c_ns.max(other.delay_c_ns);
        self.delay_l_ns = self.delay_l_ns.max(other.delay_l_ns);
        self.maxq = self.maxq.max(other.maxq);
    }

    /// Packets that came in and will not go out.
    pub(crate) fn dropped(&self) -> u64 {
        self.overlimit + self.overmemory + self.early
    }
}

/// A queue of any discipline.
#[derive(Debug)]
pub(crate) enum Discipline {
    Fifo(Fifo),
    HeadDrop(Fifo),
    Pie(Box<Pie>),
    Red(Box<Red>),
    Codel(Box<Codel>),
    FqCodel(Box<FqCodel>),
    Fq(Box<Fq>),
    Dualpi2(Box<Dualpi2>),
}

impl Discipline {
    /// An empty queue for slots below `capacity` and frames of at most `frame_bytes`; `random` is for
    /// what it decides at random.
    pub(crate) fn new(spec: &QueueSpec, capacity: usize, frame_bytes: u32, random: Random) -> Self {
        match *spec {
            QueueSpec::Fifo(limit) => Self::Fifo(Fifo::new(limit, capacity)),
            QueueSpec::HeadDrop(limit) => Self::HeadDrop(Fifo::new(limit, capacity)),
            QueueSpec::Pie(spec) => {
                Self::Pie(Box::new(Pie::new(spec, capacity, frame_bytes, random)))
            }
            QueueSpec::Red(spec) => Self::Red(Box::new(Red::new(spec, capacity, random))),
            QueueSpec::Codel(spec) => {
                Self::Codel(Box::new(Codel::new(spec, capacity, frame_bytes)))
            }
            QueueSpec::FqCodel(spec) => {
                Self::FqCodel(Box::new(FqCodel::new(spec, capacity, frame_bytes)))
            }
            QueueSpec::Fq(spec) => Self::Fq(Box::new(Fq::new(spec, capacity, frame_bytes))),
            QueueSpec::Dualpi2(spec) => {
                Self::Dualpi2(Box::new(Dualpi2::new(spec, capacity, frame_bytes, random)))
            }
        }
    }

    /// `packet` arrives at `now_ns`. Slots of packets that are dropped for it, perhaps its own, go to `dropped`.
    pub(crate) fn enqueue(&mut self, now_ns: u64, packet: Packet, dropped: &mut Vec<u32>) {
        let packet = Packet { at_ns: now_ns, ..packet };
        match self {
            Self::Fifo(queue) => queue.enqueue(packet, dropped),
            Self::HeadDrop(queue) => queue.enqueue_dropping_head(packet, dropped),
            Self::Pie(queue) => queue.enqueue(packet, dropped),
            Self::Red(queue) => queue.enqueue(packet, dropped),
            Self::Codel(queue) => queue.enqueue(packet, dropped),
            Self::FqCodel(queue) => queue.enqueue(packet, dropped),
            Self::Fq(queue) => queue.enqueue(packet, dropped),
            Self::Dualpi2(queue) => queue.enqueue(packet, dropped),
        }
    }

    /// The next packet to transmit at `now_ns`, if any is left: slots of those dropped on the way go to
    /// `dropped`.
    pub(crate) fn dequeue(&mut self, now_ns: u64, dropped: &mut Vec<u32>) -> Option<Packet> {
        match self {
            Self::Fifo(queue) | Self::HeadDrop(queue) => queue.dequeue(),
            Self::Pie(queue) => queue.dequeue(now_ns),
            Self::Red(queue) => queue.dequeue(now_ns),
            Self::Codel(queue) => queue.dequeue(now_ns, dropped),
            Self::FqCodel(queue) => queue.dequeue(now_ns, dropped),
            Self::Fq(queue) => queue.dequeue(now_ns),
            Self::Dualpi2(queue) => queue.dequeue(now_ns, dropped),
        }
    }

    /// It is `now_ns`, and everything before has been told.
    pub(crate) fn pass_time(&mut self, now_ns: u64) {
        match self {
            Self::Dualpi2(queue) => queue.pass_time(now_ns),
            Self::Pie(queue) => queue.pass_time(now_ns),
            Self::Red(queue) => queue.pass_time(now_ns),
            _ => {}
        }
    }

    /// Packets and bytes waiting.
    pub(crate) fn backlog(&self) -> (u64, u64) {
        match self {
            Self::Fifo(queue) | Self::HeadDrop(queue) => (queue.len() as u64, queue.bytes()),
            Self::Pie(queue) => queue.backlog(),
            Self::Red(queue) => queue.backlog(),
            Self::Codel(queue) => queue.backlog(),
            Self::FqCodel(queue) => queue.backlog(),
            Self::Fq(queue) => queue.backlog(),
            Self::Dualpi2(queue) => queue.backlog(),
        }
    }

    /// What it did until `now_ns`.
    pub(crate) fn stats(&self, now_ns: u64) -> QueueStats {
        match self {
            Self::Pie(queue) => queue.stats(),
            Self::Red(queue) => queue.stats(),
            Self::Fifo(queue) | Self::HeadDrop(queue) => {
                QueueStats { overlimit: queue.overlimit(), ..QueueStats::default() }
            }
            Self::Codel(queue) => queue.stats(),
            Self::FqCodel(queue) => queue.stats(),
            Self::Fq(queue) => queue.stats(),
            Self::Dualpi2(queue) => queue.stats(now_ns),
        }
    }
}

impl QueueSpec {
    /// How many frames the queue may hold, if the smallest has `least_frame_bytes`.
    pub(crate) fn most_packets(&self, least_frame_bytes: u64) -> u64 {
        match *self {
            Self::Fifo(FifoLimit::Bytes(bytes))
            | Self::HeadDrop(FifoLimit::Bytes(bytes))
            | Self::Red(RedSpec { limit: bytes, .. }) => bytes / least_frame_bytes,
            Self::Fifo(FifoLimit::Packets(packets))
            | Self::HeadDrop(FifoLimit::Packets(packets)) => packets,
            Self::Pie(PieSpec { limit, .. })
            | Self::Codel(CodelSpec { limit, .. })
            | Self::FqCodel(FqCodelSpec { limit, .. })
            | Self::Fq(FqSpec { limit, .. })
            | Self::Dualpi2(Dualpi2Spec { limit, .. }) => u64::from(limit),
        }
    }
}
