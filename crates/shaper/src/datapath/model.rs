//! Model of a link, without I/O: impairments, policer and delay, then held acknowledgements, the queue, the line. The model runs on the
//! virtual time of the packets: a thread that wakes late delays packets but does not change the result.

use std::collections::VecDeque;

use super::class_scheduler::{ClassScheduler, Dequeued, SchedulerParams};
use super::header::Ecn;
use super::impair::{Decision, Impair};
use super::line::Line;
use super::packet::{Packet, line_bytes};
use super::random::{Purpose, Random};
use super::tcp_header::TcpHeader;
use super::token_bucket::TokenBucket;
use crate::discipline::{AnyQueue, QueueParams, QueueStats, Setup};
use acks::Acks;
use delay::{Delay, Order};
use slots::Slots;
use traced::ArrivalTrace;

mod ack_filter;
mod acks;
mod delay;
mod slots;
mod spec;
mod traced;

pub(crate) use spec::LinkSpec;

/// Packet counters since the start.
/// `arrived + duplicated = lost + policed + dropped + acks_filtered + in the link + departed`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Offered to the link.
    pub(crate) arrived: u64,
    /// Dropped by random loss.
    pub(crate) lost: u64,
    /// Copies that entered the link.
    pub(crate) duplicated: u64,
    /// Packets selected for corruption.
    pub(crate) corrupted: u64,
    /// Dropped by the policer.
    pub(crate) policed: u64,
    /// Packets whose ECN field was rewritten, and those of them that had CE.
    pub(crate) ecn_rewritten: u64,
    pub(crate) ce_rewritten: u64,
    /// Acknowledgements that were held back, and those dropped because they were superseded.
    pub(crate) acks_held: u64,
    pub(crate) acks_filtered: u64,
    /// Slots in which packets left.
    pub(crate) slots: u64,
    /// Dropped by the queue.
    pub(crate) dropped: u64,
    /// Returned by [`LinkModel::pop_departed`].
    pub(crate) departed: u64,
}

/// Outcome of an arrival, on which the caller acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The packet is lost; its slot is free.
    Lost,
    /// The policer dropped it; its slot is free.
    Policed,
    /// The packet entered the link.
    Accepted,
    /// The packet entered the link. The caller must change its ECN field, copy it and corrupt it, in this order.
    Changed {
        /// Its new ECN field, which also applies to the copy.
        ecn: Option<Ecn>,
        /// The draw that selects the bit to flip.
        flip: Option<u64>,
        /// When the delay of the copy ends. Copy the bytes before corruption, and pass the copy to [`LinkModel::arrive_copy`].
        copy_due_ns: Option<u64>,
    },
}

/// The queue, or one per class.
#[derive(Debug)]
enum Stage {
    One(AnyQueue),
    Classes(Box<ClassScheduler>),
}

impl Stage {
    /// Packets and bytes in the queues.
    fn backlog(&self) -> (u64, u64) {
        match self {
            Self::One(queue) => queue.backlog(),
            Self::Classes(classes) => classes.backlog(),
        }
    }
}

/// State of a link.
#[derive(Debug)]
pub(crate) struct LinkModel {
    delay: Delay,
    impair: Box<Impair>,
    /// Whether any impairment or the policer is active.
    impaired: bool,
    policer: Option<Box<TokenBucket>>,
    acks: Option<Box<Acks>>,
    slots: Option<Box<Slots>>,
    stage: Stage,
    line: Line,
    /// Added to the size of each frame on the line.
    extra_bytes: i32,
    in_service: Option<Packet>,
    /// While the line is idle: when a class above its ceil may send, or a slot begins.
    wake_ns: u64,
    /// Their `at_ns` is when they left the line and are due.
    departed: VecDeque<Packet>,
    /// Slots of departed packets to be marked CE.
    marked: Vec<u32>,
    last_arrival_ns: u64,
    advanced_ns: u64,
    counts: Counts,
    traced: Option<Box<ArrivalTrace>>,
    /// From this arrival time on, the trace may change delay or loss.
    next_row_ns: u64,
}

impl LinkModel {
    /// Creates an empty link for slots below `capacity` and frames of at most `frame_bytes`. It never allocates while it holds at most
    /// `capacity` packets.
    pub(crate) fn new(spec: &LinkSpec, capacity: usize, frame_bytes: u32) -> Self {
        let impair = Impair::new(&spec.plan, spec.seed);
        let order = Order {
            jitter: spec.plan.jitter.is_some_and(|jitter| jitter.reorder),
            selected: impair.may_overtake(),
            switched: spec.plan.path_switch,
        };
        let queue = |index: u8, queue: &QueueParams| {
            let random = Random::new(spec.seed, Purpose::Queue(index));
            queue.build(Setup { capacity, frame_bytes, random })
        };
        let extra_bytes = spec.overhead_bytes().cast_signed() - super::ETHERNET_BYTES.cast_signed();
        let traced = spec.trace.as_ref().map(|replay| Box::new(ArrivalTrace::new(replay, spec)));
        let stage = match spec.rate_bps() {
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
            delay: Delay::new(spec.delay_ns(), order, capacity),
            impaired: impair.is_active() || spec.plan.policer.is_some(),
            impair: Box::new(impair),
            policer: spec.plan.policer.map(|policer| {
                let rate_bps = policer.rate.bits_per_sec();
                Box::new(TokenBucket::new(rate_bps, policer.burst.get()))
            }),
            acks: Acks::new(&spec.plan, capacity),
            slots: spec.plan.slot.map(|slot| Box::new(Slots::new(&slot, spec.seed))),
            stage,
            line: line_of(spec, frame_bytes, extra_bytes),
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

    /// Begins the trace at `at_ns`, which may be in the future, or, with `start = "first-packet"`, with the first packet that arrives at
    /// `at_ns` or later.
    pub(crate) fn begin(&mut self, at_ns: u64) {
        let Some(traced) = &mut self.traced else { return };
        if let Some(begin_ns) = traced.arm(at_ns) {
            self.line.begin(begin_ns);
        }
        self.next_row_ns = traced.next_ns();
    }

    /// Returns when the trace began or will begin; `None`: not known yet.
    pub(crate) fn trace_began_ns(&self) -> Option<u64> {
        self.traced.as_ref().and_then(|traced| traced.began_ns())
    }

    /// Applies the delay and loss of the trace to packets that arrive at `at_ns`.
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

    /// Returns whether [`Self::read_tcp`] must be called for each packet.
    pub(crate) fn reads_tcp(&self) -> bool {
        self.acks.is_some()
    }

    /// Takes the TCP header of the packet (or copy) that arrives next in this slot; `None`: it is not TCP.
    pub(crate) fn read_tcp(&mut self, slot: u32, tcp: Option<TcpHeader>) {
        if let Some(acks) = &mut self.acks {
            acks.read(slot, tcp);
        }
    }

    /// Lets a packet arrive at `packet.at_ns`.
    #[inline]
    pub(crate) fn arrive(&mut self, packet: Packet) -> Arrival {
        self.counts.arrived += 1;
        // While the wall clock is slewed, times within a batch may be out of order.
        self.last_arrival_ns = self.last_arrival_ns.max(packet.at_ns);
        let packet = Packet { at_ns: self.last_arrival_ns, ..packet };
        if packet.at_ns >= self.next_row_ns {
            self.follow_trace(packet.at_ns);
        }
        if !self.impaired {
            self.delay.enter(packet, &Decision::default());
            return Arrival::Accepted;
        }
        let decision = self.impair.decide(packet.at_ns, packet.ecn);
        if decision.lost {
            self.counts.lost += 1;
            return Arrival::Lost;
        }
        if let Some(policer) = &mut self.policer {
            let bytes = line_bytes(packet.bytes, self.extra_bytes);
            if !policer.conforms(packet.at_ns, bytes) {
                self.counts.policed += 1;
                return Arrival::Policed;
            }
        }
        let entering = Packet { ecn: decision.ecn.unwrap_or(packet.ecn), ..packet };
        let due_ns = self.delay.enter(entering, &decision);
        if !decision.duplicated && decision.flip.is_none() && decision.ecn.is_none() {
            return Arrival::Accepted;
        }
        self.counts.corrupted += u64::from(decision.flip.is_some());
        self.counts.ecn_rewritten += u64::from(decision.ecn.is_some());
        self.counts.ce_rewritten += u64::from(decision.ecn.is_some() && packet.ecn == Ecn::Ce);
        Arrival::Changed {
            ecn: decision.ecn,
            flip: decision.flip,
            copy_due_ns: decision.duplicated.then_some(due_ns),
        }
    }

    /// Adds the copy that [`Self::arrive`] requested, directly behind the original. The copy has its own slot; its `at_ns` is the returned
    /// `copy_due_ns`.
    pub(crate) fn arrive_copy(&mut self, packet: Packet) {
        self.counts.duplicated += 1;
        self.delay.push_copy(packet);
    }

    /// Processes all events until `now_ns`. Slots of packets that the queue dropped go to `freed`. The caller must have passed every packet
    /// that arrived before `now_ns` minus [`Self::min_delay_ns`] to [`Self::arrive`].
    pub(crate) fn advance(&mut self, now_ns: u64, freed: &mut Vec<u32>) {
        self.advanced_ns = self.advanced_ns.max(now_ns);
        loop {
            let serves_ns = if self.line.is_busy() { self.line.end_ns() } else { self.wake_ns };
            let enters_ns = self.delay.next_ns();
            let releases_ns = self.releases_ns();
            let next_ns = serves_ns.min(enters_ns).min(releases_ns);
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
            // At the same instant, the line ends its packet first, which makes room in the queue.
            if serves_ns > next_ns && releases_ns == next_ns {
                self.release_ack(releases_ns, freed);
            } else if serves_ns > next_ns {
                if let Some(packet) = self.delay.pop() {
                    self.end_delay(packet, freed);
                }
            } else if self.line.is_busy() {
                self.end_transmission(freed);
            } else {
                self.serve(serves_ns, freed);
            }
        }
    }

    /// Returns when [`Self::advance`] has something to do next if no packet arrives and nothing is set; `u64::MAX`: never.
    pub(crate) fn next_event_ns(&self) -> u64 {
        let serves_ns = if self.line.is_busy() {
            self.line.end_ns()
        } else {
            self.wake_ns.min(self.next_step_ns())
        };
        serves_ns.min(self.delay.next_ns()).min(self.releases_ns())
    }

    /// Returns when held acknowledgements are released; `u64::MAX`: none is held.
    fn releases_ns(&self) -> u64 {
        self.acks.as_ref().map_or(u64::MAX, |acks| acks.next_ns())
    }

    /// Returns a time before which no packet departs if none arrives; `u64::MAX`: never. Exact while a packet is transmitted.
    pub(crate) fn next_departure_ns(&self) -> u64 {
        if self.line.is_busy() { self.line.end_ns() } else { self.next_event_ns() }
    }

    /// Returns when a trace step may allow a class that waits at the idle line to send; `u64::MAX`: none waits.
    fn next_step_ns(&self) -> u64 {
        match &self.stage {
            Stage::Classes(classes) if classes.backlog().0 > 0 => self.line.next_step_ns(),
            Stage::Classes(_) | Stage::One(_) => u64::MAX,
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

    fn end_delay(&mut self, packet: Packet, freed: &mut Vec<u32>) {
        let entering = match &mut self.acks {
            Some(acks) => acks.end_delay(packet, freed),
            None => Some(packet),
        };
        if let Some(packet) = entering {
            self.enter_queue(packet, freed);
        }
    }

    /// Releases one acknowledgement at a time, so that an unlimited line takes it before the next one.
    fn release_ack(&mut self, now_ns: u64, freed: &mut Vec<u32>) {
        if let Some(acks) = &mut self.acks
            && let Some(packet) = acks.release(now_ns)
        {
            self.enter_queue(packet, freed);
        }
    }

    fn enter_queue(&mut self, packet: Packet, freed: &mut Vec<u32>) {
        let waits = self.line.is_busy() || self.slots.is_some();
        if !waits && self.line.is_unlimited(packet.at_ns) {
            // Without a rate no packet waits, so packets bypass the queue.
            self.start(packet.at_ns, packet);
            return;
        }
        let at_ns = packet.at_ns;
        if let Some(slots) = &mut self.slots
            && !self.line.is_busy()
            && self.wake_ns == u64::MAX
        {
            slots.skip(at_ns);
        }
        self.filter(&packet, freed);
        let before = freed.len();
        match &mut self.stage {
            Stage::One(queue) => queue.enqueue(at_ns, packet, freed),
            Stage::Classes(classes) => classes.enqueue(at_ns, packet, freed),
        }
        let dropped = &freed[before..];
        let is_refused = dropped.contains(&packet.slot);
        if let Some(acks) = &mut self.acks {
            acks.leave(dropped);
        }
        if let Some(slots) = &mut self.slots {
            slots.dequeued(dropped.len() as u64 - u64::from(is_refused), None);
        }
        if !self.line.is_busy() {
            self.serve(at_ns, freed);
        }
    }

    /// Drops the queued acknowledgement that a packet supersedes, before the packet enters: the packet takes its place under the queue's
    /// limit.
    fn filter(&mut self, packet: &Packet, freed: &mut Vec<u32>) {
        let (Some(acks), Stage::One(queue)) = (&mut self.acks, &mut self.stage) else { return };
        let superseded = acks.enter_queue(packet);
        let Some(removed) = superseded.and_then(|slot| queue.remove(slot, packet.flow)) else {
            return;
        };
        freed.push(removed.slot);
        if let Some(slots) = &mut self.slots {
            slots.removed(removed.at_ns);
        }
    }

    /// Starts to transmit the next packet on the idle line.
    fn serve(&mut self, now_ns: u64, freed: &mut Vec<u32>) {
        let mut queued = 0;
        if let Some(slots) = &mut self.slots {
            queued = self.stage.backlog().0;
            if let Err(wake_ns) = slots.open(now_ns, queued) {
                self.wake_ns = wake_ns;
                if let (Stage::One(queue), 0) = (&mut self.stage, queued) {
                    queue.found_empty(now_ns);
                }
                return;
            }
        }
        let before = freed.len();
        let (next, wake_ns) = match &mut self.stage {
            Stage::One(queue) => (queue.dequeue(now_ns, freed), u64::MAX),
            Stage::Classes(classes) => match classes.dequeue(now_ns, freed) {
                Dequeued::Packet(packet) => (Some(packet), u64::MAX),
                Dequeued::At(wake_ns) => (None, wake_ns),
            },
        };
        self.wake_ns = wake_ns;
        if let Some(acks) = &mut self.acks {
            acks.leave(&freed[before..]);
            acks.leave(next.as_ref().map(|packet| packet.slot).as_slice());
        }
        if let Some(slots) = &mut self.slots {
            let gone = queued - self.stage.backlog().0;
            slots.dequeued(gone, next.map(|packet| packet.bytes));
        }
        if let Some(packet) = next {
            self.start(now_ns, packet);
        }
    }

    fn start(&mut self, now_ns: u64, packet: Packet) {
        self.line.start(now_ns, line_bytes(packet.bytes, self.extra_bytes));
        let waited_us =
            (now_ns.saturating_sub(packet.at_ns) / 1000).min(u64::from(u32::MAX)) as u32;
        self.in_service = Some(Packet { queued_ns: packet.at_ns, waited_us, ..packet });
    }

    /// Changes the rate from `at_ns` on, and the rates of the classes in proportion. If events after `at_ns` have already been processed,
    /// the change applies from the last processed time on.
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

    /// Changes the parameters of the link's own queue at `at_ns`, or at the last processed time if that is later.
    pub(crate) fn set_queue(&mut self, at_ns: u64, params: QueueParams, freed: &mut Vec<u32>) {
        self.advance(at_ns, freed);
        let before = freed.len();
        match &mut self.stage {
            Stage::One(queue) => queue.set_params(params, freed),
            Stage::Classes(classes) => classes.set_queue(params, freed),
        }
        let dropped = &freed[before..];
        if let Some(acks) = &mut self.acks {
            acks.leave(dropped);
        }
        if let Some(slots) = &mut self.slots {
            slots.dequeued(dropped.len() as u64, None);
        }
    }

    /// Sets the delay of packets that arrive at `at_ns` or later. A shorter delay does not reorder packets unless the link has reordering
    /// or `path_switch`.
    pub(crate) fn set_delay(&mut self, at_ns: u64, delay_ns: u64) {
        self.delay.set(at_ns, delay_ns);
    }

    /// Sets the independent loss from the next packet on, parts per million.
    pub(crate) fn set_loss(&mut self, loss_ppm: u32) {
        self.impair.set_loss(loss_ppm);
        self.impaired |= loss_ppm > 0;
    }

    /// Returns the shortest possible delay of a packet that arrives now.
    pub(crate) fn min_delay_ns(&self) -> u64 {
        let traced_ns = self.traced.as_ref().map_or(u64::MAX, |traced| traced.min_delay_ns());
        self.impair.min_delay_ns(self.delay.constant_ns().min(traced_ns))
    }

    /// Returns whether a packet may overtake an earlier one in front of the queue.
    pub(crate) fn may_overtake(&self) -> bool {
        self.delay.may_overtake() || self.acks.as_ref().is_some_and(|acks| acks.may_hold())
    }

    /// Returns when the next packet is due, or slightly earlier, if no other arrives before; `u64::MAX`: no packet.
    pub(crate) fn next_due_ns(&self) -> u64 {
        if let Some(packet) = self.departed.front() {
            return packet.at_ns;
        }
        if self.line.is_busy() {
            return self.line.end_ns();
        }
        let entering = self.delay.next().map_or(u64::MAX, |packet| {
            self.line.would_end_ns(packet.at_ns, line_bytes(packet.bytes, self.extra_bytes))
        });
        entering.min(self.releases_ns()).min(self.wake_ns).min(self.next_step_ns())
    }

    /// Returns the departed packets in order. Their `at_ns` is when each was due.
    pub(crate) fn peek_departed(&self, skip: usize) -> Option<Packet> {
        self.departed.get(skip).copied()
    }

    /// Removes the first departed packet.
    pub(crate) fn pop_departed(&mut self) -> Option<Packet> {
        let packet = self.departed.pop_front()?;
        if self.departed.is_empty() {
            // Restart at the beginning of the buffer: it is in the cache.
            self.departed.clear();
        }
        self.counts.departed += 1;
        Some(packet)
    }

    /// Returns the slot of a departed packet that must be marked CE before it is sent. Returns each slot once.
    pub(crate) fn next_marked(&mut self) -> Option<u32> {
        self.marked.pop()
    }

    /// Packets and bytes in the queues (not in the delay, not on the line).
    pub(crate) fn backlog(&self) -> (u64, u64) {
        self.stage.backlog()
    }

    /// Returns the time without a packet on the line, from zero of the clock until the last processed time; for differences.
    pub(crate) fn idle_ns(&self) -> u64 {
        self.line.idle_ns(self.advanced_ns)
    }

    /// Returns the rate in bit/s; `None`: unlimited.
    pub(crate) fn rate_bps(&self) -> Option<u64> {
        self.line.rate_bps()
    }

    /// Counters and state of all queues.
    pub(crate) fn queue_stats(&self) -> QueueStats {
        match &self.stage {
            Stage::One(queue) => queue.stats(self.advanced_ns),
            Stage::Classes(classes) => classes.stats(self.advanced_ns),
        }
    }

    /// Counters since the start.
    pub(crate) fn counts(&self) -> Counts {
        let dropped = self.queue_stats().dropped();
        let (acks_held, acks_filtered) = self.acks.as_ref().map_or((0, 0), |acks| acks.counts());
        let slots = self.slots.as_ref().map_or(0, |slots| slots.used());
        Counts { dropped, acks_held, acks_filtered, slots, ..self.counts }
    }

    #[cfg(test)]
    pub(crate) fn packets_inside(&self) -> usize {
        let (queued, _) = self.backlog();
        let held = self.acks.as_ref().map_or(0, |acks| acks.held());
        self.delay.len() + (held + queued) as usize + usize::from(self.in_service.is_some())
    }
}

fn line_of(spec: &LinkSpec, frame_bytes: u32, extra_bytes: i32) -> Line {
    match (&spec.trace, spec.rate_bps(), &spec.plan.tbf) {
        (Some(replay), rate_bps, _) => Line::from_trace(replay, rate_bps, spec.overhead_bytes()),
        (None, Some(rate_bps), Some(tbf)) => {
            Line::from_tbf(rate_bps, tbf, frame_bytes, extra_bytes)
        }
        (None, rate_bps, _) => Line::new(rate_bps),
    }
}

#[cfg(test)]
mod element_tests;
#[cfg(test)]
mod tests;
