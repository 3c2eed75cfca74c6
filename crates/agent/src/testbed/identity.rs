//! Identifies a process by pid and start time, because the kernel reuses pids.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

/// A process of this boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Its pid.
    pub pid: u32,
    /// When it started, in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub starttime: u64,
}

impl ProcessIdentity {
    /// Returns the process with this pid.
    ///
    /// # Errors
    /// `NotFound` if there is none. An exiting process and a zombie count as none.
    pub fn of(pid: u32) -> io::Result<Self> {
        let stat = Stat::of(pid)?;
        if stat.has_ended() || stat.is_exiting() {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        Ok(Self { pid, starttime: stat.starttime })
    }

    /// Returns this process.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn own() -> io::Result<Self> {
        Self::of(std::process::id())
    }

    /// Whether the process is still running.
    pub fn is_live(&self) -> bool {
        Self::of(self.pid).is_ok_and(|now| now == *self)
    }

    /// If the process is exiting, waits for its end: a killed process holds its namespaces, and with them its children,
    /// for a while after its memory and files are gone. Returns whether it has ended.
    pub fn wait_exit(&self, limit: Duration) -> bool {
        let exits = || {
            Stat::of(self.pid).is_ok_and(|now| now.starttime == self.starttime && !now.has_ended())
        };
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let Some(Ok(process)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else {
            return !exits();
        };
        if exits()
            && let Ok(limit) = Timespec::try_from(limit)
        {
            // A signal may end the wait early.
            let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit));
        }
        !exits()
    }
}

/// Returns the identifier of this boot.
///
/// # Errors
/// `/proc` is not mounted.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// The fields of `/proc/PID/stat` used here.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: char,
    /// `PF_*` of linux/sched.h.
    flags: u32,
    starttime: u64,
}

impl Stat {
    fn of(pid: u32) -> io::Result<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let unreadable = || io::Error::new(io::ErrorKind::InvalidData, "unreadable /proc/PID/stat");
        Self::parse(&stat).ok_or_else(unreadable)
    }

    /// Parses the file. The command name, in parentheses, may itself contain spaces and parentheses.
    fn parse(stat: &str) -> Option<Self> {
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let flags = fields.nth(5)?.parse().ok()?;
        Some(Self { state, flags, starttime: fields.nth(12)?.parse().ok()? })
    }

    fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    fn is_exiting(&self) -> bool {
        const PF_EXITING: u32 = 0x4;
        self.flags & PF_EXITING != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_cannot_shift_the_fields() {
        let stat = "7 (a) S 1) R 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711 8 9";
        let expected = Stat { state: 'R', flags: 4_194_304, starttime: 4711 };
        assert_eq!(Stat::parse(stat), Some(expected));
        assert_eq!(Stat::parse("7 (a"), None);
    }

    #[test]
    fn a_process_that_exits_is_not_live_but_has_not_ended() {
        let stat = "7 (a) S 1 7 7 0 -1 4194564 1 0 0 0 0 0 0 0 20 0 1 0 4711 8 9";
        let stat = Stat::parse(stat).unwrap();
        assert!(stat.is_exiting() && !stat.has_ended());
        let own = ProcessIdentity::own().unwrap();
        assert!(!own.wait_exit(Duration::ZERO));
        assert!(ProcessIdentity { starttime: own.starttime + 1, ..own }.wait_exit(Duration::ZERO));
    }

    #[test]
    fn only_the_same_start_is_the_same_process() {
        let own = ProcessIdentity::own().unwrap();
        assert!(own.is_live());
        assert!(!ProcessIdentity { starttime: own.starttime + 1, ..own }.is_live());
        assert!(!boot_id().unwrap().is_empty());
    }
}
