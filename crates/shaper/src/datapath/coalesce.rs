//! Coalesces consecutive TCP segments that are due at the same wakeup into one GSO packet with a vnet header, which the
//! kernel forwards at a fraction of the cost and segments again where needed. As with GRO, only segments that GSO
//! restores byte by byte are coalesced: equal headers, consecutive sequence numbers, equal sizes except the last.

use super::header::{self, Ip};
use super::segment::{fold, sum};
use super::vnet::{GSO_NONE, GSO_TCPV4, GSO_TCPV6, NEEDS_CSUM, VNET_BYTES, Vnet};

/// Maximum number of segments in one GSO packet.
pub(crate) const MAX_SEGMENTS: usize = 8;
/// Space for the vnet header and all packet headers: two VLAN tags, IP, and TCP with all options.
pub(crate) const HEAD_BYTES: usize = 192;

const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const TCP_BYTES: usize = 20;
const TCP: u8 = 6;
const TCP_CHECKSUM: u16 = 16;
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
/// Flags that only the last segment may have. CWR is among them because GSO keeps it only in the first segment.
const NOT_COALESCED: u8 = 0xff ^ (ACK | ECE);
const ECE: u8 = 0x40;

/// A group of segments: its headers, and the expected fields of the next segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    ipv6: bool,
    network: usize,
    transport: usize,
    headers: usize,
    size: usize,
    id: u16,
    sequence: u32,
    pseudo: u32,
    count: usize,
    payload: usize,
    /// Flags of the last segment.
    flags: u8,
    open: bool,
}

impl Group {
    /// Starts a group with a packet (vnet header and frame); `None` if the packet cannot be coalesced.
    pub(crate) fn start(packet: &[u8]) -> Option<Self> {
        let vnet = Vnet::read(packet)?;
        if vnet.flags != NEEDS_CSUM || vnet.gso_type != GSO_NONE || vnet.csum_offset != TCP_CHECKSUM
        {
            return None;
        }
        let frame = &packet[VNET_BYTES..];
        let (ipv6, network, transport) = match header::ip(frame)? {
            Ip::V4(at) if frame[at] & 15 == 5 && frame[at + 9] == TCP => {
                (false, at, at + IPV4_BYTES)
            }
            Ip::V6(at) if frame[at + 6] == TCP => (true, at, at + IPV6_BYTES),
            _ => return None,
        };
        let tcp = frame.get(transport..)?;
        let headers = transport + usize::from(tcp.get(12)? >> 4) * 4;
        if usize::from(vnet.csum_start) != transport
            || headers < transport + TCP_BYTES
            || headers >= frame.len()
        {
            return None;
        }
        let addresses = if ipv6 { network + 8..network + 40 } else { network + 12..network + 20 };
        let mut group = Self {
            ipv6,
            network,
            transport,
            headers,
            size: frame.len() - headers,
            id: u16::from_be_bytes([frame[network + 4], frame[network + 5]]),
            sequence: u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]),
            pseudo: sum(&frame[addresses]) + u32::from(TCP),
            count: 0,
            payload: 0,
            flags: 0,
            open: true,
        };
        group.fits(frame).then(|| group.push(frame))?;
        Some(group)
    }

    /// Appends `packet` to the group whose first packet is `first`; returns whether it fits.
    pub(crate) fn extend(&mut self, first: &[u8], packet: &[u8]) -> bool {
        if !self.open || self.count >= MAX_SEGMENTS || packet.len() < VNET_BYTES + self.headers {
            return false;
        }
        let (network, transport, headers) = (self.network, self.transport, self.headers);
        if first[..VNET_BYTES] != packet[..VNET_BYTES] {
            return false;
        }
        let (first, frame) = (&first[VNET_BYTES..], &packet[VNET_BYTES..]);
        let same = |from: usize, to: usize| first[from..to] == frame[from..to];
        let network_same = if self.ipv6 {
            same(0, network + 4) && same(network + 6, transport)
        } else {
            same(0, network + 2) && same(network + 6, network + 10) && same(network + 12, transport)
        };
        let same = network_same
            && same(transport, transport + 4)
            && same(transport + 8, transport + 13)
            && same(transport + 14, transport + 16)
            && same(transport + 18, headers);
        if !same || !self.fits(frame) {
            return false;
        }
        self.push(frame);
        true
    }

    /// Number of packets in the group.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Bytes of the vnet header and the packet headers.
    pub(crate) fn head_bytes(&self) -> usize {
        VNET_BYTES + self.headers
    }

    /// Writes the [`Self::head_bytes`] of headers of the GSO packet; `first` is the first packet of the group.
    pub(crate) fn write_head(&self, first: &[u8], head: &mut [u8; HEAD_BYTES]) {
        let vnet = Vnet {
            flags: NEEDS_CSUM,
            gso_type: if self.ipv6 { GSO_TCPV6 } else { GSO_TCPV4 },
            hdr_len: self.headers as u16,
            gso_size: self.size as u16,
            csum_start: self.transport as u16,
            csum_offset: TCP_CHECKSUM,
        };
        head[..VNET_BYTES].copy_from_slice(&vnet.bytes());
        let out = &mut head[VNET_BYTES..VNET_BYTES + self.headers];
        out.copy_from_slice(&first[VNET_BYTES..VNET_BYTES + self.headers]);
        let ip = &mut out[self.network..self.transport];
        let behind = self.headers - self.network + self.payload;
        if self.ipv6 {
            ip[4..6].copy_from_slice(&((behind - IPV6_BYTES) as u16).to_be_bytes());
        } else {
            ip[2..4].copy_from_slice(&(behind as u16).to_be_bytes());
            ip[10..12].fill(0);
            let checksum = !fold(sum(ip));
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        let tcp = &mut out[self.transport..];
        tcp[13] = self.flags;
        let length = (self.headers - self.transport + self.payload) as u32;
        tcp[16..18].copy_from_slice(&fold(self.pseudo + length).to_be_bytes());
    }

    /// Whether the frame's fields are what GSO would write for this segment.
    fn fits(&self, frame: &[u8]) -> bool {
        let payload = frame.len() - self.headers;
        let total = self.headers - self.network + self.payload + payload;
        let ip = &frame[self.network..self.transport];
        let word = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
        let behind = frame.len() - self.network;
        let ip_fits = if self.ipv6 {
            usize::from(word(4)) + IPV6_BYTES == behind
        } else {
            // Not a fragment, the next IPv4 identification, a correct header checksum.
            usize::from(word(2)) == behind
                && word(4) == self.id.wrapping_add(self.count as u16)
                && word(6) & 0xbfff == 0
                && fold(sum(ip)) == 0xffff
        };
        let tcp = &frame[self.transport..];
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let partial = fold(self.pseudo + tcp.len() as u32);
        ip_fits
            && (1..=self.size).contains(&payload)
            && total <= usize::from(u16::MAX)
            && sequence == self.sequence.wrapping_add(self.payload as u32)
            && tcp[13] & (NOT_COALESCED ^ (FIN | PSH)) == 0
            && tcp[13] & ACK != 0
            && (self.count == 0 || (tcp[13] ^ self.flags) & ECE == 0)
            && u16::from_be_bytes([tcp[16], tcp[17]]) == partial
    }

    fn push(&mut self, frame: &[u8]) {
        let payload = frame.len() - self.headers;
        self.payload += payload;
        self.count += 1;
        self.flags = frame[self.transport + 13];
        self.open = payload == self.size && self.flags & (FIN | PSH) == 0;
    }
}

#[cfg(test)]
mod tests;
