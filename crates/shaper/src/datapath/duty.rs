//! Limits the CPU time that the packet loop uses at real-time priority. Once the real-time threads of a CPU have used
//! `kernel.sched_rt_runtime_us` of a second (95 % by default), the kernel throttles all of them for the rest of it, which would stall the
//! link for 50 ms. The remaining time is for ksoftirqd, an ordinary thread: softirqs that our sends raise run in our own thread, but those
//! of other threads may be deferred to ksoftirqd. The caller passes the current time and the CPU time used.

/// Number and length of the buckets of the sliding window.
const BUCKETS: usize = 10;
const BUCKET_NS: u64 = 10_000_000;
const WINDOW_NS: u64 = BUCKETS as u64 * BUCKET_NS;
/// Sampling interval close to a limit. Far below all limits it is that of a bucket, because reading the thread's CPU clock is a system
/// call.
const SAMPLE_NS: u64 = 1_000_000;
/// Percent of the window. Above the first, the thread does not spin. Above the second, it is demoted. Below the third, it may be promoted
/// again. Two spinning threads on one CPU stay below the throttling limit.
const SPIN_BELOW_PERCENT: u64 = 45;
const DEMOTE_ABOVE_PERCENT: u64 = 85;
const PROMOTE_BELOW_PERCENT: u64 = 70;
/// How long a demoted thread stays without real-time priority, at least.
const MIN_DEMOTED_NS: u64 = 500_000_000;
/// If a real-time thread wakes later than this, the kernel has throttled the real-time threads of its CPU. Shorter delays come from a
/// kernel without preemption or from a hypervisor.
const STALL_NS: u64 = 40_000_000;

/// Change of the thread's scheduling class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// No change.
    Keep,
    /// Change to an ordinary scheduling class.
    Demote,
    /// Change back to real time.
    Promote,
}

/// CPU budget of one real-time thread.
#[derive(Debug)]
pub(crate) struct DutyGuard {
    real_time: bool,
    used_ns: [u64; BUCKETS],
    spun_ns: [u64; BUCKETS],
    /// Bucket of the last sample, counted from zero of the clock.
    bucket: u64,
    sampled_ns: u64,
    sampled_cpu_ns: u64,
    spun_since_ns: u64,
    demoted_ns: u64,
    /// Number of packet loop threads per CPU.
    threads_per_cpu: u64,
}

impl DutyGuard {
    /// Creates the guard. `cpu_ns` is the CPU time that the thread has used until `now_ns`.
    pub(crate) fn new(real_time: bool, now_ns: u64, cpu_ns: u64) -> Self {
        Self {
            real_time,
            used_ns: [0; BUCKETS],
            spun_ns: [0; BUCKETS],
            bucket: now_ns / BUCKET_NS,
            sampled_ns: now_ns,
            sampled_cpu_ns: cpu_ns,
            spun_since_ns: 0,
            demoted_ns: 0,
            threads_per_cpu: 1,
        }
    }

    /// Returns whether it is time for [`Self::sample`].
    pub(crate) fn wants_sample(&self, now_ns: u64) -> bool {
        let since_ns = now_ns.saturating_sub(self.sampled_ns);
        since_ns >= BUCKET_NS || since_ns >= SAMPLE_NS && !self.is_far_below(since_ns)
    }

    /// Returns whether no limit is reached even if the thread has run all the time since the last sample.
    fn is_far_below(&self, since_ns: u64) -> bool {
        self.demoted_ns == 0 && self.used() + since_ns < self.share(SPIN_BELOW_PERCENT)
    }

    /// Takes a sample: `cpu_ns` is the CPU time used until `now_ns`; `threads_per_cpu` packet loops share a CPU.
    pub(crate) fn sample(&mut self, now_ns: u64, cpu_ns: u64, threads_per_cpu: u64) -> Action {
        self.threads_per_cpu = threads_per_cpu.max(1);
        let bucket = now_ns / BUCKET_NS;
        let passed = bucket.saturating_sub(self.bucket).min(BUCKETS as u64);
        for nth in 0..passed {
            let index = (bucket - nth) as usize % BUCKETS;
            self.used_ns[index] = 0;
            self.spun_ns[index] = 0;
        }
        self.bucket = self.bucket.max(bucket);
        let index = self.bucket as usize % BUCKETS;
        self.used_ns[index] += cpu_ns.saturating_sub(self.sampled_cpu_ns);
        self.spun_ns[index] += std::mem::take(&mut self.spun_since_ns);
        self.sampled_ns = now_ns;
        self.sampled_cpu_ns = cpu_ns;

        let used_ns = self.used();
        let worked_ns = used_ns.saturating_sub(self.spun_ns.iter().sum());
        if self.real_time && used_ns > self.share(DEMOTE_ABOVE_PERCENT) {
            self.demote(now_ns)
        } else if self.demoted_ns > 0
            && now_ns.saturating_sub(self.demoted_ns) >= MIN_DEMOTED_NS
            && worked_ns < self.share(PROMOTE_BELOW_PERCENT)
        {
            // CPU time used while demoted does not count.
            self.used_ns = [0; BUCKETS];
            self.spun_ns = [0; BUCKETS];
            self.demoted_ns = 0;
            self.real_time = true;
            Action::Promote
        } else {
            Action::Keep
        }
    }

    /// Records that the thread woke `late_ns` after its deadline.
    pub(crate) fn woke_late(&mut self, now_ns: u64, late_ns: u64) -> Action {
        if self.real_time && late_ns > STALL_NS { self.demote(now_ns) } else { Action::Keep }
    }

    /// Records that the kernel refused the promotion. The thread is not promoted again.
    pub(crate) fn promotion_refused(&mut self) {
        self.real_time = false;
        self.demoted_ns = 0;
    }

    /// Accounts for `ns` of busy waiting.
    pub(crate) fn spun(&mut self, ns: u64) {
        self.spun_since_ns += ns;
    }

    /// Returns whether the thread has real-time priority.
    pub(crate) fn real_time(&self) -> bool {
        self.real_time
    }

    /// Returns whether the budget allows busy waiting. It limits only real-time threads, which ordinary threads cannot preempt.
    pub(crate) fn may_spin(&self) -> bool {
        !self.real_time || self.used() + self.spun_since_ns < self.share(SPIN_BELOW_PERCENT)
    }

    /// Returns this thread's share of a percentage of the window, nanoseconds.
    fn share(&self, percent: u64) -> u64 {
        WINDOW_NS * percent / 100 / self.threads_per_cpu
    }

    fn used(&self) -> u64 {
        self.used_ns.iter().sum()
    }

    fn demote(&mut self, now_ns: u64) -> Action {
        self.real_time = false;
        self.demoted_ns = now_ns;
        Action::Demote
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Simulates a thread that works for `work_percent` of every millisecond and spins for the rest if allowed. Returns the CPU time used
    /// at real-time priority.
    fn simulate(
        guard: &mut DutyGuard,
        from_ms: u64,
        to_ms: u64,
        work_percent: u64,
        cpu: &mut u64,
    ) -> u64 {
        let mut in_real_time = 0;
        for ms in from_ms..to_ms {
            let work = MS * work_percent / 100;
            let spin = if guard.may_spin() { MS - work } else { 0 };
            guard.spun(spin);
            *cpu += work + spin;
            in_real_time += if guard.real_time() { work + spin } else { 0 };
            guard.sample((ms + 1) * MS, *cpu, 1);
        }
        in_real_time
    }

    #[test]
    fn spinning_stops_before_demotion() {
        let (mut guard, mut cpu) = (DutyGuard::new(true, 0, 0), 0);
        let used = simulate(&mut guard, 0, 1_000, 30, &mut cpu);
        assert!(guard.real_time());
        assert!((420..=500).contains(&(used / MS)), "{used}");
    }

    #[test]
    fn overload_demotes_until_the_load_falls() {
        let (mut guard, mut cpu) = (DutyGuard::new(true, 0, 0), 0);
        let used = simulate(&mut guard, 0, 1_000, 95, &mut cpu);
        assert!(!guard.real_time());
        // Demoted after 85 ms of work, most of a window.
        assert!(used <= 91 * MS, "{used}");
        assert_eq!(simulate(&mut guard, 1_000, 3_000, 80, &mut cpu), 0);
        simulate(&mut guard, 3_000, 4_000, 40, &mut cpu);
        assert!(guard.real_time());
    }

    #[test]
    fn real_time_use_stays_below_the_throttling_limit() {
        let (mut guard, mut cpu) = (DutyGuard::new(true, 0, 0), 0);
        let mut used = Vec::new();
        for step in 0..200 {
            let percent = [20, 100, 60, 88, 5, 84, 97][step as usize % 7];
            used.push(simulate(&mut guard, step * 50, (step + 1) * 50, percent, &mut cpu));
        }
        for second in used.windows(20) {
            assert!(second.iter().sum::<u64>() < 900 * MS, "{second:?}");
        }
    }

    #[test]
    fn throttling_stall_demotes() {
        let mut guard = DutyGuard::new(true, 0, 0);
        assert_eq!(guard.woke_late(MS, 39 * MS), Action::Keep);
        assert_eq!(guard.woke_late(MS, 50 * MS), Action::Demote);
        assert_eq!(guard.woke_late(2 * MS, 50 * MS), Action::Keep);
        assert_eq!(guard.sample(400 * MS, 0, 1), Action::Keep);
        assert_eq!(guard.sample(502 * MS, 0, 1), Action::Promote);
    }

    #[test]
    fn a_thread_far_below_its_limits_is_sampled_less_often() {
        let mut guard = DutyGuard::new(true, 0, 0);
        assert!(!guard.wants_sample(9 * MS) && guard.wants_sample(10 * MS));
        guard.sample(50 * MS, 40 * MS, 1);
        assert!(!guard.wants_sample(54 * MS) && guard.wants_sample(55 * MS));
        guard.sample(55 * MS, 45 * MS, 1);
        assert!(!guard.wants_sample(56 * MS - 1) && guard.wants_sample(56 * MS));
        guard.sample(300 * MS, 45 * MS, 1);
        assert!(!guard.wants_sample(309 * MS));
        assert_eq!(guard.woke_late(302 * MS, 50 * MS), Action::Demote);
        assert!(guard.wants_sample(303 * MS), "it may be promoted again");
    }

    #[test]
    fn threads_on_one_cpu_share_the_limits() {
        let mut guard = DutyGuard::new(true, 0, 0);
        guard.sample(50 * MS, 20 * MS, 2);
        assert!(guard.may_spin());
        guard.sample(60 * MS, 30 * MS, 2);
        assert!(!guard.may_spin());
        assert_eq!(guard.sample(90 * MS, 44 * MS, 1), Action::Keep);
        assert_eq!(guard.sample(95 * MS, 44 * MS, 2), Action::Demote);
    }

    #[test]
    fn refused_promotion_is_not_retried() {
        let mut guard = DutyGuard::new(true, 0, 0);
        guard.promotion_refused();
        assert_eq!(guard.sample(10_000 * MS, 5 * MS, 1), Action::Keep);
        assert!(guard.may_spin());
    }

    #[test]
    fn long_sleep_empties_the_window() {
        let mut guard = DutyGuard::new(true, 0, 0);
        assert_eq!(guard.sample(80 * MS, 80 * MS, 1), Action::Keep);
        assert!(!guard.may_spin());
        assert_eq!(guard.sample(5_000 * MS, 80 * MS, 1), Action::Keep);
        assert!(guard.may_spin());
    }
}
