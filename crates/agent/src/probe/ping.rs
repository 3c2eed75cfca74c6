//! Echo requests over ICMP, ICMPv6 and UDP: probes, and the base round-trip time before a trial.
//!
//! The arrival time of a reply is the kernel's receive timestamp, so a busy agent does not lengthen a measured round
//! trip. The time of a request is our clock right before the system call.

use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use ccbench_proto::plan::{ProbeKind, Repeat};
use ccbench_proto::schedule::ProbeTask;
use ccbench_proto::wire;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol, SockType,
    SockaddrStorage, getsockopt, recvmsg, sendto, setsockopt, socket, sockopt,
};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use crate::clock;

/// The first byte of an echo request. Ours over UDP has the same form.
pub const ECHO_REQUEST: u8 = 8;
/// The first byte of an echo reply.
pub const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;
/// ICMP header, our mark and padding: 64 bytes of ICMP, as ping(8) sends.
const PACKET_BYTES: usize = 64;
const MARK: std::ops::Range<usize> = 8..16;
const FLAGS: SockFlag = SockFlag::SOCK_NONBLOCK.union(SockFlag::SOCK_CLOEXEC);
/// Before a trial, a reply that takes longer counts as lost.
const LOST_AFTER_NS: u64 = 1_000_000_000;
/// How long to wait for replies after a trial.
pub const LINGER_NS: u64 = 3_000_000_000;

/// Returns the Internet checksum (RFC 1071) of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks(2).map(|p| u32::from(u16::from_be_bytes([p[0], p[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

fn echo_request(protocol: EchoProtocol, id: u16, seq: u16, mark: u64) -> [u8; PACKET_BYTES] {
    let mut packet = [0u8; PACKET_BYTES];
    packet[0] = protocol.request();
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    packet[6..8].copy_from_slice(&seq.to_be_bytes());
    packet[MARK].copy_from_slice(&mark.to_be_bytes());
    // The ICMPv6 checksum covers the addresses, too, so the kernel computes it.
    if matches!(protocol, EchoProtocol::Icmp { .. }) {
        let sum = checksum(&packet);
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    packet
}

/// Returns the sequence number of a reply to one of our own requests, which the mark identifies. A raw socket receives
/// every reply of the node, with its IP header.
fn echo_reply(packet: &[u8], protocol: EchoProtocol, mark: u64) -> Option<u16> {
    let raw = matches!(protocol, EchoProtocol::Icmp { raw: true });
    let header = if raw { usize::from(packet.first()? & 0xf) * 4 } else { 0 };
    let icmp = packet.get(header..)?;
    let ours = icmp.first() == Some(&protocol.reply()) && icmp.get(MARK)? == mark.to_be_bytes();
    ours.then(|| Some(u16::from_be_bytes([*icmp.get(6)?, *icmp.get(7)?])))?
}

/// For fuzzing: applies [`echo_reply`] to a packet in each form.
#[doc(hidden)]
pub fn echo_reply_of(packet: &[u8], mark: u64) -> Vec<Option<u16>> {
    let forms = [
        EchoProtocol::Icmp { raw: true },
        EchoProtocol::Icmp { raw: false },
        EchoProtocol::Icmp6,
        EchoProtocol::Udp,
    ];
    forms.into_iter().map(|protocol| echo_reply(packet, protocol, mark)).collect()
}

/// The carrier of an echo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EchoProtocol {
    /// IPv4. A raw socket also receives the IP header.
    Icmp {
        /// Otherwise the kernel's own ping socket.
        raw: bool,
    },
    /// IPv6. Its raw sockets do not receive the header.
    Icmp6,
    Udp,
}

impl EchoProtocol {
    fn request(self) -> u8 {
        if self == Self::Icmp6 { ECHO_REQUEST_V6 } else { ECHO_REQUEST }
    }

    fn reply(self) -> u8 {
        if self == Self::Icmp6 { ECHO_REPLY_V6 } else { ECHO_REPLY }
    }
}

/// Sends echo requests to one address and receives the replies.
#[derive(Debug)]
pub struct Pinger {
    /// Holds any datagram socket: tokio has no type for those other than UDP, and this one works.
    socket: UdpSocket,
    protocol: EchoProtocol,
    to: SockaddrStorage,
    id: u16,
    mark: u64,
}

/// When a request was sent, on both clocks.
#[derive(Debug, Clone, Copy)]
struct SendTime {
    at_ns: u64,
    realtime_ns: i64,
}

static NEXT_ID: AtomicU16 = AtomicU16::new(0);

/// Opens a socket for ICMP echoes: a raw socket if permitted, else the kernel's own ping socket.
fn open_icmp(to: IpAddr) -> io::Result<OwnedFd> {
    let (family, protocol) = match to {
        IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp),
        IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6),
    };
    match socket(family, SockType::Raw, FLAGS, protocol) {
        Ok(fd) => Ok(fd),
        Err(_) => Ok(socket(family, SockType::Datagram, FLAGS, protocol)?),
    }
}

/// Opens the socket of a probe with echoes, for [`probe`]. Only this needs a privilege.
///
/// # Errors
/// The kernel does not permit ICMP sockets (`net.ipv4.ping_group_range`), or the socket cannot be created.
pub fn open(task: &ProbeTask) -> io::Result<OwnedFd> {
    if task.plan.kind != ProbeKind::Udp {
        return open_icmp(task.to_ip);
    }
    let family = if task.to_ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    Ok(socket(family, SockType::Datagram, FLAGS, SockProtocol::Udp)?)
}

impl Pinger {
    /// Sends ICMP echoes on a socket of [`open_icmp`].
    fn icmp(fd: OwnedFd, to: IpAddr, tos: u8) -> io::Result<Self> {
        let raw = getsockopt(&fd, sockopt::SockType)? == SockType::Raw;
        let protocol = if to.is_ipv4() { EchoProtocol::Icmp { raw } } else { EchoProtocol::Icmp6 };
        Self::with(fd, protocol, SocketAddr::new(to, 0), tos)
    }

    fn with(fd: OwnedFd, protocol: EchoProtocol, to: SocketAddr, tos: u8) -> io::Result<Self> {
        setsockopt(&fd, sockopt::ReceiveTimestampns, &true)?;
        set_tos(&fd, to.ip(), tos)?;
        let number = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let id = (std::process::id() as u16).wrapping_mul(31).wrapping_add(number);
        let mark = clock::now_ns() ^ (u64::from(id) << 48);
        let socket = UdpSocket::from_std(std::net::UdpSocket::from(fd))?;
        Ok(Self { socket, protocol, to: SockaddrStorage::from(to), id, mark })
    }

    fn send(&self, seq: u16) -> io::Result<SendTime> {
        let packet = echo_request(self.protocol, self.id, seq, self.mark);
        let (at_ns, realtime_ns) = clock::now_both_ns();
        sendto(self.socket.as_raw_fd(), &packet, &self.to, MsgFlags::empty())?;
        Ok(SendTime { at_ns, realtime_ns })
    }

    /// Returns the next reply: its sequence number, and its arrival time by the kernel (CLOCK_REALTIME).
    async fn receive(&self) -> (u16, i64) {
        loop {
            // Ignores foreign packets and ICMP errors of the socket: an unanswered request times out.
            if let Ok(Some(reply)) =
                self.socket.async_io(Interest::READABLE, || self.receive_now()).await
            {
                return reply;
            }
        }
    }

    fn receive_now(&self) -> io::Result<Option<(u16, i64)>> {
        let mut buffer = [0u8; 256];
        let mut control = nix::cmsg_space!(nix::sys::time::TimeSpec);
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let message = recvmsg::<SockaddrStorage>(
            self.socket.as_raw_fd(),
            &mut parts,
            Some(&mut control),
            MsgFlags::empty(),
        )?;
        let stamp = message.cmsgs()?.find_map(|c| match c {
            ControlMessageOwned::ScmTimestampns(t) => {
                Some(t.tv_sec() * 1_000_000_000 + t.tv_nsec())
            }
            _ => None,
        });
        let bytes = message.bytes;
        let at = stamp.unwrap_or_else(|| clock::now_both_ns().1);
        Ok(echo_reply(&buffer[..bytes], self.protocol, self.mark).map(|seq| (seq, at)))
    }
}

/// Returns the round trip in microseconds; `None` if it took longer than `most_ns`, or the wall clock was stepped meanwhile.
fn rtt_us(sent: SendTime, received_realtime_ns: i64, most_ns: u64) -> Option<f64> {
    let ns = received_realtime_ns - sent.realtime_ns;
    (0..=most_ns.cast_signed()).contains(&ns).then_some(ns as f64 / 1e3)
}

/// Returns the lowest of `count` round trips `gap` apart, in microseconds, and how many replies came. Waits
/// `LOST_AFTER_NS` for the last one, but never beyond `deadline_ns` (CLOCK_MONOTONIC).
///
/// # Errors
/// The socket cannot be created, or the first request could not be sent.
pub async fn base_rtt(
    to: IpAddr,
    count: u16,
    gap: Duration,
    deadline_ns: u64,
) -> io::Result<(Option<f64>, u32)> {
    let pinger = Pinger::icmp(open_icmp(to)?, to, 0)?;
    let (mut best, mut replies) = (None::<f64>, 0);
    let mut sent = BTreeMap::new();
    for seq in 0..count {
        if clock::now_ns() >= deadline_ns {
            break;
        }
        match pinger.send(seq) {
            Ok(at) => drop(sent.insert(seq, at)),
            Err(error) if seq == 0 => return Err(error),
            Err(_) => {}
        }
        let last = seq + 1 == count;
        let wait_ns = if last { LOST_AFTER_NS } else { gap.as_nanos() as u64 };
        let until = (clock::now_ns() + wait_ns).min(deadline_ns);
        while !(last && sent.is_empty()) {
            let Ok(reply) = tokio::time::timeout(clock::until(until), pinger.receive()).await
            else {
                break;
            };
            let (seq, at) = reply;
            if let Some(rtt) = sent.remove(&seq).and_then(|s| rtt_us(s, at, LOST_AFTER_NS)) {
                best = Some(best.map_or(rtt, |b| b.min(rtt)));
                replies += 1;
            }
        }
    }
    Ok((best, replies))
}

/// Returns the row of a probe that has just been sent.
pub fn row(task: &ProbeTask, seq: u32, at_ns: u64) -> wire::Probe {
    wire::Probe {
        at_ns,
        probe_id: task.id.clone(),
        kind: wire::ProbeKind::from(task.plan.kind).into(),
        seq,
        tos: u32::from(task.plan.tos),
        ..Default::default()
    }
}

/// Sets the TOS byte (in IPv6, the traffic class) of packets that a socket sends.
///
/// # Errors
/// The kernel refused.
pub fn set_tos(fd: &impl AsFd, ip: IpAddr, tos: u8) -> io::Result<()> {
    let value = i32::from(tos);
    match ip {
        _ if tos == 0 => Ok(()),
        IpAddr::V4(_) => Ok(setsockopt(fd, sockopt::Ipv4Tos, &value)?),
        IpAddr::V6(_) => Ok(setsockopt(fd, sockopt::Ipv6TClass, &value)?),
    }
}

/// Sends requests on a socket of [`open`] from `start_at_ns` to `end_at_ns` (CLOCK_MONOTONIC), and waits until all are answered or lost, at
/// most `LINGER_NS` longer. Hands each request's row to `emit` at once. Returns how many requests were neither.
///
/// # Errors
/// The kernel refused an option of the socket.
pub async fn probe(
    socket: OwnedFd,
    task: &ProbeTask,
    start_at_ns: u64,
    end_at_ns: u64,
    emit: &mut (dyn FnMut(wire::Probe) + Send),
) -> io::Result<usize> {
    let pinger = match task.plan.kind {
        ProbeKind::Udp => {
            let to = SocketAddr::new(task.to_ip, task.port);
            Pinger::with(socket, EchoProtocol::Udp, to, task.plan.tos)?
        }
        _ => Pinger::icmp(socket, task.to_ip, task.plan.tos)?,
    };
    let lost_after_ns = task.plan.timeout().nanos();
    let last_ns = end_at_ns + LINGER_NS;
    let mut waiting: BTreeMap<u32, SendTime> = BTreeMap::new();
    let row = |seq: u32, at_ns: u64, rtt_us: Option<f64>| wire::Probe {
        rtt_us,
        lost: rtt_us.is_none(),
        ..row(task, seq, at_ns)
    };
    let every = task.plan.every.nanos().max(1_000_000);
    let (mut seq, mut due) = (0u32, start_at_ns + task.plan.start.nanos());
    loop {
        let asking = clock::now_ns() < end_at_ns;
        if !asking && waiting.is_empty() {
            return Ok(0);
        }
        let next = if asking { due.min(end_at_ns) } else { last_ns };
        let oldest = waiting.values().next().map(|s| s.at_ns + lost_after_ns);
        tokio::select! {
            // Read replies first: a received reply must not count as lost, however late it is read.
            biased;
            reply = pinger.receive() => {
                let (low, at) = reply;
                let found = waiting.keys().copied().find(|&s| s as u16 == low);
                if let Some(sent) = found.and_then(|s| waiting.remove(&s)) {
                    emit(row(found.unwrap_or_default(), sent.at_ns, rtt_us(sent, at, lost_after_ns)));
                }
            }
            () = clock::sleep_until(next.min(oldest.unwrap_or(u64::MAX))) => {
                let now = clock::now_ns();
                if due <= now && now < end_at_ns {
                    match pinger.send(seq as u16) {
                        Ok(sent) => drop(waiting.insert(seq, sent)),
                        Err(_) => emit(row(seq, now, None)),
                    }
                    seq += 1;
                    // After a late wake-up, skip missed requests instead of sending a burst.
                    due = match task.plan.repeat {
                        Repeat::Once => u64::MAX,
                        _ => due + every * (1 + (now - due) / every),
                    };
                }
                while let Some((&old, &sent)) = waiting.first_key_value()
                    && sent.at_ns + lost_after_ns <= now
                {
                    waiting.remove(&old);
                    emit(row(old, sent.at_ns, None));
                }
                if now >= last_ns {
                    return Ok(waiting.len());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::serve::tests::task;
    use ccbench_proto::units::Micros;
    use proptest::prelude::*;

    const RAW: EchoProtocol = EchoProtocol::Icmp { raw: true };
    const PING: EchoProtocol = EchoProtocol::Icmp { raw: false };

    #[test]
    fn requests_have_a_valid_checksum() {
        let packet = echo_request(RAW, 0x1234, 7, 0xdead_beef);
        assert_eq!(checksum(&packet), 0, "the sum over a right packet is zero");
        assert_eq!(&packet[4..8], [0x12, 0x34, 0, 7]);
    }

    #[test]
    fn ignores_replies_of_other_programs() {
        let mut reply = echo_request(RAW, 1, 9, 42);
        reply[0] = ECHO_REPLY;
        assert_eq!(echo_reply(&reply, PING, 42), Some(9));
        assert_eq!(echo_reply(&reply, PING, 43), None);
        let mut with_header = vec![0x45; 20];
        with_header.extend_from_slice(&reply);
        assert_eq!(echo_reply(&with_header, RAW, 42), Some(9));
        assert_eq!(
            echo_reply(&echo_request(PING, 1, 9, 42), PING, 42),
            None,
            "our own request on lo"
        );
    }

    /// Runs a one-second trial with an echo every 200 ms. Returns its rows, and how many echoes were left over. The
    /// other side answers after `delay`, or never.
    fn echoes(delay: Option<Duration>, timeout: Micros) -> (Vec<wire::Probe>, usize) {
        let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = other.local_addr().unwrap().port();
        let every = Micros::from_millis(200);
        let mut task = task(ProbeKind::Udp, port, Repeat::Interval);
        (task.plan.every, task.plan.timeout) = (every, Some(timeout));
        if let Some(delay) = delay {
            let other = other.try_clone().unwrap();
            std::thread::spawn(move || {
                let mut buffer = [0; 256];
                // An empty datagram ends the loop.
                while let Ok((length @ 1.., from)) = other.recv_from(&mut buffer) {
                    let (other, mut answer) = (other.try_clone().unwrap(), buffer);
                    std::thread::spawn(move || {
                        std::thread::sleep(delay);
                        answer[0] = ECHO_REPLY;
                        other.send_to(&answer[..length], from).unwrap();
                    });
                }
            });
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut rows = vec![];
        let start_ns = clock::now_ns();
        let left = runtime.block_on(async {
            let socket = open(&task)?;
            let end_ns = start_ns + 1_000_000_000;
            probe(socket, &task, start_ns, end_ns, &mut |row| rows.push(row)).await
        });
        other.send_to(&[], ("127.0.0.1", port)).unwrap();
        (rows, left.unwrap())
    }

    #[test]
    fn late_replies_are_not_losses() {
        let (rows, left) = echoes(Some(Duration::from_millis(1200)), Micros::from_secs(10));
        assert!(left == 0 && !rows.is_empty());
        assert!(rows.iter().all(|row| row.rtt_us.is_some_and(|us| us >= 1.2e6)), "{rows:?}");
    }

    #[test]
    fn unanswered_requests_are_losses() {
        let (rows, left) = echoes(None, Micros::from_millis(300));
        assert!(left == 0 && !rows.is_empty());
        assert!(rows.iter().all(|row| row.lost && row.rtt_us.is_none()), "{rows:?}");
    }

    #[test]
    fn pending_requests_have_no_row() {
        let (rows, left) = echoes(None, Micros::from_secs(10));
        assert!(rows.is_empty() && left > 0, "{rows:?}");
    }

    proptest! {
        #[test]
        fn no_packet_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..80), raw: bool) {
            let _ = echo_reply(&bytes, EchoProtocol::Icmp { raw }, 1);
            let _ = (echo_reply(&bytes, EchoProtocol::Icmp6, 1), echo_reply(&bytes, EchoProtocol::Udp, 1));
        }
    }

    #[test]
    fn ignores_round_trips_across_a_clock_step() {
        let sent = SendTime { at_ns: 0, realtime_ns: 1_000_000 };
        assert_eq!(rtt_us(sent, 3_000_000, LOST_AFTER_NS), Some(2_000.0));
        assert_eq!(rtt_us(sent, 0, LOST_AFTER_NS), None);
        assert_eq!(rtt_us(sent, 1_000_000 + 2_000_000_000, LOST_AFTER_NS), None);
        assert_eq!(rtt_us(sent, 1_000_000 + 2_000_000_000, u64::MAX >> 1), Some(2e6));
    }
}
