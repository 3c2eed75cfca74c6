use proptest::prelude::*;

use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter(char::is_ascii_hexdigit)
        .map(|c| c.to_digit(16).unwrap() as u8)
        .collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn with_vnet(vnet: Vnet, frame: &[u8]) -> Vec<u8> {
    [&vnet.bytes()[..], frame].concat()
}

fn segment_all(packet: &[u8]) -> Result<Vec<Vec<u8>>, HeaderError> {
    let mut frames = Frames::new(packet)?;
    let mut slot = vec![0xaa; frames.slot_bytes()];
    let mut all = Vec::new();
    while let Some(length) = frames.next_into(&mut slot) {
        all.push(slot[..length].to_vec());
    }
    Ok(all)
}

/// Completes a partial checksum, as a device does for `NEEDS_CSUM`.
fn complete(packet: &[u8]) -> Vec<u8> {
    let vnet = Vnet::read(packet).unwrap();
    let mut frame = packet[VNET_BYTES..].to_vec();
    if vnet.flags & NEEDS_CSUM != 0 {
        let start = usize::from(vnet.csum_start);
        let field = start + usize::from(vnet.csum_offset);
        let checksum = !fold(sum(&frame[start..]));
        frame[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
    }
    frame
}

const ETHERNET: &str = "02 00 00 00 00 02  02 00 00 00 00 01";

/// Returns 25 bytes of payload in segments of 10, with identification ffff, sequence number ffff_fff6 and CWR ACK PSH FIN.
fn tcp4(gso_type: u8) -> Vec<u8> {
    let frame = hex(&format!(
        "{ETHERNET} 08 00
         45 02 00 41 ff ff 40 00 40 06 00 00  0a 00 00 01  0a 00 03 01
         14 51 c3 50 ff ff ff f6 00 00 00 07 50 99 01 f6 00 00 00 00
         00 01 02 03 04 05 06 07 08 09  10 11 12 13 14 15 16 17 18 19  20 21 22 23 24"
    ));
    let vnet = Vnet {
        flags: NEEDS_CSUM,
        gso_type,
        hdr_len: 54,
        gso_size: 10,
        csum_start: 34,
        csum_offset: 16,
    };
    with_vnet(vnet, &frame)
}

#[test]
fn segments_tcp_over_ipv4() {
    let segments = segment_all(&tcp4(GSO_TCPV4 | GSO_ECN)).unwrap();
    // An independent program computed these checksums.
    let expected = [
        "08 00 45 02 00 32 ff ff 40 00 40 06 23 c3 0a 00 00 01 0a 00 03 01
         14 51 c3 50 ff ff ff f6 00 00 00 07 50 90 01 f6 aa 9a 00 00 00 01 02 03 04 05 06 07 08 09",
        "08 00 45 02 00 32 00 00 40 00 40 06 23 c3 0a 00 00 01 0a 00 03 01
         14 51 c3 50 00 00 00 00 00 00 00 07 50 10 01 f6 5a c1 00 00 10 11 12 13 14 15 16 17 18 19",
        "08 00 45 02 00 2d 00 01 40 00 40 06 23 c7 0a 00 00 01 0a 00 03 01
         14 51 c3 50 00 00 00 0a 00 00 00 07 50 19 01 f6 58 d8 00 00 20 21 22 23 24",
    ];
    let frames: Vec<_> = segments.iter().map(|packet| complete(packet)).collect();
    let expected: Vec<_> = expected.iter().map(|text| hex(&format!("{ETHERNET} {text}"))).collect();
    assert_eq!(frames, expected);
}

#[test]
fn keeps_cwr_without_gso_ecn_for_accecn() {
    let segments = segment_all(&tcp4(GSO_TCPV4)).unwrap();
    let flags: Vec<u8> = segments.iter().map(|packet| packet[VNET_BYTES + 47]).collect();
    assert_eq!(flags, [0x90, 0x90, 0x99]);
}

#[test]
fn segments_udp_over_ipv6() {
    let frame = hex(&format!(
        "{ETHERNET} 86 dd
         60 00 00 00 00 0d 11 40
         fd 00 00 00 00 00 00 00 00 00 00 00 00 00 00 01
         fd 00 00 00 00 00 00 00 00 00 00 00 00 00 00 02
         30 39 00 35 00 0d 00 00 01 02 03 04 05"
    ));
    let vnet = Vnet {
        flags: NEEDS_CSUM,
        gso_type: GSO_UDP_L4,
        hdr_len: 62,
        gso_size: 3,
        csum_start: 54,
        csum_offset: 6,
    };
    let segments = segment_all(&with_vnet(vnet, &frame)).unwrap();
    let tails: Vec<_> = segments.iter().map(|packet| complete(packet)[54..].to_vec()).collect();
    assert_eq!(
        tails,
        [hex("30 39 00 35 00 0b d1 63 01 02 03"), hex("30 39 00 35 00 0a d1 62 04 05")]
    );
    assert_eq!(segments[0][VNET_BYTES + 18..VNET_BYTES + 20], [0, 11]);
    assert_eq!(segments[1][VNET_BYTES + 18..VNET_BYTES + 20], [0, 10]);
}

#[test]
fn plain_frame_is_unchanged() {
    let mut packet = tcp4(GSO_NONE);
    packet[0] = NEEDS_CSUM | 2;
    let segments = segment_all(&packet).unwrap();
    packet[0] = NEEDS_CSUM;
    assert_eq!(segments, [packet]);
}

#[test]
fn rejects_malformed_packets() {
    let good = tcp4(GSO_TCPV4);
    assert_eq!(segment_all(&good[..5]).unwrap_err(), HeaderError::Malformed);
    assert_eq!(segment_all(&good[..40]).unwrap_err(), HeaderError::Malformed);
    assert_eq!(segment_all(&tcp4(GSO_TCPV6)).unwrap_err(), HeaderError::Unsupported);
    assert_eq!(segment_all(&tcp4(3)).unwrap_err(), HeaderError::Unsupported);
    let mut no_size = good.clone();
    no_size[4..6].fill(0);
    assert_eq!(segment_all(&no_size).unwrap_err(), HeaderError::Malformed);
    let mut arp = good.clone();
    arp[VNET_BYTES + 13] = 6;
    assert_eq!(segment_all(&arp).unwrap_err(), HeaderError::Unsupported);
}

fn super_packet(
    ipv6: bool,
    tcp: bool,
    extension: bool,
    size: u16,
    payload: &[u8],
    fields: [u8; 12],
) -> Vec<u8> {
    let mut frame = hex(ETHERNET);
    let protocol = if tcp { TCP } else { UDP };
    let transport_bytes = if tcp { 32 } else { 8 };
    if ipv6 {
        let extension_bytes = if extension { 8 } else { 0 };
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(((extension_bytes + transport_bytes + payload.len()) as u16).to_be_bytes());
        frame.extend([if extension { 0 } else { protocol }, 64]);
        frame.extend((0..32).map(|i| fields[i % 12]));
        if extension {
            frame.extend([protocol, 0, 1, 4, 0, 0, 0, 0]);
        }
    } else {
        frame.extend([0x08, 0x00, 0x45, 0]);
        frame.extend(((20 + transport_bytes + payload.len()) as u16).to_be_bytes());
        frame.extend([fields[0], fields[1], 0x40, 0, 64, protocol, 0, 0]);
        frame.extend(&fields[4..12]);
    }
    let transport = frame.len();
    frame.extend(&fields[..4]);
    if tcp {
        frame.extend(&fields[4..12]);
        frame.extend([0x80, 0x19, 1, 2, 0, 0, 0, 0]);
        frame.extend([1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
    } else {
        frame.extend(((8 + payload.len()) as u16).to_be_bytes());
        frame.extend([0, 0]);
    }
    frame.extend(payload);
    let gso_type = match (tcp, ipv6) {
        (false, _) => GSO_UDP_L4,
        (true, true) => GSO_TCPV6,
        (true, false) => GSO_TCPV4,
    };
    let vnet = Vnet {
        flags: NEEDS_CSUM,
        gso_type,
        hdr_len: 0,
        gso_size: size,
        csum_start: transport as u16,
        csum_offset: if tcp { 16 } else { 6 },
    };
    with_vnet(vnet, &frame)
}

proptest! {
    #[test]
    fn preserves_payload_and_checksums(
        ipv6 in any::<bool>(),
        tcp in any::<bool>(),
        extension in any::<bool>(),
        size in 1_u16..1460,
        payload in proptest::collection::vec(any::<u8>(), 1..5_000),
        fields in any::<[u8; 12]>(),
    ) {
        let packet = super_packet(ipv6, tcp, extension && ipv6, size, &payload, fields);
        let start = usize::from(Vnet::read(&packet).unwrap().csum_start);
        let headers = start + if tcp { 32 } else { 8 };
        let segments = segment_all(&packet).unwrap();
        prop_assert_eq!(segments.len(), payload.len().div_ceil(usize::from(size)));
        let mut joined: Vec<u8> = Vec::new();
        for packet in &segments {
            let frame = complete(packet);
            let segment = &frame[headers..];
            if tcp {
                let sequence = u32::from_be_bytes(frame[start + 4..start + 8].try_into().unwrap());
                let first = u32::from_be_bytes(fields[4..8].try_into().unwrap());
                prop_assert_eq!(sequence.wrapping_sub(first) as usize, joined.len());
            }
            joined.extend(segment);
            prop_assert!(segment.len() <= usize::from(size));
            let transport_bytes = (frame.len() - start) as u32;
            let addresses = if ipv6 { &frame[22..54] } else { &frame[26..34] };
            let protocol = u32::from(if tcp { TCP } else { UDP });
            let all = sum(addresses) + protocol + transport_bytes + sum(&frame[start..]);
            prop_assert_eq!(fold(all), 0xffff);
            if !ipv6 {
                prop_assert_eq!(fold(sum(&frame[14..34])), 0xffff);
                prop_assert_eq!(&frame[16..18], &((frame.len() - 14) as u16).to_be_bytes()[..]);
            }
        }
        prop_assert_eq!(joined, payload);
    }

    #[test]
    fn never_panics_on_arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0_u8..8) {
        let mut bytes = bytes;
        if bytes.len() > 27 {
            bytes[1] = kind;
            bytes[VNET_BYTES + 12..VNET_BYTES + 15].copy_from_slice(if kind & 1 == 0 {
                &[0x86, 0xdd, 0x60]
            } else {
                &[0x08, 0x00, 0x45]
            });
        }
        let _ = segment_all(&bytes);
    }
}
