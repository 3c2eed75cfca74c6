//! Keeps the processors from going to sleep, so that a timer finds them awake. On a virtual machine a halted
//! processor is woken late by its host: the tail of all scheduling errors (hundreds of microseconds, now and then
//! milliseconds) comes from there. The price is that all processors are busy all the time; every other
//! thread of the machine goes before these.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::thread::JoinHandle;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::sys;

/// Looks at the flag this seldom, so that the loop touches no memory in between.
const TURNS: u32 = 10_000;

/// One thread per processor that the process may use, which runs whenever nothing else wants to
/// (`SCHED_IDLE`), until this is dropped.
#[derive(Debug)]
pub struct KeepAwake {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl KeepAwake {
    /// Starts the threads. Needs no privileges.
    ///
    /// # Errors
    /// A thread that cannot be started, put on its processor or made an idle one; then none stays.
    pub fn start() -> io::Result<Self> {
        let allowed = sched_getaffinity(None)?;
        let mut awake = Self { stop: Arc::default(), threads: Vec::new() };
        let (sender, receiver) = mpsc::channel();
        for processor in (0..CpuSet::MAX_CPU).filter(|&nth| allowed.is_set(nth)) {
            let (sender, stop) = (sender.clone(), Arc::clone(&awake.stop));
            let thread = std::thread::Builder::new()
                .name(format!("ccbench-awake{processor}"))
                .spawn(move || {
                    let settled = settle(processor);
                    let spins = settled.is_ok();
                    let _ = sender.send(settled);
                    drop(sender);
                    if spins {
                        spin(&stop);
                    }
                })?;
            awake.threads.push(thread);
        }
        drop(sender);
        for settled in receiver {
            settled?;
        }
        Ok(awake)
    }

    /// How many processors are kept awake.
    pub fn processors(&self) -> usize {
        self.threads.len()
    }
}

impl Drop for KeepAwake {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // They do nothing that could panic.
            let _ = thread.join();
        }
    }
}

fn settle(processor: usize) -> io::Result<()> {
    // First, so that it does not disturb other threads.
    sys::set_idle()?;
    // Accounts of processor time distinguish it from others's by this.
    rustix::process::nice(19)?;
    let mut only = CpuSet::new();
    only.set(processor);
    Ok(sched_setaffinity(None, &only)?)
}

/// Without the processor's pause instruction: a host takes a processor that pauses in a loop away.
fn spin(stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        for turn in 0..TURNS {
            std::hint::black_box(turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and scheduling policies of this process' threads that keep awake.
    fn idlers() -> Vec<u64> {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let stats =
            threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
        let ours = stats.filter(|stat| stat.contains("(ccbench-awake"));
        ours.filter_map(|stat| stat.rsplit_once(") ")?.1.split(' ').nth(38)?.parse().ok()).collect()
    }

    #[test]
    fn there_is_an_idle_thread_per_processor_until_it_is_dropped() {
        const SCHED_IDLE: u64 = 5;
        let awake = KeepAwake::start().unwrap();
        let processors = sched_getaffinity(None).unwrap().count() as usize;
        assert_eq!(awake.processors(), processors);
        assert_eq!(idlers(), vec![SCHED_IDLE; processors]);
        drop(awake);
        // A joined thread stays in /proc/self/task until the kernel has released it.
        let gone = (0..5000).any(|_| {
            let none = idlers().is_empty();
            if !none {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            none
        });
        assert!(gone, "{:?}", idlers());
    }
}
