//! The link itself, without any I/O: impairments and a delay, then the queue, then the line. It runs on the
//! packets' own times, so that a thread that wakes late releases late but computes nothing wrong.

use std::collections::VecDeque;

use ccbench_proto::resolve::Impairments;
use ccbench_proto::trace::Replay;

use super::class_scheduler::{ClassScheduler, Next, SchedulerParams};
use super::classes::ClassSpec;
use super::impair::{Impair, usual_excess_ns};
use super::line::Line;
use super::packet::Packet;
use super::random::{Purpose, Random};
use crate::discipline::{AnyQueue, QueueParams, QueueStats, Setup};
use delay::Delay;
use traced::Traced;

mod delay;
mod traced;

/// What a link does to packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LinkSpec {
    /// Rate in bit/s; `None`: unshaped.
    pub(crate) rate_bps: Option<u64>,
    /// Delay in front of the queue, nanoseconds.
    pub(crate) delay_ns: u64,
    /// Independent random loss in front of the delay, parts per million.
    pub(crate) loss_ppm: u32,
    /// Seeds what is random.
    pub(crate) seed: u64,
    /// The queue in front of the rate, for what no class matches.
    pub(crate) queue: QueueParams,
    /// Slices of the rate; none: all packets share the queue.
    pub(crate) classes: Vec<ClassSpec>,
    /// What it does to packets beside that.
    pub(crate) impairments: Impairments,
    /// Bytes that the line carries beside each IP packet; 14 is an Ethernet header.
    pub(crate) overhead_bytes: u32,
    /// Packets that are due together may be written as one.
    pub(crate) gso: bool,
    /// How it changes in time. The rate is then the trace's; `rate_bps` is its mean.
    pub(crate) trace: Option<Replay>,
}

impl Default for LinkSpec {
    /// An unshaped link that does nothing.
    fn default() -> Self {
        Self {
            rate_bps: None,
            delay_ns: 0,
            loss_ppm: 0,
            seed: 0,
            queue: QueueParams::default(),
            classes: Vec::new(),
            impairments: Impairments::default(),
            overhead_bytes: ETHERNET_BYTES,
            gso: true,
            trace: None,
        }
    }
}

impl LinkSpec {
    /// How long a packet is usually delayed at most, nanoseconds: what memory is sized for.
    pub(crate) fn usual_delay_ns(&self) -> u64 {
        let longest_ns = self.trace.as_ref().map_or(0, traced::longest_delay_ns);
        self.delay_ns.max(longest_ns).saturating_add(usual_excess_ns(self.impairments.jitter))
    }

    /// Whether anything looks at more of a packet than its size and its time.
    pub(crate) fn classifies(&self) -> bool {
        self.queue.reads_headers() || !self.classes.is_empty()
    }

    /// How many frames its queues may hold together, if the smallest has `min_frame_bytes`.
    pub(crate) fn max_packets(&self, min_frame_bytes: u64) -> u64 {
        let queues = self.classes.iter().map(|class| &class.queue).chain([&self.queue]);
        queues.map(|queue| queue.max_packets(min_frame_bytes)).fold(0, u64::saturating_add)
    }
}

/// Header of an Ethernet frame: what a frame's bytes hold beside the IP packet.
const ETHERNET_BYTES: u32 = 14;

/// Packets counted since the start. `arrived + duplicated = lost + dropped + in the link + departed`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Offered to the link.
    pub(crate) arrived: u64,
    /// Lost at random.
    pub(crate) lost: u64,
    /// Copies that entered the link.
    pub(crate) duplicated: u64,
    /// Packets of which a bit was to be flipped.
    pub(crate) corrupted: u64,
    /// Dropped by the queue.
    pub(crate) dropped: u64,
    /// Handed out by [`LinkModel::pop_departed`].
    pub(crate) departed: u64,
}

/// Outcome of an arrival, and what the owner of the bytes has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It is lost, and its slot is the caller's again.
    Lost,
    /// It is in the link.
    In,
    /// It is in the link; the caller may have to change or copy it.
    Changed {
        /// Flip the bit that this draw selects.
        flip: Option<u64>,
        /// When the delay of the copy ends: copy the bytes as they arrived, and hand the copy to
        /// [`LinkModel::arrive_copy`].
        copy_due_ns: Option<u64>,
    },
}

/// The queue, or one per class.
#[derive(Debug)]
enum Stage {
    One(AnyQueue),
    Classes(Box<ClassScheduler>),
}

/// A link.
#[derive(Debug)]
pub(crate) struct LinkModel {
    delay: Delay,
    impair: Box<Impair>,
    /// Whether anything random can happen.
    impaired: bool,
    stage: Stage,
    line: Line,
    /// Added to a frame's bytes on the line.
    extra_bytes: i32,
    in_service: Option<Packet>,
    /// When a class that has to wait may send, while the line is idle.
    wake_ns: u64,
    /// `at_ns`: when the packet left the line, hence is due.
    departed: VecDeque<Packet>,
    /// Slots of departed packets whose bytes are to be marked.
    marked: Vec<u32>,
    last_arrival_ns: u64,
    advanced_ns: u64,
    counts: Counts,
    traced: Option<Box<Traced>>,
    /// A packet that arrives then or later has to look at the trace.
    next_row_ns: u64,
}

impl LinkModel {
    /// An empty link for slots below `capacity` and frames of at most `frame_bytes`. It never allocates as long
    /// as at most `capacity` packets are in it.
    pub(crate) fn new(spec: &LinkSpec, capacity: usize, frame_bytes: u32) -> Self {
        let impaired = spec.loss_ppm > 0 || spec.impairments != Impairments::default();
        let impair = Impair::new(spec.loss_ppm, &spec.impairments, spec.seed);
        let queue = |index: u8, queue: &QueueParams| {
            let random = Random::new(spec.seed, Purpose::Queue(index));
            queue.build(Setup { capacity, frame_bytes, random })
        };
        let extra_bytes = spec.overhead_bytes.cast_signed() - ETHERNET_BYTES.cast_signed();
        let traced = spec.trace.as_ref().map(|replay| Box::new(Traced::new(replay, spec)));
        let stage = match spec.rate_bps {
            Some(rate_bps) if !spec.classes.is_empty() => {
                let params = SchedulerParams { rate_bps, frame_bytes, extra_bytes };
                let own = (None, queue(0, &spec.queue));
                let classes = (1..).zip(&spec.classes);
                let classes =
                    classes.map(|(index, class)| (Some(class), queue(index, &class.queue)));
                Stage::Classes(Box::new(ClassScheduler::new(
                    params,
                    std::iter::once(own).chain(classes),
                )))
            }
            _ => Stage::One(queue(0, &spec.queue)),
        };
        Self {
            delay: Delay::new(
                spec.delay_ns,
                (spec.impairments.jitter.is_some_and(|j| j.reorder), impair.may_overtake()),
                capacity,
            ),
            impair: Box::new(impair),
            impaired,
            stage,
            line: match &spec.trace {
                Some(replay) => Line::of_trace(replay, spec.rate_bps, spec.overhead_bytes),
                None => Line::new(spec.rate_bps),
            },
            extra_bytes,
            in_service: None,
            wake_ns: u64::MAX,
            departed: VecDeque::with_capacity(capacity),
            marked: Vec::with_capacity(capacity),
            last_arrival_ns: 0,
            advanced_ns: 0,
            counts: Counts::default(),
            next_row_ns: if traced.is_some() { 0 } else { u64::MAX },
            traced,
        }
    }

    /// The trace begins at `at_ns`, which may be to come; one that begins with the first packet, with the first
    /// that arrives then or later.
    pub(crate) fn begin(&mut self, at_ns: u64) {
        let Some(traced) = &mut self.traced else { return };
        if let Some(begin_ns) = traced.arm(at_ns) {
            self.line.begin(begin_ns);
        }
        self.next_row_ns = traced.next_ns();
    }

    /// When the trace began or will begin; 0 if that is not known yet.
    pub(crate) fn trace_began_ns(&self) -> u64 {
        self.traced.as_ref().map_or(0, |traced| traced.began_ns())
    }

    /// A packet arrives at `at_ns`: applies the delay and loss of the trace.
    #[cold]
    fn follow_trace(&mut self, at_ns: u64) {
        let Some(traced) = &mut self.traced else { return };
        if let Some(begin_ns) = traced.arrival(at_ns) {
            self.line.begin(begin_ns);
        }
        let row = traced.row(at_ns);
        self.next_row_ns = traced.next_ns();
        if let Some((delay_ns, loss_ppm)) = row {
            self.set_delay(at_ns, delay_ns);
            self.set_loss(loss_ppm);
        }
    }

    /// A packet arrives at `packet.at_ns`.
    #[inline]
    pub(crate) fn arrive(&mut self, packet: Packet) -> Arrival {
        self.counts.arrived += 1;
        // Two packets of one batch may carry times in the wrong order when the wall clock is being slewed.
        self.last_arrival_ns = self.last_arrival_ns.max(packet.at_ns);
        let packet = Packet { at_ns: self.last_arrival_ns, ..packet };
        if packet.at_ns >= self.next_row_ns {
            self.follow_trace(packet.at_ns);
        }
        if !self.impaired {
            self.delay.enter(packet, 0, false);
            return Arrival::In;
        }
        let fate = self.impair.next();
        if fate.lost {
            self.counts.lost += 1;
            return Arrival::Lost;
        }
        let due_ns = self.delay.enter(packet, fate.jitter_ns, fate.at_once);
        if !fate.twice && fate.flip.is_none() {
            return Arrival::In;
        }
        self.counts.corrupted += u64::from(fate.flip.is_some());
        Arrival::Changed { flip: fate.flip, copy_due_ns: fate.twice.then_some(due_ns) }
    }

    /// The copy that [`Self::arrive`] asked for, with a slot of its own, right behind the original:
    /// `packet.at_ns` is the `copy_due_ns` that it returned.
    pub(crate) fn arrive_copy(&mut self, packet: Packet) {
        self.counts.duplicated += 1;
        self.delay.follow(packet);
    }

    /// Lets everything happen that happens until `now_ns`. Slots of packets that the queue dropped go to
    /// `freed`. Every packet that arrived before `now_ns` minus [`Self::least_delay_ns`] must have been given to [`Self::arrive`].
    pub(crate) fn advance(&mut self, now_ns: u64, freed: &mut Vec<u32>) {
        self.advanced_ns = self.advanced_ns.max(now_ns);
        loop {
            let serves_ns = if self.line.is_busy() { self.line.end_ns() } else { self.wake_ns };
            let enters_ns = self.delay.next_ns();
            let next_ns = serves_ns.min(enters_ns);
            if let Stage::Classes(classes) = &mut self.stage
                && let Some((at_ns, rate)) = self.line.next_step(next_ns.min(now_ns))
            {
                classes.set_rate(at_ns, rate.unwrap_or(u64::MAX));
                if !self.line.is_busy() {
                    self.serve(at_ns, freed);
                }
                continue;
            }
            if next_ns > now_ns {
                match &mut self.stage {
                    Stage::One(queue) => {
                        self.line.advance_to(now_ns);
                        queue.advance_to(now_ns);
                    }
                    Stage::Classes(classes) => classes.advance_to(now_ns),
                }
                return;
            }
            // At the same instant the line ends first and makes room.
            if serves_ns > enters_ns {
                if let Some(packet) = self.delay.pop() {
                    self.enter_queue(packet, freed);
                }
            } else if self.line.is_busy() {
                self.end_transmission(freed);
            } else {
                self.serve(serves_ns, freed);
            }
        }
    }

    /// When [`Self::advance`] has something to do next.
    pub(crate) fn next_event_ns(&self) -> u64 {
        let serves_ns = if self.line.is_busy() { self.line.end_ns() } else { self.wake_ns };
        serves_ns.min(self.delay.next_ns())
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
        if !self.line.is_busy() && self.line.is_unlimited(packet.at_ns) {
            // No rate, no queue: its limit is without meaning.
            self.start(packet.at_ns, packet);
            return;
        }
        let at_ns = packet.at_ns;
        match &mut self.stage {
            Stage::One(queue) => queue.enqueue(at_ns, packet, freed),
            Stage::Classes(classes) => classes.enqueue(at_ns, packet, freed),
        }
        if !self.line.is_busy() {
            self.serve(at_ns, freed);
        }
    }

    /// The line is idle and may take a packet.
    fn serve(&mut self, now_ns: u64, freed: &mut Vec<u32>) {
        let next = match &mut self.stage {
            Stage::One(queue) => queue.dequeue(now_ns, freed),
            Stage::Classes(classes) => match classes.dequeue(now_ns, freed) {
                Next::Packet(packet) => Some(packet),
                Next::At(wake_ns) => {
                    self.wake_ns = wake_ns;
                    return;
                }
            },
        };
        self.wake_ns = u64::MAX;
        if let Some(packet) = next {
            self.start(now_ns, packet);
        }
    }

    fn start(&mut self, now_ns: u64, packet: Packet) {
        self.line.start(now_ns, on_line(packet.bytes, self.extra_bytes));
        let waited_us =
            (now_ns.saturating_sub(packet.at_ns) / 1000).min(u64::from(u32::MAX)) as u32;
        self.in_service = Some(Packet { queued_ns: packet.at_ns, waited_us, ..packet });
    }

    /// From `at_ns` on the rate is another, and the classes' rates in proportion. What happened before is
    /// computed with the old one, unless it comes too late: then the change counts from the time up to which
    /// everything has happened.
    pub(crate) fn set_rate(&mut self, at_ns: u64, rate_bps: Option<u64>, freed: &mut Vec<u32>) {
        self.advance(at_ns, freed);
        self.line.set_rate(self.advanced_ns, rate_bps);
        if let (Stage::Classes(classes), Some(rate_bps)) = (&mut self.stage, rate_bps) {
            classes.set_rate(self.advanced_ns, rate_bps);
            if !self.line.is_busy() {
                self.serve(self.advanced_ns, freed);
            }
        }
    }

    /// Packets that arrive at `at_ns` or later are delayed by `delay_ns`. They stay in order: a shorter delay
    /// does not let them overtake those before, unless the link reorders.
    pub(crate) fn set_delay(&mut self, at_ns: u64, delay_ns: u64) {
        self.delay.set(at_ns, delay_ns);
    }

    /// From the next packet on, `loss_ppm` parts of a million are lost independently.
    pub(crate) fn set_loss(&mut self, loss_ppm: u32) {
        self.impair.set_loss(loss_ppm);
        self.impaired |= loss_ppm > 0;
    }

    /// The shortest delay that a packet arriving now may have.
    pub(crate) fn least_delay_ns(&self) -> u64 {
        let traced_ns = self.traced.as_ref().map_or(u64::MAX, |traced| traced.least_delay_ns());
        self.impair.least_delay_ns(self.delay.least_ns().min(traced_ns))
    }

    /// Whether a packet may be due before one that arrived earlier and is not in the queue yet.
    pub(crate) fn may_overtake(&self) -> bool {
        self.delay.may_overtake()
    }

    /// When the next packet is due, if no other arrives before, or a little earlier; `u64::MAX` if none is.
    pub(crate) fn next_due_ns(&self) -> u64 {
        if let Some(packet) = self.departed.front() {
            return packet.at_ns;
        }
        if self.line.is_busy() {
            return self.line.end_ns();
        }
        let entering = self.delay.next().map_or(u64::MAX, |packet| {
            self.line.would_end_ns(packet.at_ns, on_line(packet.bytes, self.extra_bytes))
        });
        // A step may let a class go that has to wait.
        let step_ns = if self.wake_ns == u64::MAX && self.backlog().0 == 0 {
            u64::MAX
        } else {
            self.line.next_step_ns()
        };
        entering.min(self.wake_ns).min(step_ns)
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

    /// The slot of a departed packet that is to be marked before it is sent; each is returned once.
    pub(crate) fn next_marked(&mut self) -> Option<u32> {
        self.marked.pop()
    }

    /// Packets and bytes in the queues (not in the delay, not on the line).
    pub(crate) fn backlog(&self) -> (u64, u64) {
        match &self.stage {
            Stage::One(queue) => queue.backlog(),
            Stage::Classes(classes) => classes.backlog(),
        }
    }

    /// The rate in bit/s; `None` is unlimited.
    pub(crate) fn rate_bps(&self) -> Option<u64> {
        self.line.rate_bps()
    }

    /// What the queues did together, and how they stand.
    pub(crate) fn queue_stats(&self) -> QueueStats {
        match &self.stage {
            Stage::One(queue) => queue.stats(self.advanced_ns),
            Stage::Classes(classes) => classes.stats(self.advanced_ns),
        }
    }

    /// What happened since the start.
    pub(crate) fn counts(&self) -> Counts {
        Counts { dropped: self.queue_stats().dropped(), ..self.counts }
    }

    #[cfg(test)]
    pub(crate) fn inside(&self) -> usize {
        let (queued, _) = self.backlog();
        self.delay.len() + queued as usize + usize::from(self.in_service.is_some())
    }
}

/// What a frame takes of the line.
pub(crate) fn on_line(frame_bytes: u32, extra_bytes: i32) -> u32 {
    frame_bytes.saturating_add_signed(extra_bytes).max(1)
}

#[cfg(test)]
mod tests;
