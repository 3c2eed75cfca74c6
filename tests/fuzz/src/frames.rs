//! Fuzzes packets of the experiment's network, which a userspace link receives.

use ccbench_proto::plan::Ecn;
use ccbench_shaper::fuzzing::{
    coalesce, flow_hash, frame_headers, segments, with_checksum, with_ecn, with_flipped_bit,
    with_tag,
};

/// Bytes of `struct virtio_net_hdr`, which precedes every frame.
const VNET_BYTES: usize = 10;
/// Bytes of the two addresses at the beginning of a frame.
const ADDRESSES_BYTES: usize = 12;
/// A VLAN tag, as it is in a frame.
const TAG: [u8; 4] = [0x81, 0, 0x20, 7];
/// MTU of the interface, in bytes. A link drops larger segments.
const MTU_BYTES: u32 = 1500;
/// Packets of an input.
const MAX_PACKETS: usize = 16;
/// Segments of a packet that are coalesced again. A packet of 64 KiB has as many segments as bytes if its sender asks for that.
const MAX_SEGMENTS: usize = 64;

/// Packets as a packet socket delivers them: `struct virtio_net_hdr` and a frame. Each follows its length, two bytes in little-endian order.
/// They are handled as they are, and with a VLAN tag.
pub fn frame(data: &[u8]) {
    let plain: Vec<Vec<u8>> = packets(data).take(MAX_PACKETS).map(<[u8]>::to_vec).collect();
    let tagged = plain.iter().map(|packet| tag(packet)).collect();
    for packets in [plain, tagged] {
        let mut due = Vec::new();
        for packet in &packets {
            headers(packet.get(VNET_BYTES..).unwrap_or(&[]));
            assert_eq!(with_checksum(packet).len(), packet.len());
            due.extend(segment(packet));
        }
        check_coalesced(&due);
    }
}

fn packets(mut data: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = data.split_first_chunk()?;
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (packet, after) = rest.split_at(length);
        data = after;
        Some(packet)
    })
}

/// Returns a packet with a VLAN tag behind the addresses.
fn tag(packet: &[u8]) -> Vec<u8> {
    let tagged = with_tag(packet, TAG);
    let addresses = VNET_BYTES..VNET_BYTES + ADDRESSES_BYTES;
    if packet.len() < addresses.end {
        return packet.to_vec();
    }
    let (before, after) = tagged.split_at(addresses.end);
    assert_eq!(before[addresses.clone()], packet[addresses.clone()]);
    assert_eq!(after, [&TAG[..], &packet[addresses.end..]].concat());
    tagged
}

/// Reads a frame's headers, and makes every change that a link makes.
fn headers(frame: &[u8]) {
    let found = frame_headers(frame);
    assert!(!found.is_superseded_by_copy, "a duplicate has no later information");
    assert!(found.tcp.is_none_or(|tcp| usize::from(tcp.sack_count) <= tcp.sack_blocks.len()));
    assert!(found.is_ip || flow_hash(frame) == 0 && found.ecn == Ecn::NotEct);
    for ecn in Ecn::ALL {
        let marked = with_ecn(frame, ecn);
        assert_eq!(marked.len(), frame.len());
        assert_eq!(frame_headers(&marked).ecn, if found.is_ip { ecn } else { found.ecn });
    }
    for draw in [0, u64::MAX / 3, u64::MAX] {
        let changed = with_flipped_bit(frame, draw);
        let bits: u32 = changed.iter().zip(frame).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert!(bits <= 1 && changed.len() == frame.len());
    }
}

/// Returns the packet's segments, as the packets that a link stores.
fn segment(packet: &[u8]) -> Vec<Vec<u8>> {
    let Some((found, others)) = segments(packet, MTU_BYTES, MAX_SEGMENTS) else { return vec![] };
    assert!(!found.is_empty() && (others == 0 || found.len() == MAX_SEGMENTS));
    for segment in &found {
        assert!(segment.len() <= packet.len());
        // A segment is not segmented again.
        assert_eq!(segments(segment, MTU_BYTES, 2), Some((vec![segment.clone()], 0)));
    }
    found
}

/// Checks that segmentation restores coalesced packets byte for byte.
fn check_coalesced(due: &[Vec<u8>]) {
    let mut again = Vec::new();
    for (count, bytes) in coalesce(due) {
        if count == 1 {
            again.push(bytes);
            continue;
        }
        let (found, others) = segments(&bytes, MTU_BYTES, count).expect("it has segments");
        assert_eq!((found.len(), others), (count, 0));
        again.extend(found);
    }
    assert_eq!(again.len(), due.len());
    for (one, other) in again.iter().zip(due) {
        // `hdr_len` and `gso_size` mean nothing in a packet without GSO.
        assert_eq!((&one[..2], &one[6..]), (&other[..2], &other[6..]));
    }
}
