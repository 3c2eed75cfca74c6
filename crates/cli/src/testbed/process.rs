//! The testbed on this machine: a child process, `ccbench-agent testbed`, that holds all network namespaces. It exits when its
//! standard input closes, so it never outlives the controller, even a killed one.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use ccbench_io::owner::check_state_root;
use ccbench_proto::testbed::Ready;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

use tracing::{info, warn};

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
    /// Its report cannot be read.
    #[error("testbed: cannot read the report of the process: {0}")]
    Read(#[source] std::io::Error),
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
            | Self::Read(_)
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
    /// Comes after the process, which is to end first.
    _dir: StateDir,
    /// The process's report at its start.
    pub ready: Ready,
    /// Receives a line whenever an agent dies.
    pub deaths: tokio::sync::mpsc::Receiver<String>,
}

impl TestbedProcess {
    /// Builds the topology of a resolved plan. `folder` is the name of the folder of its sockets, unique on this machine.
    ///
    /// # Errors
    /// The process cannot be started, or it reports an error.
    #[expect(clippy::disallowed_methods, reason = "starts the agent")]
    pub async fn start(
        plan_toml: &str,
        folder: &str,
        rootless: bool,
    ) -> Result<Self, TestbedError> {
        let path = state_root().join(folder);
        info!(dir = %path.display(), rootless, "build the testbed");
        let dir = StateDir::make(path)?;
        let agent = agent_binary();
        let mut command = Command::new(&agent);
        command.arg("testbed").arg("--dir").arg(&dir.path);
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
        let mut lines = BufReader::new(stdout).lines();
        let ready = match ready(&text, &mut stdin, &mut lines, START_TIMEOUT).await {
            Ok(ready) => ready,
            Err(error) => {
                end(&mut child, stdin).await;
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
        Ok(Self { child, stdin, _dir: dir, ready, deaths })
    }

    /// Ends the process and everything in its namespaces, and waits for it to exit.
    pub async fn stop(mut self) {
        end(&mut self.child, self.stdin).await;
    }
}

/// Sends the request to the process and reads its first line, which reports a testbed or an error. A process that does not read its
/// input would block the request.
async fn ready(
    request: &str,
    stdin: &mut (impl AsyncWrite + Unpin),
    lines: &mut Lines<impl AsyncBufRead + Unpin>,
    limit: Duration,
) -> Result<Ready, TestbedError> {
    let exchange = async {
        // If the write fails, the first line is missing and the child has printed the reason to standard error.
        let _ = stdin.write_all(request.as_bytes()).await;
        lines.next_line().await
    };
    let line = timeout(limit, exchange).await.map_err(|_| TestbedError::Timeout)?;
    let line = line.map_err(TestbedError::Read)?.ok_or(TestbedError::Ended)?;
    let ready: Ready =
        serde_json::from_str(&line).map_err(|source| TestbedError::Report { line, source })?;
    if ready.ready { Ok(ready) } else { Err(TestbedError::Build(ready.error)) }
}

/// Closes the process's input and waits for it to exit. Logs what fails, because the trials are over or the testbed's own error is the
/// one to report.
async fn end(child: &mut Child, stdin: ChildStdin) {
    drop(stdin);
    let ended = match timeout(STOP_TIMEOUT, child.wait()).await {
        Ok(ended) => ended.map(drop),
        Err(_) => child.kill().await,
    };
    if let Err(error) = ended {
        warn!("testbed: cannot end the process: {error}");
    }
}

/// The testbed's directory, which is removed on drop.
struct StateDir {
    path: PathBuf,
    /// Held while this process lives, because `ccbench clean` removes only folders that nobody locks.
    _lock: std::fs::File,
}

impl StateDir {
    /// Creates the directory and locks it.
    fn make(path: PathBuf) -> Result<Self, FileError> {
        use std::os::unix::fs::DirBuilderExt;
        let fail = FileError::io("make the state directory", &path);
        let make = |dir: &Path| {
            let mut builder = std::fs::DirBuilder::new();
            builder.recursive(true).mode(0o700).create(dir).map_err(&fail)
        };
        // `ccbench clean` and other testbeds may remove the folder before it is locked. In that case, create it again.
        for _ in 0..100 {
            if let Some(root) = path.parent() {
                make(root)?;
                check_state_root(root).map_err(&fail)?;
            }
            make(&path)?;
            let Ok(lock) = std::fs::File::open(&path) else { continue };
            rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)
                .map_err(|e| fail(e.into()))?;
            if path.exists() {
                return Ok(Self { path, _lock: lock });
            }
        }
        Err(fail(std::io::ErrorKind::NotFound.into()))
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        match std::fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                let dir = self.path.display();
                warn!("testbed: cannot remove {dir}: {error}; `ccbench clean` removes it");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{duplex, sink};

    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(future)
    }

    #[test]
    fn a_report_that_cannot_be_read_is_no_end_of_the_process() {
        let report = |bytes: &'static [u8]| {
            let mut lines = BufReader::new(bytes).lines();
            block_on(async { ready("", &mut sink(), &mut lines, START_TIMEOUT).await })
        };
        assert!(matches!(report(b""), Err(TestbedError::Ended)));
        // Not UTF-8.
        assert!(matches!(report(b"\xff\n"), Err(TestbedError::Read(_))));
    }

    #[test]
    fn a_state_directory_is_removed_with_its_content() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("testbed");
        let dir = StateDir::make(path.clone()).unwrap();
        std::fs::write(path.join("testbed.json"), "{}").unwrap();
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn a_process_that_does_not_read_its_request_is_not_ready() {
        let (mut stdin, _process) = duplex(1);
        let (_stdout, stdout) = duplex(1);
        let mut lines = BufReader::new(stdout).lines();
        let ready = block_on(async {
            ready("request", &mut stdin, &mut lines, Duration::from_millis(1)).await
        });
        assert!(matches!(ready, Err(TestbedError::Timeout)));
    }
}
