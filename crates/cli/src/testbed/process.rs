//! The testbed on this machine: a child process, `ccbench-agent testbed`, that holds all network namespaces. It exits when its
//! standard input closes, so it never outlives the controller, even a killed one.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use ccbench_proto::testbed::Ready;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use tracing::info;

use crate::exit::ExitCode;
use crate::file::FileError;
use crate::paths::{agent_binary, state_root};

const START_TIMEOUT: Duration = Duration::from_secs(20);
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the testbed cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// Its process cannot be started.
    #[error("testbed: cannot start {}: {source}; build it (`make`) or set CCBENCH_AGENT to its path", path.display())]
    Start {
        /// The agent's binary.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Its process was started without pipes.
    #[error("testbed: the process has no pipes")]
    NoPipes,
    /// Its process did not report within the limit.
    #[error("testbed: the process was not ready after {} s", START_TIMEOUT.as_secs())]
    Timeout,
    /// Its process ended before it reported.
    #[error("testbed: the process ended before it was ready")]
    Ended,
    /// Its report cannot be parsed.
    #[error("testbed: unreadable report {line:?}: {source}")]
    Report {
        /// The report.
        line: String,
        /// Why.
        source: serde_json::Error,
    },
    /// Its process reported this error.
    #[error("testbed: {0}")]
    Build(String),
    /// The testbed's folder cannot be created.
    #[error(transparent)]
    File(#[from] FileError),
}

impl TestbedError {
    /// Returns the process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Start { .. }
            | Self::NoPipes
            | Self::Timeout
            | Self::Ended
            | Self::Report { .. }
            | Self::Build(_) => ExitCode::Unavailable,
            Self::File(_) => ExitCode::Failure,
        }
    }
}

/// A running testbed.
pub struct TestbedProcess {
    child: Child,
    /// Closing it ends the process.
    stdin: ChildStdin,
    dir: PathBuf,
    /// Held while this process lives, because `ccbench clean` removes only folders that nobody locks.
    _lock: std::fs::File,
    /// The process's report at its start.
    pub ready: Ready,
    /// Receives a line whenever an agent dies.
    pub deaths: tokio::sync::mpsc::Receiver<String>,
}

impl TestbedProcess {
    /// Builds the topology of a resolved plan. `id` identifies the experiment and the folder of its sockets.
    ///
    /// # Errors
    /// The process cannot be started, or it reports an error.
    #[expect(clippy::disallowed_methods, reason = "starts the agent")]
    pub async fn start(plan_toml: &str, id: &str, rootless: bool) -> Result<Self, TestbedError> {
        let dir = state_root().join(id);
        info!(dir = %dir.display(), rootless, "build the testbed");
        let lock = make_private_dir(&dir)?;
        let agent = agent_binary();
        let mut command = Command::new(&agent);
        command.arg("testbed").arg("--dir").arg(&dir);
        if rootless {
            command.arg("--rootless");
        }
        // Uses its own process group, so that the terminal sends Ctrl-C only to the controller, which then ends the run in an
        // orderly way.
        command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child =
            command.spawn().map_err(|source| TestbedError::Start { path: agent, source })?;
        let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(TestbedError::NoPipes);
        };
        let text = ccbench_proto::testbed::request(plan_toml);
        // If the write fails, the first line is missing and the child has printed the reason to standard error.
        let _ = stdin.write_all(text.as_bytes()).await;
        let mut lines = BufReader::new(stdout).lines();
        let ready = match ready(&mut lines).await {
            Ok(ready) => ready,
            Err(error) => {
                end(&mut child, stdin, &dir).await;
                return Err(error);
            }
        };
        let (report, deaths) = tokio::sync::mpsc::channel(64);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                if report.send(line).await.is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, stdin, dir, _lock: lock, ready, deaths })
    }

    /// Ends the process and everything in its namespaces, and waits for it to exit.
    pub async fn stop(mut self) {
        end(&mut self.child, self.stdin, &self.dir).await;
    }
}

/// Reads the first line of the process, which reports a testbed or an error.
async fn ready(lines: &mut Lines<BufReader<ChildStdout>>) -> Result<Ready, TestbedError> {
    let line =
        timeout(START_TIMEOUT, lines.next_line()).await.map_err(|_| TestbedError::Timeout)?;
    let line = line.ok().flatten().ok_or(TestbedError::Ended)?;
    let ready: Ready =
        serde_json::from_str(&line).map_err(|source| TestbedError::Report { line, source })?;
    if ready.ready { Ok(ready) } else { Err(TestbedError::Build(ready.error)) }
}

/// Closes the process's input, waits for it to exit, and removes its directory.
async fn end(child: &mut Child, stdin: ChildStdin, dir: &Path) {
    drop(stdin);
    if timeout(STOP_TIMEOUT, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
    let _ = std::fs::remove_dir_all(dir);
}

/// Creates the folder and locks it.
fn make_private_dir(dir: &Path) -> Result<std::fs::File, FileError> {
    use std::os::unix::fs::DirBuilderExt;
    let fail = FileError::of("make the state directory", dir);
    // `ccbench clean` and other testbeds may remove the folder before it is locked. In that case, create it again.
    for _ in 0..100 {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(&fail)?;
        let Ok(lock) = std::fs::File::open(dir) else { continue };
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)
            .map_err(|e| fail(e.into()))?;
        if dir.exists() {
            return Ok(lock);
        }
    }
    Err(fail(std::io::ErrorKind::NotFound.into()))
}
