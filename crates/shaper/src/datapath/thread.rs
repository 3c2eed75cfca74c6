//! What the packet loop's thread asks of the scheduler, and what it got.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::clock::{monotonic_ns, thread_cpu_ns};
use crate::sys;

use super::duty::{DutyGuard, Verdict};

/// Above ordinary processes and the kernel's RCU threads (1), below its threaded interrupt handlers (50),
/// which bring the packets and the timers.
const FIFO_PRIORITY: i32 = 10;
/// Packet loops of this process.
static LOOPS: AtomicU64 = AtomicU64::new(0);
/// Without real time.
const NICE: i32 = -20;

/// What the thread got of what it asked for at its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Privileges {
    fifo: bool,
    nice: bool,
    /// Whether niceness counts only among the processes of this session (`kernel.sched_autogroup_enabled`).
    autogroup: bool,
    timer_slack: bool,
}

impl Privileges {
    /// For the calling thread. What it starts inherits neither real time nor niceness.
    pub(crate) fn claim() -> Self {
        let me = rustix::thread::gettid();
        let nice = rustix::process::setpriority_process(Some(me), NICE).is_ok();
        Self {
            nice,
            autogroup: read_number("sched_autogroup_enabled") == Some(1),
            // Before real time: with that, kernels since 6.13 refuse to set what then has no meaning.
            timer_slack: exact_timers(),
            fifo: throttle_leaves_room() && sys::set_fifo(FIFO_PRIORITY).is_ok(),
        }
    }

    /// For people: `yields` is how often real time was given up.
    pub(crate) fn text(self, yields: u64) -> String {
        let Self { fifo, nice, autogroup, timer_slack } = self;
        let nice = format!(
            "nice {}{}",
            if nice { "-20" } else { "0 (refused -20)" },
            if nice && autogroup { " (within its session only: autogroup)" } else { "" },
        );
        let class = match (fifo, yields) {
            (false, _) => format!("{nice}, SCHED_FIFO refused"),
            (true, 0) => format!("SCHED_FIFO {FIFO_PRIORITY}"),
            (true, _) => {
                format!("SCHED_FIFO {FIFO_PRIORITY}, {yields} times busy beyond that: {nice}")
            }
        };
        format!("thread {class}, timer slack {}", if timer_slack { "1ns" } else { "default" })
    }
}

/// The thread's scheduling class as it changes with its load.
#[derive(Debug)]
pub(crate) struct Class {
    guard: DutyGuard,
    processors: u64,
    yields: u64,
}

impl Class {
    /// For the calling thread, which has `privileges`.
    pub(crate) fn new(privileges: Privileges) -> Self {
        LOOPS.fetch_add(1, Relaxed);
        Self {
            guard: DutyGuard::new(privileges.fifo, monotonic_ns(), thread_cpu_ns()),
            processors: std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
            yields: 0,
        }
    }

    /// To be called in every round of the loop.
    pub(crate) fn tick(&mut self, now_ns: u64) {
        if self.guard.wants_sample(now_ns) {
            // The other end of a path is another process' node, with as many loops.
            let sharers = (2 * LOOPS.load(Relaxed)).div_ceil(self.processors);
            let verdict = self.guard.sample(now_ns, thread_cpu_ns(), sharers);
            self.apply(verdict);
        }
    }

    /// The thread woke `late_ns` after the time it had asked for.
    pub(crate) fn overslept(&mut self, now_ns: u64, late_ns: u64) {
        let verdict = self.guard.overslept(now_ns, late_ns);
        self.apply(verdict);
    }

    /// `ns` were spun.
    pub(crate) fn spun(&mut self, ns: u64) {
        self.guard.spun(ns);
    }

    /// Whether there is time to be spun.
    pub(crate) fn may_spin(&self) -> bool {
        self.guard.may_spin()
    }

    /// Whether the thread is a real-time one now.
    pub(crate) fn real_time(&self) -> bool {
        self.guard.real_time()
    }

    /// How often real time was given up.
    pub(crate) fn yields(&self) -> u64 {
        self.yields
    }

    fn apply(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Keep => {}
            Verdict::Yield => {
                self.yields += 1;
                // To lower oneself is never refused. The niceness is still what it was, the slack is not.
                let _ = sys::set_ordinary();
                exact_timers();
            }
            Verdict::Return => {
                if sys::set_fifo(FIFO_PRIORITY).is_err() {
                    self.guard.refused();
                }
            }
        }
    }
}

impl Drop for Class {
    fn drop(&mut self) {
        LOOPS.fetch_sub(1, Relaxed);
    }
}

fn exact_timers() -> bool {
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)).is_ok()
}

/// Whether real-time threads may use so much of a second that the loop's own limit comes first.
fn throttle_leaves_room() -> bool {
    let runtime_us = read_number("sched_rt_runtime_us").unwrap_or(-1);
    let period_us = read_number("sched_rt_period_us").unwrap_or(1_000_000);
    // -1: no limit.
    runtime_us < 0 || runtime_us.saturating_mul(10) >= period_us.saturating_mul(9)
}

fn read_number(knob: &str) -> Option<i64> {
    std::fs::read_to_string(format!("/proc/sys/kernel/{knob}")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_got_is_said() {
        let all = Privileges { fifo: true, nice: true, autogroup: true, timer_slack: true };
        assert_eq!(all.text(0), "thread SCHED_FIFO 10, timer slack 1ns");
        assert_eq!(
            all.text(2),
            "thread SCHED_FIFO 10, 2 times busy beyond that: nice -20 (within its session only: autogroup), \
             timer slack 1ns"
        );
        assert_eq!(
            Privileges { timer_slack: true, ..Privileges::default() }.text(0),
            "thread nice 0 (refused -20), SCHED_FIFO refused, timer slack 1ns"
        );
    }
}
