//! Signals that end a link or report the end of its command, read from a signalfd.

use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::error::LinkError;

/// Opened before any thread starts, so that all threads inherit the blocked signals.
#[derive(Debug)]
pub(crate) struct Signals {
    fd: SignalFd,
}

/// A received signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReceivedSignal {
    /// The signal.
    pub(crate) signal: Signal,
    /// It was typed at the terminal, which has sent it to the command, too.
    pub(crate) from_terminal: bool,
}

impl Signals {
    /// Blocks the signals in this thread and starts to listen.
    ///
    /// # Errors
    /// The kernel refused a descriptor.
    pub(crate) fn open() -> Result<Self, LinkError> {
        let mut mask = SigSet::empty();
        for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            mask.add(signal);
        }
        let open = || -> nix::Result<SignalFd> {
            mask.thread_block()?;
            SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        };
        Ok(Self { fd: open().map_err(LinkError::system("listen to signals"))? })
    }

    /// Returns the next signal, or nothing after `limit`.
    ///
    /// # Errors
    /// `poll` failed.
    pub(crate) fn wait(&self, limit: Duration) -> Result<Option<ReceivedSignal>, LinkError> {
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(LinkError::system("wait for signals")(e)),
        }
        let Some(info) = self.fd.read_signal().ok().flatten() else { return Ok(None) };
        let signal = i32::try_from(info.ssi_signo).ok().and_then(|n| Signal::try_from(n).ok());
        Ok(signal.map(|signal| ReceivedSignal {
            signal,
            from_terminal: info.ssi_code == libc::SI_KERNEL,
        }))
    }
}
