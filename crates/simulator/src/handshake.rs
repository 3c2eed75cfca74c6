//! The handshake of a TCP connection: SYN, SYN-ACK and the acknowledgement of the connecting end. A SYN that gets no answer is sent again.
//! Each end takes its first RTT from segments that were sent only once, otherwise from their timestamps. The flags of SYN and SYN-ACK
//! negotiate ECN.

use ccbench_proto::plan::Ecn;

use crate::ecn_negotiation::{EcnSettings, EcnVariant};
use crate::packet::{Body, HandshakeSegment, Packet};
use crate::tcp::{Established, TCP_INIT_CWND, TCP_TIMEOUT_INIT_US, tsval_ms, wheel_ns};

/// `tcp_syn_linear_timeouts`: number of timeouts before the timeout doubles.
const LINEAR_TIMEOUTS: u32 = 4;
/// Maximum number of SYNs: `tcp_syn_retries` + `tcp_syn_linear_timeouts` + 1.
const MAX_ATTEMPTS: u32 = 11;

/// Result of a segment of the handshake.
pub struct HandshakeStep {
    /// The answer of the end that got the segment.
    pub answer: Option<Packet>,
    /// What that end has measured, if the connection now exists for it.
    pub established: Option<Established>,
}

/// Both ends of a handshake.
pub struct Handshake {
    /// Routes from the connecting end to the listening end, and back.
    routes: [u32; 2],
    /// Number of SYNs sent so far, and when the first one was sent.
    attempts: u32,
    syn_sent_ns: u64,
    /// TSval of the first SYN-ACK that has arrived; 0 before that.
    ts_recent_ns: u64,
    request: Option<Request>,
    ecn: EcnSettings,
    /// What the first SYN-ACK negotiated; `None` before that.
    negotiated: Option<EcnVariant>,
}

/// The listener's part (`struct tcp_request_sock`).
struct Request {
    /// TSval of the first SYN that has arrived.
    ts_recent_ns: u64,
    /// `snt_synack`: when the SYN was first answered.
    syn_ack_sent_ns: u64,
    /// SYN-ACKs sent so far.
    syn_acks: u32,
    /// What the first SYN requested, limited to what the listener accepts.
    ecn: EcnVariant,
}

/// Returns the RTT from TSecr, whose tick is one millisecond: `tcp_rtt_tsopt_us()`.
fn rtt_tsopt_ns(now_ns: u64, segment: &HandshakeSegment) -> u64 {
    (tsval_ms(now_ns) - tsval_ms(segment.tsecr_ns)).max(1) * 1_000_000
}

impl Handshake {
    pub fn new(routes: [u32; 2], ecn: EcnSettings) -> Self {
        Self {
            routes,
            attempts: 0,
            syn_sent_ns: 0,
            ts_recent_ns: 0,
            request: None,
            ecn,
            negotiated: None,
        }
    }

    /// Returns what both ends have negotiated, valid from the first SYN-ACK on.
    pub fn negotiated(&self) -> EcnVariant {
        self.negotiated.unwrap_or_default()
    }

    /// Sends a SYN, possibly again. Returns it and when to try again. `None`: no attempt is left.
    pub fn open(&mut self, now_ns: u64) -> Option<(Packet, u64)> {
        if self.attempts >= MAX_ATTEMPTS {
            return None;
        }
        let timeout_ns =
            (TCP_TIMEOUT_INIT_US * 1000) << self.attempts.saturating_sub(LINEAR_TIMEOUTS);
        if self.attempts == 0 {
            self.syn_sent_ns = now_ns;
        }
        let ace = self.ecn.syn_ace(self.attempts);
        self.attempts += 1;
        let syn = Body::Syn(HandshakeSegment { tsval_ns: now_ns, tsecr_ns: 0, ace });
        Some((self.client_packet(syn), wheel_ns(now_ns, timeout_ns)))
    }

    /// Processes a segment of the handshake.
    pub fn on_segment(&mut self, now_ns: u64, body: &Body) -> HandshakeStep {
        match body {
            Body::Syn(segment) => self.on_syn(now_ns, segment),
            Body::SynAck(segment) => {
                if self.ts_recent_ns == 0 {
                    self.ts_recent_ns = segment.tsval_ns;
                }
                self.negotiated.get_or_insert(self.ecn.request.of_syn_ack(segment.ace));
                let answer = Some(self.acknowledge(now_ns));
                let established = Some(self.connected(now_ns, segment));
                HandshakeStep { answer, established }
            }
            Body::HandshakeAck(segment) => {
                HandshakeStep { answer: None, established: self.accepted(now_ns, segment) }
            }
            _ => HandshakeStep { answer: None, established: None },
        }
    }

    fn on_syn(&mut self, now_ns: u64, segment: &HandshakeSegment) -> HandshakeStep {
        let request = self.request.get_or_insert(Request {
            ts_recent_ns: segment.tsval_ns,
            syn_ack_sent_ns: now_ns,
            syn_acks: 0,
            ecn: self.ecn.accept.of_syn(segment.ace),
        });
        request.syn_acks += 1;
        let (tsval_ns, tsecr_ns) = (now_ns, request.ts_recent_ns);
        let ace = request.ecn.syn_ack_ace();
        let syn_ack = Body::SynAck(HandshakeSegment { tsval_ns, tsecr_ns, ace });
        let answer = Some(Packet::new(self.routes[1], Ecn::NotEct, syn_ack));
        HandshakeStep { answer, established: None }
    }

    /// `tcp_rcv_synsent_state_process()`.
    fn connected(&self, now_ns: u64, segment: &HandshakeSegment) -> Established {
        let rtt_ns = match self.attempts {
            1 => now_ns - self.syn_sent_ns,
            _ => rtt_tsopt_ns(now_ns, segment),
        };
        // `tcp_init_transfer()`. Timeouts are spurious if the first SYN is answered (`tcp_try_undo_spurious_syn()`).
        let is_spurious = tsval_ms(segment.tsecr_ns) == tsval_ms(self.syn_sent_ns);
        let init_cwnd = if self.attempts > 2 && !is_spurious { 1 } else { TCP_INIT_CWND };
        Established { rtt_ns, ts_recent_ns: self.ts_recent_ns, init_cwnd }
    }

    /// `tcp_synack_rtt_meas()`.
    fn accepted(&self, now_ns: u64, segment: &HandshakeSegment) -> Option<Established> {
        let request = self.request.as_ref()?;
        let rtt_ns = match request.syn_acks {
            1 => now_ns - request.syn_ack_sent_ns,
            _ => rtt_tsopt_ns(now_ns, segment),
        };
        let ts_recent_ns = segment.tsval_ns;
        Some(Established { rtt_ns, ts_recent_ns, init_cwnd: TCP_INIT_CWND })
    }

    /// Returns the third segment.
    pub fn acknowledge(&self, now_ns: u64) -> Packet {
        let (tsval_ns, tsecr_ns) = (now_ns, self.ts_recent_ns);
        let segment = HandshakeSegment { tsval_ns, tsecr_ns, ..HandshakeSegment::default() };
        self.client_packet(Body::HandshakeAck(segment))
    }

    fn client_packet(&self, body: Body) -> Packet {
        Packet::new(self.routes[0], Ecn::NotEct, body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Returns a handshake whose SYNs are sent at these times, and the SYNs.
    fn opened(at_ms: &[u64]) -> (Handshake, Vec<Body>) {
        let mut handshake = Handshake::new([0, 1], EcnSettings::default());
        let mut open = |at_ms: &u64| handshake.open(at_ms * MS).unwrap().0.body;
        let syns = at_ms.iter().map(&mut open).collect();
        (handshake, syns)
    }

    fn established(handshake: &mut Handshake, at_ns: u64, body: &Body) -> Established {
        handshake.on_segment(at_ns, body).established.unwrap()
    }

    fn answer(handshake: &mut Handshake, at_ns: u64, body: &Body) -> Body {
        handshake.on_segment(at_ns, body).answer.unwrap().body
    }

    #[test]
    fn segments_that_are_sent_once_give_an_exact_rtt() {
        let (mut handshake, syns) = opened(&[1000]);
        let syn_ack = answer(&mut handshake, 1010 * MS + 700, &syns[0]);
        let client = established(&mut handshake, 1020 * MS + 1400, &syn_ack);
        assert_eq!((client.rtt_ns, client.ts_recent_ns), (20 * MS + 1400, 1010 * MS + 700));
        let ack = answer(&mut handshake, 1020 * MS + 1400, &syn_ack);
        let server = established(&mut handshake, 1030 * MS + 2100, &ack);
        assert_eq!((server.rtt_ns, server.ts_recent_ns), (20 * MS + 1400, 1020 * MS + 1400));
    }

    #[test]
    fn an_answer_to_a_repeated_syn_counts_from_the_syn_that_it_echoes() {
        // The first SYN is lost.
        let (mut handshake, syns) = opened(&[1000, 2023]);
        let syn_ack = answer(&mut handshake, 2033 * MS, &syns[1]);
        assert_eq!(established(&mut handshake, 2043 * MS, &syn_ack).rtt_ns, 20 * MS);
        // The first SYN is answered late.
        let (mut handshake, syns) = opened(&[1000, 2023]);
        let syn_ack = answer(&mut handshake, 1600 * MS, &syns[0]);
        let second = answer(&mut handshake, 2623 * MS, &syns[1]);
        let client = established(&mut handshake, 2200 * MS, &syn_ack);
        assert_eq!((client.rtt_ns, client.init_cwnd), (1200 * MS, TCP_INIT_CWND));
        // The repeated SYN-ACK also echoes the first SYN.
        assert_eq!(established(&mut handshake, 3223 * MS, &second).rtt_ns, 2223 * MS);
    }

    #[test]
    fn an_acknowledgement_of_a_repeated_syn_ack_counts_from_the_one_that_it_echoes() {
        let (mut handshake, syns) = opened(&[1000, 2023]);
        // The first SYN-ACK is lost.
        answer(&mut handshake, 1010 * MS, &syns[0]);
        let syn_ack = answer(&mut handshake, 2033 * MS, &syns[1]);
        let ack = answer(&mut handshake, 2043 * MS, &syn_ack);
        assert_eq!(established(&mut handshake, 2053 * MS, &ack).rtt_ns, 20 * MS);
    }

    #[test]
    fn the_first_syn_that_arrives_decides_on_ecn() {
        let ecn = EcnSettings {
            request: EcnVariant::Rfc3168,
            accept: EcnVariant::AccEcn,
            has_fallback: true,
        };
        // The first SYN arrives after the second one was sent, or it is lost.
        for (lost, negotiated) in [(false, EcnVariant::Rfc3168), (true, EcnVariant::NoEcn)] {
            let mut handshake = Handshake::new([0, 1], ecn);
            let syns = [1000, 2023].map(|at_ms| handshake.open(at_ms * MS).unwrap().0.body);
            assert_eq!(handshake.negotiated(), EcnVariant::NoEcn);
            for (at_ms, syn) in [(2100, syns[0]), (2110, syns[1])].iter().skip(usize::from(lost)) {
                let syn_ack = answer(&mut handshake, at_ms * MS, syn);
                handshake.on_segment((at_ms + 10) * MS, &syn_ack);
            }
            assert_eq!(handshake.negotiated(), negotiated, "{lost}");
        }
    }

    #[test]
    fn two_lost_syns_leave_a_window_of_one_segment() {
        let (mut handshake, syns) = opened(&[1000, 2023, 3047]);
        let syn_ack = answer(&mut handshake, 3057 * MS, &syns[2]);
        assert_eq!(established(&mut handshake, 3067 * MS, &syn_ack).init_cwnd, 1);
        // No reduction if the first SYN is answered after all.
        let (mut handshake, syns) = opened(&[1000, 2023, 3047]);
        let syn_ack = answer(&mut handshake, 3057 * MS, &syns[0]);
        assert_eq!(established(&mut handshake, 3067 * MS, &syn_ack).init_cwnd, TCP_INIT_CWND);
    }
}
