//! Whether the executor still handles requests, for the service manager's watchdog.

use tokio::sync::{mpsc, oneshot};

use super::{ExecutorRequest, Handle};

/// Asks the executor whether it still handles requests. Unlike a [`Handle`], it does not keep the executor from ending.
#[derive(Debug, Clone)]
pub struct Pulse(mpsc::WeakSender<ExecutorRequest>);

impl Handle {
    /// Returns the executor's pulse.
    pub fn pulse(&self) -> Pulse {
        Pulse(self.requests.downgrade())
    }
}

impl Pulse {
    /// Resolves when the executor has handled the requests before this one, or has ended. Returns whether it has handled them.
    pub async fn ask(self) -> bool {
        let Some(requests) = self.0.upgrade() else { return false };
        let (answer, answered) = oneshot::channel();
        if requests.send(ExecutorRequest::Ping(answer)).await.is_err() {
            return false;
        }
        drop(requests);
        answered.await.is_ok()
    }
}
