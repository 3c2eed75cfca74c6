//! The testbed on this machine: a child process, `ccbench-agent testbed`, that holds all namespaces. It and
//! everything in it ends when this process does, however that happens: its standard input is our life line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

use crate::error::CliError;

const START_LIMIT: Duration = Duration::from_secs(20);
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// A running testbed.
pub struct Testbed {
    child: Child,
    life_line: Option<ChildStdin>,
    dir: PathBuf,
    /// Held while this process lives: what distinguishes a folder in use from one left behind.
    _lock: std::fs::File,
    /// What the testbed said about itself.
    pub ready: Ready,
    /// Deaths of agents, as they are noticed.
    pub deaths: tokio::sync::mpsc::Receiver<String>,
}

/// The testbed's first line.
#[derive(Debug, Clone, Deserialize)]
pub struct Ready {
    /// Everything is up.
    pub ready: bool,
    /// Why not.
    #[serde(default)]
    pub error: String,
    /// What is not available, each with its reason.
    #[serde(default)]
    pub notes: Vec<String>,
    /// By node name.
    #[serde(default)]
    pub nodes: BTreeMap<String, ReadyNode>,
}

/// One node of the testbed.
#[derive(Debug, Clone, Deserialize)]
pub struct ReadyNode {
    /// Its agent's socket.
    pub socket: PathBuf,
}

/// Where running experiments of this user keep their sockets: `/run/ccbench` for root.
pub fn state_root() -> PathBuf {
    if let Some(dir) = std::env::var_os("CCBENCH_STATE") {
        return dir.into();
    }
    if rustix::process::geteuid().is_root() {
        return "/run/ccbench".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) => PathBuf::from(dir).join("ccbench"),
        None => {
            std::env::temp_dir().join(format!("ccbench-{}", rustix::process::geteuid().as_raw()))
        }
    }
}

/// The agent's binary: `$CCBENCH_AGENT`, beside this one, or on the PATH.
pub fn agent_binary() -> PathBuf {
    if let Some(path) = std::env::var_os("CCBENCH_AGENT") {
        return path.into();
    }
    let beside = std::env::current_exe().ok().map(|exe| exe.with_file_name("ccbench-agent"));
    beside.filter(|path| path.exists()).unwrap_or_else(|| "ccbench-agent".into())
}

impl Testbed {
    /// Builds the topology of a resolved plan. `id` names the experiment (its sockets' folder).
    ///
    /// # Errors
    /// What the testbed said, or that it could not be started at all.
    pub async fn start(plan_toml: &str, id: &str, rootless: bool) -> Result<Self, CliError> {
        let dir = state_root().join(id);
        let lock = make_private_dir(&dir)?;
        let agent = agent_binary();
        let mut command = Command::new(&agent);
        command.arg("testbed").arg("--dir").arg(&dir);
        if rootless {
            command.arg("--rootless");
        }
        // The experiment must not end with a Ctrl-C that the terminal sends to the whole group: the
        // controller ends it in order.
        command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| {
            CliError::Testbed(format!(
                "cannot start {}: {e}; build it (`make`) or name it with CCBENCH_AGENT",
                agent.display()
            ))
        })?;
        let (Some(mut life_line), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(CliError::Testbed("its pipes are gone".into()));
        };
        let text = format!("{plan_toml}\n---END---\n");
        // A failed write shows as a missing first line, with the child's own words on standard error.
        let _ = life_line.write_all(text.as_bytes()).await;
        let mut lines = BufReader::new(stdout).lines();
        let first = timeout(START_LIMIT, lines.next_line())
            .await
            .map_err(|_| CliError::Testbed(format!("not ready after {} s", START_LIMIT.as_secs())))?
            .ok()
            .flatten()
            .ok_or_else(|| CliError::Testbed("it ended before it was ready".into()))?;
        let ready: Ready = serde_json::from_str(&first)
            .map_err(|e| CliError::Testbed(format!("unreadable answer {first:?}: {e}")))?;
        if !ready.ready {
            let _ = timeout(STOP_LIMIT, child.wait()).await;
            let _ = std::fs::remove_dir_all(&dir);
            return Err(CliError::Testbed(ready.error));
        }
        let (report, deaths) = tokio::sync::mpsc::channel(64);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                if report.send(line).await.is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, life_line: Some(life_line), dir, _lock: lock, ready, deaths })
    }

    /// Ends everything in it and waits until it is gone.
    pub async fn stop(mut self) {
        drop(self.life_line.take());
        if timeout(STOP_LIMIT, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Makes the folder and locks it.
fn make_private_dir(dir: &Path) -> Result<std::fs::File, CliError> {
    use std::os::unix::fs::DirBuilderExt;
    let fail =
        |source| CliError::File { op: "make the state folder", path: dir.to_owned(), source };
    // A sweep may remove the folder between making and locking it: then make it again.
    for _ in 0..3 {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(fail)?;
        let Ok(lock) = std::fs::File::open(dir) else { continue };
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)
            .map_err(|e| fail(e.into()))?;
        if dir.exists() {
            return Ok(lock);
        }
    }
    Err(fail(std::io::ErrorKind::NotFound.into()))
}

/// The folders of experiments that are running now, newest last.
pub fn running() -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = std::fs::read_dir(state_root())
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join("testbed.json").exists())
        .collect();
    dirs.sort();
    dirs
}
