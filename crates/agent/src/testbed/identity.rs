//! Identifies a process by pid and start time, because the kernel reuses pids.

use std::io;

use serde::{Deserialize, Serialize};

/// A process of this boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub starttime: u64,
}

impl Identity {
    /// The process with this pid.
    ///
    /// # Errors
    /// `NotFound` where there is none (a zombie counts as none).
    pub fn of(pid: u32) -> io::Result<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        match parse_stat(&stat) {
            Some(('Z' | 'X', _)) => Err(io::Error::from(io::ErrorKind::NotFound)),
            Some((_, starttime)) => Ok(Self { pid, starttime }),
            None => Err(io::Error::new(io::ErrorKind::InvalidData, "unreadable /proc/PID/stat")),
        }
    }

    /// This process.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn own() -> io::Result<Self> {
        Self::of(std::process::id())
    }

    /// The process still runs.
    pub fn is_live(&self) -> bool {
        Self::of(self.pid).is_ok_and(|now| now == *self)
    }
}

/// Identifies this boot of this machine.
///
/// # Errors
/// `/proc` is not mounted.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// State and start time. The command name, in parentheses, may itself contain spaces and parentheses.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_cannot_shift_the_fields() {
        let stat = "7 (a) S 1) R 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711 8 9";
        assert_eq!(parse_stat(stat), Some(('R', 4711)));
        assert_eq!(parse_stat("7 (a"), None);
    }

    #[test]
    fn only_the_same_start_is_the_same_process() {
        let own = Identity::own().unwrap();
        assert!(own.is_live());
        assert!(!Identity { starttime: own.starttime + 1, ..own }.is_live());
        assert!(!boot_id().unwrap().is_empty());
    }
}
