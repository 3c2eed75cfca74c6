//! The packet loop of a userspace link, on its own thread. It receives packets, lets the [`model`] compute when they are due, and sends
//! those that are due. After [`Datapath::new`] it does not allocate, lock or log. [`Shared`] and an eventfd control it.
//!
//! ```text
//! recvmmsg → segmentation      → loss → delay → queue → line → sendmmsg
//!            └── kernel's receive time ──┘ └ virtual time ┘    └ real time; the difference is the scheduling error
//! ```

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::clock::{monotonic_ns, real_minus_monotonic_ns};
use crate::discipline::QueueParams;
use crate::sys::{RxBatch, TxBatch};
use classes::Matcher;
use foreign::OwnPackets;
use header::Ecn;
use log::Fate;
use model::Arrival;
use packet::{Arena, Packet};
use record::Recorder;
use segment::Frames;
use spin::Spin;
use tcp_header::{TcpHeader, tcp_header};
use thread::SchedClass;
use transmit::{DuePackets, MAX_WRITES, Write};
use vnet::{TAG_BYTES, VNET_BYTES, put_tag};

pub(crate) mod class_scheduler;
pub(crate) mod classes;
pub(crate) mod coalesce;
pub(crate) mod counters;
pub(crate) mod duty;
pub(crate) mod foreign;
pub(crate) mod header;
pub(crate) mod histogram;
pub(crate) mod impair;
pub(crate) mod line;
pub(crate) mod log;
pub(crate) mod loss;
pub(crate) mod model;
pub(crate) mod packet;
pub(crate) mod random;
pub(crate) mod record;
pub(crate) mod segment;
pub(crate) mod shared;
pub(crate) mod spin;
pub(crate) mod tcp_header;
pub(crate) mod thread;
pub(crate) mod token_bucket;
pub(crate) mod transmit;
pub(crate) mod vnet;

pub(crate) use counters::Counters;
pub(crate) use model::{LinkModel, LinkSpec};
pub(crate) use shared::Shared;
pub(crate) use thread::Privileges;

/// Packets received with one system call. Few if packets are large, because segmenting a full super-packet takes about 10 µs, during which
/// nothing is sent.
const RX_LARGE: usize = 8;
const RX_SMALL: usize = 64;
/// Packets count as small while their average size is below this.
const SMALL_BYTES: usize = 2_048;
/// The largest super-packet: an IP packet of 64 KiB with its Ethernet header, a VLAN tag and the vnet header.
const RX_PACKET_BYTES: usize = VNET_BYTES + 18 + 65_536;
/// Longer sleeps are split, because the kernel may oversleep by a thousandth of the time.
const LONG_SLEEP_NS: u64 = 10_000_000;
/// If a packet is due within this time, the loop waits for it without polling for arrivals: none of them can be due earlier.
const NO_POLL_NS: u64 = 500_000;
/// Pause before a packet that the device rejected is sent again, and the number of retries.
const REFUSED_NS: u64 = 50_000;
const REFUSALS: u32 = 3;
/// How long packets are not coalesced after the device rejected a coalesced packet.
const COALESCE_PAUSE_NS: u64 = 1_000_000_000;
/// Packets with a larger scheduling error count as late.
const LATE_NS: u64 = 1_000_000;

/// Minimum number of frame slots, because a sender may burst into the delay.
const MIN_SLOTS: u64 = 16_384;
/// Memory limit of one link. Pages are not touched before they are needed.
const MEMORY_CAP_BYTES: u64 = 512 << 20;
/// Header of an Ethernet frame.
pub(crate) const ETHERNET_BYTES: u32 = ccbench_proto::resolve::ETHERNET_BYTES.get() as u32;
/// The smallest Ethernet frame. Converts bytes to a maximum number of frames.
const MIN_FRAME_BYTES: u64 = 60;
/// Assumed rate of an unshaped link to size its memory.
const UNSHAPED_BPS: u64 = 10_000_000_000;

/// The two ends of the packet path.
pub(crate) struct PacketSockets {
    /// Packet socket that receives the redirected packets.
    pub(crate) rx: OwnedFd,
    /// Packet socket bound to the shaped interface.
    pub(crate) tx: OwnedFd,
    /// Ethernet address of the interface that packets are redirected to, if any. Frames from this address come from the kernel itself and
    /// are ignored.
    pub(crate) own_address: Option<[u8; 6]>,
    /// MTU of the shaped interface in bytes.
    pub(crate) mtu_bytes: u32,
}

/// The packet loop.
pub(crate) struct Datapath {
    sockets: PacketSockets,
    wake: Arc<OwnedFd>,
    shared: Arc<Shared>,
    model: LinkModel,
    /// Whether packet headers are parsed.
    classify: bool,
    matcher: Matcher,
    /// The packets of the trial, if they are known.
    own_packets: Option<OwnPackets>,
    /// Whether `matcher` or `own_packets` reads header fields.
    reads_fields: bool,
    arena: Arena,
    rx: RxBatch,
    tx: TxBatch,
    writes: Vec<Write>,
    /// No coalescing before this time, because the device rejected a coalesced packet.
    coalesce_from_ns: u64,
    counters: Counters,
    recorder: Recorder,
    rate_generation: u64,
    begin_at_ns: u64,
    delay_generation: u64,
    loss_generation: u64,
    queue_generation: u64,
    /// See [`LinkSpec::changed_queues`].
    changed_queues: Vec<QueueParams>,
    /// Packets to receive with the next system call.
    rx_batch: usize,
    spin: Spin,
    /// Consecutive rejections of the first due packet by the device.
    refusals: u32,
}

/// Result of one receive call.
#[derive(Clone, Copy, Default)]
struct Batch {
    /// Whether there may be more packets.
    more: bool,
    /// When the last packet arrived; 0 if none did.
    last_ns: u64,
}

/// Result of a send attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SendResult {
    /// All due packets were sent.
    All,
    /// The socket's buffer is full.
    Blocked,
    /// The device rejected a packet.
    Refused,
}

/// Returns the size of a frame slot: vnet header, Ethernet header with a VLAN tag, and the MTU.
pub(crate) fn slot_bytes(mtu_bytes: u32) -> usize {
    (VNET_BYTES + 18 + mtu_bytes as usize).next_multiple_of(64)
}

/// Returns the number of frame slots: enough for a queue and a delay full of small frames, within the memory limit.
pub(crate) fn slots_for(spec: &LinkSpec, slot_bytes: usize) -> u32 {
    let queue = spec.max_packets(MIN_FRAME_BYTES);
    let rate = u128::from(spec.rate_bps().unwrap_or(UNSHAPED_BPS));
    let delay_ns = u128::from(spec.typical_delay_ns());
    let in_delay = rate * delay_ns / 8_000_000_000 / u128::from(MIN_FRAME_BYTES);
    let wanted = u128::from(queue) + in_delay + u128::from(MIN_SLOTS);
    wanted.min(u128::from(MEMORY_CAP_BYTES / slot_bytes as u64)) as u32
}

impl Datapath {
    /// Allocates everything that the loop needs.
    pub(crate) fn new(
        sockets: PacketSockets,
        spec: &LinkSpec,
        wake: Arc<OwnedFd>,
        shared: Arc<Shared>,
    ) -> Self {
        let slot_bytes = slot_bytes(sockets.mtu_bytes);
        let slots = slots_for(spec, slot_bytes);
        let frame_bytes = sockets.mtu_bytes + ETHERNET_BYTES;
        let matcher = Matcher::new(&spec.classes);
        Self {
            sockets,
            wake,
            recorder: Recorder::new(Arc::clone(&shared), slots),
            model: LinkModel::new(spec, slots as usize, frame_bytes),
            classify: spec.classifies() || shared.log.is_some(),
            shared,
            reads_fields: matcher.has_rules() || spec.own_traffic.is_some(),
            matcher,
            own_packets: spec.own_traffic.as_ref().map(OwnPackets::new),
            arena: Arena::new(slots, slot_bytes),
            rx: RxBatch::new(RX_SMALL, TAG_BYTES, RX_PACKET_BYTES),
            tx: TxBatch::new(MAX_WRITES, MAX_WRITES * (1 + coalesce::MAX_SEGMENTS)),
            writes: Vec::with_capacity(MAX_WRITES),
            coalesce_from_ns: if spec.plan.gso.unwrap_or(true) { 0 } else { u64::MAX },
            counters: Counters::default(),
            rate_generation: 0,
            begin_at_ns: 0,
            delay_generation: 0,
            loss_generation: 0,
            queue_generation: 0,
            changed_queues: spec.changed_queues.clone(),
            rx_batch: RX_LARGE,
            spin: Spin::new(monotonic_ns()),
            refusals: 0,
        }
    }

    /// Runs until [`Shared::stop`] on the calling thread, which has `privileges`.
    pub(crate) fn run(&mut self, privileges: Privileges) {
        let mut class = SchedClass::new(privileges);
        let mut empty_ns = None;
        while !self.shared.stop.load(Acquire) {
            self.take_changes();
            let before_ns = empty_ns.unwrap_or_else(monotonic_ns);
            let Batch { more, last_ns } = match empty_ns {
                Some(_) => Batch::default(),
                None => self.receive(before_ns),
            };
            // Packets still in the socket arrived after the last received one. If the socket was empty, they arrived after `before_ns`.
            let horizon_ns = if more {
                before_ns.min(last_ns.saturating_add(self.model.min_delay_ns()))
            } else {
                before_ns.max(last_ns)
            };
            self.recorder.advance(&mut self.model, horizon_ns, self.arena.free_list());
            self.mark();
            let sent = self.transmit();
            self.counters.demotions = class.demotions();
            self.publish();
            empty_ns = if more { None } else { self.wait(sent, &mut class) };
            class.tick(monotonic_ns());
        }
    }

    fn take_changes(&mut self) {
        let shared = &*self.shared;
        let generation = shared.rate_generation.load(Acquire);
        if generation != self.rate_generation {
            self.rate_generation = generation;
            let at_ns = shared.rate_at_ns.load(Relaxed);
            let rate_bps = shared.rate_bps.load(Relaxed);
            let freed = self.arena.free_list();
            let before = freed.len();
            self.model.set_rate(at_ns, Some(rate_bps), freed);
            self.recorder.dropped_by_queue(&freed[before..], &self.model);
        }
        let generation = shared.delay_generation.load(Acquire);
        if generation != self.delay_generation {
            self.delay_generation = generation;
            let at_ns = shared.delay_at_ns.load(Relaxed);
            self.model.set_delay(at_ns, shared.delay_ns.load(Relaxed));
        }
        let generation = shared.loss_generation.load(Acquire);
        if generation != self.loss_generation {
            self.loss_generation = generation;
            self.model.set_loss(shared.loss_ppm.load(Relaxed) as u32);
        }
        let generation = shared.queue_generation.load(Acquire);
        if generation != self.queue_generation {
            self.queue_generation = generation;
            let at_ns = shared.queue_at_ns.load(Relaxed);
            let number = shared.queue_number.load(Relaxed) as usize;
            if let Some(params) = self.changed_queues.get(number) {
                let freed = self.arena.free_list();
                let before = freed.len();
                self.model.set_queue(at_ns, *params, freed);
                self.recorder.dropped_by_queue(&freed[before..], &self.model);
            }
        }
        let begin_at_ns = shared.begin_at_ns.load(Acquire);
        if begin_at_ns != self.begin_at_ns {
            self.begin_at_ns = begin_at_ns;
            self.model.begin(begin_at_ns);
        }
    }

    /// Receives one batch.
    fn receive(&mut self, now_ns: u64) -> Batch {
        let count = match self.rx.receive(self.sockets.rx.as_fd(), self.rx_batch) {
            Ok(count) => count,
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                // A GSO type that the vnet header cannot express (tunnels): the kernel dropped the packet.
                self.counters.unfit_pkts += 1;
                return Batch { more: true, last_ns: 0 };
            }
            // The socket is empty, or the interface is down.
            Err(_) => return Batch::default(),
        };
        if count == 0 {
            return Batch::default();
        }
        let real_minus_monotonic = real_minus_monotonic_ns();
        let latest_ns = monotonic_ns();
        let mut arrived_ns = now_ns;
        let mut bytes_read = 0;
        for received in self.rx.packets() {
            arrived_ns = received.real_ns.map_or(now_ns, |real_ns| {
                real_ns.wrapping_add_signed(real_minus_monotonic.wrapping_neg()).min(latest_ns)
            });
            bytes_read += received.bytes.len();
            let bytes = match received.vlan {
                Some(tag) => {
                    put_tag(received.bytes, tag);
                    &*received.bytes
                }
                None => &received.bytes[TAG_BYTES..],
            };
            let frame = bytes.get(VNET_BYTES..).unwrap_or(&[]);
            if self.sockets.own_address.is_some_and(|own| frame.get(6..12) == Some(&own[..])) {
                continue;
            }
            let fields = if self.reads_fields { header::fields(frame) } else { None };
            if let Some(own) = &self.own_packets {
                own.count(fields.as_ref(), frame.len() as u64, &mut self.counters);
            }
            let packet = if self.classify {
                Packet {
                    at_ns: arrived_ns,
                    flow: header::flow(frame),
                    class: self.matcher.class_of_fields(fields.as_ref()),
                    ecn: header::ecn(frame),
                    ..Packet::default()
                }
            } else {
                Packet { at_ns: arrived_ns, ..Packet::default() }
            };
            if received.truncated {
                self.counters.unfit_pkts += 1;
                self.recorder.dropped(&packet, Fate::Unfit);
                continue;
            }
            let store = (&mut self.arena, &mut self.recorder);
            admit(bytes, packet, &mut self.model, store, &mut self.counters);
        }
        let more = count == self.rx_batch;
        self.rx_batch = if more && bytes_read < count * SMALL_BYTES { RX_SMALL } else { RX_LARGE };
        Batch { more, last_ns: arrived_ns }
    }

    /// Writes the CE marks of due packets.
    fn mark(&mut self) {
        while let Some(slot) = self.model.next_marked() {
            header::set_ecn(&mut self.arena.slot_mut(slot)[VNET_BYTES..], Ecn::Ce);
        }
    }

    fn transmit(&mut self) -> SendResult {
        loop {
            let now_ns = monotonic_ns();
            let coalesce = now_ns >= self.coalesce_from_ns;
            let due = DuePackets { model: &self.model, arena: &self.arena, now_ns };
            let writes = &mut self.writes;
            due.plan(coalesce, writes);
            if writes.is_empty() {
                return SendResult::All;
            }
            let mut outgoing = self.tx.begin();
            for write in writes.iter() {
                outgoing.add(due.parts(write));
            }
            match outgoing.send(self.sockets.tx.as_fd()) {
                Ok(count) => {
                    let packets: usize = self.writes[..count].iter().map(|write| write.count).sum();
                    for _ in 0..packets {
                        self.complete(now_ns, true);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return SendResult::Blocked,
                // Nothing was sent. Devices without GSO reject coalesced packets.
                Err(_) if self.writes[0].count > 1 => {
                    self.coalesce_from_ns = now_ns + COALESCE_PAUSE_NS;
                }
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) && self.refusals < REFUSALS => {
                    self.refusals += 1;
                    return SendResult::Refused;
                }
                Err(_) => self.complete(now_ns, false),
            }
        }
    }

    /// Removes the first due packet, which was sent or rejected at `now_ns`.
    fn complete(&mut self, now_ns: u64, sent: bool) {
        self.refusals = 0;
        let Some(packet) = self.model.pop_departed() else { return };
        self.recorder.released(&packet, now_ns, sent);
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
        self.counters.take_over(&self.model);
        self.counters.memory_bytes = (self.arena.used() * self.arena.slot_bytes()) as u64;
        self.shared.counters.publish(&self.counters);
    }

    /// Waits until a packet is due or arrives, or for a control message. Returns a time before which all arrived packets have been
    /// received, if one is known: receiving again would find none.
    fn wait(&mut self, sent: SendResult, class: &mut SchedClass) -> Option<u64> {
        match sent {
            SendResult::All => {}
            SendResult::Blocked => {
                let fds = &mut [
                    PollFd::new(&*self.wake, PollFlags::IN),
                    PollFd::new(&self.sockets.tx, PollFlags::OUT),
                ];
                self.sleep(fds, Some(LATE_NS));
                return None;
            }
            SendResult::Refused => {
                let fds = &mut [PollFd::new(&*self.wake, PollFlags::IN)];
                self.sleep(fds, Some(REFUSED_NS));
                return None;
            }
        }
        let due_ns = self.model.next_due_ns();
        let now_ns = monotonic_ns();
        if due_ns <= now_ns {
            return None;
        }
        let left_ns = due_ns - now_ns;
        let may_spin = self.spin.allows(now_ns, class.real_time()) && class.may_spin();
        let spin_ns = if may_spin { self.spin.margin_ns() } else { 0 };
        if left_ns <= spin_ns {
            while monotonic_ns() < due_ns {
                std::hint::spin_loop();
            }
            self.spin.spend(left_ns);
            class.spun(left_ns);
            return None;
        }
        let sleep_ns = match left_ns - spin_ns {
            long if long > LONG_SLEEP_NS => long - LONG_SLEEP_NS / 5,
            short => short,
        };
        let timeout_ns = (due_ns != u64::MAX).then_some(sleep_ns);
        let fds = &mut [
            PollFd::new(&*self.wake, PollFlags::IN),
            PollFd::new(&self.sockets.rx, PollFlags::IN),
        ];
        let skip_rx = left_ns <= NO_POLL_NS && !self.model.may_overtake();
        let polled = if skip_rx { 1 } else { 2 };
        let timed_out = self.sleep(&mut fds[..polled], timeout_ns);
        let until_ns = now_ns + timeout_ns?;
        let woke_ns = monotonic_ns();
        if let Some(late_ns) = woke_ns.checked_sub(until_ns) {
            self.spin.woke_late(late_ns);
            class.woke_late(woke_ns, late_ns);
        }
        // When the time is over, the kernel checks the sockets once more.
        (timed_out && !skip_rx).then_some(until_ns)
    }

    /// Polls `fds`, of which the first is the eventfd, and drains that. Returns whether the timeout expired before anything happened.
    fn sleep(&self, fds: &mut [PollFd<'_>], timeout_ns: Option<u64>) -> bool {
        let timeout = timeout_ns.map(|ns| Timespec {
            tv_sec: (ns / 1_000_000_000).cast_signed(),
            tv_nsec: (ns % 1_000_000_000).cast_signed(),
        });
        // If the poll was interrupted, the loop handles the early wakeup.
        let timed_out = poll(fds, timeout.as_ref()) == Ok(0);
        if fds[0].revents().contains(PollFlags::IN) {
            let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        }
        timed_out
    }
}

/// Segments a packet and passes every frame to the link, with the metadata of `packet`.
fn admit(
    bytes: &[u8],
    packet: Packet,
    model: &mut LinkModel,
    (arena, recorder): (&mut Arena, &mut Recorder),
    counters: &mut Counters,
) {
    let mut frames = match Frames::new(bytes) {
        Ok(frames) if frames.slot_bytes() <= arena.slot_bytes() => frames,
        _ => {
            counters.unfit_pkts += 1;
            let bytes = bytes.len().saturating_sub(VNET_BYTES) as u32;
            return recorder.dropped(&Packet { bytes, ..packet }, Fate::Unfit);
        }
    };
    while frames.has_remaining() {
        let Some(slot) = arena.take() else {
            let left = frames.skip_rest();
            counters.overmemory_pkts += left;
            (0..left).for_each(|_| recorder.dropped(&packet, Fate::Overmemory));
            return;
        };
        let Some(length) = frames.next_into(arena.slot_mut(slot)) else {
            arena.free_list().push(slot);
            return;
        };
        let frame = &arena.slot(slot)[VNET_BYTES..length];
        let (packet, tcp) = packet_of(slot, frame, packet, model.reads_tcp());
        model.read_tcp(slot, tcp);
        recorder.arrived(&packet);
        match model.arrive(packet) {
            Arrival::Accepted => {}
            Arrival::Lost => {
                recorder.dropped(&packet, Fate::Lost);
                arena.free_list().push(slot);
            }
            Arrival::Policed => {
                recorder.dropped(&packet, Fate::Policed);
                arena.free_list().push(slot);
            }
            Arrival::Changed { ecn, flip, copy_due_ns } => {
                let packet = Packet { ecn: ecn.unwrap_or(packet.ecn), ..packet };
                if let Some(ecn) = ecn {
                    header::set_ecn(&mut arena.slot_mut(slot)[VNET_BYTES..length], ecn);
                }
                if let Some(at_ns) = copy_due_ns {
                    match arena.take() {
                        Some(copy) => {
                            arena.copy(slot, copy, length);
                            recorder.copied(slot, copy);
                            model.read_tcp(copy, tcp);
                            model.arrive_copy(Packet { slot: copy, at_ns, ..packet });
                        }
                        None => {
                            counters.overmemory_pkts += 1;
                            recorder.dropped(&packet, Fate::Overmemory);
                        }
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

/// Returns the packet of a frame in a slot, with the metadata of `packet`, and its TCP header if the link reads TCP headers: the flags of a
/// super-packet are not those of all its segments.
fn packet_of(
    slot: u32,
    frame: &[u8],
    packet: Packet,
    reads_tcp: bool,
) -> (Packet, Option<TcpHeader>) {
    let tcp = if reads_tcp { tcp_header(frame) } else { None };
    let is_pure_ack = tcp.is_some_and(|tcp| tcp.is_pure_ack());
    (Packet { slot, bytes: frame.len() as u32, is_pure_ack, ..packet }, tcp)
}

#[cfg(test)]
mod tests;
