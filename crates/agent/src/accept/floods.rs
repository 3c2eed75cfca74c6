//! Blocks addresses that flood this agent with connections without a certificate. The kernel drops what they send to the listening
//! socket, for a second at a time. Accepting and closing a connection takes 30 to 200 µs of CPU time. Each one also displaces an
//! older connection whose handshake is incomplete, so without a limit a fast enough client would lock out all others.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use socket2::{SockFilter, SockRef};
use tokio::net::TcpListener;

use super::RefusedConnection;
use super::refusals::RefusalLog;
use crate::audit::Audit;
use crate::clock;

/// An address floods after this many refused connections within [`WINDOW_NS`].
pub(super) const MAX_REFUSED: u32 = 100;
const WINDOW_NS: u64 = 1_000_000_000;
/// Limit of addresses blocked at a time: every connection request passes a filter of this length.
const MAX_BLOCKED: usize = 16;

/// Counts refused connections, and blocks flooding addresses at the listening socket.
pub(super) struct Floods {
    flooding: Flooding,
    /// Separate, because a flood exhausts the log of refused connections.
    log: RefusalLog,
}

impl Floods {
    pub(super) fn new(audit: Audit) -> Self {
        Self { flooding: Flooding::default(), log: RefusalLog::new(audit) }
    }

    /// Counts a connection that was refused before its client was known. Returns whether its address is now blocked;
    /// that is logged instead of the connection.
    pub(super) fn refused(&mut self, listener: &TcpListener, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        let is_blocked = self.flooding.add(peer, clock::now_ns()) && self.set_filter(listener);
        if is_blocked {
            self.log.refused(&peer.to_string(), &RefusedConnection::Flood);
        }
        is_blocked
    }

    /// Resolves when an address is due to be unblocked; never, if none is blocked.
    pub(super) async fn end_due(&self) {
        match self.flooding.due_ns() {
            Some(due_ns) => tokio::time::sleep(clock::until(due_ns)).await,
            None => std::future::pending().await,
        }
    }

    /// Unblocks the addresses whose time is over.
    pub(super) fn end(&mut self, listener: &TcpListener) {
        let now_ns = clock::now_ns();
        self.flooding.end(now_ns);
        self.set_filter(listener);
        // Addresses are blocked for as long as the log counts them.
        self.log.summarize(now_ns);
    }

    /// Returns whether the filter was set.
    fn set_filter(&self, listener: &TcpListener) -> bool {
        let set = set_filter(listener, self.flooding.blocked_until_ns.keys());
        set.inspect_err(|error| tracing::warn!(%error, "filter what comes to the listening socket"))
            .is_ok()
    }
}

/// Tracks which addresses flood. Pure: the time is an argument.
#[derive(Debug, Default)]
struct Flooding {
    /// When the window of `refused` began.
    window_ns: u64,
    refused: BTreeMap<IpAddr, u32>,
    blocked_until_ns: BTreeMap<IpAddr, u64>,
}

impl Flooding {
    /// Counts a refused connection. Returns whether to block its address now. Connections of blocked addresses, queued earlier, do
    /// not count.
    fn add(&mut self, peer: IpAddr, now_ns: u64) -> bool {
        if now_ns - self.window_ns >= WINDOW_NS {
            self.window_ns = now_ns;
            self.refused.clear();
        }
        if self.blocked_until_ns.contains_key(&peer) {
            return false;
        }
        let refused = self.refused.entry(peer).or_default();
        *refused += 1;
        if *refused < MAX_REFUSED || self.blocked_until_ns.len() >= MAX_BLOCKED {
            return false;
        }
        self.refused.remove(&peer);
        self.blocked_until_ns.insert(peer, now_ns + WINDOW_NS);
        true
    }

    fn due_ns(&self) -> Option<u64> {
        self.blocked_until_ns.values().min().copied()
    }

    fn end(&mut self, now_ns: u64) {
        self.blocked_until_ns.retain(|_, until_ns| *until_ns > now_ns);
    }
}

/// Makes the kernel drop packets of these addresses to a listening socket: connection requests and the final ACKs of
/// TCP handshakes. Accepted connections inherit the filter but are unaffected: it never contained their own address.
fn set_filter<'a>(
    listener: &TcpListener,
    blocked: impl Iterator<Item = &'a IpAddr>,
) -> io::Result<()> {
    let socket = SockRef::from(listener);
    let program = program(blocked);
    if !program.is_empty() {
        return socket.attach_filter(&program);
    }
    match socket.detach_filter() {
        // No filter was attached.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        detached => detached,
    }
}

/// Returns a classic BPF program that drops packets of these addresses; empty without addresses. Loads are relative to
/// the IP header (Documentation/networking/filter.rst; `linux/filter.h`).
fn program<'a>(blocked: impl Iterator<Item = &'a IpAddr>) -> Vec<SockFilter> {
    const LOAD_WORD: u16 = 0x20;
    const LOAD_BYTE: u16 = 0x30;
    const SHIFT_RIGHT: u16 = 0x74;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    // SKF_NET_OFF, -0x100000.
    const IP_HEADER: u32 = 0xfff0_0000;
    const V4_SOURCE: u32 = IP_HEADER + 12;
    const V6_SOURCE: u32 = IP_HEADER + 8;
    let pass = || SockFilter::new(RETURN, 0, 0, u32::MAX);
    let drop = || SockFilter::new(RETURN, 0, 0, 0);
    let equal = |value, or_skip| SockFilter::new(JUMP_IF_EQUAL, 0, or_skip, value);
    let (mut v4, mut v6) = (vec![SockFilter::new(LOAD_WORD, 0, 0, V4_SOURCE)], Vec::new());
    for address in blocked.take(MAX_BLOCKED) {
        match address {
            IpAddr::V4(address) => v4.extend([equal(address.to_bits(), 1), drop()]),
            IpAddr::V6(address) => {
                let bits = address.to_bits();
                // Jump to the next address, past the rest of this one's four pairs and its `drop`.
                for (load, shift, or_skip) in [(0, 96, 7), (4, 64, 5), (8, 32, 3), (12, 0, 1)] {
                    v6.push(SockFilter::new(LOAD_WORD, 0, 0, V6_SOURCE + load));
                    v6.push(equal((bits >> shift) as u32, or_skip));
                }
                v6.push(drop());
            }
        }
    }
    if v4.len() == 1 && v6.is_empty() {
        return Vec::new();
    }
    v4.push(pass());
    // At most 34 instructions, so a jump can skip them.
    let v4_length = u8::try_from(v4.len()).unwrap_or(u8::MAX);
    let mut program = vec![
        SockFilter::new(LOAD_BYTE, 0, 0, IP_HEADER),
        SockFilter::new(SHIFT_RIGHT, 0, 0, 4),
        equal(4, v4_length),
    ];
    program.append(&mut v4);
    program.append(&mut v6);
    program.push(pass());
    program
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, SocketAddr};

    use ccbench_tests::SETUP_TIMEOUT;
    use ccbench_tests::skip::skip;
    use socket2::{Domain, Socket, Type};

    use super::*;

    const BEGIN_NS: u64 = 5_000_000_000;

    fn numbered(number: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, number])
    }

    #[test]
    fn an_address_that_floods_is_blocked_for_a_second() {
        let mut flooding = Flooding::default();
        let (one, other) = (numbered(1), numbered(2));
        let add = |flooding: &mut Flooding, peer, count: u32| {
            (0..count).map(|_| flooding.add(peer, BEGIN_NS)).filter(|blocked| *blocked).count()
        };
        assert_eq!(add(&mut flooding, one, MAX_REFUSED - 1), 0);
        assert_eq!((add(&mut flooding, other, 1), flooding.due_ns()), (0, None));
        assert_eq!(add(&mut flooding, one, 1), 1);
        assert_eq!(flooding.due_ns(), Some(BEGIN_NS + WINDOW_NS));
        // Connections that the kernel had accepted before the block.
        assert_eq!(add(&mut flooding, one, 3 * MAX_REFUSED), 0);
        flooding.end(BEGIN_NS + WINDOW_NS - 1);
        assert!(flooding.due_ns().is_some());
        flooding.end(BEGIN_NS + WINDOW_NS);
        assert_eq!(flooding.due_ns(), None);
        // A few per second may go on forever.
        for second in 1..100 {
            assert!(!flooding.add(other, BEGIN_NS + second * WINDOW_NS));
        }
        assert!(flooding.refused.len() <= 1, "others are forgotten");
    }

    #[test]
    fn the_filter_has_a_limited_length() {
        let mut flooding = Flooding::default();
        for number in 0..=u8::MAX {
            for _ in 0..MAX_REFUSED {
                flooding.add(numbered(number), BEGIN_NS);
            }
        }
        assert_eq!(flooding.blocked_until_ns.len(), MAX_BLOCKED);
        let of_v6: Vec<IpAddr> = (1..=64).map(|n: u128| Ipv6Addr::from_bits(n).into()).collect();
        assert_eq!(program(of_v6.iter()).len(), 3 + 2 + 9 * MAX_BLOCKED + 1);
        assert!(program([].into_iter()).is_empty());
    }

    #[tokio::test]
    async fn a_blocked_address_is_logged_instead_of_a_connection() {
        let mut floods = Floods::new(Audit::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        // More than the limit: a pause of this process starts a new window.
        let first = (1..=100 * MAX_REFUSED).find(|_| floods.refused(&listener, numbered(1)));
        assert!(first.unwrap() >= MAX_REFUSED, "{first:?}");
        assert!(SockRef::from(&listener).detach_filter().is_ok(), "the filter is attached");
    }

    /// Returns the address of the next connection, or panics if none comes in time.
    async fn accepted(listener: &TcpListener) -> IpAddr {
        let accepted = tokio::time::timeout(SETUP_TIMEOUT, listener.accept()).await;
        accepted.expect("no connection comes through the filter").unwrap().1.ip().to_canonical()
    }

    /// Starts a connection from this address without waiting for it.
    fn connect(from: IpAddr, to: SocketAddr) -> Socket {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
        socket.set_nonblocking(true).unwrap();
        // Still in progress.
        let _ = socket.connect(&to.into());
        socket
    }

    #[tokio::test]
    async fn the_kernel_drops_what_blocked_addresses_send() {
        let [one, other] = [2, 3].map(|number| IpAddr::from([127, 0, 0, number]));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        set_filter(&listener, [one].iter()).unwrap();
        let _first = connect(one, to);
        let _second = connect(other, to);
        assert_eq!(accepted(&listener).await, other);
        // The blocked client retransmits its SYN.
        set_filter(&listener, [].iter()).unwrap();
        assert_eq!(accepted(&listener).await, one);
        set_filter(&listener, [].iter()).unwrap();
    }

    #[tokio::test]
    async fn addresses_of_both_families_are_blocked() {
        if TcpListener::bind("[::1]:0").await.is_err() {
            return skip("it needs IPv6 on loopback");
        }
        let listener = TcpListener::bind("[::]:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let v4 = [2, 3].map(|number| IpAddr::from([127, 0, 0, number]));
        let v6 = IpAddr::from(Ipv6Addr::LOCALHOST);
        let to = |ip: IpAddr| match ip {
            IpAddr::V4(_) => SocketAddr::from(([127, 0, 0, 1], port)),
            IpAddr::V6(_) => SocketAddr::from((Ipv6Addr::LOCALHOST, port)),
        };
        for (blocked, first) in [(vec![v4[0], v6], v4[1]), (vec![v4[0], v4[1]], v6)] {
            set_filter(&listener, blocked.iter()).unwrap();
            let _sockets: Vec<Socket> = blocked.iter().map(|ip| connect(*ip, to(*ip))).collect();
            let _other = connect(first, to(first));
            assert_eq!(accepted(&listener).await, first);
        }
    }
}
