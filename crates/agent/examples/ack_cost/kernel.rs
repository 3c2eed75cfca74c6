//! CPU times from the kernel.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use rustix::time::{ClockId, clock_gettime};

/// Returns the CPU time of the calling thread.
pub fn own_cpu_ns() -> i64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Returns the CPU time of child processes that have ended.
pub fn childrens_cpu_ns() -> i64 {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    usage.user_time().num_nanoseconds() + usage.system_time().num_nanoseconds()
}

/// While this exists, the kernel measures the time of every run of a BPF program.
pub struct Stats(());

impl Stats {
    const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

    pub fn on() -> Self {
        std::fs::write(Self::SWITCH, "1").expect("run as root");
        Self(())
    }

    /// Returns the runs and nanoseconds of all BPF programs that this process holds.
    pub fn runs(&self) -> (u64, u64) {
        let mut found = std::collections::BTreeMap::new();
        for file in std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten() {
            let text = std::fs::read_to_string(file.path()).unwrap_or_default();
            let value = |key: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(key))?;
                line.trim().parse::<u64>().ok()
            };
            if let (Some(id), Some(runs), Some(ns)) =
                (value("prog_id:"), value("run_cnt:"), value("run_time_ns:"))
            {
                found.insert(id, (runs, ns));
            }
        }
        found.values().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}

impl Drop for Stats {
    fn drop(&mut self) {
        // If left on, it costs a little; the next benchmark switches it off.
        let _ = std::fs::write(Self::SWITCH, "0");
    }
}
