//! Cuts a super-packet (TSO, GSO or GRO made it) into the frames that would have been on the wire, so that
//! each is queued, timed and dropped alone. Checksums of TCP and UDP are left as the kernel leaves them
//! for a device that can do them: the pseudo header's sum, and a vnet header that says so.

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

/// Why a super-packet cannot be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Uncuttable {
    /// Shorter than its headers say, or headers that contradict each other.
    Malformed,
    /// A kind of offload that is not TCP over IP or UDP over IP (tunnels, fragments).
    UnknownKind,
}

/// A packet as read, ready to be taken out frame by frame.
#[derive(Debug)]
pub(crate) struct Frames<'a> {
    /// Without the vnet header.
    frame: &'a [u8],
    vnet: Vnet,
    cut: Option<Cut>,
    /// Payload bytes taken out so far; for a whole frame, 1 once it is out.
    done: usize,
    index: u16,
}

#[derive(Debug, Clone, Copy)]
struct Cut {
    ipv6: bool,
    tcp: bool,
    /// Where the network header begins.
    network: usize,
    /// Where the transport header begins.
    transport: usize,
    /// All headers.
    headers: usize,
    /// Payload bytes of every segment but the last.
    size: usize,
    /// IPv4 identification of the first segment.
    id: u16,
    /// TCP sequence number of the first segment.
    sequence: u32,
    /// Sum of the addresses and the protocol of the pseudo header.
    pseudo: u32,
}

impl<'a> Frames<'a> {
    /// Looks at a packet as a packet socket with `PACKET_VNET_HDR` gives it.
    pub(crate) fn new(packet: &'a [u8]) -> Result<Self, Uncuttable> {
        let vnet = Vnet::read(packet).ok_or(Uncuttable::Malformed)?;
        let frame = &packet[VNET_BYTES..];
        if frame.len() < ETHERNET_BYTES {
            return Err(Uncuttable::Malformed);
        }
        let cut = match vnet.gso_type & !GSO_ECN {
            GSO_NONE => None,
            _ => Some(Cut::new(frame, &vnet)?),
        };
        Ok(Self { frame, vnet, cut, done: 0, index: 0 })
    }

    /// Bytes that a slot must have to take any of the frames, vnet header included.
    pub(crate) fn slot_bytes(&self) -> usize {
        VNET_BYTES
            + self.cut.map_or(self.frame.len(), |cut| self.frame.len().min(cut.headers + cut.size))
    }

    /// Writes the next frame with its vnet header into `slot` (of at least [`Self::slot_bytes`]) and returns
    /// how many bytes that are; `None` when all are out.
    pub(crate) fn next_into(&mut self, slot: &mut [u8]) -> Option<usize> {
        let Some(cut) = self.cut else {
            return self.whole_into(slot);
        };
        if !self.remain() {
            return None;
        }
        let payload = self.frame.len() - cut.headers;
        let take = cut.size.min(payload - self.done);
        let end = VNET_BYTES + cut.headers + take;
        let vnet = Vnet {
            flags: NEEDS_CSUM,
            hdr_len: cut.headers as u16,
            csum_start: cut.transport as u16,
            csum_offset: if cut.tcp { 16 } else { 6 },
            ..Vnet::default()
        };
        slot[..VNET_BYTES].copy_from_slice(&vnet.bytes());
        let out = &mut slot[VNET_BYTES..end];
        out[..cut.headers].copy_from_slice(&self.frame[..cut.headers]);
        let from = cut.headers + self.done;
        out[cut.headers..].copy_from_slice(&self.frame[from..from + take]);
        cut.write_ip(out, self.index);
        let last = self.done + take >= payload;
        let keep_cwr = self.index == 0 || self.vnet.gso_type & GSO_ECN == 0;
        cut.write_transport(out, self.done as u32, last, keep_cwr);
        self.done += take;
        self.index = self.index.wrapping_add(1);
        Some(end)
    }

    /// Whether a frame is left to be taken out.
    pub(crate) fn remain(&self) -> bool {
        match self.cut {
            None => self.done == 0,
            Some(cut) => self.index == 0 || self.done < self.frame.len() - cut.headers,
        }
    }

    /// Gives up what is left; returns how many frames that were.
    pub(crate) fn skip_rest(self) -> u64 {
        match self.cut {
            None => u64::from(self.done == 0),
            Some(cut) => {
                let left = self.frame.len() - cut.headers - self.done;
                left.div_ceil(cut.size).max(usize::from(self.index == 0)) as u64
            }
        }
    }

    fn whole_into(&mut self, slot: &mut [u8]) -> Option<usize> {
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

impl Cut {
    fn new(frame: &[u8], vnet: &Vnet) -> Result<Self, Uncuttable> {
        let Network { ipv6, begin, end: network_end, protocol } = network(frame)?;
        let tcp = match (vnet.gso_type & !GSO_ECN, ipv6) {
            (GSO_TCPV4, false) | (GSO_TCPV6, true) => true,
            (GSO_UDP_L4, _) => false,
            _ => return Err(Uncuttable::UnknownKind),
        };
        // Only the kernel knows how long the IPv6 extension headers are.
        let transport =
            if vnet.flags & NEEDS_CSUM != 0 { usize::from(vnet.csum_start) } else { network_end };
        let plain = transport == network_end;
        let (wanted, least) = if tcp { (TCP, 20) } else { (UDP, 8) };
        if transport < network_end || (!ipv6 && !plain) || (plain && protocol != wanted) {
            return Err(Uncuttable::Malformed);
        }
        let header = frame.get(transport..).ok_or(Uncuttable::Malformed)?;
        let (header_bytes, sequence) = if tcp {
            let fixed: &[u8; 20] = header.first_chunk().ok_or(Uncuttable::Malformed)?;
            let sequence = u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]);
            (usize::from(fixed[12] >> 4) * 4, sequence)
        } else {
            (8, 0)
        };
        let headers = transport + header_bytes;
        if header_bytes < least || headers > frame.len() || vnet.gso_size == 0 {
            return Err(Uncuttable::Malformed);
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

    /// Length, identification and header checksum of the segment in `out`.
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

    /// Sequence number, flags, length and pseudo header's sum of the segment in `out`, whose payload begins
    /// `offset` bytes into the super-packet's.
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
    /// Without extensions of IPv6.
    end: usize,
    protocol: u8,
}

fn network(frame: &[u8]) -> Result<Network, Uncuttable> {
    let known = matches!(header::ethertype(frame), Some((0x0800 | 0x86dd, _)));
    let (ipv6, begin, end, protocol) = match header::ip(frame) {
        Some(Ip::V4(at)) if frame[at] & 15 >= 5 => {
            (false, at, at + usize::from(frame[at] & 15) * 4, frame[at + 9])
        }
        Some(Ip::V6(at)) => (true, at, at + IPV6_BYTES, frame[at + 6]),
        None if !known => return Err(Uncuttable::UnknownKind),
        Some(Ip::V4(_)) | None => return Err(Uncuttable::Malformed),
    };
    if frame.len() < end {
        return Err(Uncuttable::Malformed);
    }
    Ok(Network { ipv6, begin, end, protocol })
}

/// Sum of the 16-bit words in network byte order, unfolded; an odd last byte counts as a high one.
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
