//! Paths of the agent's binary, the state of running experiments, and the cache on this machine.

use std::io;
use std::path::{Path, PathBuf};

use ccbench_io::owner::check_owner;

use crate::file::FileError;

/// Returns the directory of the sockets of this user's running experiments: `$CCBENCH_STATE`, or for root `/run/ccbench`.
pub fn state_root() -> PathBuf {
    if let Some(dir) = std::env::var_os("CCBENCH_STATE") {
        return dir.into();
    }
    if rustix::process::geteuid().is_root() {
        return "/run/ccbench".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) => PathBuf::from(dir).join("ccbench"),
        None => {
            std::env::temp_dir().join(format!("ccbench-{}", rustix::process::geteuid().as_raw()))
        }
    }
}

/// Returns this user's cache: `ccbench` in `$XDG_CACHE_HOME` or `~/.cache`.
pub fn cache_dir() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    base.unwrap_or_else(std::env::temp_dir).join("ccbench")
}

/// Returns the directory that a package installs for all users: `share/ccbench` beside the folder of this binary.
pub fn shared_dir() -> Option<PathBuf> {
    let binary = std::env::current_exe().ok()?;
    Some(binary.parent()?.parent()?.join("share/ccbench"))
}

/// Returns the agent's binary: `$CCBENCH_AGENT`, the one next to this binary, or the one on the PATH.
pub fn agent_binary() -> PathBuf {
    if let Some(path) = std::env::var_os("CCBENCH_AGENT") {
        return path.into();
    }
    let beside = std::env::current_exe().ok().map(|exe| exe.with_file_name("ccbench-agent"));
    beside.filter(|path| path.exists()).unwrap_or_else(|| "ccbench-agent".into())
}

/// Returns the folders of the running experiments, newest last.
///
/// # Errors
/// The [`state_root`] cannot be read, or another user has made it or can change it.
pub fn running() -> Result<Vec<PathBuf>, FileError> {
    running_in(&state_root(), &std::env::temp_dir())
}

fn running_in(root: &Path, shared: &Path) -> Result<Vec<PathBuf>, FileError> {
    let list = || -> io::Result<Vec<PathBuf>> {
        check_owner(root, shared)?;
        std::fs::read_dir(root)?.map(|entry| entry.map(|entry| entry.path())).collect()
    };
    let mut dirs = match list() {
        // The first experiment makes it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        listed => listed.map_err(FileError::io("list the running experiments in", root))?,
    };
    dirs.retain(|path| path.join("testbed.json").exists());
    dirs.sort();
    Ok(dirs)
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_refused_state_directory_does_not_count_as_empty() {
        let shared = tempfile::tempdir().unwrap();
        let root = shared.path().join("ccbench-1000");
        let running = || running_in(&root, shared.path());
        assert!(running().unwrap().is_empty(), "no experiment has run");
        let experiment = root.join("20261126T100000Z-71-quick");
        std::fs::create_dir_all(&experiment).unwrap();
        std::fs::write(experiment.join("testbed.json"), "{}").unwrap();
        set_permissions(&root, Permissions::from_mode(0o755)).unwrap();
        assert_eq!(running().unwrap(), [experiment]);
        set_permissions(&root, Permissions::from_mode(0o777)).unwrap();
        let why = running().unwrap_err().to_string();
        assert!(why.contains("set CCBENCH_STATE"), "{why}");
    }
}
