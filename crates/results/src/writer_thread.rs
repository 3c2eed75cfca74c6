//! The thread that writes a trial's files. If the thread that reads the nodes' streams sorted, encoded and compressed rows, it would delay
//! the nodes.
//!
//! Rows reach the thread through a queue of [`QUEUE_ROWS`]. A full queue stops the reading of streams; then the agents' own bounded queues
//! fill up, and the agents count what they drop. An error ends the thread, and every later call returns the error.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use ccbench_proto::wire::{self, run_event::Payload};
use tokio::sync::Notify;

use super::cells::TimeAxis;
use super::columns::{
    AckColumns, AckCountColumns, CcStateColumns, ClockColumns, ClockRow, EventColumns, FlowColumns,
    FlowSampleColumns, HostSampleColumns, IntervalColumns, LinkChangeColumns, LinkPacketColumns,
    LinkTimingColumns, Origin, ProbeColumns, QdiscSampleColumns, TcpEventColumns,
};
use super::digest::{DigestedFile, FileDigest};
use super::part::{Finished, Metadata, Part, ROW_GROUP_ROWS, make_dir, sync};
use crate::error::{FileError, Result, io_error};

/// The writing thread failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The thread panicked.
    #[error(
        "the thread that writes the trial's tables panicked (a bug in ccbench); \
         `ccbench run --resume` repeats the trial"
    )]
    Panicked,
}

/// Capacity of the queue, which a single message may exceed: two row groups, about 10 MB of `acks`.
const QUEUE_ROWS: usize = 2 * ROW_GROUP_ROWS;
/// Minimum number of rows that a message counts as: a single row takes as much memory as a dozen rows in a batch.
const MIN_ROWS: usize = 16;
/// Number of rows that wake the thread. Waking it takes longer than writing most single rows.
const WAKE_ROWS: usize = 64 * MIN_ROWS;
/// Bytes of a raw file that count as one row.
const RAW_BYTES_PER_ROW: usize = 256;

/// One thing to write.
pub(super) struct Job {
    /// The value of the column `node`.
    pub(super) node: String,
    pub(super) what: JobKind,
}

#[expect(clippy::large_enum_variant, reason = "nearly all are rows, and a box for each costs more")]
pub(super) enum JobKind {
    /// A row of a node, with times of the node's clock.
    Row(Payload),
    /// An event of the controller, with the controller's time.
    Note(wire::Event),
    /// The relation of the node's clock to the controller's.
    Clock(ClockRow),
}

impl Job {
    /// Returns the job's approximate size in rows of a batch.
    fn rows(&self) -> usize {
        let rows = match &self.what {
            JobKind::Row(Payload::Acks(batch)) => batch.at_ns.len(),
            JobKind::Row(Payload::TcpEvents(batch)) => batch.events.len(),
            JobKind::Row(Payload::Raw(piece)) => piece.data.len() / RAW_BYTES_PER_ROW,
            _ => 1,
        };
        rows.max(MIN_ROWS)
    }
}

/// The written files.
#[derive(Default)]
pub(super) struct Written {
    /// Tables.
    pub(super) tables: Vec<Finished>,
    /// Raw files, by node and name.
    pub(super) raw: BTreeMap<(String, String), FileDigest>,
}

/// Handle of the thread. Dropping it ends the thread without finishing the files.
pub(super) struct WriterThread {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

impl WriterThread {
    /// Starts the thread.
    pub(super) fn start(files: Files) -> Result<Self> {
        let queue = Arc::new(Queue::default());
        let (to_thread, staging) = (Arc::clone(&queue), files.staging.clone());
        let thread = std::thread::Builder::new()
            .name("tables".to_owned())
            .spawn(move || run(&to_thread, files))
            .map_err(io_error("start the thread that writes", &staging))?;
        Ok(Self { queue, thread: Some(thread) })
    }

    /// Waits until [`WriterThread::push`] does not block.
    pub(super) async fn wait_for_room(&self) {
        self.queue.until(|state| !state.full || state.ended.is_some()).await;
    }

    /// Returns whether [`WriterThread::push`] would not block.
    pub(super) fn has_room(&self) -> bool {
        !self.queue.state().full
    }

    /// Queues a job. Blocks while the queue is full.
    pub(super) fn push(&self, job: Job) -> Result<(), Arc<WriteError>> {
        self.queue.push(job)
    }

    /// Writes the remaining rows, syncs all files, and waits until that is done.
    pub(super) async fn finished(&self) {
        self.queue.want(Wanted::Finish);
        self.queue.until(|state| state.ended.is_some()).await;
    }

    /// As [`Self::finished`], but blocks and returns the written files.
    pub(super) fn finish(mut self) -> Result<Written, Arc<WriteError>> {
        self.queue.want(Wanted::Finish);
        self.join();
        match self.queue.state().ended.take() {
            Some(Ok(written)) => Ok(written),
            Some(Err(error)) => Err(error),
            None => Err(Arc::new(WriteError::Panicked)),
        }
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // `PanicGuard` has recorded a panic.
            let _ = thread.join();
        }
    }
}

impl Drop for WriterThread {
    fn drop(&mut self) {
        self.queue.want(Wanted::Nothing);
        self.join();
    }
}

/// Writes the jobs of a queue to files until no more will come.
fn run(queue: &Queue, mut files: Files) {
    let guard = PanicGuard(queue);
    let ended = loop {
        match queue.next() {
            Ok(job) => {
                if let Err(error) = files.put(job) {
                    break Err(error);
                }
            }
            Err(Wanted::Nothing) => return,
            Err(_) => break files.finish(),
        }
    };
    queue.end(ended.map_err(|error| Arc::new(WriteError::File(error))));
    drop(guard);
}

/// Records the end of the thread if it panics, so that waiters return.
struct PanicGuard<'a>(&'a Queue);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        self.0.end(Err(Arc::new(WriteError::Panicked)));
    }
}

/// Jobs that wait for the thread.
#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    /// Notified when there is enough work for the thread, or when no more will come.
    work: Condvar,
    /// Notified when there is room.
    room: Condvar,
    /// As `room`, for async waiters; also notified at the end.
    changed: Notify,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Number of rows in `jobs`.
    rows: usize,
    /// Set when [`QUEUE_ROWS`] is reached, until half of the rows are gone.
    full: bool,
    /// Whether the thread waits for work.
    is_idle: bool,
    wanted: Wanted,
    ended: Option<Result<Written, Arc<WriteError>>>,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    #[default]
    Rows,
    /// No more jobs will come: finish every file.
    Finish,
    /// Drop all jobs.
    Nothing,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: Job) -> Result<(), Arc<WriteError>> {
        let mut state = self.state();
        while state.full && state.ended.is_none() {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(Err(error)) = &state.ended {
            return Err(Arc::clone(error));
        }
        state.rows += job.rows();
        state.full = state.rows >= QUEUE_ROWS;
        state.jobs.push_back(job);
        let wakes = state.is_idle && state.rows >= WAKE_ROWS;
        state.is_idle &= !wakes;
        drop(state);
        if wakes {
            self.work.notify_one();
        }
        Ok(())
    }

    /// Returns the next job or a command. If there is no job, waits for [`WAKE_ROWS`] or a command.
    fn next(&self) -> Result<Job, Wanted> {
        let mut state = self.state();
        loop {
            if state.wanted == Wanted::Nothing {
                return Err(Wanted::Nothing);
            }
            if let Some(job) = state.jobs.pop_front() {
                state.rows -= job.rows();
                if state.full && state.rows <= QUEUE_ROWS / 2 {
                    state.full = false;
                    self.room.notify_one();
                    self.changed.notify_one();
                }
                return Ok(job);
            }
            if state.wanted == Wanted::Finish {
                return Err(Wanted::Finish);
            }
            state.is_idle = true;
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.is_idle = false;
        }
    }

    /// Records the end of writing; the first call wins.
    fn end(&self, ended: Result<Written, Arc<WriteError>>) {
        let mut state = self.state();
        state.ended.get_or_insert(ended);
        (state.rows, state.full) = (0, false);
        let left = std::mem::take(&mut state.jobs);
        drop(state);
        drop(left);
        self.room.notify_one();
        self.changed.notify_one();
    }

    fn want(&self, wanted: Wanted) {
        self.state().wanted = wanted;
        self.work.notify_one();
    }

    /// Waits until the condition holds. Only one task waits at a time.
    async fn until(&self, condition: impl Fn(&State) -> bool) {
        while !condition(&self.state()) {
            self.changed.notified().await;
        }
    }
}

/// The files of a trial while they are written. The thread owns them.
pub(super) struct Files {
    pub(super) point_id: u32,
    pub(super) trial: u16,
    /// The clocks' axes, by node.
    pub(super) axes: BTreeMap<String, TimeAxis>,
    pub(super) controller: TimeAxis,
    pub(super) meta: Metadata,
    pub(super) staging: PathBuf,
    tables: Tables,
    raw: BTreeMap<(String, String), DigestedFile>,
}

impl Files {
    /// Creates the files of one trial under `staging`, with `meta` in every file's footer and at most `row_group_rows` rows per row group.
    pub(super) fn new(
        (point_id, trial): (u32, u16),
        axes: BTreeMap<String, TimeAxis>,
        controller: TimeAxis,
        meta: Metadata,
        (staging, row_group_rows): (PathBuf, usize),
    ) -> Self {
        let tables = Tables::new(&staging, row_group_rows);
        Self { point_id, trial, axes, controller, meta, staging, tables, raw: BTreeMap::new() }
    }

    fn put(&mut self, job: Job) -> Result<()> {
        let Job { node, what } = job;
        let axis = match what {
            JobKind::Note(_) => &self.controller,
            _ => self.axes.get(&node).unwrap_or(&self.controller),
        };
        let (point_id, trial) = (self.point_id, self.trial);
        let origin = Origin { point_id, trial, node: &node, axis };
        match what {
            JobKind::Row(Payload::Raw(piece)) => self.append_raw(&node, piece),
            JobKind::Row(of) => self.tables.put(&origin, of, &self.meta),
            JobKind::Note(event) => self.tables.events.put(&origin, event.into(), &self.meta),
            JobKind::Clock(row) => self.tables.clock.put(&origin, row, &self.meta),
        }
    }

    fn append_raw(&mut self, node: &str, piece: wire::Raw) -> Result<()> {
        let dir = self.staging.join("raw").join(node);
        let path = dir.join(&piece.name);
        let key = (node.to_owned(), piece.name);
        if !self.raw.contains_key(&key) {
            make_dir(&self.staging.join("raw"))?;
            make_dir(&dir)?;
            let file = File::create_new(&path).map_err(io_error("create", &path))?;
            self.raw.insert(key.clone(), DigestedFile::new(file));
        }
        match self.raw.get_mut(&key) {
            Some(file) => file.write_all(&piece.data).map_err(io_error("write", &path)),
            None => Ok(()),
        }
    }

    fn finish(self) -> Result<Written> {
        let tables = self.tables.finish(&self.meta)?;
        let mut raw = BTreeMap::new();
        for ((node, name), file) in self.raw {
            let dir = self.staging.join("raw").join(&node);
            let digest = file.finish().map_err(io_error("make durable", &dir.join(&name)))?;
            sync(&dir)?;
            raw.insert((node, name), digest);
        }
        if !raw.is_empty() {
            sync(&self.staging.join("raw"))?;
        }
        Ok(Written { tables, raw })
    }
}

struct Tables {
    flows: Part<FlowColumns>,
    flow_samples: Part<FlowSampleColumns>,
    intervals: Part<IntervalColumns>,
    probes: Part<ProbeColumns>,
    qdisc_samples: Part<QdiscSampleColumns>,
    link_changes: Part<LinkChangeColumns>,
    link_timing: Part<LinkTimingColumns>,
    link_packets: Part<LinkPacketColumns>,
    cc_state: Part<CcStateColumns>,
    acks: Part<AckColumns>,
    tcp_events: Part<TcpEventColumns>,
    ack_counts: Part<AckCountColumns>,
    host_samples: Part<HostSampleColumns>,
    events: Part<EventColumns>,
    clock: Part<ClockColumns>,
}

impl Tables {
    fn new(dir: &Path, limit: usize) -> Self {
        Self {
            flows: Part::new(dir, limit),
            flow_samples: Part::new(dir, limit),
            intervals: Part::new(dir, limit),
            probes: Part::new(dir, limit),
            qdisc_samples: Part::new(dir, limit),
            link_changes: Part::new(dir, limit),
            link_timing: Part::new(dir, limit),
            link_packets: Part::new(dir, limit),
            cc_state: Part::new(dir, limit),
            acks: Part::new(dir, limit),
            tcp_events: Part::new(dir, limit),
            ack_counts: Part::new(dir, limit),
            host_samples: Part::new(dir, limit),
            events: Part::new(dir, limit),
            clock: Part::new(dir, limit),
        }
    }

    fn put(&mut self, origin: &Origin<'_>, payload: Payload, meta: &Metadata) -> Result<()> {
        match payload {
            Payload::FlowSample(row) => self.flow_samples.put(origin, row, meta),
            Payload::Interval(row) => self.intervals.put(origin, row, meta),
            Payload::Probe(row) => self.probes.put(origin, row, meta),
            Payload::QdiscSample(row) => self.qdisc_samples.put(origin, row, meta),
            Payload::LinkChange(row) => self.link_changes.put(origin, row, meta),
            Payload::LinkTiming(row) => self.link_timing.put(origin, row, meta),
            Payload::LinkPacket(row) => self.link_packets.put(origin, row, meta),
            Payload::CcState(row) => self.cc_state.put(origin, row, meta),
            Payload::Acks(rows) => self.acks.put(origin, rows, meta),
            Payload::TcpEvents(rows) => {
                let mut rows = rows.events.into_iter();
                rows.try_for_each(|row| self.tcp_events.put(origin, row, meta))
            }
            Payload::AckCount(row) => self.ack_counts.put(origin, row, meta),
            Payload::HostSample(row) => self.host_samples.put(origin, row, meta),
            Payload::Event(row) => self.events.put(origin, row.into(), meta),
            Payload::Flow(row) => self.flows.put(origin, row, meta),
            // No rows of tables: a note of the controller, and a raw file.
            Payload::Done(_) | Payload::Raw(_) => Ok(()),
        }
    }

    fn finish(self, meta: &Metadata) -> Result<Vec<Finished>> {
        let finished = [
            self.flows.finish(meta)?,
            self.flow_samples.finish(meta)?,
            self.intervals.finish(meta)?,
            self.probes.finish(meta)?,
            self.qdisc_samples.finish(meta)?,
            self.link_changes.finish(meta)?,
            self.link_timing.finish(meta)?,
            self.link_packets.finish(meta)?,
            self.cc_state.finish(meta)?,
            self.acks.finish(meta)?,
            self.tcp_events.finish(meta)?,
            self.ack_counts.finish(meta)?,
            self.host_samples.finish(meta)?,
            self.events.finish(meta)?,
            self.clock.finish(meta)?,
        ];
        Ok(finished.into_iter().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    fn batch(rows: usize) -> Job {
        let acks = wire::Acks { at_ns: vec![1; rows], ..Default::default() };
        Job { node: "src".into(), what: JobKind::Row(Payload::Acks(acks)) }
    }

    async fn is_ready(queue: &Queue) -> bool {
        let mut waiting = std::pin::pin!(queue.until(|state| !state.full));
        std::future::poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_ready())).await
    }

    #[tokio::test]
    async fn full_queue_blocks_until_one_row_group_is_written() {
        let queue = Arc::new(Queue::default());
        for _ in 0..64 {
            assert!(is_ready(&queue).await);
            queue.push(batch(1024)).unwrap();
        }
        assert!(!is_ready(&queue).await);
        for _ in 0..31 {
            assert!(queue.next().is_ok());
        }
        assert!(!is_ready(&queue).await, "woken when there is room for much, not for each message");
        let pushing = std::thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.push(batch(1))
        });
        let mut waiting = std::pin::pin!(queue.until(|state| !state.full));
        let before = std::future::poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx))).await;
        assert!(before.is_pending());
        assert!(queue.next().is_ok());
        waiting.await;
        pushing.join().unwrap().unwrap();
        assert_eq!(queue.state().rows, 32 * 1024 + MIN_ROWS);
    }

    #[test]
    fn the_thread_is_woken_for_many_rows_and_at_the_end() {
        let queue = Queue::default();
        let push = |rows| {
            queue.push(batch(rows)).unwrap();
            queue.state().is_idle
        };
        queue.state().is_idle = true;
        assert!((1..64).all(|_| push(1)), "woken too early");
        assert!(!push(1), "not woken");
        // The thread takes the jobs one by one.
        for _ in 0..64 {
            assert!(queue.next().is_ok());
        }
        queue.state().is_idle = true;
        assert!(push(1) && !push(WAKE_ROWS));
        // At the end, even a few rows are written.
        let queue = Arc::new(Queue::default());
        let thread = std::thread::spawn({
            let queue = Arc::clone(&queue);
            move || (queue.next().is_ok(), queue.next().err() == Some(Wanted::Finish))
        });
        queue.push(batch(1)).unwrap();
        queue.want(Wanted::Finish);
        assert_eq!(thread.join().unwrap(), (true, true));
    }

    #[test]
    fn large_raw_pieces_count_for_many_rows() {
        let raw = |bytes| wire::Raw { name: "x".into(), data: vec![0; bytes] };
        let rows =
            |bytes| Job { node: "src".into(), what: JobKind::Row(Payload::Raw(raw(bytes))) }.rows();
        assert_eq!((rows(0), rows(512 << 10)), (MIN_ROWS, 2048));
    }

    #[test]
    fn waiting_push_returns_when_the_thread_ends() {
        let queue = Arc::new(Queue::default());
        queue.push(batch(QUEUE_ROWS)).unwrap();
        let pushing = std::thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.push(batch(1))
        });
        drop(PanicGuard(&queue));
        let error = pushing.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
    }

    #[test]
    fn dropping_the_writer_ends_its_thread() {
        let dir = tempfile::tempdir().unwrap();
        let axis = TimeAxis { t0_ns: 0, realtime_offset_ns: 0, drift_ppb: 0, phases: vec![] };
        let staging = (dir.path().to_path_buf(), 4);
        let files = Files::new((0, 1), BTreeMap::new(), axis, Metadata(vec![]), staging);
        let writer = WriterThread::start(files).unwrap();
        let queue = Arc::clone(&writer.queue);
        writer.push(batch(1)).unwrap();
        drop(writer);
        assert_eq!(Arc::strong_count(&queue), 1);
    }
}
