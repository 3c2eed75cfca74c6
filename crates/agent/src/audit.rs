//! The audit log: one JSON object per line for accepted and refused RPCs, refused connections, and every change to the
//! machine. A thread writes it, so that no request waits for the disk. Entries that do not fit into its queue are counted.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use ccbench_proto::scope::Rpc;
use serde::Serialize;
use tonic::{Code, Request, Status};

use crate::clock;
use crate::control_interface::Peer;
use crate::identity::Identity;
use crate::undo::outcome::Outcome;

mod limits;

use limits::{Calls, Limits, Unlogged};

/// The log's name in the state directory.
pub const FILE: &str = "audit.ndjson";
/// Limit of entries that wait for the thread.
const QUEUE: usize = 1024;
/// How many older files are kept. `audit.ndjson.1` is the newest of them.
const KEPT_FILES: u32 = 4;
/// Equal calls in a row within this time become one entry.
const HOLD: Duration = Duration::from_nanos(HOLD_NS);
const HOLD_NS: u64 = 1_000_000_000;
/// How long the agent waits for the thread when it ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// The wait for room in the queue: attempts after the first, and the time between two.
const FLUSH_RETRIES: u32 = 200;
const FLUSH_RETRY: Duration = Duration::from_millis(10);
/// The result of an accepted call.
const ACCEPTED: &str = "Ok";
/// Limit of a text from a client in an entry, in bytes.
const MAX_TEXT_BYTES: usize = 1024;

/// The error if the audit log cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("open the audit log {}: {source}", .path.display())]
pub struct AuditError {
    /// The file.
    pub path: PathBuf,
    /// The system's answer.
    pub source: io::Error,
}

/// Writes the audit log. Without a file it does nothing. Clones share the file.
#[derive(Debug, Clone, Default)]
pub struct Audit(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    inbox: SyncSender<Message>,
    lost: Arc<AtomicU64>,
    /// The trial that the machine is changed for.
    trial: Mutex<Trial>,
}

/// The trial that holds the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
struct Trial {
    run_id: String,
    identity: String,
    serial: String,
}

#[derive(Debug)]
enum Message {
    Entry(Entry),
    Flush(SyncSender<()>),
}

/// A log line before it is formatted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    realtime_ns: i64,
    event: AuditEvent,
}

/// What a line records; its key `event` names the variant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum AuditEvent {
    /// The agent began to listen.
    Start { agent_version: &'static str },
    /// A call of an RPC.
    Rpc(Call),
    /// Calls that have no entry of their own: refused or failed ones of any RPC, or accepted ones of one RPC.
    Calls {
        #[serde(skip_serializing_if = "Option::is_none")]
        rpc: Option<&'static str>,
        identity: String,
        serial: String,
        result: &'static str,
        calls: u64,
    },
    /// A refused connection.
    Connection { peer: String, result: &'static str, message: String },
    /// Refused connections that have no entry of their own.
    Connections { result: &'static str, connections: u64 },
    /// A change that is about to be made.
    Change {
        #[serde(flatten)]
        trial: Trial,
        change: String,
    },
    /// A client resets the trial of another client.
    Reset {
        #[serde(flatten)]
        trial: Trial,
        by: String,
        by_serial: String,
    },
    /// Changes that were undone, and those that could not be.
    Undo {
        #[serde(flatten)]
        trial: Trial,
        undone: Vec<String>,
        failed: Vec<String>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        dropped: Vec<String>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Call {
    rpc: &'static str,
    scope: &'static str,
    identity: String,
    serial: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
    /// `Ok`, or the name of the gRPC status.
    result: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    run_id: String,
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    #[serde(flatten)]
    event: &'a AuditEvent,
    /// Number of equal calls that this entry stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<u64>,
    /// Number of entries lost since the agent's start.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<u64>,
}

/// The run that a request belongs to; the request's handler sets it.
#[derive(Debug, Clone, Default)]
pub struct RunId(Arc<OnceLock<String>>);

/// Notes the run of a request for its audit entry.
pub fn note_run<T>(request: &Request<T>, run_id: &str) {
    if let Some(noted) = request.extensions().get::<RunId>() {
        // The first run noted counts.
        let _ = noted.0.set(short(run_id));
    }
}

impl Call {
    fn new(
        rpc: &'static str,
        scope: &'static str,
        code: Code,
        client: &Identity,
        peer: Option<Peer>,
    ) -> Self {
        Self {
            rpc,
            scope,
            identity: short(&client.name),
            serial: client.serial.clone(),
            peer: peer.map(|peer| peer.ip.to_string()),
            result: name_of(code),
            message: String::new(),
            run_id: String::new(),
        }
    }
}

fn name_of(code: Code) -> String {
    format!("{code:?}")
}

/// A call whose result is not known yet. Dropping it records that the client did not wait for the result.
#[derive(Debug)]
pub struct PendingCall {
    audit: Audit,
    call: Option<Call>,
    run_id: RunId,
}

impl PendingCall {
    /// Registers a call that has arrived from `client`, over a network if `peer` is set.
    pub fn new(
        audit: Audit,
        rpc: Rpc,
        client: &Identity,
        peer: Option<Peer>,
        run_id: RunId,
    ) -> Self {
        let new = || Call::new(rpc.name(), rpc.scope().name(), Code::Cancelled, client, peer);
        let call = audit.is_open().then(new);
        Self { audit, call, run_id }
    }

    /// Records the result of the call: its status if it was refused or failed.
    pub fn finish(mut self, status: Option<&Status>) {
        if let Some(call) = &mut self.call {
            call.result = name_of(status.map_or(Code::Ok, Status::code));
            call.message = status.map(|status| short(status.message())).unwrap_or_default();
        }
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if let Some(mut call) = self.call.take() {
            call.run_id = self.run_id.0.get().cloned().unwrap_or_default();
            self.audit.record(AuditEvent::Rpc(call));
        }
    }
}

impl Audit {
    /// Appends to a file that only the agent's user may read. A file larger than `max_bytes` is renamed, and a new one started.
    ///
    /// # Errors
    /// The file or the thread cannot be created.
    pub fn open(path: &Path, max_bytes: u64) -> Result<Self, AuditError> {
        let audit = Self::append_to(path, max_bytes)?;
        audit.record(AuditEvent::Start { agent_version: env!("CARGO_PKG_VERSION") });
        Ok(audit)
    }

    /// Appends to the file that a dead agent kept in its state directory, whatever its size. Without a file it does nothing.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread cannot be created.
    pub fn of_dead_agent(state_dir: &Path) -> Result<Self, AuditError> {
        let path = state_dir.join(FILE);
        if path.exists() { Self::append_to(&path, u64::MAX) } else { Ok(Self::default()) }
    }

    fn append_to(path: &Path, max_bytes: u64) -> Result<Self, AuditError> {
        let failed = |source| AuditError { path: path.to_owned(), source };
        let file = LogFile::open(path, max_bytes).map_err(failed)?;
        let (inbox, entries) = sync_channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&lost);
        let thread = std::thread::Builder::new().name("audit".to_owned());
        let writer = move || Writer::new(file, counted).run(&entries);
        thread.spawn(writer).map_err(failed)?;
        Ok(Self(Some(Arc::new(Shared { inbox, lost, trial: Mutex::default() }))))
    }

    fn is_open(&self) -> bool {
        self.0.is_some()
    }

    fn record(&self, event: AuditEvent) {
        let Some(shared) = &self.0 else { return };
        let (_, realtime_ns) = clock::now_both_ns();
        if shared.inbox.try_send(Message::Entry(Entry { realtime_ns, event })).is_err() {
            shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Attributes changes of the machine to this run of this client from now on.
    pub fn set_trial(&self, run_id: &str, client: Option<&Identity>) {
        let Some(shared) = &self.0 else { return };
        let (identity, serial) =
            client.map(|client| (short(&client.name), client.serial.clone())).unwrap_or_default();
        let trial = Trial { run_id: short(run_id), identity, serial };
        *shared.trial.lock().unwrap_or_else(PoisonError::into_inner) = trial;
    }

    fn trial(&self) -> Trial {
        match &self.0 {
            Some(shared) => shared.trial.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            None => Trial::default(),
        }
    }

    /// Records a change of the machine that is about to be made.
    pub fn change(&self, change: impl std::fmt::Display) {
        if self.is_open() {
            self.record(AuditEvent::Change { trial: self.trial(), change: change.to_string() });
        }
    }

    /// Records that this client resets the trial of another one.
    pub fn reset_by_other(&self, by: &Identity) {
        if self.is_open() {
            let (by, by_serial) = (short(&by.name), by.serial.clone());
            self.record(AuditEvent::Reset { trial: self.trial(), by, by_serial });
        }
    }

    /// Records what was undone.
    pub fn undone(&self, outcome: &Outcome) {
        if self.is_open() && *outcome != Outcome::default() {
            let Outcome { undone, failed, dropped } = outcome.clone();
            self.record(AuditEvent::Undo { trial: self.trial(), undone, failed, dropped });
        }
    }

    /// Records a call of an RPC that this agent does not have.
    pub fn unknown_rpc(&self, path: &str, status: &Status, client: &Identity, peer: Option<Peer>) {
        if self.is_open() {
            let call = Call::new("unknown", "", status.code(), client, peer);
            self.record(AuditEvent::Rpc(Call { message: short(path), ..call }));
        }
    }

    /// Records a refused connection.
    pub fn refused(&self, peer: &str, why: &str) {
        let (peer, message) = (peer.to_owned(), short(why));
        self.record(AuditEvent::Connection { peer, result: "refused", message });
    }

    /// Records how many more connections were refused.
    pub fn refused_more(&self, connections: u64) {
        self.record(AuditEvent::Connections { result: "refused", connections });
    }

    /// Waits until earlier records are in the file: at most 2 s for room in the queue and 2 s for the file.
    pub fn flush(&self) {
        self.flush_with(FLUSH_RETRIES, || std::thread::sleep(FLUSH_RETRY));
    }

    fn flush_with(&self, retries: u32, pause: impl Fn()) {
        let Some(shared) = &self.0 else { return };
        let (done, wait) = sync_channel(1);
        let mut message = Message::Flush(done);
        for _ in 0..=retries {
            match shared.inbox.try_send(message) {
                Ok(()) => {
                    if wait.recv_timeout(FLUSH_TIMEOUT).is_err() {
                        tracing::error!(
                            "flush the audit log: no answer; its last entries may be missing"
                        );
                    }
                    return;
                }
                Err(TrySendError::Full(returned)) => message = returned,
                Err(TrySendError::Disconnected(_)) => return,
            }
            pause();
        }
        tracing::error!(
            "flush the audit log: its queue stays full; its last entries may be missing"
        );
    }
}

/// Returns the beginning of a client's text.
fn short(text: &str) -> String {
    let end = (0..=MAX_TEXT_BYTES).rev().find(|&end| text.is_char_boundary(end));
    match text.get(..end.unwrap_or(0)) {
        Some(beginning) if text.len() > MAX_TEXT_BYTES => format!("{beginning}…"),
        _ => text.to_owned(),
    }
}

/// The thread that writes the log.
struct Writer {
    file: LogFile,
    lost: Arc<AtomicU64>,
    /// An entry that waits for equal ones, and how many there were.
    held: Option<(Entry, u64)>,
    limits: Limits,
}

impl Writer {
    fn new(file: LogFile, lost: Arc<AtomicU64>) -> Self {
        Self { file, lost, held: None, limits: Limits::default() }
    }

    /// Writes until the last sender is gone.
    fn run(mut self, entries: &Receiver<Message>) {
        loop {
            let next = match self.held.is_some() || self.limits.has_unlogged() {
                true => entries.recv_timeout(HOLD),
                false => entries.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match next {
                Ok(Message::Entry(entry)) => self.take(entry),
                Ok(Message::Flush(done)) => {
                    self.write_all();
                    // The requester may have given up.
                    let _ = done.try_send(());
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.write_held();
                    let (_, realtime_ns) = clock::now_both_ns();
                    self.end_limits(realtime_ns);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.write_all();
                    return;
                }
            }
        }
    }

    fn take(&mut self, entry: Entry) {
        self.end_limits(entry.realtime_ns);
        // Also checked here, because calls without a line of their own can arrive for a long time.
        let is_over = |held: &Entry| entry.realtime_ns.abs_diff(held.realtime_ns) >= HOLD_NS;
        if self.held.as_ref().is_some_and(|(held, _)| is_over(held)) {
            self.write_held();
        }
        if let Some((held, calls)) = &mut self.held
            && held.event == entry.event
        {
            *calls += 1;
            return;
        }
        if let AuditEvent::Rpc(call) = &entry.event
            && !self.limits.add(call, entry.realtime_ns)
        {
            return;
        }
        self.write_held();
        if entry.is_repeated() {
            self.held = Some((entry, 1));
        } else {
            self.write(&entry, 1);
        }
    }

    fn write_all(&mut self) {
        self.write_held();
        let (_, realtime_ns) = clock::now_both_ns();
        for unlogged in self.limits.take() {
            self.write(&Entry::from_unlogged(unlogged, realtime_ns), 1);
        }
    }

    fn end_limits(&mut self, realtime_ns: i64) {
        for unlogged in self.limits.end(realtime_ns) {
            self.write(&Entry::from_unlogged(unlogged, realtime_ns), 1);
        }
    }

    fn write_held(&mut self) {
        if let Some((entry, calls)) = self.held.take() {
            self.write(&entry, calls);
        }
    }

    fn write(&mut self, entry: &Entry, calls: u64) {
        let lost = self.lost.load(Ordering::Relaxed);
        let line = entry.line(calls, lost);
        if let Err(error) = self.file.append(&line) {
            self.lost.fetch_add(calls, Ordering::Relaxed);
            // Report only the first loss: while the disk is full, every entry fails.
            if lost == 0 {
                tracing::error!(%error, path = %self.file.path.display(), "write the audit log");
            }
        }
    }
}

impl Entry {
    fn from_unlogged(Unlogged { of, calls }: Unlogged, realtime_ns: i64) -> Self {
        let Calls { identity, serial, accepted: rpc } = of;
        let result = if rpc.is_some() { ACCEPTED } else { "refused" };
        let event = AuditEvent::Calls { rpc, identity, serial, result, calls };
        Self { realtime_ns, event }
    }

    /// Whether this is an accepted read of the clock: a controller makes 64 in a row.
    fn is_repeated(&self) -> bool {
        let is_read = |call: &Call| call.rpc == Rpc::Clock.name() && call.result == ACCEPTED;
        matches!(&self.event, AuditEvent::Rpc(call) if is_read(call))
    }

    fn line(&self, calls: u64, lost: u64) -> String {
        let time = jiff::Timestamp::from_nanosecond(i128::from(self.realtime_ns));
        let line = Line {
            // Always nine digits, so that the texts sort by time.
            time: time.map(|time| format!("{time:.9}")).unwrap_or_default(),
            event: &self.event,
            calls: (calls > 1).then_some(calls),
            lost: (lost > 0).then_some(lost),
        };
        // Structures of strings and numbers always serialize.
        serde_json::to_string(&line).unwrap_or_default() + "\n"
    }
}

/// An append-only file of limited size.
#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    max_bytes: u64,
    /// The last line may be incomplete, because writing it failed.
    is_torn: bool,
}

impl LogFile {
    fn open(path: &Path, max_bytes: u64) -> io::Result<Self> {
        let mut open = OpenOptions::new();
        let file = open.create(true).read(true).append(true).mode(0o600).open(path)?;
        let bytes = file.metadata()?.len();
        let mut last = *b"\n";
        if let Some(at) = bytes.checked_sub(1) {
            file.read_exact_at(&mut last, at)?;
        }
        Ok(Self { path: path.to_owned(), file, bytes, max_bytes, is_torn: last != *b"\n" })
    }

    fn append(&mut self, line: &str) -> io::Result<()> {
        let length = line.len() as u64;
        if self.bytes > 0 && self.bytes + length > self.max_bytes {
            self.rotate()?;
        }
        if self.is_torn {
            self.file.write_all(b"\n")?;
        }
        let written = self.file.write_all(line.as_bytes());
        self.is_torn = written.is_err();
        self.bytes += length;
        written
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        for number in (1..=KEPT_FILES).rev() {
            let from = if number == 1 { self.path.clone() } else { self.numbered(number - 1) };
            match std::fs::rename(from, self.numbered(number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        *self = Self::open(&self.path, self.max_bytes)?;
        Ok(())
    }

    fn numbered(&self, number: u32) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(format!(".{number}"));
        path.into()
    }
}

#[cfg(test)]
mod tests;
