//! Packets on the simulated path. They have lengths and header fields but no bytes.

use ccbench_proto::plan::Ecn;
use ccbench_proto::resolve;
use ccbench_shaper::virtual_link::{Payload, TcpHeader};

/// Ethernet header.
pub const ETHERNET_BYTES: u32 = resolve::ETHERNET_BYTES.get() as u32;
/// IPv4 header without options.
pub const IP_HEADER_BYTES: u32 = 20;
/// TCP header with the timestamp option.
pub const TCP_HEADER_BYTES: u32 = 32;
/// Payload of a full segment on an MTU of 1500 bytes.
pub const MSS_BYTES: u32 = 1448;
/// IP packet of a full segment, bytes.
pub const MTU_BYTES: u32 = MSS_BYTES + TCP_HEADER_BYTES + IP_HEADER_BYTES;
/// Frame of an ICMP echo of 56 bytes, or of a UDP echo of 64 bytes.
pub const PING_FRAME_BYTES: u32 = ETHERNET_BYTES + IP_HEADER_BYTES + 8 + 56;
pub const UDP_ECHO_FRAME_BYTES: u32 = ETHERNET_BYTES + IP_HEADER_BYTES + 8 + 64;
/// A SYN or SYN-ACK with the usual options.
const SYN_FRAME_BYTES: u32 = ETHERNET_BYTES + IP_HEADER_BYTES + 40;
/// Length of the first SACK block's option with its padding, and of each further block.
const SACK_OPTION_BYTES: u32 = 4;
const SACK_BLOCK_BYTES: u32 = 8;

/// Initial value of AccECN's counter (`TCP_ACCECN_CEP_INIT_OFFSET`). The ACE field has three bits.
const ACCECN_CEP_INIT_OFFSET: u32 = 5;
/// Nanoseconds per tick of the timestamp option (`TCP_TS_HZ`).
const TS_TICK_NS: u64 = 1_000_000;

/// Maximum number of SACK blocks beside the timestamp option.
pub const MAX_SACK_BLOCKS: usize = 3;

/// Half-open range of sequence numbers, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SeqRange {
    pub start_seq: u64,
    pub end_seq: u64,
}

/// A segment with data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Sequence number of its first byte.
    pub seq: u64,
    /// Payload.
    pub bytes: u32,
    /// The timestamp option's TSval.
    pub tsval_ns: u64,
    /// The timestamp option's TSecr: the TSval of the last segment received from the other end.
    pub tsecr_ns: u64,
    /// CWR (RFC 3168): the window was reduced because of ECE.
    pub cwr: bool,
    pub psh: bool,
}

/// A segment of the handshake.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HandshakeSegment {
    /// The timestamp option (RFC 7323).
    pub tsval_ns: u64,
    pub tsecr_ns: u64,
    /// The flags AE, CWR and ECE of a SYN or SYN-ACK (`tcp_accecn_ace()`): 4, 2 and 1.
    pub ace: u8,
}

/// A segment without data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AckSegment {
    /// Next byte that the receiver expects.
    pub ack_seq: u64,
    /// Right edge of the receive window.
    pub window_end: u64,
    pub blocks: [SeqRange; MAX_SACK_BLOCKS],
    pub block_count: u8,
    /// Whether the first block is a D-SACK (RFC 2883).
    pub is_dsack: bool,
    /// The timestamp option's TSval.
    pub tsval_ns: u64,
    /// The timestamp option's TSecr.
    pub tsecr_ns: u64,
    /// ECE (RFC 3168): a segment arrived with CE, and no CWR since then.
    pub ece: bool,
    /// Number of packets that have arrived with CE.
    pub ce_pkts: u32,
    /// Whether AccECN was negotiated: the flags AE, CWR and ECE are then the last bits of the count.
    pub is_accecn: bool,
}

impl AckSegment {
    /// Returns its SACK blocks.
    pub fn sacked(&self) -> &[SeqRange] {
        &self.blocks[..usize::from(self.block_count)]
    }
}

/// An echo request or its reply. A datagram of a stream is a reply without a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Echo {
    /// Index of the probe.
    pub probe: u32,
    pub seq: u32,
    pub is_reply: bool,
    pub frame_bytes: u32,
}

/// Contents of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    Syn(HandshakeSegment),
    SynAck(HandshakeSegment),
    /// The third segment of the handshake.
    HandshakeAck(HandshakeSegment),
    Segment(Segment),
    Ack(AckSegment),
    Echo(Echo),
}

/// A packet on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Index of the route.
    pub route: u32,
    /// Number of links of the route that it has passed.
    pub hop: u16,
    pub ecn: Ecn,
    /// Whether a bit was flipped, so that the receiver's checksum fails.
    pub is_corrupt: bool,
    pub body: Body,
}

impl Packet {
    /// Creates a packet at the beginning of its route.
    pub fn new(route: u32, ecn: Ecn, body: Body) -> Self {
        Self { route, hop: 0, ecn, is_corrupt: false, body }
    }

    /// Returns the bytes of the Ethernet frame without preamble and checksum.
    pub fn frame_bytes(&self) -> u32 {
        const HEADERS: u32 = ETHERNET_BYTES + IP_HEADER_BYTES + TCP_HEADER_BYTES;
        match &self.body {
            Body::Syn(_) | Body::SynAck(_) => SYN_FRAME_BYTES,
            Body::HandshakeAck(_) => HEADERS,
            Body::Segment(segment) => HEADERS + segment.bytes,
            Body::Ack(ack) => match u32::from(ack.block_count) {
                0 => HEADERS,
                blocks => HEADERS + SACK_OPTION_BYTES + SACK_BLOCK_BYTES * blocks,
            },
            Body::Echo(echo) => echo.frame_bytes,
        }
    }

    /// Returns the TCP header of an acknowledgement as Linux sends it. Data flows in only one direction of a connection. In the other one,
    /// which also carries the last segment of the handshake, nothing can be superseded.
    pub fn tcp_header(&self) -> Option<TcpHeader> {
        let Body::Ack(ack) = &self.body else { return None };
        let ace = match ack.is_accecn {
            true => ack.ce_pkts.wrapping_add(ACCECN_CEP_INIT_OFFSET),
            false => u32::from(ack.ece),
        };
        let flags = [(4_u32, TcpHeader::AE), (2, TcpHeader::CWR), (1, TcpHeader::ECE)];
        let flags = flags.into_iter().filter(|(bit, _)| ace & bit != 0);
        let ticks = |at_ns: u64| (at_ns / TS_TICK_NS) as u32;
        let mut header = TcpHeader {
            ack_seq: ack.ack_seq as u32,
            flags: flags.fold(TcpHeader::ACK, |flags, (_, flag)| flags | flag),
            timestamp: Some((ticks(ack.tsval_ns), ticks(ack.tsecr_ns))),
            sack_count: ack.block_count,
            ..TcpHeader::default()
        };
        for (block, range) in header.sack_blocks.iter_mut().zip(ack.sacked()) {
            *block = (range.start_seq as u32, range.end_seq as u32);
        }
        Some(header)
    }
}

impl Payload for Packet {
    fn corrupt(&mut self) {
        self.is_corrupt = true;
    }

    fn set_ecn(&mut self, ecn: Ecn) {
        self.ecn = ecn;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_read_acknowledgements() {
        let ack = AckSegment {
            ack_seq: (1 << 32) + 7,
            tsval_ns: 3_999_999,
            tsecr_ns: 1_000_000,
            ce_pkts: 9,
            ..AckSegment::default()
        };
        let read = |body| Packet::new(0, Ecn::NotEct, body).tcp_header();
        let plain = TcpHeader {
            ack_seq: 7,
            flags: TcpHeader::ACK,
            timestamp: Some((3, 1)),
            ..TcpHeader::default()
        };
        assert_eq!(read(Body::Ack(ack)), Some(plain));
        let mut sacked = AckSegment { block_count: 1, ..ack };
        sacked.blocks[0] = SeqRange { start_seq: (1 << 32) + 9, end_seq: (1 << 32) + 11 };
        let found = read(Body::Ack(sacked)).unwrap();
        assert_eq!((found.sack_count, found.sack_blocks[0]), (1, (9, 11)));
        assert_eq!(read(Body::HandshakeAck(HandshakeSegment::default())), None);
        let flags = |ack| read(Body::Ack(ack)).unwrap().flags & !TcpHeader::ACK;
        assert_eq!(flags(AckSegment { ece: true, ..ack }), TcpHeader::ECE);
        // 9 + 5 is 6 modulo 8; without any mark, it is 5.
        let accurate = AckSegment { is_accecn: true, ..ack };
        assert_eq!(flags(accurate), TcpHeader::AE | TcpHeader::CWR);
        let unmarked = AckSegment { ce_pkts: 0, ..accurate };
        assert_eq!(flags(unmarked), TcpHeader::AE | TcpHeader::ECE);
    }

    #[test]
    fn frames_have_the_lengths_that_linux_sends() {
        let frame = |body| Packet::new(0, Ecn::NotEct, body).frame_bytes();
        let full =
            Segment { seq: 0, bytes: MSS_BYTES, tsval_ns: 0, tsecr_ns: 0, cwr: false, psh: false };
        assert_eq!(frame(Body::Segment(full)), 1514);
        assert_eq!(frame(Body::Ack(AckSegment::default())), 66);
        assert_eq!(frame(Body::Ack(AckSegment { block_count: 1, ..AckSegment::default() })), 78);
        assert_eq!(frame(Body::Syn(HandshakeSegment::default())), 74);
        assert_eq!(PING_FRAME_BYTES, 98);
    }
}
