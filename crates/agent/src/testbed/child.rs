//! First steps of an agent that a testbed starts: set the parent-death signal and enter its network namespace. Both
//! affect only the calling thread, so they must precede other threads.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};
use nix::sys::signal::SigSet;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// Why an agent could not be tied to its parent or enter its namespace.
#[derive(Debug, thiserror::Error)]
pub enum ChildSetupError {
    /// The parent ended before this process was tied to it.
    #[error("the process that started this one has ended")]
    ParentGone,
    /// The parent-death signal could not be set.
    #[error("set the parent-death signal: {0}")]
    DeathSignal(#[source] io::Error),
    /// The namespace's file cannot be opened.
    #[error("open the network namespace {path}: {source}")]
    Open {
        /// The namespace's file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused.
    #[error(
        "enter the network namespace {path}: {source}; it needs CAP_SYS_ADMIN in the user namespace that owns it"
    )]
    Setns {
        /// The namespace's file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Prepares an agent's process. Ties it to its parent (`die_with_parent`: SIGKILL when the parent's *thread* that
/// spawned it ends), unblocks all signals, and moves the calling thread into `netns`, a file such as `/proc/PID/ns/net`
/// or `/proc/PID/fd/N`.
///
/// # Errors
/// See [`ChildSetupError`]. Nothing has been started, so the caller reports the error and exits.
pub fn enter(netns: Option<&Path>, die_with_parent: bool) -> Result<(), ChildSetupError> {
    // The testbed blocks signals to read them from a descriptor, and its children inherit the mask.
    let _ = SigSet::empty().thread_set_mask();
    if die_with_parent {
        tie_to_parent(netns.and_then(pid_of))?;
    }
    let Some(path) = netns else { return Ok(()) };
    let file = File::open(path)
        .map_err(|source| ChildSetupError::Open { path: path.to_owned(), source })?;
    setns(&file, CloneFlags::CLONE_NEWNET)
        .map_err(|e| ChildSetupError::Setns { path: path.to_owned(), source: e.into() })
}

/// Requests SIGKILL when the parent ends. `expected` is the parent's pid, if the caller knows it: only then does this
/// detect a parent that died before the signal was set.
pub(crate) fn tie_to_parent(expected: Option<u32>) -> Result<(), ChildSetupError> {
    let before = getppid();
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|e| ChildSetupError::DeathSignal(e.into()))?;
    let now = getppid();
    let raw = now.map(|pid| Pid::as_raw_nonzero(pid).get().unsigned_abs());
    if now != before || expected.is_some_and(|pid| raw != Some(pid)) {
        return Err(ChildSetupError::ParentGone);
    }
    Ok(())
}

/// Returns the process in `/proc/PID/fd/N`, the form in which the testbed hands out its own descriptors.
fn pid_of(path: &Path) -> Option<u32> {
    let rest = path.to_str()?.strip_prefix("/proc/")?;
    let (pid, rest) = rest.split_once('/')?;
    rest.starts_with("fd/").then(|| pid.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_parent_only_in_a_descriptors_path() {
        assert_eq!(pid_of(Path::new("/proc/42/fd/7")), Some(42));
        assert_eq!(pid_of(Path::new("/proc/42/ns/net")), None);
        assert_eq!(pid_of(Path::new("/run/netns/a")), None);
    }

    #[test]
    fn errors_name_a_missing_namespace() {
        let error = enter(Some(Path::new("/nowhere/net")), false).unwrap_err();
        assert!(error.to_string().starts_with("open the network namespace /nowhere/net: "));
    }
}
