//! Headers of a frame: the fields that queues and classes read, the offsets that segmentation needs, and what a link changes: the ECN field
//! (a mark) or a bit (corruption).

use ccbench_proto::flow_hash::flow_hash;
pub(crate) use ccbench_proto::plan::Ecn;

const ETHERNET_BYTES: usize = ccbench_proto::resolve::ETHERNET_BYTES.get() as usize;
/// Maximum number of VLAN tags in front of the EtherType.
const TAGS: usize = 2;
/// TCP header without options.
pub(crate) const TCP_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
pub(crate) const IPV6_BYTES: usize = 40;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

/// An IP header with its offset in the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ip {
    V4(usize),
    V6(usize),
}

/// Returns the EtherType after at most two VLAN tags, and the offset of the payload.
pub(crate) fn ethertype(frame: &[u8]) -> Option<(u16, usize)> {
    let mut at = ETHERNET_BYTES - 2;
    for _ in 0..=TAGS {
        let kind = u16::from_be_bytes(*frame.get(at..)?.first_chunk()?);
        if !matches!(kind, 0x8100 | 0x88a8) {
            return Some((kind, at + 2));
        }
        at += 4;
    }
    None
}

/// Returns the IP header of a frame, if its fixed part is complete.
pub(crate) fn ip(frame: &[u8]) -> Option<Ip> {
    let (kind, at) = ethertype(frame)?;
    let version = frame.get(at)? >> 4;
    match (kind, version) {
        (0x0800, 4) if frame.len() >= at + 20 => Some(Ip::V4(at)),
        (0x86dd, 6) if frame.len() >= at + 40 => Some(Ip::V6(at)),
        _ => None,
    }
}

/// Returns the ECN field of an Ethernet frame.
pub(crate) fn ecn(frame: &[u8]) -> Ecn {
    match ip(frame) {
        Some(Ip::V4(at)) => Ecn::from_bits(frame[at + 1]),
        Some(Ip::V6(at)) => Ecn::from_bits(frame[at + 1] >> 4),
        None => Ecn::NotEct,
    }
}

/// Why the headers of a frame cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderError {
    /// The frame is shorter than its headers require, or they are inconsistent.
    Malformed,
    /// The frame is neither TCP nor UDP over IP, or is a tunnel or fragment.
    Unsupported,
}

/// Offsets of the headers of a TCP segment or UDP datagram in its frame, and the initial values of fields that GSO increments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TransportFrame {
    pub(crate) ipv6: bool,
    /// Where the network header begins.
    pub(crate) network: usize,
    /// Where the transport header begins.
    pub(crate) transport: usize,
    /// Bytes of all headers.
    pub(crate) headers: usize,
    /// IPv4 identification; meaningless for IPv6.
    pub(crate) id: u16,
    /// TCP sequence number; 0 for UDP.
    pub(crate) sequence: u32,
    /// Sum of the addresses and the protocol of the pseudo header, unfolded.
    pub(crate) pseudo: u32,
}

impl TransportFrame {
    /// Parses a frame of `protocol`, [`TCP`] or [`UDP`]. `csum_start` is from the vnet header: with IPv6 extension headers, only this field
    /// gives the offset of the transport header.
    pub(crate) fn parse(
        frame: &[u8],
        protocol: u8,
        csum_start: Option<usize>,
    ) -> Result<Self, HeaderError> {
        let Network { ipv6, begin, end, protocol: found } = Network::parse(frame)?;
        let transport = csum_start.unwrap_or(end);
        let plain = transport == end;
        if transport < end || (!ipv6 && !plain) || (plain && found != protocol) {
            return Err(HeaderError::Malformed);
        }
        let header = frame.get(transport..).ok_or(HeaderError::Malformed)?;
        let (header_bytes, sequence) = if protocol == TCP {
            let fixed: &[u8; TCP_BYTES] = header.first_chunk().ok_or(HeaderError::Malformed)?;
            let header_bytes = usize::from(fixed[12] >> 4) * 4;
            if header_bytes < TCP_BYTES {
                return Err(HeaderError::Malformed);
            }
            (header_bytes, u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]))
        } else {
            (UDP_BYTES, 0)
        };
        let headers = transport + header_bytes;
        if headers > frame.len() {
            return Err(HeaderError::Malformed);
        }
        let addresses = if ipv6 { begin + 8..begin + 40 } else { begin + 12..begin + 20 };
        Ok(Self {
            ipv6,
            network: begin,
            transport,
            headers,
            id: u16::from_be_bytes([frame[begin + 4], frame[begin + 5]]),
            sequence,
            pseudo: sum(&frame[addresses]) + u32::from(protocol),
        })
    }

    /// Returns the bytes of the network header, with IPv6 extension headers.
    pub(crate) fn network_bytes(&self) -> usize {
        self.transport - self.network
    }
}

/// The network header of a frame.
struct Network {
    ipv6: bool,
    begin: usize,
    /// Excludes IPv6 extension headers.
    end: usize,
    protocol: u8,
}

impl Network {
    fn parse(frame: &[u8]) -> Result<Self, HeaderError> {
        let known = matches!(ethertype(frame), Some((0x0800 | 0x86dd, _)));
        let (ipv6, begin, end, protocol) = match ip(frame) {
            Some(Ip::V4(at)) if frame[at] & 15 >= 5 => {
                (false, at, at + usize::from(frame[at] & 15) * 4, frame[at + 9])
            }
            Some(Ip::V6(at)) => (true, at, at + IPV6_BYTES, frame[at + 6]),
            None if !known => return Err(HeaderError::Unsupported),
            Some(Ip::V4(_)) | None => return Err(HeaderError::Malformed),
        };
        if frame.len() < end {
            return Err(HeaderError::Malformed);
        }
        Ok(Self { ipv6, begin, end, protocol })
    }
}

/// Returns the sum of the 16-bit words in network byte order, unfolded. An odd last byte is padded with zero (RFC 1071).
pub(crate) fn sum(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<2>();
    let whole: u32 = words.iter().map(|&word| u32::from(u16::from_be_bytes(word))).sum();
    whole + rest.first().map_or(0, |&byte| u32::from(byte) << 8)
}

/// Folds a sum of 16-bit words into the ones' complement sum (RFC 1071).
pub(crate) fn fold(mut sum: u32) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Returns a hash of a flow's addresses, protocol and ports; without ports for fragments and other protocols. It has no seed, so the same
/// traffic always uses the same queues.
pub(crate) fn flow(frame: &[u8]) -> u32 {
    let (addresses, protocol, ports) = match ip(frame) {
        Some(Ip::V4(at)) => {
            let whole = u16::from_be_bytes([frame[at + 6], frame[at + 7]]) & 0x3fff == 0;
            let ports = at + usize::from(frame[at] & 15) * 4;
            (&frame[at + 12..at + 20], frame[at + 9], whole.then_some(ports))
        }
        Some(Ip::V6(at)) => (&frame[at + 8..at + 40], frame[at + 6], Some(at + 40)),
        None => return 0,
    };
    let ports = match (protocol, ports) {
        (TCP | UDP, Some(at)) => frame.get(at..at + 4),
        _ => None,
    };
    let ports = ports.map(|p| u32::from_be_bytes([p[0], p[1], p[2], p[3]]));
    flow_hash(protocol, addresses, ports)
}

/// The header fields that classes match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fields {
    /// Whether it is IPv6.
    pub(crate) v6: bool,
    /// Addresses. IPv4 addresses are in the lowest 32 bits.
    pub(crate) src: u128,
    pub(crate) dst: u128,
    /// Ports of TCP and UDP: `[source, destination]`. `None` for later fragments, which carry none, and behind IPv6 extension headers.
    pub(crate) ports: Option<[u16; 2]>,
    /// 0 to 63.
    pub(crate) dscp: u8,
    /// 0 to 3.
    pub(crate) ecn: u8,
}

/// Returns the fields of an IP packet in an Ethernet frame, with or without VLAN tags; `None` for anything else.
pub(crate) fn fields(frame: &[u8]) -> Option<Fields> {
    let four = |at: usize| Some(u128::from(u32::from_be_bytes(*frame.get(at..)?.first_chunk()?)));
    let six = |at: usize| Some(u128::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    let (v6, src, dst, traffic_class, protocol, ports) = match ip(frame)? {
        Ip::V4(at) => {
            let first = u16::from_be_bytes([frame[at + 6], frame[at + 7]]) & 0x1fff == 0;
            let ports = first.then_some(at + usize::from(frame[at] & 15) * 4);
            (false, four(at + 12)?, four(at + 16)?, frame[at + 1], frame[at + 9], ports)
        }
        Ip::V6(at) => {
            let class = frame[at] << 4 | frame[at + 1] >> 4;
            (true, six(at + 8)?, six(at + 24)?, class, frame[at + 6], Some(at + 40))
        }
    };
    let ports = match (protocol, ports) {
        (TCP | UDP, Some(at)) => frame
            .get(at..at + 4)
            .map(|p| [u16::from_be_bytes([p[0], p[1]]), u16::from_be_bytes([p[2], p[3]])]),
        _ => None,
    };
    Some(Fields { v6, src, dst, ports, dscp: traffic_class >> 2, ecn: traffic_class & 3 })
}

/// Flips the bit that `draw` selects among those after the IP header, or after the Ethernet header if the frame is not IP. A frame without
/// such bytes is unchanged. Checksums are not corrected.
pub(crate) fn flip_bit(frame: &mut [u8], draw: u64) {
    // Exclude the padding of an Ethernet frame.
    let word = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    let (start, end) = match ip(frame) {
        Some(Ip::V4(at)) => (at + usize::from(frame[at] & 15) * 4, at + word(at + 2)),
        Some(Ip::V6(at)) => (at + 40, at + 40 + word(at + 4)),
        None => (ETHERNET_BYTES, frame.len()),
    };
    let end = end.min(frame.len());
    if start < end {
        let bit = ((u128::from(draw) * ((end - start) as u128 * 8)) >> 64) as usize;
        frame[start + bit / 8] ^= 1 << (bit % 8);
    }
}

/// Sets the ECN field and updates the IPv4 header's checksum (RFC 1624: `HC' = ~(~HC + ~m + m')`). Other frames are unchanged.
pub(crate) fn set_ecn(frame: &mut [u8], ecn: Ecn) {
    let bits = ecn.bits();
    match ip(frame) {
        Some(Ip::V4(at)) => {
            let frame = &mut frame[at..];
            let before = u16::from_be_bytes([frame[0], frame[1]]);
            frame[1] = (frame[1] & !3) | bits;
            let after = u16::from_be_bytes([frame[0], frame[1]]);
            let checksum = u16::from_be_bytes([frame[10], frame[11]]);
            let sum = u32::from(!checksum) + u32::from(!before) + u32::from(after);
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = (sum & 0xffff) + (sum >> 16);
            frame[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        }
        Some(Ip::V6(at)) => frame[at + 1] = (frame[at + 1] & !0x30) | bits << 4,
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::flow_hash::tcp_flow_hash;
    use proptest::prelude::*;

    use super::*;
    use crate::datapath::tcp_header::tcp_header;

    fn checksum(header: &[u8]) -> u16 {
        let words = header.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
        let mut sum: u32 = words.sum();
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    /// Returns an IPv4 frame with this 20-byte header, in which version, length and checksum are corrected.
    fn v4(header: [u8; 20], payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00]);
        frame.extend(header);
        frame[14] = 0x45;
        frame[24..26].fill(0);
        let sum = checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame.extend(payload);
        frame
    }

    fn v6(class: u8) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x86, 0xdd, 0x60 | class >> 4, class << 4 | 0x0a]);
        frame.resize(60, 7);
        frame[20] = TCP;
        frame
    }

    proptest! {
        #[test]
        fn a_new_ecn_field_updates_the_checksum(header in any::<[u8; 20]>(), bits in 0..4_u8) {
            let (mut frame, new) = (v4(header, &[]), Ecn::from_bits(bits));
            set_ecn(&mut frame, new);
            prop_assert_eq!(ecn(&frame), new);
            prop_assert_eq!(frame[15] & !3, header[1] & !3);
            // Both zeroes of ones' complement are equal.
            let sum = u16::from_be_bytes([frame[24], frame[25]]);
            frame[24..26].fill(0);
            let whole = checksum(&frame[14..34]);
            prop_assert!(sum == whole || [sum, whole] == [0xffff, 0] || [sum, whole] == [0, 0xffff]);
        }

        #[test]
        fn never_panics(mut frame in proptest::collection::vec(any::<u8>(), 0..80), ip in 0..3) {
            if frame.len() > 14 && ip > 0 {
                let ethertype = if ip == 1 { [0x08, 0x00] } else { [0x86, 0xdd] };
                frame[12..14].copy_from_slice(&ethertype);
            }
            let before = frame.len();
            ecn(&frame);
            flow(&frame);
            fields(&frame);
            flip_bit(&mut frame.clone(), u64::MAX);
            tcp_header(&frame);
            set_ecn(&mut frame, Ecn::Ect0);
            prop_assert_eq!(frame.len(), before);
        }
    }

    #[test]
    fn reads_and_marks_every_codepoint() {
        for (bits, wanted) in [(0, Ecn::NotEct), (1, Ecn::Ect1), (2, Ecn::Ect0), (3, Ecn::Ce)] {
            let class = 0xb8 | bits;
            let mut header = [9; 20];
            header[1] = class;
            assert_eq!(ecn(&v4(header, &[])), wanted);
            let mut six = v6(class);
            assert_eq!(ecn(&six), wanted);
            for new in Ecn::ALL {
                set_ecn(&mut six, new);
                // DSCP and flow label are unchanged.
                assert_eq!(six[14..16], [0x6b, 0x8a | new.bits() << 4]);
            }
        }
    }

    #[test]
    fn reads_fields_of_both_versions() {
        let mut header = [0; 20];
        header[1] = 46 << 2 | 1;
        header[9] = UDP;
        header[12..16].copy_from_slice(&[10, 0, 0, 1]);
        header[16..20].copy_from_slice(&[10, 0, 0, 2]);
        let four = fields(&v4(header, &[0, 80, 1, 1])).unwrap();
        let wanted = Fields {
            v6: false,
            src: 0x0a00_0001,
            dst: 0x0a00_0002,
            ports: Some([80, 257]),
            dscp: 46,
            ecn: 1,
        };
        assert_eq!(four, wanted);
        // A later fragment has no ports; the first has.
        header[7] = 1;
        assert_eq!(fields(&v4(header, &[0, 80, 1, 1])).unwrap().ports, None);
        (header[6], header[7]) = (0x20, 0);
        assert_eq!(fields(&v4(header, &[0, 80, 1, 1])).unwrap().ports, Some([80, 257]));
        let mut frame = v6(46 << 2 | 2);
        (frame[22], frame[37], frame[38], frame[53]) = (1, 2, 3, 4);
        let six = fields(&frame).unwrap();
        assert_eq!((six.v6, six.dscp, six.ecn, six.ports), (true, 46, 2, Some([0x0707, 0x0707])));
        let address = |first: u8, last: u8| {
            let mut bytes = [7; 16];
            (bytes[0], bytes[15]) = (first, last);
            u128::from_be_bytes(bytes)
        };
        assert_eq!((six.src, six.dst), (address(1, 2), address(3, 4)));
        assert_eq!(fields(&[0; 60]), None);
    }

    #[test]
    fn flips_one_bit_of_the_payload() {
        let mut header = [0; 20];
        header[3] = 28;
        let before = v4(header, &[0; 20]);
        let mut seen = std::collections::BTreeSet::new();
        for nth in 0..64_u64 {
            let mut after = before.clone();
            flip_bit(&mut after, (nth << 58) + 5);
            let changed: Vec<usize> = (0..after.len()).filter(|&i| after[i] != before[i]).collect();
            assert_eq!(changed.len(), 1);
            // Eight bytes of payload; the rest is padding.
            assert!((34..42).contains(&changed[0]));
            assert_eq!((after[changed[0]] ^ before[changed[0]]).count_ones(), 1);
            seen.insert((changed[0], after[changed[0]]));
        }
        assert_eq!(seen.len(), 64, "every bit");
    }

    #[test]
    fn leaves_other_protocols_unchanged() {
        let mut arp = vec![1; 60];
        arp[12..14].copy_from_slice(&[0x08, 0x06]);
        let before = arp.clone();
        set_ecn(&mut arp, Ecn::Ce);
        assert_eq!((ecn(&arp), flow(&arp), &arp), (Ecn::NotEct, 0, &before));
    }

    #[test]
    fn hashes_ports_except_of_fragments() {
        let mut header = [1; 20];
        header[9] = TCP;
        header[6..8].fill(0);
        let a = flow(&v4(header, &[0, 80, 1, 1]));
        assert_eq!(a, flow(&v4(header, &[0, 80, 1, 1, 99])));
        assert_ne!(a, flow(&v4(header, &[0, 80, 1, 2])));
        header[6] = 0x20;
        assert_eq!(flow(&v4(header, &[0, 80, 1, 1])), flow(&v4(header, &[0, 80, 1, 2])));
    }

    #[test]
    fn hash_of_a_segment_is_that_of_its_sockets() {
        let mut header = [1; 20];
        header[9] = TCP;
        header[6..8].fill(0);
        header[12..16].copy_from_slice(&[10, 0, 0, 1]);
        header[16..20].copy_from_slice(&[10, 0, 1, 2]);
        let of = |from: &str, to: &str| tcp_flow_hash(from.parse().unwrap(), to.parse().unwrap());
        let four = flow(&v4(header, &[0x30, 0x39, 0, 80]));
        assert_eq!(Some(four), of("10.0.0.1:12345", "10.0.1.2:80"));
        let address = "707:707:707:707:707:707:707:707";
        let six = of(&format!("[{address}]:1799"), &format!("[{address}]:1799"));
        assert_eq!(Some(flow(&v6(0))), six);
    }

    #[test]
    fn flows_spread_over_few_queues() {
        let mut counts = [0; 16];
        for port in 0..1600_u16 {
            let mut header = [1; 20];
            header[9] = UDP;
            header[6..8].fill(0);
            let [high, low] = port.to_be_bytes();
            counts[flow(&v4(header, &[0x30, high, low, 0])) as usize % 16] += 1;
        }
        assert!(counts.iter().all(|count| (60..150).contains(count)), "{counts:?}");
    }
}
