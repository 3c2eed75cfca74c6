//! What CAKE's ACK filter reads of a TCP segment, and how it compares two segments of a connection, with the names of
//! `net/sched/sch_cake.c`.
//!
//! Differences from the kernel: segments in tunnels and fragments are not read. An acknowledgement that has the same option twice is not
//! dropped.

use std::cmp::Ordering;

use super::header::{self, IPV6_BYTES, Ip, TCP, TCP_BYTES};

/// Maximum number of SACK blocks in 40 bytes of options.
const MAX_SACK_BLOCKS: usize = 4;

/// Kinds of options.
const EOL: u8 = 0;
const NOP: u8 = 1;
const SACK: u8 = 5;
const TIMESTAMP: u8 = 8;
const MD5SIG: u8 = 19;

/// Header fields of a TCP segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TcpHeader {
    /// Acknowledgement number.
    pub ack_seq: u32,
    /// The 12 bits between data offset and window: three reserved ones, AE, CWR, ECE, URG, ACK, PSH, RST, SYN, FIN.
    pub flags: u16,
    /// Whether the segment has data.
    pub has_data: bool,
    /// TSval and TSecr of the timestamp option.
    pub timestamp: Option<(u32, u32)>,
    /// Left and right edge of each SACK block. Only the first `sack_count` are valid.
    pub sack_blocks: [(u32, u32); MAX_SACK_BLOCKS],
    /// Number of SACK blocks.
    pub sack_count: u8,
    /// Whether there is an option other than timestamp, SACK, MD5 digest and padding, or one of these with a wrong length.
    pub has_other_options: bool,
}

impl TcpHeader {
    /// A flag of [`Self::flags`], as are the others below.
    pub const ACK: u16 = 0x010;
    /// Echoes congestion (RFC 3168).
    pub const ECE: u16 = 0x040;
    /// Congestion window reduced (RFC 3168).
    pub const CWR: u16 = 0x080;
    /// The third bit of AccECN's counter.
    pub const AE: u16 = 0x100;
    const FIN: u16 = 0x001;
    const SYN: u16 = 0x002;
    const RST: u16 = 0x004;
    const URG: u16 = 0x020;

    /// Returns whether the segment is a pure acknowledgement: it has neither data nor SYN, FIN, RST or URG.
    pub(crate) fn is_pure_ack(&self) -> bool {
        const OTHER: u16 = TcpHeader::SYN | TcpHeader::FIN | TcpHeader::RST | TcpHeader::URG;
        !self.has_data && self.flags & (Self::ACK | OTHER) == Self::ACK
    }

    /// Applies the part of `cake_tcph_may_drop()` that does not depend on a later segment, and requires that there is no data: ACK is the
    /// only flag besides ECE and CWR (neither PSH nor AE), and all options are known.
    pub(crate) fn is_droppable(&self) -> bool {
        let others = self.flags & !(Self::ECE | Self::CWR);
        others == Self::ACK && !self.has_data && !self.has_other_options
    }

    /// Returns whether earlier acknowledgements may be dropped because of this segment, which may have data.
    pub(crate) fn may_supersede(&self) -> bool {
        self.flags & (Self::ACK | Self::SYN) == Self::ACK
    }

    /// Returns CWR and ECE.
    pub(crate) fn ecn_flags(&self) -> u16 {
        self.flags & (Self::CWR | Self::ECE)
    }

    /// Returns whether `later`, a segment of the same connection, has all information of this acknowledgement except its ECN flags, and
    /// more.
    pub(crate) fn is_superseded_by(&self, later: &Self) -> bool {
        if !self.is_droppable()
            || !self.is_as_old_as(later)
            || is_after(self.ack_seq, later.ack_seq)
        {
            return false;
        }
        match self.sack_compare(later) {
            Ordering::Less => true,
            Ordering::Equal => self.ack_seq != later.ack_seq,
            Ordering::Greater => false,
        }
    }

    /// Applies the rest of `cake_tcph_may_drop()`: neither timestamp is later than that of `later`, which counts as 0 if it has none.
    fn is_as_old_as(&self, later: &Self) -> bool {
        let (later_val, later_ecr) = later.timestamp.unwrap_or_default();
        self.timestamp
            .is_none_or(|(val, ecr)| !is_after(val, later_val) && !is_after(ecr, later_ecr))
    }

    /// `cake_tcph_sack_compare()`. Greater: there is a block that those of `later` do not cover, or a D-SACK below the acknowledgement
    /// number. Less: the blocks of `later` have more bytes.
    fn sack_compare(&self, later: &Self) -> Ordering {
        let (own, others) = (self.sacked(), later.sacked());
        if own.is_empty() || others.is_empty() {
            return others.is_empty().cmp(&own.is_empty());
        }
        let is_new = |(start, end): &(u32, u32)| {
            let covers = |(from, to): &(u32, u32)| !is_after(*from, *start) && !is_after(*end, *to);
            is_after(self.ack_seq, *start) || !others.iter().any(covers)
        };
        if own.iter().any(is_new) {
            return Ordering::Greater;
        }
        if bytes(others) > bytes(own) { Ordering::Less } else { Ordering::Equal }
    }

    fn sacked(&self) -> &[(u32, u32)] {
        self.sack_blocks.get(..usize::from(self.sack_count)).unwrap_or(&self.sack_blocks)
    }

    /// Reads options like `cake_tcph_may_drop()` and `cake_get_tcpopt()`, up to the first option that is cut off.
    fn read_options(&mut self, mut options: &[u8]) {
        while let [kind, rest @ ..] = options {
            if *kind == EOL {
                return;
            }
            if *kind == NOP {
                options = rest;
                continue;
            }
            let length = rest.first().map_or(0, |length| usize::from(*length));
            let (Some(value), Some(next)) = (options.get(2..length), options.get(length..)) else {
                return;
            };
            self.read_option(*kind, value);
            options = next;
        }
    }

    fn read_option(&mut self, kind: u8, value: &[u8]) {
        let (words, rest) = value.as_chunks::<4>();
        match (kind, words) {
            (MD5SIG, _) => {}
            (TIMESTAMP, [val, ecr]) if rest.is_empty() && self.timestamp.is_none() => {
                self.timestamp = Some((u32::from_be_bytes(*val), u32::from_be_bytes(*ecr)));
            }
            (SACK, words) if self.sack_count == 0 => {
                let (pairs, single) = words.as_chunks::<2>();
                for (block, [start, end]) in self.sack_blocks.iter_mut().zip(pairs) {
                    *block = (u32::from_be_bytes(*start), u32::from_be_bytes(*end));
                    self.sack_count += 1;
                }
                self.has_other_options |= !single.is_empty() || !rest.is_empty();
            }
            _ => self.has_other_options = true,
        }
    }
}

/// Returns whether a sequence number or timestamp is after another one (`after()` of the kernel).
fn is_after(number: u32, other: u32) -> bool {
    other.wrapping_sub(number).cast_signed() < 0
}

/// Returns the bytes in SACK blocks. Overlaps count twice.
fn bytes(blocks: &[(u32, u32)]) -> u32 {
    let lengths = blocks.iter().map(|(start, end)| end.wrapping_sub(*start));
    lengths.fold(0, u32::wrapping_add)
}

/// Returns the header of the TCP segment in an Ethernet frame; `None` for anything else, for fragments, and behind IPv6 extension headers.
pub(crate) fn tcp_header(frame: &[u8]) -> Option<TcpHeader> {
    let word = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    let (protocol, start, end) = match header::ip(frame)? {
        Ip::V4(at) if word(at + 6) & 0x3fff != 0 => return None,
        Ip::V4(at) => (frame[at + 9], at + usize::from(frame[at] & 15) * 4, at + word(at + 2)),
        Ip::V6(at) => (frame[at + 6], at + IPV6_BYTES, at + IPV6_BYTES + word(at + 4)),
    };
    if protocol != TCP {
        return None;
    }
    let fixed: &[u8; TCP_BYTES] = frame.get(start..)?.first_chunk()?;
    let options_end = start + usize::from(fixed[12] >> 4) * 4;
    let options = frame.get(start + TCP_BYTES..options_end)?;
    let mut found = TcpHeader {
        ack_seq: u32::from_be_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]),
        flags: u16::from_be_bytes([fixed[12] & 15, fixed[13]]),
        has_data: options_end != end,
        ..TcpHeader::default()
    };
    found.read_options(options);
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an Ethernet frame of IPv4 or IPv6 with a segment with these flags, options and bytes of data.
    fn frame(is_v6: bool, flags: u16, options: &[u8], data: usize) -> Vec<u8> {
        let [high, low] = flags.to_be_bytes();
        let mut tcp = [0, 80, 1, 1, 0, 0, 0, 9, 0, 1, 0, 2, 0, low, 0, 0, 0, 0, 0, 0].to_vec();
        tcp[12] = ((TCP_BYTES + options.len()) as u8 / 4) << 4 | high;
        tcp.extend(options);
        tcp.resize(TCP_BYTES + options.len() + data, 1);
        let mut frame = vec![0; 12];
        if is_v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, tcp.len() as u8, TCP]);
            frame.resize(14 + IPV6_BYTES, 0);
        } else {
            frame.extend([0x08, 0x00, 0x45, 0, 0, 20 + tcp.len() as u8, 0, 0, 0, 0, 9, TCP]);
            frame.resize(34, 0);
        }
        frame.extend(tcp);
        frame
    }

    fn read(flags: u16, options: &[u8], data: usize) -> TcpHeader {
        tcp_header(&frame(false, flags, options, data)).unwrap()
    }

    const ACK: u16 = TcpHeader::ACK;
    const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];

    #[test]
    fn fields_are_read() {
        let plain = TcpHeader { ack_seq: 0x0001_0002, flags: ACK, ..TcpHeader::default() };
        assert_eq!(read(ACK, &[], 0), plain);
        assert_eq!(tcp_header(&frame(true, ACK, &[], 0)), Some(plain));
        // The padding of a short frame is not data.
        let mut padded = frame(false, ACK, &[], 0);
        padded.resize(60, 0);
        assert_eq!(tcp_header(&padded), Some(plain));
        assert_eq!(read(0xfff, &[], 0).flags, 0xfff);
        assert!(read(ACK, &TIMESTAMPS, 1).has_data && !read(ACK, &TIMESTAMPS, 0).has_data);
        let sack = [1, 1, 5, 18, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0, 6];
        let found = read(ACK, &[&TIMESTAMPS[..], &sack].concat(), 0);
        assert_eq!((found.timestamp, found.sacked()), (Some((1, 2)), &[(3, 4), (5, 6)][..]));
        assert!(!found.has_other_options);
    }

    #[test]
    fn what_is_no_whole_segment_is_not_read() {
        let mut udp = frame(false, ACK, &[], 0);
        udp[23] = 17;
        let mut fragment = frame(false, ACK, &[], 0);
        fragment[20] = 0x20;
        let mut short_header = frame(false, ACK, &[], 0);
        short_header[46] = 4 << 4;
        let mut cut = frame(false, ACK, &TIMESTAMPS, 0);
        cut.pop();
        for frame in [udp, fragment, short_header, cut] {
            assert_eq!(tcp_header(&frame), None, "{frame:?}");
        }
    }

    #[test]
    fn pure_acknowledgements_have_no_data_and_no_other_flag() {
        for flags in [ACK, ACK | 8, ACK | TcpHeader::ECE, ACK | TcpHeader::AE | TcpHeader::CWR] {
            assert!(read(flags, &TIMESTAMPS, 0).is_pure_ack(), "{flags:#x}");
        }
        assert!(!read(ACK, &[], 1).is_pure_ack());
        for flags in [0x11, 0x12, 0x14, 0x30, 0x08] {
            assert!(!read(flags, &[], 0).is_pure_ack(), "{flags:#x}");
        }
    }

    #[test]
    fn only_known_flags_and_options_may_be_dropped() {
        let md5 = [&[19_u8, 18][..], &[7; 16], &[0, 0]].concat();
        // Padding before and after, an option that is cut off, and no options.
        let known: [&[u8]; 6] =
            [&[], &TIMESTAMPS, &md5, &[1, 1, 5, 2], &[0, 99, 99, 99], &[1, 1, 1, 8]];
        for options in known {
            assert!(read(ACK, options, 0).is_droppable(), "{options:?}");
        }
        for flags in [0, TcpHeader::ECE, TcpHeader::CWR, TcpHeader::ECE | TcpHeader::CWR] {
            assert!(read(ACK | flags, &[], 0).is_droppable(), "{flags:#x}");
        }
        for flags in [0x001, 0x002, 0x004, 0x008, 0x020, 0x100, 0x200, 0x400, 0x800] {
            assert!(!read(ACK | flags, &[], 0).is_droppable(), "{flags:#x}");
        }
        assert!(!read(0, &[], 0).is_droppable() && !read(ACK, &[], 1).is_droppable());
        // AccECN counters (172), a maximum segment size, and SACK blocks and timestamps with wrong lengths.
        let others: [&[u8]; 4] = [
            &[172, 5, 0, 0, 0, 1, 1, 1],
            &[2, 4, 5, 0xb4],
            &[5, 6, 0, 0, 0, 1, 1, 1],
            &[8, 3, 0, 1],
        ];
        for options in others {
            assert!(!read(ACK, options, 0).is_droppable(), "{options:?}");
        }
        let twice = [TIMESTAMPS, TIMESTAMPS].concat();
        assert!(!read(ACK, &twice, 0).is_droppable());
    }

    /// Returns an acknowledgement of 1000 with SACK blocks.
    fn sacked(blocks: &[(u32, u32)]) -> TcpHeader {
        let mut sack_blocks = [(0, 0); MAX_SACK_BLOCKS];
        sack_blocks[..blocks.len()].copy_from_slice(blocks);
        let sack_count = blocks.len() as u8;
        TcpHeader { ack_seq: 1000, flags: ACK, sack_blocks, sack_count, ..TcpHeader::default() }
    }

    fn compare(own: &[(u32, u32)], later: &[(u32, u32)]) -> Ordering {
        sacked(own).sack_compare(&sacked(later))
    }

    #[test]
    fn sack_blocks_are_compared_as_cake_does() {
        let one = [(2000, 3000)];
        assert_eq!(compare(&[], &[]), Ordering::Equal);
        assert_eq!(compare(&one, &[]), Ordering::Greater);
        assert_eq!(compare(&[], &one), Ordering::Less);
        assert_eq!(compare(&one, &one), Ordering::Equal);
        assert_eq!(compare(&one, &[(2000, 4000)]), Ordering::Less);
        assert_eq!(compare(&one, &[(5000, 6000), (1500, 3500)]), Ordering::Less);
        assert_eq!(compare(&one, &[(2500, 9000)]), Ordering::Greater, "not covered");
        assert_eq!(compare(&[(2000, 3000), (5000, 6000)], &[(2000, 6000)]), Ordering::Less);
        // Two overlapping blocks have more bytes than the one that covers both.
        assert_eq!(compare(&[(2000, 3000), (2000, 2900)], &one), Ordering::Equal);
        assert_eq!(
            compare(&[(500, 900)], &[(500, 900), (2000, 3000)]),
            Ordering::Greater,
            "D-SACK"
        );
        assert_eq!(compare(&one, &[(500, 900), (2000, 3000)]), Ordering::Less);
        let wrapped = [(u32::MAX - 10, 20)];
        let late = TcpHeader { ack_seq: u32::MAX - 100, ..sacked(&wrapped) };
        let later = TcpHeader { ack_seq: u32::MAX - 100, ..sacked(&[(u32::MAX - 20, 20)]) };
        assert_eq!(late.sack_compare(&later), Ordering::Less);
    }

    #[test]
    fn later_segment_supersedes_what_it_repeats_and_exceeds() {
        let plain = sacked(&[]);
        let later = TcpHeader { ack_seq: 1001, ..plain };
        assert!(plain.is_superseded_by(&later) && !later.is_superseded_by(&plain));
        assert!(!plain.is_superseded_by(&plain), "a duplicate");
        let duplicate = sacked(&[(2000, 3000)]);
        assert!(plain.is_superseded_by(&duplicate) && !duplicate.is_superseded_by(&plain));
        assert!(duplicate.is_superseded_by(&sacked(&[(2000, 4000)])));
        assert!(!duplicate.is_superseded_by(&later), "without its block");
        // Not `..plain`: the compiler (1.95) cannot capture only the array's field.
        let wrapped = |ack_seq| {
            let mut header = plain;
            header.ack_seq = ack_seq;
            header
        };
        assert!(wrapped(u32::MAX - 9).is_superseded_by(&wrapped(5)));
        // Data, FIN and options of the later segment do not matter.
        let data = TcpHeader { has_data: true, flags: ACK | TcpHeader::FIN | 8, ..later };
        assert!(plain.is_superseded_by(&TcpHeader { has_other_options: true, ..data }));
        let of = |val, ecr, ack_seq| {
            let mut header = wrapped(ack_seq);
            header.timestamp = Some((val, ecr));
            header
        };
        assert!(of(7, 7, 1000).is_superseded_by(&of(7, 8, 1001)));
        assert!(!of(8, 7, 1000).is_superseded_by(&of(7, 8, 1001)));
        assert!(!of(7, 9, 1000).is_superseded_by(&of(7, 8, 1001)));
        // If there is no timestamp, that of the later segment counts as 0.
        assert!(
            !of(7, 7, 1000).is_superseded_by(&later) && plain.is_superseded_by(&of(7, 7, 1001))
        );
    }

    #[test]
    fn handshakes_and_resets_supersede_nothing() {
        assert!(
            read(ACK, &[], 0).may_supersede() && read(ACK | TcpHeader::FIN, &[], 9).may_supersede()
        );
        assert!(!read(ACK | TcpHeader::SYN, &[], 0).may_supersede());
        assert!(!read(TcpHeader::RST, &[], 0).may_supersede());
    }
}
