//! The hash that identifies a flow on a userspace link (column `flow` of table `link_packets`).

use std::net::{IpAddr, SocketAddr};

/// IP's number of the protocol.
const TCP: u8 = 6;

/// Hash of a packet: its protocol, its addresses as they are in the header, and its ports (the source's in the upper half), if
/// it has any. Not seeded, so that the same traffic uses the same queues.
#[inline]
pub fn flow_hash(protocol: u8, addresses: &[u8], ports: Option<u32>) -> u32 {
    let mut state = mix(0, u64::from(protocol));
    let (words, _) = addresses.as_chunks::<4>();
    for word in words {
        state = mix(state, u64::from(u32::from_be_bytes(*word)));
    }
    if let Some(ports) = ports {
        state = mix(state, u64::from(ports));
    }
    (state >> 32) as u32
}

/// The hash of TCP segments from one socket to another; `None` if only one of the addresses is IPv6.
pub fn tcp_flow_hash(from: SocketAddr, to: SocketAddr) -> Option<u32> {
    let ports = u32::from(from.port()) << 16 | u32::from(to.port());
    let addresses = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => [from.octets(), to.octets()].concat(),
        (IpAddr::V6(from), IpAddr::V6(to)) => [from.octets(), to.octets()].concat(),
        _ => return None,
    };
    Some(flow_hash(TCP, &addresses, Some(ports)))
}

/// One round of a multiply-and-fold hash.
#[inline]
fn mix(state: u64, word: u64) -> u64 {
    let wide = u128::from(state ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xbf58_476d_1ce4_e5b9;
    (wide as u64) ^ ((wide >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn hash_is_that_of_the_documentation() {
        // Of the Python code in docs/results.md; tables of earlier runs have it.
        let hash = |from, to| tcp_flow_hash(socket(from), socket(to));
        assert_eq!(hash("10.0.0.1:5000", "10.0.0.2:80"), Some(3_752_849_242));
        assert_eq!(hash("[fd00::1]:5000", "[fd00::2]:80"), Some(57_232_729));
    }

    #[test]
    fn directions_ports_and_addresses_differ() {
        let (a, b) = (socket("10.0.0.1:5000"), socket("10.0.0.2:80"));
        let hash = |from, to| tcp_flow_hash(from, to).unwrap();
        assert_eq!(hash(a, b), flow_hash(6, &[10, 0, 0, 1, 10, 0, 0, 2], Some(5000 << 16 | 80)));
        let all = [
            hash(a, b),
            hash(b, a),
            hash(socket("10.0.0.1:5001"), b),
            hash(a, socket("10.0.0.3:80")),
            hash(socket("[fd00::1]:5000"), socket("[fd00::2]:80")),
        ];
        let distinct: std::collections::BTreeSet<u32> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(tcp_flow_hash(a, socket("[fd00::2]:80")), None);
    }
}
