//! Performs what the session decides: owns everything of the current trial.

use ccbench_proto::wire;
use tokio::sync::{mpsc, oneshot};

use crate::error::AgentError;

/// Sends orders to the executor.
#[derive(Debug, Clone)]
pub struct Handle {
    orders: mpsc::Sender<Order>,
}

type Answer<T> = oneshot::Sender<Result<T, AgentError>>;

#[derive(Debug)]
enum Order {
    Prepare(Box<wire::PrepareRequest>, Answer<wire::PrepareReply>),
    Run(wire::RunRequest, Answer<mpsc::Receiver<wire::RunEvent>>),
    Reset(Answer<wire::ResetReply>),
}

impl Handle {
    async fn ask<T>(&self, order: impl FnOnce(Answer<T>) -> Order) -> Result<T, AgentError> {
        let (answer, wait) = oneshot::channel();
        self.orders.send(order(answer)).await.map_err(|_| AgentError::Stopping)?;
        wait.await.map_err(|_| AgentError::Stopping)?
    }

    /// Makes the node ready for a trial.
    ///
    /// # Errors
    /// Why not; everything already done is undone.
    pub async fn prepare(
        &self,
        request: wire::PrepareRequest,
    ) -> Result<wire::PrepareReply, AgentError> {
        self.ask(|answer| Order::Prepare(Box::new(request), answer)).await
    }

    /// Starts the prepared trial; its rows come out of the channel.
    ///
    /// # Errors
    /// Nothing is prepared, or something else.
    pub async fn run(
        &self,
        request: wire::RunRequest,
    ) -> Result<mpsc::Receiver<wire::RunEvent>, AgentError> {
        self.ask(|answer| Order::Run(request, answer)).await
    }

    /// Leaves the node as it was found.
    ///
    /// # Errors
    /// The agent is stopping.
    pub async fn reset(&self) -> Result<wire::ResetReply, AgentError> {
        self.ask(Order::Reset).await
    }
}

/// Starts the executor on the current runtime; it ends when its last handle is gone.
pub fn spawn() -> Handle {
    let (orders, mut inbox) = mpsc::channel(8);
    tokio::spawn(async move {
        while let Some(order) = inbox.recv().await {
            match order {
                Order::Prepare(_, answer) => drop(answer),
                Order::Run(_, answer) => drop(answer),
                Order::Reset(answer) => drop(answer.send(Ok(wire::ResetReply::default()))),
            }
        }
    });
    Handle { orders }
}
