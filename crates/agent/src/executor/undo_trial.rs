//! Undoes a trial. The steps that may block for long (threads that end, links, settings, control groups, modules) run beside the runtime, in
//! their order.

use std::path::Path;
use std::sync::Arc;

use super::acks::AckThread;
use super::timed_link::TimedLink;
use super::{Executor, GIVE_UP_TIMEOUT, Running};
use crate::blocking;
use crate::error::AgentError;
use crate::flow::{Progress, Stop};
use crate::interfaces::Interfaces;
use crate::session::State;
use crate::sockets::journal;
use crate::sockets::load::LoadedCcs;
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
        let (links, cc, journals) = (trial.links, trial.cc, self.deps.cc_journals.clone());
        let work = move |undo: &mut Undo, interfaces: &dyn Interfaces| {
            remove_links(links, undo, &mut outcome);
            // A namespace's default, which the stack restores, pins its congestion control's module.
            let of_stack = undo.undo_all(interfaces);
            (outcome, of_stack, remove_ccs(cc, &journals))
        };
        let (mut outcome, of_stack, of_cc) = self.with_undo(work).await;
        self.note_left(&of_stack, &of_cc);
        outcome.merge(of_cc);
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

    /// Undoes what a dead agent has left, when this one starts. The settings of the stack come first: a namespace's default congestion
    /// control pins its module.
    pub(super) fn undo_left(&mut self) {
        let of_stack = self.deps.undo.undo_left(&*self.deps.interfaces);
        let of_cc = journal::sweep_folder(&self.deps.cc_journals);
        if of_cc != Outcome::default() {
            let Outcome { undone, failed, .. } = &of_cc;
            tracing::warn!(?undone, ?failed, "rolled back the congestion controls of a dead agent");
        }
        self.deps.undo.audit().undone(&of_cc);
        self.note_left(&of_stack, &of_cc);
    }

    /// Runs `work` with the undo stack, beside the runtime, and with free descriptors.
    async fn with_undo<T, W>(&mut self, work: W) -> T
    where
        T: Send + 'static,
        W: FnOnce(&mut Undo, &dyn Interfaces) -> T + Send + 'static,
    {
        let mut undo = std::mem::take(&mut self.deps.undo);
        let interfaces = Arc::clone(&self.deps.interfaces);
        self.reserve.release();
        let (undo, result) = blocking::run(move || {
            let result = work(&mut undo, &*interfaces);
            (undo, result)
        })
        .await;
        self.reserve.refill();
        self.deps.undo = undo;
        result
    }

    /// Reports what undoing the stack and the congestion controls has left.
    fn note_left(&self, of_stack: &Outcome, of_cc: &Outcome) {
        let mut left = if self.deps.undo.is_empty() { Vec::new() } else { of_stack.failed.clone() };
        left.extend(of_cc.failed.iter().cloned());
        self.status.send_modify(|status| status.not_undone = left);
    }

    /// Retries pending undo steps: those of the stack, and those of congestion controls, whose journals show also what agents that died
    /// meanwhile have left. On a node that is not as it was found, a trial would measure leftovers of an earlier one.
    pub(super) async fn check_clean(&mut self) -> Result<(), AgentError> {
        if self.session.state != State::Idle {
            return Ok(());
        }
        let journals = self.deps.cc_journals.clone();
        let work = move |undo: &mut Undo, interfaces: &dyn Interfaces| {
            (undo.undo_left(interfaces), journal::sweep_folder(&journals))
        };
        let (of_stack, of_cc) = self.with_undo(work).await;
        self.deps.undo.audit().undone(&of_cc);
        self.note_left(&of_stack, &of_cc);
        if self.deps.undo.is_empty() && of_cc.failed.is_empty() {
            return Ok(());
        }
        Err(AgentError::NotUndone { left: self.status.borrow().not_undone.clone() })
    }
}

/// Undoes the congestion controls of a trial. Also tries again what earlier trials and dead agents have left, so that the outcome lists all
/// changes that are still not undone.
fn remove_ccs(cc: LoadedCcs, journals: &Path) -> Outcome {
    let mut outcome = cc.remove();
    let swept = journal::sweep_folder(journals);
    // The sweep has tried the trial's own failed steps once more, and describes them in the same words.
    let is_of_step = |why: &str, step: &str| {
        why.strip_prefix(step).is_some_and(|reason| reason.starts_with(": "))
    };
    outcome.failed.retain(|why| {
        let is_undone = swept.undone.iter().any(|step| is_of_step(why, step));
        !is_undone && !swept.failed.contains(why)
    });
    outcome.merge(swept);
    outcome
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
