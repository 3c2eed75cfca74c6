//! The CPUs of this machine on which guests run.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// How long the load of the CPUs is observed to find the least busy ones.
const LOAD_WINDOW: std::time::Duration = std::time::Duration::from_millis(40);

/// Returns the CPUs that this process may use, the least busy one first.
pub fn least_busy_first() -> Vec<usize> {
    by_load(allowed(), &busy_ticks())
}

/// Returns the CPUs that this process may use.
pub fn allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Starts a process on one CPU. If pinning fails, the process still works but is slower.
pub fn on_cpu<T>(cpu: usize, start: impl FnOnce() -> T) -> T {
    let allowed = sched_getaffinity(None);
    let mut one = CpuSet::new();
    one.set(cpu);
    let _ = sched_setaffinity(None, &one);
    let started = start();
    if let Ok(allowed) = &allowed {
        let _ = sched_setaffinity(None, allowed);
    }
    started
}

/// Sorts these CPUs, the least busy one first. Equally busy ones keep their order.
fn by_load(mut cpus: Vec<usize>, busy: &[u64]) -> Vec<usize> {
    cpus.sort_by_key(|cpu| busy.get(*cpu).copied().unwrap_or(0));
    cpus
}

/// Returns for each CPU how many ticks (10 ms) it was busy during a short time.
fn busy_ticks() -> Vec<u64> {
    let before = since_boot();
    if before.is_empty() {
        return Vec::new();
    }
    std::thread::sleep(LOAD_WINDOW);
    let difference = |(after, before): (&Ticks, &Ticks)| after.busy.saturating_sub(before.busy);
    // The first line is the sum of all CPUs.
    since_boot().iter().zip(&before).skip(1).map(difference).collect()
}

/// Time of a CPU since boot, in ticks of 10 ms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ticks {
    /// Time that was not idle, including `steal`.
    pub busy: u64,
    /// Time in which the hypervisor ran something else; 0 if this is not a virtual machine.
    pub steal: u64,
}

impl Ticks {
    /// Returns steal in percent of the time that was not idle.
    pub fn steal_pct(self) -> f64 {
        if self.busy == 0 { 0.0 } else { self.steal as f64 * 100.0 / self.busy as f64 }
    }
}

/// Returns the times of all CPUs together, then of each; empty if `/proc/stat` cannot be read.
pub fn since_boot() -> Vec<Ticks> {
    parse(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
}

/// Parses the lines "cpu" and "cpuN" of `/proc/stat`.
fn parse(stat: &str) -> Vec<Ticks> {
    let of_line = |line: &str| {
        let numbers = line.split_ascii_whitespace().skip(1).take(8);
        // user, nice, system, idle, iowait, irq, softirq, steal
        let ticks: Vec<u64> = numbers.filter_map(|word| word.parse().ok()).collect();
        let [user, nice, system, _, _, irq, softirq, steal] = ticks[..] else { return None };
        Some(Ticks { busy: user + nice + system + irq + softirq + steal, steal })
    };
    stat.lines().take_while(|line| line.starts_with("cpu")).filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_allowed_cpus_by_their_load() {
        let text = "cpu  140 0 60 900 5 0 0 9 0 0\ncpu0 100 0 50 400 5 0 0 9 0 0\ncpu1 40 0 10 500 0 0 0 0 0 0\nintr 3\n";
        let ticks = |busy, steal| Ticks { busy, steal };
        assert_eq!(parse(text), [ticks(209, 9), ticks(159, 9), ticks(50, 0)]);
        assert_eq!(parse("cpu  50 0 30\n"), []);
        assert_eq!(by_load(vec![0, 1], &[150, 50]), [1, 0]);
        assert_eq!(by_load(vec![2, 0], &[1, 5, 1]), [2, 0], "only those that are allowed");
        assert_eq!(by_load(vec![3, 4], &[]), [3, 4]);
    }

    #[test]
    fn steal_is_a_share_of_the_time_that_was_asked_for() {
        assert_eq!(Ticks { busy: 100, steal: 10 }.steal_pct(), 10.0);
        assert_eq!(Ticks::default().steal_pct(), 0.0);
    }

    #[test]
    fn a_process_inherits_the_cpu_and_this_one_keeps_its_own() {
        let before = allowed();
        let last = *before.last().unwrap();
        assert_eq!(on_cpu(last, allowed), [last]);
        assert_eq!(allowed(), before);
    }
}
