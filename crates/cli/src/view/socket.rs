//! The socket of a run: its name, its subscribers, and how to find and read it.
//!
//! Any process on the machine can connect to an abstract socket or take its name first. The run therefore answers only processes
//! of the same user or of root, and readers trust only sockets that belong to these.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use ccbench_results::journal;
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use tokio::io::AsyncWriteExt as _;
use tokio::net;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::{ViewError, absolute};
use crate::clock;
use crate::live::Live;
use crate::live::update::Update;
use crate::paths::state_root;

/// Time between two updates of a subscriber.
const UPDATE_EVERY: Duration = Duration::from_millis(150);
/// If an update takes long to make, the pause is at least this many times as long. Updates of thousands of flows take
/// milliseconds, and the run waits during a part of that time.
const UPDATE_PAUSE: u32 = 20;
/// A connection on which no bytes pass for this long is stalled: a subscriber that has stopped reading is dropped.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for sending the last update to all subscribers.
const LAST_UPDATE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for the first update of a run that is asked for its directory.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after an error of accept(), such as too many open files.
pub const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of subscribers; others are refused.
const MAX_SUBSCRIBERS: usize = 32;

/// Returns the prefix of the socket names of this user's runs. Tests have their own state directory.
fn prefix() -> String {
    let state = ccbench_proto::plan::digest(&state_root().to_string_lossy());
    format!("ccbench-view/{}/", state.get(..8).unwrap_or_default())
}

/// Returns the socket name of a run with this results directory.
pub fn name(dir: &Path) -> String {
    let digest = ccbench_proto::plan::digest(&absolute(dir).to_string_lossy());
    format!("{}{}", prefix(), digest.get(..16).unwrap_or_default())
}

/// Creates the socket of a run.
///
/// # Errors
/// Another process has this name.
pub fn bind(dir: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name(dir))?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Returns whether the process at the other end belongs to this user or root.
fn is_trusted(stream: impl AsFd) -> bool {
    socket_peercred(stream).is_ok_and(|peer| peer.uid == geteuid() || peer.uid.is_root())
}

/// Sends updates to subscribers until `stop`, and then their last update.
pub async fn serve(listener: net::UnixListener, live: Live, mut stop: watch::Receiver<bool>) {
    let mut subscribers = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = subscribers.join_next() => continue,
            // An error means that the other end is gone, which also stops the server.
            _ = stop.wait_for(|stop| *stop) => break,
        };
        match accepted {
            Ok((stream, _)) if is_trusted(&stream) && subscribers.len() < MAX_SUBSCRIBERS => {
                subscribers.spawn(follow(stream, live.clone()));
            }
            Ok(_) => {}
            Err(error) => {
                warn!("live view: cannot accept a subscriber: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    let last = async { while subscribers.join_next().await.is_some() {} };
    // A subscriber that does not read its last update in time does not get it.
    let _ = timeout(LAST_UPDATE_TIMEOUT, last).await;
}

/// Sends updates to one subscriber until the run has ended or the subscriber is gone.
async fn follow(mut stream: net::UnixStream, live: Live) {
    let mut cursor = None;
    loop {
        let began = clock::now();
        let (update, is_last) = {
            let mut state = live.state();
            let (update, next) = state.update(cursor);
            cursor = Some(next);
            (update, state.has_ended())
        };
        let Ok(mut line) = serde_json::to_vec(&update) else { return };
        line.push(b'\n');
        let pause = UPDATE_EVERY.max(clock::since(began) * UPDATE_PAUSE);
        let sent = timeout(STALL_TIMEOUT, stream.write_all(&line)).await;
        if is_last || !matches!(sent, Ok(Ok(()))) {
            return;
        }
        sleep(pause).await;
    }
}

/// Connects to the socket of this name.
///
/// # Errors
/// There is no such socket, or a process of another user owns it.
pub fn connect(name: &str) -> io::Result<UnixStream> {
    let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    if !is_trusted(&stream) {
        let text = "the run's socket belongs to a process of another user";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(stream)
}

/// Connects to the run in this directory, or without a directory to the only run in progress.
///
/// # Errors
/// There is no such run, or more than one.
pub fn find(dir: Option<&Path>) -> Result<UnixStream, ViewError> {
    if let Some(dir) = dir {
        return connect(&name(dir)).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused if is_written(dir) => {
                ViewError::Elsewhere(dir.to_owned())
            }
            io::ErrorKind::ConnectionRefused => ViewError::NotRunning(dir.to_owned()),
            _ => ViewError::io("connect to the run")(error),
        });
    }
    let mut running: Vec<UnixStream> =
        names().iter().filter_map(|name| connect(name).ok()).collect();
    match (running.pop(), running.is_empty()) {
        (Some(only), true) => Ok(only),
        (None, _) => Err(ViewError::NothingRuns),
        (Some(last), false) => {
            let all = running.into_iter().chain([last]);
            let named = |stream| Some(InProgress::query(String::new(), stream)?.to_string());
            Err(ViewError::Several(all.filter_map(named).collect()))
        }
    }
}

/// Returns whether a process writes to the run in this directory.
pub fn is_written(dir: &Path) -> bool {
    // A journal that cannot be read shows nothing.
    File::open(dir.join(journal::FILE_NAME)).is_ok_and(|file| journal::is_locked(&file))
}

/// Returns the names with this user's prefix on which any process listens.
fn names() -> BTreeSet<String> {
    let (table, prefix) = (std::fs::read_to_string("/proc/net/unix"), prefix());
    let table = table.unwrap_or_default();
    let names = table.lines().filter_map(|line| line.rsplit_once('@').map(|(_, name)| name));
    names.filter(|name| name.starts_with(&prefix)).map(str::to_owned).collect()
}

/// A run of this user in progress on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InProgress {
    /// The name of its socket.
    pub name: String,
    /// The controller's process ID.
    pub pid: i32,
    /// The results directory, as that process names it; `None` if the process does not answer because it is stopped or gets no
    /// CPU time.
    pub directory: Option<String>,
}

impl InProgress {
    /// Asks the run at the other end of its socket. Returns `None` if it has ended.
    fn query(name: String, stream: UnixStream) -> Option<Self> {
        stream.set_read_timeout(Some(REPLY_TIMEOUT)).ok()?;
        let pid = socket_peercred(&stream).ok()?.pid.as_raw_pid();
        let directory = match read_update(stream) {
            Ok(update) if update.run.status.is_none() => Some(update.run.directory),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Ok(_) | Err(_) => return None,
        };
        Some(Self { name, pid, directory })
    }

    /// Returns whether this is the run's results directory.
    pub fn is_in(&self, dir: &Path) -> bool {
        self.name == name(dir)
    }
}

impl std::fmt::Display for InProgress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.directory {
            Some(directory) => f.write_str(directory),
            None => write!(f, "process {}, which does not answer", self.pid),
        }
    }
}

/// Returns the runs in progress, including those that do not answer.
pub fn in_progress() -> Vec<InProgress> {
    let found = names().into_iter().filter_map(|name| {
        let stream = connect(&name).ok()?;
        InProgress::query(name, stream)
    });
    found.collect()
}

/// Returns the first update of a stream.
pub fn first_update(stream: UnixStream) -> Option<Update> {
    read_update(stream).ok()
}

fn read_update(stream: UnixStream) -> io::Result<Update> {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use ccbench_tests::wait_for;
    use tokio::net::UnixListener as Listener;

    use super::*;
    use crate::live::trial::TrialFacts;

    const WAIT: Duration = Duration::from_secs(10);

    /// Serves a state on the socket of its own directory, and lets `client` read from it in another thread.
    fn serve_to<T: Send + 'static>(
        live: &Live,
        client: impl FnOnce(&Path) -> T + Send + 'static,
    ) -> T {
        let dir = tempfile::tempdir().unwrap();
        let listener = bind(dir.path()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (send, stop) = watch::channel(false);
            let served = serve(Listener::from_std(listener).unwrap(), live.clone(), stop);
            let path = dir.path().to_owned();
            let client = async {
                let result = tokio::task::spawn_blocking(move || client(&path)).await.unwrap();
                send.send(true).unwrap();
                result
            };
            tokio::join!(served, client).1
        })
    }

    #[test]
    fn every_subscriber_gets_the_state_and_then_its_end() {
        let live = Live::default();
        live.state().describe("plan", "results/1", 3);
        live.state().start_trial(TrialFacts { number: 1, ..TrialFacts::default() }, None);
        let shared = live.clone();
        let updates = serve_to(&live, move |dir| {
            let first = first_update(find(Some(dir)).unwrap()).unwrap();
            let lines = BufReader::new(find(Some(dir)).unwrap()).lines();
            let mut updates = vec![first];
            for line in lines {
                updates.push(serde_json::from_str(&line.unwrap()).unwrap());
                let mut state = shared.state();
                state.end_trial(1, "ok", vec![]);
                state.end("complete");
            }
            updates
        });
        assert!(updates.len() >= 3, "two subscribers, and the end");
        assert!(updates.iter().all(|update| update.run.trials == 3));
        assert!(updates[..2].iter().all(|update| update.run.running.len() == 1));
        let last = &updates.last().unwrap().run;
        assert_eq!((last.status.as_deref(), last.ended["ok"]), (Some("complete"), 1));
    }

    #[test]
    fn a_subscriber_that_does_not_read_delays_nobody() {
        let live = Live::default();
        // The update is larger than the buffers of a socket.
        let label = "x".repeat(4_000_000);
        live.state().start_trial(TrialFacts { number: 1, label, ..TrialFacts::default() }, None);
        let shared = live.clone();
        serve_to(&live, move |dir| {
            let silent = find(Some(dir)).unwrap();
            assert_eq!(first_update(find(Some(dir)).unwrap()).unwrap().run.running.len(), 1);
            shared.state().end("complete");
            let mut all = String::new();
            find(Some(dir)).unwrap().read_to_string(&mut all).unwrap();
            assert!(all.lines().count() == 1 && all.contains("complete"));
            drop(silent);
        });
    }

    #[test]
    fn a_run_that_does_not_answer_is_in_progress() {
        let dir = tempfile::tempdir().unwrap();
        // The kernel accepts connections for a process that is stopped.
        let _stopped = bind(dir.path()).unwrap();
        let found = in_progress().into_iter().find(|run| run.is_in(dir.path())).unwrap();
        let pid = rustix::process::getpid().as_raw_pid();
        assert_eq!((found.pid, &found.directory), (pid, &None));
        assert_eq!(found.to_string(), format!("process {pid}, which does not answer"));
    }

    #[test]
    fn a_run_that_is_not_in_progress_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = find(Some(dir.path())).unwrap_err();
        assert!(matches!(&error, ViewError::NotRunning(path) if path == dir.path()), "{error}");
        // Its socket would be in another network namespace.
        let written = File::create(dir.path().join(journal::FILE_NAME)).unwrap();
        written.lock().unwrap();
        let error = find(Some(dir.path())).unwrap_err();
        assert!(matches!(&error, ViewError::Elsewhere(_)), "{error}");
        drop(written);
        let listener = bind(dir.path()).unwrap();
        assert!(names().contains(&name(dir.path())));
        assert!(bind(dir.path()).is_err(), "one run has a directory");
        drop(listener);
        // A child process of another test holds a copy of the descriptor until its exec.
        wait_for("the end of the socket", WAIT, || !names().contains(&name(dir.path())));
    }
}
