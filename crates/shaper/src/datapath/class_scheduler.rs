//! Classes of a link, like HTB (`net/sched/sch_htb.c`) with one level of classes. Each class is guaranteed its rate and borrows up to its
//! ceil. The scheduler serves classes by mode (`CAN_SEND`, then `MAY_BORROW`), then by priority, and within a priority in deficit round
//! robin weighted by rate.
//!
//! Differences from the kernel: tokens are refilled at each dequeue, not by a timer, so the link never idles while a class below its ceil
//! has packets. The quantum is proportional to the rate and unbounded. The clock is the virtual time of the packets.

use super::classes::ClassSpec;
use super::packet::{Packet, line_bytes};
use crate::discipline::{AnyQueue, QueueParams, QueueStats};

/// Tokens are bit·ns/s: a rate of `r` bit/s adds `r` tokens per nanosecond, without rounding.
const TOKENS_PER_BYTE: i64 = 8 * 1_000_000_000;
/// Deficits are fractions of a byte, so that a class with a millionth of the rate has a quantum above zero.
const DEFICIT_PER_BYTE: i64 = 1 << 20;
/// The default class is guaranteed at least the link's rate divided by this.
const MIN_DEFAULT_DIVISOR: u64 = 100;

/// Parameters that all classes share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SchedulerParams {
    /// The link's initial rate, bit/s. The rates of the classes are relative to it.
    pub(crate) rate_bps: u64,
    /// The largest frame.
    pub(crate) frame_bytes: u32,
    /// Overhead added to each frame.
    pub(crate) extra_bytes: i32,
}

/// Result of a dequeue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dequeued {
    /// Transmit this packet.
    Packet(Packet),
    /// No packet may leave before this time; `u64::MAX` when all queues are empty.
    At(u64),
}

/// A token bucket that one packet may overdraw.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    /// Its rate when the link has its initial rate.
    base_bps: u64,
    /// Its rate at the link's current rate.
    rate_bps: u64,
    tokens: i64,
    max_tokens: i64,
    filled_ns: u64,
}

#[derive(Debug)]
struct Class {
    queue: AnyQueue,
    /// Whether a packet has arrived since the queue was last found empty.
    had_packets: bool,
    priority: u8,
    tokens: Bucket,
    /// `None`: the rate of the link.
    ctokens: Option<Bucket>,
    /// One deficit per mode.
    deficits: [i64; 2],
    /// Added to a deficit in each round.
    quantum: i64,
}

/// All classes. Class 0 is the default class, for packets that no class matches.
#[derive(Debug)]
pub(crate) struct ClassScheduler {
    params: SchedulerParams,
    classes: Vec<Class>,
    /// Ranges of `order` with the same priority, highest first. Each has the next class to serve, per mode.
    groups: Vec<Group>,
    order: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Group {
    start: usize,
    end: usize,
    next: [usize; 2],
}

impl Bucket {
    fn new(base_bps: u64, link_bps: u64, frames: u64, frame_bytes: u32) -> Self {
        // Enough tokens for the time in which all other classes send their frames before this one, so that none are lost meanwhile.
        let share = u128::from(base_bps.min(link_bps)) * u128::from(2 * frames)
            / u128::from(link_bps.max(1));
        let max_tokens = (share as i64 + 2) * i64::from(frame_bytes) * TOKENS_PER_BYTE;
        Self { base_bps, rate_bps: base_bps, tokens: max_tokens, max_tokens, filled_ns: 0 }
    }

    fn fill(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.filled_ns);
        let earned = self.rate_bps.saturating_mul(passed_ns).min(i64::MAX as u64).cast_signed();
        self.tokens = self.tokens.saturating_add(earned).min(self.max_tokens);
        self.filled_ns = self.filled_ns.max(now_ns);
    }

    fn charge(&mut self, bytes: u32) {
        self.tokens -= i64::from(bytes) * TOKENS_PER_BYTE;
    }

    fn allows(&self) -> bool {
        self.tokens >= 0
    }

    /// When the bucket allows the next packet, as of the last [`Self::fill`].
    fn ready_ns(&self) -> u64 {
        if self.allows() {
            return self.filled_ns;
        }
        match self.rate_bps {
            0 => u64::MAX,
            rate => self.filled_ns.saturating_add(self.tokens.unsigned_abs().div_ceil(rate)),
        }
    }

    fn scale(&mut self, link_bps: u64, now_bps: u64) {
        let scaled = u128::from(self.base_bps) * u128::from(now_bps) / u128::from(link_bps.max(1));
        self.rate_bps = u64::try_from(scaled).unwrap_or(u64::MAX);
    }
}

impl ClassScheduler {
    /// Creates the classes with their queues. The first is the default class. Its guaranteed rate is the remainder of the link's rate, at
    /// least a hundredth, and its ceil is the whole rate.
    pub(crate) fn new<'a>(
        params: SchedulerParams,
        classes: impl Iterator<Item = (Option<&'a ClassSpec>, AnyQueue)>,
    ) -> Self {
        let classes: Vec<(Option<&ClassSpec>, AnyQueue)> = classes.collect();
        let guaranteed_bps: u64 =
            classes.iter().filter_map(|(class, _)| *class).map(ClassSpec::rate_bps).sum();
        let link_bps = params.rate_bps.max(1);
        let default_bps =
            link_bps.saturating_sub(guaranteed_bps).max(link_bps / MIN_DEFAULT_DIVISOR).max(1);
        let rate =
            |class: &Option<&ClassSpec>| class.map_or(default_bps, |class| class.rate_bps().max(1));
        let fastest = classes.iter().map(|(class, _)| rate(class)).max().unwrap_or(1);
        let frames = classes.len() as u64;
        let made = classes.into_iter().map(|(class, queue)| {
            let rate_bps = rate(&class);
            let ceil_bps = class.map_or(link_bps, |class| class.ceil_bps().max(class.rate_bps()));
            let bucket = |bps| Bucket::new(bps, link_bps, frames, params.frame_bytes);
            let frame = i128::from(params.frame_bytes) * i128::from(DEFICIT_PER_BYTE);
            Class {
                queue,
                had_packets: false,
                priority: class.and_then(|class| class.plan.priority).unwrap_or_default(),
                tokens: bucket(rate_bps),
                ctokens: (ceil_bps < link_bps).then(|| bucket(ceil_bps)),
                deficits: [0; 2],
                quantum: (frame * i128::from(rate_bps) / i128::from(fastest)).max(1) as i64,
            }
        });
        let classes: Vec<Class> = made.collect();
        let mut order: Vec<u8> = (0..=u8::MAX).take(classes.len()).collect();
        order.sort_by_key(|&index| classes[usize::from(index)].priority);
        let same =
            |a: &u8, b: &u8| classes[usize::from(*a)].priority == classes[usize::from(*b)].priority;
        let mut start = 0;
        let groups = order.chunk_by(same).map(|group| {
            let end = start + group.len();
            let made = Group { start, end, next: [start; 2] };
            start = end;
            made
        });
        let groups = groups.collect();
        Self { params, classes, groups, order }
    }

    pub(crate) fn enqueue(&mut self, now_ns: u64, packet: Packet, dropped: &mut Vec<u32>) {
        let index = usize::from(packet.class);
        let index = if index < self.classes.len() { index } else { 0 };
        let class = &mut self.classes[index];
        class.queue.enqueue(now_ns, packet, dropped);
        class.had_packets = true;
    }

    pub(crate) fn dequeue(&mut self, now_ns: u64, dropped: &mut Vec<u32>) -> Dequeued {
        for class in &mut self.classes {
            class.tokens.fill(now_ns);
            if let Some(ctokens) = &mut class.ctokens {
                ctokens.fill(now_ns);
            }
            if class.had_packets && class.queue.backlog().0 == 0 {
                class.queue.found_empty(now_ns);
                class.had_packets = false;
            }
        }
        while let Some((index, mode, group)) = self.pick() {
            let class = &mut self.classes[index];
            // The AQM may drop all remaining packets.
            let Some(packet) = class.queue.dequeue(now_ns, dropped) else { continue };
            let bytes = line_bytes(packet.bytes, self.params.extra_bytes);
            if mode == CAN_SEND {
                class.tokens.charge(bytes);
            }
            if let Some(ctokens) = &mut class.ctokens {
                ctokens.charge(bytes);
            }
            class.deficits[mode] -= i64::from(bytes) * DEFICIT_PER_BYTE;
            let over = class.deficits[mode] <= 0;
            if class.queue.backlog().0 == 0 {
                class.deficits = class.deficits.map(|deficit| deficit.min(0));
            }
            if over {
                self.next_class(group, mode, index);
            }
            return Dequeued::Packet(packet);
        }
        let waiting = self.classes.iter().filter(|class| class.queue.backlog().0 > 0);
        let ready = waiting.filter_map(|class| class.ctokens.map(|ctokens| ctokens.ready_ns()));
        Dequeued::At(ready.min().unwrap_or(u64::MAX))
    }

    /// Selects the class to send from; returns its index, mode and group.
    fn pick(&mut self) -> Option<(usize, usize, usize)> {
        for mode in [CAN_SEND, MAY_BORROW] {
            for group in 0..self.groups.len() {
                if let Some(index) = self.pick_in(group, mode) {
                    return Some((index, mode, group));
                }
            }
        }
        None
    }

    fn pick_in(&mut self, group: usize, mode: usize) -> Option<usize> {
        let Group { start, end, next } = self.groups[group];
        let circle = (next[mode]..end).chain(start..next[mode]);
        let mut rounds = i64::MAX;
        let mut first = None;
        for place in circle.clone() {
            let index = usize::from(self.order[place]);
            let class = &self.classes[index];
            if !class.may_send(mode) {
                continue;
            }
            if class.deficits[mode] > 0 {
                return Some(index);
            }
            let needed = class.deficits[mode].unsigned_abs() / class.quantum.unsigned_abs() + 1;
            if needed.cast_signed() < rounds {
                rounds = needed.cast_signed();
                first = Some(index);
            }
        }
        // No deficit is positive: skip the rounds until one would be.
        for place in circle {
            let class = &mut self.classes[usize::from(self.order[place])];
            if class.may_send(mode) {
                class.deficits[mode] += rounds * class.quantum;
            }
        }
        first
    }

    /// Advances the round robin past class `index`, whose deficit is used up.
    fn next_class(&mut self, group: usize, mode: usize, index: usize) {
        let Group { start, end, ref mut next } = self.groups[group];
        let place = (start..end).find(|&place| usize::from(self.order[place]) == index);
        next[mode] = match place {
            Some(place) if place + 1 < end => place + 1,
            _ => start,
        };
    }

    /// Sets the link's rate from `now_ns` on; each class keeps its share.
    pub(crate) fn set_rate(&mut self, now_ns: u64, rate_bps: u64) {
        let link_bps = self.params.rate_bps;
        for class in &mut self.classes {
            let buckets = [Some(&mut class.tokens), class.ctokens.as_mut()];
            for bucket in buckets.into_iter().flatten() {
                bucket.fill(now_ns);
                bucket.scale(link_bps, rate_bps);
            }
        }
    }

    /// Changes the parameters of the default class's queue.
    pub(crate) fn set_queue(&mut self, params: QueueParams, dropped: &mut Vec<u32>) {
        if let Some(class) = self.classes.first_mut() {
            class.queue.set_params(params, dropped);
        }
    }

    /// Runs the queues' timers that expire by `now_ns`.
    pub(crate) fn advance_to(&mut self, now_ns: u64) {
        for class in &mut self.classes {
            class.queue.advance_to(now_ns);
        }
    }

    /// Queued packets and bytes.
    pub(crate) fn backlog(&self) -> (u64, u64) {
        self.classes
            .iter()
            .map(|class| class.queue.backlog())
            .fold((0, 0), |(packets, bytes), one| (packets + one.0, bytes + one.1))
    }

    /// Counters and state of all queues at `now_ns`.
    pub(crate) fn stats(&self, now_ns: u64) -> QueueStats {
        let mut all = QueueStats::default();
        for class in &self.classes {
            all.add(&class.queue.stats(now_ns));
        }
        all
    }
}

/// The class is within its guaranteed rate.
const CAN_SEND: usize = 0;
/// The class is above its guaranteed rate and uses tokens of the link.
const MAY_BORROW: usize = 1;

impl Class {
    fn may_send(&self, mode: usize) -> bool {
        let below_ceiling = self.ctokens.is_none_or(|ctokens| ctokens.allows());
        below_ceiling && (mode == MAY_BORROW || self.tokens.allows()) && self.queue.backlog().0 > 0
    }
}

#[cfg(test)]
mod tests;
