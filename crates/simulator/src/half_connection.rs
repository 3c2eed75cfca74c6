//! A half-connection (the term of RFC 4340): the sender of one end of a TCP connection, the receiver of the other end, and the events of
//! their timers.

use ccbench_proto::plan::Ecn;

use crate::packet::{Body, Packet, Segment};
use crate::tcp::{EcnMode, Receiver, Sender};

/// A timer of a sender or a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketTimer {
    /// `icsk_retransmit_timer`.
    Retransmission,
    /// `tp->pacing_timer`.
    Pacing,
    /// `icsk_delack_timer` and `tp->compressed_ack_timer` of the receiver.
    DelayedAck,
}

impl SocketTimer {
    /// All timers in order of declaration.
    pub const ALL: [Self; 3] = [Self::Retransmission, Self::Pacing, Self::DelayedAck];
}

/// One direction of a connection. Data flows from the sender to the receiver, acknowledgements flow back.
pub struct HalfConnection {
    pub sender: Sender,
    pub receiver: Receiver,
    /// Routes of segments and of acknowledgements.
    routes: [u32; 2],
    ecn: EcnMode,
    /// Times of the queued events of the timers; `u64::MAX`: none.
    queued_event_ns: [u64; SocketTimer::ALL.len()],
}

impl HalfConnection {
    pub fn new(sender: Sender, receiver: Receiver, routes: [u32; 2], ecn: EcnMode) -> Self {
        let queued_event_ns = [u64::MAX; SocketTimer::ALL.len()];
        Self { sender, receiver, routes, ecn, queued_event_ns }
    }

    /// Processes a segment with data. Returns its acknowledgement.
    pub fn on_segment(&mut self, now_ns: u64, segment: &Segment, ecn: Ecn) -> Option<Packet> {
        let ack = self.receiver.on_segment(now_ns, segment, ecn)?;
        Some(Packet::new(self.routes[1], Ecn::NotEct, Body::Ack(ack)))
    }

    /// Returns the segments that the sender has output since the last call.
    pub fn sent(&mut self) -> impl Iterator<Item = Packet> {
        let (route, mode) = (self.routes[0], self.ecn);
        self.sender.outbox.drain(..).map(move |(segment, is_retransmission)| {
            Packet::new(route, mode.field(is_retransmission), Body::Segment(segment))
        })
    }

    /// Returns whether this event of a timer is the queued one. Otherwise it is stale: the timer was queued again for another time.
    pub fn take_event(&mut self, now_ns: u64, timer: SocketTimer) -> bool {
        let queued_ns = &mut self.queued_event_ns[timer as usize];
        let is_queued = *queued_ns == now_ns;
        if is_queued {
            *queued_ns = u64::MAX;
        }
        is_queued
    }

    /// Processes the event of a timer. Returns an acknowledgement that was delayed.
    pub fn on_timer(&mut self, now_ns: u64, timer: SocketTimer) -> Option<Packet> {
        match timer {
            SocketTimer::Retransmission => self.sender.on_timer(now_ns),
            SocketTimer::Pacing => self.sender.on_pacing_timer(now_ns),
            SocketTimer::DelayedAck => {
                let ack = self.receiver.on_timer(now_ns)?;
                return Some(Packet::new(self.routes[1], Ecn::NotEct, Body::Ack(ack)));
            }
        }
        None
    }

    /// Returns when to queue an event for a timer. `None`: the timer is not armed, or an earlier event is queued, which then queues the
    /// next.
    pub fn queue_event(&mut self, now_ns: u64, timer: SocketTimer) -> Option<u64> {
        let wanted_ns = match timer {
            SocketTimer::Retransmission => self.sender.timer_ns(),
            SocketTimer::Pacing => self.sender.pacing_until_ns(),
            SocketTimer::DelayedAck => self.receiver.timer_ns(),
        };
        let queued_ns = &mut self.queued_event_ns[timer as usize];
        let at_ns = wanted_ns.filter(|wanted_ns| *wanted_ns < *queued_ns)?.max(now_ns);
        *queued_ns = at_ns;
        Some(at_ns)
    }
}
