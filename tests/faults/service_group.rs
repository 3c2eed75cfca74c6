//! A control group for an agent, like that of a service: the agent then puts traffic into a group of its own, beside its own group, and
//! removes that group with the trial.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ccbench_tests::node_state::control_groups;

use crate::memory_cgroup::ENTER;

/// Where hierarchies of version 2 are mounted, alone or beside those of version 1.
const ROOTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// The agent's group in that of its service, as with `DelegateSubgroup=agent`.
const AGENT: &str = "agent";

/// A control group of version 2 with one for an agent inside. Dropping it removes both, and those inside, if their processes have ended.
pub struct ServiceGroup {
    dir: PathBuf,
}

impl ServiceGroup {
    /// Creates a group below the root of the hierarchy. Returns `None` if there is no hierarchy of version 2, or if it cannot be written.
    pub fn new() -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("ccbench-faults-{}-{number}.service", std::process::id());
        let roots = ROOTS.into_iter().map(Path::new);
        let mut dirs = roots
            .filter(|root| root.join("cgroup.controllers").exists())
            .map(|root| root.join(&name));
        let dir = dirs.find(|dir| std::fs::create_dir_all(dir.join(AGENT)).is_ok())?;
        Some(Self { dir })
    }

    /// Returns the beginning of a command line whose program runs in the agent's group.
    pub fn wrapper(&self) -> [String; 4] {
        let dir = self.dir.join(AGENT).display().to_string();
        ["sh".to_owned(), "-c".to_owned(), ENTER.to_owned(), dir]
    }

    /// Returns the groups inside, one line for each.
    pub fn groups(&self) -> String {
        control_groups(&self.dir)
    }
}

impl Drop for ServiceGroup {
    fn drop(&mut self) {
        // Killed processes may leave their group a moment later.
        for _ in 0..50 {
            let groups = self.groups();
            let inside = groups.lines().rev().map(Path::new);
            inside.for_each(|group| drop(std::fs::remove_dir(group)));
            if std::fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_group_is_removed_with_its_groups() {
    let Some(service) = ServiceGroup::new() else {
        return ccbench_tests::skip::skip("no control group of version 2 can be made here");
    };
    std::fs::create_dir(service.dir.join("traffic")).unwrap();
    assert_eq!(service.groups().lines().count(), 2);
    let dir = service.dir.clone();
    drop(service);
    assert!(!dir.exists());
}
