//! `struct virtio_net_hdr`, which precedes every frame of a packet socket with `PACKET_VNET_HDR`. It describes the checksum and the
//! segmentation that are still to be done.

/// Size of the header in bytes.
pub(crate) const VNET_BYTES: usize = 10;

/// The checksum at `csum_start + csum_offset` holds only the sum of the pseudo header.
pub(crate) const NEEDS_CSUM: u8 = 1;
/// No segmentation.
pub(crate) const GSO_NONE: u8 = 0;
/// TCP over IPv4 to be segmented.
pub(crate) const GSO_TCPV4: u8 = 1;
/// TCP over IPv6 to be segmented.
pub(crate) const GSO_TCPV6: u8 = 4;
/// UDP datagrams of equal size, either IP version.
pub(crate) const GSO_UDP_L4: u8 = 5;
/// Flag of a TCP type: CWR has the meaning of RFC 3168 and belongs only to the first segment.
pub(crate) const GSO_ECN: u8 = 0x80;

/// The header's fields in host byte order, as the packet socket delivers them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Vnet {
    /// [`NEEDS_CSUM`] and flags that only receivers use.
    pub(crate) flags: u8,
    /// [`GSO_NONE`] ...
    pub(crate) gso_type: u8,
    /// Bytes of all headers; a hint that the kernel does not keep exact.
    pub(crate) hdr_len: u16,
    /// Payload bytes of one segment.
    pub(crate) gso_size: u16,
    /// Offset of the transport header from the frame's first byte.
    pub(crate) csum_start: u16,
    /// Offset of its checksum from `csum_start`.
    pub(crate) csum_offset: u16,
}

impl Vnet {
    /// Parses the header; `None` if there are fewer than [`VNET_BYTES`] bytes.
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

/// Bytes of a VLAN tag.
pub(crate) const TAG_BYTES: usize = 4;

/// Reinserts a VLAN tag that the kernel took out of a frame. `buffer` has [`TAG_BYTES`] free bytes, the vnet header and the frame;
/// afterwards it has the vnet header and the longer frame.
pub(crate) fn put_tag(buffer: &mut [u8], tag: [u8; TAG_BYTES]) {
    const ADDRESSES: usize = 12;
    let Some(vnet) = buffer.get(TAG_BYTES..).and_then(Vnet::read) else { return };
    let begin = VNET_BYTES + ADDRESSES;
    if buffer.len() < begin + TAG_BYTES {
        return;
    }
    buffer.copy_within(TAG_BYTES..TAG_BYTES + begin, 0);
    buffer[begin..begin + TAG_BYTES].copy_from_slice(&tag);
    let later = |at: u16| if at > 0 { at.saturating_add(TAG_BYTES as u16) } else { 0 };
    let vnet = Vnet { csum_start: later(vnet.csum_start), hdr_len: later(vnet.hdr_len), ..vnet };
    buffer[..VNET_BYTES].copy_from_slice(&vnet.bytes());
}

/// Completes the partial checksum of a frame behind its vnet header, and clears the flag. Ignores offsets beyond the end of the frame.
pub(crate) fn complete_checksum(slot: &mut [u8]) {
    let Some(vnet) = Vnet::read(slot) else { return };
    if vnet.flags & NEEDS_CSUM == 0 {
        return;
    }
    let start = VNET_BYTES + usize::from(vnet.csum_start);
    let at = start + usize::from(vnet.csum_offset);
    if at + 2 > slot.len() {
        return;
    }
    let words = slot[start..].chunks(2);
    let word = |pair: &[u8]| u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
    let sum: u64 = words.map(|pair| u64::from(word(pair))).sum();
    let mut folded = sum;
    while folded >> 16 != 0 {
        folded = (folded & 0xffff) + (folded >> 16);
    }
    let checksum = match !(folded as u16) {
        // With UDP, zero would mean that there is no checksum.
        0 => 0xffff,
        other => other,
    };
    slot[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    slot[..VNET_BYTES].copy_from_slice(&Vnet::default().bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_tag_comes_between_addresses_and_protocol() {
        let vnet = Vnet { flags: NEEDS_CSUM, csum_start: 34, csum_offset: 16, ..Vnet::default() };
        let mut buffer = vec![0xee; TAG_BYTES];
        buffer.extend(vnet.bytes());
        buffer.extend(1..=12);
        buffer.extend([8, 0, 0x45]);
        put_tag(&mut buffer, [0x81, 0, 0x20, 7]);
        assert_eq!(Vnet::read(&buffer), Some(Vnet { csum_start: 38, ..vnet }));
        assert_eq!(
            buffer[VNET_BYTES..],
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x81, 0, 0x20, 7, 8, 0, 0x45]
        );
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..60), tag: [u8; 4]) {
            let before = bytes.len();
            put_tag(&mut bytes, tag);
            prop_assert_eq!(bytes.len(), before);
            if let Some(vnet) = Vnet::read(&bytes) {
                prop_assert_eq!(&vnet.bytes()[..], &bytes[..VNET_BYTES]);
            }
        }
    }
}
