//! Counters of the host: CPU, softirq, drops, retransmissions and the agent's own usage, as differences between two reads of
//! /proc. The files stay open and are re-read from the start.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use ccbench_proto::wire::HostSample;
use nix::unistd::{SysconfVar, sysconf};

use crate::SampleError;

pub mod procfs;

use procfs::{CpuTimes, NicDrops, ProcessUsage, Softnet};

/// Maximum size of a /proc file that is read here; enough for thousands of CPUs or interfaces.
const FILE_LIMIT: usize = 4 << 20;

/// Reads the host's counters and returns the differences to the previous sample.
pub struct HostSampler {
    cpu: ProcFile,
    softnet: ProcFile,
    snmp: ProcFile,
    nics: ProcFile,
    process: ProcFile,
    text: Vec<u8>,
    ticks_per_s: u64,
    page_bytes: u64,
    before: Counters,
    last_at_ns: Option<u64>,
    last_cpu: CpuShares,
    awake: KeptAwakeBy,
}

/// Which process keeps the CPUs from idling with niced threads. Their time counts as idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeptAwakeBy {
    /// None.
    #[default]
    Nobody,
    /// Another process.
    OtherProcess,
    /// The sampled process itself.
    ThisProcess,
}

/// All cumulative counters at one point in time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Counters {
    cpu: CpuTimes,
    softnet: Softnet,
    retrans_segs: u64,
    nics: NicDrops,
    process: ProcessUsage,
}

/// Shares of the time of all CPUs, in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
struct CpuShares {
    user: f64,
    system: f64,
    softirq: f64,
    steal: f64,
    idle: f64,
    max_busy: f64,
}

impl HostSampler {
    /// Opens the counters. Network counters remain those of the calling thread's namespace. `pid` is the agent's own. The first
    /// sample covers the time since this call.
    ///
    /// # Errors
    /// `Proc` if a file cannot be read or parsed.
    pub fn new(pid: u32) -> Result<Self, SampleError> {
        let mut sampler = Self {
            cpu: ProcFile::open("/proc/stat")?,
            softnet: ProcFile::open("/proc/thread-self/net/softnet_stat")?,
            snmp: ProcFile::open("/proc/thread-self/net/snmp")?,
            nics: ProcFile::open("/proc/thread-self/net/dev")?,
            process: ProcFile::open(&format!("/proc/{pid}/stat"))?,
            text: vec![0; 16 * 1024],
            ticks_per_s: positive_sysconf(SysconfVar::CLK_TCK, 100),
            page_bytes: positive_sysconf(SysconfVar::PAGE_SIZE, 4096),
            before: Counters::default(),
            last_at_ns: None,
            last_cpu: CpuShares::IDLE,
            awake: KeptAwakeBy::Nobody,
        };
        sampler.before = sampler.read()?;
        Ok(sampler)
    }

    /// Sets which process's keep-awake threads count as idle.
    #[must_use]
    pub fn awake(self, awake: KeptAwakeBy) -> Self {
        Self { awake, ..self }
    }

    /// Returns the differences since the previous call (or since `new`). A counter that decreased, for example because an
    /// interface was removed, counts as unchanged.
    ///
    /// # Errors
    /// `Proc` if a file cannot be read or parsed. The next call then covers the longer interval.
    pub fn sample(&mut self, at_ns: u64) -> Result<HostSample, SampleError> {
        let now = self.read()?;
        let before = std::mem::replace(&mut self.before, now);
        let now = &self.before;
        let gap_ns = self.last_at_ns.map_or(0, |last_at_ns| at_ns.saturating_sub(last_at_ns));
        self.last_at_ns = Some(at_ns);
        // Keep the previous shares if no tick passed in between.
        let shares = CpuShares::between(&before.cpu, &now.cpu, self.awake != KeptAwakeBy::Nobody);
        let shares = shares.unwrap_or(self.last_cpu);
        self.last_cpu = shares;
        let awake_ticks = match self.awake {
            KeptAwakeBy::ThisProcess => now.cpu.all.since(&before.cpu.all).nice,
            KeptAwakeBy::Nobody | KeptAwakeBy::OtherProcess => 0,
        };
        let own_ticks =
            now.process.ticks.saturating_sub(before.process.ticks).saturating_sub(awake_ticks);
        Ok(HostSample {
            at_ns,
            gap_ns,
            cpu_user_pct: shares.user,
            cpu_system_pct: shares.system,
            cpu_softirq_pct: shares.softirq,
            cpu_steal_pct: shares.steal,
            cpu_idle_pct: shares.idle,
            cpu_max_busy_pct: shares.max_busy,
            softnet_dropped: now.softnet.dropped.saturating_sub(before.softnet.dropped),
            softnet_squeezed: now.softnet.squeezed.saturating_sub(before.softnet.squeezed),
            nic_rx_dropped: now.nics.rx.saturating_sub(before.nics.rx),
            nic_tx_dropped: now.nics.tx.saturating_sub(before.nics.tx),
            tcp_retrans_segs: now.retrans_segs.saturating_sub(before.retrans_segs),
            agent_cpu_pct: share_of_one_cpu(own_ticks, self.ticks_per_s, gap_ns),
            agent_rss_bytes: Some(now.process.rss_pages.saturating_mul(self.page_bytes)),
        })
    }

    fn read(&mut self) -> Result<Counters, SampleError> {
        let text = &mut self.text;
        Ok(Counters {
            cpu: self.cpu.parse(text, procfs::cpu_times)?,
            softnet: self.softnet.parse(text, procfs::softnet)?,
            retrans_segs: self.snmp.parse(text, procfs::tcp_retrans_segs)?,
            nics: self.nics.parse(text, procfs::nic_drops)?,
            process: self.process.parse(text, procfs::process_usage)?,
        })
    }
}

impl CpuShares {
    const IDLE: Self =
        Self { user: 0.0, system: 0.0, softirq: 0.0, steal: 0.0, idle: 100.0, max_busy: 0.0 };

    /// Returns `None` if no tick passed.
    fn between(before: &CpuTimes, now: &CpuTimes, niced_is_idle: bool) -> Option<Self> {
        let assign_nice = |ticks: procfs::CpuTicks| {
            let to = if niced_is_idle { (0, ticks.nice) } else { (ticks.nice, 0) };
            procfs::CpuTicks { user: ticks.user + to.0, nice: 0, idle: ticks.idle + to.1, ..ticks }
        };
        let spent = assign_nice(now.all.since(&before.all));
        let total = spent.total();
        if total == 0 {
            return None;
        }
        let share = |ticks: u64| percent(ticks, total);
        let busiest = |(now, before): (&procfs::Cpu, &procfs::Cpu)| {
            let spent = assign_nice(now.times.since(&before.times));
            (now.index == before.index && spent.total() > 0)
                .then(|| percent(spent.total() - spent.idle, spent.total()))
        };
        Some(Self {
            user: share(spent.user),
            system: share(spent.system),
            softirq: share(spent.softirq),
            steal: share(spent.steal),
            idle: share(spent.idle),
            max_busy: now.each.iter().zip(&before.each).filter_map(busiest).fold(0.0, f64::max),
        })
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole as f64
}

/// Returns 0 for the first sample, whose interval is unknown.
fn share_of_one_cpu(ticks: u64, ticks_per_s: u64, gap_ns: u64) -> f64 {
    if gap_ns == 0 {
        return 0.0;
    }
    let spent_ns = ticks as f64 * 1e9 / ticks_per_s as f64;
    spent_ns * 100.0 / gap_ns as f64
}

fn positive_sysconf(variable: SysconfVar, otherwise: u64) -> u64 {
    sysconf(variable)
        .ok()
        .flatten()
        .and_then(|value| u64::try_from(value).ok())
        .filter(|&value| value > 0)
        .unwrap_or(otherwise)
}

/// A /proc file that is read repeatedly.
struct ProcFile {
    path: String,
    file: File,
}

impl ProcFile {
    fn open(path: &str) -> Result<Self, SampleError> {
        let path = path.to_owned();
        match File::open(&path) {
            Ok(file) => Ok(Self { path, file }),
            Err(source) => Err(SampleError::Proc { path, source }),
        }
    }

    fn parse<T>(
        &self,
        buffer: &mut Vec<u8>,
        parser: impl Fn(&str) -> Option<T>,
    ) -> Result<T, SampleError> {
        let failed = |source| SampleError::Proc { path: self.path.clone(), source };
        let len = self.read(buffer).map_err(failed)?;
        buffer.get(..len).and_then(|bytes| str::from_utf8(bytes).ok()).and_then(parser).ok_or_else(
            || {
                failed(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "unexpected format; report this with the contents of the file",
                ))
            },
        )
    }

    fn read(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let mut len = 0;
        loop {
            if len == buffer.len() {
                if len >= FILE_LIMIT {
                    return Err(io::Error::from(io::ErrorKind::FileTooLarge));
                }
                buffer.resize((len * 2).max(4096), 0);
            }
            let free = buffer.get_mut(len..).unwrap_or_default();
            match self.file.read_at(free, len as u64) {
                Ok(0) => return Ok(len),
                Ok(more) => len += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::procfs::{Cpu, CpuTicks};
    use super::*;

    fn ticks(user: u64, system: u64, softirq: u64, steal: u64, idle: u64) -> CpuTicks {
        CpuTicks { user, nice: 0, system, softirq, steal, idle }
    }

    fn two_cpus(first: CpuTicks, second: CpuTicks) -> CpuTimes {
        CpuTimes {
            all: ticks(
                first.user + second.user,
                first.system + second.system,
                first.softirq + second.softirq,
                first.steal + second.steal,
                first.idle + second.idle,
            ),
            each: vec![Cpu { index: 0, times: first }, Cpu { index: 1, times: second }],
        }
    }

    #[test]
    fn shares_cover_all_cpus_and_max_busy_covers_one() {
        let before = two_cpus(ticks(0, 0, 0, 0, 100), ticks(50, 0, 0, 0, 0));
        let now = two_cpus(ticks(10, 20, 30, 20, 120), ticks(60, 0, 0, 0, 90));
        let shares = CpuShares::between(&before, &now, false).unwrap();
        assert_eq!(shares.user, 10.0);
        assert_eq!(shares.system, 10.0);
        assert_eq!(shares.softirq, 15.0);
        assert_eq!(shares.steal, 10.0);
        assert_eq!(shares.idle, 55.0);
        assert_eq!(shares.max_busy, 80.0);
        assert_eq!(CpuShares::between(&now, &now, false), None);
    }

    #[test]
    fn keep_awake_threads_count_as_idle() {
        let before = two_cpus(ticks(0, 0, 0, 0, 0), ticks(0, 0, 0, 0, 0));
        let mut now = two_cpus(ticks(10, 0, 0, 0, 0), ticks(10, 0, 0, 0, 0));
        now.all.nice = 180;
        now.each.iter_mut().for_each(|cpu| cpu.times.nice = 90);
        let of = |niced_is_idle| CpuShares::between(&before, &now, niced_is_idle).unwrap();
        assert_eq!((of(true).user, of(true).idle, of(true).max_busy), (10.0, 90.0, 10.0));
        assert_eq!((of(false).user, of(false).idle, of(false).max_busy), (100.0, 0.0, 100.0));
    }

    #[test]
    fn a_hotplugged_cpu_is_not_compared_with_another() {
        let before = two_cpus(ticks(0, 0, 0, 0, 0), ticks(0, 0, 0, 0, 0));
        let mut now = two_cpus(ticks(10, 0, 0, 0, 90), ticks(100, 0, 0, 0, 0));
        now.each[1].index = 3;
        assert_eq!(CpuShares::between(&before, &now, false).unwrap().max_busy, 10.0);
    }

    #[test]
    fn agent_share_is_relative_to_one_cpu() {
        assert_eq!(share_of_one_cpu(5, 100, 1_000_000_000), 5.0);
        assert_eq!(share_of_one_cpu(200, 100, 1_000_000_000), 200.0);
        assert_eq!(share_of_one_cpu(5, 100, 0), 0.0);
    }

    #[test]
    fn samples_this_machine() {
        let mut sampler = HostSampler::new(std::process::id()).unwrap();
        let first = sampler.sample(1_000_000_000).unwrap();
        assert_eq!((first.at_ns, first.gap_ns), (1_000_000_000, 0));
        let second = sampler.sample(1_100_000_000).unwrap();
        assert_eq!(second.gap_ns, 100_000_000);
        assert!(second.agent_rss_bytes.is_some_and(|bytes| bytes > 100_000));
        let parts = second.cpu_user_pct
            + second.cpu_system_pct
            + second.cpu_softirq_pct
            + second.cpu_steal_pct
            + second.cpu_idle_pct;
        assert!((parts - 100.0).abs() < 1e-6, "{second:?}");
    }

    #[test]
    fn error_for_a_missing_process_names_its_file() {
        let error = HostSampler::new(u32::MAX).err().unwrap().to_string();
        assert!(error.starts_with("read /proc/4294967295/stat: "), "{error}");
    }
}
