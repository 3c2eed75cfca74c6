//! The packet loop of a userspace link, on a thread of its own: read what arrived, let the [`model`]
//! compute when it is due, release what is due. After [`Datapath::new`] it allocates nothing, takes no lock and
//! logs nothing; it is spoken to through [`Shared`] and an eventfd.
//!
//! ```text
//! recvmmsg → cut to MTU frames → loss → delay → queue → line → sendmmsg
//!            └── kernel's receive time ──┘ └ virtual time ┘    └ real time; the difference is the lateness
//! ```

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::clock::{monotonic_ns, real_minus_monotonic_ns};
use crate::sys::{RxBatch, TxBatch};
use classes::Matcher;
use model::Arrival;
use packet::{Arena, Packet};
use segment::Frames;
use thread::Class;
use vnet::{TAG_BYTES, VNET_BYTES, put_tag};

pub(crate) mod classes;
pub(crate) mod duty;
pub(crate) mod header;
pub(crate) mod impair;
pub(crate) mod join;
pub(crate) mod line;
pub(crate) mod loss;
pub(crate) mod model;
pub(crate) mod packet;
pub(crate) mod queue;
pub(crate) mod random;
pub(crate) mod segment;
pub(crate) mod shared;
pub(crate) mod thread;
pub(crate) mod vnet;

pub(crate) use model::{LinkModel, LinkSpec};
pub(crate) use queue::{FifoLimit, QueueSpec};
pub(crate) use shared::{Counters, Shared};
pub(crate) use thread::Privileges;

/// Super-packets read with one system call. A full one costs about 10 µs to cut, during which nothing leaves.
const RX_PACKETS: usize = 8;
/// The largest super-packet: an IP packet of 64 KiB, its Ethernet header with a VLAN tag, the vnet header.
const RX_PACKET_BYTES: usize = VNET_BYTES + 18 + 65_536;
/// Frames sent with one system call.
const TX_PACKETS: usize = 64;
/// The sleep ends this long before the next packet is due; the rest is spun.
const SPIN_NS: u64 = 40_000;
/// Share of the time that may be spun, in percent: a thread that always spins starves the softirqs that feed it.
const SPIN_DUTY_PERCENT: u64 = 80;
/// Spinning that may be saved up for: by an ordinary thread, which others of its processor interrupt, and by
/// a real-time one, which they must wait for.
const SPIN_CREDIT_NS: u64 = 5_000_000;
const REAL_TIME_SPIN_CREDIT_NS: u64 = 500_000;
/// The kernel may be late by a thousandth of a sleep, so longer ones are cut in two.
const LONG_SLEEP_NS: u64 = 10_000_000;
/// A packet due within this time is waited for without looking at new arrivals: they cannot be due before it.
const DEAF_NS: u64 = 500_000;
/// Pause before a packet that the device refused is offered again, and how often that is done.
const REFUSED_NS: u64 = 50_000;
const REFUSALS: u32 = 3;
/// How long nothing is joined after the device refused a joined packet.
const UNJOINED_NS: u64 = 1_000_000_000;
/// Released later than this is counted as late.
const LATE_NS: u64 = 1_000_000;

/// Room for at least this many frames, whatever the queue: what a sender may burst into the delay.
const LEAST_SLOTS: u64 = 16_384;
/// The memory of one link at most. Pages are touched only as they are needed.
const MEMORY_CAP_BYTES: u64 = 512 << 20;
/// Header of an Ethernet frame.
const ETHERNET_BYTES: u32 = 14;
/// The smallest Ethernet frame, to turn bytes into a number of frames.
const LEAST_FRAME_BYTES: u64 = 60;
/// Taken for the rate of an unshaped link when its memory is sized.
const UNSHAPED_BPS: u64 = 10_000_000_000;

/// The two ends of the packet path.
pub(crate) struct Ends {
    /// Packet socket that reads what was redirected.
    pub(crate) rx: OwnedFd,
    /// Packet socket bound to the shaped interface.
    pub(crate) tx: OwnedFd,
    /// Ethernet address of the interface that packets are redirected to, if they are: what bears it as a
    /// source was made there by the kernel and is no traffic.
    pub(crate) own_address: Option<[u8; 6]>,
    /// MTU of the shaped interface in bytes.
    pub(crate) mtu_bytes: u32,
}

/// The packet loop.
pub(crate) struct Datapath {
    ends: Ends,
    wake: Arc<OwnedFd>,
    shared: Arc<Shared>,
    model: LinkModel,
    /// Whether the queue looks at more than sizes and times.
    classify: bool,
    matcher: Matcher,
    arena: Arena,
    rx: RxBatch,
    tx: TxBatch,
    writes: Vec<Write>,
    /// Until then nothing is joined, because the device refused it.
    join_from_ns: u64,
    counters: Counters,
    rate_generation: u64,
    spin: SpinBudget,
    /// How often in a row the device refused the packet that is due longest.
    refusals: u32,
}

/// One packet to be written: a frame, or several joined.
struct Write {
    first: usize,
    count: usize,
    head_bytes: usize,
    head: [u8; join::HEAD_BYTES],
}

/// The packets that are due at `now_ns`.
#[derive(Clone, Copy)]
struct Due<'a> {
    model: &'a LinkModel,
    arena: &'a Arena,
    now_ns: u64,
}

impl<'a> Due<'a> {
    fn packet(self, nth: usize) -> Option<&'a [u8]> {
        let packet = self.model.peek_departed(nth).filter(|packet| packet.at_ns <= self.now_ns)?;
        Some(&self.arena.slot(packet.slot)[..VNET_BYTES + packet.bytes as usize])
    }

    /// Decides what is written with one system call.
    fn plan(self, joining: bool, writes: &mut Vec<Write>) {
        writes.clear();
        let mut nth = 0;
        let mut first = self.packet(0);
        while let Some(packet) = first
            && writes.len() < TX_PACKETS
        {
            let mut next = self.packet(nth + 1);
            let mut write =
                Write { first: nth, count: 1, head_bytes: 0, head: [0; join::HEAD_BYTES] };
            if joining
                && next.is_some()
                && let Some(mut group) = join::Group::begin(packet)
            {
                while let Some(other) = next
                    && group.extend(packet, other)
                {
                    next = self.packet(nth + group.count());
                }
                if group.count() > 1 {
                    group.write_head(packet, &mut write.head);
                    write.head_bytes = group.head_bytes();
                    write.count = group.count();
                }
            }
            nth += write.count;
            first = next;
            writes.push(write);
        }
    }

    /// The bytes of a write.
    fn parts<'b>(self, write: &'b Write) -> impl Iterator<Item = &'b [u8]>
    where
        'a: 'b,
    {
        let packets =
            (write.first..write.first + write.count).filter_map(move |nth| self.packet(nth));
        let head = (write.head_bytes > 0).then(|| &write.head[..write.head_bytes]);
        head.into_iter().chain(packets.map(move |packet| &packet[write.head_bytes..]))
    }
}

/// What was read with one system call.
#[derive(Clone, Copy, Default)]
struct Batch {
    /// There may be more.
    more: bool,
    /// When the last packet arrived; 0 if none did.
    last_ns: u64,
}

/// What the last attempt to send ended with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    /// Everything due is out.
    All,
    /// The socket's buffer is full.
    Blocked,
    /// The device refused a packet.
    Refused,
}

/// How many frames a link may have to hold: its queue and its delay in small frames, within the memory cap.
pub(crate) fn slots_for(spec: &LinkSpec, slot_bytes: usize) -> u32 {
    let queue = spec.most_packets(LEAST_FRAME_BYTES);
    let rate = u128::from(spec.rate_bps.unwrap_or(UNSHAPED_BPS));
    let delay_ns = u128::from(spec.usual_delay_ns());
    let in_delay = rate * delay_ns / 8_000_000_000 / u128::from(LEAST_FRAME_BYTES);
    let wanted = u128::from(queue) + in_delay + u128::from(LEAST_SLOTS);
    wanted.min(u128::from(MEMORY_CAP_BYTES / slot_bytes as u64)) as u32
}

impl Datapath {
    /// Makes everything that the loop needs.
    pub(crate) fn new(
        ends: Ends,
        spec: &LinkSpec,
        wake: Arc<OwnedFd>,
        shared: Arc<Shared>,
    ) -> Self {
        let slot_bytes = (VNET_BYTES + 18 + ends.mtu_bytes as usize).next_multiple_of(64);
        let slots = slots_for(spec, slot_bytes);
        let frame_bytes = ends.mtu_bytes + ETHERNET_BYTES;
        Self {
            ends,
            wake,
            shared,
            model: LinkModel::new(spec, slots as usize, frame_bytes),
            classify: spec.classifies(),
            matcher: Matcher::new(&spec.classes),
            arena: Arena::new(slots, slot_bytes),
            rx: RxBatch::new(RX_PACKETS, TAG_BYTES, RX_PACKET_BYTES),
            tx: TxBatch::new(TX_PACKETS, TX_PACKETS * (1 + join::MOST_JOINED)),
            writes: Vec::with_capacity(TX_PACKETS),
            join_from_ns: 0,
            counters: Counters::default(),
            rate_generation: 0,
            spin: SpinBudget::new(monotonic_ns()),
            refusals: 0,
        }
    }

    /// Runs until [`Shared::stop`] on the calling thread, which has `privileges`.
    pub(crate) fn run(&mut self, privileges: Privileges) {
        let mut class = Class::new(privileges);
        while !self.shared.stop.load(Acquire) {
            self.take_rate();
            let before_ns = monotonic_ns();
            let Batch { more, last_ns } = self.receive(before_ns);
            // What is still in the socket arrived after the last that was read, and after `before_ns` if that
            // was all there was.
            let horizon_ns = if more {
                before_ns.min(last_ns.saturating_add(self.model.least_delay_ns()))
            } else {
                before_ns.max(last_ns)
            };
            self.model.advance(horizon_ns, self.arena.free_list());
            self.mark();
            let sent = self.transmit();
            self.counters.yields = class.yields();
            self.publish();
            if !more {
                self.wait(sent, &mut class);
            }
            class.tick(monotonic_ns());
        }
    }

    fn take_rate(&mut self) {
        let generation = self.shared.rate_generation.load(Acquire);
        if generation != self.rate_generation {
            self.rate_generation = generation;
            let at_ns = self.shared.rate_at_ns.load(Relaxed);
            let rate_bps = self.shared.rate_bps.load(Relaxed);
            self.model.set_rate(at_ns, Some(rate_bps), self.arena.free_list());
        }
    }

    /// Reads one batch.
    fn receive(&mut self, now_ns: u64) -> Batch {
        let count = match self.rx.receive(self.ends.rx.as_fd(), RX_PACKETS) {
            Ok(count) => count,
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                // A kind of offload that has no vnet header (a tunnel's): the kernel threw the packet away.
                self.counters.unfit_pkts += 1;
                return Batch { more: true, last_ns: 0 };
            }
            // Nothing there, or the interface went down: the next wake-up tells.
            Err(_) => return Batch::default(),
        };
        if count == 0 {
            return Batch::default();
        }
        let real_minus_monotonic = real_minus_monotonic_ns();
        let latest_ns = monotonic_ns();
        let mut arrived_ns = now_ns;
        for received in self.rx.packets() {
            arrived_ns = received.real_ns.map_or(now_ns, |real_ns| {
                real_ns.wrapping_add_signed(real_minus_monotonic.wrapping_neg()).min(latest_ns)
            });
            let bytes = match received.vlan {
                Some(tag) => {
                    put_tag(received.bytes, tag);
                    &*received.bytes
                }
                None => &received.bytes[TAG_BYTES..],
            };
            let frame = bytes.get(VNET_BYTES..).unwrap_or(&[]);
            if self.ends.own_address.is_some_and(|own| frame.get(6..12) == Some(&own[..])) {
                continue;
            }
            let packet = if self.classify {
                Packet {
                    at_ns: arrived_ns,
                    flow: header::flow(frame),
                    class: self.matcher.class_of(frame),
                    ecn: header::ecn(frame),
                    ..Packet::default()
                }
            } else {
                Packet { at_ns: arrived_ns, ..Packet::default() }
            };
            if received.truncated {
                self.counters.unfit_pkts += 1;
                continue;
            }
            admit(bytes, packet, &mut self.model, &mut self.arena, &mut self.counters);
        }
        Batch { more: count == self.rx.capacity(), last_ns: arrived_ns }
    }

    /// Writes the marks of the packets that may leave now.
    fn mark(&mut self) {
        while let Some(slot) = self.model.next_marked() {
            header::mark_ce(&mut self.arena.slot_mut(slot)[VNET_BYTES..]);
        }
    }

    fn transmit(&mut self) -> Sent {
        loop {
            let now_ns = monotonic_ns();
            let joining = now_ns >= self.join_from_ns;
            let due = Due { model: &self.model, arena: &self.arena, now_ns };
            let writes = &mut self.writes;
            due.plan(joining, writes);
            if writes.is_empty() {
                return Sent::All;
            }
            let mut outgoing = self.tx.begin();
            for write in writes.iter() {
                outgoing.add(due.parts(write));
            }
            match outgoing.send(self.ends.tx.as_fd()) {
                Ok(count) => {
                    let packets: usize = self.writes[..count].iter().map(|write| write.count).sum();
                    for _ in 0..packets {
                        self.take_out(now_ns, true);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Sent::Blocked,
                // Nothing of it went out. A device that cannot cut takes no joined packets.
                Err(_) if self.writes[0].count > 1 => self.join_from_ns = now_ns + UNJOINED_NS,
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) && self.refusals < REFUSALS => {
                    self.refusals += 1;
                    return Sent::Refused;
                }
                Err(_) => self.take_out(now_ns, false),
            }
        }
    }

    /// Takes out the packet that is due longest, which was sent or given up at `now_ns`.
    fn take_out(&mut self, now_ns: u64, sent: bool) {
        self.refusals = 0;
        let Some(packet) = self.model.pop_departed() else { return };
        self.arena.free_list().push(packet.slot);
        if !sent {
            self.counters.device_pkts += 1;
            return;
        }
        self.counters.sent_pkts += 1;
        self.counters.sent_bytes += u64::from(packet.bytes);
        let late_ns = now_ns.saturating_sub(packet.at_ns);
        self.counters.late_pkts += u64::from(late_ns > LATE_NS);
        self.counters.max_late_ns = self.counters.max_late_ns.max(late_ns);
    }

    fn publish(&mut self) {
        let counts = self.model.counts();
        let queue = self.model.queue_stats();
        let (backlog_pkts, backlog_bytes) = self.model.backlog();
        self.counters.lost_pkts = counts.lost;
        self.counters.overlimit_pkts = queue.overlimit;
        self.counters.queue_overmemory_pkts = queue.overmemory;
        self.counters.early_pkts = queue.early;
        self.counters.ecn_mark_pkts = queue.ecn_mark;
        self.counters.ce_mark_pkts = queue.ce_mark;
        self.counters.step_mark_pkts = queue.step_mark;
        self.counters.prob = queue.prob;
        self.counters.delay_c_ns = queue.delay_c_ns;
        self.counters.delay_l_ns = queue.delay_l_ns;
        self.counters.pkts_in_c = queue.pkts_in_c;
        self.counters.pkts_in_l = queue.pkts_in_l;
        self.counters.credit = queue.credit.cast_unsigned();
        self.counters.maxq_pkts = queue.maxq;
        self.counters.flows = queue.flows;
        self.counters.backlog_pkts = backlog_pkts;
        self.counters.backlog_bytes = backlog_bytes;
        self.counters.memory_bytes = (self.arena.used() * self.arena.slot_bytes()) as u64;
        self.counters.rate_bps = self.model.rate_bps().unwrap_or(u64::MAX);
        self.shared.counters.publish(&self.counters);
    }

    /// Waits until something is due, arrives or is said.
    fn wait(&mut self, sent: Sent, class: &mut Class) {
        match sent {
            Sent::All => {}
            Sent::Blocked => {
                let fds = &mut [
                    PollFd::new(&*self.wake, PollFlags::IN),
                    PollFd::new(&self.ends.tx, PollFlags::OUT),
                ];
                return self.sleep(fds, Some(LATE_NS));
            }
            Sent::Refused => {
                let fds = &mut [PollFd::new(&*self.wake, PollFlags::IN)];
                return self.sleep(fds, Some(REFUSED_NS));
            }
        }
        let due_ns = self.model.next_due_ns();
        let now_ns = monotonic_ns();
        if due_ns <= now_ns {
            return;
        }
        let left_ns = due_ns - now_ns;
        let credit_ns = if class.real_time() { REAL_TIME_SPIN_CREDIT_NS } else { SPIN_CREDIT_NS };
        let may_spin = self.spin.allows(now_ns, SPIN_NS, credit_ns) && class.may_spin();
        let spin_ns = if may_spin { SPIN_NS } else { 0 };
        if left_ns <= spin_ns {
            while monotonic_ns() < due_ns {
                std::hint::spin_loop();
            }
            self.spin.spend(left_ns);
            class.spun(left_ns);
            return;
        }
        let sleep_ns = match left_ns - spin_ns {
            long if long > LONG_SLEEP_NS => long - LONG_SLEEP_NS / 5,
            short => short,
        };
        let timeout_ns = (due_ns != u64::MAX).then_some(sleep_ns);
        let fds = &mut [
            PollFd::new(&*self.wake, PollFlags::IN),
            PollFd::new(&self.ends.rx, PollFlags::IN),
        ];
        let deaf = left_ns <= DEAF_NS && !self.model.may_overtake();
        let heard = if deaf { 1 } else { 2 };
        self.sleep(&mut fds[..heard], timeout_ns);
        if let Some(asked_ns) = timeout_ns {
            let woke_ns = monotonic_ns();
            class.overslept(woke_ns, woke_ns.saturating_sub(now_ns + asked_ns));
        }
    }

    /// Polls `fds`, the first of which is the eventfd, and empties that.
    fn sleep(&self, fds: &mut [PollFd<'_>], timeout_ns: Option<u64>) {
        let timeout = timeout_ns.map(|ns| Timespec {
            tv_sec: (ns / 1_000_000_000).cast_signed(),
            tv_nsec: (ns % 1_000_000_000).cast_signed(),
        });
        // An interrupted poll is an early wake-up, which the loop copes with.
        let _ = poll(fds, timeout.as_ref());
        if fds[0].revents().contains(PollFlags::IN) {
            let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        }
    }
}

/// Cuts a packet and offers every frame, which is like `packet` but for slot and bytes, to the link.
fn admit(
    bytes: &[u8],
    packet: Packet,
    model: &mut LinkModel,
    arena: &mut Arena,
    counters: &mut Counters,
) {
    let frames = match Frames::new(bytes) {
        Ok(frames) if frames.slot_bytes() <= arena.slot_bytes() => frames,
        _ => {
            counters.unfit_pkts += 1;
            return;
        }
    };
    let mut frames = frames;
    while frames.remain() {
        let Some(slot) = arena.take() else {
            counters.overmemory_pkts += frames.skip_rest();
            return;
        };
        let Some(length) = frames.next_into(arena.slot_mut(slot)) else {
            arena.free_list().push(slot);
            return;
        };
        let packet = Packet { slot, bytes: (length - VNET_BYTES) as u32, ..packet };
        match model.arrive(packet) {
            Arrival::In => {}
            Arrival::Lost => arena.free_list().push(slot),
            Arrival::Changed { flip, copy_due_ns } => {
                if let Some(at_ns) = copy_due_ns {
                    match arena.take() {
                        Some(copy) => {
                            arena.copy(slot, copy, length);
                            model.arrive_copy(Packet { slot: copy, at_ns, ..packet });
                        }
                        None => counters.overmemory_pkts += 1,
                    }
                }
                if let Some(draw) = flip {
                    let frame = &mut arena.slot_mut(slot)[..length];
                    vnet::complete_checksum(frame);
                    header::flip_bit(&mut frame[VNET_BYTES..], draw);
                }
            }
        }
    }
}

/// Rations spinning.
struct SpinBudget {
    credit_ns: u64,
    seen_ns: u64,
}

impl SpinBudget {
    fn new(now_ns: u64) -> Self {
        Self { credit_ns: SPIN_CREDIT_NS, seen_ns: now_ns }
    }

    /// Whether `ns` may be spun from `now_ns` on, when at most `most_ns` are saved up.
    fn allows(&mut self, now_ns: u64, ns: u64, most_ns: u64) -> bool {
        let earned = now_ns.saturating_sub(self.seen_ns).saturating_mul(SPIN_DUTY_PERCENT) / 100;
        self.credit_ns = self.credit_ns.saturating_add(earned).min(most_ns);
        self.seen_ns = now_ns;
        self.credit_ns >= ns
    }

    fn spend(&mut self, ns: u64) {
        self.credit_ns = self.credit_ns.saturating_sub(ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_follows_the_link_and_is_capped() {
        let spec = |rate_bps, delay_ns, limit| LinkSpec {
            rate_bps,
            delay_ns,
            queue: QueueSpec::Fifo(limit),
            ..LinkSpec::default()
        };
        // 187 500 B of queue and 125 000 B of delay in frames of 60 B.
        let e1 = spec(Some(100_000_000), 10_000_000, FifoLimit::Bytes(187_500));
        assert_eq!(slots_for(&e1, 1600), 16_384 + 3_125 + 2_083);
        let huge = spec(None, 10_000_000_000, FifoLimit::Packets(u64::MAX));
        assert_eq!(slots_for(&huge, 1600), (512 << 20) / 1600);
    }

    #[test]
    fn spinning_is_rationed() {
        let mut budget = SpinBudget::new(0);
        let (mut now_ns, mut spun_ns) = (0, 0);
        while now_ns < 1_000_000_000 {
            if budget.allows(now_ns, SPIN_NS, SPIN_CREDIT_NS) {
                budget.spend(SPIN_NS);
                spun_ns += SPIN_NS;
            }
            now_ns += SPIN_NS;
        }
        assert!((790_000_000..=806_000_000).contains(&spun_ns), "{spun_ns}");
    }
}
