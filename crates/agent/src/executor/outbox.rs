//! The channel of rows to the controller. It is bounded, never blocks the sampler, and counts dropped rows.

use std::future::Future;
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ccbench_proto::event::Kind;
use ccbench_proto::wire::{self, run_event::Payload};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clock;
use crate::event::event;
use crate::sockets::names::Names;

/// Limit of rows that wait for the controller: about 8 MiB. One more place is reserved for the last message.
const CAPACITY: usize = 8192;
/// How long a row may wait, and the total for all rows of a trial: a controller that reads slowly must not prolong the
/// trial.
const WAIT_LIMIT: WaitLimit =
    WaitLimit { each: Duration::from_secs(2), total: Duration::from_secs(4) };
/// Size of a piece of a file, well under gRPC's message limit of 4 MiB.
const PIECE_BYTES: usize = 512 << 10;
/// If the controller takes no piece for this long, the rest of the file is dropped.
const PIECE_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of file pieces that wait for the controller: 8 MiB.
const PIECES: usize = 16;
/// Limit of batched rows that wait for the controller: about 16 MiB.
const BATCHED_ROWS: usize = 64 << 10;
/// Each batch counts as at least this many rows, so that batches take at most half of the channel.
const MIN_BATCH_ROWS: usize = 2 * BATCHED_ROWS / CAPACITY;

#[derive(Debug, Clone, Copy)]
struct WaitLimit {
    each: Duration,
    total: Duration,
}

/// A row on its way to the controller.
#[derive(Debug)]
pub struct Outgoing {
    /// The row.
    pub event: wire::RunEvent,
    /// Held by a file piece or a batch of rows until the stream takes it.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Outgoing {
    fn new(payload: Payload, permit: Option<OwnedSemaphorePermit>) -> Self {
        Self { event: wire::RunEvent { payload: Some(payload) }, _permit: permit }
    }
}

/// The sending half of the channel. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Outbox {
    rows: mpsc::Sender<Outgoing>,
    /// The reserved place of the last message.
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
    /// Set when a row has timed out: no row waits again until one is sent.
    blocked: AtomicBool,
    /// What remains of [`WaitLimit::total`].
    wait_left_ns: AtomicU64,
}

impl Outbox {
    /// Returns an outbox and its receiver. Rows carry the plan's `names` of congestion controls.
    pub fn new(names: Names) -> (Self, mpsc::Receiver<Outgoing>) {
        let (outbox, rows) = Self::with_limit(WAIT_LIMIT);
        (Self { names: Arc::new(names), ..outbox }, rows)
    }

    fn with_limit(limit: WaitLimit) -> (Self, mpsc::Receiver<Outgoing>) {
        let (rows, outgoing) = mpsc::channel(CAPACITY + 1);
        let last = Arc::new(Mutex::new(rows.clone().try_reserve_owned().ok()));
        let total_ns = u64::try_from(limit.total.as_nanos()).unwrap_or(u64::MAX);
        let counts = Counts { wait_left_ns: total_ns.into(), ..Counts::default() };
        let [pieces, batches] =
            [PIECES, BATCHED_ROWS].map(|permits| Arc::new(Semaphore::new(permits)));
        let (each, counts, names) = (limit.each, Arc::new(counts), Arc::default());
        (Self { rows, last, pieces, batches, each, counts, names }, outgoing)
    }

    /// Sends now, or drops the row and counts it. Used by samplers, which must not wait.
    pub fn offer(&self, mut payload: Payload) {
        self.names.translate(&mut payload);
        let ok = self.rows.try_send(Outgoing::new(payload, None)).is_ok();
        self.count(ok);
    }

    /// Returns how many rows may be offered now. Half of the capacity is reserved for single messages.
    pub fn capacity_for_rows(&self) -> usize {
        self.rows.capacity().saturating_sub(CAPACITY / 2)
    }

    /// Sends many rows in one message now, or returns them for the caller to count. Batches have a limit of their own.
    pub fn offer_batch(&self, mut payload: Payload) -> Option<Payload> {
        let rows = match &payload {
            Payload::Acks(acks) => acks.at_ns.len(),
            Payload::TcpEvents(all) => all.events.len(),
            _ => 1,
        };
        // A batch above the limit never fits.
        let rows = u32::try_from(rows.max(MIN_BATCH_ROWS)).unwrap_or(u32::MAX);
        let Ok(permit) = Arc::clone(&self.batches).try_acquire_many_owned(rows) else {
            return Some(payload);
        };
        self.names.translate(&mut payload);
        match self.rows.try_send(Outgoing::new(payload, Some(permit))) {
            Ok(()) => {
                self.count(true);
                None
            }
            Err(TrySendError::Full(outgoing) | TrySendError::Closed(outgoing)) => {
                outgoing.event.payload
            }
        }
    }

    /// Waits for capacity within [`WaitLimit`]. Returns whether the row was sent.
    pub async fn send(&self, payload: Payload) -> bool {
        self.try_to_send(payload).await.is_none()
    }

    /// Like [`Self::send`], but returns the row if it was not sent.
    pub async fn try_to_send(&self, mut payload: Payload) -> Option<Payload> {
        self.names.translate(&mut payload);
        let back = self.put(Outgoing::new(payload, None)).await;
        self.counts.blocked.store(back.is_some(), Ordering::Relaxed);
        self.count(back.is_none());
        back
    }

    /// Returns the row if it was not sent.
    async fn put(&self, outgoing: Outgoing) -> Option<Payload> {
        let outgoing = match self.rows.try_send(outgoing) {
            Ok(()) => return None,
            Err(TrySendError::Closed(outgoing)) => return outgoing.event.payload,
            Err(TrySendError::Full(outgoing)) => outgoing,
        };
        match self.within_limit(self.rows.reserve()).await {
            Some(Ok(permit)) => {
                permit.send(outgoing);
                None
            }
            _ => outgoing.event.payload,
        }
    }

    /// Runs a future within [`WaitLimit`].
    async fn within_limit<T>(&self, what: impl Future<Output = T>) -> Option<T> {
        if self.counts.blocked.load(Ordering::Relaxed) {
            return None;
        }
        let left = Duration::from_nanos(self.counts.wait_left_ns.load(Ordering::Relaxed));
        let from_ns = clock::now_ns();
        let came = tokio::time::timeout(self.each.min(left), what).await;
        let waited_ns = clock::now_ns().saturating_sub(from_ns);
        let less = |left: u64| Some(left.saturating_sub(waited_ns));
        // The closure always returns a value, so this cannot fail.
        let _ = self.counts.wait_left_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        came.ok()
    }

    fn count(&self, ok: bool) {
        let count = if ok { &self.counts.sent } else { &self.counts.dropped };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Sends an event with the current time.
    pub async fn event(&self, kind: Kind, subject: &str, message: impl Into<String>) {
        self.send(Payload::Event(event(kind, subject, message))).await;
    }

    /// Sends a file for the trial's raw/ directory. After a piece that is lost, all others are, too: the file ends there and has no gap.
    /// `dropped_bytes`, which the file lacks at its end, count as pieces that are lost.
    ///
    /// # Errors
    /// The file cannot be read any further; the rest counts as a piece that is lost.
    pub async fn raw(
        &self,
        name: &str,
        data: &mut (impl Read + Send),
        dropped_bytes: u64,
    ) -> io::Result<()> {
        let mut whole = true;
        let dropped_pieces = dropped_bytes.div_ceil(PIECE_BYTES as u64);
        self.counts.dropped.fetch_add(dropped_pieces, Ordering::Relaxed);
        loop {
            let mut piece = Vec::new();
            let read = data.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut piece);
            read.inspect_err(|_| self.count(false))?;
            if piece.is_empty() {
                return Ok(());
            }
            whole = whole && self.raw_piece(name, piece).await;
            self.counts.blocked.store(!whole, Ordering::Relaxed);
            self.count(whole);
        }
    }

    /// Returns whether the piece was sent.
    async fn raw_piece(&self, name: &str, piece: Vec<u8>) -> bool {
        let permit = match Arc::clone(&self.pieces).try_acquire_owned() {
            Ok(permit) => Some(permit),
            Err(_) => {
                let permit = self.within_limit(Arc::clone(&self.pieces).acquire_owned()).await;
                permit.and_then(Result::ok)
            }
        };
        let Some(permit) = permit else { return false };
        let raw = wire::Raw { name: name.to_owned(), data: piece };
        self.put(Outgoing::new(Payload::Raw(raw), Some(permit))).await.is_none()
    }

    /// Sends a piece of a file when nothing else is left to do. Waits for the controller to take a piece, at most `limit` and
    /// [`PIECE_TIMEOUT`]. Returns whether the piece was sent.
    pub async fn raw_whole(&self, name: &str, piece: &[u8], limit: Duration) -> bool {
        let sending = async {
            let permit = Arc::clone(&self.pieces).acquire_owned().await.ok()?;
            let raw = wire::Raw { name: name.to_owned(), data: piece.to_vec() };
            self.rows.send(Outgoing::new(Payload::Raw(raw), Some(permit))).await.ok()
        };
        let limit = limit.min(PIECE_TIMEOUT);
        // A timeout of zero would still send what does not have to wait.
        let ok =
            !limit.is_zero() && matches!(tokio::time::timeout(limit, sending).await, Ok(Some(())));
        self.count(ok);
        ok
    }

    /// Sends the last message of a stream. Its place is reserved.
    pub fn done(&self, samples_late: u64, samples_missed: u64) {
        let done = wire::Done {
            rows_sent: self.counts.sent.load(Ordering::Relaxed),
            rows_dropped: self.counts.dropped.load(Ordering::Relaxed),
            samples_late,
            samples_missed,
        };
        if let Some(permit) = self.last.lock().unwrap_or_else(PoisonError::into_inner).take() {
            permit.send(Outgoing::new(Payload::Done(done), None));
        }
    }

    /// From now on, no row waits for capacity.
    pub fn stop_waiting(&self) {
        self.counts.wait_left_ns.store(0, Ordering::Relaxed);
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
    const SHORT: WaitLimit =
        WaitLimit { each: Duration::from_millis(10), total: Duration::from_millis(100) };

    fn full(limit: WaitLimit) -> (Outbox, mpsc::Receiver<Outgoing>) {
        let (outbox, rows) = Outbox::with_limit(limit);
        for _ in 0..CAPACITY {
            outbox.offer(Payload::Probe(wire::Probe::default()));
        }
        (outbox, rows)
    }

    async fn all(mut rows: mpsc::Receiver<Outgoing>) -> Vec<Payload> {
        rows.close();
        let mut found = Vec::new();
        while let Some(outgoing) = rows.recv().await {
            found.extend(outgoing.event.payload);
        }
        found
    }

    #[tokio::test]
    async fn drops_rows_instead_of_waiting() {
        let (outbox, mut rows) = full(SHORT);
        for _ in 0..5 {
            outbox.offer(Payload::Probe(wire::Probe::default()));
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
        assert_eq!(all(rows).await.last(), Some(&Payload::Done(done)));
    }

    #[tokio::test]
    async fn the_last_message_has_a_reserved_place() {
        let (outbox, rows) = full(SHORT);
        outbox.event(PHASE, "x", "").await;
        outbox.done(0, 0);
        outbox.offer(Payload::Probe(wire::Probe::default()));
        let found = all(rows).await;
        assert_eq!(found.len(), CAPACITY + 1);
        assert!(matches!(found.last(), Some(Payload::Done(done)) if done.rows_dropped == 1));
    }

    #[tokio::test]
    async fn a_slow_reader_exhausts_the_total_wait() {
        let (outbox, mut rows) = full(WaitLimit { each: Duration::from_secs(60), ..SHORT });
        let reader = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(7)).await;
                if rows.recv().await.is_none() {
                    return;
                }
            }
        });
        let left_ns = || outbox.counts.wait_left_ns.load(Ordering::Relaxed);
        let mut tries = 0;
        while left_ns() > 0 {
            outbox.event(PHASE, "x", "").await;
            tries += 1;
            assert!(tries < 1000, "{} ns are left", left_ns());
        }
        assert!(tries > 0, "no time was left at the beginning");
        drop(outbox);
        reader.abort();
    }

    #[tokio::test]
    async fn a_batch_above_the_limit_comes_back() {
        let (outbox, mut rows) = Outbox::with_limit(SHORT);
        let batch =
            |at_ns| Payload::Acks(wire::Acks { at_ns: vec![at_ns; 1024], ..Default::default() });
        let batches = BATCHED_ROWS / 1024;
        for at_ns in 0..batches as u64 {
            assert_eq!(outbox.offer_batch(batch(at_ns)), None);
        }
        assert_eq!(outbox.offer_batch(batch(100)), Some(batch(100)));
        outbox.offer(Payload::Probe(wire::Probe::default()));
        assert_eq!(rows.len(), batches + 1, "a row is still accepted");
        drop(rows.recv().await);
        assert_eq!(outbox.offer_batch(batch(101)), None);
        outbox.done(0, 0);
        let found = all(rows).await;
        assert!(matches!(found.last(), Some(Payload::Done(done)) if done.rows_dropped == 0));
    }

    /// Models an interval in which each of many sockets has a few rows.
    #[tokio::test]
    async fn small_batches_leave_capacity_for_rows() {
        let (outbox, rows) = Outbox::with_limit(SHORT);
        let batch = || Payload::Acks(wire::Acks { at_ns: vec![1; 10], ..Default::default() });
        let most = BATCHED_ROWS / MIN_BATCH_ROWS;
        assert!((1000..=CAPACITY / 2).contains(&most));
        for _ in 0..most {
            assert_eq!(outbox.offer_batch(batch()), None);
        }
        assert_eq!(outbox.offer_batch(batch()), Some(batch()));
        outbox.offer(Payload::Probe(wire::Probe::default()));
        assert_eq!(rows.len(), most + 1, "a row is still accepted");
    }

    #[tokio::test]
    async fn files_have_their_own_capacity() {
        let (outbox, mut rows) = Outbox::with_limit(SHORT);
        let file = vec![7; PIECE_BYTES * (PIECES + 3)];
        outbox.raw("a", &mut &file[..], 0).await.unwrap();
        outbox.event(PHASE, "x", "").await;
        assert_eq!(rows.len(), PIECES + 1, "a row is still accepted");
        for _ in 0..4 {
            rows.recv().await.expect("a piece");
        }
        outbox.raw("b", &mut &file[..PIECE_BYTES * 4], 0).await.unwrap();
        outbox.done(0, 0);
        let found = all(rows).await;
        assert!(
            matches!(found.last(), Some(Payload::Done(done)) if done.rows_dropped == 3),
            "{:?}",
            found.last()
        );
    }

    #[tokio::test]
    async fn bytes_that_a_file_lacks_count_as_lost_pieces() {
        let (outbox, rows) = Outbox::with_limit(SHORT);
        outbox.raw("a", &mut &b"begin"[..], PIECE_BYTES as u64 + 1).await.unwrap();
        outbox.done(0, 0);
        let found = all(rows).await;
        assert!(matches!(&found[0], Payload::Raw(raw) if raw.data == b"begin"), "{:?}", found[0]);
        let done = found.last();
        assert!(matches!(done, Some(Payload::Done(done)) if done.rows_dropped == 2), "{done:?}");
    }
}
