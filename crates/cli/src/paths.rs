//! Paths of the agent's binary, the state of running experiments, and the cache on this machine.

use std::path::PathBuf;

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
pub fn running() -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = std::fs::read_dir(state_root())
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join("testbed.json").exists())
        .collect();
    dirs.sort();
    dirs
}
