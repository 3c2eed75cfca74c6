//! The connections of one end and their threads.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ccbench_collector::tcp_info::{self, KernelVersion};
use ccbench_io::console::message;
use ccbench_proto::plan::Pause;
use ccbench_proto::schedule::{CONNECT_TIMEOUT_S, block_offset_ns, paused_offset_ns};
use ccbench_proto::units::{Micros, Rate};
use ccbench_proto::wire::{FlowSample, Side};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType, accept_with, bind,
    connect as connect_socket, getpeername, getsockname, listen, recv, send, socket_with,
};

use super::report::{Addresses, Counters};
use super::{Args, GenerateError};
use crate::clock;

/// Time limit for one connection to be established.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(CONNECT_TIMEOUT_S);
/// Size of one `recv`: it spans several rounds of TCP's buffer autotuning at high rates, and keeps system calls rare at any rate.
const RECV_BYTES: usize = 1 << 20;

/// An established connection.
pub(super) struct Connection {
    pub addresses: Addresses,
    socket: OwnedFd,
}

impl Connection {
    fn new(socket: OwnedFd) -> Result<Self, GenerateError> {
        let failed = || GenerateError::system("read the addresses of a connection");
        let address = |of: SocketAddrAny| SocketAddr::try_from(of).map_err(failed());
        let local = address(getsockname(&socket).map_err(failed())?)?;
        let remote =
            getpeername(&socket).map_err(failed())?.ok_or(Errno::NOTCONN).map_err(failed())?;
        let remote = address(remote)?;
        Ok(Self { addresses: Addresses { local, remote }, socket })
    }
}

/// Establishes the connections in the order of their numbers; returns `None` if a signal came first.
pub(super) fn connect(
    args: &Args,
    signals: BorrowedFd<'_>,
) -> Result<Option<Vec<Connection>>, GenerateError> {
    let server = SocketAddr::new(args.server, args.server_port);
    let Some(client) = args.client else { return accept_all(args, server, signals) };
    let mut connections = Vec::new();
    for i in 0..args.count {
        let port = u16::try_from(u32::from(args.client_port) + i).unwrap_or(0);
        let local = SocketAddr::new(client, port);
        let socket = open(args, server.ip())?;
        bind(&socket, &local).map_err(GenerateError::system(format!("bind to {local}")))?;
        // On Linux, the send timeout also limits `connect`.
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(CONNECT_TIMEOUT))
            .map_err(GenerateError::system("set the connect timeout"))?;
        connect_socket(&socket, &server)
            .map_err(|error| if error == Errno::INPROGRESS { Errno::TIMEDOUT } else { error })
            .map_err(GenerateError::system(format!("unable to connect to {server}")))?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, None)
            .map_err(GenerateError::system("clear the connect timeout"))?;
        connections.push(Connection::new(socket)?);
    }
    Ok(Some(connections))
}

fn accept_all(
    args: &Args,
    server: SocketAddr,
    signals: BorrowedFd<'_>,
) -> Result<Option<Vec<Connection>>, GenerateError> {
    let listener = open(args, server.ip())?;
    bind(&listener, &server).map_err(GenerateError::system(format!("bind to {server}")))?;
    listen(&listener, i32::try_from(args.count).unwrap_or(i32::MAX))
        .map_err(GenerateError::system(format!("listen on {server}")))?;
    let mut connections = Vec::new();
    while connections.len() < args.count as usize {
        let mut fds = [
            PollFd::from_borrowed_fd(signals, PollFlags::IN),
            PollFd::new(&listener, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Err(Errno::INTR) => continue,
            other => other.map_err(GenerateError::system("wait for connections"))?,
        };
        if !fds[0].revents().is_empty() {
            return Ok(None);
        }
        match accept_with(&listener, SocketFlags::CLOEXEC) {
            // The peer has given up meanwhile.
            Err(Errno::CONNABORTED | Errno::INTR) => {}
            accepted => {
                let socket =
                    accepted.map_err(GenerateError::system(format!("accept on {server}")))?;
                // The peer may have closed it meanwhile.
                let Ok(connection) = Connection::new(socket) else { continue };
                add(&mut connections, connection, args);
            }
        }
    }
    // They may arrive in another order.
    connections.sort_by_key(|connection| connection.addresses.remote.port());
    Ok(Some(connections))
}

/// Adds a connection. It replaces an earlier one from the same port, which its peer has given up. A connection from
/// another port, such as a port scan, is not of this flow group: it is closed and reported on stderr.
fn add(connections: &mut Vec<Connection>, new: Connection, args: &Args) {
    let remote = new.addresses.remote;
    let number = u32::from(remote.port()).checked_sub(args.client_port.into());
    if number.is_none_or(|number| number >= args.count) {
        message(format_args!(
            "ccbench: refused a connection from {remote}, which is not of this flow group"
        ));
        return;
    }
    connections.retain(|earlier| earlier.addresses.remote != remote);
    connections.push(new);
}

fn open(args: &Args, address: IpAddr) -> Result<OwnedFd, GenerateError> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(GenerateError::system("open a socket"))?;
    let option = |name: &'static str| GenerateError::system(format!("set {name}"));
    sockopt::set_socket_reuseaddr(&socket, true).map_err(option("SO_REUSEADDR"))?;
    // Closing then sends a RST and discards the send buffer: a flow ends at its stop, not when its buffer is empty. An
    // accepted socket inherits this and the congestion control.
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).map_err(option("SO_LINGER"))?;
    if let Some(cc) = &args.cc {
        sockopt::set_tcp_congestion(&socket, cc)
            .map_err(GenerateError::system(format!("set TCP_CONGESTION to {cc}")))?;
    }
    Ok(socket)
}

struct Stream {
    socket: OwnedFd,
    /// Bytes that the thread has passed to the kernel, or taken from it.
    moved_bytes: AtomicU64,
    /// When the receiver had read the last byte of a finite flow, on CLOCK_MONOTONIC; 0 until then.
    completed_ns: AtomicU64,
}

#[derive(Default)]
struct Outcome {
    ended: AtomicUsize,
    /// The error of the first connection that failed.
    error: Mutex<Option<String>>,
}

/// What the connections have transferred so far.
pub(super) struct Reading {
    /// When it was read, on CLOCK_MONOTONIC.
    pub(super) at_ns: u64,
    /// By the number of the connection.
    pub(super) counters: Vec<Counters>,
}

/// The running connections of this end.
pub(super) struct Streams {
    streams: Vec<Arc<Stream>>,
    outcome: Arc<Outcome>,
    ended: Arc<OwnedFd>,
    sends: bool,
    kernel: KernelVersion,
}

impl Streams {
    /// Starts a thread for each connection. `ended` is an eventfd to which each thread adds one when it ends.
    pub(super) fn start(
        args: &Args,
        connections: Vec<Connection>,
        zero_ns: u64,
        ended: Arc<OwnedFd>,
    ) -> Result<Self, GenerateError> {
        let outcome = Arc::new(Outcome::default());
        let mut streams = Vec::new();
        for Connection { socket, .. } in connections {
            let stream = Arc::new(Stream {
                socket,
                moved_bytes: AtomicU64::new(0),
                completed_ns: AtomicU64::new(0),
            });
            let (of_thread, outcome, ended) =
                (Arc::clone(&stream), Arc::clone(&outcome), Arc::clone(&ended));
            let (sends, schedule) = (args.sends(), Schedule::new(args, zero_ns));
            let length_bytes = args.bytes.map_or(u64::MAX, Into::into);
            std::thread::Builder::new()
                .name("stream".to_owned())
                .spawn(move || {
                    let moved = if sends {
                        send_all(&of_thread, &schedule, length_bytes)
                    } else {
                        receive_all(&of_thread, length_bytes)
                    };
                    if let Err(error) = moved {
                        let mut first =
                            outcome.error.lock().unwrap_or_else(PoisonError::into_inner);
                        first.get_or_insert_with(|| error.to_string());
                    }
                    outcome.ended.fetch_add(1, Ordering::Release);
                    // This fails only if the counter is full.
                    let _ = rustix::io::write(&*ended, &1u64.to_ne_bytes());
                })
                .map_err(GenerateError::system("start a thread"))?;
            streams.push(stream);
        }
        Ok(Self { streams, outcome, ended, sends: args.sends(), kernel: KernelVersion::running() })
    }

    pub(super) fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Call this when [`Self::ended`] is readable; it clears the counter.
    pub(super) fn all_ended(&self) -> bool {
        let _ = rustix::io::read(&*self.ended, &mut [0u8; 8]);
        self.outcome.ended.load(Ordering::Acquire) == self.streams.len()
    }

    /// Returns the error of the first connection that failed.
    pub(super) fn error(&self) -> Option<String> {
        self.outcome.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the congestion control of the first connection.
    pub(super) fn congestion_control(&self) -> Option<String> {
        sockopt::tcp_congestion(&self.streams.first()?.socket).ok()
    }

    /// Reads what every connection has transferred so far. The time is that of the reading, not of the deadline before it: a thread
    /// that wakes up late counts more bytes, in a longer interval.
    pub(super) fn read(&self) -> Result<Reading, GenerateError> {
        let at_ns = clock::now_ns();
        let side = if self.sends { Side::Sender } else { Side::Receiver };
        let of_stream = |stream: &Arc<Stream>| {
            let info = ccbench_shaper::tcp_info(stream.socket.as_fd());
            let info = info.map_err(GenerateError::system("read TCP_INFO"))?;
            let mut sample = FlowSample { side: side.into(), ..FlowSample::default() };
            tcp_info::decode(&info, self.kernel, &mut sample);
            let completed_ns = match stream.completed_ns.load(Ordering::Relaxed) {
                0 => None,
                at_ns => Some(at_ns),
            };
            let moved_bytes = stream.moved_bytes.load(Ordering::Relaxed);
            Ok(Counters { completed_ns, ..Counters::new(sample, moved_bytes) })
        };
        let counters = self.streams.iter().map(of_stream).collect::<Result<_, GenerateError>>()?;
        Ok(Reading { at_ns, counters })
    }
}

/// Decides when the next block may be written.
struct Schedule {
    zero_ns: u64,
    block_bytes: u64,
    rate_bps: Option<u64>,
    pause: Option<Pause>,
}

impl Schedule {
    fn new(args: &Args, zero_ns: u64) -> Self {
        let (block_bytes, rate_bps) = (args.block_bytes.get(), args.rate_bps.map(Into::into));
        let pause = args.pause_after_us.zip(args.pause_us).map(|(after_us, pause_us)| Pause {
            after: Micros::new(after_us),
            duration: Micros::new(pause_us),
            every: args.pause_every_us.map(Micros::new),
        });
        Self { zero_ns, block_bytes, rate_bps, pause }
    }

    /// Returns when block number `block` is due.
    fn due_ns(&self, block: u64) -> Option<u64> {
        let after_ns =
            block_offset_ns(Rate::from_bits_per_sec(self.rate_bps?), self.block_bytes, block);
        Some(self.zero_ns.saturating_add(paused_offset_ns(after_ns, self.pause)))
    }
}

/// Sends `length_bytes`, block by block, then waits until the receiver closes the connection.
fn send_all(stream: &Stream, schedule: &Schedule, length_bytes: u64) -> io::Result<()> {
    let block = vec![0u8; usize::try_from(schedule.block_bytes).unwrap_or(usize::MAX)];
    for number in 0.. {
        let rest_bytes = length_bytes - stream.moved_bytes.load(Ordering::Relaxed);
        if rest_bytes == 0 {
            break;
        }
        if let Some(due_ns) = schedule.due_ns(number) {
            clock::sleep_thread_until(due_ns);
        }
        let mut left = &block[..block.len().min(usize::try_from(rest_bytes).unwrap_or(usize::MAX))];
        while !left.is_empty() {
            match send(&stream.socket, left, SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    stream.moved_bytes.fetch_add(sent as u64, Ordering::Relaxed);
                    left = &left[sent..];
                }
                Err(Errno::INTR) => {}
                // The receiver has closed the connection, which ends the flow.
                Err(Errno::CONNRESET | Errno::PIPE) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
    // The receiver sends nothing, so this waits for its close.
    receive_all(stream, u64::MAX)
}

/// Receives until the other end closes the connection. In a finite flow of `length_bytes`, the last call before its end
/// waits for exactly the missing bytes, so that it returns at the time of completion.
fn receive_all(stream: &Stream, length_bytes: u64) -> io::Result<()> {
    let mut buffer = vec![0u8; RECV_BYTES];
    loop {
        let rest_bytes = length_bytes.saturating_sub(stream.moved_bytes.load(Ordering::Relaxed));
        let wanted = match usize::try_from(rest_bytes) {
            Ok(rest) if (1..RECV_BYTES).contains(&rest) => rest,
            _ => RECV_BYTES,
        };
        // With MSG_TRUNC the kernel counts the data and discards it without copying.
        match recv(&stream.socket, &mut buffer[..wanted], RecvFlags::WAITALL | RecvFlags::TRUNC) {
            Ok((_, 0)) | Err(Errno::CONNRESET) => return Ok(()),
            Ok((_, received)) => {
                let before = stream.moved_bytes.fetch_add(received as u64, Ordering::Relaxed);
                if (before + 1..=before + received as u64).contains(&length_bytes) {
                    stream.completed_ns.store(clock::now_ns(), Ordering::Relaxed);
                }
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(client_port: u16) -> Args {
        let words =
            format!("x --server 127.0.0.1 --server-port 1 --client-port {client_port} --count 2");
        Line::parse_from(words.split(' ')).args
    }

    /// Returns an accepted connection and its peer.
    fn accepted(listener: &TcpListener) -> (Connection, TcpStream) {
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Connection::new(listener.accept().unwrap().0.into()).unwrap(), peer)
    }

    #[test]
    fn only_connections_of_the_flow_group_are_kept() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut kept = Vec::new();
        let (connection, _peer) = accepted(&listener);
        let remote = connection.addresses.remote;
        let port = remote.port();
        add(&mut kept, connection, &args(port - 1));
        assert_eq!(kept.len(), 1, "the second of two");
        for first in [port + 1, port - 2] {
            let (mut stranger, _peer) = accepted(&listener);
            stranger.addresses.remote = remote;
            add(&mut kept, stranger, &args(first));
            assert_eq!(kept.len(), 1, "{port} is not in {first} and the one after it");
        }
        let (mut again, peer) = accepted(&listener);
        again.addresses.remote = remote;
        add(&mut kept, again, &args(port));
        let [connection] = &kept[..] else { panic!("{} connections", kept.len()) };
        let of_kept = SocketAddr::try_from(getpeername(&connection.socket).unwrap().unwrap());
        assert_eq!(of_kept.unwrap(), peer.local_addr().unwrap());
    }

    #[test]
    fn a_reading_has_the_time_at_which_it_was_made() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (connection, _peer) = accepted(&listener);
        let (moved_bytes, completed_ns) = (AtomicU64::new(700), AtomicU64::new(0));
        let stream = Stream { socket: connection.socket, moved_bytes, completed_ns };
        let ended = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let streams = Streams {
            streams: vec![Arc::new(stream)],
            outcome: Arc::default(),
            ended: Arc::new(ended),
            sends: true,
            kernel: KernelVersion::running(),
        };
        let began_ns = clock::now_ns();
        let Reading { at_ns, counters } = streams.read().unwrap();
        assert!((began_ns..=clock::now_ns()).contains(&at_ns));
        assert_eq!(counters[0].bytes, 700);
    }

    #[test]
    fn a_finite_flow_ends_with_its_last_byte_and_stays_open() {
        // One block and a part of another.
        const LENGTH_BYTES: u64 = 200_000;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (connection, peer) = accepted(&listener);
        let stream = |socket| {
            let (moved_bytes, completed_ns) = (AtomicU64::new(0), AtomicU64::new(0));
            Arc::new(Stream { socket, moved_bytes, completed_ns })
        };
        let (sender, receiver) = (stream(OwnedFd::from(peer)), stream(connection.socket));
        let schedule = Schedule { zero_ns: 0, block_bytes: 131_072, rate_bps: None, pause: None };
        let began_ns = clock::now_ns();
        let of_sender = Arc::clone(&sender);
        let sending = std::thread::spawn(move || send_all(&of_sender, &schedule, LENGTH_BYTES));
        let of_receiver = Arc::clone(&receiver);
        let receiving = std::thread::spawn(move || receive_all(&of_receiver, LENGTH_BYTES));
        let completes = (0..60_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            receiver.completed_ns.load(Ordering::Relaxed) > 0
        });
        assert!(completes, "the last byte has not arrived");
        let both = [&sender, &receiver].map(|end| end.moved_bytes.load(Ordering::Relaxed));
        assert_eq!(both, [LENGTH_BYTES; 2]);
        assert!(receiver.completed_ns.load(Ordering::Relaxed) > began_ns);
        assert_eq!(sender.completed_ns.load(Ordering::Relaxed), 0, "only the receiver knows");
        assert!(!sending.is_finished() && !receiving.is_finished(), "the connection is open");
        rustix::net::shutdown(&receiver.socket, rustix::net::Shutdown::Both).unwrap();
        sending.join().unwrap().unwrap();
        receiving.join().unwrap().unwrap();
    }

    #[test]
    fn a_limited_flow_keeps_its_mean_rate() {
        let schedule =
            Schedule { zero_ns: 5, block_bytes: 1250, rate_bps: Some(1_000_000), pause: None };
        assert_eq!(schedule.due_ns(0), Some(5));
        assert_eq!(schedule.due_ns(1), Some(10_000_005));
        assert_eq!(schedule.due_ns(360_000), Some(3_600_000_000_005), "no drift after an hour");
        let pause =
            Some(Pause { after: Micros::from_millis(10), duration: Micros::new(3), every: None });
        let paused = Schedule { pause, ..schedule };
        assert_eq!([0, 1].map(|block| paused.due_ns(block)), [Some(5), Some(10_003_005)]);
        assert_eq!(Schedule { rate_bps: None, ..paused }.due_ns(7), None);
    }
}
