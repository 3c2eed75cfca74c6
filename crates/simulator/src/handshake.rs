//! The handshake of a TCP connection: SYN, SYN-ACK and the acknowledgement of the end that connects. A SYN without an answer is
//! sent again.

use ccbench_proto::plan::Ecn;

use crate::packet::{Body, Packet};
use crate::tcp::{TCP_TIMEOUT_INIT_US, wheel_ns};

/// `tcp_syn_linear_timeouts`: so many timeouts come before the first that doubles.
const LINEAR_TIMEOUTS: u32 = 4;
/// SYNs at most: `tcp_syn_retries` + `tcp_syn_linear_timeouts` + 1.
const MAX_ATTEMPTS: u32 = 11;

/// What a segment of the handshake causes.
pub struct HandshakeStep {
    /// The other end's answer.
    pub answer: Option<Packet>,
    /// The RTT that the end which got the segment measures, if the connection exists for it now.
    pub rtt_ns: Option<u64>,
}

/// Both ends of a handshake.
pub struct Handshake {
    /// From the end that connects to the one that listens, and back.
    routes: [u32; 2],
    /// SYNs sent so far, and when the last one was.
    attempts: u32,
    syn_sent_ns: u64,
    /// When the listener answered it first.
    syn_ack_sent_ns: Option<u64>,
}

impl Handshake {
    pub fn new(routes: [u32; 2]) -> Self {
        Self { routes, attempts: 0, syn_sent_ns: 0, syn_ack_sent_ns: None }
    }

    /// Sends a SYN, also again; returns it and when to try again. `None`: no attempt is left.
    pub fn open(&mut self, now_ns: u64) -> Option<(Packet, u64)> {
        if self.attempts >= MAX_ATTEMPTS {
            return None;
        }
        let timeout_ns =
            (TCP_TIMEOUT_INIT_US * 1000) << self.attempts.saturating_sub(LINEAR_TIMEOUTS);
        self.attempts += 1;
        (self.syn_sent_ns, self.syn_ack_sent_ns) = (now_ns, None);
        Some((self.client_packet(Body::Syn), wheel_ns(now_ns, timeout_ns)))
    }

    /// A segment of the handshake arrives.
    pub fn on_segment(&mut self, now_ns: u64, body: &Body) -> HandshakeStep {
        match body {
            Body::Syn => {
                self.syn_ack_sent_ns.get_or_insert(now_ns);
                let syn_ack = Packet::new(self.routes[1], Ecn::NotEct, Body::SynAck);
                HandshakeStep { answer: Some(syn_ack), rtt_ns: None }
            }
            Body::SynAck => HandshakeStep {
                answer: Some(self.acknowledge()),
                rtt_ns: Some(now_ns - self.syn_sent_ns),
            },
            _ => {
                let rtt_ns = self.syn_ack_sent_ns.map(|sent_ns| now_ns - sent_ns);
                HandshakeStep { answer: None, rtt_ns }
            }
        }
    }

    /// The third segment.
    pub fn acknowledge(&self) -> Packet {
        self.client_packet(Body::HandshakeAck)
    }

    fn client_packet(&self, body: Body) -> Packet {
        Packet::new(self.routes[0], Ecn::NotEct, body)
    }
}
