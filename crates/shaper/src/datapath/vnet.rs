//! `struct virtio_net_hdr`, which the kernel puts in front of every frame of a packet socket with
//! `PACKET_VNET_HDR`: what offloads have left to be done.

/// Its size in bytes.
pub(crate) const VNET_BYTES: usize = 10;

/// The checksum at `csum_start + csum_offset` holds only the pseudo header's sum.
pub(crate) const NEEDS_CSUM: u8 = 1;
/// Not to be cut.
pub(crate) const GSO_NONE: u8 = 0;
/// TCP over IPv4 to be cut.
pub(crate) const GSO_TCPV4: u8 = 1;
/// TCP over IPv6 to be cut.
pub(crate) const GSO_TCPV6: u8 = 4;
/// Several UDP datagrams of one size, either IP version.
pub(crate) const GSO_UDP_L4: u8 = 5;
/// Or-ed to a TCP kind: CWR is RFC 3168's and belongs to the first segment only.
pub(crate) const GSO_ECN: u8 = 0x80;

/// The header's fields, in the host's byte order as the packet socket has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Vnet {
    /// [`NEEDS_CSUM`] and others that only a receiver cares about.
    pub(crate) flags: u8,
    /// [`GSO_NONE`] ...
    pub(crate) gso_type: u8,
    /// Bytes of all headers; a hint that the kernel does not keep exact.
    pub(crate) hdr_len: u16,
    /// Payload bytes of one segment.
    pub(crate) gso_size: u16,
    /// Where the transport header begins, from the frame's first byte.
    pub(crate) csum_start: u16,
    /// Where its checksum is, from there.
    pub(crate) csum_offset: u16,
}

impl Vnet {
    /// Reads the header; `None` if there are fewer than [`VNET_BYTES`] bytes.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let head: &[u8; VNET_BYTES] = bytes.first_chunk()?;
        let word = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
        Some(Self {
            flags: head[0],
            gso_type: head[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        })
    }

    /// The header as bytes.
    pub(crate) fn bytes(&self) -> [u8; VNET_BYTES] {
        let [h0, h1] = self.hdr_len.to_ne_bytes();
        let [g0, g1] = self.gso_size.to_ne_bytes();
        let [s0, s1] = self.csum_start.to_ne_bytes();
        let [o0, o1] = self.csum_offset.to_ne_bytes();
        [self.flags, self.gso_type, h0, h1, g0, g1, s0, s1, o0, o1]
    }
}
