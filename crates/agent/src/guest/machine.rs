//! The duties of process 1: file systems, modules, the one-way port, power-off.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;

use ccbench_collector::host::procfs::{CpuTicks, cpu_times};
use ccbench_io::console::message;
use nix::mount::{MsFlags, mount};

use crate::sockets::sysfs;

/// File system type, mount point, options.
const MOUNTS: [(&str, &str, &str); 9] = [
    ("proc", "/proc", ""),
    ("sysfs", "/sys", ""),
    ("devtmpfs", "/dev", ""),
    ("devpts", "/dev/pts", ""),
    ("tmpfs", "/dev/shm", ""),
    ("tmpfs", "/run", "mode=0755"),
    ("tmpfs", "/tmp", ""),
    ("bpf", "/sys/fs/bpf", ""),
    ("cgroup2", "/sys/fs/cgroup", ""),
];

/// Mounts the usual file systems. Skips those that this kernel lacks, except `/proc` and `/dev`.
pub fn mount_all() -> io::Result<()> {
    for (kind, at, options) in MOUNTS {
        // The folder exists already, or the mount below reports the error.
        let _ = fs::create_dir_all(at);
        match mount(Some(kind), at, Some(kind), MsFlags::empty(), Some(options)) {
            Err(nix::errno::Errno::EBUSY) | Ok(()) => {}
            Err(e) if matches!(at, "/proc" | "/dev") => {
                return Err(io::Error::other(format!("mount {kind} on {at}: {e}")));
            }
            Err(_) => {}
        }
    }
    Ok(())
}

/// Loads the modules of this machine's devices, if the kernel came with modules. The kernel loads modules of qdiscs and
/// congestion controls on demand, and agents load ccbench's.
#[expect(clippy::disallowed_methods, reason = "starts modprobe")]
pub fn load_modules() -> io::Result<()> {
    // Modules from elsewhere are in other folders.
    if !Path::new("/lib/modules").join(sysfs::release()).join("kernel").exists() {
        return Ok(());
    }
    // Not every kernel lists its built-in modules, so a failure here means nothing. A missing module shows when it is
    // used, and the console has modprobe's messages.
    std::process::Command::new("/sbin/modprobe")
        .args(["-a", "virtio_pci", "virtio_console", "veth", "tcp_diag"])
        .status()
        .map(|_| ())
}

/// Opens the port named `ccbench` for writing.
pub fn port() -> io::Result<File> {
    let root = Path::new("/sys/class/virtio-ports");
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if name.trim() == "ccbench" {
            return OpenOptions::new().write(true).open(Path::new("/dev").join(entry.file_name()));
        }
    }
    Err(io::Error::other("the machine has no virtio port named ccbench"))
}

/// CPU time used so far.
pub struct Busy(CpuTicks);

impl Busy {
    /// Reads the kernel's current counters.
    pub fn now() -> Self {
        Self::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn parse(stat: &str) -> Self {
        Self(cpu_times(stat).map(|times| times.all).unwrap_or_default())
    }

    /// Returns the busy share of the time between two readings, in percent.
    pub fn share_until(&self, later: &Self) -> f64 {
        let between = later.0.since(&self.0);
        match between.total() {
            0 => 0.0,
            all => 100.0 * (all - between.idle) as f64 / all as f64,
        }
    }
}

/// Becomes an interactive shell.
#[expect(clippy::disallowed_methods, reason = "starts the console's shell")]
pub fn shell() -> ! {
    let error = std::process::Command::new("/bin/sh").arg("-l").exec();
    message(format_args!("ccbench guest: /bin/sh: {error}"));
    power_off()
}

/// Ends the machine: QEMU runs with `-no-reboot`.
pub fn power_off() -> ! {
    // Resets at once, as Alt-SysRq-B does. User-Mode Linux has no SysRq, but can power off. If neither works, the end
    // of process 1 causes a panic, which also ends the machine.
    let _ = fs::write("/proc/sysrq-trigger", "b");
    let _ = rustix::system::reboot(rustix::system::RebootCommand::PowerOff);
    std::process::exit(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_are_not_busy() {
        let before = Busy::parse("cpu  10 0 20 100 5 1 4 0 0 0\ncpu0 1 2 3 4\n");
        let after = Busy::parse("cpu  20 0 30 180 5 1 4 0 0 0\n");
        assert!((before.share_until(&after) - 20.0).abs() < 1e-9);
        assert!(before.share_until(&before).abs() < f64::EPSILON);
    }
}
