//! QEMU's command line for the lab: the guest's clock counts instructions, and the guest sees nothing of the host.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::{Child, Command};

use super::cpu::on_cpu;
use super::error::LabError;
use crate::paths::agent_binary;

/// The configuration of one boot.
#[derive(Debug, Clone)]
pub struct VmConfig {
    /// The kernel: an ELF image with a PVH entry.
    pub kernel: PathBuf,
    /// The initramfs.
    pub initramfs: PathBuf,
    /// File that gets the console's output.
    pub console: PathBuf,
    /// File that gets the guest's messages.
    pub messages: PathBuf,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// The machine type (`-machine`).
    pub machine_type: MachineType,
    /// Seed of QEMU's random numbers.
    pub seed: u64,
    /// Instructions per guest nanosecond: how much faster the CPU is, relative to the network.
    pub dilation: u32,
}

/// A QEMU machine type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineType {
    /// `microvm`, for the lab's own kernel. It has no timer to calibrate against, and trials are repeatable to the byte.
    Microvm,
    /// `pc`, for a stock kernel. Its clock counts instructions too, but it cannot be dilated, and two runs are similar rather
    /// than equal.
    Pc,
}

/// The emulator's command name.
pub const QEMU: &str = "qemu-system-x86_64";

/// Returns QEMU's name and version.
///
/// # Errors
/// It is not installed.
#[expect(clippy::disallowed_methods, reason = "starts QEMU")]
pub fn version() -> Result<String, LabError> {
    let version = std::process::Command::new(QEMU).arg("--version").output();
    let version = version.map_err(|_| LabError::Missing {
        what: QEMU.to_owned(),
        hint: "run `apt-get install qemu-system-x86` as root".to_owned(),
    })?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    Ok(version.lines().next().unwrap_or("QEMU, unknown version").to_owned())
}

impl VmConfig {
    /// Starts QEMU, on a given CPU if there is one. Its own messages go to `errors`: nobody would read a pipe, which may fill up.
    ///
    /// The kernel kills QEMU when the *thread* that calls this ends, so call it from a thread that stays.
    ///
    /// # Errors
    /// It cannot be started.
    #[expect(clippy::disallowed_methods, reason = "starts ccbench-agent, which becomes QEMU")]
    pub fn start(&self, cpu: Option<usize>, errors: std::fs::File) -> Result<Child, LabError> {
        // Ties itself to this process before it executes QEMU, because `kill_on_drop` does nothing if this process is killed.
        let launcher = agent_binary();
        let mut command = Command::new(&launcher);
        command
            .args(["launch", "--parent"])
            .arg(std::process::id().to_string())
            .args(["--", QEMU])
            .args(self.arguments())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors)
            .process_group(0)
            .kill_on_drop(true);
        let started = match cpu {
            Some(cpu) => on_cpu(cpu, || command.spawn()),
            None => command.spawn(),
        };
        started.map_err(LabError::io("start", &launcher))
    }

    /// Returns the arguments for [`QEMU`].
    pub fn arguments(&self) -> Vec<String> {
        let messages = escaped(&self.messages);
        let machine: &[&str] = match self.machine_type {
            MachineType::Microvm => &[
                "-M",
                "microvm,acpi=off,pit=off,pic=off,rtc=on,isa-serial=on",
                // With an eventfd, another thread would serve the port, at times that differ from run to run.
                "-global",
                "virtio-mmio.ioeventfd=off",
                "-device",
                "virtio-serial-device",
            ],
            MachineType::Pc => &["-M", "pc,hpet=off", "-device", "virtio-serial-pci,ioeventfd=off"],
        };
        let common = [
            "-device",
            "virtserialport,chardev=messages,name=ccbench",
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
            "-accel",
            "tcg,thread=single",
            // One instruction is one nanosecond of QEMU's clock.
            "-icount",
            "shift=0,sleep=off",
            "-cpu",
            "max",
            "-rtc",
            "base=2026-01-01T00:00:00,clock=vm",
        ];
        let mut arguments: Vec<String> =
            machine.iter().chain(&common).map(|argument| (*argument).to_owned()).collect();
        arguments.extend([
            "-m".to_owned(),
            self.memory_mib.to_string(),
            "-seed".to_owned(),
            self.seed.to_string(),
            "-chardev".to_owned(),
            format!("file,id=messages,path={messages}"),
            "-serial".to_owned(),
            format!("file:{}", escaped(&self.console)),
            "-kernel".to_owned(),
            self.kernel.display().to_string(),
            "-initrd".to_owned(),
            self.initramfs.display().to_string(),
            "-append".to_owned(),
            self.command_line(),
        ]);
        arguments
    }

    /// Returns the same arguments, but with the console on this terminal.
    pub fn interactive_arguments(&self) -> Vec<String> {
        let console = format!("file:{}", escaped(&self.console));
        let on_terminal = |argument| match argument {
            argument if argument == console => "mon:stdio".to_owned(),
            argument => argument,
        };
        self.arguments().into_iter().map(on_terminal).collect()
    }

    /// Returns the kernel's command line.
    fn command_line(&self) -> String {
        let common = "console=ttyS0 quiet panic=-1 sysctl.vm.panic_on_oom=1 nokaslr norandmaps mitigations=off no_timer_check";
        match self.machine_type {
            MachineType::Microvm => {
                let khz = u64::from(self.dilation) * 1_000_000;
                let mhz = u64::from(self.dilation) * 1000;
                format!(
                    "{common} reboot=t idle=poll tsc=reliable tsc_early_khz={khz} lapic_timer_mhz={mhz}"
                )
            }
            MachineType::Pc => format!("{common} reboot=t"),
        }
    }
}

/// Escapes commas for QEMU's option values by doubling them.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_dilation_and_seed_and_no_host_device() {
        let config = VmConfig {
            kernel: "/k/vmlinux".into(),
            initramfs: "/k/initramfs".into(),
            console: "/r/a,b/console".into(),
            messages: "/r/a,b/messages".into(),
            memory_mib: 512,
            machine_type: MachineType::Microvm,
            seed: 7,
            dilation: 10,
        };
        let line = config.arguments().join(" ");
        assert!(line.contains("tsc_early_khz=10000000 lapic_timer_mhz=10000"), "{line}");
        assert!(line.contains("-seed 7 ") && line.contains("-m 512 "), "{line}");
        assert!(line.contains("path=/r/a,,b/messages"), "{line}");
        assert!(!line.contains("-netdev") && !line.contains("-drive"), "{line}");
        let other = VmConfig { seed: 8, ..config.clone() }.arguments().join(" ");
        assert_eq!(line.replace("-seed 7", "-seed 8"), other);
    }
}
