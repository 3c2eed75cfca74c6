//! Probes as processes. What answers or measures a probe receives data from the network, so it runs as an unprivileged user without
//! capabilities, as traffic does. The agent opens the sockets, because some need its privileges (ICMP, large buffers, congestion
//! controls), and hands each to a process as its standard input. A process that measures writes its rows to standard output.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ccbench_io::console::message;
use ccbench_proto::plan::{self, ProbeKind};
use ccbench_proto::schedule::ProbeTask;
use ccbench_proto::wire;
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, BufReader};
use tokio::net::unix::pipe;

use super::tcp::{self, Deadline};
use super::{ping, serve, stream};
use crate::clock;

/// From the start of a server. Servers of probes and of flows start together, so they end the wait together, before the controller stops
/// waiting for Prepare (15 s). Nothing is measured yet, so a busy machine may take its time.
const START_TIMEOUT: Duration = Duration::from_secs(8);
/// From the end of the trial: a process waits for late replies, and writes its end.
const END_TIMEOUT_NS: u64 = ping::LINGER_NS + 2_000_000_000;
/// Limit of a frame's contents, which come from a process without privileges.
const MAX_FRAME_BYTES: usize = 64 << 10;

// A frame has a kind, the length of its contents (four bytes, big-endian), and its contents.
/// The process runs: its CLOCK_MONOTONIC in nanoseconds (eight bytes, big-endian).
const BEGAN: u8 = b'b';
/// A row, encoded as `Probe` of `agent.proto`.
const ROW: u8 = b'r';
/// The end: the number of unfinished measurements (eight bytes, big-endian).
const END: u8 = b'n';
/// The end, for this reason.
const FAILURE: u8 = b'f';

/// `ccbench-agent probe`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Name of the probe
    #[arg(long, value_name = "NAME")]
    pub id: String,
    /// Its keys in the plan, as JSON
    #[arg(long, value_name = "JSON", value_parser = parse_plan)]
    pub plan: plan::Probe,
    /// Address of the node that answers
    #[arg(long, value_name = "ADDRESS")]
    pub to: IpAddr,
    /// The listener's port; 0 for a ping
    #[arg(long, value_name = "PORT")]
    pub port: u16,
    /// Measure from this time on (CLOCK_MONOTONIC, in nanoseconds); without it, answer
    #[arg(long, value_name = "NS", requires = "end_ns")]
    pub start_ns: Option<u64>,
    /// Measure until this time (CLOCK_MONOTONIC, in nanoseconds)
    #[arg(long, value_name = "NS", requires = "start_ns")]
    pub end_ns: Option<u64>,
}

fn parse_plan(json: &str) -> Result<plan::Probe, serde_json::Error> {
    serde_json::from_str(json)
}

/// Answers or measures a probe, in a process that the agent has started. Returns the exit code.
pub fn main(args: &Args) -> u8 {
    let task =
        ProbeTask { id: args.id.clone(), plan: args.plan.clone(), to_ip: args.to, port: args.port };
    let done = match (args.start_ns, args.end_ns) {
        (Some(start_at_ns), Some(end_at_ns)) => write_rows(&task, start_at_ns, end_at_ns),
        _ => answer_on_stdin(&task),
    };
    match done {
        Ok(()) => 0,
        Err(error) => {
            message(format_args!("ccbench-agent: probe {}: {error}", task.id));
            1
        }
    }
}

fn stdin_socket() -> io::Result<OwnedFd> {
    io::stdin().as_fd().try_clone_to_owned()
}

/// Answers until this process is killed.
fn answer_on_stdin(task: &ProbeTask) -> io::Result<()> {
    let socket = stdin_socket()?;
    // The agent waits for one byte.
    let mut out = io::stdout();
    out.write_all(b".")?;
    out.flush()?;
    serve::answer(socket, task, &Arc::new(AtomicBool::new(false)));
    Ok(())
}

fn write_rows(task: &ProbeTask, start_at_ns: u64, end_at_ns: u64) -> io::Result<()> {
    let mut out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    out.write_all(&frame(BEGAN, &clock::now_ns().to_be_bytes()))?;
    let mut rows = out.try_clone()?;
    let mut emit = move |row: wire::Probe| {
        // An agent that reads no rows any more has ended or kills this process.
        let _ = rows.write_all(&frame(ROW, &row.encode_to_vec()));
    };
    let end = match measure_here(task, start_at_ns, end_at_ns, &mut emit) {
        Ok(unfinished) => frame(END, &(unfinished as u64).to_be_bytes()),
        Err(error) => frame(FAILURE, error.to_string().as_bytes()),
    };
    out.write_all(&end)
}

fn measure_here(
    task: &ProbeTask,
    start_at_ns: u64,
    end_at_ns: u64,
    emit: &mut (dyn FnMut(wire::Probe) + Send),
) -> io::Result<usize> {
    let deadline = Deadline { at_ns: end_at_ns, stop: Arc::default() };
    match task.plan.kind {
        ProbeKind::TcpConnect | ProbeKind::Http => {
            Ok(usize::from(tcp::run(task, start_at_ns, &deadline, emit)))
        }
        ProbeKind::UdpStream => {
            let socket = UdpSocket::from(stdin_socket()?);
            stream::receive(&socket, task, start_at_ns, &deadline, emit);
            Ok(0)
        }
        ProbeKind::Ping | ProbeKind::Udp => {
            let socket = stdin_socket()?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(ping::probe(socket, task, start_at_ns, end_at_ns, emit))
        }
    }
}

/// Encodes a frame. The contents are our own rows and messages, which are far shorter than 4 GiB.
fn frame(kind: u8, contents: &[u8]) -> Vec<u8> {
    let length = u32::try_from(contents.len()).unwrap_or(u32::MAX);
    [&[kind][..], &length.to_be_bytes(), contents].concat()
}

/// Returns the command that becomes the probe's process in a control group; with a span, one that measures. It dies with the agent, in
/// whose log its messages appear.
#[expect(clippy::disallowed_methods, reason = "starts ccbench-agent for a probe")]
fn command(
    task: &ProbeTask,
    group: Option<&Path>,
    span_ns: Option<(u64, u64)>,
) -> io::Result<Command> {
    let agent = std::env::current_exe()?;
    let mut command = Command::new(&agent);
    command.args(["launch", "--unprivileged", "--parent", &std::process::id().to_string()]);
    if let Some(group) = group {
        command.arg("--cgroup").arg(group);
    }
    command.arg("--").arg(agent).args(words(task, span_ns)?);
    // Its own process group, so that only the agent handles a Ctrl-C at its terminal.
    command.process_group(0).stdout(Stdio::piped());
    Ok(command)
}

/// Returns the arguments of `ccbench-agent`.
fn words(task: &ProbeTask, span_ns: Option<(u64, u64)>) -> io::Result<Vec<String>> {
    let mut words = vec![
        "probe".to_owned(),
        format!("--id={}", task.id),
        format!("--plan={}", serde_json::to_string(&task.plan)?),
        format!("--to={}", task.to_ip),
        format!("--port={}", task.port),
    ];
    if let Some((start_ns, end_ns)) = span_ns {
        words.extend([format!("--start-ns={start_ns}"), format!("--end-ns={end_ns}")]);
    }
    Ok(words)
}

/// The process that answers a probe. Dropping it kills the process.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// When the process must answer (CLOCK_MONOTONIC).
    answers_by_ns: u64,
}

impl Drop for Server {
    /// Waits for the process's end, after which its port and its congestion control are free.
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the process that answers a probe on a socket of [`serve::open`], in this control group; without one, in the agent's. Call this on
/// a thread that stays: the process dies with it.
///
/// # Errors
/// The process cannot be started.
pub fn answer(task: &ProbeTask, socket: OwnedFd, group: Option<&Path>) -> io::Result<Server> {
    let child = command(task, group, None)?.stdin(Stdio::from(socket)).spawn()?;
    Ok(Server { child, answers_by_ns: clock::now_ns() + START_TIMEOUT.as_nanos() as u64 })
}

impl Server {
    /// Resolves when the process answers, within 8 s of its start.
    ///
    /// # Errors
    /// The process has ended, or takes too long.
    pub async fn started(&mut self) -> Result<(), ProcessError> {
        let Some(stdout) = self.child.stdout.take() else { return Ok(()) };
        let mut ready = pipe::Receiver::from_owned_fd(OwnedFd::from(stdout))
            .map_err(ProcessError::system("read from it"))?;
        let mut byte = [0];
        let left = clock::until(self.answers_by_ns);
        match tokio::time::timeout(left, ready.read_exact(&mut byte)).await {
            Ok(Ok(_)) => Ok(()),
            Err(_) => Err(ProcessError::Late),
            Ok(Err(_)) => {
                // A process that only closed its output must not delay the agent.
                let _ = self.child.kill();
                let status = self.child.wait().map_err(ProcessError::system("wait for it"))?;
                Err(ProcessError::Ended { status })
            }
        }
    }

    /// Returns how the process has ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        // This fails only for a process that somebody else has waited for.
        self.child.try_wait().ok().flatten()
    }
}

/// Why a probe's process failed.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// A system call failed.
    #[error("{op}: {source}")]
    System {
        /// The operation.
        op: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The process did not start in time.
    #[error("its process did not start within {} s", START_TIMEOUT.as_secs())]
    Late,
    /// The process still ran long after the trial.
    #[error("its process did not end within {} s of the trial's end", END_TIMEOUT_NS / 1_000_000_000)]
    Endless,
    /// The process ended early.
    #[error("its process ended early ({status}); the agent's log has its messages")]
    Ended {
        /// How it ended.
        status: ExitStatus,
    },
    /// The process closed its output early or wrote something else than rows.
    #[error("its process wrote no complete rows (a bug in ccbench): {0}")]
    Malformed(String),
    /// The process could not measure.
    #[error("{0}")]
    Failed(String),
}

impl ProcessError {
    fn system(op: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { op, source }
    }
}

/// What a process has measured, besides its rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// Measurements that were unfinished at the end of the trial.
    pub unfinished: usize,
    /// When the process began to run (CLOCK_MONOTONIC); `None` if it has not reported it.
    pub began_at_ns: Option<u64>,
}

impl Measured {
    /// Returns by how many nanoseconds the process missed the probe's start, if it did, for a trial that started at this time.
    pub fn late_ns(&self, task: &ProbeTask, start_at_ns: u64) -> Option<u64> {
        let due_ns = start_at_ns.saturating_add(task.plan.start.nanos());
        self.began_at_ns?.checked_sub(due_ns).filter(|&late_ns| late_ns > 0)
    }
}

/// Measures in a process of its own from `start_at_ns` to `end_at_ns` (CLOCK_MONOTONIC), in this control group; without one, in the agent's.
/// Hands each row to `emit` at once. Returns after the process has ended; with nothing if `cancelled` resolves first, which kills the
/// process. Call this on a thread that stays: the process dies with it.
///
/// # Errors
/// A socket cannot be opened, or the process failed or did not end.
pub async fn measure(
    task: &ProbeTask,
    group: Option<&Path>,
    (start_at_ns, end_at_ns): (u64, u64),
    cancelled: impl Future<Output = ()>,
    emit: &mut (dyn FnMut(wire::Probe) + Send),
) -> Result<Measured, ProcessError> {
    let socket = open(task).map_err(ProcessError::system("open a socket"))?;
    let command = command(task, group, Some((start_at_ns, end_at_ns)));
    let started = command.and_then(|command| {
        // Closes the agent's own descriptor of the socket, too.
        let mut command = tokio::process::Command::from(command);
        command.stdin(socket.map_or_else(Stdio::null, Stdio::from)).kill_on_drop(true).spawn()
    });
    let mut child = started.map_err(ProcessError::system("start its process"))?;
    let Some(rows) = child.stdout.take() else {
        return Err(ProcessError::Malformed("it has no standard output".to_owned()));
    };
    let mut rows = BufReader::new(rows);
    let read = tokio::select! {
        read = read_rows(&mut rows, &task.id, emit) => read,
        () = cancelled => Ok(Some(Measured::default())),
        () = clock::sleep_until(end_at_ns.saturating_add(END_TIMEOUT_NS)) => Err(ProcessError::Endless),
    };
    // It has nothing left to do. An exit code that it has already does not change.
    let _ = child.start_kill();
    let status = child.wait().await.map_err(ProcessError::system("wait for it"))?;
    read?.ok_or(ProcessError::Ended { status })
}

/// Opens the socket with which a probe measures. Those of connections are opened for each, and need no privilege.
fn open(task: &ProbeTask) -> io::Result<Option<OwnedFd>> {
    match task.plan.kind {
        ProbeKind::TcpConnect | ProbeKind::Http => Ok(None),
        ProbeKind::UdpStream => Ok(Some(stream::open(task)?.into())),
        ProbeKind::Ping | ProbeKind::Udp => ping::open(task).map(Some),
    }
}

/// Reads rows until the process says that it has measured; `None` if it ends without that.
async fn read_rows(
    from: &mut (impl AsyncRead + Unpin + Send),
    id: &str,
    emit: &mut (dyn FnMut(wire::Probe) + Send),
) -> Result<Option<Measured>, ProcessError> {
    let number = |contents: Vec<u8>| <[u8; 8]>::try_from(contents).ok().map(u64::from_be_bytes);
    let mut began_at_ns = None;
    loop {
        let (kind, contents) = match read_frame(from).await {
            Ok(frame) => frame,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(ProcessError::Malformed(error.to_string())),
        };
        match kind {
            BEGAN => match number(contents) {
                Some(at_ns) => began_at_ns = Some(at_ns),
                None => return Err(ProcessError::Malformed("its start has no time".to_owned())),
            },
            ROW => {
                let row = wire::Probe::decode(&contents[..])
                    .map_err(|error| ProcessError::Malformed(error.to_string()))?;
                // A process has only the rows of its own probe.
                emit(wire::Probe { probe_id: id.to_owned(), ..row });
            }
            END => {
                let count = number(contents).and_then(|count| usize::try_from(count).ok());
                return match count {
                    Some(unfinished) => Ok(Some(Measured { unfinished, began_at_ns })),
                    None => Err(ProcessError::Malformed("its end has no number".to_owned())),
                };
            }
            FAILURE => {
                let why = String::from_utf8_lossy(&contents).into_owned();
                return Err(ProcessError::Failed(why));
            }
            other => {
                return Err(ProcessError::Malformed(format!("a frame has the kind {other}")));
            }
        }
    }
}

async fn read_frame(from: &mut (impl AsyncRead + Unpin + Send)) -> io::Result<(u8, Vec<u8>)> {
    let kind = from.read_u8().await?;
    let length = from.read_u32().await? as usize;
    if length > MAX_FRAME_BYTES {
        return Err(io::Error::other(format!("a frame has {length} bytes")));
    }
    let mut contents = vec![0; length];
    from.read_exact(&mut contents).await?;
    Ok((kind, contents))
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::Repeat;
    use ccbench_proto::units::{Micros, Rate};
    use clap::Parser as _;

    use super::*;
    use crate::args;
    use crate::probe::serve::tests::task;

    impl Server {
        /// Returns a process that answers nothing, as if it had to answer by this time (CLOCK_MONOTONIC).
        #[expect(clippy::disallowed_methods, reason = "a test starts cat")]
        pub(crate) fn mute(answers_by_ns: u64) -> Self {
            let mut command = Command::new("cat");
            let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            Self { child, answers_by_ns }
        }

        /// Kills the process, as the kernel does when memory runs out.
        pub(crate) fn kill(&mut self) {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }

    #[test]
    fn the_command_line_takes_every_kind_of_probe() {
        use ProbeKind::{Http, Ping, TcpConnect, Udp, UdpStream};
        for kind in [Ping, Udp, TcpConnect, Http, UdpStream] {
            let mut task = task(kind, 6400, Repeat::BackToBack);
            (task.id, task.plan.tos) = ("-x".to_owned(), 3);
            task.plan.rate = Some(Rate::from_bits_per_sec(12_000_000));
            task.plan.host = Some("a.example".to_owned());
            for span_ns in [None, Some((7, u64::MAX))] {
                let line = std::iter::once("ccbench-agent".to_owned());
                let line = line.chain(words(&task, span_ns).unwrap());
                let parsed = match args::Cli::try_parse_from(line).unwrap().command {
                    args::Command::Probe(args) => *args,
                    other => panic!("{other:?}"),
                };
                assert_eq!((&parsed.id, &parsed.plan), (&task.id, &task.plan));
                assert_eq!((parsed.to, parsed.port), (task.to_ip, task.port));
                assert_eq!(parsed.start_ns.zip(parsed.end_ns), span_ns);
            }
        }
    }

    #[tokio::test]
    async fn a_server_has_its_time_from_its_start() {
        // By now, servers of flows have taken all of it.
        let mut server = Server::mute(clock::now_ns());
        assert!(matches!(server.started().await, Err(ProcessError::Late)));
        assert_eq!(server.ended(), None);
    }

    #[test]
    fn a_process_that_begins_after_the_start_of_its_probe_is_late() {
        let mut task = task(ProbeKind::Ping, 0, Repeat::Interval);
        task.plan.start = Micros::new(2);
        let late_ns = |began_at_ns| Measured { unfinished: 0, began_at_ns }.late_ns(&task, 1_000);
        assert_eq!([None, Some(900), Some(3_000)].map(late_ns), [None; 3]);
        assert_eq!(late_ns(Some(3_001)), Some(1));
    }

    async fn read(bytes: &[u8]) -> (Vec<wire::Probe>, Result<Option<Measured>, ProcessError>) {
        let mut rows = vec![];
        let end = read_rows(&mut &*bytes, "page", &mut |row| rows.push(row)).await;
        (rows, end)
    }

    #[tokio::test]
    async fn rows_arrive_as_they_were_written_under_the_name_of_their_probe() {
        let row = |probe_id: &str| wire::Probe {
            probe_id: probe_id.to_owned(),
            seq: 3,
            rtt_us: Some(0.5),
            ..wire::Probe::default()
        };
        let other = frame(ROW, &row("other").encode_to_vec());
        let end = frame(END, &2u64.to_be_bytes());
        let began = frame(BEGAN, &7u64.to_be_bytes());
        let (rows, done) = read(&[&began[..], &other, &end].concat()).await;
        assert_eq!(rows, [row("page")]);
        assert_eq!(done.unwrap(), Some(Measured { unfinished: 2, began_at_ns: Some(7) }));
        let (rows, done) = read(&[&other[..], &frame(FAILURE, b"why")].concat()).await;
        assert_eq!(rows.len(), 1);
        assert_eq!(done.unwrap_err().to_string(), "why");
    }

    #[tokio::test]
    async fn what_is_no_row_is_an_error() {
        let end = frame(END, &2u64.to_be_bytes());
        for cut in 0..end.len() {
            assert_eq!(read(&end[..cut]).await.1.unwrap(), None, "{cut}");
        }
        let too_long = [&[ROW][..], &u32::MAX.to_be_bytes()].concat();
        for wrong in [
            too_long,
            frame(b'?', b""),
            frame(ROW, &[0xff; 3]),
            frame(BEGAN, b""),
            frame(END, &[0; 7]),
        ] {
            let (rows, end) = read(&wrong).await;
            assert!(rows.is_empty() && matches!(end, Err(ProcessError::Malformed(_))), "{wrong:?}");
        }
    }
}
