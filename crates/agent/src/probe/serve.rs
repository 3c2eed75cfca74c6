//! Servers that answer the probes of other nodes: HTTP with one file, a UDP echo, and a UDP stream. Each has its own
//! process without privileges, from Prepare to Reset.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ccbench_proto::plan::ProbeKind;
use ccbench_proto::schedule::ProbeTask;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};

use super::{http, stream};
use crate::probe::ping::{self, ECHO_REPLY, ECHO_REQUEST};

/// How often a thread checks whether it must stop.
const SLICE_MS: u16 = 50;
/// Limit of concurrent connections; a probe makes one.
const MAX_CONNECTIONS: usize = 64;
/// Written in one call.
static PIECE: [u8; 64 << 10] = [b'x'; 64 << 10];

/// A server on a thread. Dropping it stops the server.
#[doc(hidden)]
#[derive(Debug)]
pub struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Server {
    /// Waits for the listener's end, after which its port and its congestion control are free.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has ended, too.
            let _ = thread.join();
        }
    }
}

/// Opens the socket of a probe's server, for [`answer`]. `cc` is the kernel's name of the congestion control. Only this needs privileges.
///
/// # Errors
/// The address is in use, or the kernel does not have this congestion control.
pub fn open(task: &ProbeTask, cc: Option<&str>) -> io::Result<OwnedFd> {
    let address = SocketAddr::new(task.to_ip, task.port);
    if matches!(task.plan.kind, ProbeKind::Udp | ProbeKind::UdpStream) {
        let socket = UdpSocket::bind(address)?;
        ping::set_tos(&socket, task.to_ip, task.plan.tos)?;
        if task.plan.kind == ProbeKind::UdpStream {
            socket.set_nonblocking(true)?;
            stream::enlarge_send_buffer(&socket);
        } else {
            socket.set_read_timeout(Some(Duration::from_millis(SLICE_MS.into())))?;
        }
        return Ok(socket.into());
    }
    // Connections inherit the congestion control and the TOS byte.
    let listener = TcpListener::bind(address)?;
    ping::set_tos(&listener, task.to_ip, task.plan.tos)?;
    if let Some(cc) = cc {
        setsockopt(&listener, sockopt::TcpCongestion, &OsString::from(cc))?;
    }
    listener.set_nonblocking(true)?;
    Ok(listener.into())
}

/// Answers a probe on a socket of [`open`] until `stop`. Blocks.
pub fn answer(socket: OwnedFd, task: &ProbeTask, stop: &Arc<AtomicBool>) {
    match task.plan.kind {
        ProbeKind::UdpStream => stream::serve(&UdpSocket::from(socket), task, stop),
        ProbeKind::Udp => echo(&UdpSocket::from(socket), stop),
        ProbeKind::Ping | ProbeKind::TcpConnect | ProbeKind::Http => {
            let bytes = task.plan.bytes.unwrap_or_default().get();
            listen(&TcpListener::from(socket), bytes, stop);
        }
    }
}

/// For tests: answers a probe on a thread of this process.
///
/// # Errors
/// As [`open`], or no thread can be started.
#[doc(hidden)]
pub fn start(task: &ProbeTask, cc: Option<&str>) -> io::Result<Server> {
    let (socket, task) = (open(task, cc)?, task.clone());
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let thread = std::thread::Builder::new().name(format!("probe-{}", task.port));
    let thread = Some(thread.spawn(move || answer(socket, &task, &stopped))?);
    Ok(Server { stop, thread })
}

fn echo(socket: &UdpSocket, stop: &AtomicBool) {
    let mut buffer = [0; 2048];
    while !stop.load(Ordering::Relaxed) {
        let (length, from) = match socket.recv_from(&mut buffer) {
            Ok(received) => received,
            Err(error) => {
                pause_after_error(&error);
                continue;
            }
        };
        // Never answer a reply.
        if buffer[..length].first() == Some(&ECHO_REQUEST) {
            buffer[0] = ECHO_REPLY;
            // A full queue loses the echo, which the other side counts.
            let _ = socket.send_to(&buffer[..length], from);
        }
    }
}

fn listen(listener: &TcpListener, bytes: u64, stop: &Arc<AtomicBool>) {
    let open = Arc::new(AtomicUsize::new(0));
    while !stop.load(Ordering::Relaxed) {
        // accept() also reports errors of the wait.
        let _ = poll(
            &mut [PollFd::new(listener.as_fd(), PollFlags::POLLIN)],
            PollTimeout::from(SLICE_MS),
        );
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                pause_after_error(&error);
                continue;
            }
        };
        if open.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
            open.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (counted, stop) = (Arc::clone(&open), Arc::clone(stop));
        let thread = std::thread::Builder::new().name("probe-answer".to_owned());
        let serving = thread.spawn(move || {
            // The client reports the error.
            let _ = serve(stream, bytes, &stop);
            counted.fetch_sub(1, Ordering::Relaxed);
        });
        if serving.is_err() {
            open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Waits before the next attempt: an error such as EMFILE persists for a while.
fn pause_after_error(error: &io::Error) {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    if !matches!(error.kind(), Interrupted | TimedOut | WouldBlock) {
        std::thread::sleep(Duration::from_millis(SLICE_MS.into()));
    }
}

/// Retries a blocking operation until it completes or the server stops.
fn retry_until_stopped<T>(
    stop: &AtomicBool,
    mut what: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    loop {
        match what() {
            Err(e) if matches!(e.kind(), Interrupted | TimedOut | WouldBlock) => {
                if stop.load(Ordering::Relaxed) {
                    return Err(e);
                }
            }
            done => return done,
        }
    }
}

fn serve(mut stream: TcpStream, bytes: u64, stop: &AtomicBool) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    let slice = Some(Duration::from_millis(SLICE_MS.into()));
    stream.set_read_timeout(slice)?;
    stream.set_write_timeout(slice)?;
    let mut parser = http::RequestParser::default();
    let mut buffer = [0; 4096];
    let status = loop {
        let read = retry_until_stopped(stop, || stream.read(&mut buffer))?;
        if read == 0 {
            return Ok(());
        }
        if let Some(status) = parser.push(&buffer[..read]) {
            break status;
        }
    };
    let mut left = if status == 200 { bytes } else { 0 };
    // Write the head and the beginning of the body at once, so that they share a packet.
    let mut first = http::response(status, left);
    let some = (PIECE.len() as u64).min(left) as usize;
    first.extend_from_slice(&PIECE[..some]);
    left -= some as u64;
    write(&mut stream, &first, stop)?;
    while left > 0 {
        let some = (PIECE.len() as u64).min(left) as usize;
        write(&mut stream, &PIECE[..some], stop)?;
        left -= some as u64;
    }
    stream.shutdown(std::net::Shutdown::Write)
}

fn write(stream: &mut TcpStream, mut bytes: &[u8], stop: &AtomicBool) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = retry_until_stopped(stop, || stream.write(bytes))?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[written..];
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::clock;
    use crate::probe::tcp::{Deadline, run};
    use ccbench_proto::plan::{Probe, Repeat};
    use ccbench_proto::units::{Bytes, Micros};
    use ccbench_proto::wire;
    use ccbench_tests::port::ReservedPort;
    use std::net::Ipv4Addr;

    /// Returns a probe of this node's own port.
    pub(crate) fn task(kind: ProbeKind, port: u16, repeat: Repeat) -> ProbeTask {
        ProbeTask {
            id: "page".into(),
            plan: Probe {
                every: Micros::from_millis(10),
                repeat,
                timeout: Some(Micros::from_secs(20)),
                bytes: Some(Bytes::new(177_669)),
                cc: Some("reno".into()),
                ..Probe::new(kind, "a", "b")
            },
            to_ip: [127, 0, 0, 1].into(),
            port,
        }
    }

    /// Returns a port that no other test gets. A probe's server can bind it; without one, connections are refused.
    fn reserved_port() -> (ReservedPort, u16) {
        let reserved = ReservedPort::new(Ipv4Addr::LOCALHOST);
        let port = reserved.address().port();
        (reserved, port)
    }

    /// Returns rows until there are `most`, then stops the probe.
    fn rows(task: &ProbeTask, most: usize) -> Vec<wire::Probe> {
        let stop = Arc::new(AtomicBool::new(false));
        let deadline =
            Deadline { at_ns: clock::now_ns() + 60_000_000_000, stop: Arc::clone(&stop) };
        let mut rows = vec![];
        run(task, clock::now_ns(), &deadline, &mut |row| {
            rows.push(row);
            stop.store(rows.len() >= most, Ordering::Relaxed);
        });
        rows
    }

    #[test]
    fn fetch_times_are_ordered() {
        let (_reserved, port) = reserved_port();
        let task = task(ProbeKind::Http, port, Repeat::BackToBack);
        let _server = start(&task, Some("reno")).unwrap();
        let rows = rows(&task, 3);
        assert_eq!(rows.iter().map(|row| row.seq).collect::<Vec<_>>(), [0, 1, 2]);
        for row in rows {
            assert_eq!(
                (row.status, row.bytes, row.lost),
                (Some(200), Some(177_669), false),
                "{row:?}"
            );
            let (connect, first) = (row.connect_us.unwrap(), row.ttfb_us.unwrap());
            assert!(connect <= first && first <= row.total_us.unwrap(), "{row:?}");
            assert_eq!((row.dns_us, row.rtt_us), (None, None));
        }
    }

    #[test]
    fn resolves_names_first() {
        let (_reserved, port) = reserved_port();
        let mut named = task(ProbeKind::Http, port, Repeat::Once);
        named.plan.host = Some("localhost".into());
        let _server = start(&named, None).unwrap();
        let rows = rows(&named, 1);
        assert!(rows[0].dns_us.unwrap() <= rows[0].total_us.unwrap(), "{rows:?}");
    }

    #[test]
    fn times_connections_and_reports_refusals() {
        let (_reserved, port) = reserved_port();
        let connect = task(ProbeKind::TcpConnect, port, Repeat::Interval);
        let server = start(&connect, None).unwrap();
        let made = rows(&connect, 2);
        assert!(made.iter().all(|row| !row.lost && row.rtt_us == row.connect_us), "{made:?}");
        drop(server);
        let (_bound, port) = reserved_port();
        let nobody = task(ProbeKind::Http, port, Repeat::Once);
        let refused = rows(&nobody, 1);
        assert!(refused[0].lost && refused[0].error.contains("refused"), "{refused:?}");
        assert_eq!(refused[0].total_us, None);
    }

    #[test]
    fn unfinished_probes_have_no_row() {
        // The server accepts but never answers. The trial ends once the server has the connection, so the probe has begun by then.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let task = task(ProbeKind::Http, listener.local_addr().unwrap().port(), Repeat::Once);
        let stop = Arc::new(AtomicBool::new(false));
        let deadline =
            Deadline { at_ns: clock::now_ns() + 60_000_000_000, stop: Arc::clone(&stop) };
        let accepts = std::thread::spawn(move || {
            let accepted = listener.accept();
            stop.store(true, Ordering::Relaxed);
            accepted
        });
        let mut rows = vec![];
        let under_way = run(&task, clock::now_ns(), &deadline, &mut |row| rows.push(row));
        accepts.join().unwrap().unwrap();
        assert!(under_way && rows.is_empty(), "{rows:?}");
    }

    #[test]
    fn rejects_unknown_congestion_control() {
        let (_reserved, port) = reserved_port();
        assert!(start(&task(ProbeKind::Http, port, Repeat::Once), Some("nonesuch")).is_err());
    }
}
