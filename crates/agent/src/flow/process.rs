//! Traffic as processes: iperf3 or ccbench's own generator. They start through `ccbench-agent launch`, so that they die
//! with the agent. Their output is read continuously.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use ccbench_proto::plan::Tool;
use ccbench_proto::schedule::FlowTask;
use ccbench_proto::wire::Side;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::sync::OnceCell;

use ccbench_proto::tools::iperf3::{Numbering, Report};

use super::document::MAX_LINE_BYTES;
use super::generator;
use super::iperf3::{Version, client_args, server_args};
use super::{BoxFuture, FlowEndpoint, FlowOutput, FlowSource, Progress, Stop, Traffic};
use crate::clock;
use crate::error::{AgentError, ListenError};
use crate::listening;

const MAX_ERRORS_BYTES: usize = 4 << 10;
/// From the start of a server. Servers start together, so they end the wait together, before the controller stops waiting for
/// Prepare (15 s). Nothing is measured yet, so a busy machine may take its time.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(8);
/// How long to wait for the pipes after a process's end: a stray descendant may hold one open.
const PIPE_TIMEOUT: Duration = Duration::from_millis(500);

/// The programs that generate traffic. The version of iperf3 is queried when it is first needed.
#[derive(Debug, Default)]
pub struct Generators {
    iperf3: OnceCell<Version>,
    group: Option<PathBuf>,
}

impl Generators {
    /// Starts every process in this control group, which must exist by then; without one, in the agent's.
    pub fn in_group(group: Option<PathBuf>) -> Self {
        Self { group, ..Self::default() }
    }

    /// Returns the installed version of iperf3, queried once and within 8 s.
    ///
    /// # Errors
    /// iperf3 is not installed, or prints no version.
    pub async fn iperf3_version(&self) -> Result<Version, AgentError> {
        self.iperf3.get_or_try_init(ask_version).await.copied()
    }
}

/// Whether a process without CAP_NET_ADMIN may set this congestion control.
fn is_allowed(cc: &str) -> bool {
    let allowed = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
    allowed.is_ok_and(|allowed| allowed.split_whitespace().any(|one| one == cc))
}

#[expect(clippy::disallowed_methods, reason = "starts iperf3")]
async fn ask_version() -> Result<Version, AgentError> {
    let asked =
        Command::new("iperf3").arg("--version").stdin(Stdio::null()).kill_on_drop(true).output();
    let no = |source| AgentError::NoIperf3 { source };
    let output = tokio::time::timeout(LISTEN_TIMEOUT, asked)
        .await
        .map_err(|_| no(std::io::ErrorKind::TimedOut.into()))?
        .map_err(no)?;
    Version::parse(&String::from_utf8_lossy(&output.stdout))
        .ok_or_else(|| no(std::io::Error::other("it does not print its version")))
}

impl FlowSource for Generators {
    fn find(&self, tool: Tool) -> BoxFuture<'_, Result<(), AgentError>> {
        Box::pin(async move {
            match tool {
                Tool::Iperf3 => self.iperf3_version().await.map(drop),
                Tool::Ccbench => Ok(()),
            }
        })
    }

    fn version(&self, tool: Tool) -> String {
        match (tool, self.iperf3.get()) {
            (Tool::Iperf3, Some(version)) => format!("iperf3 {version}"),
            (Tool::Iperf3, None) => "iperf3".to_owned(),
            (Tool::Ccbench, _) => concat!("ccbench ", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "starts ccbench-agent as traffic generator")]
    fn start(&self, task: &FlowTask, end: FlowEndpoint) -> Result<Box<dyn Traffic>, AgentError> {
        let agent =
            std::env::current_exe().map_err(AgentError::system("find this program's file"))?;
        let no_iperf3 = |source| AgentError::NoIperf3 { source };
        let by_iperf3 = task.plan.tool() == Tool::Iperf3;
        let (program, args, by_line) = match task.plan.tool() {
            Tool::Ccbench => (agent.clone(), generator::args(task, end), true),
            Tool::Iperf3 => {
                let &version = self.iperf3.get().ok_or_else(|| {
                    no_iperf3(std::io::Error::other("its version is not known yet"))
                })?;
                let args = match end {
                    FlowEndpoint::Client => client_args(task, version),
                    FlowEndpoint::Server => server_args(task, version),
                };
                (PathBuf::from("iperf3"), args, version.has_json_stream())
            }
        };
        let mut command = Command::new(agent);
        command.args(["launch", "--unprivileged", "--parent", &std::process::id().to_string()]);
        if let Some(group) = &self.group {
            command.arg("--cgroup").arg(group);
        }
        let cc = task.plan.cc.as_deref().filter(|_| end.side(task) == Side::Sender || by_iperf3);
        if cc.is_some_and(|cc| !is_allowed(cc)) {
            command.arg("--net-admin");
        }
        // Its own process group, so that only the agent handles a Ctrl-C at its terminal.
        let mut child = command
            .arg("--")
            .arg(program)
            .args(&args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(no_iperf3)?;
        Ok(Box::new(Process {
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            child,
            end: FlowOutput::default(),
            status: None,
            lines: by_line.then(Lines::default),
            listens_on: (end == FlowEndpoint::Server).then_some(task.server_port),
            started_ns: clock::now_ns(),
        }))
    }
}

struct Process {
    child: Child,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    end: FlowOutput,
    status: Option<ExitStatus>,
    /// The lines that were not taken yet, if it writes lines.
    lines: Option<Lines>,
    /// The port of a server.
    listens_on: Option<u16>,
    /// Of the agent's clock.
    started_ns: u64,
}

enum Read {
    Output(Vec<u8>),
    Errors(Vec<u8>),
    Exit(ExitStatus),
    Late,
}

impl Process {
    async fn read(&mut self) -> Read {
        let exited = self.status.is_some();
        tokio::select! {
            bytes = chunk(self.stdout.as_mut()), if self.stdout.is_some() => Read::Output(bytes),
            bytes = chunk(self.stderr.as_mut()), if self.stderr.is_some() => Read::Errors(bytes),
            status = self.child.wait(), if !exited => match status {
                Ok(status) => Read::Exit(status),
                Err(_) => Read::Late,
            },
            () = tokio::time::sleep(PIPE_TIMEOUT), if exited => Read::Late,
        }
    }

    async fn progress(&mut self) -> Progress {
        loop {
            if let Some(line) = self.lines.as_mut().and_then(Lines::take) {
                return Progress::Line { at_ns: clock::now_ns(), line };
            }
            let open = self.stdout.is_some() || self.stderr.is_some();
            if !open && self.status.is_some() {
                return Progress::Ended(self.ended());
            }
            match self.read().await {
                Read::Output(bytes) if bytes.is_empty() => self.stdout = None,
                Read::Output(bytes) => self.keep(&bytes),
                Read::Errors(bytes) if bytes.is_empty() => self.stderr = None,
                Read::Errors(bytes) => {
                    let text = String::from_utf8_lossy(&bytes);
                    let room = MAX_ERRORS_BYTES.saturating_sub(self.end.errors.len());
                    self.end.errors.extend(text.chars().take(room));
                }
                Read::Exit(status) => self.status = Some(status),
                Read::Late => return Progress::Ended(self.ended()),
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.end.output.keep(bytes);
        if let Some(lines) = &mut self.lines {
            lines.add(bytes);
        }
    }

    fn ended(&mut self) -> FlowOutput {
        use std::os::unix::process::ExitStatusExt as _;
        let mut end = std::mem::take(&mut self.end);
        end.exit_code =
            self.status.map_or(-1, |s| s.code().or(s.signal().map(|n| -n)).unwrap_or(-1));
        end
    }
}

/// Output that is read line by line.
#[derive(Debug, Default)]
struct Lines {
    /// Bytes that were not taken yet.
    bytes: Vec<u8>,
    /// How many of them contain no end of a line.
    searched: usize,
    /// Whether the beginning of the line was dropped: it is longer than a line may be.
    is_too_long: bool,
}

impl Lines {
    fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next complete line without its end; an empty one if it was too long.
    fn take(&mut self) -> Option<Vec<u8>> {
        let Some(at) = self.bytes[self.searched..].iter().position(|&byte| byte == b'\n') else {
            self.searched = self.bytes.len();
            if self.searched > MAX_LINE_BYTES {
                (self.bytes, self.searched, self.is_too_long) = (Vec::new(), 0, true);
            }
            return None;
        };
        let rest = self.bytes.split_off(self.searched + at + 1);
        let mut line = std::mem::replace(&mut self.bytes, rest);
        self.searched = 0;
        line.pop();
        if std::mem::take(&mut self.is_too_long) {
            line.clear();
        }
        Some(line)
    }
}

/// Returns the next bytes; none at the end of the stream.
async fn chunk(stream: Option<&mut (impl AsyncRead + Unpin)>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 << 10);
    if let Some(stream) = stream {
        // An error on a pipe to our own child is treated as its end.
        drop(stream.read_buf(&mut bytes).await);
    }
    bytes
}

impl Traffic for Process {
    fn listening(&mut self) -> BoxFuture<'_, Result<(), ListenError>> {
        Box::pin(async {
            let Some(port) = self.listens_on else { return Ok(()) };
            let deadline_ns = self.started_ns + LISTEN_TIMEOUT.as_nanos() as u64;
            loop {
                if let Ok(Some(_)) = self.child.try_wait() {
                    return Err(self.listen_error().await);
                }
                if self.child.id().is_some_and(|pid| listening::listens(pid, port)) {
                    return Ok(());
                }
                if clock::now_ns() > deadline_ns {
                    return Err(ListenError::Timeout { limit: LISTEN_TIMEOUT });
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
    }

    fn next(&mut self) -> BoxFuture<'_, Progress> {
        Box::pin(self.progress())
    }

    fn stop(&mut self, how: Stop) {
        let signal = match how {
            Stop::Interrupt => Signal::SIGINT,
            Stop::Terminate => Signal::SIGTERM,
            Stop::Kill => Signal::SIGKILL,
        };
        // The kernel does not reuse the pid before the child has been waited for.
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            let _ = nix::sys::signal::kill(Pid::from_raw(pid), signal);
        }
    }
}

impl Process {
    /// Reads the output to its end, and returns why the process does not listen.
    async fn listen_error(&mut self) -> ListenError {
        loop {
            if let Progress::Ended(mut end) = self.progress().await {
                let numbering = Numbering { client_port: 0, count: 0, listens: true };
                let error = Report::from_json(&end.output.beginning(), numbering).error;
                let message = error.unwrap_or_else(|| end.errors.trim().to_owned());
                return ListenError::Ended { exit_code: end.exit_code, message };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_arrive_in_pieces_and_a_long_one_is_dropped() {
        let mut lines = Lines::default();
        let (mut found, long) = (Vec::new(), "x".repeat(MAX_LINE_BYTES));
        for piece in ["a", "b\n", "\nc\nd", long.as_str(), "e", "\nf\n", "g"] {
            lines.add(piece.as_bytes());
            found.extend(std::iter::from_fn(|| lines.take()));
            assert!(lines.bytes.len() <= MAX_LINE_BYTES, "{} bytes", lines.bytes.len());
        }
        assert_eq!(found, [&b"ab"[..], b"", b"c", b"", b"f"]);
        assert_eq!(lines.bytes, b"g");
    }
}
