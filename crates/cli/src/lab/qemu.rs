//! The lab's machine: how QEMU is called, so that its clock counts instructions and nothing of the host reaches it.

use std::path::{Path, PathBuf};

/// One boot.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The kernel: an ELF image with a PVH entry.
    pub kernel: PathBuf,
    /// The initramfs.
    pub initramfs: PathBuf,
    /// Text of the kernel and of the guest's process 1.
    pub console: PathBuf,
    /// What the guest says; only ever written.
    pub said: PathBuf,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// What kind of machine.
    pub board: Board,
    /// Feeds everything random in the guest.
    pub seed: u64,
    /// How many instructions of the guest make a nanosecond of its time: its processor's speed against its
    /// network's.
    pub dilation: u32,
}

/// What a kernel can run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Board {
    /// The lab's own kernel: nothing to calibrate against, nothing that ticks by itself. Repeatable to the byte.
    Micro,
    /// A stock kernel: an old PC, whose clock counts instructions too. It cannot be dilated, and two runs are
    /// close but not equal.
    Pc,
}

/// The emulator.
pub const QEMU: &str = "qemu-system-x86_64";

impl Machine {
    /// Arguments for [`QEMU`].
    pub fn arguments(&self) -> Vec<String> {
        let said = escaped(&self.said);
        let board: &[&str] = match self.board {
            Board::Micro => &[
                "-M",
                "microvm,acpi=off,pit=off,pic=off,rtc=on,isa-serial=on",
                // An eventfd would hand the port's work to another thread, at another instant each time.
                "-global",
                "virtio-mmio.ioeventfd=off",
                "-device",
                "virtio-serial-device",
            ],
            Board::Pc => &["-M", "pc,hpet=off", "-device", "virtio-serial-pci,ioeventfd=off"],
        };
        let common = [
            "-device",
            "virtserialport,chardev=said,name=ccbench",
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
            board.iter().chain(&common).map(|argument| (*argument).to_owned()).collect();
        arguments.extend([
            "-m".to_owned(),
            self.memory_mib.to_string(),
            "-seed".to_owned(),
            self.seed.to_string(),
            "-chardev".to_owned(),
            format!("file,id=said,path={said}"),
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

    /// The same with the console on the terminal that QEMU is called from.
    pub fn arguments_for_people(&self) -> Vec<String> {
        let console = format!("file:{}", escaped(&self.console));
        let on_terminal = |argument| match argument {
            argument if argument == console => "mon:stdio".to_owned(),
            argument => argument,
        };
        self.arguments().into_iter().map(on_terminal).collect()
    }

    /// The kernel's command line.
    fn command_line(&self) -> String {
        let common = "console=ttyS0 quiet panic=-1 sysctl.vm.panic_on_oom=1 nokaslr norandmaps mitigations=off no_timer_check";
        match self.board {
            Board::Micro => {
                let khz = u64::from(self.dilation) * 1_000_000;
                let mhz = u64::from(self.dilation) * 1000;
                format!(
                    "{common} reboot=t idle=poll tsc=reliable tsc_early_khz={khz} lapic_timer_mhz={mhz}"
                )
            }
            Board::Pc => format!("{common} reboot=t"),
        }
    }
}

/// QEMU's option values end at a comma; a doubled one is a comma.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dilation_and_seed_reach_the_machine_and_nothing_else_does() {
        let machine = Machine {
            kernel: "/k/vmlinux".into(),
            initramfs: "/k/initramfs".into(),
            console: "/r/a,b/console".into(),
            said: "/r/a,b/said".into(),
            memory_mib: 512,
            board: Board::Micro,
            seed: 7,
            dilation: 10,
        };
        let line = machine.arguments().join(" ");
        assert!(line.contains("tsc_early_khz=10000000 lapic_timer_mhz=10000"), "{line}");
        assert!(line.contains("-seed 7 ") && line.contains("-m 512 "), "{line}");
        assert!(line.contains("path=/r/a,,b/said"), "{line}");
        assert!(!line.contains("-netdev") && !line.contains("-drive"), "{line}");
        let other = Machine { seed: 8, ..machine.clone() }.arguments().join(" ");
        assert_eq!(line.replace("-seed 7", "-seed 8"), other);
    }
}
