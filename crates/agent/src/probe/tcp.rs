//! Measures how long connect() and HTTP fetches take, in a dedicated process.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::os::fd::{AsFd, AsRawFd as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use ccbench_proto::plan::{ProbeKind, Repeat};
use ccbench_proto::schedule::ProbeTask;
use ccbench_proto::wire;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, connect, getsockopt, socket,
    sockopt,
};

use super::http;
use crate::clock;
use crate::probe::ping;

/// Longest single wait; after it, the end of the trial is checked.
const SLICE_NS: u64 = 50_000_000;
const READ_BYTES: usize = 64 << 10;

/// The limits of one measurement.
struct Limit {
    timeout_at_ns: u64,
    trial: Deadline,
}

/// The end of the trial, or an earlier request to stop.
#[derive(Debug, Clone)]
pub struct Deadline {
    /// CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// A request to stop at once.
    pub stop: Arc<AtomicBool>,
}

impl Deadline {
    /// Whether the deadline has passed, or a stop was requested.
    pub fn passed(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || clock::now_ns() >= self.at_ns
    }
}

/// Why a measurement has no result.
#[derive(Debug, PartialEq, Eq)]
enum Failed {
    /// The trial ended first, so the duration is unknown.
    Ended,
    /// The reason.
    Error(String),
}

/// Measures from `start_at_ns` to the trial's end (CLOCK_MONOTONIC) and emits a row for every finished measurement.
/// Blocks. Returns whether a measurement was in progress at the end.
pub fn run(
    task: &ProbeTask,
    start_at_ns: u64,
    deadline: &Deadline,
    emit: &mut dyn FnMut(wire::Probe),
) -> bool {
    let (mut seq, mut due) = (0, start_at_ns + task.plan.start.nanos());
    let mut names = Resolver::new(resolve_host);
    let every = task.plan.every.nanos().max(1_000_000);
    loop {
        while clock::now_ns() < due {
            if deadline.passed() {
                return false;
            }
            std::thread::sleep(clock::until(due).min(std::time::Duration::from_nanos(SLICE_NS)));
        }
        if deadline.passed() {
            return false;
        }
        let at_ns = clock::now_ns();
        let limit =
            Limit { timeout_at_ns: at_ns + task.plan.timeout().nanos(), trial: deadline.clone() };
        let mut row = ping::row(task, seq, at_ns);
        match measure(task, &limit, &mut names, &mut row) {
            Ok(()) => {}
            Err(Failed::Ended) => return true,
            Err(Failed::Error(why)) => (row.lost, row.error) = (true, why),
        }
        emit(row);
        seq += 1;
        let now = clock::now_ns();
        due = match task.plan.repeat {
            Repeat::Once => return false,
            Repeat::BackToBack => now,
            // A measurement longer than the interval skips the missed ones.
            Repeat::Interval => due + every * (1 + now.saturating_sub(due) / every),
        };
        // Connections that are refused at once must not repeat without a pause.
        if task.plan.repeat == Repeat::BackToBack && now - at_ns < PAUSE_NS {
            due = at_ns + PAUSE_NS;
        }
    }
}

/// Minimum time between the starts of back-to-back measurements.
const PAUSE_NS: u64 = 1_000_000;

fn us(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1e3
}

fn measure(
    task: &ProbeTask,
    limit: &Limit,
    names: &mut Resolver,
    row: &mut wire::Probe,
) -> Result<(), Failed> {
    let begin_ns = row.at_ns;
    let mut to = SocketAddr::new(task.to_ip, task.port);
    if let Some(host) = &task.plan.host {
        let found = names.find(host, task.port, limit);
        // A failed look-up has a duration, too.
        row.dns_us = Some(us(begin_ns, clock::now_ns()));
        let found = found?;
        let alike = |address: &SocketAddr| address.is_ipv4() == task.to_ip.is_ipv4();
        to = found.into_iter().find(alike).ok_or_else(|| {
            Failed::Error(format!("{host} has no address of the same family as {}", task.to_ip))
        })?;
    }
    let because = |what: &str| {
        let what = what.to_owned();
        move |error: io::Error| Failed::Error(format!("{what} {to}: {error}"))
    };
    let connect_ns = clock::now_ns();
    let stream = connect_to(to, task.plan.tos, limit, because("connect to"))?;
    let connected_ns = clock::now_ns();
    row.connect_us = Some(us(connect_ns, connected_ns));
    if task.plan.kind == ProbeKind::TcpConnect {
        row.rtt_us = row.connect_us;
        return Ok(());
    }
    let host = task.plan.host.clone().unwrap_or_else(|| to.to_string());
    fetch(stream, &http::request(&host), limit, row, because("fetch from"))
}

type LookupResult = io::Result<Vec<SocketAddr>>;

fn resolve_host(host: &str, port: u16) -> LookupResult {
    (host, port).to_socket_addrs().map(Vec::from_iter)
}

/// Resolves names to addresses. getaddrinfo has no timeout, so it runs in its own thread, which is abandoned on a
/// timeout. There is at most one such thread: while it hangs, no other name is resolved.
struct Resolver {
    resolve: fn(&str, u16) -> LookupResult,
    /// The channel of the thread's answer.
    pending: Option<mpsc::Receiver<LookupResult>>,
}

impl Resolver {
    fn new(resolve: fn(&str, u16) -> LookupResult) -> Self {
        Self { resolve, pending: None }
    }

    fn find(&mut self, host: &str, port: u16, limit: &Limit) -> Result<Vec<SocketAddr>, Failed> {
        let because = |why: io::Error| Failed::Error(format!("cannot look up {host}: {why}"));
        if self.pending.is_some() {
            // Drop the answer to an earlier measurement's query: it did not start with this one.
            let hangs = |why| because(io::Error::other(format!("{why}; an earlier look-up hangs")));
            let _ = self.answer(limit, hangs)?;
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        let (name, resolve) = (host.to_owned(), self.resolve);
        // The receiver may have given up.
        let work = move || drop(sender.send(resolve(&name, port)));
        std::thread::Builder::new().name("look-up".to_owned()).spawn(work).map_err(because)?;
        self.pending = Some(receiver);
        self.answer(limit, because)?.map_err(because)
    }

    /// Waits for the thread's answer, which stays pending after a timeout.
    fn answer(
        &mut self,
        limit: &Limit,
        because: impl Fn(io::Error) -> Failed,
    ) -> Result<LookupResult, Failed> {
        while let Some(receiver) = &self.pending {
            let slice_ns = limit.slice_ns(&because)?;
            let answer = match receiver.recv_timeout(std::time::Duration::from_nanos(slice_ns)) {
                Err(mpsc::RecvTimeoutError::Timeout) => continue,
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Ok(found) => found,
            };
            self.pending = None;
            return Ok(answer);
        }
        self.pending = None;
        Ok(Err(io::Error::other("its thread panicked")))
    }
}

fn connect_to(
    to: SocketAddr,
    tos: u8,
    limit: &Limit,
    because: impl Fn(io::Error) -> Failed,
) -> Result<TcpStream, Failed> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let made = socket(family, SockType::Stream, flags, SockProtocol::Tcp);
    let fd = made.map_err(|e| because(e.into()))?;
    ping::set_tos(&fd, to.ip(), tos).map_err(&because)?;
    match connect(fd.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) => {}
        Err(Errno::EINPROGRESS) => {
            limit.wait(&fd, PollFlags::POLLOUT, &because)?;
            let error = getsockopt(&fd, sockopt::SocketError).map_err(|e| because(e.into()))?;
            if error != 0 {
                return Err(because(io::Error::from_raw_os_error(error)));
            }
        }
        Err(error) => return Err(because(error.into())),
    }
    Ok(TcpStream::from(fd))
}

fn fetch(
    mut stream: TcpStream,
    request: &[u8],
    limit: &Limit,
    row: &mut wire::Probe,
    because: impl Fn(io::Error) -> Failed,
) -> Result<(), Failed> {
    // The request fits into any socket's buffer.
    stream.write_all(request).map_err(&because)?;
    let mut response = http::Response::default();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        limit.wait(&stream, PollFlags::POLLIN, &because)?;
        let read = match stream.read(&mut buffer) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(because(error)),
        };
        let now_ns = clock::now_ns();
        if read > 0 && row.ttfb_us.is_none() {
            row.ttfb_us = Some(us(row.at_ns, now_ns));
        }
        let done = match read {
            0 => response.close().map(|()| true),
            _ => response.push(&buffer[..read]),
        };
        row.status = response.status.map(u32::from);
        row.bytes = Some(response.bytes);
        if done.map_err(|error| Failed::Error(error.to_string()))? {
            row.total_us = Some(us(row.at_ns, now_ns));
            return match response.status {
                Some(200..=299) => Ok(()),
                _ => Err(Failed::Error("the server refused it".to_owned())),
            };
        }
    }
}

impl Limit {
    /// Returns how long to wait before the clock and the end of the trial are checked again.
    fn slice_ns(&self, because: impl FnOnce(io::Error) -> Failed) -> Result<u64, Failed> {
        if self.trial.passed() {
            return Err(Failed::Ended);
        }
        match self.timeout_at_ns.saturating_sub(clock::now_ns()) {
            0 => Err(because(io::Error::from(io::ErrorKind::TimedOut))),
            left_ns => Ok(left_ns.min(SLICE_NS)),
        }
    }

    /// Waits until the socket is ready.
    fn wait(
        &self,
        fd: &impl AsFd,
        what: PollFlags,
        because: impl Fn(io::Error) -> Failed,
    ) -> Result<(), Failed> {
        loop {
            let slice_ms = self.slice_ns(&because)?.div_ceil(1_000_000);
            let timeout = PollTimeout::try_from(slice_ms as i32).unwrap_or(PollTimeout::ZERO);
            match poll(&mut [PollFd::new(fd.as_fd(), what)], timeout) {
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(because(error.into())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn limit(timeout_at_ns: u64, stop: bool) -> Limit {
        let trial = Deadline { at_ns: u64::MAX, stop: Arc::new(AtomicBool::new(stop)) };
        Limit { timeout_at_ns, trial }
    }

    #[test]
    fn lookups_end_at_their_deadline() {
        let look_up = |limit| Resolver::new(resolve_host).find("localhost", 80, &limit);
        let found = look_up(limit(u64::MAX, false)).unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 80));
        assert_eq!(look_up(limit(u64::MAX, true)), Err(Failed::Ended));
        let late = look_up(limit(0, false)).unwrap_err();
        assert!(
            matches!(&late, Failed::Error(why) if why.starts_with("cannot look up localhost: ")),
            "{late:?}"
        );
    }

    #[test]
    fn a_hanging_resolver_blocks_one_thread() {
        static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
        static HANGS: Mutex<()> = Mutex::new(());
        fn resolve(_: &str, port: u16) -> LookupResult {
            let nth = LOOKUPS.fetch_add(1, Ordering::SeqCst);
            drop(HANGS.lock());
            Ok(vec![SocketAddr::new([10, 0, 0, nth as u8].into(), port)])
        }
        let soon = || limit(clock::now_ns() + 20_000_000, false);
        let mut names = Resolver::new(resolve);
        let hanging = HANGS.lock().unwrap();
        let whys: Vec<_> = (0..5).map(|_| names.find("a.b", 80, &soon()).unwrap_err()).collect();
        let has = |why: &Failed, what| matches!(why, Failed::Error(text) if text.contains(what));
        assert!(!has(&whys[0], "an earlier look-up hangs"), "{whys:?}");
        assert!(whys[1..].iter().all(|why| has(why, "an earlier look-up hangs")), "{whys:?}");
        assert!(LOOKUPS.load(Ordering::SeqCst) <= 1);
        drop(hanging);
        let found = names.find("a.b", 80, &limit(u64::MAX, false)).unwrap();
        assert_eq!(
            found,
            [SocketAddr::from(([10, 0, 0, 1], 80))],
            "the late answer is not this one's"
        );
        assert_eq!((LOOKUPS.load(Ordering::SeqCst), names.pending.is_none()), (2, true));
    }

    #[test]
    fn reports_a_lookup_whose_thread_panics() {
        let mut names = Resolver::new(|_, _| panic!("on purpose"));
        for _ in 0..2 {
            let why = names.find("a.b", 80, &limit(u64::MAX, false)).unwrap_err();
            assert!(matches!(&why, Failed::Error(text) if text.ends_with("panicked")), "{why:?}");
        }
    }
}
