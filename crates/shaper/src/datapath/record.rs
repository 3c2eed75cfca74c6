//! Records each packet's scheduling error and, with a packet log, what became of it.

use std::sync::Arc;

use super::header::Ecn;
use super::log::{Fate, Log, Passed, Row};
use super::model::LinkModel;
use super::packet::Packet;
use super::shared::Shared;
use crate::discipline::QueueStats;

/// Metadata of a packet, recorded on arrival.
#[derive(Debug, Clone, Copy, Default)]
struct ArrivalInfo {
    arrived_ns: u64,
    bytes: u32,
    flow: u32,
    ecn: Ecn,
}

/// Records packets for the control side.
#[derive(Debug)]
pub(crate) struct Recorder {
    shared: Arc<Shared>,
    /// Indexed by slot; empty without a log.
    arrivals: Vec<ArrivalInfo>,
    /// The queue's drop counters so far, and the number of acknowledgements that the filter has dropped.
    reported: QueueStats,
    reported_acks: u64,
}

impl Recorder {
    /// Creates a recorder for slots below `slots`.
    pub(crate) fn new(shared: Arc<Shared>, slots: u32) -> Self {
        let logged = if shared.log.is_some() { slots as usize } else { 0 };
        let (arrivals, reported) = (vec![ArrivalInfo::default(); logged], QueueStats::default());
        Self { shared, arrivals, reported, reported_acks: 0 }
    }

    /// Whether there is a log.
    pub(crate) fn is_logging(&self) -> bool {
        !self.arrivals.is_empty()
    }

    /// Records that a packet arrived in its slot.
    pub(crate) fn arrived(&mut self, packet: &Packet) {
        if let Some(arrival) = self.arrivals.get_mut(packet.slot as usize) {
            let Packet { bytes, at_ns, flow, ecn, .. } = *packet;
            *arrival = ArrivalInfo { arrived_ns: at_ns, bytes, flow, ecn };
        }
    }

    /// Records that the packet in slot `from` was copied to slot `to`.
    pub(crate) fn copied(&mut self, from: u32, to: u32) {
        if let Some(arrival) = self.arrivals.get(from as usize).copied() {
            self.arrivals[to as usize] = arrival;
        }
    }

    /// Records that a packet was dropped before it entered the link.
    pub(crate) fn dropped(&self, packet: &Packet, fate: Fate) {
        let Packet { bytes, at_ns, flow, ecn, .. } = *packet;
        self.write(&Row { arrived_ns: at_ns, bytes, flow, ecn, fate, marked: false, passed: None });
    }

    /// Advances `model` to `horizon_ns`. Slots of packets that the queue dropped go to `freed`. With a log, advances event by event, to
    /// attribute each drop to its cause.
    pub(crate) fn advance(&mut self, model: &mut LinkModel, horizon_ns: u64, freed: &mut Vec<u32>) {
        if !self.is_logging() {
            return model.advance(horizon_ns, freed);
        }
        loop {
            let step_ns = model.next_event_ns().min(horizon_ns);
            let before = freed.len();
            model.advance(step_ns, freed);
            self.dropped_by_queue(&freed[before..], model);
            if step_ns >= horizon_ns {
                return;
            }
        }
    }

    /// Records that the queue of `model`, or its ACK filter, dropped the packets in `slots` in one step. If the step has several causes,
    /// their assignment to packets is a guess.
    pub(crate) fn dropped_by_queue(&mut self, slots: &[u32], model: &LinkModel) {
        if slots.is_empty() || !self.is_logging() {
            return;
        }
        let stats = model.queue_stats();
        let early = stats.drop_early - self.reported.drop_early;
        let overlimit = stats.drop_overlimit - self.reported.drop_overlimit;
        self.reported = stats;
        let acks = model.counts().acks_filtered;
        let filtered = acks - self.reported_acks;
        self.reported_acks = acks;
        for (nth, slot) in (0..).zip(slots) {
            let ArrivalInfo { arrived_ns, bytes, flow, ecn } = self.arrivals[*slot as usize];
            let fate = match nth {
                // Filtered acknowledgements come first: the queue may then drop the packet that superseded them.
                nth if nth < filtered => Fate::AckFilter,
                nth if nth < filtered + early => Fate::Early,
                nth if nth < filtered + early + overlimit => Fate::Overlimit,
                _ => Fate::Overmemory,
            };
            self.write(&Row { arrived_ns, bytes, flow, ecn, fate, marked: false, passed: None });
        }
    }

    /// Records that a packet that was due at `packet.at_ns` was sent at `now_ns`, or that the device rejected it.
    pub(crate) fn released(&self, packet: &Packet, now_ns: u64, sent: bool) {
        if sent {
            self.shared.scheduling_error.record(now_ns.saturating_sub(packet.at_ns));
        }
        let Some(arrival) = self.arrivals.get(packet.slot as usize) else { return };
        self.write(&Row {
            arrived_ns: arrival.arrived_ns,
            bytes: arrival.bytes,
            flow: arrival.flow,
            ecn: arrival.ecn,
            fate: if sent { Fate::Sent } else { Fate::Device },
            marked: packet.marked,
            passed: Some(Passed {
                queued_ns: packet.queued_ns,
                waited_us: packet.waited_us,
                due_ns: packet.at_ns,
                sent_ns: sent.then_some(now_ns),
            }),
        });
    }

    fn write(&self, row: &Row) {
        if let Some(log) = self.log() {
            log.write(row);
        }
    }

    /// The log, if enabled.
    pub(crate) fn log(&self) -> Option<&Log> {
        self.shared.log.as_ref()
    }
}
