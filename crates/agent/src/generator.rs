//! `ccbench-agent generate`: one end of a flow group, ccbench's own traffic generator.
//!
//! Each connection has a thread that blocks in a `send` or `recv` of many segments, so the arrival of a packet or an
//! acknowledgement wakes no process. iperf3 makes about 13 system calls per packet; this generator makes about one per
//! 90 packets. That matters where system calls are expensive, as in the lab's engine `uml`.
//!
//! The report has the format of iperf3's `--json-stream`, with one more field, `monotonic_ns` in `start`. Counts come
//! from `TCP_INFO` at the end of every interval.

use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use ccbench_proto::wire::FlowSample;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::clock;

mod report;
mod streams;

use report::Reporter;
use streams::{Reading, Streams};

/// Both ends of a connection, and a sample of its socket for each interval.
#[doc(hidden)]
pub type Connection = (SocketAddr, SocketAddr, Vec<FlowSample>);

/// For fuzzing: returns the report of connections whose sockets have these samples, one for each interval.
#[doc(hidden)]
pub fn report_lines(
    connections: &[Connection],
    ends: (bool, bool),
    zero_ns: u64,
    interval_ns: u64,
) -> Vec<String> {
    use report::{Addresses, Counters};
    let addresses = connections.iter().map(|(local, remote, _)| (*local, *remote));
    let addresses = addresses.map(|(local, remote)| Addresses { local, remote }).collect();
    let mut reporter = Reporter::new(addresses, ends, zero_ns);
    let mut lines = vec![reporter.start()];
    let intervals = connections.iter().map(|(.., samples)| samples.len()).max().unwrap_or(0);
    let mut at_ns = zero_ns;
    for number in 0..intervals {
        at_ns = at_ns.saturating_add(interval_ns);
        let sample = |samples: &[ccbench_proto::wire::FlowSample]| {
            Counters::new(samples.get(number).cloned().unwrap_or_default(), 0)
        };
        let counters: Vec<_> = connections.iter().map(|(.., all)| sample(all)).collect();
        lines.push(reporter.interval(&counters, at_ns));
        if number + 1 == intervals {
            lines.push(reporter.end(&counters, None, at_ns));
        }
    }
    lines
}

/// `ccbench-agent generate`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Address of the listening end
    #[arg(long, value_name = "ADDRESS")]
    pub server: IpAddr,
    /// Port of the listening end
    #[arg(long, value_name = "PORT")]
    pub server_port: u16,
    /// Connect from this address; without it, listen
    #[arg(long, value_name = "ADDRESS")]
    pub client: Option<IpAddr>,
    /// Connection i comes from port PORT + i
    #[arg(long, value_name = "PORT")]
    pub client_port: u16,
    /// Number of connections
    #[arg(long, value_name = "N", default_value = "1")]
    pub count: u32,
    /// The listening end sends
    #[arg(long)]
    pub reverse: bool,
    /// Congestion control of this end's sockets, set before the handshake; for the end that sends
    #[arg(long, value_name = "NAME")]
    pub cc: Option<String>,
    /// Send at this rate per connection, in bits per second; without it, as fast as possible
    #[arg(long, value_name = "BPS")]
    pub rate_bps: Option<NonZeroU64>,
    /// Send this many bytes per connection; without it, no end. Connections stay open
    #[arg(long, value_name = "BYTES")]
    pub bytes: Option<NonZeroU64>,
    /// Pause this long after the start, in microseconds
    #[arg(long, value_name = "US", requires = "pause_us")]
    pub pause_after_us: Option<u64>,
    /// Duration of the pause, in microseconds
    #[arg(long, value_name = "US", requires = "pause_after_us")]
    pub pause_us: Option<u64>,
    /// Time from the beginning of one pause to that of the next, in microseconds; without it, one pause
    #[arg(long, value_name = "US", requires = "pause_us")]
    pub pause_every_us: Option<u64>,
    /// Write this many bytes at once
    #[arg(long, value_name = "BYTES", default_value = "131072")]
    pub block_bytes: NonZeroU64,
    /// Microseconds between reports
    #[arg(long, value_name = "US", default_value = "100000")]
    pub interval_us: NonZeroU64,
}

impl Args {
    fn listens(&self) -> bool {
        self.client.is_none()
    }

    fn sends(&self) -> bool {
        self.listens() == self.reverse
    }
}

/// Runs this end until the peer closes all connections, or until SIGINT or SIGTERM, which abort them: the peer gets a
/// RST, and the data in the send buffer is discarded. Always returns the exit code 1, as it never ends on its own.
pub fn main(args: &Args) -> u8 {
    if let Err(error) = run(args) {
        // If this fails as well, nobody is left to read it.
        let _ = print(&report::error(&error.to_string()));
    }
    1
}

/// Why this end could not run.
#[derive(Debug, thiserror::Error)]
enum GenerateError {
    /// A system call failed.
    #[error("{op}: {source}")]
    System { op: String, source: io::Error },
    /// Signals could not be received.
    #[error("receive signals: {0}")]
    Signals(#[from] nix::Error),
}

impl GenerateError {
    fn system<E: Into<io::Error>>(op: impl Into<String>) -> impl FnOnce(E) -> Self {
        let op = op.into();
        move |source| Self::System { op, source: source.into() }
    }
}

/// What ended a wait.
enum Wake {
    Deadline,
    Signal,
    StreamsEnded,
}

fn run(args: &Args) -> Result<(), GenerateError> {
    // Blocks the signals before any thread exists, so that only the descriptor receives them.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block()?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)?;
    let ended =
        eventfd(0, EventfdFlags::CLOEXEC).map_err(GenerateError::system("make an eventfd"))?;

    let Some(connections) = streams::connect(args, signals.as_fd())? else { return Ok(()) };
    let zero_ns = clock::now_ns();
    let addresses = connections.iter().map(|connection| connection.addresses).collect();
    let mut reporter = Reporter::new(addresses, (args.listens(), args.sends()), zero_ns);
    print(&reporter.start())?;
    let streams = Streams::start(args, connections, zero_ns, Arc::new(ended))?;

    let interval_ns = args.interval_us.get().saturating_mul(1000);
    let mut deadline_ns = clock::next_due_ns(zero_ns, interval_ns, zero_ns);
    let interrupted = loop {
        match wait(&signals, &streams, deadline_ns)? {
            Wake::Deadline => {
                let Reading { at_ns, counters } = streams.read()?;
                print(&reporter.interval(&counters, at_ns))?;
                // Merge missed intervals into one.
                deadline_ns = clock::next_due_ns(deadline_ns, interval_ns, at_ns);
            }
            Wake::Signal => break true,
            Wake::StreamsEnded => break false,
        }
    };
    let Reading { at_ns, counters } = streams.read()?;
    print(&reporter.interval(&counters, at_ns))?;
    print(&reporter.end(&counters, streams.congestion_control().as_deref(), at_ns))?;
    if interrupted {
        return print(&report::error("interrupt - the client has terminated"));
    }
    // The connecting end closes the connections when it stops, so a listening end usually ends this way.
    let error = streams.error().unwrap_or_else(|| "the other end has terminated".to_owned());
    print(&report::error(&error))
}

fn wait(signals: &SignalFd, streams: &Streams, deadline_ns: u64) -> Result<Wake, GenerateError> {
    loop {
        let left = Duration::from_nanos(deadline_ns.saturating_sub(clock::now_ns()));
        if left.is_zero() {
            return Ok(Wake::Deadline);
        }
        let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        let mut fds = [
            PollFd::new(signals, PollFlags::IN),
            PollFd::from_borrowed_fd(streams.ended(), PollFlags::IN),
        ];
        match poll(&mut fds, Some(&left)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(GenerateError::system("wait")(error)),
        }
        if !fds[0].revents().is_empty() {
            return Ok(Wake::Signal);
        }
        if !fds[1].revents().is_empty() && streams.all_ended() {
            return Ok(Wake::StreamsEnded);
        }
    }
}

fn print(line: &str) -> Result<(), GenerateError> {
    let mut out = io::stdout().lock();
    // One write, so that a reader never sees half a line after a crash.
    out.write_all(format!("{line}\n").as_bytes())
        .and_then(|()| out.flush())
        .map_err(GenerateError::system("write the report"))
}
