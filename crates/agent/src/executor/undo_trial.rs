//! Undoes a trial. The steps that may block for long (threads that end, links, settings, control groups, modules) run beside the runtime, in
//! their order.

use std::sync::Arc;

use super::acks::AckThread;
use super::timed_link::TimedLink;
use super::{Executor, GIVE_UP_TIMEOUT, Running};
use crate::blocking;
use crate::error::AgentError;
use crate::flow::{Progress, Stop};
use crate::interfaces::Interfaces;
use crate::session::State;
use crate::undo::{Outcome, Undo};

impl Executor {
    /// Removes everything of the trial: processes first, then links, then settings.
    pub(super) async fn undo(&mut self) -> Outcome {
        (self.lease_end_ns, self.controller) = (None, None);
        // Ends the transfer of files.
        self.sending = None;
        let mut outcome = Outcome::default();
        if let Some(running) = self.running.take() {
            self.give_up(running, &mut outcome).await;
        }
        let trial = std::mem::take(&mut self.trial);
        for (flow, mut server) in trial.servers {
            server.stop(Stop::Kill);
            let ended = tokio::time::timeout(GIVE_UP_TIMEOUT, async {
                while !matches!(server.next().await, Progress::Ended(_)) {}
            });
            let ended = ended.await.map_err(|_| "still running after 3 s");
            outcome.note(format!("iperf3 server of {}", flow.group), ended);
        }
        // Sockets that use a congestion control must close before it is unloaded.
        drop(trial.answers);
        let (links, cc) = (trial.links, trial.cc);
        let work = move |undo: &mut Undo, interfaces: &dyn Interfaces| {
            remove_links(links, undo, &mut outcome);
            // A namespace's default, which the stack restores, pins its congestion control's module.
            let of_stack = undo.undo_all(interfaces);
            outcome.merge(cc.remove());
            (outcome, of_stack)
        };
        let (mut outcome, of_stack) = self.with_undo(work).await;
        self.note_left(&of_stack);
        // The stack writes its own audit records.
        self.deps.undo.audit().undone(&outcome);
        outcome.merge(of_stack);
        outcome
    }

    /// Ends a running trial early.
    async fn give_up(&mut self, mut running: Running, outcome: &mut Outcome) {
        running.out.stop_waiting();
        let _ = running.cancel.send(true);
        let ended = tokio::time::timeout(GIVE_UP_TIMEOUT, &mut running.timeline).await;
        running.timeline.abort();
        let ended = ended.map(drop).map_err(|_| "still running after 3 s; dropped");
        outcome.note("traffic processes", ended);
        let Running { sampler, acks, captures, .. } = running;
        let finished = blocking::run(move || {
            let finished = sampler.stop();
            drop(acks.map(AckThread::stop));
            drop(captures);
            finished
        });
        self.keep_links(finished.await.links);
    }

    /// Runs `work` with the undo stack, beside the runtime.
    async fn with_undo<T, W>(&mut self, work: W) -> T
    where
        T: Send + 'static,
        W: FnOnce(&mut Undo, &dyn Interfaces) -> T + Send + 'static,
    {
        let mut undo = std::mem::take(&mut self.deps.undo);
        let interfaces = Arc::clone(&self.deps.interfaces);
        let (undo, result) = blocking::run(move || {
            let result = work(&mut undo, &*interfaces);
            (undo, result)
        })
        .await;
        self.deps.undo = undo;
        result
    }

    /// Reports what undoing the stack has left.
    pub(super) fn note_left(&self, outcome: &Outcome) {
        let left = if self.deps.undo.is_empty() { Vec::new() } else { outcome.failed.clone() };
        self.status.send_modify(|status| status.not_undone = left);
    }

    /// Retries pending undo steps. On a node that is not as it was found, a trial would measure leftovers of an earlier one.
    pub(super) async fn check_clean(&mut self) -> Result<(), AgentError> {
        if self.session.state != State::Idle || self.deps.undo.is_empty() {
            return Ok(());
        }
        let outcome = self.with_undo(Undo::undo_all).await;
        self.note_left(&outcome);
        let left = outcome.failed;
        if self.deps.undo.is_empty() { Ok(()) } else { Err(AgentError::NotUndone { left }) }
    }
}

/// Removes links, last first.
fn remove_links(links: Vec<TimedLink>, undo: &mut Undo, outcome: &mut Outcome) {
    for mut timed in links.into_iter().rev() {
        let name = timed.link.state().link;
        let removed = timed.link.remove();
        if removed.is_ok() {
            undo.forget_link(&name);
        }
        outcome.note(format!("link {name} on {}", timed.dev), removed);
    }
}
