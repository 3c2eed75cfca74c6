//! The channel of rows to the controller: bounded, never blocks the sampler, and counts dropped rows.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ccbench_proto::event::Kind;
use ccbench_proto::wire::{self, run_event::Of};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clock;
use crate::event::event;
use crate::sockets::names::Names;

/// Rows that wait for the controller at most: about 8 MiB. One more place is kept for the last message.
const CAPACITY: usize = 8192;
/// How long a row that is not hot waits for room, and all rows of a trial together: a controller that reads,
/// but slowly, must not prolong a trial.
const PATIENCE: Patience =
    Patience { each: Duration::from_secs(2), together: Duration::from_secs(4) };
/// A file's piece: well under gRPC's message limit of 4 MiB.
const PIECE_BYTES: usize = 512 << 10;
/// A controller that takes nothing for so long takes nothing any more.
const PIECE_LIMIT: Duration = Duration::from_secs(5);
/// Pieces of files that wait for the controller at most: 8 MiB.
const PIECES: usize = 16;
/// Rows in batches that wait for the controller at most: about 16 MiB.
const BATCHED_ROWS: usize = 64 << 10;
/// Minimum row count of a batch, so that batches take at most half of the channel.
const LEAST_ROWS: usize = 2 * BATCHED_ROWS / CAPACITY;

#[derive(Debug, Clone, Copy)]
struct Patience {
    each: Duration,
    together: Duration,
}

/// A row on its way to the controller.
#[derive(Debug)]
pub struct Outgoing {
    /// The row.
    pub event: wire::RunEvent,
    /// Held by a piece of a file, or by a batch of rows, until it is taken.
    _room: Option<OwnedSemaphorePermit>,
}

impl Outgoing {
    fn new(of: Of, room: Option<OwnedSemaphorePermit>) -> Self {
        Self { event: wire::RunEvent { of: Some(of) }, _room: room }
    }
}

/// Cheap to clone.
#[derive(Debug, Clone)]
pub struct Outbox {
    rows: mpsc::Sender<Outgoing>,
    /// The place of the last message.
    last: Arc<Mutex<Option<mpsc::OwnedPermit<Outgoing>>>>,
    pieces: Arc<Semaphore>,
    batches: Arc<Semaphore>,
    each: Duration,
    counts: Arc<Counts>,
    names: Arc<Names>,
}

#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    dropped: AtomicU64,
    /// A row has timed out: no row waits again until there is room.
    stuck: AtomicBool,
    /// What is left of the patience of all rows together.
    patience_ns: AtomicU64,
}

impl Outbox {
    /// An outbox and what comes out of it.
    /// Rows are sent with the plan's `names` of congestion controls.
    pub fn new(names: Names) -> (Self, mpsc::Receiver<Outgoing>) {
        let (outbox, rows) = Self::with_patience(PATIENCE);
        (Self { names: Arc::new(names), ..outbox }, rows)
    }

    fn with_patience(patience: Patience) -> (Self, mpsc::Receiver<Outgoing>) {
        let (rows, outgoing) = mpsc::channel(CAPACITY + 1);
        let last = Arc::new(Mutex::new(rows.clone().try_reserve_owned().ok()));
        let together = u64::try_from(patience.together.as_nanos()).unwrap_or(u64::MAX);
        let counts = Counts { patience_ns: together.into(), ..Counts::default() };
        let [pieces, batches] = [PIECES, BATCHED_ROWS].map(|room| Arc::new(Semaphore::new(room)));
        let (each, counts, names) = (patience.each, Arc::new(counts), Arc::default());
        (Self { rows, last, pieces, batches, each, counts, names }, outgoing)
    }

    /// For the hot side: sends now or drops and counts.
    pub fn offer(&self, mut of: Of) {
        self.names.translate(&mut of);
        let ok = self.rows.try_send(Outgoing::new(of, None)).is_ok();
        self.count(ok);
    }

    /// How many rows may be offered before the rest of the room is for what must not wait.
    pub fn room_for_many(&self) -> usize {
        self.rows.capacity().saturating_sub(CAPACITY / 2)
    }

    /// For many rows in one message: sends now, or gives them back, for the caller to count. They have a room of their own.
    pub fn offer_batch(&self, mut of: Of) -> Option<Of> {
        let rows = match &of {
            Of::Acks(acks) => acks.at_ns.len(),
            Of::TcpEvents(all) => all.events.len(),
            _ => 1,
        };
        // More than there is room for never fits.
        let rows = u32::try_from(rows.max(LEAST_ROWS)).unwrap_or(u32::MAX);
        let Ok(room) = Arc::clone(&self.batches).try_acquire_many_owned(rows) else {
            return Some(of);
        };
        self.names.translate(&mut of);
        match self.rows.try_send(Outgoing::new(of, Some(room))) {
            Ok(()) => {
                self.count(true);
                None
            }
            Err(TrySendError::Full(outgoing) | TrySendError::Closed(outgoing)) => outgoing.event.of,
        }
    }

    /// For everything else: waits for room, but not for ever. Whether it was sent.
    pub async fn send(&self, of: Of) -> bool {
        self.try_to_send(of).await.is_none()
    }

    /// The same; gives back what was not sent.
    pub async fn try_to_send(&self, mut of: Of) -> Option<Of> {
        self.names.translate(&mut of);
        let back = self.put(Outgoing::new(of, None)).await;
        self.counts.stuck.store(back.is_some(), Ordering::Relaxed);
        self.count(back.is_none());
        back
    }

    /// Gives back what was not sent.
    async fn put(&self, outgoing: Outgoing) -> Option<Of> {
        let outgoing = match self.rows.try_send(outgoing) {
            Ok(()) => return None,
            Err(TrySendError::Closed(outgoing)) => return outgoing.event.of,
            Err(TrySendError::Full(outgoing)) => outgoing,
        };
        match self.patiently(self.rows.reserve()).await {
            Some(Ok(place)) => {
                place.send(outgoing);
                None
            }
            _ => outgoing.event.of,
        }
    }

    /// Waits, within what is left of the patience.
    async fn patiently<T>(&self, what: impl Future<Output = T>) -> Option<T> {
        if self.counts.stuck.load(Ordering::Relaxed) {
            return None;
        }
        let left = Duration::from_nanos(self.counts.patience_ns.load(Ordering::Relaxed));
        let from_ns = clock::now_ns();
        let came = tokio::time::timeout(self.each.min(left), what).await;
        let waited_ns = clock::now_ns().saturating_sub(from_ns);
        let less = |left: u64| Some(left.saturating_sub(waited_ns));
        // The closure always returns a value, so this cannot fail.
        let _ = self.counts.patience_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        came.ok()
    }

    fn count(&self, ok: bool) {
        let count = if ok { &self.counts.sent } else { &self.counts.dropped };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Something happened now.
    pub async fn event(&self, kind: Kind, subject: &str, message: impl Into<String>) {
        self.send(Of::Event(event(kind, subject, message))).await;
    }

    /// A file for the trial's raw/ directory.
    pub async fn raw(&self, name: &str, data: &[u8]) {
        for piece in data.chunks(PIECE_BYTES) {
            let room = match Arc::clone(&self.pieces).try_acquire_owned() {
                Ok(room) => Some(room),
                Err(_) => {
                    let room = self.patiently(Arc::clone(&self.pieces).acquire_owned()).await;
                    room.and_then(Result::ok)
                }
            };
            let Some(room) = room else {
                self.counts.stuck.store(true, Ordering::Relaxed);
                self.count(false);
                continue;
            };
            let raw = wire::Raw { name: name.to_owned(), data: piece.to_vec() };
            let ok = self.put(Outgoing::new(Of::Raw(raw), Some(room))).await.is_none();
            self.counts.stuck.store(!ok, Ordering::Relaxed);
            self.count(ok);
        }
    }

    /// A piece of a file that is sent when nothing else is left to do: waits as long as the controller takes any piece
    /// within [`PIECE_LIMIT`]. Whether it was sent.
    pub async fn raw_whole(&self, name: &str, piece: &[u8]) -> bool {
        let sending = async {
            let room = Arc::clone(&self.pieces).acquire_owned().await.ok()?;
            let raw = wire::Raw { name: name.to_owned(), data: piece.to_vec() };
            self.rows.send(Outgoing::new(Of::Raw(raw), Some(room))).await.ok()
        };
        let ok = matches!(tokio::time::timeout(PIECE_LIMIT, sending).await, Ok(Some(())));
        self.count(ok);
        ok
    }

    /// The last message of a stream; it always finds its place.
    pub fn done(&self, samples_late: u64, samples_missed: u64) {
        let done = wire::Done {
            rows_sent: self.counts.sent.load(Ordering::Relaxed),
            rows_dropped: self.counts.dropped.load(Ordering::Relaxed),
            samples_late,
            samples_missed,
        };
        if let Some(place) = self.last.lock().unwrap_or_else(PoisonError::into_inner).take() {
            place.send(Outgoing::new(Of::Done(done), None));
        }
    }

    /// From now on nothing waits for room.
    pub fn give_up(&self) {
        self.counts.patience_ns.store(0, Ordering::Relaxed);
    }

    /// Resolves when the controller is gone.
    pub async fn lost(&self) {
        self.rows.closed().await;
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::event::NoData;

    use super::*;

    const PHASE: Kind = Kind::PhaseStart(NoData {});
    const SHORT: Patience =
        Patience { each: Duration::from_millis(10), together: Duration::from_millis(100) };

    fn full(patience: Patience) -> (Outbox, mpsc::Receiver<Outgoing>) {
        let (outbox, rows) = Outbox::with_patience(patience);
        for _ in 0..CAPACITY {
            outbox.offer(Of::Probe(wire::Probe::default()));
        }
        (outbox, rows)
    }

    async fn all(mut rows: mpsc::Receiver<Outgoing>) -> Vec<Of> {
        rows.close();
        let mut found = Vec::new();
        while let Some(outgoing) = rows.recv().await {
            found.extend(outgoing.event.of);
        }
        found
    }

    #[tokio::test]
    async fn drops_rows_instead_of_waiting() {
        let (outbox, mut rows) = full(SHORT);
        for _ in 0..5 {
            outbox.offer(Of::Probe(wire::Probe::default()));
        }
        outbox.event(PHASE, "x", "").await;
        outbox.event(PHASE, "y", "").await;
        for _ in 0..10 {
            rows.recv().await.expect("it is full");
        }
        outbox.event(PHASE, "z", "").await;
        outbox.done(1, 2);
        let done = wire::Done {
            rows_sent: CAPACITY as u64 + 1,
            rows_dropped: 7,
            samples_late: 1,
            samples_missed: 2,
        };
        assert_eq!(all(rows).await.last(), Some(&Of::Done(done)));
    }

    #[tokio::test]
    async fn the_last_message_has_a_reserved_place() {
        let (outbox, rows) = full(SHORT);
        outbox.event(PHASE, "x", "").await;
        outbox.done(0, 0);
        outbox.offer(Of::Probe(wire::Probe::default()));
        let found = all(rows).await;
        assert_eq!(found.len(), CAPACITY + 1);
        assert!(matches!(found.last(), Some(Of::Done(done)) if done.rows_dropped == 1));
    }

    #[tokio::test]
    async fn a_slow_reader_exhausts_the_total_wait() {
        let (outbox, mut rows) = full(Patience { each: Duration::from_secs(60), ..SHORT });
        let reader = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(7)).await;
                if rows.recv().await.is_none() {
                    return;
                }
            }
        });
        let patience = || outbox.counts.patience_ns.load(Ordering::Relaxed);
        let mut tries = 0;
        while patience() > 0 {
            outbox.event(PHASE, "x", "").await;
            tries += 1;
            assert!(tries < 1000, "{} ns of patience are left", patience());
        }
        drop(outbox);
        reader.abort();
    }

    #[tokio::test]
    async fn a_batch_without_room_comes_back() {
        let (outbox, mut rows) = Outbox::with_patience(SHORT);
        let batch = |at_ns| Of::Acks(wire::Acks { at_ns: vec![at_ns; 1024], ..Default::default() });
        let batches = BATCHED_ROWS / 1024;
        for at_ns in 0..batches as u64 {
            assert_eq!(outbox.offer_batch(batch(at_ns)), None);
        }
        assert_eq!(outbox.offer_batch(batch(100)), Some(batch(100)));
        outbox.offer(Of::Probe(wire::Probe::default()));
        assert_eq!(rows.len(), batches + 1, "a row still finds room");
        drop(rows.recv().await);
        assert_eq!(outbox.offer_batch(batch(101)), None);
        outbox.done(0, 0);
        let found = all(rows).await;
        assert!(matches!(found.last(), Some(Of::Done(done)) if done.rows_dropped == 0));
    }

    /// As every interval, when each of many sockets has a few rows.
    #[tokio::test]
    async fn small_batches_leave_room_for_rows() {
        let (outbox, rows) = Outbox::with_patience(SHORT);
        let batch = || Of::Acks(wire::Acks { at_ns: vec![1; 10], ..Default::default() });
        let most = BATCHED_ROWS / LEAST_ROWS;
        assert!((1000..=CAPACITY / 2).contains(&most));
        for _ in 0..most {
            assert_eq!(outbox.offer_batch(batch()), None);
        }
        assert_eq!(outbox.offer_batch(batch()), Some(batch()));
        outbox.offer(Of::Probe(wire::Probe::default()));
        assert_eq!(rows.len(), most + 1, "a row still finds room");
    }

    #[tokio::test]
    async fn files_have_their_own_capacity() {
        let (outbox, mut rows) = Outbox::with_patience(SHORT);
        let file = vec![7; PIECE_BYTES * (PIECES + 3)];
        outbox.raw("a", &file).await;
        outbox.event(PHASE, "x", "").await;
        assert_eq!(rows.len(), PIECES + 1, "a row still finds room");
        for _ in 0..4 {
            rows.recv().await.expect("a piece");
        }
        outbox.raw("b", &file[..PIECE_BYTES * 4]).await;
        outbox.done(0, 0);
        let found = all(rows).await;
        assert!(
            matches!(found.last(), Some(Of::Done(done)) if done.rows_dropped == 3),
            "{:?}",
            found.last()
        );
    }
}
