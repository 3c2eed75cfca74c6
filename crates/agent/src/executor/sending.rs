//! Sends a trial's files and last rows to the controller, beside the executor: a reset does not wait for a controller that reads slowly.

use ccbench_proto::wire::{self, run_event::Payload};
use tokio::task::JoinHandle;

use super::captures::Stopped;
use super::outbox::Outbox;

/// What follows the files.
#[derive(Debug, Default)]
pub struct LastRows {
    /// The last events.
    pub events: Vec<wire::Event>,
    /// TCP samples that were taken late.
    pub late: u64,
    /// TCP samples that are missing in the gaps of sockets.
    pub missed: u64,
}

/// A transfer to the controller. Dropping it ends the transfer, without the last message if that was not sent.
#[derive(Debug)]
pub struct Sending {
    task: JoinHandle<()>,
    out: Outbox,
}

impl Sending {
    /// Starts to send the files of captures, then the last rows and the last message.
    pub fn start(captured: Stopped, last: LastRows, out: Outbox) -> Self {
        let to = out.clone();
        let task = tokio::spawn(async move {
            captured.send(&to).await;
            for event in last.events {
                to.offer(Payload::Event(event));
            }
            to.done(last.late, last.missed);
        });
        Self { task, out }
    }

    /// Whether the last message has been sent.
    pub fn is_over(&self) -> bool {
        self.task.is_finished()
    }

    /// Waits for the end of the transfer. Returns whether it ended before the controller was gone.
    pub async fn ended(&mut self) -> bool {
        tokio::select! {
            // Check for the end first: a controller that has all rows may disconnect.
            biased;
            sent = &mut self.task => {
                if let Err(error) = sent {
                    tracing::error!(%error, "the transfer of the trial's files ended (a bug in ccbench)");
                }
                true
            }
            () = self.out.lost() => false,
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.task.abort();
    }
}
