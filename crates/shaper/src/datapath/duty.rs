//! How much of its processor the packet loop may take at real-time priority. The kernel stops all real-time
//! threads of a processor for the rest of a second once they have used `kernel.sched_rt_runtime_us` of
//! it (95 % by default): a stall of 50 ms that no packet survives. And what is left is ksoftirqd's: the softirqs
//! that our sends raise run in our own thread (and on its account), but those of others may have been left to
//! ksoftirqd, an ordinary thread. Pure: the caller passes the time and the CPU time used.

/// The window, as a number of buckets and their length.
const BUCKETS: usize = 10;
const BUCKET_NS: u64 = 10_000_000;
const WINDOW_NS: u64 = BUCKETS as u64 * BUCKET_NS;
/// Reading the thread's clock is a system call, so it is done this often.
const SAMPLE_NS: u64 = 1_000_000;
/// Of the window, in percent: above the first nothing is spun, above the second the thread gives real time
/// up, below the third it may have it back. Two threads that spin on one processor stay below the throttle.
const SPIN_BELOW_PERCENT: u64 = 45;
const REAL_TIME_BELOW_PERCENT: u64 = 85;
const BACK_BELOW_PERCENT: u64 = 70;
/// A thread that gave real time up stays without it for this long.
const AWAY_NS: u64 = 500_000_000;
/// A real-time thread that oversleeps by more shares its processor with others of its kind, and was stopped
/// with them. Less is the machine's own: a kernel that is not preemptible, or a host that lent the processor.
const STALL_NS: u64 = 40_000_000;

/// What the thread is to do about its scheduling class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Leave it.
    Keep,
    /// Give real time up.
    Yield,
    /// Take real time again.
    Return,
}

/// Watches one thread.
#[derive(Debug)]
pub(crate) struct DutyGuard {
    real_time: bool,
    used_ns: [u64; BUCKETS],
    spun_ns: [u64; BUCKETS],
    /// Bucket of the last sample, counted from time zero.
    bucket: u64,
    sampled_ns: u64,
    sampled_cpu_ns: u64,
    spun_since_ns: u64,
    yielded_ns: u64,
    /// Threads like this one that a processor must bear.
    sharers: u64,
}

impl DutyGuard {
    /// For a thread that has used `cpu_ns` of processor time at `now_ns`.
    pub(crate) fn new(real_time: bool, now_ns: u64, cpu_ns: u64) -> Self {
        Self {
            real_time,
            used_ns: [0; BUCKETS],
            spun_ns: [0; BUCKETS],
            bucket: now_ns / BUCKET_NS,
            sampled_ns: now_ns,
            sampled_cpu_ns: cpu_ns,
            spun_since_ns: 0,
            yielded_ns: 0,
            sharers: 1,
        }
    }

    /// Whether it is time for [`Self::sample`].
    pub(crate) fn wants_sample(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.sampled_ns) >= SAMPLE_NS
    }

    /// The thread has used `cpu_ns` of processor time up to `now_ns`; a processor must bear `sharers` of its kind.
    pub(crate) fn sample(&mut self, now_ns: u64, cpu_ns: u64, sharers: u64) -> Verdict {
        self.sharers = sharers.max(1);
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
        if self.real_time && used_ns > self.share(REAL_TIME_BELOW_PERCENT) {
            self.give_up(now_ns)
        } else if self.yielded_ns > 0
            && now_ns.saturating_sub(self.yielded_ns) >= AWAY_NS
            && worked_ns < self.share(BACK_BELOW_PERCENT)
        {
            // Only what is used in real time counts against it.
            self.used_ns = [0; BUCKETS];
            self.spun_ns = [0; BUCKETS];
            self.yielded_ns = 0;
            self.real_time = true;
            Verdict::Return
        } else {
            Verdict::Keep
        }
    }

    /// The thread woke `late_ns` after the time it had asked for.
    pub(crate) fn overslept(&mut self, now_ns: u64, late_ns: u64) -> Verdict {
        if self.real_time && late_ns > STALL_NS { self.give_up(now_ns) } else { Verdict::Keep }
    }

    /// The class that was asked for was refused: it is never asked for again.
    pub(crate) fn refused(&mut self) {
        self.real_time = false;
        self.yielded_ns = 0;
    }

    /// `ns` were spun.
    pub(crate) fn spun(&mut self, ns: u64) {
        self.spun_since_ns += ns;
    }

    /// Whether the thread is a real-time one.
    pub(crate) fn real_time(&self) -> bool {
        self.real_time
    }

    /// Whether there is time to be spun. Only a real-time thread spends more than its own.
    pub(crate) fn may_spin(&self) -> bool {
        !self.real_time || self.used() + self.spun_since_ns < self.share(SPIN_BELOW_PERCENT)
    }

    /// This thread's part of so much of the window.
    fn share(&self, percent: u64) -> u64 {
        WINDOW_NS * percent / 100 / self.sharers
    }

    fn used(&self) -> u64 {
        self.used_ns.iter().sum()
    }

    fn give_up(&mut self, now_ns: u64) -> Verdict {
        self.real_time = false;
        self.yielded_ns = now_ns;
        Verdict::Yield
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A thread that works `work_percent` of every millisecond, and spins the rest as far as it may.
    fn live(
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
    fn spinning_is_what_goes_first() {
        let (mut guard, mut cpu) = (DutyGuard::new(true, 0, 0), 0);
        let used = live(&mut guard, 0, 1_000, 30, &mut cpu);
        assert!(guard.real_time());
        assert!((420..=500).contains(&(used / MS)), "{used}");
    }

    #[test]
    fn work_beyond_the_limit_is_done_without_real_time_until_it_falls() {
        let (mut guard, mut cpu) = (DutyGuard::new(true, 0, 0), 0);
        let used = live(&mut guard, 0, 1_000, 95, &mut cpu);
        assert!(!guard.real_time());
        // At once: after 85 ms of work, most of a window.
        assert!(used <= 91 * MS, "{used}");
        assert_eq!(live(&mut guard, 1_000, 3_000, 80, &mut cpu), 0);
        live(&mut guard, 3_000, 4_000, 40, &mut cpu);
        assert!(guard.real_time());
    }

    #[test]
    fn no_second_comes_near_the_throttle_whatever_the_load_does() {
        let (mut guard, mut cpu) = (DutyGuard::new(true, 0, 0), 0);
        let mut used = Vec::new();
        for step in 0..200 {
            let percent = [20, 100, 60, 88, 5, 84, 97][step as usize % 7];
            used.push(live(&mut guard, step * 50, (step + 1) * 50, percent, &mut cpu));
        }
        for second in used.windows(20) {
            assert!(second.iter().sum::<u64>() < 900 * MS, "{second:?}");
        }
    }

    #[test]
    fn a_stall_means_that_somebody_else_is_there() {
        let mut guard = DutyGuard::new(true, 0, 0);
        assert_eq!(guard.overslept(MS, 39 * MS), Verdict::Keep);
        assert_eq!(guard.overslept(MS, 50 * MS), Verdict::Yield);
        assert_eq!(guard.overslept(2 * MS, 50 * MS), Verdict::Keep);
        assert_eq!(guard.sample(400 * MS, 0, 1), Verdict::Keep);
        assert_eq!(guard.sample(502 * MS, 0, 1), Verdict::Return);
    }

    #[test]
    fn those_who_share_a_processor_share_the_limits() {
        let mut guard = DutyGuard::new(true, 0, 0);
        guard.sample(50 * MS, 20 * MS, 2);
        assert!(guard.may_spin());
        guard.sample(60 * MS, 30 * MS, 2);
        assert!(!guard.may_spin());
        assert_eq!(guard.sample(90 * MS, 44 * MS, 1), Verdict::Keep);
        assert_eq!(guard.sample(95 * MS, 44 * MS, 2), Verdict::Yield);
    }

    #[test]
    fn what_was_refused_is_not_asked_for_again() {
        let mut guard = DutyGuard::new(true, 0, 0);
        guard.refused();
        assert_eq!(guard.sample(10_000 * MS, 5 * MS, 1), Verdict::Keep);
        assert!(guard.may_spin());
    }

    #[test]
    fn a_long_sleep_empties_the_window() {
        let mut guard = DutyGuard::new(true, 0, 0);
        assert_eq!(guard.sample(80 * MS, 80 * MS, 1), Verdict::Keep);
        assert!(!guard.may_spin());
        assert_eq!(guard.sample(5_000 * MS, 80 * MS, 1), Verdict::Keep);
        assert!(guard.may_spin());
    }
}
