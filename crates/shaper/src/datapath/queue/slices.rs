//! Slices of a link's rate, as HTB does it with one level of classes, on virtual time: first what is
//! guaranteed, then borrowing up to each slice's ceiling; within both by priority, and among equals in turns
//! weighted by rate. It never idles while a slice below its ceiling has packets.

use super::{Discipline, QueueStats};
use crate::datapath::classes::ClassSpec;
use crate::datapath::model::on_line;
use crate::datapath::packet::Packet;

/// Buckets are counted in bit·ns/s, so that a rate in bit/s adds itself in every nanosecond: no rounding.
const WORK_PER_BYTE: i64 = 8 * 1_000_000_000;
/// Turns are counted in parts of a byte, so that a slice of a millionth of the rate has its turn too.
const TURN_PER_BYTE: i64 = 1 << 20;
/// The least share of the link that what no class matches is guaranteed, in parts.
const REMAINDER_PARTS: u64 = 100;

/// What all slices share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlicesSpec {
    /// The link's rate at the beginning, bit/s: what the slices' rates are shares of.
    pub(crate) rate_bps: u64,
    /// The largest frame.
    pub(crate) frame_bytes: u32,
    /// Added to a frame's bytes on the line.
    pub(crate) extra_bytes: i32,
}

/// What is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// This packet, now.
    Packet(Packet),
    /// Nothing before then; `u64::MAX` when all queues are empty.
    At(u64),
}

/// A bucket that fills at a rate and may be overdrawn by one packet.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    /// At the link's rate at the beginning, and now.
    base_bps: u64,
    rate_bps: u64,
    level: i64,
    most: i64,
    seen_ns: u64,
}

#[derive(Debug)]
struct Slice {
    queue: Discipline,
    priority: u8,
    guaranteed: Bucket,
    /// `None`: it may have all of the link.
    ceiling: Option<Bucket>,
    /// What it may still send in its turn, when guaranteed and when borrowing.
    turn: [i64; 2],
    /// What a turn adds.
    quantum: i64,
}

/// All slices; 0 is for what no class matches.
#[derive(Debug)]
pub(crate) struct Slices {
    spec: SlicesSpec,
    slices: Vec<Slice>,
    /// Ranges of `order` that have the same priority, the first served first, and for each of the two ways of
    /// sending, which of the range is next.
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
        // What it misses while all others have their turns must not be lost: its share of that many frames.
        let share = u128::from(base_bps.min(link_bps)) * u128::from(2 * frames)
            / u128::from(link_bps.max(1));
        let most = (share as i64 + 2) * i64::from(frame_bytes) * WORK_PER_BYTE;
        Self { base_bps, rate_bps: base_bps, level: most, most, seen_ns: 0 }
    }

    fn fill(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.seen_ns);
        let earned = self.rate_bps.saturating_mul(passed_ns).min(i64::MAX as u64).cast_signed();
        self.level = self.level.saturating_add(earned).min(self.most);
        self.seen_ns = self.seen_ns.max(now_ns);
    }

    fn charge(&mut self, bytes: u32) {
        self.level -= i64::from(bytes) * WORK_PER_BYTE;
    }

    fn allows(&self) -> bool {
        self.level >= 0
    }

    /// When it will allow a packet, counted from the last [`Self::fill`].
    fn ready_ns(&self) -> u64 {
        if self.allows() {
            return self.seen_ns;
        }
        match self.rate_bps {
            0 => u64::MAX,
            rate => self.seen_ns.saturating_add(self.level.unsigned_abs().div_ceil(rate)),
        }
    }

    fn scale(&mut self, link_bps: u64, now_bps: u64) {
        let scaled = u128::from(self.base_bps) * u128::from(now_bps) / u128::from(link_bps.max(1));
        self.rate_bps = u64::try_from(scaled).unwrap_or(u64::MAX);
    }
}

impl Slices {
    /// Slices with their queues, the first of which is for what no class matches: it is guaranteed what the
    /// others leave, at least a hundredth, and may borrow all.
    pub(crate) fn new<'a>(
        spec: SlicesSpec,
        slices: impl Iterator<Item = (Option<&'a ClassSpec>, Discipline)>,
    ) -> Self {
        let slices: Vec<(Option<&ClassSpec>, Discipline)> = slices.collect();
        let promised: u64 =
            slices.iter().filter_map(|(class, _)| *class).map(|class| class.rate_bps).sum();
        let link_bps = spec.rate_bps.max(1);
        let left_bps = link_bps.saturating_sub(promised).max(link_bps / REMAINDER_PARTS).max(1);
        let rate =
            |class: &Option<&ClassSpec>| class.map_or(left_bps, |class| class.rate_bps.max(1));
        let fastest = slices.iter().map(|(class, _)| rate(class)).max().unwrap_or(1);
        let frames = slices.len() as u64;
        let made = slices.into_iter().map(|(class, queue)| {
            let rate_bps = rate(&class);
            let ceil_bps = class.map_or(link_bps, |class| class.ceil_bps.max(class.rate_bps));
            let bucket = |bps| Bucket::new(bps, link_bps, frames, spec.frame_bytes);
            let turn = i128::from(spec.frame_bytes) * i128::from(TURN_PER_BYTE);
            Slice {
                queue,
                priority: class.map_or(0, |class| class.priority),
                guaranteed: bucket(rate_bps),
                ceiling: (ceil_bps < link_bps).then(|| bucket(ceil_bps)),
                turn: [0; 2],
                quantum: (turn * i128::from(rate_bps) / i128::from(fastest)).max(1) as i64,
            }
        });
        let slices: Vec<Slice> = made.collect();
        let mut order: Vec<u8> = (0..=u8::MAX).take(slices.len()).collect();
        order.sort_by_key(|&index| slices[usize::from(index)].priority);
        let same =
            |a: &u8, b: &u8| slices[usize::from(*a)].priority == slices[usize::from(*b)].priority;
        let mut start = 0;
        let groups = order.chunk_by(same).map(|group| {
            let end = start + group.len();
            let made = Group { start, end, next: [start; 2] };
            start = end;
            made
        });
        let groups = groups.collect();
        Self { spec, slices, groups, order }
    }

    pub(crate) fn enqueue(&mut self, now_ns: u64, packet: Packet, dropped: &mut Vec<u32>) {
        let index = usize::from(packet.class);
        let index = if index < self.slices.len() { index } else { 0 };
        self.slices[index].queue.enqueue(now_ns, packet, dropped);
    }

    pub(crate) fn dequeue(&mut self, now_ns: u64, dropped: &mut Vec<u32>) -> Next {
        for slice in &mut self.slices {
            slice.guaranteed.fill(now_ns);
            if let Some(ceiling) = &mut slice.ceiling {
                ceiling.fill(now_ns);
            }
        }
        while let Some((index, way, group)) = self.pick() {
            let slice = &mut self.slices[index];
            // An AQM may drop all that is left.
            let Some(packet) = slice.queue.dequeue(now_ns, dropped) else { continue };
            let bytes = on_line(packet.bytes, self.spec.extra_bytes);
            if way == GUARANTEED {
                slice.guaranteed.charge(bytes);
            }
            if let Some(ceiling) = &mut slice.ceiling {
                ceiling.charge(bytes);
            }
            slice.turn[way] -= i64::from(bytes) * TURN_PER_BYTE;
            let over = slice.turn[way] <= 0;
            if slice.queue.backlog().0 == 0 {
                slice.turn = slice.turn.map(|turn| turn.min(0));
            }
            if over {
                self.pass_turn(group, way, index);
            }
            return Next::Packet(packet);
        }
        let waiting = self.slices.iter().filter(|slice| slice.queue.backlog().0 > 0);
        let ready = waiting.filter_map(|slice| slice.ceiling.map(|ceiling| ceiling.ready_ns()));
        Next::At(ready.min().unwrap_or(u64::MAX))
    }

    /// The slice to send from, how, and the group it is in.
    fn pick(&mut self) -> Option<(usize, usize, usize)> {
        for way in [GUARANTEED, BORROWED] {
            for group in 0..self.groups.len() {
                if let Some(index) = self.pick_in(group, way) {
                    return Some((index, way, group));
                }
            }
        }
        None
    }

    fn pick_in(&mut self, group: usize, way: usize) -> Option<usize> {
        let Group { start, end, next } = self.groups[group];
        let circle = (next[way]..end).chain(start..next[way]);
        let mut rounds = i64::MAX;
        let mut first = None;
        for place in circle.clone() {
            let index = usize::from(self.order[place]);
            let slice = &self.slices[index];
            if !slice.may_send(way) {
                continue;
            }
            if slice.turn[way] > 0 {
                return Some(index);
            }
            let needed = slice.turn[way].unsigned_abs() / slice.quantum.unsigned_abs() + 1;
            if needed.cast_signed() < rounds {
                rounds = needed.cast_signed();
                first = Some(index);
            }
        }
        // All have used up their turns: as many rounds pass as give one of them a new one.
        for place in circle {
            let slice = &mut self.slices[usize::from(self.order[place])];
            if slice.may_send(way) {
                slice.turn[way] += rounds * slice.quantum;
            }
        }
        first
    }

    /// The turn of the slice `index` is over.
    fn pass_turn(&mut self, group: usize, way: usize, index: usize) {
        let Group { start, end, ref mut next } = self.groups[group];
        let place = (start..end).find(|&place| usize::from(self.order[place]) == index);
        next[way] = match place {
            Some(place) if place + 1 < end => place + 1,
            _ => start,
        };
    }

    /// From `now_ns` on the link has this rate, and every slice its share of it.
    pub(crate) fn set_rate(&mut self, now_ns: u64, rate_bps: u64) {
        let link_bps = self.spec.rate_bps;
        for slice in &mut self.slices {
            let buckets = [Some(&mut slice.guaranteed), slice.ceiling.as_mut()];
            for bucket in buckets.into_iter().flatten() {
                bucket.fill(now_ns);
                bucket.scale(link_bps, rate_bps);
            }
        }
    }

    /// It is `now_ns`, and everything before has been told.
    pub(crate) fn pass_time(&mut self, now_ns: u64) {
        for slice in &mut self.slices {
            slice.queue.pass_time(now_ns);
        }
    }

    /// Packets and bytes waiting.
    pub(crate) fn backlog(&self) -> (u64, u64) {
        self.slices
            .iter()
            .map(|slice| slice.queue.backlog())
            .fold((0, 0), |(packets, bytes), one| (packets + one.0, bytes + one.1))
    }

    /// What all queues did until `now_ns`.
    pub(crate) fn stats(&self, now_ns: u64) -> QueueStats {
        let mut all = QueueStats::default();
        for slice in &self.slices {
            all.add(&slice.queue.stats(now_ns));
        }
        all
    }
}

/// The two ways of sending.
const GUARANTEED: usize = 0;
const BORROWED: usize = 1;

impl Slice {
    fn may_send(&self, way: usize) -> bool {
        let below_ceiling = self.ceiling.is_none_or(|ceiling| ceiling.allows());
        below_ceiling && (way == BORROWED || self.guaranteed.allows()) && self.queue.backlog().0 > 0
    }
}

#[cfg(test)]
mod tests;
