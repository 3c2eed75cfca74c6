//! ICMP echo from our own code: probes, and the base round-trip time before a trial. IPv4.
//!
//! The reply's time is the kernel's receive time stamp, so a busy agent does not lengthen a measured
//! round trip; the request's is our clock right before the system call.

use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddrV4};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use ccbench_proto::schedule::ProbeTask;
use ccbench_proto::wire;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn,
    recvmsg, sendto, setsockopt, socket, sockopt,
};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use crate::clock;

const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;
/// ICMP header, our mark, filling: 64 bytes of ICMP as ping(8) sends.
const PACKET_BYTES: usize = 64;
const MARK: std::ops::Range<usize> = 8..16;
/// A reply that takes longer is a loss.
const LOST_AFTER_NS: u64 = 1_000_000_000;

/// The Internet checksum (RFC 1071) of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks(2).map(|p| u32::from(u16::from_be_bytes([p[0], p[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

fn echo_request(id: u16, seq: u16, mark: u64) -> [u8; PACKET_BYTES] {
    let mut packet = [0u8; PACKET_BYTES];
    packet[0] = ECHO_REQUEST;
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    packet[6..8].copy_from_slice(&seq.to_be_bytes());
    packet[MARK].copy_from_slice(&mark.to_be_bytes());
    let sum = checksum(&packet);
    packet[2..4].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// The sequence number of a reply to one of our own requests, told by the mark (a raw socket sees every
/// reply of the node, and brings the IP header with it).
fn echo_reply(packet: &[u8], raw: bool, mark: u64) -> Option<u16> {
    let header = if raw { usize::from(packet.first()? & 0xf) * 4 } else { 0 };
    let icmp = packet.get(header..)?;
    let ours = icmp.first() == Some(&ECHO_REPLY) && icmp.get(MARK)? == mark.to_be_bytes();
    ours.then(|| Some(u16::from_be_bytes([*icmp.get(6)?, *icmp.get(7)?])))?
}

/// Sends echo requests to one address and takes the replies.
#[derive(Debug)]
pub struct Pinger {
    /// Not UDP: tokio has no type for other datagram sockets, and this one does what is needed.
    socket: UdpSocket,
    raw: bool,
    to: SockaddrIn,
    id: u16,
    mark: u64,
}

/// When a request went out, on both clocks.
#[derive(Debug, Clone, Copy)]
struct Sent {
    at_ns: u64,
    realtime_ns: i64,
}

static NEXT_ID: AtomicU16 = AtomicU16::new(0);

impl Pinger {
    /// A socket: raw where we may, else the kernel's own ping socket.
    ///
    /// # Errors
    /// IPv6, or the kernel allows neither (`net.ipv4.ping_group_range`).
    pub fn open(to: IpAddr, tos: u8) -> io::Result<Self> {
        let IpAddr::V4(to) = to else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "ping measures IPv4 only"));
        };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let open = |kind| socket(AddressFamily::Inet, kind, flags, SockProtocol::Icmp);
        let (fd, raw) = match open(SockType::Raw) {
            Ok(fd) => (fd, true),
            Err(_) => (open(SockType::Datagram)?, false),
        };
        setsockopt(&fd, sockopt::ReceiveTimestampns, &true)?;
        if tos != 0 {
            setsockopt(&fd, sockopt::Ipv4Tos, &i32::from(tos))?;
        }
        let number = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let id = (std::process::id() as u16).wrapping_mul(31).wrapping_add(number);
        let mark = clock::now_ns() ^ (u64::from(id) << 48);
        let to = SockaddrIn::from(SocketAddrV4::new(to, 0));
        let socket = UdpSocket::from_std(std::net::UdpSocket::from(fd))?;
        Ok(Self { socket, raw, to, id, mark })
    }

    fn send(&self, seq: u16) -> io::Result<Sent> {
        let packet = echo_request(self.id, seq, self.mark);
        let (at_ns, realtime_ns) = clock::now_both_ns();
        sendto(self.socket.as_raw_fd(), &packet, &self.to, MsgFlags::empty())?;
        Ok(Sent { at_ns, realtime_ns })
    }

    /// The next reply: its sequence number and the kernel's time (CLOCK_REALTIME) of its arrival.
    async fn receive(&self) -> (u16, i64) {
        loop {
            // What is not ours, or an ICMP error reported on the socket: the request is lost by time.
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
        let message = recvmsg::<SockaddrIn>(
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
        Ok(echo_reply(&buffer[..bytes], self.raw, self.mark).map(|seq| (seq, at)))
    }
}

/// Round trip in microseconds; nothing if the wall clock was stepped in between.
fn rtt_us(sent: Sent, received_realtime_ns: i64) -> Option<f64> {
    let ns = received_realtime_ns - sent.realtime_ns;
    (0..=LOST_AFTER_NS as i64).contains(&ns).then_some(ns as f64 / 1e3)
}

/// The lowest of `count` round trips `gap` apart, in microseconds, and how many came back; the last
/// request is given `LOST_AFTER_NS`, and nothing goes on after `deadline_ns` (CLOCK_MONOTONIC).
///
/// # Errors
/// No socket, or the first request could not be sent.
pub async fn base_rtt(
    to: IpAddr,
    count: u16,
    gap: Duration,
    deadline_ns: u64,
) -> io::Result<(Option<f64>, u32)> {
    let pinger = Pinger::open(to, 0)?;
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
            if let Some(rtt) = sent.remove(&seq).and_then(|s| rtt_us(s, at)) {
                best = Some(best.map_or(rtt, |b| b.min(rtt)));
                replies += 1;
            }
        }
    }
    Ok((best, replies))
}

/// Measures from `start_at_ns` to `end_at_ns` (CLOCK_MONOTONIC); every request becomes one row, handed to
/// `emit` when its reply came or it was lost.
///
/// # Errors
/// No socket.
pub async fn probe(
    task: &ProbeTask,
    start_at_ns: u64,
    end_at_ns: u64,
    emit: &mut (dyn FnMut(wire::Probe) + Send),
) -> io::Result<()> {
    let pinger = Pinger::open(task.to_ip, task.tos)?;
    let mut waiting: BTreeMap<u32, Sent> = BTreeMap::new();
    let row = |seq: u32, at_ns: u64, rtt_us: Option<f64>| wire::Probe {
        at_ns,
        probe_id: task.id.clone(),
        kind: "ping".to_owned(),
        seq,
        rtt_us,
        lost: rtt_us.is_none(),
        tos: u32::from(task.tos),
    };
    let every = task.every.nanos().max(1_000_000);
    let (mut seq, mut due) = (0u32, start_at_ns);
    while clock::now_ns() < end_at_ns {
        let oldest = waiting.values().next().map(|s| s.at_ns + LOST_AFTER_NS);
        let wake = due.min(oldest.unwrap_or(u64::MAX)).min(end_at_ns);
        tokio::select! {
            reply = pinger.receive() => {
                let (low, at) = reply;
                let found = waiting.keys().copied().find(|&s| s as u16 == low);
                if let Some(sent) = found.and_then(|s| waiting.remove(&s)) {
                    emit(row(found.unwrap_or_default(), sent.at_ns, rtt_us(sent, at)));
                }
            }
            () = clock::sleep_until(wake) => {
                let now = clock::now_ns();
                if due <= now && due < end_at_ns {
                    match pinger.send(seq as u16) {
                        Ok(sent) => drop(waiting.insert(seq, sent)),
                        Err(_) => emit(row(seq, now, None)),
                    }
                    seq += 1;
                    // A late wake-up skips what it missed instead of sending it in a burst.
                    due += every * (1 + (now - due) / every);
                }
                while let Some((&old, &sent)) = waiting.first_key_value()
                    && sent.at_ns + LOST_AFTER_NS <= now
                {
                    waiting.remove(&old);
                    emit(row(old, sent.at_ns, None));
                }
            }
        }
    }
    for (seq, sent) in waiting {
        emit(row(seq, sent.at_ns, None));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_has_a_right_checksum() {
        let packet = echo_request(0x1234, 7, 0xdead_beef);
        assert_eq!(checksum(&packet), 0, "the sum over a right packet is zero");
        assert_eq!(&packet[4..8], [0x12, 0x34, 0, 7]);
    }

    #[test]
    fn only_our_own_replies_count() {
        let mut reply = echo_request(1, 9, 42);
        reply[0] = ECHO_REPLY;
        assert_eq!(echo_reply(&reply, false, 42), Some(9));
        assert_eq!(echo_reply(&reply, false, 43), None);
        let mut with_header = vec![0x45; 20];
        with_header.extend_from_slice(&reply);
        assert_eq!(echo_reply(&with_header, true, 42), Some(9));
        assert_eq!(echo_reply(&echo_request(1, 9, 42), false, 42), None, "our own request on lo");
    }

    proptest! {
        #[test]
        fn no_packet_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..80), raw: bool) {
            let _ = echo_reply(&bytes, raw, 1);
        }
    }

    #[test]
    fn a_stepped_wall_clock_gives_no_round_trip() {
        let sent = Sent { at_ns: 0, realtime_ns: 1_000_000 };
        assert_eq!(rtt_us(sent, 3_000_000), Some(2_000.0));
        assert_eq!(rtt_us(sent, 0), None);
        assert_eq!(rtt_us(sent, 1_000_000 + 2_000_000_000), None);
    }
}
