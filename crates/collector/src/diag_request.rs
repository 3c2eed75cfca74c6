//! Builds the bytes of an inet_diag request: header, states, wanted attributes, and the port filter for the kernel.

use std::net::{IpAddr, SocketAddr};

use crate::diag_msg::NLMSG_HEADER_LEN;

/// `AF_INET`.
const AF_INET: u8 = 2;
/// `AF_INET6`.
const AF_INET6: u8 = 10;

/// `SOCK_DIAG_BY_FAMILY`, type of request and reply.
pub(crate) const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// The older request, for TCP only: it has no protocol field. Replies have the same type. Unlike `SOCK_DIAG_BY_FAMILY`, it walks
/// the kernel's socket table once for both address families.
pub(crate) const TCPDIAG_GETSOCK: u16 = 18;

const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP: u16 = 0x300;
const IPPROTO_TCP: u8 = 6;
const SOCKID_LEN: usize = 48;
const SEQ_AT: usize = 8;
const INET_DIAG_REQ_BYTECODE: u16 = 1;

/// ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING: the states with a meaningful `tcp_info`.
const STATES: u32 = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;

/// `INET_DIAG_INFO`, `_CONG` and `_VEGASINFO`. The last one requests the data of every congestion control: the mask has no bits
/// for later attributes.
const EXTENSIONS: u8 = 1 << (2 - 1) | 1 << (4 - 1) | 1 << (3 - 1);

const BC_JMP: u8 = 1;
const BC_S_GE: u8 = 2;
const BC_S_LE: u8 = 3;
const BC_D_GE: u8 = 4;
const BC_D_LE: u8 = 5;
const OP_LEN: usize = 4;
/// Two comparisons with their operands, and the jump to "accept".
const RANGE_LEN: usize = 2 * (2 * OP_LEN) + OP_LEN;

/// The port that a comparison reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketEnd {
    /// Local port.
    Source,
    /// Remote port.
    Destination,
}

/// Ports `low` to `high` of one end, inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortRange {
    pub(crate) end: SocketEnd,
    pub(crate) low: u16,
    pub(crate) high: u16,
}

/// Merges the ports of one end into ranges. Sorts `ports`.
pub(crate) fn ranges(end: SocketEnd, ports: &mut [u16]) -> Vec<PortRange> {
    ports.sort_unstable();
    let mut joined: Vec<PortRange> = Vec::new();
    for &port in ports.iter() {
        match joined.last_mut() {
            Some(last) if port <= last.high.saturating_add(1) => last.high = port,
            _ => joined.push(PortRange { end, low: port, high: port }),
        }
    }
    joined
}

/// Encodes the filter "any of these ranges" as `INET_DIAG_REQ_BYTECODE`. Returns `None` if there are no ranges or the program is
/// too long for 16-bit jumps.
///
/// Each range is `GE low`, `LE high`, `JMP accept`. A failed comparison jumps to the next range. In the last range, it jumps four
/// bytes past the end, which the kernel treats as a mismatch.
pub(crate) fn bytecode(ranges: &[PortRange]) -> Option<Vec<u8>> {
    let whole = ranges.len().checked_mul(RANGE_LEN)?;
    // The last range needs no jump: reaching the end is a match.
    let whole = whole.checked_sub(OP_LEN)?;
    u16::try_from(whole + OP_LEN + NLMSG_HEADER_LEN).ok()?;
    let mut code = Vec::with_capacity(whole);
    for range in ranges {
        let (ge, le) = match range.end {
            SocketEnd::Source => (BC_S_GE, BC_S_LE),
            SocketEnd::Destination => (BC_D_GE, BC_D_LE),
        };
        let compare = 2 * OP_LEN;
        op(&mut code, ge, compare, RANGE_LEN);
        op(&mut code, 0, 0, usize::from(range.low));
        op(&mut code, le, compare, RANGE_LEN - compare);
        op(&mut code, 0, 0, usize::from(range.high));
        if code.len() < whole {
            let accept = whole - code.len();
            op(&mut code, BC_JMP, OP_LEN, accept);
        }
    }
    Some(code)
}

/// Appends a `struct inet_diag_bc_op`. `bytecode` has checked that the values fit.
fn op(code: &mut Vec<u8>, kind: u8, yes: usize, no: usize) {
    code.push(kind);
    code.push(yes as u8);
    code.extend_from_slice(&(no as u16).to_ne_bytes());
}

/// Requests that together return every TCP socket of both address families exactly once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Requests {
    /// Complete messages. [`set_seq`] sets their sequence numbers.
    pub(crate) messages: Vec<Vec<u8>>,
    /// Whether the kernel filters by port.
    pub(crate) filtered: bool,
}

/// Returns the variants of the request, the preferred one last. If the kernel rejects one, the one before it is tried next.
pub(crate) fn variants(filter: Option<&[u8]>) -> Vec<Requests> {
    let by_family = |filter: Option<&[u8]>| Requests {
        messages: vec![by_family(AF_INET, filter), by_family(AF_INET6, filter)],
        filtered: filter.is_some(),
    };
    let mut variants = vec![by_family(None)];
    if filter.is_some() {
        variants.push(by_family(filter));
    }
    variants.push(Requests { messages: vec![both_families(filter)], filtered: filter.is_some() });
    variants
}

/// Makes a request that dumps one address family.
fn by_family(family: u8, filter: Option<&[u8]>) -> Vec<u8> {
    let request = request_v2(family, EXTENSIONS, STATES, &[0; SOCKID_LEN]);
    message(SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, &request, filter)
}

/// Makes a request for the one socket with these addresses. Returns `None` if their families differ.
pub(crate) fn exact(local: SocketAddr, remote: SocketAddr) -> Option<Vec<u8>> {
    let mut id = Vec::with_capacity(SOCKID_LEN);
    id.extend_from_slice(&local.port().to_be_bytes());
    id.extend_from_slice(&remote.port().to_be_bytes());
    let family = match (local.ip(), remote.ip()) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            for ip in [local, remote] {
                id.extend_from_slice(&ip.octets());
                id.extend_from_slice(&[0; 12]);
            }
            AF_INET
        }
        (IpAddr::V6(local), IpAddr::V6(remote)) => {
            id.extend_from_slice(&local.octets());
            id.extend_from_slice(&remote.octets());
            AF_INET6
        }
        _ => return None,
    };
    // Any interface and any cookie (`INET_DIAG_NOCOOKIE`).
    id.extend_from_slice(&[0; 4]);
    id.extend_from_slice(&[0xff; 8]);
    let request = request_v2(family, 0, u32::MAX, &id);
    Some(message(SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, &request, None))
}

/// Makes a `struct inet_diag_req_v2`. `id` is its `struct inet_diag_sockid`.
fn request_v2(family: u8, extensions: u8, states: u32, id: &[u8]) -> Vec<u8> {
    let mut request = vec![family, IPPROTO_TCP, extensions, 0];
    request.extend_from_slice(&states.to_ne_bytes());
    request.extend_from_slice(id);
    request
}

/// Makes a request that dumps both address families in one walk (`struct inet_diag_req`).
fn both_families(filter: Option<&[u8]>) -> Vec<u8> {
    let mut request = vec![AF_INET, 0, 0, EXTENSIONS];
    request.resize(request.len() + SOCKID_LEN, 0);
    request.extend_from_slice(&STATES.to_ne_bytes());
    request.extend_from_slice(&0u32.to_ne_bytes());
    message(TCPDIAG_GETSOCK, NLM_F_REQUEST | NLM_F_DUMP, &request, filter)
}

fn message(kind: u16, flags: u16, request: &[u8], filter: Option<&[u8]>) -> Vec<u8> {
    let mut bytes = vec![0; NLMSG_HEADER_LEN];
    bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
    bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
    bytes.extend_from_slice(request);
    if let Some(code) = filter {
        let len = (OP_LEN + code.len()) as u16;
        bytes.extend_from_slice(&len.to_ne_bytes());
        bytes.extend_from_slice(&INET_DIAG_REQ_BYTECODE.to_ne_bytes());
        bytes.extend_from_slice(code);
    }
    let len = bytes.len() as u32;
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    bytes
}

/// Writes the sequence number into a request.
pub(crate) fn set_seq(request: &mut [u8], seq: u32) {
    if let Some(field) = request.get_mut(SEQ_AT..SEQ_AT + 4) {
        field.copy_from_slice(&seq.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bytes::{u16_at, u32_at};

    /// Interprets a filter as the kernel does (`inet_diag_bc_run`). Returns `None` if the kernel would reject the program.
    fn run(code: &[u8], sport: u16, dport: u16) -> Option<bool> {
        let mut at = 0;
        while at < code.len() {
            let operand = u16_at(code, at + 6).unwrap_or_default();
            let yes = match code[at] {
                BC_JMP => false,
                BC_S_GE => sport >= operand,
                BC_S_LE => sport <= operand,
                BC_D_GE => dport >= operand,
                BC_D_LE => dport <= operand,
                _ => return None,
            };
            let step =
                if yes { usize::from(code[at + 1]) } else { usize::from(u16_at(code, at + 2)?) };
            if step < OP_LEN || step % 4 != 0 || step > code.len() - at + OP_LEN {
                return None;
            }
            at += step;
        }
        Some(at == code.len())
    }

    fn range(end: SocketEnd, low: u16, high: u16) -> PortRange {
        PortRange { end, low, high }
    }

    #[test]
    fn merges_adjacent_ports() {
        let joined = ranges(SocketEnd::Source, &mut [5203, 5201, 5202, 5202, 7000]);
        assert_eq!(
            joined,
            [range(SocketEnd::Source, 5201, 5203), range(SocketEnd::Source, 7000, 7000)]
        );
        assert_eq!(ranges(SocketEnd::Source, &mut []), []);
        let top = ranges(SocketEnd::Destination, &mut [65_535, 65_534]);
        assert_eq!(top, [range(SocketEnd::Destination, 65_534, 65_535)]);
    }

    #[test]
    fn a_request_has_family_protocol_states_and_filter() {
        let code = bytecode(&[range(SocketEnd::Destination, 5201, 5201)]).unwrap();
        let mut request = by_family(AF_INET6, Some(&code));
        set_seq(&mut request, 77);
        assert_eq!(u32_at(&request, 0), Some(request.len() as u32));
        assert_eq!(u16_at(&request, 4), Some(20));
        assert_eq!(u16_at(&request, 6), Some(0x301));
        assert_eq!(u32_at(&request, 8), Some(77));
        assert_eq!(request[16..19], [AF_INET6, 6, 0b1110]);
        assert_eq!(u32_at(&request, 20), Some(0b1011_0011_0010));
        assert_eq!(u16_at(&request, 72), Some(20));
        assert_eq!(u16_at(&request, 74), Some(1));
        assert_eq!(&request[76..], &code[..]);
        assert_eq!(by_family(AF_INET, None).len(), 72);
    }

    #[test]
    fn a_request_for_one_socket_has_its_addresses_and_any_cookie() {
        let (local, remote) = ("10.0.0.1:40000".parse().unwrap(), "10.0.0.2:7700".parse().unwrap());
        let request = exact(local, remote).unwrap();
        assert_eq!((u32_at(&request, 0), u16_at(&request, 6)), (Some(72), Some(1)));
        assert_eq!(request[16..20], [AF_INET, 6, 0, 0]);
        assert_eq!(request[24..32], [0x9c, 0x40, 0x1e, 0x14, 10, 0, 0, 1]);
        assert_eq!(request[44..48], [10, 0, 0, 2]);
        assert_eq!(request[60..72], [0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
        let v6: [SocketAddr; 2] = ["[::1]:1".parse().unwrap(), "[::2]:2".parse().unwrap()];
        let request = exact(v6[0], v6[1]).unwrap();
        assert_eq!((request[16], request[43], request[59]), (AF_INET6, 1, 2));
        assert_eq!(exact(local, v6[0]), None);
    }

    #[test]
    fn the_request_for_both_families_has_the_older_layout() {
        let code = bytecode(&[range(SocketEnd::Source, 5201, 5201)]).unwrap();
        let request = both_families(Some(&code));
        assert_eq!(u16_at(&request, 4), Some(18));
        assert_eq!(request[16..20], [AF_INET, 0, 0, 0b1110]);
        assert_eq!(u32_at(&request, 68), Some(0b1011_0011_0010));
        assert_eq!(u16_at(&request, 76), Some(20));
        assert_eq!(&request[80..], &code[..]);
    }

    #[test]
    fn the_preferred_variant_is_last() {
        let shape = |filter: Option<&[u8]>| -> Vec<(usize, bool)> {
            let all = variants(filter);
            all.iter().map(|requests| (requests.messages.len(), requests.filtered)).collect()
        };
        assert_eq!(shape(Some(&[0; 4])), [(2, false), (2, true), (1, true)]);
        assert_eq!(shape(None), [(2, false), (1, false)]);
    }

    #[test]
    fn too_many_ranges_give_no_filter() {
        assert_eq!(bytecode(&[]), None);
        let many = vec![range(SocketEnd::Source, 1, 1); 4000];
        assert_eq!(bytecode(&many), None);
    }

    proptest! {
        #[test]
        fn filter_accepts_exactly_the_given_ports(
            sources in proptest::collection::vec(1u16..40, 0..6),
            destinations in proptest::collection::vec(1u16..40, 0..6),
            sport in 1u16..42,
            dport in 1u16..42,
        ) {
            let expected = sources.contains(&sport) || destinations.contains(&dport);
            let mut wanted = ranges(SocketEnd::Source, &mut sources.clone());
            wanted.extend(ranges(SocketEnd::Destination, &mut destinations.clone()));
            match bytecode(&wanted) {
                Some(code) => prop_assert_eq!(run(&code, sport, dport), Some(expected)),
                None => prop_assert!(wanted.is_empty()),
            }
        }
    }
}
