//! Probes: echoes over ICMP and UDP.

use ccbench_proto::plan::{Ecn, ProbeKind, Repeat};
use ccbench_proto::schedule::ProbeTask;
use ccbench_proto::wire;

use crate::packet::{Body, Echo, PING_FRAME_BYTES, Packet, UDP_ECHO_FRAME_BYTES};

/// A probe and its echoes.
pub struct SimulatedProbe {
    pub node: String,
    task: ProbeTask,
    index: u32,
    /// There and back.
    pub routes: [u32; 2],
    next_seq: u32,
    /// Echoes without an answer.
    outstanding: Vec<OutstandingEcho>,
}

/// An echo request that is not answered yet.
struct OutstandingEcho {
    seq: u32,
    sent_ns: u64,
}

/// An echo that a probe sends.
pub struct SentEcho {
    pub packet: Packet,
    /// When the echo is lost.
    pub timeout_ns: u64,
    /// When the next one is sent, if that is known already.
    pub next_ns: Option<u64>,
}

/// The row of a measurement that has just begun.
pub fn row(task: &ProbeTask, seq: u32, at_ns: u64) -> wire::Probe {
    wire::Probe {
        at_ns,
        probe_id: task.id.clone(),
        kind: wire::ProbeKind::from(task.plan.kind).into(),
        seq,
        tos: task.plan.tos.into(),
        ..wire::Probe::default()
    }
}

impl SimulatedProbe {
    pub fn new(node: String, task: ProbeTask, index: u32, routes: [u32; 2]) -> Self {
        Self { node, task, index, routes, next_seq: 0, outstanding: Vec::new() }
    }

    /// Time of the first echo after the trial's beginning, nanoseconds.
    pub fn start_ns(&self) -> u64 {
        self.task.plan.start.nanos()
    }

    /// Sends the next echo.
    pub fn send(&mut self, now_ns: u64) -> SentEcho {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.outstanding.push(OutstandingEcho { seq, sent_ns: now_ns });
        let is_ping = self.task.plan.kind == ProbeKind::Ping;
        let frame_bytes = if is_ping { PING_FRAME_BYTES } else { UDP_ECHO_FRAME_BYTES };
        let echo = Echo { probe: self.index, seq, is_reply: false, frame_bytes };
        let repeats = self.task.plan.repeat == Repeat::Interval;
        SentEcho {
            packet: Packet::new(self.routes[0], Ecn::of(self.task.plan.tos), Body::Echo(echo)),
            timeout_ns: now_ns + self.task.plan.timeout().nanos(),
            next_ns: repeats.then(|| now_ns + self.task.plan.every.nanos()),
        }
    }

    /// The other node's reply, with the same TOS byte.
    pub fn answer(&self, echo: Echo) -> Packet {
        let reply = Echo { is_reply: true, ..echo };
        Packet::new(self.routes[1], Ecn::of(self.task.plan.tos), Body::Echo(reply))
    }

    /// Ends an echo with its reply or its timeout. `None`: it has already ended.
    pub fn finish(&mut self, now_ns: u64, seq: u32, is_lost: bool) -> Option<wire::Probe> {
        let at = self.outstanding.iter().position(|echo| echo.seq == seq)?;
        let OutstandingEcho { sent_ns, .. } = self.outstanding.swap_remove(at);
        let rtt_us = (now_ns - sent_ns) as f64 / 1000.0;
        let rtt_us = (!is_lost).then_some(rtt_us);
        Some(wire::Probe { rtt_us, lost: is_lost, ..row(&self.task, seq, sent_ns) })
    }

    /// Whether the next echo follows the end of the last one.
    pub fn is_back_to_back(&self) -> bool {
        self.task.plan.repeat == Repeat::BackToBack
    }
}
