//! Unix sockets, which only processes of this machine reach: created by this process, or passed by systemd.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use socket2::{Domain, SockRef};

use crate::error::AgentError;

/// Removes a socket's file when dropped.
pub struct RemovedOnDrop<'a>(pub &'a Path);

impl Drop for RemovedOnDrop<'_> {
    fn drop(&mut self) {
        drop(std::fs::remove_file(self.0));
    }
}

/// Listens on a Unix socket that only its owner may use: `owner`, if given. Replaces a dead process's socket, but not a live one's.
///
/// # Errors
/// The socket cannot be created, or another process listens there.
pub fn listen(path: &Path, owner: Option<u32>) -> Result<UnixListener, AgentError> {
    let refused =
        |reason: String| AgentError::Listen { address: format!("unix:{}", path.display()), reason };
    if path.exists() {
        if UnixStream::connect(path).is_ok() {
            return Err(refused(
                "another agent listens there; end it, or choose another path".to_owned(),
            ));
        }
        std::fs::remove_file(path).map_err(|e| refused(format!("remove the old socket: {e}")))?;
    }
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    rustix::process::umask(before);
    let listener = bound.map_err(|e| refused(e.to_string()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .map_err(|e| refused(format!("set mode 0600: {e}")))?;
    let owner = owner.filter(|owner| *owner != rustix::process::geteuid().as_raw());
    if let Some(owner) = owner {
        // Does not follow links: the folder may belong to the other user, who can replace the socket.
        std::os::unix::fs::lchown(path, Some(owner), None)
            .map_err(|e| refused(format!("give it to user {owner}: {e}")))?;
    }
    tracing::info!(path = %path.display(), "listening");
    Ok(listener)
}

/// Takes over the listening socket on standard input. Replaces it with /dev/null, so that child processes do not inherit the socket.
///
/// # Errors
/// Standard input is not a listening socket.
pub fn inherited() -> Result<UnixListener, AgentError> {
    let refused =
        |reason: String| AgentError::Listen { address: "standard input".to_owned(), reason };
    let failed = |error: io::Error| refused(error.to_string());
    let stdin = io::stdin();
    let socket = SockRef::from(&stdin);
    let is_ours = socket.is_listener().is_ok_and(|listens| listens)
        && socket.domain().is_ok_and(|domain| domain == Domain::UNIX);
    if !is_ours {
        let reason = "it is not a listening Unix socket; set StandardInput=socket in the unit, and Accept=no in its socket unit";
        return Err(refused(reason.to_owned()));
    }
    let listener = stdin.as_fd().try_clone_to_owned().map_err(failed)?;
    let null = File::open("/dev/null").map_err(failed)?;
    nix::unistd::dup2_stdin(&null).map_err(|errno| failed(errno.into()))?;
    Ok(UnixListener::from(listener))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_input_of_a_worker_is_a_listening_socket() {
        // A test's standard input is not a socket.
        let error = inherited().unwrap_err().to_string();
        assert!(error.contains("StandardInput=socket"), "{error}");
    }
}
