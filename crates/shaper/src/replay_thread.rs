//! Plays a trace on the kernel's qdiscs, on a thread of its own: every change of rate is a message that is
//! complete before its time comes; then an absolute sleep, a short spin, and one system call. What was
//! asked and what came of it is written into memory that was there before.
//!
//! Deadlines are the trace's own, on `CLOCK_MONOTONIC`: a late step does not make the next one late.

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
use crate::datapath::thread::{Class, Privileges};
use crate::{ShaperError, sys};

/// The sleep ends so long before a step is due, and the rest is spun: a fortieth of the time between steps within
/// these bounds. A busy processor wakes a thread up to some 200 µs late.
const LEAST_SPIN_NS: u64 = 60_000;
const MOST_SPIN_NS: u64 = 250_000;
const SPIN_PART: u64 = 40;
/// Steps are at least so far apart: what comes thicker is left out and counted.
pub(crate) const LEAST_GAP_NS: u64 = 200_000;
/// A step that comes so much after its time is late.
pub(crate) const LATE_NS: u64 = 200_000;
/// Above the packet loops, which may have much to do; a step is over at once.
const FIFO_PRIORITY: i32 = 20;
/// Until so long before a step the thread can be stopped.
const DEAF_NS: u64 = 5_000_000;
/// Steps that may be written down and not yet fetched.
const LOG_STEPS: usize = 1 << 16;
/// Told before the trial has begun.
const NOT_YET: u64 = u64::MAX;

/// What changes the rate. Its two halves: what can be done before the time has come, and what must wait.
pub(crate) trait Changer: Send + 'static {
    /// Makes the message ready for this rate.
    fn prepare(&mut self, rate: Rate);
    /// Sends what is ready: the change has happened when this returns.
    fn send(&mut self) -> io::Result<()>;
    /// What the kernel answered: zero, or minus the error number.
    fn answer(&mut self) -> i32;
}

/// A step as it turned out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Applied {
    /// When it was due, `CLOCK_MONOTONIC` nanoseconds.
    pub(crate) asked_ns: u64,
    /// When it had happened.
    pub(crate) applied_ns: u64,
    pub(crate) rate_bps: u64,
    pub(crate) row: u32,
    /// Zero, or minus an error number.
    pub(crate) rc: i32,
}

/// A ring that one thread writes and one reads.
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

    /// Whether there was room.
    fn push(&self, step: &Applied) -> bool {
        let written = self.written.load(Relaxed);
        if written - self.read.load(Acquire) >= self.slots.len() as u64 {
            return false;
        }
        let slot = &self.slots[written as usize % self.slots.len()];
        let answer = u64::from(step.row) << 32 | u64::from(step.rc.cast_unsigned());
        for (to, value) in slot.iter().zip([step.asked_ns, step.applied_ns, step.rate_bps, answer])
        {
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
        let [asked_ns, applied_ns, rate_bps, answer] =
            [0, 1, 2, 3].map(|at| slot[at].load(Relaxed));
        self.read.store(read + 1, Release);
        let (row, rc) = ((answer >> 32) as u32, (answer as u32).cast_signed());
        Some(Applied { asked_ns, applied_ns, rate_bps, row, rc })
    }
}

/// Shared by the thread and its owner.
struct Shared {
    begin_ns: AtomicU64,
    stop: AtomicU64,
    missed: AtomicU64,
    lost: AtomicU64,
    log: Log,
}

/// The thread, as its owner sees it. Stops on drop.
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
    /// The system has no thread or no eventfd to give.
    pub(crate) fn start(cursor: Cursor, changer: impl Changer) -> Result<Self, ShaperError> {
        let system = |op| move |source| ShaperError::System { op, source };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| system("make an eventfd")(e.into()))?;
        let wake = Arc::new(wake);
        let shared = Arc::new(Shared {
            begin_ns: AtomicU64::new(NOT_YET),
            stop: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            log: Log::new(LOG_STEPS),
        });
        let mut player =
            Player { cursor, changer, shared: Arc::clone(&shared), wake: Arc::clone(&wake) };
        let thread = std::thread::Builder::new()
            .name("ccbench-replay".to_owned())
            .spawn(move || player.run())
            .map_err(system("start the thread that plays a trace"))?;
        Ok(Self { shared, wake, thread: Some(thread) })
    }

    /// The trace begins at `at_ns`, which may be past.
    pub(crate) fn begin(&self, at_ns: u64) {
        self.shared.begin_ns.store(at_ns, Release);
        self.nudge();
    }

    /// The oldest step that has not been fetched.
    pub(crate) fn next_applied(&self) -> Option<Applied> {
        self.shared.log.pop()
    }

    /// Steps that were left out because the next one was due already, or came too soon.
    pub(crate) fn missed(&self) -> u64 {
        self.shared.missed.load(Relaxed)
    }

    /// Steps that happened and could not be written down because nobody fetched the others.
    pub(crate) fn lost(&self) -> u64 {
        self.shared.lost.load(Relaxed)
    }

    /// Ends it; a step that is due within 5 ms may still happen.
    pub(crate) fn stop(&mut self) {
        self.shared.stop.store(1, Release);
        self.nudge();
        if let Some(thread) = self.thread.take() {
            // A panic has been printed by the thread itself.
            let _ = thread.join();
        }
    }

    fn nudge(&self) {
        // Can only fail if the counter would overflow, and then the thread is awake anyway.
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
    changer: C,
    shared: Arc<Shared>,
    wake: Arc<OwnedFd>,
}

impl<C: Changer> Player<C> {
    fn run(&mut self) {
        let mut class = Class::new(Privileges::claim());
        if class.real_time() {
            // Without it the thread stays among the packet loops, as it does after it has yielded.
            let _ = sys::set_fifo(FIFO_PRIORITY);
        }
        let mut begin_ns = NOT_YET;
        // When the last step was applied.
        let mut last_ns = 0;
        let mut ready = false;
        while self.shared.stop.load(Acquire) == 0 {
            let asked_ns = self.shared.begin_ns.load(Acquire);
            if asked_ns != begin_ns {
                begin_ns = asked_ns;
                self.cursor.begin(begin_ns);
                ready = false;
            }
            ready = ready || self.prepare(last_ns);
            if !ready {
                self.sleep_until(u64::MAX);
                continue;
            }
            let piece = self.cursor.piece();
            let due_ns = piece.from_ns.max(last_ns.saturating_add(LEAST_GAP_NS));
            if monotonic_ns().saturating_add(DEAF_NS) < due_ns {
                self.sleep_until(due_ns - DEAF_NS);
                continue;
            }
            let spin_ns = (due_ns - last_ns) / SPIN_PART;
            wait(due_ns, spin_ns.clamp(LEAST_SPIN_NS, MOST_SPIN_NS), &mut class);
            let sent = self.changer.send();
            last_ns = monotonic_ns();
            let rc = match sent {
                Ok(()) => self.changer.answer(),
                Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
            };
            let rate_bps = piece.rate.map_or(0, Rate::bits_per_sec);
            let (asked_ns, row) = (piece.from_ns, piece.row);
            let step = Applied { asked_ns, applied_ns: last_ns, rate_bps, row, rc };
            if !self.shared.log.push(&step) {
                self.shared.lost.fetch_add(1, Relaxed);
            }
            ready = false;
            class.tick(last_ns);
        }
    }

    /// Goes on to the next step that is not overtaken already, and has its message made. `false`: there is none.
    fn prepare(&mut self, last_ns: u64) -> bool {
        if !self.cursor.advance() {
            return false;
        }
        let earliest_ns = last_ns.saturating_add(LEAST_GAP_NS).max(monotonic_ns());
        while self.cursor.piece().until_ns <= earliest_ns && self.cursor.advance() {
            self.shared.missed.fetch_add(1, Relaxed);
        }
        if let Some(rate) = self.cursor.piece().rate {
            self.changer.prepare(rate);
        }
        true
    }

    /// Sleeps until then, or until it is woken.
    fn sleep_until(&self, at_ns: u64) {
        let timeout = at_ns.checked_sub(monotonic_ns()).filter(|_| at_ns != u64::MAX);
        let timeout = timeout.map(|ns| Timespec {
            tv_sec: (ns / 1_000_000_000).cast_signed(),
            tv_nsec: (ns % 1_000_000_000).cast_signed(),
        });
        let _ = poll(&mut [PollFd::new(&*self.wake, PollFlags::IN)], timeout.as_ref());
        let mut count = [0; 8];
        // Empty if the time is over.
        let _ = rustix::io::read(&*self.wake, &mut count);
    }
}

/// Returns at `due_ns`, or at once if that is past; spins the last `spin_ns` of it.
fn wait(due_ns: u64, spin_ns: u64, class: &mut Class) {
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
        class.overslept(woke_ns, woke_ns.saturating_sub(asleep_ns));
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

    use ccbench_proto::plan::{OnEnd, TraceStart};
    use ccbench_proto::trace::{self, Replay};

    use super::*;

    struct Told(mpsc::Sender<u64>, u64);

    impl Changer for Told {
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
        fn answer(&mut self) -> i32 {
            if self.1 == 2_000_000 { -libc::ENOENT } else { 0 }
        }
    }

    fn start(text: &str) -> (ReplayThread, mpsc::Receiver<u64>) {
        let replay = Replay {
            trace: Arc::new(trace::parse("t", text.as_bytes()).unwrap()),
            name: "t".to_owned(),
            on_end: OnEnd::Hold,
            start: TraceStart::Trial,
            floor: None,
        };
        let (tell, told) = mpsc::channel();
        let cursor = Cursor::new(&replay, u64::MAX).unwrap();
        (ReplayThread::start(cursor, Told(tell, 0)).unwrap(), told)
    }

    #[test]
    fn every_step_is_played_in_its_time_and_written_down() {
        let (mut thread, told) = start("1,0.01\n2,0.01\n3,0.01\n4,9\n");
        let begin_ns = monotonic_ns() + 20_000_000;
        thread.begin(begin_ns);
        let rates: Vec<u64> = (0..4).map(|_| told.recv().unwrap() / 1_000_000).collect();
        assert_eq!(rates, [1, 2, 3, 4]);
        thread.stop();
        let applied: Vec<Applied> = std::iter::from_fn(|| thread.next_applied()).collect();
        let asked: Vec<u64> = applied.iter().map(|step| step.asked_ns - begin_ns).collect();
        assert_eq!(asked, [0, 10_000_000, 20_000_000, 30_000_000]);
        assert!(applied.iter().all(|step| step.applied_ns >= step.asked_ns));
        let answers: Vec<(u32, i32)> = applied.iter().map(|step| (step.row, step.rc)).collect();
        assert_eq!(answers, [(1, 0), (2, -libc::ENOENT), (3, -libc::EINVAL), (4, 0)]);
        assert_eq!((thread.missed(), thread.lost()), (0, 0));
    }

    #[test]
    fn steps_that_come_too_thick_are_merged_and_counted() {
        let text = format!(
            "t_us,rate_bps\n{}",
            (0..1000).map(|nth| format!("{},{}\n", nth * 50, nth + 1)).collect::<String>()
        );
        let (mut thread, told) = start(&text);
        thread.begin(monotonic_ns() + 1_000_000);
        while told.recv().unwrap() != 1000 {}
        thread.stop();
        let applied: Vec<Applied> = std::iter::from_fn(|| thread.next_applied()).collect();
        assert_eq!(applied.len() as u64 + thread.missed(), 1000);
        let gaps = applied.windows(2).map(|pair| pair[1].applied_ns - pair[0].applied_ns);
        assert!(gaps.min().unwrap() >= LEAST_GAP_NS);
    }

    #[test]
    fn it_stops_before_it_has_begun_and_in_a_long_row() {
        drop(start("1,1000\n2,1\n"));
        let (thread, told) = start("1,1000\n2,1\n");
        thread.begin(0);
        thread.begin(monotonic_ns());
        assert_eq!(told.recv().unwrap(), 1_000_000);
        drop(thread);
    }

    #[test]
    fn a_full_log_refuses() {
        let log = Log::new(2);
        let step = Applied { asked_ns: 1, applied_ns: 2, rate_bps: 3, row: u32::MAX, rc: -5 };
        assert!(log.push(&step) && log.push(&step) && !log.push(&step));
        assert_eq!(log.pop(), Some(step));
        assert!(log.push(&step) && !log.push(&step));
    }
}
