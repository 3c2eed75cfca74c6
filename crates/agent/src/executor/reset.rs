//! Resets by clients. A client may reset the trial of another one, to free the node; the audit log and the other client then know who
//! did it.

use ccbench_proto::wire;

use super::{Executor, ExecutorRequest, Handle};
use crate::accept::ConnectionHandle;
use crate::error::AgentError;
use crate::session::{Command, Holder};
use crate::undo::Outcome;

impl Handle {
    /// Restores the node's original state on behalf of the agent itself.
    ///
    /// # Errors
    /// Another run's trial holds the node, or the agent is stopping.
    pub async fn reset(&self, request: wire::ResetRequest) -> Result<wire::ResetReply, AgentError> {
        self.reset_by(request, None).await
    }

    /// Restores the node's original state on behalf of a client.
    ///
    /// # Errors
    /// Another run's trial holds the node, or the agent is stopping.
    pub async fn reset_by(
        &self,
        request: wire::ResetRequest,
        client: Option<ConnectionHandle>,
    ) -> Result<wire::ResetReply, AgentError> {
        self.ask(|answer| ExecutorRequest::Reset(request, client, answer)).await
    }

    /// Returns a function that tells, once the trial of this generation has ended, which other client's reset ended it.
    pub fn ended_by(&self, generation: u64) -> impl FnOnce() -> Option<String> + Send + use<> {
        let status = self.status.clone();
        move || {
            let (of, why) = status.borrow().reset_by_other.clone()?;
            (of == generation).then_some(why)
        }
    }
}

impl Executor {
    /// Undoes the trial that holds the node, if the client may reset it.
    pub(super) async fn reset(
        &mut self,
        request: wire::ResetRequest,
        client: Option<&ConnectionHandle>,
    ) -> Result<wire::ResetReply, AgentError> {
        let holder = self.session.state.holder().cloned();
        let wire::ResetRequest { run_id, epoch } = request;
        self.step(Command::Reset { run_id: run_id.clone(), epoch })?;
        if let (Some(holder), Some(client)) = (holder, client)
            && !self.is_own(&holder, &run_id, client)
        {
            self.note_reset_by_other(&holder, client);
        }
        // The audit log already has the changes that were given up.
        let Outcome { undone, failed, .. } = self.undo().await;
        Ok(wire::ResetReply { undone, failed })
    }

    /// Whether the client has prepared the trial itself, maybe over an earlier connection.
    fn is_own(&self, holder: &Holder, run_id: &str, client: &ConnectionHandle) -> bool {
        self.prepared_by.as_ref() == Some(&client.identity().name)
            && (holder.run_id == run_id || holder.connection == Some(client.id()))
    }

    fn note_reset_by_other(&self, holder: &Holder, client: &ConnectionHandle) {
        let by = client.identity();
        tracing::warn!(%holder, %by, "another client resets the node");
        self.deps.undo.audit().reset_by_other(by);
        if self.running.is_some() || self.sending.as_ref().is_some_and(|it| !it.is_over()) {
            let why = format!("another client, {by}, has reset this node, which ended the trial");
            let generation = self.session.generation;
            self.status.send_modify(|status| status.reset_by_other = Some((generation, why)));
        }
    }
}
