use proptest::prelude::*;

use super::*;
use crate::datapath::header;
use crate::datapath::segment::Frames;
use crate::fuzzing::coalesce;

fn segment_all(packet: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Frames::new(packet).unwrap();
    let mut slot = vec![0; frames.slot_bytes()];
    let mut all = Vec::new();
    while let Some(length) = frames.next_into(&mut slot) {
        all.push(slot[..length].to_vec());
    }
    all
}

/// Returns a TCP super-packet with these VLAN tags, IP version, payload, segment size, flags and identification.
fn super_packet(tags: usize, ipv6: bool, payload: usize, size: u16, flags: u8, id: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    for _ in 0..tags {
        frame.extend([0x81, 0, 0, 9]);
    }
    let total = |bytes: usize| (bytes as u16).to_be_bytes();
    if ipv6 {
        frame.extend([0x86, 0xdd, 0x60, 0x20, 0, 1]);
        frame.extend(total(20 + payload));
        frame.extend([TCP, 64]);
        frame.extend([0xfd; 32]);
    } else {
        frame.extend([8, 0, 0x45, 2]);
        frame.extend(total(40 + payload));
        frame.extend(id.to_be_bytes());
        frame.extend([0x40, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    let transport = frame.len();
    frame.extend([0, 80, 1, 1, 0xff, 0xff, 0xff, 0, 0, 0, 0, 7, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    frame.extend((0..payload).map(|at| at as u8));
    let vnet = Vnet {
        flags: NEEDS_CSUM,
        gso_type: if ipv6 { GSO_TCPV6 } else { GSO_TCPV4 },
        hdr_len: 0,
        gso_size: size,
        csum_start: transport as u16,
        csum_offset: TCP_CHECKSUM,
    };
    [&vnet.bytes()[..], &frame].concat()
}

#[test]
fn coalesces_up_to_eight_segments() {
    for (tags, ipv6) in [(0, false), (1, false), (0, true), (2, true)] {
        let packets = segment_all(&super_packet(tags, ipv6, 2050, 100, ACK | PSH, 0xfffe));
        let counts: Vec<_> = coalesce(&packets).iter().map(|(count, _)| *count).collect();
        assert_eq!(counts, [8, 8, 5], "{tags} tags, IPv6 {ipv6}");
    }
}

#[test]
fn ce_marks_and_gaps_end_a_group() {
    let mut packets = segment_all(&super_packet(0, false, 600, 100, ACK, 7));
    header::set_ecn(&mut packets[2][VNET_BYTES..], header::Ecn::Ce);
    packets.remove(4);
    let counts: Vec<_> = coalesce(&packets).iter().map(|(count, _)| *count).collect();
    assert_eq!(counts, [2, 1, 1, 1]);
}

#[test]
fn a_checksum_that_gso_does_not_write_ends_a_group() {
    const CHECKSUM: std::ops::Range<usize> = VNET_BYTES + 24..VNET_BYTES + 26;
    let mut candidates =
        (0..=u16::MAX).map(|id| segment_all(&super_packet(0, false, 300, 100, ACK, id)));
    let mut packets = candidates.find(|packets| packets[1][CHECKSUM] == [0, 0]).unwrap();
    assert_eq!(coalesce(&packets).len(), 1);
    // Also correct, but GSO would write 0.
    packets[1][CHECKSUM].fill(0xff);
    let counts: Vec<_> = coalesce(&packets).iter().map(|(count, _)| *count).collect();
    assert_eq!(counts, [1, 1, 1]);
}

#[test]
fn coalesces_only_plain_data_segments() {
    for flags in [ACK | 0x80, ACK | 0x20, ACK | 0x02, ACK | 0x04, 0] {
        let packets = segment_all(&super_packet(0, false, 300, 100, flags, 7));
        let counts: Vec<_> = coalesce(&packets).iter().map(|(count, _)| *count).collect();
        assert_eq!(counts, [1, 1, 1], "{flags:#x}");
    }
}

proptest! {
    #[test]
    fn segmentation_restores_coalesced_packets(
        (tags, ipv6) in (0..3_usize, any::<bool>()),
        (payload, size) in (1..6000_usize, 60..1500_u16),
        (flags, id) in (any::<u8>(), any::<u16>()),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0..130_usize, any::<u8>()), 0..4),
    ) {
        let mut packets = segment_all(&super_packet(tags, ipv6, payload, size, flags, id));
        for (which, at, value) in changes {
            let which = which.index(packets.len());
            if let Some(byte) = packets[which].get_mut(at) {
                *byte = value;
            }
        }
        let mut back = Vec::new();
        for (count, bytes) in coalesce(&packets) {
            if count == 1 {
                back.push(bytes);
            } else {
                let again = segment_all(&bytes);
                prop_assert_eq!(again.len(), count);
                back.extend(again);
            }
        }
        prop_assert_eq!(back.len(), packets.len());
        for (one, other) in back.iter().zip(&packets) {
            // `hdr_len` is only a hint and may differ.
            prop_assert_eq!(&one[4..], &other[4..]);
            prop_assert_eq!(&one[..2], &other[..2]);
        }
    }

    #[test]
    fn never_panics_on_arbitrary_bytes(
        first in proptest::collection::vec(any::<u8>(), 0..120),
        second in proptest::collection::vec(any::<u8>(), 0..120),
    ) {
        if let Some(mut group) = Group::start(&first) {
            group.extend(&first, &second);
            group.write_head(&first, &mut [0; HEAD_BYTES]);
        }
    }
}
