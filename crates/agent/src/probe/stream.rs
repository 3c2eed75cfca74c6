//! A UDP stream at a constant rate. The answering node sends, and the measuring node counts what arrives.
//!
//! Messages have a kind, a number and a count. The measuring node sends a request every `REQUEST_INTERVAL_NS`. The other node answers with a
//! cookie for the requesting address, and sends the stream only to an address that returns its cookie; otherwise a request with a
//! forged source could make it flood a third party. It sends to one address at a time, and stops when no request has come for
//! `IDLE_TIMEOUT_NS`.
//!
//! The rate determines when each datagram is due. Datagrams that the local queue rejects are lost there, as on the path. If the
//! sender itself is late by more than `BURST_NS`, it leaves out datagrams and reports their number in every later one, so that a
//! slow sender does not look like a slow path. Datagrams that the receiving socket drops because the measuring node is too slow are
//! counted, too.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ccbench_proto::plan::probe::STREAM_PACKET_BYTES;
use ccbench_proto::schedule::ProbeTask;
use ccbench_proto::units::Rate;
use ccbench_proto::wire;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};

use super::tcp::Deadline;
use crate::clock;
use crate::probe::ping;

/// Time between two requests, and the time without one after which the sender stops.
const REQUEST_INTERVAL_NS: u64 = 100_000_000;
const IDLE_TIMEOUT_NS: u64 = 1_000_000_000;
/// Time between two checks for due datagrams.
const TICK: Duration = Duration::from_millis(1);
/// How much of a delay the sender makes up for.
const BURST_NS: u64 = 20_000_000;
/// Limit of messages read between two checks: a flood must neither delay the stream nor keep the sender from stopping.
const MAX_MESSAGES: usize = 256;
const PACKET_BYTES: u64 = STREAM_PACKET_BYTES as u64;
/// Size of each socket's buffer: a few ms at 10 Gbit/s. The usual 208 KiB would lose packets above 1 Gbit/s in the socket, not on
/// the path.
const BUFFER_BYTES: usize = 8 << 20;

/// Kinds of messages.
const REQUEST: u8 = b'?';
const COOKIE: u8 = b'=';
const DATA: u8 = b'.';
/// Size of a kind and two numbers.
const MESSAGE_BYTES: usize = 17;

/// Encodes a message. The numbers are the cookie, or a datagram's number and how many were left out before it.
fn encode(kind: u8, number: u64, left_out: u64) -> [u8; MESSAGE_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    message[0] = kind;
    message[1..9].copy_from_slice(&number.to_be_bytes());
    message[9..].copy_from_slice(&left_out.to_be_bytes());
    message
}

fn decode(bytes: &[u8]) -> Option<(u8, u64, u64)> {
    let (&kind, numbers) = bytes.get(..MESSAGE_BYTES)?.split_first()?;
    let (number, left_out) = numbers.split_first_chunk::<8>()?;
    Some((kind, u64::from_be_bytes(*number), u64::from_be_bytes(left_out.try_into().ok()?)))
}

/// Returns the size of the IP and UDP headers.
const fn header_bytes(ip: IpAddr) -> u64 {
    match ip {
        IpAddr::V4(_) => 28,
        IpAddr::V6(_) => 48,
    }
}

/// Decides which datagrams of a stream are due. Pure: times are nanoseconds since its start.
#[derive(Debug)]
struct Pacer {
    rate_bps: u64,
    /// Number of the next datagram.
    next: u64,
    left_out: u64,
}

impl Pacer {
    /// Starts a stream before which `left_out` datagrams were left out.
    fn new(rate_bps: u64, left_out: u64) -> Self {
        Self { rate_bps, next: 0, left_out }
    }

    /// Returns the number of datagrams until a time.
    fn count(&self, ns: u64) -> u64 {
        let bits = u128::from(ns) * u128::from(self.rate_bps) / 1_000_000_000;
        u64::try_from(bits / u128::from(PACKET_BYTES * 8)).unwrap_or(u64::MAX)
    }

    /// Returns the numbers of the datagrams that are due now. Leaves out those that have been due for longer than [`BURST_NS`].
    fn due(&mut self, now_ns: u64) -> std::ops::Range<u64> {
        let end = self.count(now_ns);
        let first = self.count(now_ns.saturating_sub(BURST_NS)).max(self.next);
        self.left_out += first - self.next;
        self.next = end.max(first);
        first..self.next
    }
}

/// Decides who receives datagrams: one address at a time. Pure: times are nanoseconds of any clock.
#[derive(Debug)]
struct Streams {
    rate_bps: u64,
    /// The stream's receiver, its start, and its pacer.
    current: Option<(SocketAddr, u64, Pacer)>,
    requested_ns: u64,
    /// Earlier receivers, and how many datagrams were left out for each. A receiver only counts what exceeds its
    /// highest count, so the count continues if it requests the stream again. At most one is added per [`IDLE_TIMEOUT_NS`].
    before: BTreeMap<SocketAddr, u64>,
}

impl Streams {
    fn new(rate_bps: u64) -> Self {
        Self { rate_bps, current: None, requested_ns: 0, before: BTreeMap::new() }
    }

    /// Handles a request from an address that returned its cookie.
    fn on_request(&mut self, from: SocketAddr, now_ns: u64) {
        let (rate_bps, left_out) = (self.rate_bps, self.before.get(&from).copied());
        let begin = || (from, now_ns, Pacer::new(rate_bps, left_out.unwrap_or_default()));
        let (to, ..) = self.current.get_or_insert_with(begin);
        if *to == from {
            self.requested_ns = now_ns;
        }
    }

    /// Returns the datagrams that are due now: the receiver, their numbers, and how many were left out before them.
    /// Ends a stream that nobody requests any more.
    fn due(&mut self, now_ns: u64) -> Option<(SocketAddr, std::ops::Range<u64>, u64)> {
        if now_ns.saturating_sub(self.requested_ns) > IDLE_TIMEOUT_NS
            && let Some((to, _, pacer)) = self.current.take()
        {
            self.before.insert(to, pacer.left_out);
        }
        let (to, begin_ns, pacer) = self.current.as_mut()?;
        let numbers = pacer.due(now_ns.saturating_sub(*begin_ns));
        Some((*to, numbers, pacer.left_out))
    }
}

/// Gives a sender's socket a large buffer. Without the privilege, the kernel grants a smaller one.
pub fn enlarge_send_buffer(socket: &UdpSocket) {
    if setsockopt(socket, sockopt::SndBufForce, &BUFFER_BYTES).is_err() {
        let _ = setsockopt(socket, sockopt::SndBuf, &BUFFER_BYTES);
    }
}

/// Sends streams to those who request them, one at a time, until `stop`.
pub fn serve(socket: &UdpSocket, task: &ProbeTask, stop: &AtomicBool) {
    // The plan's check guarantees a rate.
    let rate_bps = task.plan.rate.map_or(1, Rate::bits_per_sec);
    let payload = (PACKET_BYTES - header_bytes(task.to_ip)) as usize;
    // The hash of an address, with secret keys, is its cookie.
    let cookies = RandomState::new();
    let mut datagram = vec![0; payload];
    let mut streams = Streams::new(rate_bps);
    while !stop.load(Ordering::Relaxed) {
        let mut buffer = [0; 64];
        for _ in 0..MAX_MESSAGES {
            let Ok((length, from)) = socket.recv_from(&mut buffer) else { break };
            let cookie = cookies.hash_one(from);
            match decode(&buffer[..length]) {
                Some((REQUEST, number, _)) if number == cookie => {
                    streams.on_request(from, clock::now_ns());
                }
                // If this is lost, the next request is answered again.
                Some((REQUEST, ..)) => drop(socket.send_to(&encode(COOKIE, cookie, 0), from)),
                _ => {}
            }
        }
        if let Some((to, numbers, left_out)) = streams.due(clock::now_ns()) {
            for number in numbers {
                datagram[..MESSAGE_BYTES].copy_from_slice(&encode(DATA, number, left_out));
                // A full queue counts as part of the path.
                if socket.send_to(&datagram, to).is_err() {
                    break;
                }
            }
        }
        std::thread::sleep(TICK);
    }
}

/// The counts of one interval.
#[derive(Debug, Default, PartialEq, Eq)]
struct Interval {
    bytes: u64,
    /// Datagrams that the sender left out.
    left_out: u64,
    /// Datagrams that arrived but that the receiver's socket dropped.
    dropped: u64,
}

/// Assigns datagrams to intervals. Pure: times are nanoseconds of any clock.
#[derive(Debug)]
struct Intervals {
    begin_ns: u64,
    every_ns: u64,
    seq: u32,
    current: Interval,
    left_out: u64,
    dropped: u64,
}

/// Returns by how much a counter exceeds its highest value so far.
fn newly(counter: u64, highest: &mut u64) -> u64 {
    let new = counter.saturating_sub(*highest);
    *highest += new;
    new
}

impl Intervals {
    fn new(begin_ns: u64, every_ns: u64) -> Self {
        let current = Interval::default();
        Self { begin_ns, every_ns, seq: 0, current, left_out: 0, dropped: 0 }
    }

    /// Returns the end of the current interval.
    fn end_ns(&self) -> u64 {
        self.begin_ns + (u64::from(self.seq) + 1) * self.every_ns
    }

    /// If the current interval is over, ends it and returns its number and counts.
    fn take(&mut self, now_ns: u64) -> Option<(u32, Interval)> {
        if now_ns < self.end_ns() {
            return None;
        }
        let seq = self.seq;
        self.seq += 1;
        Some((seq, std::mem::take(&mut self.current)))
    }

    /// Counts a datagram, by the length of its IP packet.
    fn arrived(&mut self, ip_bytes: u64, left_out: u64) {
        self.current.bytes += ip_bytes;
        // An overtaken datagram carries a lower counter.
        self.current.left_out += newly(left_out, &mut self.left_out);
    }

    /// Takes the number of datagrams that the socket has dropped since it was created.
    fn socket_dropped(&mut self, count: u32) {
        self.current.dropped += newly(count.into(), &mut self.dropped);
    }
}

/// Waits for a datagram. Returns its length and, if the socket (option `SO_RXQ_OVFL`) has dropped any before it, the total dropped.
fn receive_one(
    socket: &UdpSocket,
    buffer: &mut [u8],
    control: &mut [u8],
) -> io::Result<(usize, Option<u32>)> {
    let mut parts = [IoSliceMut::new(buffer)];
    let (fd, flags) = (socket.as_raw_fd(), MsgFlags::empty());
    let message = recvmsg::<()>(fd, &mut parts, Some(control), flags)?;
    let dropped = message.cmsgs()?.find_map(|found| match found {
        ControlMessageOwned::RxqOvfl(count) => Some(count),
        _ => None,
    });
    Ok((message.bytes, dropped))
}

/// Opens the measuring node's socket, for [`receive`].
///
/// # Errors
/// The socket cannot be created.
pub fn open(task: &ProbeTask) -> io::Result<UdpSocket> {
    let any: IpAddr = match task.to_ip {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(SocketAddr::new(task.to_ip, task.port))?;
    ping::set_tos(&socket, task.to_ip, task.plan.tos)?;
    // Without the privilege, the kernel grants a smaller buffer.
    if setsockopt(&socket, sockopt::RcvBufForce, &BUFFER_BYTES).is_err() {
        let _ = setsockopt(&socket, sockopt::RcvBuf, &BUFFER_BYTES);
    }
    setsockopt(&socket, sockopt::RxqOvfl, &1)?;
    socket.set_read_timeout(Some(TICK))?;
    Ok(socket)
}

/// Requests the stream from the probe's start, or from now on if that has passed, to the end of the trial, and emits a row for every
/// interval. Blocks.
pub fn receive(
    socket: &UdpSocket,
    task: &ProbeTask,
    start_at_ns: u64,
    deadline: &Deadline,
    emit: &mut dyn FnMut(wire::Probe),
) {
    // Before this process runs, nothing is requested, so nothing is lost either.
    let begin_ns = (start_at_ns + task.plan.start.nanos()).max(clock::now_ns());
    let mut intervals = Intervals::new(begin_ns, task.plan.every.nanos().max(1_000_000));
    let (mut cookie, mut request_ns) = (0, begin_ns);
    let (mut buffer, mut control) = (vec![0; PACKET_BYTES as usize], nix::cmsg_space!(u32));
    while !deadline.passed() {
        let now_ns = clock::now_ns();
        if now_ns < begin_ns {
            std::thread::sleep(
                clock::until(begin_ns).min(Duration::from_nanos(REQUEST_INTERVAL_NS)),
            );
            continue;
        }
        while let Some((seq, interval)) = intervals.take(now_ns) {
            let at_ns = begin_ns + u64::from(seq) * intervals.every_ns;
            emit(row(task, seq, at_ns, &interval));
        }
        if now_ns >= request_ns {
            // If this is lost, the next request replaces it.
            let _ = socket.send(&encode(REQUEST, cookie, 0));
            request_ns = now_ns + REQUEST_INTERVAL_NS;
        }
        let Ok((length, dropped)) = receive_one(socket, &mut buffer, &mut control) else {
            continue;
        };
        if let Some(count) = dropped {
            intervals.socket_dropped(count);
        }
        match decode(&buffer[..length]) {
            Some((COOKIE, number, _)) if number != cookie => {
                (cookie, request_ns) = (number, now_ns);
            }
            Some((DATA, _, left_out)) => {
                intervals.arrived(length as u64 + header_bytes(task.to_ip), left_out);
            }
            _ => {}
        }
    }
    // Emit the last complete interval, too.
    while let Some((seq, interval)) = intervals.take(deadline.at_ns.min(clock::now_ns())) {
        emit(row(task, seq, begin_ns + u64::from(seq) * intervals.every_ns, &interval));
    }
}

fn row(task: &ProbeTask, seq: u32, at_ns: u64, interval: &Interval) -> wire::Probe {
    let lost = [
        (interval.left_out, "the sender was late and left out"),
        (interval.dropped, "the receiver was late and its socket dropped"),
    ];
    let lost = lost.iter().filter(|(count, _)| *count > 0);
    let lost: Vec<String> = lost.map(|(count, how)| format!("{how} {count} packets")).collect();
    let (bytes, error) = (Some(interval.bytes), lost.join("; "));
    wire::Probe { bytes, error, ..ping::row(task, seq, at_ns) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ccbench_proto::plan::{Probe, ProbeKind};
    use ccbench_proto::units::{Micros, Rate};
    use ccbench_tests::retry_on_intr;

    use super::*;

    #[test]
    fn a_late_sender_leaves_out_what_is_long_due() {
        // One packet per millisecond.
        let mut pacer = Pacer::new(12_000_000, 0);
        assert_eq!(pacer.due(500_000), 0..0);
        assert_eq!(pacer.due(3_000_000), 0..3);
        assert_eq!(pacer.due(3_000_000), 3..3);
        assert_eq!((pacer.due(23_000_000), pacer.left_out), (3..23, 0));
        assert_eq!((pacer.due(53_000_000), pacer.left_out), (33..53, 10));
    }

    #[test]
    fn the_count_of_an_address_that_asks_again_goes_on() {
        let [one, other] = [1, 2].map(|port| SocketAddr::new([127, 0, 0, 1].into(), port));
        // One packet per millisecond.
        let mut streams = Streams::new(12_000_000);
        assert_eq!(streams.due(5_000_000_000), None);
        streams.on_request(one, 5_000_000_000);
        assert_eq!(streams.due(5_053_000_000), Some((one, 33..53, 33)));
        // This address has the stream, so another one gets nothing.
        streams.on_request(other, 5_053_000_000);
        assert_eq!(streams.due(6_000_000_000), Some((one, 980..1000, 960)));
        assert_eq!(
            streams.due(6_000_000_001),
            None,
            "it has not sent a request for more than a second"
        );
        streams.on_request(one, 6_500_000_000);
        assert_eq!(streams.due(6_503_000_000), Some((one, 0..3, 960)));
        assert_eq!(streams.due(7_600_000_000), None);
        streams.on_request(other, 7_600_000_000);
        assert_eq!(streams.due(7_601_000_000), Some((other, 0..1, 0)));
        // A stream to another address in between does not restart the count.
        assert_eq!(streams.due(8_700_000_000), None);
        streams.on_request(one, 8_700_000_000);
        assert_eq!(streams.due(8_703_000_000), Some((one, 0..3, 960)));
    }

    #[test]
    fn intervals_have_what_arrived_in_them() {
        let mut intervals = Intervals::new(1000, 100);
        intervals.arrived(1500, 0);
        assert_eq!(intervals.take(1099), None);
        let full = |bytes, left_out| Interval { bytes, left_out, dropped: 0 };
        assert_eq!(intervals.take(1250), Some((0, full(1500, 0))));
        assert_eq!(intervals.take(1250), Some((1, full(0, 0))));
        assert_eq!(intervals.take(1250), None);
        intervals.arrived(1500, 7);
        intervals.arrived(1500, 5);
        intervals.arrived(1500, 8);
        assert_eq!(intervals.take(1300), Some((2, full(4500, 8))));
        intervals.socket_dropped(3);
        intervals.socket_dropped(3);
        assert_eq!(intervals.take(1400), Some((3, Interval { dropped: 3, ..full(0, 0) })));
        intervals.socket_dropped(5);
        assert_eq!(intervals.take(1500), Some((4, Interval { dropped: 2, ..full(0, 0) })));
    }

    #[test]
    fn a_row_states_what_both_ends_lost() {
        let task = stream_task(1);
        let error = |left_out, dropped| {
            let interval = Interval { bytes: 1500, left_out, dropped };
            let row = row(&task, 0, 7, &interval);
            assert_eq!((row.bytes, row.at_ns, row.lost), (Some(1500), 7, false));
            row.error
        };
        assert_eq!(error(0, 0), "");
        assert_eq!(error(2, 0), "the sender was late and left out 2 packets");
        let both = "the sender was late and left out 2 packets; the receiver was late and its socket dropped 3 packets";
        assert_eq!(error(2, 3), both);
    }

    #[test]
    fn what_the_socket_drops_is_reported_with_the_next_datagram() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        setsockopt(&socket, sockopt::RxqOvfl, &1).unwrap();
        // The kernel raises this to its minimum, which holds a few datagrams.
        setsockopt(&socket, sockopt::RcvBuf, &1).unwrap();
        socket.set_read_timeout(Some(TICK)).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(socket.local_addr().unwrap()).unwrap();
        const BURST: u64 = 100;
        let send = |number| {
            sender.send(&encode(DATA, number, 0)).unwrap();
        };
        (0..BURST).for_each(send);
        let (mut buffer, mut control) = ([0; MESSAGE_BYTES], nix::cmsg_space!(u32));
        let (mut sent, mut received) = (BURST, 0);
        // Read until a datagram sent after the burst arrives: it reports everything dropped before it.
        let (last, dropped) = loop {
            let Ok((length, dropped)) = receive_one(&socket, &mut buffer, &mut control) else {
                send(sent);
                sent += 1;
                continue;
            };
            received += 1;
            let (_, number, _) = decode(&buffer[..length]).unwrap();
            if number >= BURST {
                break (number, dropped.unwrap());
            }
        };
        assert!(dropped > 0);
        assert_eq!(received + u64::from(dropped), last + 1);
    }

    fn stream_task(port: u16) -> ProbeTask {
        ProbeTask {
            id: "stream".into(),
            plan: Probe {
                every: Micros::from_millis(10),
                rate: Some(Rate::from_bits_per_sec(12_000_000)),
                ..Probe::new(ProbeKind::UdpStream, "a", "b")
            },
            to_ip: [127, 0, 0, 1].into(),
            port,
        }
    }

    #[test]
    fn messages_are_read_back() {
        let message = encode(DATA, 1 << 40, 3);
        assert_eq!(decode(&message), Some((DATA, 1 << 40, 3)));
        assert_eq!(decode(&[&message[..], &[0; 9]].concat()), Some((DATA, 1 << 40, 3)));
        assert_eq!(decode(&message[..16]), None);
    }

    #[test]
    fn the_time_before_a_late_process_runs_has_no_rows() {
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let task = stream_task(silent.local_addr().unwrap().port());
        let (runs_at_ns, stop) = (clock::now_ns(), Arc::new(AtomicBool::new(false)));
        let deadline = Deadline { at_ns: runs_at_ns + 60_000_000_000, stop: Arc::clone(&stop) };
        let mut rows: Vec<wire::Probe> = vec![];
        receive(&open(&task).unwrap(), &task, runs_at_ns - 1_000_000_000, &deadline, &mut |row| {
            rows.push(row);
            stop.store(true, Ordering::Relaxed);
        });
        assert!(!rows.is_empty() && rows.iter().all(|row| row.at_ns >= runs_at_ns), "{rows:?}");
    }

    /// Checks the rows of a stream on this machine, as far as they do not depend on its speed.
    #[test]
    fn a_stream_is_counted_after_its_cookie() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let task = stream_task(socket.local_addr().unwrap().port());
        let (stop, sender) = (Arc::new(AtomicBool::new(false)), task.clone());
        let sends = {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || serve(&socket, &sender, &stop))
        };
        // A stranger gets no more data than it sends.
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        stranger.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let server = SocketAddr::new(task.to_ip, task.port);
        stranger.send_to(&encode(REQUEST, 1, 0), server).unwrap();
        let mut answer = [0; 2000];
        let (length, _) = retry_on_intr(|| stranger.recv_from(&mut answer)).unwrap();
        assert_eq!((length, answer[0]), (MESSAGE_BYTES, COOKIE));
        // Nor does an address with the cookie of another, as if its source were forged.
        let (_, cookie, _) = decode(&answer[..length]).unwrap();
        let forger = UdpSocket::bind("127.0.0.1:0").unwrap();
        forger.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        forger.send_to(&encode(REQUEST, cookie, 0), server).unwrap();
        let (length, _) = retry_on_intr(|| forger.recv_from(&mut answer)).unwrap();
        assert_eq!((length, answer[0]), (MESSAGE_BYTES, COOKIE));
        assert_ne!(decode(&answer[..length]).unwrap().1, cookie);
        let ends = Arc::new(AtomicBool::new(false));
        let deadline =
            Deadline { at_ns: clock::now_ns() + 60_000_000_000, stop: Arc::clone(&ends) };
        let mut rows: Vec<wire::Probe> = vec![];
        receive(&open(&task).unwrap(), &task, clock::now_ns(), &deadline, &mut |row| {
            rows.push(row);
            let bytes: u64 = rows.iter().filter_map(|row| row.bytes).sum();
            ends.store(bytes >= 15_000, Ordering::Relaxed);
        });
        stop.store(true, Ordering::Relaxed);
        sends.join().unwrap();
        assert!(rows.iter().zip(0..).all(|(row, seq)| row.seq == seq && !row.lost), "{rows:?}");
        assert!(rows.iter().all(|row| row.bytes.unwrap() % PACKET_BYTES == 0), "{rows:?}");
        assert!(rows.iter().filter_map(|row| row.bytes).sum::<u64>() >= 15_000, "{rows:?}");
    }
}
