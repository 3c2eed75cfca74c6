//! Coalesces consecutive TCP segments that are due at the same wakeup into one GSO packet with a vnet header. The kernel forwards it at a
//! fraction of the cost and segments it again where needed. As with GRO, only segments that GSO restores byte for byte are coalesced: equal
//! headers, consecutive sequence numbers, equal sizes except for the last.

use super::header::{IPV6_BYTES, TCP, TransportFrame, fold, sum};
use super::vnet::{GSO_NONE, GSO_TCPV4, GSO_TCPV6, NEEDS_CSUM, VNET_BYTES, Vnet};

/// Maximum number of segments in one GSO packet.
pub(crate) const MAX_SEGMENTS: usize = 8;
/// Space for the vnet header and all packet headers: two VLAN tags, IP, and TCP with all options.
pub(crate) const HEAD_BYTES: usize = 192;

const IPV4_BYTES: usize = 20;
const TCP_CHECKSUM: u16 = 16;
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
/// Flags that only the last segment may have. CWR is one of them because GSO keeps it only in the first segment.
const NOT_COALESCED: u8 = 0xff ^ (ACK | ECE);
const ECE: u8 = 0x40;

/// A group of segments: its headers, and the fields expected of the next segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    /// The headers of the first segment.
    tcp: TransportFrame,
    size: usize,
    count: usize,
    payload: usize,
    /// Flags of the last segment.
    flags: u8,
    open: bool,
}

impl Group {
    /// Starts a group with a packet (vnet header and frame). Returns `None` if the packet cannot be coalesced.
    pub(crate) fn start(packet: &[u8]) -> Option<Self> {
        let vnet = Vnet::read(packet)?;
        if vnet.flags != NEEDS_CSUM || vnet.gso_type != GSO_NONE || vnet.csum_offset != TCP_CHECKSUM
        {
            return None;
        }
        let frame = &packet[VNET_BYTES..];
        let tcp = TransportFrame::parse(frame, TCP, Some(usize::from(vnet.csum_start))).ok()?;
        // Neither IPv4 options nor IPv6 extension headers.
        let network_bytes = if tcp.ipv6 { IPV6_BYTES } else { IPV4_BYTES };
        if tcp.network_bytes() != network_bytes || tcp.headers >= frame.len() {
            return None;
        }
        let size = frame.len() - tcp.headers;
        let mut group = Self { tcp, size, count: 0, payload: 0, flags: 0, open: true };
        group.fits(frame).then(|| group.push(frame))?;
        Some(group)
    }

    /// Appends `packet` to the group whose first packet is `first`. Returns whether it fits.
    pub(crate) fn extend(&mut self, first: &[u8], packet: &[u8]) -> bool {
        if !self.open || self.count >= MAX_SEGMENTS || packet.len() < VNET_BYTES + self.tcp.headers
        {
            return false;
        }
        let (network, transport, headers) =
            (self.tcp.network, self.tcp.transport, self.tcp.headers);
        if first[..VNET_BYTES] != packet[..VNET_BYTES] {
            return false;
        }
        let (first, frame) = (&first[VNET_BYTES..], &packet[VNET_BYTES..]);
        let same = |from: usize, to: usize| first[from..to] == frame[from..to];
        let network_same = if self.tcp.ipv6 {
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
        VNET_BYTES + self.tcp.headers
    }

    /// Writes the GSO packet's headers, [`Self::head_bytes`] long. `first` is the first packet of the group.
    pub(crate) fn write_head(&self, first: &[u8], head: &mut [u8; HEAD_BYTES]) {
        let vnet = Vnet {
            flags: NEEDS_CSUM,
            gso_type: if self.tcp.ipv6 { GSO_TCPV6 } else { GSO_TCPV4 },
            hdr_len: self.tcp.headers as u16,
            gso_size: self.size as u16,
            csum_start: self.tcp.transport as u16,
            csum_offset: TCP_CHECKSUM,
        };
        head[..VNET_BYTES].copy_from_slice(&vnet.bytes());
        let out = &mut head[VNET_BYTES..VNET_BYTES + self.tcp.headers];
        out.copy_from_slice(&first[VNET_BYTES..VNET_BYTES + self.tcp.headers]);
        let ip = &mut out[self.tcp.network..self.tcp.transport];
        let behind = self.tcp.headers - self.tcp.network + self.payload;
        if self.tcp.ipv6 {
            ip[4..6].copy_from_slice(&((behind - IPV6_BYTES) as u16).to_be_bytes());
        } else {
            ip[2..4].copy_from_slice(&(behind as u16).to_be_bytes());
            ip[10..12].fill(0);
            let checksum = !fold(sum(ip));
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        let tcp = &mut out[self.tcp.transport..];
        tcp[13] = self.flags;
        let length = (self.tcp.headers - self.tcp.transport + self.payload) as u32;
        tcp[16..18].copy_from_slice(&fold(self.tcp.pseudo + length).to_be_bytes());
    }

    /// Returns whether the frame's fields are what GSO would write for this segment.
    fn fits(&self, frame: &[u8]) -> bool {
        let payload = frame.len() - self.tcp.headers;
        let total = self.tcp.headers - self.tcp.network + self.payload + payload;
        let ip = &frame[self.tcp.network..self.tcp.transport];
        let word = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
        let behind = frame.len() - self.tcp.network;
        let ip_fits = if self.tcp.ipv6 {
            usize::from(word(4)) + IPV6_BYTES == behind
        } else {
            // Not a fragment, the next IPv4 identification, a correct header checksum. Where both zeroes of ones' complement are correct,
            // GSO writes 0.
            usize::from(word(2)) == behind
                && word(4) == self.tcp.id.wrapping_add(self.count as u16)
                && word(6) & 0xbfff == 0
                && fold(sum(ip)) == 0xffff
                && word(10) != 0xffff
        };
        let tcp = &frame[self.tcp.transport..];
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let partial = fold(self.tcp.pseudo + tcp.len() as u32);
        ip_fits
            && (1..=self.size).contains(&payload)
            && total <= usize::from(u16::MAX)
            && sequence == self.tcp.sequence.wrapping_add(self.payload as u32)
            && tcp[13] & (NOT_COALESCED ^ (FIN | PSH)) == 0
            && tcp[13] & ACK != 0
            && (self.count == 0 || (tcp[13] ^ self.flags) & ECE == 0)
            && u16::from_be_bytes([tcp[16], tcp[17]]) == partial
    }

    fn push(&mut self, frame: &[u8]) {
        let payload = frame.len() - self.tcp.headers;
        self.payload += payload;
        self.count += 1;
        self.flags = frame[self.tcp.transport + 13];
        self.open = payload == self.size && self.flags & (FIN | PSH) == 0;
    }
}

#[cfg(test)]
mod tests;
