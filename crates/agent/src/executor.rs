//! Performs the session's actions and owns the current trial. One task handles one request at a time. A running trial
//! is a separate task, which a reset, the loss of the controller or the agent's end cancels.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ccbench_collector::{KeptAwakeBy, Sampler};
use ccbench_proto::event::{Kind, NoData};
use ccbench_proto::wire::{self, run_event::Payload};
use ccbench_shaper::Link;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::accept::ConnectionHandle;
use crate::blocking;
use crate::boot_loader::Boot;
use crate::clock;
use crate::error::AgentError;
use crate::event::event;
use crate::files::{self, Contents, Files};
use crate::flow::FlowSource;
use crate::interfaces::Interfaces;
use crate::probe::ping::LINGER_NS;
use crate::session::{Action, Command, NodeSession};
use crate::sockets::allowed::AllowedModules;
use crate::sockets::supplied::AllowedDigests;
use crate::sockets::verify;
use crate::testbed::identity::boot_id;
use crate::undo::Undo;

mod acks;
mod boot;
mod captures;
mod choices;
mod clock_steps;
mod generation;
mod ipv6;
mod modules;
mod offloads;
mod outbox;
mod prepare;
mod pulse;
mod read;
mod report;
mod reserve;
mod reset;
mod rows;
mod run;
mod samples;
mod scopes;
mod sending;
mod settings;
mod start;
mod timed_link;
mod traffic;
mod undo_trial;

use acks::AckThread;
pub use acks::OpenAcks;
use captures::Captures;
pub use generation::GenerationFile;
use outbox::Outbox;
pub use outbox::Outgoing;
use prepare::{PrepareContext, Trial};
pub use pulse::Pulse;
#[doc(hidden)]
pub use read::task_of;
use reserve::Reserve;
use samples::{SampleTask, SamplerThread};
use sending::{LastRows, Sending};
use start::{check_start, start_late};
use timed_link::TimedLink;

/// How long the node waits for a reset after a trial's end before it resets itself. Another node may still be waiting
/// for echo replies that cross this node's links.
const ENDED_LEASE_NS: u64 = LINGER_NS + 2_000_000_000;
/// Minimum lease.
const MIN_LEASE_MS: u32 = 100;
/// How long a cancelled trial may take to kill its processes.
const GIVE_UP_TIMEOUT: Duration = Duration::from_secs(3);

/// Dependencies of the executor; tests use fakes.
pub struct Dependencies {
    /// The machine's interfaces.
    pub interfaces: Arc<dyn Interfaces>,
    /// Starts traffic.
    pub source: Arc<dyn FlowSource>,
    /// Makes a sampler of TCP sockets.
    pub sampler: fn() -> Box<dyn Sampler>,
    /// Watches acknowledgements.
    pub acks: OpenAcks,
    /// Records how to undo each change.
    pub undo: Undo,
    /// The file that keeps the generation across restarts, if any.
    pub generation_file: Option<GenerationFile>,
    /// The folder of the journals of congestion controls.
    pub cc_journals: PathBuf,
    /// The control group of a trial's traffic, created and removed with the trial.
    pub traffic_group: Option<PathBuf>,
    /// The users' congestion controls that may be loaded.
    pub cc_digests: AllowedDigests,
    /// The kernel modules that may be loaded.
    pub modules: AllowedModules,
    /// Boots other kernels; `None` if the agent may not reboot its machine.
    pub boot: Option<Boot>,
}

/// Sends requests to the executor.
#[derive(Debug, Clone)]
pub struct Handle {
    requests: mpsc::Sender<ExecutorRequest>,
    status: watch::Receiver<NodeStatus>,
    files: Files,
}

/// The state of a node between trials.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeStatus {
    /// Number of Prepares accepted.
    pub generation: u64,
    /// The run of the last Prepare.
    pub last_run_id: String,
    /// Changes that could not be undone; until they are, the node accepts no trial.
    pub not_undone: Vec<String>,
    /// The last running trial that another client's reset ended: its generation, and who ended it.
    pub reset_by_other: Option<(u64, String)>,
}

type Responder<T> = oneshot::Sender<Result<T, AgentError>>;

#[derive(Debug)]
enum ExecutorRequest {
    Check(Box<wire::PrepareRequest>, Option<ConnectionHandle>, Responder<()>),
    Prepare(Box<wire::PrepareRequest>, Option<ConnectionHandle>, Responder<wire::PrepareReply>),
    Run(wire::RunRequest, Option<u64>, Responder<mpsc::Receiver<Outgoing>>),
    Reset(wire::ResetRequest, Option<ConnectionHandle>, Responder<wire::ResetReply>),
    Reboot(wire::RebootRequest, Option<ConnectionHandle>, Responder<wire::RebootReply>),
    Ping(oneshot::Sender<()>),
}

impl Handle {
    async fn ask<T>(
        &self,
        request: impl FnOnce(Responder<T>) -> ExecutorRequest,
    ) -> Result<T, AgentError> {
        let (answer, wait) = oneshot::channel();
        self.requests.send(request(answer)).await.map_err(|_| AgentError::Stopping)?;
        wait.await.map_err(|_| AgentError::Stopping)?
    }

    /// Checks whether the node would refuse a trial, without changing anything; the kernel may load the module of a congestion control.
    ///
    /// # Errors
    /// The reason for which it would refuse.
    pub async fn check(
        &self,
        request: wire::PrepareRequest,
        controller: Option<ConnectionHandle>,
    ) -> Result<(), AgentError> {
        self.ask(|answer| ExecutorRequest::Check(Box::new(request), controller, answer)).await
    }

    /// Makes the node ready for a trial. If `controller` disconnects before the trial starts, everything is undone.
    ///
    /// # Errors
    /// A step failed; everything done before it is undone.
    pub async fn prepare(
        &self,
        request: wire::PrepareRequest,
        controller: Option<ConnectionHandle>,
    ) -> Result<wire::PrepareReply, AgentError> {
        self.ask(|answer| ExecutorRequest::Prepare(Box::new(request), controller, answer)).await
    }

    /// Starts the trial that this connection prepared, and returns the channel of its rows.
    ///
    /// # Errors
    /// Nothing is prepared, another trial is, or another connection prepared it.
    pub async fn run(
        &self,
        request: wire::RunRequest,
        connection: Option<u64>,
    ) -> Result<mpsc::Receiver<Outgoing>, AgentError> {
        self.ask(|answer| ExecutorRequest::Run(request, connection, answer)).await
    }

    /// Returns the files that controllers have sent.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Returns the state of the node between trials.
    pub fn status(&self) -> NodeStatus {
        self.status.borrow().clone()
    }
}

/// Starts the executor on the current runtime. It undoes everything and ends when its last handle is dropped.
pub fn spawn(deps: Dependencies) -> Handle {
    let (requests, inbox) = mpsc::channel(8);
    let (generation, last_run_id) =
        deps.generation_file.as_ref().map(GenerationFile::read).unwrap_or_default();
    let status = NodeStatus { generation, last_run_id, ..NodeStatus::default() };
    let (send_status, status) = watch::channel(status);
    let files = Files::default();
    let mut executor = Executor::new(deps, files.clone(), send_status);
    executor.undo_left();
    tokio::spawn(executor.serve(inbox));
    Handle { requests, status, files }
}

/// A running trial.
struct Running {
    timeline: JoinHandle<()>,
    sampler: SamplerThread,
    acks: Option<AckThread>,
    out: Outbox,
    cancel: watch::Sender<bool>,
    captures: Captures,
    /// Keeps the CPUs from halting, if the plan requests it.
    _awake: Option<Box<dyn Send>>,
}

struct Executor {
    deps: Dependencies,
    reserve: Reserve,
    files: Files,
    status: watch::Sender<NodeStatus>,
    session: NodeSession,
    trial: Trial,
    /// CLOCK_BOOTTIME: a suspended machine does not extend its lease.
    lease_end_ns: Option<u64>,
    /// The connection that prepared the trial.
    controller: Option<ConnectionHandle>,
    /// The name of the client that prepared the trial, if it came over a connection.
    prepared_by: Option<String>,
    after_run_ns: u64,
    running: Option<Running>,
    /// The transfer of the files of a trial whose timeline is over.
    sending: Option<Sending>,
}

enum Wake {
    Request(Option<ExecutorRequest>),
    Lease,
    Ended { broken: bool },
    Sent,
    ControllerLost,
}

impl Executor {
    fn new(deps: Dependencies, files: Files, status: watch::Sender<NodeStatus>) -> Self {
        let generation = status.borrow().generation;
        let boot_id = boot_id().unwrap_or_default();
        Self {
            deps,
            reserve: Reserve::take(),
            files,
            status,
            session: NodeSession { generation, boot_id, ..NodeSession::default() },
            trial: Trial::default(),
            lease_end_ns: None,
            controller: None,
            prepared_by: None,
            after_run_ns: ENDED_LEASE_NS,
            running: None,
            sending: None,
        }
    }

    /// Handles requests until the last handle is dropped; then undoes everything.
    async fn serve(mut self, mut inbox: mpsc::Receiver<ExecutorRequest>) {
        loop {
            match self.wake(&mut inbox).await {
                Wake::Request(Some(request)) => self.apply(request).await,
                Wake::Request(None) => {
                    self.undo().await;
                    return;
                }
                Wake::Ended { broken } => self.ended(broken).await,
                Wake::Sent => self.sent(),
                Wake::Lease => self.lost("the lease ended without a request").await,
                Wake::ControllerLost => self.lost("the controller is gone").await,
            }
        }
    }

    async fn wake(&mut self, inbox: &mut mpsc::Receiver<ExecutorRequest>) -> Wake {
        let lease_end_ns = self.lease_end_ns;
        let lease = async move {
            match lease_end_ns {
                Some(at_ns) => clock::sleep_until_boottime(at_ns).await,
                None => std::future::pending().await,
            }
        };
        let running = async {
            match &mut self.running {
                Some(running) => tokio::select! {
                    // Check for the end first: a controller that has all rows may disconnect.
                    biased;
                    ended = &mut running.timeline => Wake::Ended { broken: ended.is_err() },
                    () = running.out.lost() => Wake::ControllerLost,
                },
                None => std::future::pending().await,
            }
        };
        let sending = async {
            match &mut self.sending {
                Some(sending) => match sending.ended().await {
                    true => Wake::Sent,
                    false => Wake::ControllerLost,
                },
                None => std::future::pending().await,
            }
        };
        let controller = async {
            match &mut self.controller {
                Some(connection) => connection.wait().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            request = inbox.recv() => Wake::Request(request),
            () = controller => Wake::ControllerLost,
            () = lease => Wake::Lease,
            wake = running => wake,
            wake = sending => wake,
        }
    }

    async fn apply(&mut self, request: ExecutorRequest) {
        match request {
            ExecutorRequest::Check(request, controller, answer) => {
                let checked = self.check(request, controller.as_ref()).await;
                let _ = answer.send(checked);
            }
            ExecutorRequest::Prepare(request, controller, answer) => {
                let reply = self.prepare(request, controller.as_ref()).await;
                if reply.is_ok() {
                    self.prepared_by =
                        controller.as_ref().map(|client| client.identity().name.clone());
                    self.controller = controller;
                }
                // If the requester is gone, the lease ends the trial.
                let _ = answer.send(reply);
            }
            ExecutorRequest::Run(request, connection, answer) => {
                let rows = self.run(&request, connection).await;
                let _ = answer.send(rows);
            }
            ExecutorRequest::Reboot(request, controller, answer) => {
                let _ = answer.send(self.reboot(&request, controller.as_ref()));
            }
            ExecutorRequest::Reset(request, client, answer) => {
                let _ = answer.send(self.reset(request, client.as_ref()).await);
            }
            ExecutorRequest::Ping(answer) => {
                let _ = answer.send(());
            }
        }
    }

    /// Passes a command to the session and stores the new state.
    fn step(&mut self, command: Command) -> Result<Action, AgentError> {
        let (session, action) = self.session.clone().on(command)?;
        self.session = session;
        Ok(action)
    }

    async fn check(
        &mut self,
        request: Box<wire::PrepareRequest>,
        controller: Option<&ConnectionHandle>,
    ) -> Result<(), AgentError> {
        self.check_clean().await?;
        // Before the plan is read: another client's plan must cost a running trial nothing.
        self.session.clone().on(prepare::command(&request, controller))?;
        let without_traces: read::ReadTask = |request, _| read::task_without_traces(request);
        let (request, files, task) =
            read::beside_runtime(request, Contents::new(), without_traces).await?;
        self.check_boot(&task, controller)?;
        let mut context =
            PrepareContext::from_request(&mut self.deps, &request, &files, controller);
        prepare::check(&task, &mut context).await?;
        prepare::check_sent_ccs(&task, &request.node, verify::check_exists).await
    }

    async fn prepare(
        &mut self,
        mut request: Box<wire::PrepareRequest>,
        controller: Option<&ConnectionHandle>,
    ) -> Result<wire::PrepareReply, AgentError> {
        self.check_clean().await?;
        let command = prepare::command(&request, controller);
        // As in `check`. The session cannot change until the step below: this task handles one request at a time.
        self.session.clone().on(command.clone())?;
        let files = files::resolve(&self.files, &mut request)?;
        let (request, files, task) = read::beside_runtime(request, files, read::task_with).await?;
        self.check_running(&task)?;
        self.step(command)?;
        let generation = self.session.generation;
        let client = controller.map(ConnectionHandle::identity);
        self.deps.undo.audit().set_trial(&request.run_id, client);
        self.status.send_modify(|status| {
            (status.generation, status.last_run_id) = (generation, request.run_id.clone());
        });
        let file = self.deps.generation_file.as_ref();
        let kept = file.map(|file| file.write(generation, &request.run_id));
        let mut context =
            PrepareContext::from_request(&mut self.deps, &request, &files, controller);
        let made = match kept.transpose() {
            Ok(_) => prepare::prepare(task, &mut context, &mut self.trial).await,
            Err(error) => Err(error.into()),
        };
        let made = made.map(|reply| wire::PrepareReply { generation, ..reply });
        let action = self.step(Command::PrepareDone { ok: made.is_ok() })?;
        if action == Action::Undo {
            let outcome = self.undo().await;
            if !outcome.failed.is_empty() {
                tracing::error!(failed = ?outcome.failed, "could not undo all changes of a failed Prepare");
            }
        } else {
            let lease_ms = request.lease_ms.max(MIN_LEASE_MS);
            self.lease_end_ns = Some(clock::boottime_ns() + u64::from(lease_ms) * 1_000_000);
        }
        made
    }

    async fn run(
        &mut self,
        request: &wire::RunRequest,
        connection: Option<u64>,
    ) -> Result<mpsc::Receiver<Outgoing>, AgentError> {
        let command = Command::Run { epoch: request.epoch, connection };
        self.session.clone().on(command.clone())?;
        let now_ns = clock::now_ns();
        check_start(request.start_at_ns, now_ns)?;
        self.step(command)?;
        // From here on, the end of the row stream signals the loss of the controller.
        (self.lease_end_ns, self.controller) = (None, None);
        let (out, rows) = Outbox::new(self.trial.cc.names());
        let Some(task) = self.trial.task.clone() else {
            self.lost("the prepared trial is gone").await;
            return Err(AgentError::Stopping);
        };
        // These are the first rows, so offer them before other tasks can write.
        for change in std::mem::take(&mut self.trial.applied) {
            out.offer(Payload::LinkChange(change));
        }
        let late = start_late(request.start_at_ns, now_ns);
        late.into_iter().for_each(|event| out.offer(Payload::Event(event)));
        if let Err(error) = self.begin_links(request.start_at_ns) {
            self.lost("a link's trace did not begin").await;
            return Err(error);
        }
        let audit = self.deps.undo.audit();
        let captures = match Captures::start(&task, &*self.deps.interfaces, audit) {
            Ok(captures) => captures,
            Err(error) => {
                self.lost("a capture did not start").await;
                return Err(error);
            }
        };
        captures.warnings(&self.trial.links).into_iter().for_each(|e| out.offer(Payload::Event(e)));
        let awake = if task.keep_awake { self.keep_awake(&out) } else { None };
        let (cc, unread) = self.trial.cc.readers();
        unread.into_iter().for_each(|event| out.offer(Payload::Event(event)));
        let samples = SampleTask {
            cc,
            sampler: (self.deps.sampler)(),
            flows: run::flow_ports(&task),
            sample: task.sample.clone(),
            awake: match (task.kept_awake, awake.is_some()) {
                (_, true) => KeptAwakeBy::ThisProcess,
                (true, false) => KeptAwakeBy::OtherProcess,
                (false, false) => KeptAwakeBy::Nobody,
            },
            links: std::mem::take(&mut self.trial.links),
            start_at_ns: request.start_at_ns,
            out: out.clone(),
        };
        let sampler = match SamplerThread::start(samples) {
            Ok(sampler) => sampler,
            Err(failed) => {
                self.keep_links(failed.links);
                self.lost("the samplers did not start").await;
                return Err(failed.error);
            }
        };
        let acks = self.take_acks(&out);
        let (cancel, cancelled) = watch::channel(false);
        let context = run::context(&self.deps, request.start_at_ns, &out, &sampler, cancelled);
        let servers = std::mem::take(&mut self.trial.servers);
        let timeline = tokio::spawn(async move { run::timeline(&task, servers, context).await });
        let running = Running { timeline, sampler, acks, out, cancel, captures, _awake: awake };
        self.running = Some(running);
        Ok(rows)
    }

    /// If the thread cannot start, the trial runs without acknowledgement rows.
    fn take_acks(&mut self, out: &Outbox) -> Option<AckThread> {
        let started = AckThread::start(self.trial.acks.take()?, out.clone());
        let report =
            |error: AgentError| event(Kind::AcksError(NoData {}), "sockets", error.to_string());
        started.map_err(|error| out.offer(Payload::Event(report(error)))).ok()
    }

    fn begin_links(&mut self, start_at_ns: u64) -> Result<(), AgentError> {
        for timed in &mut self.trial.links {
            if let Err(source) = timed.link.begin(start_at_ns) {
                return Err(AgentError::Link { link: timed.link.state().link, source });
            }
        }
        Ok(())
    }

    /// A failure does not stop the trial, but an event records it.
    fn keep_awake(&self, out: &Outbox) -> Option<Box<dyn Send>> {
        let (kind, message, awake) = match self.deps.interfaces.keep_awake() {
            Ok(awake) => {
                let message = "CPUs are kept from halting during this trial".to_owned();
                (Kind::KeepAwake(NoData {}), message, Some(awake))
            }
            Err(error) => (Kind::KeepAwakeError(NoData {}), error.to_string(), None),
        };
        out.offer(Payload::Event(event(kind, "processors", message)));
        awake
    }

    /// Ends the timeline: sends the last rows, and begins to send the files.
    async fn ended(&mut self, broken: bool) {
        let Some(running) = self.running.take() else { return };
        let (sampler, captures, acks) = (running.sampler, running.captures, running.acks);
        let settings = std::mem::take(&mut self.trial.settings);
        let interfaces = Arc::clone(&self.deps.interfaces);
        let stop = move || {
            let stopped = (sampler.stop(), captures.stop(), acks.map(AckThread::stop));
            (stopped, settings.changes(&*interfaces))
        };
        let ((finished, captured, acks), mut events) = blocking::run(stop).await;
        self.keep_links(finished.links);
        for row in finished.rows {
            running.out.send(row).await;
        }
        if let Some(left) = acks {
            left.send(&running.out).await;
        }
        let error = |what: &str, message: &str| event(Kind::AgentError(NoData {}), what, message);
        if finished.broken {
            // The removal of the links changed settings.
            events = vec![error(
                "samples",
                "the thread panicked (a bug in ccbench): sampling stopped, links were removed",
            )];
        }
        if broken {
            events.push(error(
                "timeline",
                "panicked (a bug in ccbench): flows, probes and phases were abandoned",
            ));
        }
        events.extend(self.trial.ended_answers());
        events.extend(self.trial.attached.counts());
        events.extend(self.trial.ecn.counts());
        events.extend(self.trial.cc.losses());
        let last = LastRows { events, late: finished.late, missed: finished.missed };
        self.sending = Some(Sending::start(captured, last, running.out));
    }

    /// Ends the trial: the controller has everything. Waits for the reset.
    fn sent(&mut self) {
        // Ends the stream.
        self.sending = None;
        if let Err(error) = self.step(Command::RunDone) {
            tracing::error!(%error, "could not end the trial");
        }
        self.lease_end_ns = Some(clock::boottime_ns() + self.after_run_ns);
    }

    fn keep_links(&mut self, links: Vec<Box<dyn Link>>) {
        self.trial.links.extend(links.into_iter().map(TimedLink::unchanging));
    }

    async fn lost(&mut self, reason: &str) {
        tracing::warn!(reason, "undoing everything");
        match self.step(Command::Lost) {
            Ok(Action::Undo) => drop(self.undo().await),
            Ok(_) => self.lease_end_ns = None,
            Err(error) => tracing::error!(%error, "could not handle the loss of the controller"),
        }
    }
}

#[cfg(test)]
mod tests;
