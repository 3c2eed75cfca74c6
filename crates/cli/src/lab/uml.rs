//! User-Mode Linux as the lab's engine: the kernel is a process of this machine, and its clock advances only while every guest
//! process waits (`time-travel=inf-cpu`). The patches in `lab/uml/patches` say what differs from mainline.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::process::{Child, Command};

use super::error::LabError;

/// How long the load of the CPUs is observed to choose one.
const LOAD_WINDOW: std::time::Duration = std::time::Duration::from_millis(40);
/// Name of the engine in results, as `qemu --version` is QEMU's.
pub const EMULATOR: &str = "User-Mode Linux, time-travel=inf-cpu";
/// Names the process of the guest that ran when the kernel received SIGUSR2 (patch 0006).
const RUNNING: &str = "lab: running ";
/// Switches off glibc's functions for newer CPUs, so that they are those of x86-64-v2 on every host: results of `exp` and `log` differ
/// in the last bit with FMA. Names that a version of glibc does not know are ignored.
const HWCAPS: &str = "glibc.cpu.hwcaps=-AVX,-AVX2,-AVX_Fast_Unaligned_Load,-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX512CD,\
                      -BMI1,-BMI2,-ERMS,-FMA,-FMA4,-FSRM,-LZCNT,-MOVBE,-RTM,-XSAVE,-XSAVEC,-Prefer_No_VZEROUPPER";

/// The configuration of one boot.
#[derive(Debug, Clone)]
pub struct UmlConfig {
    /// The kernel: a static program.
    pub kernel: PathBuf,
    /// Working directory, with the files `initramfs` and `messages`.
    pub folder: PathBuf,
    /// Where the kernel creates the file that is the guest's memory.
    pub memory_folder: PathBuf,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Seed of the guest's random numbers.
    pub seed: u64,
    /// Process ID of the controller.
    pub controller: u32,
}

impl UmlConfig {
    /// The kernel's arguments. Paths are relative and nothing else depends on this machine: the arguments that the kernel itself
    /// reads are part of its random pool. It does not see `mem`, `initrd`, `rng-seed`, `controller` and `umid`.
    fn arguments(&self) -> Vec<String> {
        let fixed = [
            "initrd=initramfs",
            "umid=lab",
            "time-travel=inf-cpu",
            // 2026-01-01, as in QEMU.
            "time-travel-start=1767225600000000000",
            "seccomp=on",
            "con=null",
            "con0=null,fd:1",
            "noreboot",
            "norandmaps",
            "panic=-1",
            "quiet",
            "sysctl.vm.panic_on_oom=1",
            "sysctl.net.core.bpf_jit_enable=1",
            "labport=messages",
        ];
        let mut arguments = vec![
            format!("mem={}M", self.memory_mib),
            format!("rng-seed={}", self.seed),
            format!("controller={}", self.controller),
        ];
        arguments.extend(fixed.map(str::to_owned));
        // The kernel passes it to process 1.
        arguments.push(format!("GLIBC_TUNABLES={HWCAPS}"));
        arguments
    }

    /// Starts the kernel on one CPU of this machine: its processes take turns, and a change of the CPU at each turn would double the
    /// time. Its output goes to `console`.
    ///
    /// # Errors
    /// The kernel cannot be started.
    pub fn start(&self, console: &std::fs::File) -> Result<Child, LabError> {
        let io = LabError::io("start", &self.kernel);
        let output = || console.try_clone().map(Stdio::from).map_err(&io);
        let mut command = Command::new(&self.kernel);
        command
            .args(self.arguments())
            .current_dir(&self.folder)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", &self.folder)
            .env("TMPDIR", &self.memory_folder)
            .stdin(Stdio::null())
            .stdout(output()?)
            .stderr(output()?)
            .kill_on_drop(true);
        let allowed = sched_getaffinity(None);
        if let Ok(allowed) = &allowed {
            // If it fails, the trial is slower.
            let _ = sched_setaffinity(None, &one_cpu(allowed, quietest(&busy_ticks())));
        }
        let child = command.spawn();
        if let Ok(allowed) = &allowed {
            let _ = sched_setaffinity(None, allowed);
        }
        child.map_err(&io)
    }
}

/// A folder for the guest's memory: with enough space, and programs in it may be executed, because the guest's programs are mapped
/// from that file. A tmpfs comes first; on a disk the memory would be written back.
///
/// # Errors
/// There is none.
pub fn memory_folder(memory_mib: u32) -> Result<PathBuf, LabError> {
    let candidates = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
    let fits = |folder: &Path| {
        statvfs(folder).is_ok_and(|at| {
            let free_mib = (at.f_bavail * at.f_frsize) >> 20;
            !at.f_flag.contains(StatVfsMountFlags::NOEXEC) && free_mib >= u64::from(memory_mib)
        })
    };
    candidates.into_iter().find(|folder| fits(folder)).ok_or_else(|| LabError::Missing {
        what: format!(
            "{memory_mib} MiB in /dev/shm or TMPDIR, mounted without noexec (engine uml)"
        ),
        hint: "mount one, or use `--engine qemu`".to_owned(),
    })
}

/// What helps against the reason for which the kernel has not booted, by its console output.
pub fn advice(console: &str) -> Option<&'static str> {
    let no_seccomp = console.contains("SECCOMP userspace requested but not functional");
    no_seccomp.then_some(
        "cannot start: this machine does not allow it to install seccomp filters (a container?); use `--engine qemu`",
    )
}

/// The running process of the guest, once the kernel has received SIGUSR2.
pub fn running_process(console: &str) -> Option<&str> {
    let (_, after) = console.rsplit_once(RUNNING)?;
    after.lines().next().map(str::trim)
}

/// Only this CPU, or the first allowed one if it is not allowed.
fn one_cpu(allowed: &CpuSet, cpu: usize) -> CpuSet {
    let mut one = CpuSet::new();
    let first = || (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu));
    let cpu = if allowed.is_set(cpu) { cpu } else { first().unwrap_or(cpu) };
    one.set(cpu);
    one
}

/// Ticks (10 ms) in which each CPU was busy during a short time.
fn busy_ticks() -> Vec<u64> {
    let read = || std::fs::read_to_string("/proc/stat").map(|text| busy_since_boot(&text));
    let Ok(before) = read() else { return Vec::new() };
    std::thread::sleep(LOAD_WINDOW);
    let after = read().unwrap_or_default();
    after.iter().zip(&before).map(|(after, before)| after.saturating_sub(*before)).collect()
}

/// The CPU that was least busy.
fn quietest(busy: &[u64]) -> usize {
    let least = busy.iter().enumerate().min_by_key(|(_, busy)| **busy);
    least.map_or(0, |(cpu, _)| cpu)
}

/// For each CPU, the ticks in which it was not idle, from `/proc/stat`.
fn busy_since_boot(stat: &str) -> Vec<u64> {
    let of_line = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
        // The first line is the sum of all.
        if line.starts_with("cpu ") {
            return None;
        }
        words.next();
        // user, nice, system, idle, iowait, irq, softirq, steal
        let ticks: Vec<u64> = words.take(8).filter_map(|word| word.parse().ok()).collect();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        Some(ticks.iter().sum::<u64>() - idle)
    };
    stat.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> UmlConfig {
        UmlConfig {
            kernel: "/cache/kernel-uml/vmlinux".into(),
            folder: "/tmp/ccbench-lab-abc".into(),
            memory_folder: "/dev/shm".into(),
            memory_mib: 512,
            seed: 7,
            controller: 4711,
        }
    }

    /// What the kernel's command line has goes into its random numbers.
    #[test]
    fn arguments_name_no_folder_of_this_machine() {
        let line = config().arguments().join(" ");
        assert!(
            !line.contains("/tmp") && !line.contains("/cache") && !line.contains("/dev"),
            "{line}"
        );
        assert!(line.contains("mem=512M") && line.contains("rng-seed=7 "), "{line}");
        let elsewhere = UmlConfig { folder: "/other".into(), kernel: "/k".into(), ..config() };
        assert_eq!(elsewhere.arguments(), config().arguments());
    }

    #[test]
    fn reads_which_process_runs() {
        let console =
            "booted\n\nlab: running process 7 (old)\n\nlab: running process 93 (sh)\nmore";
        assert_eq!(running_process(console), Some("process 93 (sh)"));
        assert_eq!(running_process("booted"), None);
    }

    #[test]
    fn chooses_the_quietest_cpu_that_is_allowed() {
        let text = "cpu  140 0 60 900 5 0 0 0 0 0\ncpu0 100 0 50 400 5 0 0 0 0 0\ncpu1 40 0 10 500 0 0 0 0 0 0\nintr 3\n";
        assert_eq!(busy_since_boot(text), [150, 50]);
        assert_eq!(quietest(&[150, 50]), 1);
        assert_eq!(quietest(&[]), 0);
        let mut allowed = CpuSet::new();
        allowed.set(2);
        assert!(one_cpu(&allowed, 1).is_set(2) && one_cpu(&allowed, 2).is_set(2));
        assert_eq!(one_cpu(&allowed, 1).count(), 1);
    }
}
