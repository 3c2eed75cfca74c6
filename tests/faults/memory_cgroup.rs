//! Control groups, version 2 or 1, that limit memory.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Moves the shell into the group `$0`, then replaces it by the program in the other arguments.
pub const ENTER: &str = "echo 0 >\"$0/cgroup.procs\" && exec \"$@\"";

/// Names of a version's files.
struct Files {
    limit: &'static str,
    peak: &'static str,
    /// The file with a line `oom_kill COUNT`.
    events: &'static str,
}

const V2: Files = Files { limit: "memory.max", peak: "memory.peak", events: "memory.events" };
const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    peak: "memory.max_usage_in_bytes",
    events: "memory.oom_control",
};

/// A control group. Dropping it removes it if its processes have ended.
pub struct MemoryCgroup {
    dir: PathBuf,
    files: Files,
}

impl MemoryCgroup {
    /// Creates a group below the root of the hierarchy. Returns `None` if no group there can limit memory.
    pub fn new() -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("ccbench-faults-{}-{number}", std::process::id());
        for (root, files) in [("/sys/fs/cgroup", V2), ("/sys/fs/cgroup/memory", V1)] {
            let dir = Path::new(root).join(&name);
            // In version 1, this first place is a folder of hierarchies, or read-only.
            if std::fs::create_dir(&dir).is_err() {
                continue;
            }
            let group = Self { dir, files };
            if group.dir.join(group.files.limit).exists() {
                // Swap would make the limit ineffective. The file is missing where there is no swap.
                let _ = std::fs::write(group.dir.join("memory.swap.max"), "0");
                return Some(group);
            }
        }
        None
    }

    /// Returns the beginning of a command line whose program runs in the group.
    pub fn wrapper(&self) -> Vec<String> {
        let dir = self.dir.display().to_string();
        vec!["sh".to_owned(), "-c".to_owned(), ENTER.to_owned(), dir]
    }

    /// Limits the memory of the group's processes.
    pub fn set_limit(&self, bytes: u64) {
        std::fs::write(self.dir.join(self.files.limit), bytes.to_string()).unwrap();
    }

    /// Returns the maximum memory that the group's processes had, in bytes.
    pub fn peak(&self) -> u64 {
        self.read(self.files.peak).trim().parse().unwrap()
    }

    /// Returns how many processes the kernel has killed because of the limit.
    pub fn kills(&self) -> u64 {
        let events = self.read(self.files.events);
        let kills = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
        kills.unwrap().parse().unwrap()
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.dir.join(file)).unwrap()
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.dir);
    }
}
