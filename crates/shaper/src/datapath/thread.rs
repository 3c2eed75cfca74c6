//! Scheduling class, niceness and timer slack of the packet loop's thread.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::clock::{monotonic_ns, thread_cpu_ns};
use crate::sys;

use super::duty::{Action, DutyGuard};

/// Above ordinary processes and the kernel's RCU threads (1), but below its threaded interrupt handlers (50), which deliver packets and
/// timers.
const FIFO_PRIORITY: i32 = 10;
/// Number of packet loops in this process.
static LOOPS: AtomicU64 = AtomicU64::new(0);
/// Niceness without real-time priority.
const NICE: i32 = -20;

/// The scheduling privileges that the thread obtained at its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Privileges {
    fifo: bool,
    nice: bool,
    /// Whether niceness applies only within the session (`kernel.sched_autogroup_enabled`).
    autogroup: bool,
    timer_slack: bool,
}

impl Privileges {
    /// Requests the privileges for the calling thread.
    pub(crate) fn acquire() -> Self {
        let me = rustix::thread::gettid();
        let nice = rustix::process::setpriority_process(Some(me), NICE).is_ok();
        Self {
            nice,
            autogroup: read_number("sched_autogroup_enabled") == Some(1),
            // Must precede SCHED_FIFO: since 6.13, the kernel refuses to set the timer slack of a real-time thread.
            timer_slack: set_timer_slack(),
            fifo: rt_throttling_permits() && sys::set_fifo(FIFO_PRIORITY).is_ok(),
        }
    }

    /// Returns human-readable text. `demotions` is the number of demotions from real-time priority.
    pub(crate) fn describe(self, demotions: u64) -> String {
        let Self { fifo, nice, autogroup, timer_slack } = self;
        let nice = format!(
            "nice {}{}",
            if nice { "-20" } else { "0 (refused -20)" },
            if nice && autogroup { " (within its session only: autogroup)" } else { "" },
        );
        let class = match (fifo, demotions) {
            (false, _) => format!("{nice}, SCHED_FIFO refused"),
            (true, 0) => format!("SCHED_FIFO {FIFO_PRIORITY}"),
            (true, _) => {
                format!("SCHED_FIFO {FIFO_PRIORITY}, demoted {demotions} times: {nice}")
            }
        };
        format!("thread {class}, timer slack {}", if timer_slack { "1ns" } else { "default" })
    }
}

/// The thread's scheduling class, which depends on its load.
#[derive(Debug)]
pub(crate) struct SchedClass {
    guard: DutyGuard,
    cpus: u64,
    demotions: u64,
}

impl SchedClass {
    /// Creates it for the calling thread, which obtained `privileges`.
    pub(crate) fn new(privileges: Privileges) -> Self {
        LOOPS.fetch_add(1, Relaxed);
        Self {
            guard: DutyGuard::new(privileges.fifo, monotonic_ns(), thread_cpu_ns()),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
            demotions: 0,
        }
    }

    /// Must be called in every iteration of the loop.
    pub(crate) fn tick(&mut self, now_ns: u64) {
        if self.guard.wants_sample(now_ns) {
            // The node at the other end of the link runs in another process and has the same number of loops.
            let threads_per_cpu = (2 * LOOPS.load(Relaxed)).div_ceil(self.cpus);
            let action = self.guard.sample(now_ns, thread_cpu_ns(), threads_per_cpu);
            self.apply(action);
        }
    }

    /// Records that the thread woke `late_ns` after its deadline.
    pub(crate) fn woke_late(&mut self, now_ns: u64, late_ns: u64) {
        let action = self.guard.woke_late(now_ns, late_ns);
        self.apply(action);
    }

    /// Accounts for `ns` of busy waiting.
    pub(crate) fn spun(&mut self, ns: u64) {
        self.guard.spun(ns);
    }

    /// Returns whether the budget allows busy waiting.
    pub(crate) fn may_spin(&self) -> bool {
        self.guard.may_spin()
    }

    /// Whether the thread has real-time priority now.
    pub(crate) fn real_time(&self) -> bool {
        self.guard.real_time()
    }

    /// Number of demotions from real time.
    pub(crate) fn demotions(&self) -> u64 {
        self.demotions
    }

    fn apply(&mut self, action: Action) {
        match action {
            Action::Keep => {}
            Action::Demote => {
                self.demotions += 1;
                // Leaving real-time priority is never refused. The niceness is unchanged, but the kernel resets the timer slack.
                let _ = sys::set_other();
                set_timer_slack();
            }
            Action::Promote => {
                if sys::set_fifo(FIFO_PRIORITY).is_err() {
                    self.guard.promotion_refused();
                }
            }
        }
    }
}

impl Drop for SchedClass {
    fn drop(&mut self) {
        LOOPS.fetch_sub(1, Relaxed);
    }
}

fn set_timer_slack() -> bool {
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)).is_ok()
}

/// Returns whether the kernel's real-time throttling limit is above the loop's own limit.
fn rt_throttling_permits() -> bool {
    let runtime_us = read_number("sched_rt_runtime_us").unwrap_or(-1);
    let period_us = read_number("sched_rt_period_us").unwrap_or(1_000_000);
    // -1: throttling is off.
    runtime_us < 0 || runtime_us.saturating_mul(10) >= period_us.saturating_mul(9)
}

fn read_number(knob: &str) -> Option<i64> {
    std::fs::read_to_string(format!("/proc/sys/kernel/{knob}")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describes_the_privileges() {
        let all = Privileges { fifo: true, nice: true, autogroup: true, timer_slack: true };
        assert_eq!(all.describe(0), "thread SCHED_FIFO 10, timer slack 1ns");
        assert_eq!(
            all.describe(2),
            "thread SCHED_FIFO 10, demoted 2 times: nice -20 (within its session only: autogroup), \
             timer slack 1ns"
        );
        assert_eq!(
            Privileges { timer_slack: true, ..Privileges::default() }.describe(0),
            "thread nice 0 (refused -20), SCHED_FIFO refused, timer slack 1ns"
        );
    }
}
