//! Network namespaces for tests, and the processes in them.

use std::process::{Child, Command, Stdio};

use crate::{SETUP_TIMEOUT, check_root, namespace_of, wait_for};

/// Maximum life of a namespace whose test was killed, seconds.
const HOLDER_S: &str = "20000";

/// A network namespace with loopback up. It lives as long as this value.
pub struct Namespace {
    holder: Child,
}

impl Namespace {
    /// Creates a namespace.
    ///
    /// # Panics
    /// Panics if not root.
    #[expect(clippy::new_without_default, clippy::unwrap_used, reason = "a test may panic")]
    pub fn new() -> Self {
        check_root();
        let holder = Command::new("unshare").args(["-n", "sleep", HOLDER_S]).spawn().unwrap();
        let pid = holder.id().to_string();
        wait_for("the namespace", SETUP_TIMEOUT, || {
            namespace_of(&pid).is_some_and(|link| Some(link) != namespace_of("self"))
        });
        let namespace = Self { holder };
        namespace.shell("ip link set lo up");
        namespace
    }

    /// Returns a process inside.
    pub fn pid(&self) -> u32 {
        self.holder.id()
    }

    /// Returns the beginning of a command line whose program runs inside.
    pub fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-n", "-t", &self.pid().to_string(), "--"]).stdin(Stdio::null());
        command
    }

    /// Runs a command inside. Returns its output.
    ///
    /// # Panics
    /// Panics if it fails.
    #[expect(clippy::unwrap_used, reason = "a test may panic")]
    pub fn run(&self, command: &[&str]) -> String {
        let output = self.enter().args(command).output().unwrap();
        assert!(output.status.success(), "{command:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a shell command inside. Returns its output.
    pub fn shell(&self, command: &str) -> String {
        self.run(&["sh", "-c", command])
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.holder.kill());
        drop(self.holder.wait());
    }
}

/// Returns the children of a process's main thread.
pub fn children(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    children.unwrap_or_default().split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}
