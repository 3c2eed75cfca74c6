//! Keeps the CPUs out of idle states, so that timers expire on time. On a virtual machine, the host wakes a halted CPU late, which causes
//! the tail of all scheduling errors (hundreds of microseconds, occasionally milliseconds). The price is that all CPUs are always busy, at
//! a priority below that of every other thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::thread::JoinHandle;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::sys;

/// Iterations between two checks of the flag, during which the loop touches no memory.
const TURNS: u32 = 10_000;

/// One thread per CPU that the process may use. Each runs whenever no other thread does (`SCHED_IDLE`), until this value is dropped.
#[derive(Debug)]
pub struct KeepAwake {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl KeepAwake {
    /// Starts the threads. Needs no privileges.
    ///
    /// # Errors
    /// A thread cannot be started, pinned to its CPU or given `SCHED_IDLE`. No thread is left running then.
    pub fn start() -> io::Result<Self> {
        let allowed = sched_getaffinity(None)?;
        let mut awake = Self { stop: Arc::default(), threads: Vec::new() };
        let (sender, receiver) = mpsc::channel();
        for cpu in (0..CpuSet::MAX_CPU).filter(|&nth| allowed.is_set(nth)) {
            let (sender, stop) = (sender.clone(), Arc::clone(&awake.stop));
            let thread = std::thread::Builder::new().name(format!("ccbench-awake{cpu}")).spawn(
                move || {
                    let result = set_idle_on(cpu);
                    let spins = result.is_ok();
                    let _ = sender.send(result);
                    drop(sender);
                    if spins {
                        spin(&stop);
                    }
                },
            )?;
            awake.threads.push(thread);
        }
        drop(sender);
        for result in receiver {
            result?;
        }
        Ok(awake)
    }

    /// Returns the number of CPUs that are kept awake.
    pub fn cpus(&self) -> usize {
        self.threads.len()
    }
}

impl Drop for KeepAwake {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // They cannot panic.
            let _ = thread.join();
        }
    }
}

fn set_idle_on(cpu: usize) -> io::Result<()> {
    // Must come first, so that the thread does not disturb others.
    sys::set_idle()?;
    // By this niceness, the accounting of CPU time recognises these threads.
    rustix::process::nice(19)?;
    let mut only = CpuSet::new();
    only.set(cpu);
    Ok(sched_setaffinity(None, &only)?)
}

/// Does not use the pause instruction, because hypervisors deschedule a CPU that pauses in a loop (pause-loop exiting).
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

    /// Returns the scheduling policy of each of this process's keep-awake threads.
    fn idlers() -> Vec<u64> {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let stats =
            threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
        let ours = stats.filter(|stat| stat.contains("(ccbench-awake"));
        ours.filter_map(|stat| stat.rsplit_once(") ")?.1.split(' ').nth(38)?.parse().ok()).collect()
    }

    #[test]
    fn runs_an_idle_thread_per_cpu_until_dropped() {
        const SCHED_IDLE: u64 = 5;
        let awake = KeepAwake::start().unwrap();
        let cpus = sched_getaffinity(None).unwrap().count() as usize;
        assert_eq!(awake.cpus(), cpus);
        assert_eq!(idlers(), vec![SCHED_IDLE; cpus]);
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
