//! A link on virtual time, without I/O: the model of a userspace link, for the simulator.
//!
//! Times are nanoseconds of the owner's clock, which never goes back. At each time `t`, the owner calls, in this order:
//!
//! 1. the `set_` functions, for changes from `t` on;
//! 2. [`VirtualLink::arrive`] for each packet that arrives at `t`;
//! 3. [`VirtualLink::advance`] to `t`, then [`VirtualLink::pop`] until it returns `None`;
//! 4. [`VirtualLink::next_event_ns`], whose result any of the calls above may change, even to an earlier time.
//!
//! More packets may then arrive at `t`, with the same result. Steps 3 and 4 follow again.
//!
//! As long as `advance` is called by `next_event_ns`, calling it more often does not change the result. After the buffers have grown to the
//! size that the traffic needs, no per-packet call allocates.

use std::sync::Arc;

use ccbench_proto::resolve::LinkConfig;
use ccbench_proto::units::{Bytes, Micros, Ppm, Rate};
use ccbench_proto::wire;

use crate::ShaperError;
use crate::datapath::classes::Matcher;
use crate::datapath::header::{self, Ecn};
use crate::datapath::log::Fate;
use crate::datapath::model::Arrival;
use crate::datapath::packet::Packet;
use crate::datapath::record::Recorder;
use crate::datapath::tcp_header::tcp_header;
use crate::datapath::{self, Counters, LinkModel, LinkSpec, Shared};
use crate::replay::{self, PlayedRows};
use crate::user_link::{report, spec};

pub use crate::datapath::tcp_header::TcpHeader;

/// Frames may have one VLAN tag.
const VLAN_TAG_BYTES: u32 = 4;

/// The data that the owner attaches to a packet.
pub trait Payload: Clone {
    /// Records that the link flipped one bit behind the IP header.
    fn corrupt(&mut self);
    /// Sets the ECN field of the IP header.
    fn set_ecn(&mut self, ecn: Ecn);
}

/// Header fields that the link reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Hash of addresses, protocol and ports.
    pub flow: u32,
    /// Number of the class in the link's configuration, from 1; 0 is the default class.
    pub class: u8,
    /// The IP header's ECN field.
    pub ecn: Ecn,
    /// The TCP header, if [`VirtualLink::reads_tcp`]. May be omitted for a direction of a connection without pure acknowledgements.
    pub tcp: Option<TcpHeader>,
}

/// A packet that has left the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure<P> {
    /// When its last bit left the line.
    pub at_ns: u64,
    /// The payload as it arrived, or as [`Payload::corrupt`] and [`Payload::set_ecn`] changed it.
    pub payload: P,
    /// Whether the link has set CE. The owner must change the payload's ECN field.
    pub marked: bool,
}

/// Packets since the beginning: `arrived + duplicated = lost + dropped + inside + departed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Passed to [`VirtualLink::arrive`].
    pub arrived: u64,
    /// Copies made, including those for which there was no memory.
    pub duplicated: u64,
    /// Dropped by random loss.
    pub lost: u64,
    /// Dropped by the queue, the policer or the ACK filter, because the link's memory was full, or because they were larger than the MTU.
    pub dropped: u64,
    /// Packets in the delay, held back, in the queue, on the line, or waiting for [`VirtualLink::pop`].
    pub inside: u64,
    /// Returned by [`VirtualLink::pop`].
    pub departed: u64,
}

/// The payloads of the packets in the link, by slot. Slots are reused in LIFO order, so that few are in use.
#[derive(Debug)]
struct PayloadSlab<P> {
    payloads: Vec<Option<P>>,
    free: Vec<u32>,
    /// Maximum number of slots.
    limit: usize,
}

impl<P: Clone> PayloadSlab<P> {
    fn is_full(&self) -> bool {
        self.free.is_empty() && self.payloads.len() >= self.limit
    }

    /// Takes a slot. Returns `None` when all are in use.
    #[inline]
    fn insert(&mut self, payload: P) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            self.payloads[slot as usize] = Some(payload);
            return Some(slot);
        }
        if self.is_full() {
            return None;
        }
        self.payloads.push(Some(payload));
        Some(self.payloads.len() as u32 - 1)
    }

    /// Copies a payload to another slot and returns that. Returns `None` when all are in use.
    fn copy(&mut self, slot: u32) -> Option<u32> {
        let payload = self.payloads[slot as usize].clone()?;
        self.insert(payload)
    }

    #[inline]
    fn remove(&mut self, slot: u32) -> Option<P> {
        self.free.push(slot);
        self.payloads[slot as usize].take()
    }

    /// Drops the payloads of the slots that have been freed since there were `before` free slots.
    #[inline]
    fn drop_freed(&mut self, before: usize) {
        for &slot in &self.free[before..] {
            self.payloads[slot as usize] = None;
        }
    }

    fn used(&self) -> usize {
        self.payloads.len() - self.free.len()
    }
}

/// One direction of a link on virtual time.
#[derive(Debug)]
pub struct VirtualLink<P> {
    name: String,
    spec: LinkSpec,
    matcher: Matcher,
    model: LinkModel,
    store: PayloadSlab<P>,
    /// Size of the slot that a userspace link needs for each packet, bytes.
    slot_bytes: usize,
    max_frame_bytes: u32,
    arrived: u64,
    duplicated: u64,
    /// Counts what the model does not count.
    counters: Counters,
    recorder: Recorder,
    played: Option<PlayedRows>,
}

impl<P: Payload> VirtualLink<P> {
    /// Creates an empty link at `at_ns`, when the timers of its queues start. `mtu_bytes` is the interface's MTU; frames may also have an
    /// Ethernet header with a VLAN tag.
    ///
    /// # Errors
    /// The same as for a userspace link: [`ShaperError::Unsupported`] for the queue `cake`, for unsupported values of a queue, and for
    /// classes without a rate.
    pub fn new(config: &LinkConfig, mtu_bytes: u32, at_ns: u64) -> Result<Self, ShaperError> {
        let spec = spec::spec_of(config)?;
        let slot_bytes = datapath::slot_bytes(mtu_bytes);
        let slots = datapath::slots_for(&spec, slot_bytes);
        let frame_bytes = mtu_bytes.saturating_add(datapath::ETHERNET_BYTES);
        let shared = Arc::new(Shared::new(config.plan.packet_log.map(Bytes::get)));
        let mut link = Self {
            name: config.name.clone(),
            matcher: Matcher::new(&spec.classes),
            model: LinkModel::new(&spec, slots as usize, frame_bytes),
            store: PayloadSlab { payloads: Vec::new(), free: Vec::new(), limit: slots as usize },
            slot_bytes,
            max_frame_bytes: frame_bytes.saturating_add(VLAN_TAG_BYTES),
            arrived: 0,
            duplicated: 0,
            counters: Counters::default(),
            recorder: Recorder::new(shared, slots),
            played: config.trace.as_ref().map(PlayedRows::new),
            spec,
        };
        link.advance(at_ns);
        Ok(link)
    }

    /// Begins the trial at `at_ns`, now or in the future. The trace begins then or, with `start = "first-packet"`, when the first packet
    /// arrives at that time or later. No effect on a link without a trace.
    pub fn begin(&mut self, at_ns: u64) {
        self.model.begin(at_ns);
    }

    /// Returns whether the link uses any field of [`Header`]. If not, the default header gives the same result.
    pub fn reads_headers(&self) -> bool {
        self.spec.classifies() || self.recorder.is_logging()
    }

    /// Returns whether the link uses [`Header::tcp`].
    pub fn reads_tcp(&self) -> bool {
        self.model.reads_tcp()
    }

    /// Classifies an Ethernet frame as a userspace link does. The headers up to the ports are sufficient.
    pub fn classify(&self, frame: &[u8]) -> Header {
        Header {
            flow: header::flow(frame),
            class: self.matcher.class_of(frame),
            ecn: header::ecn(frame),
            tcp: tcp_header(frame),
        }
    }

    /// Lets a frame arrive. `frame_bytes`: IP packet and Ethernet header, without padding, preamble and checksum. The link either delivers
    /// the frame through [`VirtualLink::pop`], possibly twice, or drops it with its payload.
    pub fn arrive(&mut self, at_ns: u64, header: Header, frame_bytes: u32, payload: P) {
        self.arrived += 1;
        let Header { flow, class, ecn, tcp } = header;
        let is_pure_ack = tcp.is_some_and(|tcp| tcp.is_pure_ack());
        let packet =
            Packet { bytes: frame_bytes, at_ns, flow, class, ecn, is_pure_ack, ..<_>::default() };
        if frame_bytes > self.max_frame_bytes {
            self.counters.unfit_pkts += 1;
            return self.recorder.dropped(&packet, Fate::Unfit);
        }
        if self.store.is_full() {
            // The queue may have dropped packets since the last call.
            self.advance(at_ns);
        }
        let Some(slot) = self.store.insert(payload) else { return self.drop_overmemory(&packet) };
        let packet = Packet { slot, ..packet };
        self.model.read_tcp(slot, tcp);
        self.recorder.arrived(&packet);
        match self.model.arrive(packet) {
            Arrival::Accepted => {}
            Arrival::Lost => {
                self.recorder.dropped(&packet, Fate::Lost);
                self.store.remove(slot);
            }
            Arrival::Policed => {
                self.recorder.dropped(&packet, Fate::Policed);
                self.store.remove(slot);
            }
            Arrival::Changed { ecn, flip, copy_due_ns } => {
                let packet = Packet { ecn: ecn.unwrap_or(packet.ecn), ..packet };
                if let (Some(ecn), Some(payload)) = (ecn, &mut self.store.payloads[slot as usize]) {
                    payload.set_ecn(ecn);
                }
                // The copy is not corrupted.
                if let Some(due_ns) = copy_due_ns {
                    self.duplicate(&packet, tcp, due_ns);
                }
                if flip.is_some()
                    && let Some(payload) = &mut self.store.payloads[slot as usize]
                {
                    payload.corrupt();
                }
            }
        }
    }

    /// Creates the copy of a packet. The copy's delay ends at `due_ns`.
    fn duplicate(&mut self, original: &Packet, tcp: Option<TcpHeader>, due_ns: u64) {
        self.duplicated += 1;
        match self.store.copy(original.slot) {
            Some(slot) => {
                self.recorder.copied(original.slot, slot);
                self.model.read_tcp(slot, tcp);
                self.model.arrive_copy(Packet { slot, at_ns: due_ns, ..*original });
            }
            None => self.drop_overmemory(original),
        }
    }

    fn drop_overmemory(&mut self, packet: &Packet) {
        self.counters.overmemory_pkts += 1;
        self.recorder.dropped(packet, Fate::Overmemory);
    }

    /// Returns when [`VirtualLink::advance`] and [`VirtualLink::pop`] must be called next if no packet arrives and nothing is set before:
    /// no packet leaves the link earlier. `u64::MAX`: never.
    pub fn next_event_ns(&self) -> u64 {
        match self.model.peek_departed(0) {
            Some(packet) => packet.at_ns,
            None => self.model.next_departure_ns(),
        }
    }

    /// Processes all events until `now_ns`. Packets that arrive at `now_ns` may follow, but none that arrive before.
    pub fn advance(&mut self, now_ns: u64) {
        let before = self.store.free.len();
        self.recorder.advance(&mut self.model, now_ns, &mut self.store.free);
        self.release_freed(before);
    }

    /// Completes an advance of the model, before which there were `before` free slots.
    fn release_freed(&mut self, before: usize) {
        self.store.drop_freed(before);
        // Each departed packet has the same information.
        while self.model.next_marked().is_some() {}
    }

    /// Returns the next packet that has left the line, in order of time.
    pub fn pop(&mut self) -> Option<Departure<P>> {
        let packet = self.model.pop_departed()?;
        if self.recorder.is_logging() {
            self.recorder.released(&packet, packet.at_ns, true);
        }
        self.counters.sent_pkts += 1;
        self.counters.sent_bytes += u64::from(packet.bytes);
        let payload = self.store.remove(packet.slot)?;
        Some(Departure { at_ns: packet.at_ns, payload, marked: packet.marked })
    }

    /// Changes the rate from `at_ns` on, for queued packets and for the rest of the packet on the line, too. The rates of the classes
    /// change in proportion. Like [`VirtualLink::advance`], this may make packets depart.
    ///
    /// # Errors
    /// [`ShaperError::Unsupported`] for a link with a trace.
    pub fn set_rate(&mut self, at_ns: u64, rate: Rate) -> Result<(), ShaperError> {
        if self.played.is_some() {
            return Err(replay::rate_change_with_trace(&self.name, "userspace"));
        }
        let before = self.store.free.len();
        self.model.set_rate(at_ns, Some(rate.bits_per_sec()), &mut self.store.free);
        self.recorder.dropped_by_queue(&self.store.free[before..], &self.model);
        self.release_freed(before);
        Ok(())
    }

    /// Changes the parameters of the link's own queue from `at_ns` on, to entry `number` of [`LinkConfig::changed_queues`]. A `number` out
    /// of range changes nothing. Packets beyond a lower limit are dropped.
    pub fn set_queue(&mut self, at_ns: u64, number: usize) {
        let Some(params) = self.spec.changed_queues.get(number) else { return };
        let before = self.store.free.len();
        self.model.set_queue(at_ns, *params, &mut self.store.free);
        self.recorder.dropped_by_queue(&self.store.free[before..], &self.model);
        self.release_freed(before);
    }

    /// Changes the constant one-way delay of packets that arrive at `at_ns` or later, until the next row of a trace that
    /// has delays. A shorter delay does not reorder packets, unless the link has reordering.
    pub fn set_delay(&mut self, at_ns: u64, delay: Micros) {
        self.model.set_delay(at_ns, delay.nanos());
    }

    /// Changes the independent random loss from the next arrival on, until the next row of a trace that has losses.
    pub fn set_loss(&mut self, loss: Ppm) {
        self.model.set_loss(loss.get());
    }

    /// Returns the rate at the time of the last [`VirtualLink::advance`]; `None`: unlimited. For a trace of delivery opportunities, this is
    /// its mean rate.
    pub fn rate(&self) -> Option<Rate> {
        self.model.rate_bps().map(Rate::from_bits_per_sec)
    }

    /// Returns the packet counts so far.
    pub fn counts(&self) -> Counts {
        let model = self.model.counts();
        Counts {
            arrived: self.arrived,
            duplicated: self.duplicated,
            lost: model.lost,
            dropped: model.dropped
                + model.policed
                + model.acks_filtered
                + self.counters.overmemory_pkts
                + self.counters.unfit_pkts,
            inside: self.store.used() as u64,
            departed: model.departed,
        }
    }

    /// Returns kind and parameters as a userspace link reports them in [`wire::LinkState::qdiscs`].
    pub fn describe(&self) -> String {
        format!("userspace {}", self.spec.describe())
    }

    /// Returns the row of the table `qdisc_samples` at `at_ns`, to which the link must have been advanced. `names`: of the link and its
    /// interface. Packets that [`VirtualLink::pop`] has returned count as sent.
    pub fn sample(&self, at_ns: u64, names: (&str, &str)) -> wire::QdiscSample {
        let mut now = self.counters;
        now.take_over(&self.model);
        now.memory_bytes = (self.store.used() * self.slot_bytes) as u64;
        report::qdisc_sample(&self.spec, &now, 0, at_ns, names)
    }

    /// Appends at most 100 000 rows of the table `link_changes`, for the steps of the trace since the last call and until `now_ns`.
    pub fn changes(&mut self, now_ns: u64, names: (&str, &str), into: &mut Vec<wire::LinkChange>) {
        let Some(played) = &mut self.played else { return };
        if let Some(began_ns) = self.model.trace_began_ns() {
            played.begin(began_ns);
        }
        played.rows(now_ns, names, into);
    }

    /// Appends the rows of the table `link_packets` since the last call; none without `packet_log`. A buffer holds 131 072 rows. Rows that
    /// exceed the buffer or the plan's limit are counted in [`VirtualLink::timing`].
    pub fn packets(&mut self, (link, iface): (&str, &str), into: &mut Vec<wire::LinkPacket>) {
        let rows = std::iter::from_fn(|| self.recorder.log()?.read());
        into.extend(rows.map(|row| report::packet(link, iface, &row)));
    }

    /// Appends the rows of the table `link_timing`: the steps of the trace that [`VirtualLink::changes`] returned; packets, none of which
    /// is late; and the packet log.
    pub fn timing(
        &self,
        at_ns: u64,
        (link, iface): (&str, &str),
        into: &mut Vec<wire::LinkTiming>,
    ) {
        let (link, iface) = (link.to_owned(), iface.to_owned());
        let row = wire::LinkTiming { at_ns, link, iface, ..wire::LinkTiming::default() };
        into.extend(report::steps_timing(self.played.as_ref(), row.clone()));
        let kind = wire::TimingKind::Packets.into();
        into.push(wire::LinkTiming { kind, count: self.counters.sent_pkts, ..row.clone() });
        into.extend(self.recorder.log().map(|log| report::log_timing(log, row)));
    }
}

#[cfg(test)]
mod tests;
