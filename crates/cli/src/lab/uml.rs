//! User-Mode Linux as the lab's engine: the kernel is a process of this machine, and its clock advances only while all guest
//! processes wait (`time-travel=inf-cpu`). The patches in `lab/uml/patches` explain the differences from mainline.

use std::path::PathBuf;
use std::process::Stdio;

use rustix::fs::{StatVfsMountFlags, statvfs};
use seccompiler::sock_filter;
use tokio::process::{Child, Command};

use super::MEMORY_MIB;
use super::cpu::on_cpu;
use super::error::LabError;

/// Name of the engine in results, like `qemu --version` for QEMU.
pub const EMULATOR: &str = "User-Mode Linux, time-travel=inf-cpu";
/// Precedes the name of the guest process that ran when the kernel received SIGUSR2 (patch 0006).
const RUNNING: &str = "lab: running ";
/// The seccomp actions that the kernel supports. The system calls of guest processes use `trap`.
const SECCOMP_ACTIONS: &str = "/proc/sys/kernel/seccomp/actions_avail";
/// A filter of one instruction, `BPF_RET | BPF_K` with `SECCOMP_RET_ALLOW`: it allows everything.
const ALLOW_ALL: [sock_filter; 1] = [sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 }];
/// Disables glibc's variants for newer CPUs, so that every host uses those of x86-64-v2: with FMA, results of `exp` and `log`
/// differ in the last bit. glibc ignores names that it does not know.
const HWCAPS: &str = "glibc.cpu.hwcaps=-AVX,-AVX2,-AVX_Fast_Unaligned_Load,-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX512CD,\
                      -BMI1,-BMI2,-ERMS,-FMA,-FMA4,-FSRM,-LZCNT,-MOVBE,-RTM,-XSAVE,-XSAVEC,-Prefer_No_VZEROUPPER";

/// The configuration of one boot.
#[derive(Debug, Clone)]
pub struct UmlConfig {
    /// The kernel, a static program.
    pub kernel: PathBuf,
    /// The working directory, with the files `initramfs` and `messages`.
    pub folder: PathBuf,
    /// Where the kernel creates the file of the guest's memory.
    pub memory_folder: PathBuf,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Seed of the guest's random numbers.
    pub seed: u64,
    /// Process ID of the controller.
    pub controller: u32,
}

impl UmlConfig {
    /// Returns the kernel's arguments. Arguments that the kernel itself reads go into its random pool, so they must not depend on
    /// this machine: paths are relative. The kernel does not see `mem`, `initrd`, `rng-seed`, `controller` and `umid`.
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
        // The kernel passes this to process 1.
        arguments.push(format!("GLIBC_TUNABLES={HWCAPS}"));
        arguments
    }

    /// Starts the kernel on one CPU of this machine, with its output in `console`. Its processes take turns; moving to another
    /// CPU at each turn would double the time.
    ///
    /// # Errors
    /// The kernel cannot be started.
    #[expect(clippy::disallowed_methods, reason = "starts User-Mode Linux")]
    pub fn start(&self, cpu: usize, console: &std::fs::File) -> Result<Child, LabError> {
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
        on_cpu(cpu, || command.spawn()).map_err(&io)
    }
}

/// Returns directories for the guests' memory, each with its free space in MiB. They must allow executable mappings, because a
/// guest's programs are mapped from the memory file. A tmpfs comes first, because on a disk the memory would be written back.
pub fn memory_folders() -> Vec<(PathBuf, u64)> {
    let candidates = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
    let usable = |folder: PathBuf| {
        let at = statvfs(&folder).ok()?;
        let executable = !at.f_flag.contains(StatVfsMountFlags::NOEXEC);
        executable.then(|| (folder, (at.f_bavail * at.f_frsize) >> 20))
    };
    candidates.into_iter().filter_map(usable).collect()
}

/// Returns the first of the [`memory_folders`] with enough space for one guest.
///
/// # Errors
/// No directory has enough space.
pub fn memory_folder(memory_mib: u32) -> Result<PathBuf, LabError> {
    let mut folders = memory_folders().into_iter();
    let fitting = folders.find(|(_, free_mib)| *free_mib >= u64::from(memory_mib));
    fitting.map(|(folder, _)| folder).ok_or_else(|| LabError::Missing {
        what: format!("{} (engine uml)", memory_need(memory_mib)),
        hint: "mount one, or use `--engine qemu`".to_owned(),
    })
}

fn memory_need(memory_mib: u32) -> String {
    format!("{memory_mib} MiB in /dev/shm or TMPDIR, mounted without noexec")
}

/// Returns what User-Mode Linux needs but this machine lacks; `None` if nothing is missing.
pub fn missing_requirement() -> Option<String> {
    let actions = std::fs::read_to_string(SECCOMP_ACTIONS).unwrap_or_default();
    let seccomp = (actions.as_str(), permits_filters());
    missing_requirement_of(std::env::consts::ARCH, seccomp, memory_folder(MEMORY_MIB).is_ok())
}

/// Returns whether a process may install a seccomp filter. A container may forbid it.
fn permits_filters() -> bool {
    // The filter, and the flag `no_new_privs` that it needs, end with their thread.
    let install = || seccompiler::apply_filter(&ALLOW_ALL).is_ok();
    let thread = std::thread::Builder::new().spawn(install);
    thread.is_ok_and(|thread| thread.join().unwrap_or(false))
}

/// Like [`missing_requirement`], for a machine with this architecture and these seccomp actions, where processes may or may not install
/// filters.
fn missing_requirement_of(
    arch: &str,
    (seccomp_actions, permits_filters): (&str, bool),
    has_memory: bool,
) -> Option<String> {
    if arch != "x86_64" {
        Some("an x86-64 machine".to_owned())
    } else if !seccomp_actions.split_whitespace().any(|action| action == "trap") {
        Some("a kernel with seccomp filters (CONFIG_SECCOMP_FILTER)".to_owned())
    } else if !permits_filters {
        Some("the permission to install seccomp filters (is this a container?)".to_owned())
    } else {
        (!has_memory).then(|| memory_need(MEMORY_MIB))
    }
}

/// Returns advice for a kernel that did not boot, from its console output.
pub fn advice(console: &str) -> Option<&'static str> {
    let no_seccomp = console.contains("SECCOMP userspace requested but not functional");
    no_seccomp.then_some(
        "cannot start: this machine does not allow it to install seccomp filters (a container?); use `--engine qemu`",
    )
}

/// Returns the guest process that was running when the kernel received SIGUSR2.
pub fn running_process(console: &str) -> Option<&str> {
    let (_, after) = console.rsplit_once(RUNNING)?;
    after.lines().next().map(str::trim)
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

    /// The kernel mixes its command line into its random numbers.
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
    fn names_what_a_machine_lacks() {
        let actions = "kill_process kill_thread trap errno user_notif trace log allow\n";
        assert_eq!(missing_requirement_of("x86_64", (actions, true), true), None);
        for (arch, seccomp, has_memory, what) in [
            ("aarch64", (actions, true), true, "an x86-64 machine"),
            ("x86_64", ("", true), true, "CONFIG_SECCOMP_FILTER"),
            ("x86_64", ("kill_thread errno allow", true), true, "CONFIG_SECCOMP_FILTER"),
            ("x86_64", (actions, false), true, "the permission to install seccomp filters"),
            ("x86_64", (actions, true), false, "768 MiB in /dev/shm or TMPDIR"),
        ] {
            let lacking = missing_requirement_of(arch, seccomp, has_memory).unwrap_or_default();
            assert!(lacking.contains(what), "{arch} {seccomp:?} {has_memory}: {lacking}");
        }
    }

    #[test]
    fn a_kernel_without_seccomp_advises_the_other_engine() {
        let console = "Checking environment\nSECCOMP userspace requested but not functional!\n";
        assert!(advice(console).is_some_and(|advice| advice.contains("use `--engine qemu`")));
        assert_eq!(advice("booted"), None);
    }

    #[test]
    fn reads_which_process_runs() {
        let console =
            "booted\n\nlab: running process 7 (old)\n\nlab: running process 93 (sh)\nmore";
        assert_eq!(running_process(console), Some("process 93 (sh)"));
        assert_eq!(running_process("booted"), None);
    }
}
