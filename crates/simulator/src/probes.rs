//! Probes: echoes over ICMP and UDP, and streams over UDP. A stream begins at the probe's start, without the requests that an agent sends.

use ccbench_proto::plan::probe::STREAM_PACKET_BYTES;
use ccbench_proto::plan::{Ecn, ProbeKind, Repeat};
use ccbench_proto::schedule::ProbeTask;
use ccbench_proto::units::Rate;
use ccbench_proto::wire;

use crate::packet::{Body, ETHERNET_BYTES, Echo, PING_FRAME_BYTES, Packet, UDP_ECHO_FRAME_BYTES};

/// A probe and its echoes.
pub struct SimulatedProbe {
    pub node: String,
    task: ProbeTask,
    index: u32,
    /// Forward and reverse route.
    pub routes: [u32; 2],
    next_seq: u32,
    /// Echoes that have not been answered.
    outstanding: Vec<OutstandingEcho>,
    /// Bytes of IP that have arrived from a stream in this interval.
    arrived_bytes: u64,
}

/// An echo request that has not been answered yet.
struct OutstandingEcho {
    seq: u32,
    sent_ns: u64,
}

/// An echo that a probe sends.
pub struct SentEcho {
    pub packet: Packet,
    /// When the echo counts as lost, or when the first interval of a stream ends.
    pub timeout_ns: Option<u64>,
    /// When the next one is sent, if known.
    pub next_ns: Option<u64>,
}

/// Returns the row of a measurement that has just begun.
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
        Self { node, task, index, routes, next_seq: 0, outstanding: Vec::new(), arrived_bytes: 0 }
    }

    /// Returns the time of the first echo after the beginning of the trial, nanoseconds.
    pub fn start_ns(&self) -> u64 {
        self.task.plan.start.nanos()
    }

    fn is_stream(&self) -> bool {
        self.task.plan.kind == ProbeKind::UdpStream
    }

    /// Sends the next datagram of a stream. Its time is computed from its number, so that rounding errors do not add up.
    fn send_datagram(&mut self, now_ns: u64) -> SentEcho {
        let seq = self.next_seq;
        self.next_seq += 1;
        // The plan's check requires a rate.
        let rate_bps = self.task.plan.rate.map_or(1, Rate::bits_per_sec);
        let due_ns = |number: u32| {
            let bits = u128::from(number) * u128::from(STREAM_PACKET_BYTES) * 8;
            (bits * 1_000_000_000 / u128::from(rate_bps)) as u64
        };
        let frame_bytes = ETHERNET_BYTES + STREAM_PACKET_BYTES;
        // The events at the ends of intervals number them.
        let echo = Echo { probe: self.index, seq: 0, is_reply: true, frame_bytes };
        SentEcho {
            packet: Packet::new(
                self.routes[1],
                Ecn::from_bits(self.task.plan.tos),
                Body::Echo(echo),
            ),
            timeout_ns: (seq == 0).then(|| now_ns + self.task.plan.every.nanos()),
            next_ns: Some(now_ns + due_ns(seq + 1) - due_ns(seq)),
        }
    }

    /// Returns the end of the interval of a stream that follows the one that ends now.
    pub fn next_interval_ns(&self, now_ns: u64) -> Option<u64> {
        self.is_stream().then(|| now_ns + self.task.plan.every.nanos())
    }

    /// Sends the next echo.
    pub fn send(&mut self, now_ns: u64) -> SentEcho {
        if self.is_stream() {
            return self.send_datagram(now_ns);
        }
        let seq = self.next_seq;
        self.next_seq += 1;
        self.outstanding.push(OutstandingEcho { seq, sent_ns: now_ns });
        let is_ping = self.task.plan.kind == ProbeKind::Ping;
        let frame_bytes = if is_ping { PING_FRAME_BYTES } else { UDP_ECHO_FRAME_BYTES };
        let echo = Echo { probe: self.index, seq, is_reply: false, frame_bytes };
        let repeats = self.task.plan.repeat == Repeat::Interval;
        SentEcho {
            packet: Packet::new(
                self.routes[0],
                Ecn::from_bits(self.task.plan.tos),
                Body::Echo(echo),
            ),
            timeout_ns: Some(now_ns + self.task.plan.timeout().nanos()),
            next_ns: repeats.then(|| now_ns + self.task.plan.every.nanos()),
        }
    }

    /// Returns the other node's reply, with the same TOS byte.
    pub fn answer(&self, echo: Echo) -> Packet {
        let reply = Echo { is_reply: true, ..echo };
        Packet::new(self.routes[1], Ecn::from_bits(self.task.plan.tos), Body::Echo(reply))
    }

    /// Ends an echo with its reply or its timeout. Returns `None` if it has already ended. For a stream, a datagram is counted, and the end
    /// of the interval `seq` returns its row.
    pub fn finish(&mut self, now_ns: u64, seq: u32, is_lost: bool) -> Option<wire::Probe> {
        if self.is_stream() {
            if !is_lost {
                self.arrived_bytes += u64::from(STREAM_PACKET_BYTES);
                return None;
            }
            let bytes = Some(std::mem::take(&mut self.arrived_bytes));
            let begin_ns = now_ns - self.task.plan.every.nanos();
            return Some(wire::Probe { bytes, ..row(&self.task, seq, begin_ns) });
        }
        let at = self.outstanding.iter().position(|echo| echo.seq == seq)?;
        let OutstandingEcho { sent_ns, .. } = self.outstanding.swap_remove(at);
        let rtt_us = (now_ns - sent_ns) as f64 / 1000.0;
        let rtt_us = (!is_lost).then_some(rtt_us);
        Some(wire::Probe { rtt_us, lost: is_lost, ..row(&self.task, seq, sent_ns) })
    }

    /// Returns whether the next echo follows the end of the last one.
    pub fn is_back_to_back(&self) -> bool {
        self.task.plan.repeat == Repeat::BackToBack
    }
}
