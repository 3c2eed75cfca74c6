//! The link itself, without any I/O: loss, then a constant delay, then the queue, then the line. It runs
//! on the packets' own times, so that a thread that wakes late releases late but computes nothing wrong.

use std::collections::VecDeque;

use super::line::Line;
use super::loss::Loss;
use super::packet::Packet;
use super::queue::{Discipline, QueueSpec, QueueStats};

/// What a link does to packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkSpec {
    /// Rate in bit/s; `None`: unshaped.
    pub(crate) rate_bps: Option<u64>,
    /// Delay in front of the queue, nanoseconds.
    pub(crate) delay_ns: u64,
    /// Independent random loss in front of the delay, parts per million.
    pub(crate) loss_ppm: u32,
    /// Seeds what is random.
    pub(crate) seed: u64,
    /// The queue in front of the rate.
    pub(crate) queue: QueueSpec,
}

/// Packets counted since the start. `arrived = lost + dropped + in the link + departed`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Offered to the link.
    pub(crate) arrived: u64,
    /// Lost at random.
    pub(crate) lost: u64,
    /// Dropped by the queue.
    pub(crate) dropped: u64,
    /// Handed out by [`LinkModel::pop_departed`].
    pub(crate) departed: u64,
}

/// A link.
#[derive(Debug)]
pub(crate) struct LinkModel {
    delay_ns: u64,
    loss: Loss,
    /// `at_ns`: when the packet will have been delayed.
    delayed: VecDeque<Packet>,
    queue: Discipline,
    line: Line,
    in_service: Option<Packet>,
    /// `at_ns`: when the packet left the line, hence is due.
    departed: VecDeque<Packet>,
    /// Slots of departed packets whose bytes are to be marked.
    marked: Vec<u32>,
    last_arrival_ns: u64,
    advanced_ns: u64,
    counts: Counts,
}

impl LinkModel {
    /// An empty link for slots below `capacity` and frames of at most `frame_bytes`. It never allocates as long
    /// as at most `capacity` packets are in it.
    pub(crate) fn new(spec: &LinkSpec, capacity: usize, frame_bytes: u32) -> Self {
        Self {
            delay_ns: spec.delay_ns,
            loss: Loss::new(spec.loss_ppm, spec.seed),
            delayed: VecDeque::with_capacity(capacity),
            queue: Discipline::new(&spec.queue, capacity, frame_bytes, !spec.seed),
            line: Line::new(spec.rate_bps),
            in_service: None,
            departed: VecDeque::with_capacity(capacity),
            marked: Vec::with_capacity(capacity),
            last_arrival_ns: 0,
            advanced_ns: 0,
            counts: Counts::default(),
        }
    }

    /// A packet arrives at `packet.at_ns`. Returns whether it is in the link now; if not, it is lost and its
    /// slot is the caller's again.
    pub(crate) fn arrive(&mut self, packet: Packet) -> bool {
        self.counts.arrived += 1;
        if self.loss.next_is_lost() {
            self.counts.lost += 1;
            return false;
        }
        // Two packets of one batch may carry times in the wrong order when the wall clock is being slewed.
        self.last_arrival_ns = self.last_arrival_ns.max(packet.at_ns);
        self.delayed.push_back(Packet { at_ns: self.last_arrival_ns + self.delay_ns, ..packet });
        true
    }

    /// Lets everything happen that happens until `now_ns`. Slots of packets that the queue dropped go to
    /// `freed`. Every packet that arrived before `now_ns` minus the delay must have been told.
    pub(crate) fn advance(&mut self, now_ns: u64, freed: &mut Vec<u32>) {
        self.advanced_ns = self.advanced_ns.max(now_ns);
        loop {
            let ends_ns = if self.line.is_busy() { self.line.end_ns() } else { u64::MAX };
            let enters_ns = self.delayed.front().map_or(u64::MAX, |packet| packet.at_ns);
            if ends_ns.min(enters_ns) > now_ns {
                return self.queue.pass_time(now_ns);
            }
            // At the same instant the line ends first and makes room.
            if ends_ns <= enters_ns {
                self.end_transmission(freed);
            } else if let Some(packet) = self.delayed.pop_front() {
                self.enter_queue(packet, freed);
            }
        }
    }

    fn end_transmission(&mut self, freed: &mut Vec<u32>) {
        let end_ns = self.line.finish();
        if let Some(packet) = self.in_service.take() {
            if packet.marked {
                self.marked.push(packet.slot);
            }
            self.departed.push_back(Packet { at_ns: end_ns, ..packet });
        }
        self.serve(end_ns, freed);
    }

    fn enter_queue(&mut self, packet: Packet, freed: &mut Vec<u32>) {
        if self.line.rate_bps().is_none() && !self.line.is_busy() {
            // No rate, no queue: its limit is without meaning.
            self.line.start(packet.at_ns, packet.bytes);
            self.in_service = Some(packet);
            return;
        }
        let at_ns = packet.at_ns;
        self.queue.enqueue(at_ns, packet, freed);
        self.serve(at_ns, freed);
    }

    fn serve(&mut self, now_ns: u64, freed: &mut Vec<u32>) {
        if self.line.is_busy() {
            return;
        }
        if let Some(packet) = self.queue.dequeue(now_ns, freed) {
            self.line.start(now_ns, packet.bytes);
            self.in_service = Some(packet);
        }
    }

    /// From `at_ns` on the rate is another. What happened before is computed with the old one, unless it was
    /// told too late: then the change counts from the time up to which everything has happened.
    pub(crate) fn set_rate(&mut self, at_ns: u64, rate_bps: Option<u64>, freed: &mut Vec<u32>) {
        self.advance(at_ns, freed);
        self.line.set_rate(self.advanced_ns, rate_bps);
    }

    /// When the next packet is due, if no other arrives before; `u64::MAX` if none is.
    pub(crate) fn next_due_ns(&self) -> u64 {
        if let Some(packet) = self.departed.front() {
            packet.at_ns
        } else if self.line.is_busy() {
            self.line.end_ns()
        } else if let Some(packet) = self.delayed.front() {
            self.line.would_end_ns(packet.at_ns, packet.bytes)
        } else {
            u64::MAX
        }
    }

    /// The packet that is due longest, with `at_ns` the time it was due.
    pub(crate) fn peek_departed(&self, skip: usize) -> Option<Packet> {
        self.departed.get(skip).copied()
    }

    /// Takes out what [`Self::peek_departed`] showed first.
    pub(crate) fn pop_departed(&mut self) -> Option<Packet> {
        let packet = self.departed.pop_front()?;
        self.counts.departed += 1;
        Some(packet)
    }

    /// The slot of a departed packet that is to be marked before it is sent; each is told once.
    pub(crate) fn next_marked(&mut self) -> Option<u32> {
        self.marked.pop()
    }

    /// Packets and bytes in the queue (not in the delay, not on the line).
    pub(crate) fn backlog(&self) -> (u64, u64) {
        self.queue.backlog()
    }

    /// The rate in bit/s; `None` is unlimited.
    pub(crate) fn rate_bps(&self) -> Option<u64> {
        self.line.rate_bps()
    }

    /// What the queue did, and how it stands.
    pub(crate) fn queue_stats(&self) -> QueueStats {
        self.queue.stats(self.advanced_ns)
    }

    /// What happened since the start.
    pub(crate) fn counts(&self) -> Counts {
        Counts { dropped: self.queue_stats().dropped(), ..self.counts }
    }
}

#[cfg(test)]
mod tests;
