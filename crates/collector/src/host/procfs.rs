//! Parsers for /proc files. Pure. They return `None` if the text does not have the documented format.

/// CPU time since boot in clock ticks (USER_HZ).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// All CPUs together.
    pub all: CpuTicks,
    /// Each online CPU.
    pub each: Vec<Cpu>,
}

/// One CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cpu {
    /// 3 of "cpu3".
    pub index: u32,
    /// Its time.
    pub times: CpuTicks,
}

/// Time of a CPU by state, in clock ticks. The states are disjoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTicks {
    /// User mode, including guests.
    pub user: u64,
    /// User mode with a positive nice value.
    pub nice: u64,
    /// Kernel mode.
    pub system: u64,
    /// Hard and soft interrupts.
    pub softirq: u64,
    /// Stolen by the hypervisor.
    pub steal: u64,
    /// Idle, including I/O wait.
    pub idle: u64,
}

/// Counters of the packet backlogs of all CPUs; not per namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Softnet {
    /// Packets dropped because the backlog was full.
    pub dropped: u64,
    /// Times that a CPU used up its budget with packets left (time_squeeze).
    pub squeezed: u64,
}

/// Drops of all interfaces of a namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NicDrops {
    /// Received packets.
    pub rx: u64,
    /// Sent packets, without drops in qdiscs.
    pub tx: u64,
}

/// CPU time and memory of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// User and system time of all its threads, in clock ticks.
    pub ticks: u64,
    /// Resident pages.
    pub rss_pages: u64,
}

impl CpuTicks {
    /// Returns the sum of all states.
    #[must_use]
    pub fn total(&self) -> u64 {
        let states = [self.user, self.nice, self.system, self.softirq, self.steal, self.idle];
        states.into_iter().fold(0, u64::saturating_add)
    }

    /// Returns the difference to an earlier reading. A state that decreased, as idle time does on some kernels, counts as
    /// unchanged.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            user: self.user.saturating_sub(before.user),
            nice: self.nice.saturating_sub(before.nice),
            system: self.system.saturating_sub(before.system),
            softirq: self.softirq.saturating_sub(before.softirq),
            steal: self.steal.saturating_sub(before.steal),
            idle: self.idle.saturating_sub(before.idle),
        }
    }
}

/// Parses `/proc/stat`.
#[must_use]
pub fn cpu_times(text: &str) -> Option<CpuTimes> {
    let mut times = CpuTimes::default();
    let mut lines = text.lines();
    times.all = cpu_ticks(lines.next()?.strip_prefix("cpu ")?)?;
    for line in lines {
        let Some((index, rest)) = line.strip_prefix("cpu").and_then(|line| line.split_once(' '))
        else {
            break;
        };
        times.each.push(Cpu { index: index.parse().ok()?, times: cpu_ticks(rest)? });
    }
    Some(times)
}

/// Parses "user nice system idle iowait irq softirq steal ...". Old kernels write fewer fields. Later fields are ignored: user
/// includes the guest time.
fn cpu_ticks(numbers: &str) -> Option<CpuTicks> {
    let mut parts = [0u64; 8];
    let mut count = 0;
    for (part, word) in parts.iter_mut().zip(numbers.split_ascii_whitespace()) {
        *part = word.parse().ok()?;
        count += 1;
    }
    let [user, nice, system, idle, iowait, irq, softirq, steal] = parts;
    (count >= 4).then_some(CpuTicks {
        user,
        nice,
        system,
        softirq: irq.saturating_add(softirq),
        steal,
        idle: idle.saturating_add(iowait),
    })
}

/// Parses `/proc/net/softnet_stat`: one line of hexadecimal numbers per CPU.
#[must_use]
pub fn softnet(text: &str) -> Option<Softnet> {
    let mut sum = Softnet::default();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace().skip(1);
        let mut hex = || u64::from_str_radix(words.next()?, 16).ok();
        sum.dropped = sum.dropped.saturating_add(hex()?);
        sum.squeezed = sum.squeezed.saturating_add(hex()?);
    }
    Some(sum)
}

/// Parses `RetransSegs` in the "Tcp:" lines of `/proc/net/snmp`.
#[must_use]
pub fn tcp_retrans_segs(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let names = lines.next()?.split_ascii_whitespace();
    let values = lines.next()?.split_ascii_whitespace();
    let (_, value) = names.zip(values).find(|(name, _)| *name == "RetransSegs")?;
    value.parse().ok()
}

/// Parses `/proc/net/dev`, all interfaces together.
#[must_use]
pub fn nic_drops(text: &str) -> Option<NicDrops> {
    let mut sum = NicDrops::default();
    for line in text.lines().skip(2) {
        let (_, counters) = line.rsplit_once(':')?;
        let mut words = counters.split_ascii_whitespace();
        sum.rx = sum.rx.saturating_add(words.nth(3)?.parse().ok()?);
        // The two "drop" columns are fields 3 and 11, with seven columns in between.
        sum.tx = sum.tx.saturating_add(words.nth(7)?.parse().ok()?);
    }
    Some(sum)
}

/// Parses `/proc/PID/stat`. The second field is the program's name, which may contain spaces and parentheses.
#[must_use]
pub fn process_usage(text: &str) -> Option<ProcessUsage> {
    let (_, after_name) = text.rsplit_once(')')?;
    let mut words = after_name.split_ascii_whitespace();
    // proc(5): utime, stime and rss are fields 14, 15 and 24; the first word here is field 3.
    let utime: u64 = words.nth(11)?.parse().ok()?;
    let stime: u64 = words.next()?.parse().ok()?;
    Some(ProcessUsage {
        ticks: utime.saturating_add(stime),
        rss_pages: words.nth(8)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_cpu_lines_and_ignores_the_rest() {
        let text = "cpu  41807 3 14924 213590 1042 5 106 40 7 0\n\
                    cpu0 20070 1 5698 109538 376 2 33 19 0 0\n\
                    cpu3 21737 2 9226 104051 665 3 73 20 0 0\n\
                    intr 406938 0 0\nctxt 12\n";
        let times = cpu_times(text).unwrap();
        assert_eq!((times.all.user, times.all.nice), (41_807, 3));
        assert_eq!(times.all.system, 14_924);
        assert_eq!(times.all.softirq, 111);
        assert_eq!(times.all.steal, 40);
        assert_eq!(times.all.idle, 214_632);
        assert_eq!(times.all.total(), 271_517);
        let indices: Vec<u32> = times.each.iter().map(|cpu| cpu.index).collect();
        assert_eq!(indices, [0, 3]);
        assert_eq!(times.each[1].times.softirq, 76);
    }

    #[test]
    fn accepts_the_cpu_line_of_an_old_kernel() {
        assert_eq!(cpu_times("cpu  1 2 3 4\n").unwrap().all.total(), 10);
        assert_eq!(cpu_times("cpu  1 2 3\n"), None);
        assert_eq!(cpu_times("cpu  1 2 x 4\n"), None);
        assert_eq!(cpu_times(""), None);
    }

    #[test]
    fn decreasing_time_counts_as_zero() {
        let earlier = CpuTicks { idle: 10, user: 5, ..CpuTicks::default() };
        let later = CpuTicks { idle: 9, user: 8, ..CpuTicks::default() };
        assert_eq!(later.since(&earlier).total(), 3);
    }

    #[test]
    fn adds_backlogs_of_all_cpus() {
        let text = "00000012 00000001 0000000a 00000000\n00002597 00000010 00000001 00000000\n";
        let sum = softnet(text).unwrap();
        assert_eq!((sum.dropped, sum.squeezed), (17, 11));
        assert_eq!(softnet("zz zz zz\n"), None);
        assert_eq!(softnet("00000012\n"), None);
    }

    #[test]
    fn finds_retransmissions_by_name() {
        let text = "Ip: Forwarding DefaultTTL\nIp: 1 64\n\
                    Tcp: RtoAlgorithm MaxConn InSegs OutSegs RetransSegs InErrs\n\
                    Tcp: 1 -1 9379 6131 42 0\nUdp: InDatagrams\nUdp: 0\n";
        assert_eq!(tcp_retrans_segs(text), Some(42));
        assert_eq!(tcp_retrans_segs("Tcp: InSegs\nTcp: 1\n"), None);
        assert_eq!(tcp_retrans_segs("Udp: 1\n"), None);
    }

    #[test]
    fn adds_drops_of_all_interfaces() {
        let text = "Inter-|   Receive                            |  Transmit\n face |bytes ...\n\
            lo:    3193      29    0    0    0     0          0         0     3193      29    0    0    0     0       0          0\n\
          eth0:278320499    9612    0    7    0     0          0         0   742914    6258    0    5    0     0       0          0\n\
        veth:1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n";
        let drops = nic_drops(text).unwrap();
        assert_eq!((drops.rx, drops.tx), (11, 17));
        assert_eq!(nic_drops("a\nb\nlo: 1 2\n"), None);
        assert_eq!(nic_drops("a\nb\n"), Some(NicDrops::default()));
    }

    #[test]
    fn accepts_a_process_name_that_looks_like_fields() {
        let text = "17007 (cc) R 1 (agent) S 16992 16992 12741 0 -1 4194304 101 0 0 0 33 9 0 0 20 0 1 0 \
                    136261 3133440 380 18446744073709551615 1 1";
        let used = process_usage(text).unwrap();
        assert_eq!((used.ticks, used.rss_pages), (42, 380));
        assert_eq!(process_usage("17007 (cat) R 1 2"), None);
        assert_eq!(process_usage(""), None);
    }

    proptest! {
        #[test]
        fn parses_any_text_without_panic(text in "(cpu|Tcp:|lo:|\\)|[0-9a-f .\n]){0,60}") {
            let _ = cpu_times(&text);
            let _ = softnet(&text);
            let _ = tcp_retrans_segs(&text);
            let _ = nic_drops(&text);
            let _ = process_usage(&text);
        }
    }
}
