//! Segments a super-packet of TSO, GSO or GRO into the frames that would be on the wire, so that each frame is queued, timed and dropped
//! individually. TCP and UDP checksums stay partial, as for a device with checksum offload: the field holds the sum of the pseudo header,
//! and the vnet header has `VIRTIO_NET_HDR_F_NEEDS_CSUM`.

use super::header::{HeaderError, IPV6_BYTES, TCP, TransportFrame, UDP, fold, sum};
use super::vnet::{
    GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VNET_BYTES, Vnet,
};

const ETHERNET_BYTES: usize = super::ETHERNET_BYTES as usize;
const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

/// Iterates over the frames of a received packet.
#[derive(Debug)]
pub(crate) struct Frames<'a> {
    /// The frame without the vnet header.
    frame: &'a [u8],
    vnet: Vnet,
    gso: Option<Gso>,
    /// Payload bytes returned so far. For a packet without GSO, 1 after it was returned.
    done: usize,
    index: u16,
}

#[derive(Debug, Clone, Copy)]
struct Gso {
    tcp: bool,
    first: TransportFrame,
    /// Payload bytes of every segment except the last.
    size: usize,
}

impl<'a> Frames<'a> {
    /// Parses a packet from a packet socket with `PACKET_VNET_HDR`.
    pub(crate) fn new(packet: &'a [u8]) -> Result<Self, HeaderError> {
        let vnet = Vnet::read(packet).ok_or(HeaderError::Malformed)?;
        let frame = &packet[VNET_BYTES..];
        if frame.len() < ETHERNET_BYTES {
            return Err(HeaderError::Malformed);
        }
        let gso = match vnet.gso_type & !GSO_ECN {
            GSO_NONE => None,
            _ => Some(Gso::new(frame, &vnet)?),
        };
        Ok(Self { frame, vnet, gso, done: 0, index: 0 })
    }

    /// Returns the size of a slot that holds any of the frames with its vnet header.
    pub(crate) fn slot_bytes(&self) -> usize {
        VNET_BYTES
            + self
                .gso
                .map_or(self.frame.len(), |gso| self.frame.len().min(gso.first.headers + gso.size))
    }

    /// Writes the next frame with its vnet header to `slot`, which has at least [`Self::slot_bytes`]. Returns the number of bytes written,
    /// or `None` after the last frame.
    pub(crate) fn next_into(&mut self, slot: &mut [u8]) -> Option<usize> {
        let Some(gso) = self.gso else {
            return self.copy_whole(slot);
        };
        if !self.has_remaining() {
            return None;
        }
        let payload = self.frame.len() - gso.first.headers;
        let take = gso.size.min(payload - self.done);
        let end = VNET_BYTES + gso.first.headers + take;
        let vnet = Vnet {
            flags: NEEDS_CSUM,
            hdr_len: gso.first.headers as u16,
            csum_start: gso.first.transport as u16,
            csum_offset: if gso.tcp { 16 } else { 6 },
            ..Vnet::default()
        };
        slot[..VNET_BYTES].copy_from_slice(&vnet.bytes());
        let out = &mut slot[VNET_BYTES..end];
        out[..gso.first.headers].copy_from_slice(&self.frame[..gso.first.headers]);
        let from = gso.first.headers + self.done;
        out[gso.first.headers..].copy_from_slice(&self.frame[from..from + take]);
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
            Some(gso) => self.index == 0 || self.done < self.frame.len() - gso.first.headers,
        }
    }

    /// Discards the remaining frames and returns their number.
    pub(crate) fn skip_rest(self) -> u64 {
        match self.gso {
            None => u64::from(self.done == 0),
            Some(gso) => {
                let left = self.frame.len() - gso.first.headers - self.done;
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
    fn new(frame: &[u8], vnet: &Vnet) -> Result<Self, HeaderError> {
        let partial = vnet.flags & NEEDS_CSUM != 0;
        let csum_start = partial.then_some(usize::from(vnet.csum_start));
        let (tcp, ipv6) = match vnet.gso_type & !GSO_ECN {
            GSO_TCPV4 => (true, Some(false)),
            GSO_TCPV6 => (true, Some(true)),
            GSO_UDP_L4 => (false, None),
            _ => return Err(HeaderError::Unsupported),
        };
        let first = TransportFrame::parse(frame, if tcp { TCP } else { UDP }, csum_start)?;
        if ipv6.is_some_and(|ipv6| ipv6 != first.ipv6) {
            return Err(HeaderError::Unsupported);
        }
        if vnet.gso_size == 0 {
            return Err(HeaderError::Malformed);
        }
        Ok(Self { tcp, first, size: usize::from(vnet.gso_size) })
    }

    /// Writes length, identification and header checksum of the segment in `out`.
    fn write_ip(&self, out: &mut [u8], index: u16) {
        let length = out.len() - self.first.network;
        let ip = &mut out[self.first.network..self.first.transport];
        if self.first.ipv6 {
            ip[4..6].copy_from_slice(&((length - IPV6_BYTES) as u16).to_be_bytes());
            return;
        }
        ip[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        ip[4..6].copy_from_slice(&self.first.id.wrapping_add(index).to_be_bytes());
        ip[10..12].fill(0);
        let checksum = !fold(sum(ip));
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    }

    /// Writes sequence number, flags, length and partial checksum of the segment in `out`. Its payload begins at `offset` in the payload of
    /// the super-packet.
    fn write_transport(&self, out: &mut [u8], offset: u32, last: bool, keep_cwr: bool) {
        let length = (out.len() - self.first.transport) as u16;
        let partial = fold(self.first.pseudo + u32::from(length)).to_be_bytes();
        let header = &mut out[self.first.transport..];
        if !self.tcp {
            header[4..6].copy_from_slice(&length.to_be_bytes());
            header[6..8].copy_from_slice(&partial);
            return;
        }
        header[4..8].copy_from_slice(&self.first.sequence.wrapping_add(offset).to_be_bytes());
        if !last {
            header[13] &= !(TCP_FIN | TCP_PSH);
        }
        if !keep_cwr {
            header[13] &= !TCP_CWR;
        }
        header[16..18].copy_from_slice(&partial);
    }
}

#[cfg(test)]
mod tests;
