//! The testbed's control input: signals, and standard input, whose end stops the testbed.

use std::io;
use std::time::Duration;

use ccbench_proto::testbed::PLAN_END;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::error::TestbedError;

/// Limit of a plan's size.
const MAX_PLAN_BYTES: usize = 4 << 20;

/// Standard input and signals. Opening it blocks the signals in this thread; children start with none blocked.
#[derive(Debug)]
pub struct ControlInput {
    signals: SignalFd,
}

/// Why [`ControlInput::wait`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// A child ended.
    Child,
    /// Standard input ended, or a signal asked to stop.
    Stop,
    /// The time is over.
    Timeout,
}

impl ControlInput {
    /// Blocks the signals and opens a signalfd.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn open() -> Result<Self, TestbedError> {
        let mut mask = SigSet::empty();
        for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            mask.add(signal);
        }
        let listen = || -> nix::Result<SignalFd> {
            mask.thread_block()?;
            SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        };
        Ok(Self { signals: listen().map_err(TestbedError::system("listen to signals"))? })
    }

    /// Returns the text before the line `---END---`.
    ///
    /// # Errors
    /// The input ended before that line, is too long, or is not UTF-8.
    pub fn read_plan(&self) -> Result<String, TestbedError> {
        let mut bytes = Vec::new();
        let mut chunk = [0; 16 << 10];
        let invalid = |why: &str| {
            TestbedError::Input(io::Error::new(io::ErrorKind::InvalidData, why.to_owned()))
        };
        loop {
            if self.wait_input()? == Wake::Stop {
                return Err(TestbedError::Stopped);
            }
            let count = rustix::io::read(std::io::stdin(), &mut chunk)
                .map_err(|e| TestbedError::Input(e.into()))?;
            if count == 0 {
                return Err(invalid("it ended before the line ---END---"));
            }
            bytes.extend_from_slice(&chunk[..count]);
            if let Some(length) = plan_length(&bytes) {
                bytes.truncate(length);
                return String::from_utf8(bytes).map_err(|_| invalid("it is not UTF-8"));
            }
            if bytes.len() > MAX_PLAN_BYTES {
                return Err(invalid("it is longer than 4 MiB"));
            }
        }
    }

    /// Waits for an event, for at most `limit`.
    ///
    /// # Errors
    /// `poll` failed.
    pub fn wait(&self, limit: Option<Duration>) -> Result<Wake, TestbedError> {
        let limit = limit.map(timespec);
        loop {
            let stdin = std::io::stdin();
            let mut fds =
                [PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&stdin, PollFlags::IN)];
            match poll(&mut fds, limit.as_ref()) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(TestbedError::system("wait for the controller")(e)),
                Ok(0) => return Ok(Wake::Timeout),
                Ok(_) => {}
            }
            let (signalled, input) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
            if signalled && let Some(wake) = self.next_signal() {
                return Ok(wake);
            }
            if input && input_ended() {
                return Ok(Wake::Stop);
            }
        }
    }

    /// Waits only for a child to end. Returns false after `limit`.
    pub fn wait_child(&self, limit: Duration) -> bool {
        let mut fds = [PollFd::new(&self.signals, PollFlags::IN)];
        let woken = poll(&mut fds, Some(&timespec(limit))).is_ok_and(|count| count > 0);
        if woken {
            while self.next_signal().is_some() {}
        }
        woken
    }

    fn wait_input(&self) -> Result<Wake, TestbedError> {
        loop {
            let stdin = std::io::stdin();
            let mut fds =
                [PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&stdin, PollFlags::IN)];
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(TestbedError::system("wait for the plan")(e)),
                Ok(_) => {}
            }
            let (signalled, input) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
            if signalled && self.next_signal() == Some(Wake::Stop) {
                return Ok(Wake::Stop);
            }
            if input {
                return Ok(Wake::Child);
            }
        }
    }

    fn next_signal(&self) -> Option<Wake> {
        let info = self.signals.read_signal().ok()??;
        let child = info.ssi_signo == Signal::SIGCHLD as u32;
        Some(if child { Wake::Child } else { Wake::Stop })
    }
}

/// Reads and discards input after the plan. Returns true at its end.
fn input_ended() -> bool {
    match rustix::io::read(std::io::stdin(), &mut [0; 4096]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(e) => e != rustix::io::Errno::INTR && e != rustix::io::Errno::AGAIN,
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}

/// Returns the length of the plan, which ends before the first line `---END---`.
pub fn plan_length(bytes: &[u8]) -> Option<usize> {
    let mut start = 0;
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        if line.strip_suffix(b"\n").is_some_and(|line| line.trim_ascii_end() == PLAN_END.as_bytes())
        {
            return Some(start);
        }
        start += line.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_ends_at_a_whole_line() {
        assert_eq!(plan_length(b"a = 1\n---END---\n"), Some(6));
        assert_eq!(plan_length(b"---END---\r\n"), Some(0));
        assert_eq!(plan_length(b"a = 1\n---END---"), None);
        assert_eq!(plan_length(b"a = \"---END---\"\n"), None);
        assert_eq!(plan_length(b"a\n ---END---\nb\n---END---\nc\n"), Some(15));
    }
}
