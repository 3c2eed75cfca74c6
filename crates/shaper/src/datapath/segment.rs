//! Segments a super-packet of TSO, GSO or GRO into the frames that would be on the wire, so that each frame is queued,
//! timed and dropped individually. TCP and UDP checksums stay partial, as for a device with checksum offload: the field
//! holds the sum of the pseudo header, and the vnet header has `VIRTIO_NET_HDR_F_NEEDS_CSUM`.

use super::vnet::{
    GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VNET_BYTES, Vnet,
};

use super::header::{self, Ip};

const ETHERNET_BYTES: usize = 14;
const IPV6_BYTES: usize = 40;
const TCP: u8 = 6;
const UDP: u8 = 17;
const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

/// Why a super-packet cannot be segmented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SegmentError {
    /// It is shorter than its headers require, or its headers are inconsistent.
    Malformed,
    /// Neither TCP nor UDP over IP (tunnels, fragments).
    Unsupported,
}

/// Iterates over the frames of a received packet.
#[derive(Debug)]
pub(crate) struct Frames<'a> {
    /// Without the vnet header.
    frame: &'a [u8],
    vnet: Vnet,
    gso: Option<Gso>,
    /// Payload bytes returned so far; for a packet without GSO, 1 once it was returned.
    done: usize,
    index: u16,
}

#[derive(Debug, Clone, Copy)]
struct Gso {
    ipv6: bool,
    tcp: bool,
    /// Where the network header begins.
    network: usize,
    /// Where the transport header begins.
    transport: usize,
    /// Bytes of all headers.
    headers: usize,
    /// Payload bytes of every segment but the last.
    size: usize,
    /// IPv4 identification of the first segment.
    id: u16,
    /// TCP sequence number of the first segment.
    sequence: u32,
    /// Sum of the addresses and the protocol of the pseudo header, unfolded.
    pseudo: u32,
}

impl<'a> Frames<'a> {
    /// Parses a packet from a packet socket with `PACKET_VNET_HDR`.
    pub(crate) fn new(packet: &'a [u8]) -> Result<Self, SegmentError> {
        let vnet = Vnet::read(packet).ok_or(SegmentError::Malformed)?;
        let frame = &packet[VNET_BYTES..];
        if frame.len() < ETHERNET_BYTES {
            return Err(SegmentError::Malformed);
        }
        let gso = match vnet.gso_type & !GSO_ECN {
            GSO_NONE => None,
            _ => Some(Gso::new(frame, &vnet)?),
        };
        Ok(Self { frame, vnet, gso, done: 0, index: 0 })
    }

    /// Size of a slot that holds any of the frames, including the vnet header.
    pub(crate) fn slot_bytes(&self) -> usize {
        VNET_BYTES
            + self.gso.map_or(self.frame.len(), |gso| self.frame.len().min(gso.headers + gso.size))
    }

    /// Writes the next frame with its vnet header into `slot` (of at least [`Self::slot_bytes`]) and returns
    /// the number of bytes; `None` after the last frame.
    pub(crate) fn next_into(&mut self, slot: &mut [u8]) -> Option<usize> {
        let Some(gso) = self.gso else {
            return self.copy_whole(slot);
        };
        if !self.has_remaining() {
            return None;
        }
        let payload = self.frame.len() - gso.headers;
        let take = gso.size.min(payload - self.done);
        let end = VNET_BYTES + gso.headers + take;
        let vnet = Vnet {
            flags: NEEDS_CSUM,
            hdr_len: gso.headers as u16,
            csum_start: gso.transport as u16,
            csum_offset: if gso.tcp { 16 } else { 6 },
            ..Vnet::default()
        };
        slot[..VNET_BYTES].copy_from_slice(&vnet.bytes());
        let out = &mut slot[VNET_BYTES..end];
        out[..gso.headers].copy_from_slice(&self.frame[..gso.headers]);
        let from = gso.headers + self.done;
        out[gso.headers..].copy_from_slice(&self.frame[from..from + take]);
        gso.write_ip(out, self.index);
        let last = self.done + take >= payload;
        let keep_cwr = self.index == 0 || self.vnet.gso_type & GSO_ECN == 0;
        gso.write_transport(out, self.done as u32, last, keep_cwr);
        self.done += take;
        self.index = self.index.wrapping_add(1);
        Some(end)
    }

    /// Whether there is another frame.
    pub(crate) fn has_remaining(&self) -> bool {
        match self.gso {
            None => self.done == 0,
            Some(gso) => self.index == 0 || self.done < self.frame.len() - gso.headers,
        }
    }

    /// Discards the remaining frames and returns their number.
    pub(crate) fn skip_rest(self) -> u64 {
        match self.gso {
            None => u64::from(self.done == 0),
            Some(gso) => {
                let left = self.frame.len() - gso.headers - self.done;
                left.div_ceil(gso.size).max(usize::from(self.index == 0)) as u64
            }
        }
    }

    fn copy_whole(&mut self, slot: &mut [u8]) -> Option<usize> {
        if self.done > 0 {
            return None;
        }
        self.done = 1;
        let vnet = Vnet { flags: self.vnet.flags & NEEDS_CSUM, ..self.vnet };
        let end = VNET_BYTES + self.frame.len();
        slot[..VNET_BYTES].copy_from_slice(&vnet.bytes());
        slot[VNET_BYTES..end].copy_from_slice(self.frame);
        Some(end)
    }
}

impl Gso {
    fn new(frame: &[u8], vnet: &Vnet) -> Result<Self, SegmentError> {
        let Network { ipv6, begin, end: network_end, protocol } = network(frame)?;
        let tcp = match (vnet.gso_type & !GSO_ECN, ipv6) {
            (GSO_TCPV4, false) | (GSO_TCPV6, true) => true,
            (GSO_UDP_L4, _) => false,
            _ => return Err(SegmentError::Unsupported),
        };
        // With IPv6 extension headers only the vnet header has the offset of the transport header.
        let transport =
            if vnet.flags & NEEDS_CSUM != 0 { usize::from(vnet.csum_start) } else { network_end };
        let plain = transport == network_end;
        let (wanted, least) = if tcp { (TCP, 20) } else { (UDP, 8) };
        if transport < network_end || (!ipv6 && !plain) || (plain && protocol != wanted) {
            return Err(SegmentError::Malformed);
        }
        let header = frame.get(transport..).ok_or(SegmentError::Malformed)?;
        let (header_bytes, sequence) = if tcp {
            let fixed: &[u8; 20] = header.first_chunk().ok_or(SegmentError::Malformed)?;
            let sequence = u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]);
            (usize::from(fixed[12] >> 4) * 4, sequence)
        } else {
            (8, 0)
        };
        let headers = transport + header_bytes;
        if header_bytes < least || headers > frame.len() || vnet.gso_size == 0 {
            return Err(SegmentError::Malformed);
        }
        let addresses = if ipv6 { begin + 8..begin + 40 } else { begin + 12..begin + 20 };
        Ok(Self {
            ipv6,
            tcp,
            transport,
            headers,
            size: usize::from(vnet.gso_size),
            network: begin,
            id: u16::from_be_bytes([frame[begin + 4], frame[begin + 5]]),
            sequence,
            pseudo: sum(&frame[addresses]) + u32::from(wanted),
        })
    }

    /// Writes length, identification and header checksum of the segment in `out`.
    fn write_ip(&self, out: &mut [u8], index: u16) {
        let length = out.len() - self.network;
        let ip = &mut out[self.network..self.transport];
        if self.ipv6 {
            ip[4..6].copy_from_slice(&((length - IPV6_BYTES) as u16).to_be_bytes());
            return;
        }
        ip[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        ip[4..6].copy_from_slice(&self.id.wrapping_add(index).to_be_bytes());
        ip[10..12].fill(0);
        let checksum = !fold(sum(ip));
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    }

    /// Writes sequence number, flags, length and partial checksum of the segment in `out`, whose payload begins
    /// at `offset` in the payload of the super-packet.
    fn write_transport(&self, out: &mut [u8], offset: u32, last: bool, keep_cwr: bool) {
        let length = (out.len() - self.transport) as u16;
        let partial = fold(self.pseudo + u32::from(length)).to_be_bytes();
        let header = &mut out[self.transport..];
        if !self.tcp {
            header[4..6].copy_from_slice(&length.to_be_bytes());
            header[6..8].copy_from_slice(&partial);
            return;
        }
        header[4..8].copy_from_slice(&self.sequence.wrapping_add(offset).to_be_bytes());
        if !last {
            header[13] &= !(TCP_FIN | TCP_PSH);
        }
        if !keep_cwr {
            header[13] &= !TCP_CWR;
        }
        header[16..18].copy_from_slice(&partial);
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

fn network(frame: &[u8]) -> Result<Network, SegmentError> {
    let known = matches!(header::ethertype(frame), Some((0x0800 | 0x86dd, _)));
    let (ipv6, begin, end, protocol) = match header::ip(frame) {
        Some(Ip::V4(at)) if frame[at] & 15 >= 5 => {
            (false, at, at + usize::from(frame[at] & 15) * 4, frame[at + 9])
        }
        Some(Ip::V6(at)) => (true, at, at + IPV6_BYTES, frame[at + 6]),
        None if !known => return Err(SegmentError::Unsupported),
        Some(Ip::V4(_)) | None => return Err(SegmentError::Malformed),
    };
    if frame.len() < end {
        return Err(SegmentError::Malformed);
    }
    Ok(Network { ipv6, begin, end, protocol })
}

/// Sum of the 16-bit words in network byte order, unfolded; an odd last byte is padded with zero (RFC 1071).
pub(super) fn sum(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<2>();
    let whole: u32 = words.iter().map(|&word| u32::from(u16::from_be_bytes(word))).sum();
    whole + rest.first().map_or(0, |&byte| u32::from(byte) << 8)
}

pub(super) fn fold(mut sum: u32) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests;
