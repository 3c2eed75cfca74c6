//! Packets as a packet socket delivers them, each after its length.

use ccbench_shaper::fuzzing::segments;

/// Segmentation that `struct virtio_net_hdr` asks for.
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ACK: u8 = 0x10;
const PSH_ACK: u8 = 0x18;
/// NOPs and a timestamp option, which are followed by NOPs and a SACK option with a block.
const OPTIONS: [u8; 24] =
    [1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 7, 1, 1, 5, 10, 0, 0, 0x20, 0, 0, 0, 0x30, 0];

/// Returns the inputs with their names.
pub(super) fn inputs() -> Vec<(&'static str, Vec<u8>)> {
    let four = tcp(PSH_ACK, &[], 250);
    let super_packet = packet(GSO_TCPV4, 100, &ipv4(TCP, &four));
    let (cut, _) = segments(&super_packet, 1500, 8).unwrap();
    let six = packet(GSO_TCPV6, 60, &ipv6(TCP, &tcp(ACK, &OPTIONS, 130)));
    let datagrams = packet(GSO_UDP_L4, 40, &ipv6(UDP, &udp(100)));
    let ack = |options: &[u8]| packet(GSO_NONE, 0, &ipv4(TCP, &tcp(ACK, options, 0)));
    let mut arp = vec![0; 10];
    arp.extend([0xff; 12]);
    arp.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    vec![
        ("tcp4-super-packet", joined(&[super_packet])),
        ("tcp4-segments", joined(&cut)),
        ("tcp6-super-packet", joined(&[six])),
        ("udp6-super-packet", joined(&[datagrams])),
        ("acks", joined(&[ack(&[]), ack(&OPTIONS), ack(&OPTIONS[..12])])),
        ("arp", joined(&[arp])),
    ]
}

fn joined(packets: &[Vec<u8>]) -> Vec<u8> {
    let with_length =
        |packet: &Vec<u8>| [&(packet.len() as u16).to_le_bytes()[..], packet].concat();
    packets.iter().flat_map(with_length).collect()
}

/// Returns a frame behind its vnet header. The checksum of the transport header is partial.
fn packet(gso_type: u8, gso_size: u16, ip: &[u8]) -> Vec<u8> {
    let is_v4 = ip[0] >> 4 == 4;
    let (ethertype, ip_bytes) = if is_v4 { ([0x08, 0x00], 20) } else { ([0x86, 0xdd], 40) };
    let is_tcp = if is_v4 { ip[9] == TCP } else { ip[6] == TCP };
    let mut bytes = vec![1, gso_type];
    for word in [0, gso_size, 14 + ip_bytes, if is_tcp { 16 } else { 6 }] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    bytes.extend(ethertype);
    bytes.extend(ip);
    bytes
}

fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x45, 2];
    bytes.extend((20 + payload.len() as u16).to_be_bytes());
    bytes.extend([0xff, 0xff, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend(payload);
    bytes
}

fn ipv6(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x60, 0x20, 0, 1];
    bytes.extend((payload.len() as u16).to_be_bytes());
    bytes.extend([protocol, 64]);
    bytes.extend([0xfd; 32]);
    bytes.extend(payload);
    bytes
}

fn tcp(flags: u8, options: &[u8], data: usize) -> Vec<u8> {
    let words = ((20 + options.len()) / 4) as u8;
    let mut bytes = vec![0, 80, 1, 1, 0xff, 0xff, 0xff, 0, 0, 0, 0, 7];
    bytes.extend([words << 4, flags, 1, 0, 0, 0, 0, 0]);
    bytes.extend(options);
    bytes.extend((0..data).map(|at| at as u8));
    bytes
}

fn udp(data: usize) -> Vec<u8> {
    let mut bytes = vec![0x30, 0x39, 0, 53];
    bytes.extend((8 + data as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend((0..data).map(|at| at as u8));
    bytes
}
