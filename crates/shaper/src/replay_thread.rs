//! Replays a trace on the kernel's qdiscs, on its own thread. For each rate change, the thread prepares the netlink message in advance,
//! sleeps until an absolute time, waits busily for a short time, and makes one system call. Results go to a preallocated ring buffer.
//!
//! Deadlines are absolute times of `CLOCK_MONOTONIC`, so a late step does not delay the next one.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread::JoinHandle;

use ccbench_proto::trace::Cursor;
use ccbench_proto::units::Rate;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::thread::{ClockId, clock_nanosleep_absolute};
use rustix::time::Timespec;

use crate::clock::monotonic_ns;
use crate::datapath::thread::{Privileges, SchedClass};
use crate::{ShaperError, sys};

/// Bounds of the busy waiting before a step, which is 1/40 of the time between steps. On a busy CPU, a thread wakes up to about 200 µs
/// late.
const MIN_SPIN_NS: u64 = 60_000;
const MAX_SPIN_NS: u64 = 250_000;
const SPIN_PART: u64 = 40;
/// Minimum time between steps. Steps that follow sooner are skipped and counted.
pub(crate) const MIN_GAP_NS: u64 = 200_000;
/// A step with a larger scheduling error counts as late.
pub(crate) const LATE_NS: u64 = 200_000;
/// Above the packet loops: a step is short, while a packet loop may be busy for long.
const FIFO_PRIORITY: i32 = 20;
/// Within this time before a step, the thread cannot be stopped.
const NO_STOP_NS: u64 = 5_000_000;
/// Capacity of the ring buffer, in steps.
const LOG_STEPS: usize = 1 << 16;
/// Value of `begin_ns` before the begin is known.
const NOT_YET: u64 = u64::MAX;

/// Changes the rate in two phases: it prepares the message in advance, and sends it at the deadline.
pub(crate) trait RateSetter: Send + 'static {
    /// Prepares the message for this rate.
    fn prepare(&mut self, rate: Rate);
    /// Sends the message. When it returns, the rate has changed.
    fn send(&mut self) -> io::Result<()>;
    /// Returns the kernel's acknowledgement: zero or a negative errno.
    fn ack(&mut self) -> i32;
}

/// An applied step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Applied {
    /// When it was due, `CLOCK_MONOTONIC` nanoseconds.
    pub(crate) due_ns: u64,
    /// When it was applied.
    pub(crate) applied_ns: u64,
    pub(crate) rate_bps: u64,
    pub(crate) row: u32,
    /// Zero or a negative errno.
    pub(crate) rc: i32,
}

/// A ring buffer with one writer and one reader.
struct Log {
    slots: Box<[[AtomicU64; 4]]>,
    written: AtomicU64,
    read: AtomicU64,
}

impl Log {
    fn new(slots: usize) -> Self {
        let slots = (0..slots).map(|_| [const { AtomicU64::new(0) }; 4]).collect();
        Self { slots, written: AtomicU64::new(0), read: AtomicU64::new(0) }
    }

    /// Appends a step. Returns false if the ring is full.
    fn push(&self, step: &Applied) -> bool {
        let written = self.written.load(Relaxed);
        if written - self.read.load(Acquire) >= self.slots.len() as u64 {
            return false;
        }
        let slot = &self.slots[written as usize % self.slots.len()];
        let answer = u64::from(step.row) << 32 | u64::from(step.rc.cast_unsigned());
        for (to, value) in slot.iter().zip([step.due_ns, step.applied_ns, step.rate_bps, answer]) {
            to.store(value, Relaxed);
        }
        self.written.store(written + 1, Release);
        true
    }

    fn pop(&self) -> Option<Applied> {
        let read = self.read.load(Relaxed);
        if read == self.written.load(Acquire) {
            return None;
        }
        let slot = &self.slots[read as usize % self.slots.len()];
        let [due_ns, applied_ns, rate_bps, answer] = [0, 1, 2, 3].map(|at| slot[at].load(Relaxed));
        self.read.store(read + 1, Release);
        let (row, rc) = ((answer >> 32) as u32, (answer as u32).cast_signed());
        Some(Applied { due_ns, applied_ns, rate_bps, row, rc })
    }
}

/// State that the thread and its owner share.
struct Shared {
    begin_ns: AtomicU64,
    stop: AtomicU64,
    missed: AtomicU64,
    lost: AtomicU64,
    log: Log,
}

/// Handle of the thread. Dropping it stops the thread.
pub(crate) struct ReplayThread {
    shared: Arc<Shared>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for ReplayThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplayThread").finish_non_exhaustive()
    }
}

impl ReplayThread {
    /// Starts the thread, which waits for [`Self::begin`].
    ///
    /// # Errors
    /// The thread or the eventfd cannot be created.
    pub(crate) fn start(cursor: Cursor, setter: impl RateSetter) -> Result<Self, ShaperError> {
        let system = |op| move |source| ShaperError::System { op, source };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| system("create an eventfd")(e.into()))?;
        let wake = Arc::new(wake);
        let shared = Arc::new(Shared {
            begin_ns: AtomicU64::new(NOT_YET),
            stop: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            log: Log::new(LOG_STEPS),
        });
        let mut player =
            Player { cursor, setter, shared: Arc::clone(&shared), wake: Arc::clone(&wake) };
        let thread = std::thread::Builder::new()
            .name("ccbench-replay".to_owned())
            .spawn(move || player.run())
            .map_err(system("start the trace replay thread"))?;
        Ok(Self { shared, wake, thread: Some(thread) })
    }

    /// Begins the trace at `at_ns`, which may be in the past.
    pub(crate) fn begin(&self, at_ns: u64) {
        self.shared.begin_ns.store(at_ns, Release);
        self.wake_thread();
    }

    /// Returns the oldest step that has not been returned yet.
    pub(crate) fn next_applied(&self) -> Option<Applied> {
        self.shared.log.pop()
    }

    /// Returns the number of steps skipped because the next one was already due or too close.
    pub(crate) fn missed(&self) -> u64 {
        self.shared.missed.load(Relaxed)
    }

    /// Returns the number of steps that were applied but not recorded, because the ring was full.
    pub(crate) fn lost(&self) -> u64 {
        self.shared.lost.load(Relaxed)
    }

    /// Stops the thread. A step that is due within 5 ms may still be applied.
    pub(crate) fn stop(&mut self) {
        self.shared.stop.store(1, Release);
        self.wake_thread();
        if let Some(thread) = self.thread.take() {
            // The panic hook has already printed a panic.
            let _ = thread.join();
        }
    }

    fn wake_thread(&self) {
        // This fails only if the counter overflows, and then the thread is already awake.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

impl Drop for ReplayThread {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Player<C> {
    cursor: Cursor,
    setter: C,
    shared: Arc<Shared>,
    wake: Arc<OwnedFd>,
}

impl<C: RateSetter> Player<C> {
    fn run(&mut self) {
        let mut class = SchedClass::new(Privileges::acquire());
        if class.real_time() {
            // If this fails, the thread keeps the priority of the packet loops, as after a demotion.
            let _ = sys::set_fifo(FIFO_PRIORITY);
        }
        let mut begin_ns = NOT_YET;
        // When the last step was applied.
        let mut last_ns = 0;
        let mut ready = false;
        while self.shared.stop.load(Acquire) == 0 {
            let due_ns = self.shared.begin_ns.load(Acquire);
            if due_ns != begin_ns {
                begin_ns = due_ns;
                self.cursor.begin(begin_ns);
                ready = false;
            }
            ready = ready || self.prepare(last_ns);
            if !ready {
                self.sleep_until(u64::MAX);
                continue;
            }
            let span = self.cursor.span();
            let due_ns = span.from_ns.max(last_ns.saturating_add(MIN_GAP_NS));
            if monotonic_ns().saturating_add(NO_STOP_NS) < due_ns {
                self.sleep_until(due_ns - NO_STOP_NS);
                continue;
            }
            let spin_ns = (due_ns - last_ns) / SPIN_PART;
            wait(due_ns, spin_ns.clamp(MIN_SPIN_NS, MAX_SPIN_NS), &mut class);
            let sent = self.setter.send();
            last_ns = monotonic_ns();
            let rc = match sent {
                Ok(()) => self.setter.ack(),
                Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
            };
            let rate_bps = span.rate.map_or(0, Rate::bits_per_sec);
            let (due_ns, row) = (span.from_ns, span.row);
            let step = Applied { due_ns, applied_ns: last_ns, rate_bps, row, rc };
            if !self.shared.log.push(&step) {
                self.shared.lost.fetch_add(1, Relaxed);
            }
            ready = false;
            class.tick(last_ns);
        }
    }

    /// Advances to the next step that is not obsolete and prepares its message. Returns `false` if there is none.
    fn prepare(&mut self, last_ns: u64) -> bool {
        if !self.cursor.advance() {
            return false;
        }
        let earliest_ns = last_ns.saturating_add(MIN_GAP_NS).max(monotonic_ns());
        while self.cursor.span().until_ns <= earliest_ns && self.cursor.advance() {
            self.shared.missed.fetch_add(1, Relaxed);
        }
        if let Some(rate) = self.cursor.span().rate {
            self.setter.prepare(rate);
        }
        true
    }

    /// Sleeps until `at_ns`, or until the eventfd is written.
    fn sleep_until(&self, at_ns: u64) {
        let timeout = at_ns.checked_sub(monotonic_ns()).filter(|_| at_ns != u64::MAX);
        let timeout = timeout.map(|ns| Timespec {
            tv_sec: (ns / 1_000_000_000).cast_signed(),
            tv_nsec: (ns % 1_000_000_000).cast_signed(),
        });
        let _ = poll(&mut [PollFd::new(&*self.wake, PollFlags::IN)], timeout.as_ref());
        let mut count = [0; 8];
        // The eventfd is empty after a timeout.
        let _ = rustix::io::read(&*self.wake, &mut count);
    }
}

/// Waits until `due_ns`, busily for the last `spin_ns`.
fn wait(due_ns: u64, spin_ns: u64, class: &mut SchedClass) {
    let spin_ns = if class.may_spin() { spin_ns } else { 0 };
    let asleep_ns = due_ns.saturating_sub(spin_ns);
    if asleep_ns > monotonic_ns() {
        let until = Timespec {
            tv_sec: (asleep_ns / 1_000_000_000).cast_signed(),
            tv_nsec: (asleep_ns % 1_000_000_000).cast_signed(),
        };
        while clock_nanosleep_absolute(ClockId::Monotonic, &until) == Err(rustix::io::Errno::INTR) {
        }
        let woke_ns = monotonic_ns();
        class.woke_late(woke_ns, woke_ns.saturating_sub(asleep_ns));
    }
    let spun_from_ns = monotonic_ns();
    let mut now_ns = spun_from_ns;
    while now_ns < due_ns {
        std::hint::spin_loop();
        now_ns = monotonic_ns();
    }
    class.spun(now_ns - spun_from_ns);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use ccbench_proto::plan::TraceUse;
    use ccbench_proto::trace::{self, Replay};
    use ccbench_tests::cpu::CpuWatch;

    use super::*;

    struct RecordingSetter(mpsc::Sender<u64>, u64);

    impl RateSetter for RecordingSetter {
        fn prepare(&mut self, rate: Rate) {
            self.1 = rate.bits_per_sec();
        }
        fn send(&mut self) -> io::Result<()> {
            let _ = self.0.send(self.1);
            if self.1 == 3_000_000 {
                Err(io::Error::from_raw_os_error(libc::EINVAL))
            } else {
                Ok(())
            }
        }
        fn ack(&mut self) -> i32 {
            if self.1 == 2_000_000 { -libc::ENOENT } else { 0 }
        }
    }

    fn start(text: &str) -> (ReplayThread, mpsc::Receiver<u64>) {
        let trace = Arc::new(trace::parse("t", text.as_bytes()).unwrap());
        let replay = Replay { trace, plan: TraceUse::new("t") };
        let (sender, receiver) = mpsc::channel();
        let cursor = Cursor::new(&replay, u64::MAX).unwrap();
        (ReplayThread::start(cursor, RecordingSetter(sender, 0)).unwrap(), receiver)
    }

    #[test]
    fn applies_and_records_every_step_on_time() {
        let watch = CpuWatch::start();
        let (mut thread, receiver) = start("1,0.1\n2,0.1\n3,0.1\n4,9\n");
        let begin_ns = monotonic_ns() + 20_000_000;
        thread.begin(begin_ns);
        let mut rates: Vec<u64> = Vec::new();
        while rates.last() != Some(&4) {
            rates.push(receiver.recv().unwrap() / 1_000_000);
        }
        thread.stop();
        let cpu = watch.report();
        let applied: Vec<Applied> = std::iter::from_fn(|| thread.next_applied()).collect();
        let steps: Vec<(u32, u64, i32)> =
            applied.iter().map(|step| (step.row, step.due_ns - begin_ns, step.rc)).collect();
        let all = [
            (1, 0, 0),
            (2, 100_000_000, -libc::ENOENT),
            (3, 200_000_000, -libc::EINVAL),
            (4, 300_000_000, 0),
        ];
        assert!(steps.iter().all(|step| all.contains(step)), "{steps:?}");
        assert!(applied.iter().all(|step| step.applied_ns >= step.due_ns));
        assert_eq!((steps.len() as u64 + thread.missed(), thread.lost()), (4, 0), "{steps:?}");
        // A row lasts 100 ms. Only a thread that gets no CPU for that long skips it; other tests of this process do not take it for so
        // long.
        cpu.check(Duration::from_millis(100), || {
            assert_eq!(rates, [1, 2, 3, 4]);
            assert_eq!((&steps[..], thread.missed()), (&all[..], 0));
        });
    }

    #[test]
    fn skips_and_counts_steps_that_are_too_close() {
        let text = format!(
            "t_us,rate_bps\n{}",
            (0..1000).map(|nth| format!("{},{}\n", nth * 50, nth + 1)).collect::<String>()
        );
        let (mut thread, receiver) = start(&text);
        thread.begin(monotonic_ns() + 1_000_000);
        while receiver.recv().unwrap() != 1000 {}
        thread.stop();
        let applied: Vec<Applied> = std::iter::from_fn(|| thread.next_applied()).collect();
        assert_eq!(applied.len() as u64 + thread.missed(), 1000);
        let gaps = applied.windows(2).map(|pair| pair[1].applied_ns - pair[0].applied_ns);
        assert!(gaps.min().unwrap() >= MIN_GAP_NS);
    }

    #[test]
    fn stops_before_the_begin_and_during_a_long_row() {
        drop(start("1,1000\n2,1\n"));
        let (thread, receiver) = start("1,1000\n2,1\n");
        thread.begin(0);
        thread.begin(monotonic_ns());
        // If the thread sees the first begin, it applies the row in which the trace would be now.
        while receiver.recv().unwrap() != 1_000_000 {}
        drop(thread);
    }

    #[test]
    fn full_ring_rejects_steps() {
        let log = Log::new(2);
        let step = Applied { due_ns: 1, applied_ns: 2, rate_bps: 3, row: u32::MAX, rc: -5 };
        assert!(log.push(&step) && log.push(&step) && !log.push(&step));
        assert_eq!(log.pop(), Some(step));
        assert!(log.push(&step) && !log.push(&step));
    }
}
