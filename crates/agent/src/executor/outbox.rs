//! The one way out for rows: a bounded channel that never blocks the hot side, and the count of what did
//! not fit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ccbench_proto::wire::{self, run_event::Of};
use tokio::sync::mpsc;

use crate::clock;

/// Rows that wait for the controller at most: about 8 MiB.
const CAPACITY: usize = 8192;
/// How long a row that is not hot waits for room.
const PATIENCE: Duration = Duration::from_secs(2);
/// A file's piece: well under gRPC's message limit of 4 MiB.
const PIECE_BYTES: usize = 512 << 10;

/// Cheap to clone.
#[derive(Debug, Clone)]
pub struct Outbox {
    events: mpsc::Sender<wire::RunEvent>,
    patience: Duration,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    dropped: AtomicU64,
    /// The controller let a patient row down: nobody waits again until there is room.
    stuck: AtomicBool,
}

impl Outbox {
    /// An outbox and what comes out of it.
    pub fn new() -> (Self, mpsc::Receiver<wire::RunEvent>) {
        Self::with_patience(PATIENCE)
    }

    fn with_patience(patience: Duration) -> (Self, mpsc::Receiver<wire::RunEvent>) {
        let (events, rows) = mpsc::channel(CAPACITY);
        (Self { events, patience, counts: Arc::default() }, rows)
    }

    /// For the hot side: sends now or drops and counts.
    pub fn offer(&self, of: Of) {
        let ok = self.events.try_send(wire::RunEvent { of: Some(of) }).is_ok();
        self.count(ok);
    }

    /// For everything else: waits for room, but not for ever.
    pub async fn send(&self, of: Of) {
        let event = wire::RunEvent { of: Some(of) };
        let ok = if self.counts.stuck.load(Ordering::Relaxed) {
            self.events.try_send(event).is_ok()
        } else {
            let sent = tokio::time::timeout(self.patience, self.events.send(event)).await;
            matches!(sent, Ok(Ok(())))
        };
        self.counts.stuck.store(!ok, Ordering::Relaxed);
        self.count(ok);
    }

    fn count(&self, ok: bool) {
        let count = if ok { &self.counts.sent } else { &self.counts.dropped };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Something happened now.
    pub async fn event(&self, kind: &str, subject: &str, message: impl Into<String>) {
        self.send(Of::Event(event(kind, subject, message))).await;
    }

    /// A file for the trial's raw/ directory.
    pub async fn raw(&self, name: &str, data: &[u8]) {
        for piece in data.chunks(PIECE_BYTES) {
            self.send(Of::Raw(wire::Raw { name: name.to_owned(), data: piece.to_vec() })).await;
        }
    }

    /// The last message of a stream.
    pub async fn done(&self, samples_late: u64, samples_missed: u64) {
        let done = wire::Done {
            rows_sent: self.counts.sent.load(Ordering::Relaxed),
            rows_dropped: self.counts.dropped.load(Ordering::Relaxed),
            samples_late,
            samples_missed,
        };
        self.send(Of::Done(done)).await;
    }

    /// Resolves when the controller is gone.
    pub async fn lost(&self) {
        self.events.closed().await;
    }
}

/// An event of now.
pub fn event(kind: &str, subject: &str, message: impl Into<String>) -> wire::Event {
    wire::Event {
        at_ns: clock::now_ns(),
        kind: kind.to_owned(),
        subject: subject.to_owned(),
        message: message.into(),
        data_json: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slow_controller_costs_rows_and_never_time() {
        let (outbox, mut rows) = Outbox::with_patience(Duration::from_millis(10));
        for _ in 0..CAPACITY + 5 {
            outbox.offer(Of::Probe(wire::Probe::default()));
        }
        outbox.event("late", "x", "").await;
        outbox.event("late", "y", "").await;
        for _ in 0..10 {
            rows.recv().await.expect("it is full");
        }
        outbox.done(1, 2).await;
        rows.close();
        let mut last = None;
        while let Some(event) = rows.recv().await {
            last = event.of;
        }
        let done = wire::Done {
            rows_sent: CAPACITY as u64,
            rows_dropped: 7,
            samples_late: 1,
            samples_missed: 2,
        };
        assert_eq!(last, Some(Of::Done(done)));
    }
}
