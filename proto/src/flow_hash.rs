//! The hash that identifies a flow on a userspace link (column `flow` of table `link_packets`).

use std::net::{IpAddr, SocketAddr};

/// IP's protocol number.
const TCP: u8 = 6;

/// Hashes a packet: its protocol, its addresses as in the header, and its ports, if it has any (the source's in the upper half).
/// The hash has no seed, so the same traffic always uses the same queues.
#[inline]
pub fn flow_hash(protocol: u8, addresses: &[u8], ports: Option<u32>) -> u32 {
    fmix64(mixed(protocol, addresses, ports)) as u32
}

/// The state after all words. Ports that differ in few bits give states that differ in few bits.
#[inline]
fn mixed(protocol: u8, addresses: &[u8], ports: Option<u32>) -> u64 {
    let mut state = mix(0, u64::from(protocol));
    let (words, _) = addresses.as_chunks::<4>();
    for word in words {
        state = mix(state, u64::from(u32::from_be_bytes(*word)));
    }
    if let Some(ports) = ports {
        state = mix(state, u64::from(ports));
    }
    state
}

/// The hash of TCP segments from one socket to another; `None` if only one of the addresses is IPv6.
pub fn tcp_flow_hash(from: SocketAddr, to: SocketAddr) -> Option<u32> {
    let (addresses, ports) = addresses_and_ports(from, to)?;
    Some(flow_hash(TCP, &addresses, Some(ports)))
}

/// The same hash in tables of ccbench 0.1.
pub fn tcp_flow_hash_of_0_1(from: SocketAddr, to: SocketAddr) -> Option<u32> {
    let (addresses, ports) = addresses_and_ports(from, to)?;
    Some((mixed(TCP, &addresses, Some(ports)) >> 32) as u32)
}

/// Addresses and ports as in the headers of packets from one socket to another; `None` if only one of the addresses is IPv6.
fn addresses_and_ports(from: SocketAddr, to: SocketAddr) -> Option<(Vec<u8>, u32)> {
    let ports = u32::from(from.port()) << 16 | u32::from(to.port());
    let addresses = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => [from.octets(), to.octets()].concat(),
        (IpAddr::V6(from), IpAddr::V6(to)) => [from.octets(), to.octets()].concat(),
        _ => return None,
    };
    Some((addresses, ports))
}

/// One round of a multiply-and-fold hash.
#[inline]
fn mix(state: u64, word: u64) -> u64 {
    let wide = u128::from(state ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xbf58_476d_1ce4_e5b9;
    (wide as u64) ^ ((wide >> 64) as u64)
}

/// The finalizer of MurmurHash3: every bit of the state may change every bit of the result. Queues use the low bits; without the
/// finalizer, consecutive ports, such as iperf3's, would share a queue four times as often as by chance.
#[inline]
fn fmix64(mut state: u64) -> u64 {
    state = (state ^ state >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    state = (state ^ state >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    state ^ state >> 33
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn hash_is_that_of_the_documentation() {
        // From the Python code in docs/results.md, and from its text about tables of ccbench 0.1.
        let hashes = |from, to| {
            let (from, to) = (socket(from), socket(to));
            (tcp_flow_hash(from, to).unwrap(), tcp_flow_hash_of_0_1(from, to).unwrap())
        };
        assert_eq!(hashes("10.0.0.1:5000", "10.0.0.2:80"), (2_183_910_271, 3_752_849_242));
        assert_eq!(hashes("[fd00::1]:5000", "[fd00::2]:80"), (1_427_114_107, 57_232_729));
    }

    /// Number of pairs of flows whose hashes select the same of `queues` queues.
    fn pairs_in_one_queue(hashes: &[u32], queues: u32) -> u64 {
        let mut flows = vec![0; queues as usize];
        hashes.iter().for_each(|hash| flows[(hash % queues) as usize] += 1);
        flows.into_iter().map(|flows: u64| flows * flows.saturating_sub(1) / 2).sum()
    }

    #[test]
    fn consecutive_ports_share_queues_as_often_as_by_chance() {
        type Ports = fn(u16) -> (u16, u16);
        let ports: [(&str, Ports); 3] = [
            ("source", |port| (port, 5201)),
            ("destination", |port| (5201, port)),
            ("both", |port| (port, port)),
        ];
        for ends in [["10.77.1.1", "10.77.2.2"], ["fd00::1", "fd00::2"]] {
            let [from, to]: [IpAddr; 2] = ends.map(|end| end.parse().unwrap());
            for (which, ports) in ports {
                let hash = |port| {
                    let (sport, dport) = ports(port);
                    tcp_flow_hash((from, sport).into(), (to, dport).into()).unwrap()
                };
                // 1024: those of `fq_codel`, and of `fq` with its mask of ten bits.
                for (flows, queues) in [(64, 1000), (64, 1024), (128, 1000), (128, 1024)] {
                    let firsts = (1024..60_000_u16).step_by(1009);
                    let chance = firsts.len() as f64 * f64::from(flows * (flows - 1) / 2)
                        / f64::from(queues);
                    let of_first = |first: u16| {
                        let hashes: Vec<u32> = (first..first + flows).map(hash).collect();
                        pairs_in_one_queue(&hashes, queues)
                    };
                    let pairs = firsts.map(of_first).sum::<u64>() as f64;
                    let what = format!("{flows} flows of {from}, {which} ports, {queues} queues");
                    assert!(pairs < 1.5 * chance, "{what}: {pairs} pairs, by chance {chance}");
                }
            }
        }
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
